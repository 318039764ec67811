#![allow(unsafe_code)]
//! Failures of devices, and who is told of them.
//!
//! # Safety
//! A handler is the program's function with the program's argument, called as it was registered, outside of locks, with an event that lives through the call.

use parking_lot::Mutex;

use crate::{
    abi::{Event, OnEvent, Outcome, Status},
    agent::{self, Index},
    copy,
    runtime::{die, runtime},
    settings,
};

/// Handlers with their arguments.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<Vec<(OnEvent, usize)>>);

impl Events {
    /// `hsa_amd_register_system_event_handler`.
    pub(crate) fn register(&self, run: OnEvent, argument: usize) -> Outcome {
        if run.is_none() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mut handlers = self.0.lock();
        if settings::ONE_HANDLER.on() && !handlers.is_empty() {
            return Err(Status::ERROR);
        }
        handlers.push((run, argument));
        Ok(())
    }
}

/// A device met an address that it cannot reach.
pub(crate) fn memory_fault(by: Index, address: u64) {
    copy::lose(by);
    tell(Event {
        event_type: 0,
        agent: agent::handle(by),
        address: address & !4095,
        reason: 1,
    });
}

/// A device hangs and is reset.
pub(crate) fn hardware_failed(by: Index) {
    copy::lose(by);
    tell(Event {
        event_type: 1,
        agent: agent::handle(by),
        // Type and cause of the reset, a word each.
        address: 1 | 1 << 32,
        reason: 0,
    });
}

/// Calls the handlers. If none of them has dealt with it, the process ends, as on the real runtime.
fn tell(event: Event) {
    let handlers = runtime().events.0.lock().clone();
    let mut handled = false;
    for (run, argument) in handlers {
        let Some(run) = run else { continue };
        // SAFETY: see the head of the file.
        handled |= unsafe { run(&raw const event, argument) } == Status::SUCCESS.0;
    }
    if !handled {
        die(&format!(
            "agent {:#x} met address {:#x}, which it cannot reach (event {})",
            event.agent, event.address, event.event_type
        ));
    }
}
