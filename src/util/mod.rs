//! Small tools without a subject of their own.
//!
//! Comes in: nothing. Goes out: the atomics and cells that lock-free code uses, the places that wakers wait in, counts, what is built in, how secrets are compared, the parts of wire formats (of words and errors).
//! Tests: the models of the rooms that use them.

pub(crate) mod by_id;
pub(crate) mod copy;
pub(crate) mod features;
pub(crate) mod lock;
pub(crate) mod loom;
pub(crate) mod secret;
pub(crate) mod seldom;
pub(crate) mod slicing;
pub(crate) mod tally;
pub(crate) mod tasks;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod waiters;
pub(crate) mod wake;
pub(crate) mod waker_slot;
pub(crate) mod wire;
