//! What every exported function does before and after its own work: it counts, checks the state and strikes with faults.
//!
//! ```text
//! initialised, not forked? ─► fault? ─► the work ─► journal
//!          0x100b
//! ```

use wharf_emulated_common::faults::Fault;

use crate::{
    abi::{In, Out, Outcome, Status},
    agent::{self, Index},
    event,
    runtime::runtime,
    settings,
};

/// A call under way.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// The signal of what the call starts becomes minus this.
    pub(crate) late: Option<u32>,
}

/// Runs the work of an exported function. `early`: it may be called before initialising; `by`: the agent that is to do it.
pub(crate) fn enter(
    name: &'static str,
    early: bool,
    by: Option<Index>,
    arguments: [u64; 4],
    work: impl FnOnce(&Call) -> Outcome,
) -> u32 {
    settings::load();
    let status = match admitted(name, early, by, work) {
        Ok(()) => Status::SUCCESS,
        Err(status) => status,
    };
    runtime().journal.call(name, arguments, status.0);
    status.0
}

fn admitted(
    name: &'static str,
    early: bool,
    by: Option<Index>,
    work: impl FnOnce(&Call) -> Outcome,
) -> Outcome {
    if !early {
        runtime().check()?;
    }
    let mut call = Call::default();
    for fault in runtime().faults.strike(name, by.and_then(agent::device)) {
        match fault {
            Fault::Code(code) => return Err(Status(code)),
            Fault::Skip => return Ok(()),
            Fault::Late(number) => call.late = Some(number.max(1)),
            Fault::Die(_) => event::hardware_failed(by.unwrap_or(1)),
        }
    }
    work(&call)
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
words!(u32, u64, usize, i32, i64, bool);

impl<T: Copy> Word for Out<T> {
    fn word(&self) -> u64 {
        self.address()
    }
}

impl<T: Copy> Word for In<T> {
    fn word(&self) -> u64 {
        self.address()
    }
}

impl<F> Word for Option<F> {
    fn word(&self) -> u64 {
        u64::from(self.is_some())
    }
}

/// Defines exported functions: `[early or not, the agent that does it] fn name(arguments) |call| { work }`.
macro_rules! exports {
    ($([$early:literal, $by:expr] fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$call:ident| $work:block)*) => {
        $(
            #[allow(clippy::used_underscore_binding)]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                let arguments: &[u64] = &[$($crate::gate::Word::word(&$argument)),*];
                let arguments = $crate::gate::arguments(arguments);
                $crate::gate::enter(stringify!($name), $early, $by, arguments, move |$call| $work)
            }
        )*
    };
}
pub(crate) use exports;
