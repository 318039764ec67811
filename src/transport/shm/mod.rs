//! Shared memory between two workers of one host: the fastest path there is between processes.
//!
//! Two workers that meet on one host take it by themselves before everything else but `self`, where they may: same user, and `shm` not left out by
//! [`ContextBuilder::transports`](crate::ContextBuilder::transports). A short message costs one cache line and no system call, a peer that sleeps is woken
//! by a doorbell, and long messages are copied once, by the kernel or in memory that both have mapped.
//!
//! Limits: 48 bytes short, 66 KiB buffered, 4.7 MiB of addresses for each connection, of which a quiet one touches two pages. Nothing has a name in the file system, so a crash leaves
//! nothing behind. Each end trusts the other with nothing but the content of messages: a peer that scribbles over the segment
//! harms its own link only.

// Comes in: a channel that passes fds (a Unix socket) to a peer of the same user. Goes out: links whose short messages cost one
// cache line and no system call, doorbells rung only for a peer that sleeps, and words in common
// ([`SharedMemory`](super::SharedMemory)), by which two ends agree on memory that one of them copies for both. Uses `sys`, `types`, `util::loom`. Chosen before everything else on a host.
//
// | file | idea |
// |---|---|
// | `options` | its name, and what can be chosen |
// | `layout` | the drawing of the segment |
// | `cells` | where a ring lies in a process, and which of its cells are in use |
// | `ring` | one direction: producer, consumer |
// | `turns` | when a sender changes its cells, by how it is answered |
// | `copy_choice` | how a producer writes bodies of 2 KiB and more, by what that takes |
// | `doorbell` | the flags that ask for a ring of the bell, and why nothing is lost |
// | `segment` | the mapped segment: its rings, and the words for one-copy transfers |
// | `connector` | the handshake that makes and passes the segment |
// | `link`, `iface` | the two halves that the worker drives |
//
// Tests: `tests.rs` here (two interfaces over a socket pair), and models in `models.rs`
// (`RUSTFLAGS="--cfg wharf_loom" cargo test --lib --release models`).

mod cells;
mod connector;
mod copy_choice;
mod doorbell;
mod iface;
mod layout;
mod link;
mod options;
mod ring;
mod segment;
mod turns;

#[cfg(all(test, wharf_loom))]
mod models;
#[cfg(all(test, not(wharf_loom)))]
mod tests;

use std::sync::Arc;

pub use options::ShmOptions;

use crate::{
    error::{Error, Result},
    sys::{bell::Bell, memfd::Memfd},
    transport::contract::{Opened, Reach, Transport},
};

/// The shared-memory transport.
#[derive(Debug, Default)]
pub struct Shm {
    options: ShmOptions,
}

impl Shm {
    /// The transport with these options.
    #[must_use]
    pub fn new(options: ShmOptions) -> Self {
        Self { options }
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        options::NAME
    }

    fn reach(&self) -> Reach {
        Reach::Host
    }

    fn probe(&self) -> Result<()> {
        let segment =
            Memfd::create(c"wharf-probe", layout::SEGMENT).and_then(|segment| segment.map_sparse());
        segment.map_err(|error| Error::io("making sealed anonymous memory (memfd)", error))?;
        Bell::new().map_err(|error| Error::io("making a doorbell (a timer)", error))?;
        Ok(())
    }

    fn open(&self) -> Result<Opened> {
        let interface = iface::ShmInterface::new()
            .map_err(|error| Error::io("making a doorbell (epoll, eventfd)", error))?;
        Ok(Opened {
            interface: Box::new(interface),
            connector: Arc::new(connector::ShmConnector::new(self.options.clone())),
        })
    }
}
