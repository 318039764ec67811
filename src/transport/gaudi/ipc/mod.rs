//! `gaudi_ipc`: how the memory of a Gaudi card crosses to another process of the host.
//!
//! One process at a time has a card, so the memory of another process is another card's. What crosses is the dma-buf of the pool that the memory lies in, by a socket of the
//! exporter's, and where it begins in it. A card that is open here opens it, if its driver can (`driver/hlthunk/import`): then that card's engines copy to and from it
//! over PCI. A driver that cannot says so to the first attempt, which is remembered; then, and where no card is open here, the memory is staged through the host
//! by its owner, in fragments that are under way at the same time. Which of both it is, `Endpoint::explain` tells.
//!
//! An allocation's id is wharf's own number. A dma-buf that is open elsewhere keeps the card from being given back by the exporter, and its pool from being freed: both end when
//! the importer closes it, at the latest when it ends.
//!
//! Comes in and goes out: what [`Sharing`] says. Uses `card`, `window`. Tests: `tests/gaudi/ipc.rs`.

mod way;

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
};

use way::{DMA_BUF, GaudiWay};

use super::{card, heap::Taken, peers::Known, shared::Shared, window::Window};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::ipc::{
        self, Sharing, Tickets,
        descriptor::Allocation,
        handover::{Wanted, stale},
    },
    types::MemoryType,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct GaudiSharing(pub(super) Arc<Shared>);

/// An allocation, and the card that has it.
#[derive(Debug)]
pub(crate) struct Seen {
    card: Arc<card::OpenCard>,
    taken: Taken,
}

/// An allocation of another process, open here.
#[derive(Debug)]
pub(crate) struct Opened(Window);

impl Sharing for GaudiSharing {
    type Way = GaudiWay;
    type Seen = Option<Seen>;
    type Opened = Opened;

    fn look(&self, address: u64) -> Result<(u64, Option<Seen>)> {
        let thunk = self.0.loaded();
        let seen = thunk
            .and_then(|thunk| card::of_address(thunk, address))
            .and_then(|card| {
                let taken = card.find(address)?;
                Some(Seen { card, taken })
            });
        Ok((seen.as_ref().map_or(0, |seen| seen.taken.id), seen))
    }

    fn share(
        &self,
        address: u64,
        id: u64,
        seen: &Option<Seen>,
        tickets: &Tickets<Self>,
    ) -> Result<std::result::Result<ipc::Shared<GaudiWay>, String>> {
        let Some(seen) = seen else {
            let text = format!(
                "no allocation of a Gaudi card is at {address:#x}, or it was freed, or is another process's"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        let Some(info) = self.0.cards()?.get(usize::from(seen.card.ordinal())) else {
            return Ok(Err("its card has no PCI place".to_owned()));
        };
        // To see that it can be had, and where the memory begins in it.
        let made = match seen.card.export(seen.taken.start) {
            Ok(made) => made,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Err(format!("no dma-buf of it can be had: {error}")));
            }
            Err(error) => return Err(error),
        };
        let ticket = tickets.ticket(Wanted {
            kind: DMA_BUF,
            base: seen.taken.start,
            id,
        })?;
        let mut device = *b"pci:\0\0\0\0\0\0\0\0\0\0\0\0";
        for (to, from) in device[4..].iter_mut().zip(info.bus_id.as_str().bytes()) {
            *to = from;
        }
        Ok(Ok(ipc::Shared {
            device,
            base: seen.taken.start,
            length: seen.taken.length,
            way: GaudiWay {
                ticket,
                offset: made.offset,
            },
        }))
    }

    fn hand_over(&self, wanted: Wanted) -> Result<OwnedFd> {
        let still = || {
            let (id, seen) = self.look(wanted.base)?;
            seen.filter(|seen| id == wanted.id && seen.taken.start == wanted.base)
                .ok_or_else(stale)
        };
        if wanted.kind != DMA_BUF {
            return Err(stale());
        }
        let made = still()?.card.export(wanted.base)?;
        // Once more when it is held.
        still()?;
        Ok(made.fd)
    }

    fn open(&self, allocation: &Allocation<GaudiWay>, fd: Option<OwnedFd>) -> Result<Opened> {
        let fd = fd.ok_or_else(|| Error::new(ErrorKind::Io, "no descriptor"))?;
        let mut refused = Error::new(
            ErrorKind::Unsupported,
            "no Gaudi card is open in this process, whose engines could reach the peer's",
        );
        let thunk = self.0.load()?;
        for ordinal in card::ordinals(thunk) {
            let Some(card) = card::find(thunk, ordinal) else {
                continue;
            };
            match Window::open(&card, fd.as_fd(), allocation.way.offset, allocation.length) {
                Ok(window) => return Ok(Opened(window)),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn place(opened: &Opened) -> (u64, MemoryType) {
        let card = opened.0.card();
        let memory_type = MemoryType::Gaudi(card.ordinal());
        (card.tagged(opened.0.start()), memory_type)
    }

    fn own(&self, address: u64, id: u64) -> Result<Option<MemoryType>> {
        let (now, seen) = self.look(address)?;
        let seen = seen.filter(|_| now == id);
        Ok(seen.map(|seen| MemoryType::Gaudi(seen.card.ordinal())))
    }
}

/// Why nothing of other processes is opened here, if that is known before the peer is asked for a descriptor.
pub(super) fn cannot_open(shared: &Shared) -> Option<Error> {
    let thunk = shared.loaded()?;
    let cards = card::ordinals(thunk).into_iter();
    let mut why = None;
    for card in cards.filter_map(|ordinal| card::find(thunk, ordinal)) {
        match card.peers().known() {
            Known::Cannot(text) => {
                why = Some(Error::new(ErrorKind::Unsupported, text));
            }
            _ => return None,
        }
    }
    why
}

/// Gives bytes to the decoder of exported memory.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    ipc::fuzz::<GaudiWay>(bytes);
}
