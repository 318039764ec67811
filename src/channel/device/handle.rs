//! What a program's own kernels need.

/// A device channel for a program's own kernels: passed by value, or copied into a device's memory. All addresses are those of the stream's device.
///
/// | at | bytes | field | is |
/// |---|---|---|---|
/// | 0 | 4 | `size` | bytes of this struct: 96 |
/// | 4 | 4 | `flags` | bit 0: the peer's memory takes atomics from this device |
/// | 8 | 8 | `local` | this rank's memory |
/// | 16 | 8 | `local_length` | its bytes |
/// | 24 | 8 | `remote` | the peer's memory |
/// | 32 | 8 | `remote_length` | its bytes |
/// | 40 | 8 | `signals` | the peer's counter of signals, 8 bytes |
/// | 48 | 8 | `sent` | what was added to it from here by stores, 8 bytes |
/// | 56 | 8 | `arrived` | this rank's counter, which the peer raises, 8 bytes |
/// | 64 | 8 | `taken` | how many of those were taken, 8 bytes |
/// | 72 | 8 | `packets` | this rank's area of packets |
/// | 80 | 8 | `remote_packets` | the peer's |
/// | 88 | 8 | `packets_length` | bytes of each |
///
/// A kernel signals behind its stores. With bit 0: `red.release.sys.global.add.u64 [signals], 1`. Without it one thread at a time adds 1 to `sent` and
/// stores what that gives: `st.release.sys.global.u64 [signals]`. It waits until `arrived`, by `ld.acquire.sys.global.u64`, is past `taken` as a signed
/// difference, and then raises `taken` by 1, by a compare and swap where several may wait: a kernel should give up after so many looks. Of stores of
/// other threads a signal speaks only behind a barrier. Packets are words of 8 bytes: 4 of data, then a flag of 4 that is not 0 and not the last one.
///
/// Kernels that use it go into the channel's stream; it is valid until the channel is dropped.
#[doc(alias = "DeviceHandle")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceChannelHandle {
    /// Bytes of this struct.
    pub size: u32,
    /// See [`DeviceChannelHandle::ATOMICS`].
    pub flags: u32,
    /// This rank's memory.
    pub local: u64,
    /// Its bytes.
    pub local_length: u64,
    /// The peer's memory.
    pub remote: u64,
    /// Its bytes.
    pub remote_length: u64,
    /// The peer's counter.
    pub signals: u64,
    /// Signals that were sent by stores.
    pub sent: u64,
    /// This rank's counter.
    pub arrived: u64,
    /// Signals that were taken.
    pub taken: u64,
    /// This rank's area of packets.
    pub packets: u64,
    /// The peer's.
    pub remote_packets: u64,
    /// Bytes of each.
    pub packets_length: u64,
}

impl DeviceChannelHandle {
    /// Bit of `flags`: the peer's memory takes atomics from this device.
    pub const ATOMICS: u32 = 1;
}

const _: () = assert!(size_of::<DeviceChannelHandle>() == 96);
