#![allow(unsafe_code)]
//! What every exported function does around its own work: it counts, strikes with faults, and says errors as the library does.
//!
//! # Safety
//! `__errno_location` gives this thread's own `errno`.

use std::sync::OnceLock;

use wharf_emulated_common::{
    faults::{Fault, Faults},
    journal::Journal,
};

use crate::{abi::Outcome, node::Machine};

/// The whole state of one library.
#[derive(Debug)]
pub(crate) struct Emulator {
    pub(crate) machine: Machine,
    pub(crate) journal: Journal,
    pub(crate) faults: Faults,
}

/// The library's state.
pub(crate) fn emulator() -> &'static Emulator {
    static EMULATOR: OnceLock<Emulator> = OnceLock::new();
    EMULATOR.get_or_init(|| {
        crate::settings::load();
        let faults = Faults::new();
        if let Ok(plan) = std::env::var("EMULATED_HLTHUNK_FAULTS")
            && let Err(error) = faults.add(&plan)
        {
            eprintln!("emulated libhl-thunk: EMULATED_HLTHUNK_FAULTS: {error}");
        }
        Emulator {
            machine: Machine::new(),
            journal: Journal::new(),
            faults,
        }
    })
}

/// What the plan adds to a call that goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Call {
    /// What the call queues resets the card with these events.
    pub(crate) late: Option<u64>,
}

/// What a function returns.
pub(crate) trait Answer: Copy + Default {
    /// An error.
    fn error(errno: i32) -> Self;
    /// For the journal.
    fn word(self) -> u32;
}

impl Answer for i32 {
    fn error(errno: i32) -> Self {
        -errno
    }
    fn word(self) -> u32 {
        self as u32
    }
}

impl Answer for u32 {
    fn error(_: i32) -> Self {
        0
    }
    fn word(self) -> u32 {
        self
    }
}

/// Addresses and handles: 0, and `errno`.
impl Answer for u64 {
    fn error(errno: i32) -> Self {
        set_errno(errno);
        0
    }
    fn word(self) -> u32 {
        self as u32
    }
}

/// Leaves a number in `errno`, as a system call does.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: see the head of the file.
    unsafe { *libc::__errno_location() = errno };
}

/// A call of `name` on the descriptor `fd`, or none.
pub(crate) fn enter<R: Answer>(
    name: &'static str,
    fd: Option<i32>,
    arguments: [u64; 4],
    work: impl FnOnce(Call) -> Outcome<R>,
) -> R {
    let emulator = emulator();
    let card = fd.and_then(|fd| emulator.machine.card_of(fd));
    let result = match strike(emulator, name, card) {
        Ok(Some(call)) => work(call),
        Ok(None) => Ok(R::default()),
        Err(errno) => Err(errno),
    };
    let errno = result.as_ref().err().copied().unwrap_or(0);
    let answer = result.unwrap_or_else(R::error);
    emulator.journal.call(name, arguments, answer.word());
    if errno != 0 {
        set_errno(errno);
    }
    answer
}

fn strike(emulator: &Emulator, name: &str, card: Option<usize>) -> Outcome<Option<Call>> {
    let mut call = Call::default();
    let number = card.map(|card| card as u32);
    for fault in emulator.faults.strike(name, number) {
        match fault {
            Fault::Code(code) => return Err(code as i32),
            Fault::Skip => return Ok(None),
            Fault::Late(events) => call.late = Some(u64::from(events)),
            Fault::Die(events) => {
                let session = card.and_then(|card| emulator.machine.session(card));
                if let Some(session) = session {
                    session.reset(u64::from(events));
                }
                return Err(libc::EBUSY);
            }
        }
    }
    Ok(Some(call))
}
