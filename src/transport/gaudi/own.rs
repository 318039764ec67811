//! A card that this process has opened: copies are packets in command submissions.
//!
//! # Safety
//! What a submission demands of its caller is what a copy does: [`Backend::copy`] passes it on.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::backend::{Backend, Flight, IN_FLIGHT, Mapping, Pages};
use crate::{
    driver::hlthunk::{
        self, Allocation, Card, CommandRing, HostMapping, LinDma, Notifier, PeerMemory, Queue,
    },
    error::{Error, ErrorKind, Result},
    transport::accelerator::Route,
};

const _: () = assert!(IN_FLIGHT == hlthunk::IN_FLIGHT);

/// See the module.
#[derive(Debug)]
pub(super) struct Own {
    ring: CommandRing,
    /// Without, a reset is noticed by the next call, and the kernel gives no time to close the card.
    notifier: Option<Notifier>,
    within: Vec<Queue>,
    /// The queue within the card that is next.
    turn: AtomicUsize,
    card: Arc<Card>,
}

impl Own {
    /// Takes command buffers and the notifier.
    /// Errors: `Unsupported`: a card that takes no submissions; and what the library said.
    pub(super) fn new(card: Arc<Card>) -> Result<Self> {
        if !card.chip().takes_submissions() {
            let text = format!(
                "{card}: a {} takes no command submissions; Synapse copies there",
                card.chip()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let ring = card.command_ring(IN_FLIGHT)?;
        let notifier = match card.notifier() {
            Ok(notifier) => Some(notifier),
            Err(error) if error.kind() == ErrorKind::DeviceLost => return Err(error),
            Err(error) => {
                tracing::warn!(target: "wharf::gaudi", "nobody tells of resets: {error}");
                None
            }
        };
        Ok(Self {
            ring,
            notifier,
            within: card.queues_within(),
            turn: AtomicUsize::new(0),
            card,
        })
    }

    fn queue(&self, route: Route) -> Queue {
        match route {
            Route::ToDevice => self.card.queue_in(),
            Route::ToHost => self.card.queue_out(),
            Route::Across => {
                let turn = self.turn.fetch_add(1, Relaxed);
                let count = self.within.len().max(1);
                self.within
                    .get(turn % count)
                    .copied()
                    .unwrap_or_else(|| self.card.queue_in())
            }
        }
    }
}

impl Backend for Own {
    fn allocate(&self, length: u64) -> Result<Box<dyn Pages>> {
        Ok(Box::new(self.card.allocate(length)?))
    }

    fn map(&self, host: u64, length: u64) -> Result<Box<dyn Mapping>> {
        Ok(Box::new(self.card.map_host(host, length)?))
    }

    unsafe fn copy(
        &self,
        route: Route,
        to: u64,
        from: u64,
        length: u64,
    ) -> Result<Box<dyn Flight>> {
        let packets: Vec<LinDma> = LinDma::split(from, to, length).collect();
        // SAFETY: the caller's promise is the same.
        let submitted = unsafe { self.ring.submit(self.queue(route), &packets) }?;
        Ok(Box::new(submitted))
    }

    unsafe fn zero(&self, to: u64, length: u64) -> Result<Box<dyn Flight>> {
        let packets: Vec<LinDma> = LinDma::split(0, to, length)
            .map(|packet| LinDma {
                source: 0,
                fill: true,
                ..packet
            })
            .collect();
        // SAFETY: the caller's promise is the same.
        let submitted = unsafe { self.ring.submit(self.queue(Route::Across), &packets) }?;
        Ok(Box::new(submitted))
    }

    fn wait_any(&self, numbers: &[u64], timeout: Duration) -> Result<u32> {
        self.card.wait_any(numbers, timeout)
    }

    fn reach(&self, dma_buf: BorrowedFd<'_>, length: u64) -> Result<Box<dyn Mapping>> {
        Ok(Box::new(self.card.import(dma_buf, length)?))
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.notifier.as_ref().map(AsFd::as_fd)
    }

    fn news(&self) -> Result<bool> {
        match &self.notifier {
            Some(notifier) => Ok(notifier.receive()?.is_end()),
            None => Ok(false),
        }
    }

    fn is_lost(&self) -> bool {
        self.card.is_lost()
    }

    fn close(&self) {
        self.card.close();
    }
}

impl Pages for Allocation {
    fn address(&self) -> u64 {
        Self::address(self)
    }

    fn length(&self) -> u64 {
        self.len()
    }

    fn export(&self) -> Result<OwnedFd> {
        Self::export(self, 0, self.len())
    }
}

impl Mapping for HostMapping {
    fn translate(&self, host: u64, length: u64) -> Option<u64> {
        Self::translate(self, host, length)
    }
}

impl Mapping for PeerMemory {
    fn translate(&self, offset: u64, length: u64) -> Option<u64> {
        self.at(offset, length)
    }
}

impl Flight for hlthunk::Submission {
    fn number(&self) -> u64 {
        self.seq()
    }

    fn poll(&mut self) -> Result<bool> {
        Self::poll(self)
    }
}
