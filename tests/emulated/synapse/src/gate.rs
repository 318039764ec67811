//! What every exported function does before and after its own work: it counts, checks the state and strikes with faults.
//!
//! ```text
//! failing? ─► forked? ─► initialised? ─► fault? ─► device? ─► lost? ─► the work
//! setting       28            28                     26        its code
//! ```

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    faults::{Fault, Faults},
    journal::Journal,
};

use crate::{
    abi::{Outcome, Status},
    device::Device,
    settings,
};

/// The whole state of one process's Synapse.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// The one device.
    pub(crate) device: Mutex<Option<Arc<Device>>>,
    /// What was called.
    pub(crate) journal: Journal,
    /// What goes wrong.
    pub(crate) faults: Faults,
    /// The process in which it was initialised; 0: not.
    pub(crate) initialised_in: AtomicU32,
    numbers: AtomicU64,
}

impl Runtime {
    /// A number that was never given before.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, SeqCst)
    }
}

/// Synapse in this process.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        settings::load();
        let faults = Faults::new();
        if let Ok(plan) = std::env::var("EMULATED_SYNAPSE_FAULTS")
            && let Err(error) = faults.add(&plan)
        {
            eprintln!("emulated Synapse: EMULATED_SYNAPSE_FAULTS: {error}");
        }
        Runtime {
            device: Mutex::new(None),
            journal: Journal::new(),
            faults,
            initialised_in: AtomicU32::new(0),
            numbers: AtomicU64::new(1),
        }
    })
}

/// What must be there before a function works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// `synInitialize`.
    Init,
    /// An acquired device that is whole; without one the call fails, and does not say why.
    Device,
    /// The same, for what maps host memory: there it is the argument that is wrong.
    Mapping,
}

impl Needs {
    /// What a call gives that needs a device where there is none. `None`: it needs none.
    const fn without_device(self) -> Option<Status> {
        match self {
            Self::Nothing | Self::Init => None,
            Self::Device => Some(Status::FAIL),
            Self::Mapping => Some(Status::INVALID_ARGUMENT),
        }
    }
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Call {
    device: Option<Arc<Device>>,
    /// What the call queues loses the device with this status.
    pub(crate) late: Option<Status>,
}

impl Call {
    /// The device. Only for functions that need one.
    pub(crate) fn device(&self) -> Outcome<&Arc<Device>> {
        self.device.as_ref().ok_or(Status::NO_DEVICE_FOUND)
    }

    /// The device by its number, which is 0 for the only one.
    pub(crate) fn numbered(&self, id: u32) -> Outcome<&Arc<Device>> {
        if id != 0 {
            runtime()
                .journal
                .misuse(format!("device number {id} was used; the device is 0"));
            return Err(Status::NO_DEVICE_FOUND);
        }
        self.device()
    }
}

/// A call that is under way with a device.
struct Inside(Arc<Device>);

impl Inside {
    fn of(device: &Arc<Device>) -> Self {
        device.inside.fetch_add(1, SeqCst);
        Self(Arc::clone(device))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

/// Runs the work of an exported function.
pub(crate) fn enter(
    name: &'static str,
    needs: Needs,
    arguments: [u64; 4],
    work: impl FnOnce(&Call) -> Outcome,
) -> i32 {
    let status = match admitted(name, needs, work) {
        Ok(()) => 0,
        Err(status) => status.0,
    };
    runtime().journal.call(name, arguments, status as u32);
    status
}

fn admitted(name: &'static str, needs: Needs, work: impl FnOnce(&Call) -> Outcome) -> Outcome {
    let runtime = runtime();
    let failing = settings::FAILING.get();
    if failing != 0 {
        return Err(Status(failing as i32));
    }
    let initialised_in = runtime.initialised_in.load(SeqCst);
    if initialised_in != 0 && initialised_in != std::process::id() {
        return Err(Status::UNINITIALIZED);
    }
    if needs != Needs::Nothing && initialised_in == 0 {
        return Err(Status::UNINITIALIZED);
    }
    let device = runtime.device.lock().clone();
    let index = device.as_ref().map(|device| device.index as u32);
    let mut late = None;
    for fault in runtime.faults.strike(name, index) {
        match fault {
            Fault::Code(code) => return Err(Status(code as i32)),
            Fault::Skip => return Ok(()),
            Fault::Late(code) => late = Some(Status(code as i32)),
            Fault::Die(code) => {
                if let Some(device) = &device {
                    device.lose(Status(code as i32));
                }
                return Err(Status(code as i32));
            }
        }
    }
    if let Some(without) = needs.without_device() {
        device.as_ref().ok_or(without)?.check()?;
    }
    let _inside = device.as_ref().map(Inside::of);
    work(&Call { device, late })
}
