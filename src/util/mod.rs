//! Small tools without a subject of their own.
//!
//! Comes in: nothing. Goes out: the atomics and cells that lock-free code uses, the slot that a waker waits in. Uses no other room.
//! Tests: the models of the rooms that use them.

pub(crate) mod copy;
pub(crate) mod loom;
pub(crate) mod waker_slot;
