//! Kernels: modules of PTX text, launches of what is in them, and the memory that they reach.
//!
//! A launch is run by the stream's thread, from its text (`wharf-emulated-ptx`). Launches of the kernels of wharf's device channels, which are known by
//! their names, are looked at before: that their arguments are what `channel.ptx` asks for, and what they will touch.

use std::{fmt, sync::Arc, time::Duration};

use wharf_emulated_common::pace::takes;
use wharf_emulated_ptx::{Fault, Grid, Launch, Memory, Program, Turn};

use crate::{
    abi::{Outcome, Status},
    copy,
    driver::driver,
    memory::Class,
    settings,
    stream::change_word,
};

/// Turns between two looks at whether the context has ended.
const TURNS: u32 = 1024;
/// Before the next look, when a kernel does nothing but look.
const PAUSE: Duration = Duration::from_micros(20);
/// Looks that need no pause.
const EAGER: u32 = 16;

/// What an operation touches by its address: where, and how many bytes.
pub(crate) type Touched = [Option<(u64, u64)>; 4];

/// Reads a module.
pub(crate) fn read(text: &str) -> Outcome<Arc<Program>> {
    if !text.contains(".version") {
        return Err(Status::INVALID_IMAGE);
    }
    let program = Program::parse(text).map_err(|malformed| {
        eprintln!("emulated CUDA driver: a module's text: {malformed}");
        Status::INVALID_PTX
    })?;
    Ok(Arc::new(program))
}

/// A launch, as it is queued.
pub(crate) struct Kernel {
    name: String,
    launch: Launch,
    known: Option<Known>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:x?}", self.name, self.known)
    }
}

impl Kernel {
    /// A launch with the bytes of its parameters, checked.
    pub(crate) fn new(
        program: &Arc<Program>,
        entry: usize,
        bytes: &[u8],
        grid: Grid,
    ) -> Outcome<Self> {
        let function = program.function(entry).ok_or(Status::INVALID_HANDLE)?;
        let value = |place: usize, size: usize| {
            let mut word = [0; 8];
            let size = size.min(8);
            word[..size].copy_from_slice(&bytes[place..place + size]);
            u64::from_le_bytes(word)
        };
        let parameters = function.parameters().iter();
        let values: Vec<u64> = parameters.map(|of| value(of.place, of.size)).collect();
        let known = Known::new(function.name(), &values);
        let is_wrong = known.as_ref().and_then(|known| known.complaint(grid));
        if let Some(complaint) = is_wrong {
            driver().journal.misuse(format!(
                "{complaint}: {}{values:x?} with {grid:?}",
                function.name()
            ));
            return Err(Status::INVALID_VALUE);
        }
        let seed = settings::SEED.get() << 32 ^ driver().number();
        Ok(Self {
            name: function.name().to_owned(),
            launch: Launch::new(program, entry, bytes, grid, seed),
            known,
        })
    }

    /// Where it reads and writes, and how many bytes, as far as that is known.
    pub(crate) fn touches(&self) -> Touched {
        self.known.as_ref().map_or([None; 4], Known::touches)
    }

    /// Does it. `is_over` tells that the context has ended.
    pub(crate) fn run(mut self, device: usize, is_over: impl Fn() -> bool) -> Outcome {
        let (floor, reach) = (&driver().devices[device].floor, Reach(device));
        let (mut turns, mut looks) = (0_u32, 0_u32);
        loop {
            match self.launch.turn(floor, &reach) {
                Ok(Turn::Over) => return Ok(()),
                Ok(Turn::Worked) => {}
                Ok(Turn::Looked) => {
                    looks = looks.saturating_add(1);
                    if looks > EAGER {
                        takes(PAUSE);
                    }
                }
                Err(fault) => {
                    eprintln!("emulated CUDA driver: {}: {fault}", self.name);
                    return Err(status_of(&fault));
                }
            }
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS) && is_over() {
                return Ok(());
            }
        }
    }
}

/// What a context says of a kernel's fault.
pub(crate) const fn status_of(fault: &Fault) -> Status {
    match fault {
        Fault::Address(..) => Status::ILLEGAL_ADDRESS,
        Fault::Misaligned(..) => Status::MISALIGNED_ADDRESS,
        Fault::Trap => Status::LAUNCH_FAILED,
    }
}

/// What a device's kernels reach: the memory of devices, and of the host what is pinned.
#[derive(Debug)]
pub(crate) struct Reach(pub(crate) usize);

impl Reach {
    fn check(at: u64, len: u64) -> Result<(), Fault> {
        let memory = driver().memory.lock();
        let class = memory.classify(at, len);
        match class {
            Ok(Class::Device { .. } | Class::Managed | Class::Pinned) => Ok(()),
            Ok(Class::Pageable) | Err(_) => Err(Fault::Address(at, len)),
        }
    }
}

impl Memory for Reach {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        Self::check(at, len)?;
        copy::read(at, bytes, self.0).map_err(|_| Fault::Address(at, len))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Fault> {
        let len = bytes.len() as u64;
        Self::check(at, len)?;
        copy::write(at, bytes, self.0).map_err(|_| Fault::Address(at, len))
    }

    fn load(&self, at: u64, width: u64) -> Result<u64, Fault> {
        let loaded = change_word(at, width, self.0, &mut |_| None);
        loaded.map_err(|_| Fault::Address(at, width))
    }

    fn store(&self, at: u64, width: u64, value: u64) -> Result<(), Fault> {
        let stored = change_word(at, width, self.0, &mut |_| Some(value));
        stored.map(drop).map_err(|_| Fault::Address(at, width))
    }

    fn update(
        &self,
        at: u64,
        width: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, Fault> {
        let changed = change_word(at, width, self.0, &mut |was| Some(change(was)));
        changed.map_err(|_| Fault::Address(at, width))
    }
}

/// What a launch of a kernel of wharf's is to touch.
#[derive(Debug)]
struct Known {
    /// Address, bytes, alignment.
    ranges: Vec<(u64, u64, u64)>,
    /// Whether a second thread would do it a second time.
    is_for_one: bool,
    /// What is wrong with its other arguments.
    complaint: Option<&'static str>,
}

impl Known {
    /// By the kernel's name; as `channel.ptx` describes it.
    fn new(name: &str, arguments: &[u64]) -> Option<Self> {
        let flag_of = |flag: u64| (flag as u32 == 0).then_some("a flag of 0");
        let (ranges, is_for_one, complaint) = match (name, arguments) {
            ("wharf_signal", &[token, _]) => (vec![(token, 8, 8)], true, None),
            ("wharf_signal_store", &[token, sent, _]) => {
                (vec![(token, 8, 8), (sent, 8, 8)], true, None)
            }
            ("wharf_wait", &[token, taken, _, status]) => {
                let ranges = vec![(token, 8, 8), (taken, 8, 8), (status, 4, 4)];
                (ranges, true, None)
            }
            ("wharf_put", &[to, from, len, done, token, _]) => {
                let signal = if token == 0 { 0 } else { 8 };
                let ranges = vec![
                    (to, len, 1),
                    (from, len, 1),
                    (done, 4, 4),
                    (token, signal, 8),
                ];
                (ranges, false, None)
            }
            ("wharf_packets_put", &[to, from, len, words, flag]) => {
                let is_short = (words * 4 < len).then_some("more data than words");
                let ranges = vec![(to, words * 8, 8), (from, len, 1)];
                (ranges, false, is_short.or_else(|| flag_of(flag)))
            }
            ("wharf_packets_get", &[to, from, len, flag, _, status]) => {
                let ranges = vec![(to, len, 1), (from, len.div_ceil(4) * 8, 8), (status, 4, 4)];
                (ranges, false, flag_of(flag))
            }
            _ => return None,
        };
        Some(Self {
            ranges,
            is_for_one,
            complaint,
        })
    }

    /// What is wrong with a launch.
    fn complaint(&self, grid: Grid) -> Option<&'static str> {
        if self.complaint.is_some() {
            return self.complaint;
        }
        if self.is_for_one && (grid.blocks, grid.threads) != (1, 1) {
            return Some("more than one thread would do it more than once");
        }
        let memory = driver().memory.lock();
        self.ranges.iter().find_map(|(at, len, align)| {
            if !at.is_multiple_of(*align) {
                return Some("an address that is not aligned");
            }
            let class = memory.classify(*at, *len);
            let is_reached = matches!(class, Ok(Class::Device { .. } | Class::Pinned));
            (*len > 0 && !is_reached).then_some("a range that is no memory of a device nor pinned")
        })
    }

    fn touches(&self) -> Touched {
        let mut touched = [None; 4];
        let ranges = self.ranges.iter().filter(|(_, len, _)| *len > 0);
        for (touched, (at, len, _)) in touched.iter_mut().zip(ranges) {
            *touched = Some((*at, *len));
        }
        touched
    }
}
