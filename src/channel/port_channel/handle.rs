//! What a program's own kernels need to ask a proxy.

/// A channel of a device port, for a program's own kernels. All addresses are those of the port's device; a copy of this struct lies at [`address`](Self::address)
/// there, which the functions of [`DevicePort::FUNCTIONS`](super::DevicePort::FUNCTIONS) take.
///
/// | at | bytes | field | is |
/// |---|---|---|---|
/// | 0 | 4 | `size` | bytes of this struct: 80 |
/// | 4 | 4 | `shift` | the ring has 2 to the power of this many slots |
/// | 8 | 8 | `ring` | the slots, 16 bytes each, in host memory |
/// | 16 | 8 | `head` | the next place, 8 bytes of the device's own |
/// | 24 | 8 | `tail` | places before it may be used again, 8 bytes in host memory |
/// | 32 | 8 | `done` | triggers before it were done, 8 bytes in host memory |
/// | 40 | 8 | `failed` | not 0: a flush has failed, 8 bytes in host memory |
/// | 48 | 8 | `base` | what the second word of the channel's triggers always has |
/// | 56 | 8 | `arrived` | signals of the peer that have come, 8 bytes in host memory |
/// | 64 | 8 | `taken` | how many of those were taken, 8 bytes of the device's own |
/// | 72 | 8 | `address` | where this lies |
///
/// A place `p` is reserved by a compare and swap of `head`, while `p - tail` as a signed difference is less than the slots. Its slot is `p` modulo the slots; the
/// first word goes in by a relaxed store, the second by one that releases at system scope, with bit 63 set in the first lap, then in every other. All before a
/// place is done when `done`, by an acquire at system scope, is past it. `port.ptx` is a text that does that.
#[doc(alias = "FifoDeviceHandle")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DevicePortHandle {
    /// Bytes of this struct.
    pub size: u32,
    /// The ring has 2 to the power of this many slots.
    pub shift: u32,
    /// The slots.
    pub ring: u64,
    /// The next place.
    pub head: u64,
    /// Places before it may be used again.
    pub tail: u64,
    /// Triggers before it were done.
    pub done: u64,
    /// Whether a flush has failed.
    pub failed: u64,
    /// Bits of the channel's triggers.
    pub base: u64,
    /// Signals that have come.
    pub arrived: u64,
    /// Signals that were taken.
    pub taken: u64,
    /// Where this lies.
    pub address: u64,
}

const _: () = assert!(size_of::<DevicePortHandle>() == 80);
