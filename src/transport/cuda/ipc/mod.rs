//! `cuda_ipc`: how CUDA's memory crosses to another process of the host.
//!
//! | memory | what crosses | opened by |
//! |---|---|---|
//! | `cuMemAlloc` | the driver's handle, 64 bytes in the descriptor | `cuIpcOpenMemHandle`; same user, same process namespace |
//! | virtual memory calls, one physical piece | a file descriptor, by a socket of the exporter's | mapping; same user, same network namespace |
//! | a pool made to be shared | a file descriptor of the pool in the same way, and 64 bytes | importing pool and allocation |
//! | both of the last, shareable by fabric alone | 64 bytes in the descriptor | the same, where the fabric's services run |
//! | anything else (the default pool, managed, several pieces) | nothing: the reason is a value, and the memory is staged | |
//!
//! An allocation's id is the driver's buffer id. Physical memory and pools live on until the last process has closed them: as many allocations
//! that were freed as a process keeps open may occupy the device until then. Freeing an allocation that is open elsewhere is what the manual of
//! legacy handles advises against: nothing is read or written there any more, and the driver keeps the block until it is closed. A legacy handle opens the
//! block of 2 MiB in which a small allocation lies, with its neighbours.
//!
//! Comes in and goes out: what [`Sharing`] says. Uses `driver::cuda`. Tests: `tests/cuda_ipc/`.

mod export;
mod import;
mod way;

use std::os::fd::OwnedFd;

use import::Opened;
use way::CudaWay;

use crate::{
    driver::cuda::{Cuda, DevicePtr, PointerInfo},
    error::Result,
    transport::accelerator::ipc::{
        Shared, Sharing, Tickets, descriptor::Allocation, handover::Wanted,
    },
    types::MemoryType,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct CudaSharing(pub(crate) &'static Cuda);

impl Sharing for CudaSharing {
    type Way = CudaWay;
    type Seen = PointerInfo;
    type Opened = Opened;

    fn look(&self, address: u64) -> Result<(u64, PointerInfo)> {
        let info = self.0.inspect(DevicePtr(address))?;
        Ok((info.buffer_id, info))
    }

    fn share(
        &self,
        address: u64,
        _: u64,
        seen: &PointerInfo,
        tickets: &Tickets<Self>,
    ) -> Result<Result<Shared<CudaWay>, String>> {
        export::share(self.0, DevicePtr(address), seen, tickets)
    }

    fn hand_over(&self, wanted: Wanted) -> Result<OwnedFd> {
        export::hand_over(self.0, wanted)
    }

    fn open(&self, allocation: &Allocation<CudaWay>, fd: Option<OwnedFd>) -> Result<Opened> {
        import::open(self.0, allocation, fd)
    }

    fn place(opened: &Opened) -> (u64, MemoryType) {
        (opened.start.0, opened.memory_type)
    }

    fn own(&self, address: u64, id: u64) -> Result<Option<MemoryType>> {
        let info = self.0.inspect(DevicePtr(address))?;
        let same = info.buffer_id == id;
        Ok(info.device.filter(|_| same).map(MemoryType::Cuda))
    }
}

/// Gives bytes to the decoder of exported memory.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    crate::transport::accelerator::ipc::fuzz::<CudaWay>(bytes);
}
