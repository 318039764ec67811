//! Memory that is let go of under the lock and dropped after it.

use std::task::Waker;

use crate::{
    memory::{Buffer, BufferMut},
    worker::operations::Work,
};

/// Memory of users that an operation held. Its owner's drop may do anything, and so use this worker.
#[allow(dead_code, reason = "held to be dropped")]
pub(crate) enum Deferred {
    Work(Work),
    Buffer(Buffer),
    Memory(BufferMut),
    Own(crate::worker::device::Own),
    /// Of a task that need not be woken. It may be the last that holds the task, and futures of
    /// this worker in it.
    Waker(Waker),
    /// The movers have an errand that is to begin.
    Errand,
}
