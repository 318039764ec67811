//! Copies within the process, between any two memories.
//!
//! | from, to | how |
//! |---|---|
//! | both on the engine's devices, or one of them pinned for it | by the engine alone |
//! | one of them host memory that is not pinned | by the engine and a fragment, unless the engine takes such memory itself |
//! | on devices of two accelerators | by both engines, through a fragment of each |
//! | both host memory | by the processor |
//!
//! Ordinary memory is not registered with a driver behind the program's back, however often it is used. Registering takes about 0.1 s for a GiB, five
//! to six times what a PCIe 5 link of 16 lanes takes for the bytes, and about what the processor takes to copy them once. Against that, memory that stays
//! registered cannot be registered by the program itself, and after a `fork` an older kernel may give the program another page than the device has. Who
//! uses a buffer again and wants one copy allocates it as `HostPinned`.

use crate::memory::{Buffer, BufferMut};

/// Bytes that the processor copies in one step: 20 to 40 µs.
pub(in crate::worker) const STEP: usize = 256 << 10;
/// In the place of an engine's: both ends are host memory, and none is needed.
pub(in crate::worker) const HOST: usize = usize::MAX;
/// Bytes that an engine is asked for at a time.
pub(in crate::worker) const DIRECT: usize = 64 << 20;

/// A copy of the user's.
pub(crate) struct LocalCopy {
    pub(crate) from: Buffer,
    pub(crate) to: BufferMut,
    /// Where in `to`.
    pub(crate) offset: usize,
}
