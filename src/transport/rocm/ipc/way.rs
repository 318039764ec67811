//! The ways in which ROCm's memory is opened by another process, as they are written down.

use crate::{
    driver::hsa::IpcHandle,
    error::Result,
    transport::accelerator::ipc::{
        descriptor::{Reader, Way},
        handover::Ticket,
    },
};

/// How the memory is opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RocmWay {
    /// By a dma-buf, which the exporter hands over for the ticket; the memory begins at the offset in it.
    DmaBuf(Ticket, u64),
    /// By the runtime's handle.
    Handle(IpcHandle),
}

/// The kind of descriptor that is handed over.
pub(super) const DMA_BUF: u8 = 0;

impl Way for RocmWay {
    fn number(&self) -> u16 {
        match self {
            Self::DmaBuf(..) => 0x101,
            Self::Handle(_) => 0x102,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::DmaBuf(ticket, offset) => {
                out.extend_from_slice(&ticket.bytes());
                out.extend_from_slice(&offset.to_le_bytes());
            }
            Self::Handle(handle) => out.extend_from_slice(&handle.to_bytes()),
        }
    }

    fn decode(number: u16, needs: &mut Reader<'_>) -> Result<Option<Self>> {
        Ok(Some(match number {
            0x101 => {
                let ticket = needs.take().map(Ticket::from_bytes)?;
                Self::DmaBuf(ticket, u64::from_le_bytes(needs.take()?))
            }
            0x102 => Self::Handle(IpcHandle::from_bytes(&needs.take()?)),
            _ => return Ok(None),
        }))
    }

    fn leaves_the_host(&self) -> bool {
        false
    }

    fn is_by_process(&self) -> bool {
        matches!(self, Self::Handle(_))
    }

    fn is_piece(&self) -> bool {
        false
    }

    fn ticket(&self) -> Option<(&Ticket, u8)> {
        match self {
            Self::DmaBuf(ticket, _) => Some((ticket, DMA_BUF)),
            Self::Handle(_) => None,
        }
    }
}
