//! Small tools without a subject of their own.
//!
//! Comes in: nothing. Goes out: the atomics and cells that lock-free code uses. Uses no other room.
//! Tests: the models of the rooms that use them.

pub(crate) mod loom;
