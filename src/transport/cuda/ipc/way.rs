//! The ways in which CUDA's memory is opened by another process, as they are written down.

use crate::{
    driver::cuda::{FabricHandle, IpcHandle, PoolPointer},
    error::Result,
    transport::accelerator::ipc::{
        descriptor::{Reader, Way},
        handover::Ticket,
    },
};

/// How the memory is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CudaWay {
    /// By the driver's handle of an ordinary allocation.
    Legacy(IpcHandle),
    /// By a file descriptor of physical memory, which the exporter hands over for the ticket.
    Fd(Ticket),
    /// By the handle of physical memory in a fabric.
    Fabric(FabricHandle),
    /// An allocation of a pool, by a file descriptor of the pool.
    PoolFd(Ticket, PoolPointer),
    /// An allocation of a pool, by the pool's handle in a fabric.
    PoolFabric(FabricHandle, PoolPointer),
}

/// Kinds of descriptors that are handed over.
pub(super) const MEMORY: u8 = 0;
pub(super) const POOL: u8 = 1;

impl Way for CudaWay {
    fn number(&self) -> u16 {
        match self {
            Self::Legacy(_) => 1,
            Self::Fd(_) => 2,
            Self::Fabric(_) => 3,
            Self::PoolFd(..) => 4,
            Self::PoolFabric(..) => 5,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Legacy(handle) => out.extend_from_slice(&handle.0),
            Self::Fd(ticket) => out.extend_from_slice(&ticket.bytes()),
            Self::Fabric(handle) => out.extend_from_slice(&handle.0),
            Self::PoolFd(ticket, pointer) => {
                out.extend_from_slice(&ticket.bytes());
                out.extend_from_slice(&pointer.0);
            }
            Self::PoolFabric(handle, pointer) => {
                out.extend_from_slice(&handle.0);
                out.extend_from_slice(&pointer.0);
            }
        }
    }

    fn decode(number: u16, needs: &mut Reader<'_>) -> Result<Option<Self>> {
        let ticket = |needs: &mut Reader<'_>| needs.take().map(Ticket::from_bytes);
        Ok(Some(match number {
            1 => Self::Legacy(IpcHandle(needs.take()?)),
            2 => Self::Fd(ticket(needs)?),
            3 => Self::Fabric(FabricHandle(needs.take()?)),
            4 => Self::PoolFd(ticket(needs)?, PoolPointer(needs.take()?)),
            5 => Self::PoolFabric(FabricHandle(needs.take()?), PoolPointer(needs.take()?)),
            _ => return Ok(None),
        }))
    }

    fn leaves_the_host(&self) -> bool {
        matches!(self, Self::Fabric(_) | Self::PoolFabric(..))
    }

    fn is_by_process(&self) -> bool {
        matches!(self, Self::Legacy(_))
    }

    fn is_piece(&self) -> bool {
        matches!(self, Self::Fd(_) | Self::Fabric(_))
    }

    fn ticket(&self) -> Option<(&Ticket, u8)> {
        match self {
            Self::Fd(ticket) => Some((ticket, MEMORY)),
            Self::PoolFd(ticket, _) => Some((ticket, POOL)),
            _ => None,
        }
    }
}
