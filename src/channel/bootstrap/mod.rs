//! How the processes of a group find each other, and talk while nothing else stands yet.
//!
//! Comes in: a rank, a size and where rank 0 is. Goes out: a [`Bootstrap`]: small messages between ranks, all-gather and barrier, each with a
//! deadline. Uses `protocol` for the handshake and its proof of a secret, `sys` for abstract sockets, and no worker. Tests: `tests/channel/bootstrap.rs`.
//!
//! It is for what comes before the fast paths: addresses, descriptors, agreement. Messages are at most [`MAX_MESSAGE`] bytes.

mod collector;
mod environment;
#[cfg(feature = "etcd")]
mod etcd;
mod frame;
mod group;
mod hub;
mod memory;
mod options;
mod rendezvous;
mod socket;
mod tcp;
#[cfg(test)]
mod tests;
mod unique_id;
mod unix;

pub use environment::{Launch, Launcher, Place, Variables};
#[cfg(feature = "etcd")]
pub use etcd::{Change, EtcdBootstrap, EtcdOptions, Member, Members, Membership};
pub use memory::MemoryBootstrap;
pub use options::BootstrapOptions;
pub use tcp::{Meeting, TcpBootstrap, TcpRoot};
pub use unique_id::UniqueId;
pub use unix::UnixBootstrap;

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};

/// Longest message, and longest contribution to an all-gather, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Most bytes that one all-gather brings together.
pub const MAX_GATHER: usize = 64 << 20;
/// Tags of the barriers of a part of the group, among them.
const GROUP_TAGS: u64 = TAGS | 1 << 61;
/// Tags from here on are for what is built on a bootstrap: communicators, barriers of a part of the group.
pub const TAGS: u64 = 1 << 62;

/// How long a wait takes at most, where nobody says.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Largest group.
pub const MAX_SIZE: usize = 1 << 16;

/// A group of processes, numbered from 0, that can talk to each other. Object safe: what is built on it takes `Arc<dyn Bootstrap>`.
///
/// Every wait ends by a deadline: that of the call (`*_until`), or the group's own [`Bootstrap::deadline`] from the moment of the call.
///
/// # Errors
/// Of all waits: `DeadlineExceeded`, which names the ranks that did not come; `PeerDied` when a rank that is waited for has ended without
/// saying so, `Closed` when it has left; the rank is named in the text. `InvalidArgument` for a rank outside the group and a
/// message longer than [`MAX_MESSAGE`]. `Forked` in a child made by `fork`.
#[async_trait]
#[doc(alias = "mscclpp::Bootstrap")]
pub trait Bootstrap: fmt::Debug + Send + Sync {
    /// This process's number.
    fn rank(&self) -> usize;
    /// How many there are.
    fn size(&self) -> usize;
    /// How long a wait takes at most, where the call does not say.
    fn deadline(&self) -> Duration;

    /// Sends a message. Done when it is on its way; waits while `to` has too much that it has not received.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, nothing was sent.
    async fn send_until(&self, to: usize, tag: u64, bytes: Bytes, deadline: Instant) -> Result<()>;

    /// Receives the next message that `from` sent under `tag`.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    async fn receive_until(&self, from: usize, tag: u64, deadline: Instant) -> Result<Bytes>;

    /// Gives every rank the bytes of every rank, in their order. All ranks make their calls of this and of [`Bootstrap::barrier`] in one order.
    ///
    /// A failure is the same at all ranks: at the earliest deadline of those that are in it, and at once when a rank has died that it needs.
    ///
    /// # Errors
    /// Those of the trait; `Exhausted` when all together are longer than [`MAX_GATHER`].
    ///
    /// # Cancel safety
    /// Dropped after its first poll, this rank's bytes still reach the others, and the call counts.
    async fn all_gather_until(&self, bytes: Bytes, deadline: Instant) -> Result<Vec<Bytes>>;

    /// Waits until all ranks have come here.
    ///
    /// # Cancel safety
    /// As [`Bootstrap::all_gather_until`].
    async fn barrier_until(&self, deadline: Instant) -> Result<()> {
        self.all_gather_until(Bytes::new(), deadline)
            .await
            .map(drop)
    }

    /// Waits until all of `ranks`, which are the same at each of them, have come here. The others take no part. The lowest collects.
    ///
    /// # Errors
    /// As [`Bootstrap::barrier_until`], at all of them; up to two seconds later where the lowest did not come. `InvalidArgument` when this rank is
    /// not one of them. After an error other than that these ranks are not to meet in this way again: words of the last time may be under way.
    ///
    /// # Cancel safety
    /// Dropped in the middle, it counts as an error.
    async fn group_barrier_until(&self, ranks: &[usize], deadline: Instant) -> Result<()> {
        group::barrier(self, ranks, deadline).await
    }

    /// [`Bootstrap::group_barrier_until`] with the group's own deadline.
    async fn group_barrier(&self, ranks: &[usize]) -> Result<()> {
        self.group_barrier_until(ranks, after(self.deadline()))
            .await
    }

    /// Says goodbye to the others, and waits until they have taken from the network what this rank had sent; as long as the group's own
    /// [`Bootstrap::deadline`] at most. Every wait of this rank ends with `Closed` then, and so does every later call.
    ///
    /// Dropping a bootstrap says goodbye as well, and the rest goes out in the background, for as long as the runtime lives: a process that ends
    /// after it awaits this before.
    ///
    /// # Cancel safety
    /// After the first poll this rank has left. Dropped, the rest goes out in the background.
    async fn leave(&self) {}

    /// [`Bootstrap::send_until`] with the group's own deadline.
    async fn send(&self, to: usize, tag: u64, bytes: Bytes) -> Result<()> {
        self.send_until(to, tag, bytes, after(self.deadline()))
            .await
    }

    /// [`Bootstrap::receive_until`] with the group's own deadline.
    async fn receive(&self, from: usize, tag: u64) -> Result<Bytes> {
        self.receive_until(from, tag, after(self.deadline())).await
    }

    /// [`Bootstrap::all_gather_until`] with the group's own deadline.
    async fn all_gather(&self, bytes: Bytes) -> Result<Vec<Bytes>> {
        self.all_gather_until(bytes, after(self.deadline())).await
    }

    /// [`Bootstrap::barrier_until`] with the group's own deadline.
    async fn barrier(&self) -> Result<()> {
        self.barrier_until(after(self.deadline())).await
    }
}

/// The moment that far from now; a year at most.
pub(super) fn after(time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + time.min(YEAR)
}

/// Says no to a rank outside the group.
pub(super) fn check_rank(rank: usize, size: usize) -> Result<()> {
    if rank < size {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("there is no rank {rank} in a group of {size}"),
    ))
}

/// Says no to a group of none, or of too many.
pub(super) fn check_size(size: usize) -> Result<()> {
    if (1..=MAX_SIZE).contains(&size) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("a group has 1 to {MAX_SIZE} ranks, not {size}"),
    ))
}

/// Says no where there is no Tokio runtime.
pub(super) fn check_runtime() -> Result<()> {
    tokio::runtime::Handle::try_current()
        .map(drop)
        .map_err(|error| {
            Error::new(
                ErrorKind::InvalidArgument,
                "a bootstrap needs a Tokio runtime",
            )
            .with_source(error)
        })
}

/// Gives bytes to the decoders of what processes tell each other here.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    let own = Bytes::copy_from_slice(bytes);
    if let Ok(read) = frame::Frame::decode(&own) {
        let (head, body) = read.clone().encode();
        let again = Bytes::from([&head[4..], &body].concat());
        assert_eq!(frame::Frame::decode(&again).ok(), Some(read));
    }
    for size in [0, 1, 3] {
        if let Ok(parts) = frame::decode_verdict(&own, size) {
            assert_eq!(parts.len(), size);
        }
        rendezvous::fuzz(bytes, size);
    }
    if let Ok(id) = UniqueId::from_bytes(bytes) {
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).ok(), Some(id));
    }
    if let Ok(address) = socket::Address::decode(bytes) {
        assert_eq!(
            socket::Address::decode(&address.encode()).ok(),
            Some(address)
        );
    }
}
