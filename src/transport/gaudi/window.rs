//! A part of another card's memory, open for a card's engines (`peers`).

use std::{fmt, os::fd::BorrowedFd, sync::Arc};

use super::{backend::Mapping, card::OpenCard, heap::Taken};
use crate::error::Result;

/// A part of another card's memory that a card's engines reach. Dropped when no copy uses it any more; that may take long.
pub(super) struct Window {
    card: Arc<OpenCard>,
    part: Taken,
    _mapped: Arc<dyn Mapping>,
}

impl Window {
    /// Opens `length` bytes at `offset` of a dma-buf. May take long.
    /// Errors: why the card is lost; `Unsupported`: it cannot; `Malformed`: the dma-buf is shorter; and what the kernel said.
    pub(super) fn open(
        card: &Arc<OpenCard>,
        dma_buf: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        if let Some(error) = card.lost() {
            return Err(error.clone());
        }
        let (part, mapped) = card.peers().open(card.backend(), dma_buf, offset, length)?;
        Ok(Self {
            card: Arc::clone(card),
            part,
            _mapped: mapped,
        })
    }

    pub(super) fn card(&self) -> &Arc<OpenCard> {
        &self.card
    }

    /// Where it begins, as the engines have it.
    pub(super) fn start(&self) -> u64 {
        self.part.start
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.card.peers().close(&self.part);
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of another card", self.part)
    }
}
