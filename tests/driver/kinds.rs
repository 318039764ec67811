//! Memory of kinds that wharf never allocates, by the CUDA driver's own functions.

use crate::raw::{Access, PoolProps, Prop, Raw};

/// What virtual memory comes in.
const BLOCK: usize = 2 << 20;

/// Memory of the virtual memory calls, which other processes may be given as a descriptor.
pub(crate) struct Virtual {
    raw: &'static Raw,
    /// Where it begins.
    pub(crate) at: u64,
    /// Its bytes, whole blocks.
    pub(crate) len: usize,
}

impl Virtual {
    /// At least `len` bytes on a device.
    pub(crate) fn new(raw: &'static Raw, device: i32, len: usize) -> Self {
        let prop = Prop {
            kind: 1,
            handle_types: 1,
            location: [1, device],
            ..Prop::default()
        };
        let access = Access {
            location: [1, device],
            flags: 3,
        };
        let len = len.next_multiple_of(BLOCK);
        let (mut at, mut handle) = (0, 0);
        raw.ok(raw.cuMemAddressReserve(&mut at, len, 0, 0, 0));
        raw.ok(raw.cuMemCreate(&mut handle, len, &raw const prop, 0));
        raw.ok(raw.cuMemMap(at, len, 0, handle, 0));
        raw.ok(raw.cuMemRelease(handle));
        raw.ok(raw.cuMemSetAccess(at, len, &raw const access, 1));
        Self { raw, at, len }
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        self.raw.ok(self.raw.cuMemUnmap(self.at, self.len));
        self.raw.ok(self.raw.cuMemAddressFree(self.at, self.len));
    }
}

/// Memory of a pool of its own, which other processes may be given as a descriptor. A context of the device is current as long as it lives.
pub(crate) struct Pooled {
    raw: &'static Raw,
    /// The pool.
    pub(crate) pool: u64,
    /// Where the memory begins.
    pub(crate) at: u64,
}

impl Pooled {
    /// `len` bytes on a device.
    pub(crate) fn new(raw: &'static Raw, device: i32, len: usize) -> Self {
        let props = PoolProps {
            kind: 1,
            handle_types: 1,
            location: [1, device],
            win32: 0,
            max: 0,
            reserved: [0; 56],
        };
        let (mut pool, mut at) = (0, 0);
        raw.ok(raw.cuMemPoolCreate(&mut pool, &raw const props));
        raw.ok(raw.cuMemAllocFromPoolAsync(&mut at, len, pool, 0));
        raw.ok(raw.cuStreamSynchronize(0));
        Self { raw, pool, at }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.raw.ok(self.raw.cuMemFree_v2(self.at));
        self.raw.ok(self.raw.cuMemPoolDestroy(self.pool));
    }
}
