//! Copies within the process, between any two memories.
//!
//! | from, to | how |
//! |---|---|
//! | both on the engine's devices, or one of them pinned for it | by the engine alone |
//! | one of them host memory that is not pinned | by the engine and a fragment, unless the engine takes such memory itself |
//! | on devices of two accelerators | by both engines, through a fragment of each |
//! | both host memory | by the processor |
//!
//! From how many bytes on an engine takes ordinary memory it says itself (`CopyAttributes::pageable_from`): it registers such memory, keeps it registered
//! where memory events tell when it goes away, and finds it registered the next time. What it cannot register comes back (`WouldBlock`) and goes through
//! fragments: what the program has registered in part, what may not be written, what shares a page with memory that is registered for somebody else.

use crate::memory::{Buffer, BufferMut};

/// Bytes that the processor copies in one step: 20 to 40 µs.
pub(in crate::worker) const STEP: usize = 256 << 10;
/// In the place of an engine's: both ends are host memory, and none is needed.
pub(in crate::worker) const HOST: usize = usize::MAX;
/// Bytes that an engine is asked for at a time.
pub(in crate::worker) const DIRECT: usize = 64 << 20;

/// At least what the system has for a page, and what registrations are rounded to.
pub(in crate::worker) const PAGE: usize = 4096;

/// A copy of the user's.
pub(crate) struct LocalCopy {
    pub(crate) from: Buffer,
    pub(crate) to: BufferMut,
    /// Where in `to`.
    pub(crate) offset: usize,
}
