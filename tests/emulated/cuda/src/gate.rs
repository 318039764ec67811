//! What every exported function does before and after its own work: it counts, checks the state and strikes with faults.
//!
//! ```text
//! from a host function? ─► forked? ─► newer than the driver? ─► initialised? ─► context? broken? ─► fault? ─► the work
//!          800                3              801                     3           201, 709, sticky
//! ```

use std::{
    cell::Cell,
    ffi::c_void,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use wharf_emulated_common::faults::Fault;

use crate::{
    abi::{HostFn, In, Location, Opaque, Out, Outcome, Status, StreamCallback},
    context::{self, Context},
    driver::driver,
    settings,
};

/// What must be there before a function works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Needs {
    /// Nothing: it works before `cuInit`.
    Nothing,
    /// `cuInit`.
    Init,
    /// A context that is current on the calling thread and whole.
    Context,
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct Call {
    context: Option<Arc<Context>>,
    /// What the call queues breaks the context with this status.
    pub(crate) late: Option<Status>,
}

impl Call {
    /// The context that is current. Only for functions that need one.
    pub(crate) fn context(&self) -> Outcome<&Arc<Context>> {
        self.context.as_ref().ok_or(Status::INVALID_CONTEXT)
    }
}

/// An exported name, for `cuGetProcAddress`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// The name without a suffix.
    pub(crate) base: &'static str,
    /// The driver version in which it came.
    pub(crate) since: u32,
    /// Where it is.
    pub(crate) address: *const (),
}

static INITIALISED: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Notes that `cuInit` was called.
pub(crate) fn initialise() {
    if !INITIALISED.swap(true, SeqCst) {
        crate::at_fork::in_child(|| FORKED.store(true, SeqCst));
    }
}

/// Runs what the program gave, on this thread: calls from within are not permitted.
pub(crate) fn as_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}

/// Runs the work of an exported function.
pub(crate) fn enter(
    name: &'static str,
    since: u32,
    needs: Needs,
    arguments: [u64; 4],
    work: impl FnOnce(&Call) -> Outcome,
) -> u32 {
    settings::load();
    let status = match admitted(name, since, needs, work) {
        Ok(()) => Status::SUCCESS,
        Err(status) => status,
    };
    driver().journal.call(name, arguments, status.0);
    status.0
}

fn admitted(
    name: &'static str,
    since: u32,
    needs: Needs,
    work: impl FnOnce(&Call) -> Outcome,
) -> Outcome {
    if FORKED.load(SeqCst) && needs != Needs::Nothing {
        return Err(Status::NOT_INITIALIZED);
    }
    if IN_HOST_FUNCTION.get() && needs != Needs::Nothing {
        driver()
            .journal
            .misuse(format!("{name} was called from a host function"));
        return Err(Status::NOT_PERMITTED);
    }
    if u64::from(since) > settings::VERSION.get() {
        return Err(Status::NOT_SUPPORTED);
    }
    if needs != Needs::Nothing && name != "cuInit" && !INITIALISED.load(SeqCst) {
        return Err(Status::NOT_INITIALIZED);
    }
    let context = context::current();
    if needs == Needs::Context {
        context.as_ref().ok_or(Status::INVALID_CONTEXT)?.check()?;
    }
    let device = context.as_ref().map(|context| context.device as u32);
    let mut late = None;
    for fault in driver().faults.strike(name, device) {
        match fault {
            Fault::Code(code) => return Err(Status(code)),
            Fault::Skip => return Ok(()),
            Fault::Late(code) => late = Some(Status(code)),
            Fault::Die(code) => {
                if let Some(context) = &context {
                    context.fail(Status(code));
                }
                return Err(Status(code));
            }
        }
    }
    work(&Call { context, late })
}

/// The first four arguments as words.
pub(crate) fn arguments(words: &[u64]) -> [u64; 4] {
    let mut four = [0; 4];
    for (place, word) in four.iter_mut().zip(words) {
        *place = *word;
    }
    four
}

/// An argument as a word, for the journal.
pub(crate) trait Word {
    /// The word.
    fn word(&self) -> u64;
}

macro_rules! words {
    ($($type:ty),*) => { $(impl Word for $type { fn word(&self) -> u64 { *self as u64 } })* };
}
words!(u8, u16, u32, u64, usize, i32);

impl<T> Word for Out<T> {
    fn word(&self) -> u64 {
        self.address()
    }
}

impl<T: Copy> Word for In<T> {
    fn word(&self) -> u64 {
        self.address()
    }
}

impl Word for *mut c_void {
    fn word(&self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl Word for Opaque {
    fn word(&self) -> u64 {
        0
    }
}

impl Word for Location {
    fn word(&self) -> u64 {
        self.id as u64
    }
}

impl Word for HostFn {
    fn word(&self) -> u64 {
        u64::from(self.is_some())
    }
}

impl Word for StreamCallback {
    fn word(&self) -> u64 {
        u64::from(self.is_some())
    }
}

/// Defines exported functions: `["base name", version it came in, what it needs] fn exported_name(arguments) |call| { work }`.
macro_rules! exports {
    ($([$base:literal, $since:literal, $needs:ident] fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$call:ident| $work:block)*) => {
        $(
            #[allow(clippy::used_underscore_binding)]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                let arguments: &[u64] = &[$($crate::gate::Word::word(&$argument)),*];
                let arguments = $crate::gate::arguments(arguments);
                $crate::gate::enter(
                    stringify!($name),
                    $since,
                    $crate::gate::Needs::$needs,
                    arguments,
                    move |$call| $work,
                )
            }
        )*
        /// The functions of this file.
        pub(super) const TABLE: &[$crate::gate::Symbol] = &[$($crate::gate::Symbol {
            base: $base,
            since: $since,
            address: $name as *const (),
        }),*];
    };
}
pub(crate) use exports;
