//! `rocm_ipc`: how ROCm's memory crosses to another process of the host.
//!
//! | memory | what crosses | opened by |
//! |---|---|---|
//! | of a device's pool, where the runtime and the kernel export dma-bufs | a file descriptor, by a socket of the exporter's; the offset in the descriptor's bytes | `hsa_amd_interop_map_buffer`; same user, same network namespace |
//! | the same, where they do not | the runtime's handle, 32 bytes in the descriptor | `hsa_amd_ipc_memory_attach`; same user, same process namespace |
//! | pinned, locked, or another process's | nothing: the reason is a value, and the memory is staged | |
//!
//! Dma-bufs are preferred: the runtime's handles go by sockets that belong to a network namespace as well, in releases that differ, and since ROCm 7 making
//! one pins the memory for ever. So a handle is made once for each allocation, and not before a peer asks. A handle is of exactly one allocation, from its first
//! byte to its last. What is open here is in reach of all devices that can.
//!
//! An allocation's id is wharf's own number (`known`). A dma-buf keeps the memory until the last process has closed it.
//!
//! Comes in and goes out: what [`Sharing`] says. Uses `driver::hsa`. Tests: `tests/rocm/ipc.rs`.

mod export;
mod import;
mod way;

use std::{os::fd::OwnedFd, sync::Arc};

use import::Opened;
use way::RocmWay;

use super::{known::Seen, shared::Shared};
use crate::{
    error::Result,
    transport::accelerator::ipc::{
        self, Sharing, Tickets, descriptor::Allocation, handover::Wanted,
    },
    types::MemoryType,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct RocmSharing(pub(super) Arc<Shared>);

impl Sharing for RocmSharing {
    type Way = RocmWay;
    type Seen = Option<Seen>;
    type Opened = Opened;

    fn look(&self, address: u64) -> Result<(u64, Option<Seen>)> {
        let Some(machine) = self.0.machine_in_use()? else {
            return Ok((0, None));
        };
        let seen = self.0.known.see(machine, address, false)?;
        Ok((seen.map_or(0, |seen| seen.id), seen))
    }

    fn share(
        &self,
        address: u64,
        _: u64,
        seen: &Option<Seen>,
        tickets: &Tickets<Self>,
    ) -> Result<std::result::Result<ipc::Shared<RocmWay>, String>> {
        export::share(self.0.machine()?, address, seen.as_ref(), tickets)
    }

    fn hand_over(&self, wanted: Wanted) -> Result<OwnedFd> {
        export::hand_over(&self.0, wanted)
    }

    fn open(&self, allocation: &Allocation<RocmWay>, fd: Option<OwnedFd>) -> Result<Opened> {
        import::open(&self.0, allocation, fd)
    }

    fn place(opened: &Opened) -> (u64, MemoryType) {
        (opened.start, opened.memory_type)
    }

    fn own(&self, address: u64, id: u64) -> Result<Option<MemoryType>> {
        let (now, seen) = self.look(address)?;
        Ok(seen.filter(|_| now == id).map(|seen| seen.memory_type))
    }
}

/// Gives bytes to the decoder of exported memory.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    ipc::fuzz::<RocmWay>(bytes);
}
