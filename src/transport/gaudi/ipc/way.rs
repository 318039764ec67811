//! How Gaudi's memory is opened by another process, as it is written down.

use crate::{
    error::Result,
    transport::accelerator::ipc::{
        descriptor::{Reader, Way},
        handover::Ticket,
    },
};

/// A dma-buf, which the exporter hands over for the ticket, and where in it the memory begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GaudiWay {
    pub(super) ticket: Ticket,
    pub(super) offset: u64,
}

/// The kind of descriptor that is handed over.
pub(super) const DMA_BUF: u8 = 0;
/// In descriptors.
const NUMBER: u16 = 0x201;

impl Way for GaudiWay {
    fn number(&self) -> u16 {
        NUMBER
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ticket.bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
    }

    fn decode(number: u16, needs: &mut Reader<'_>) -> Result<Option<Self>> {
        if number != NUMBER {
            return Ok(None);
        }
        Ok(Some(Self {
            ticket: needs.take().map(Ticket::from_bytes)?,
            offset: u64::from_le_bytes(needs.take()?),
        }))
    }

    fn ticket(&self) -> Option<(&Ticket, u8)> {
        Some((&self.ticket, DMA_BUF))
    }
}
