//! What every bootstrap does, whatever carries its messages.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::{
    collector::missing,
    frame::{decode_error, encode_error},
    limits::{TAGS, after, check_rank},
};
use crate::error::{Error, ErrorKind, Result};

/// A group of processes, numbered from 0, that can talk to each other. Object safe: what is built on it takes `Arc<dyn Bootstrap>`.
///
/// Every wait ends by a deadline: that of the call (`*_until`), or the group's own [`Bootstrap::deadline`] from the moment of the call.
///
/// # Errors
/// Of all waits: `DeadlineExceeded`, which names the ranks that did not come; `PeerDied` when a rank that is waited for has ended without
/// saying so, `Closed` when it has left; the rank is named in the text. `InvalidArgument` for a rank outside the group and a
/// message longer than [`MAX_MESSAGE`](super::MAX_MESSAGE). `Forked` in a child made by `fork`.
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
    /// Those of the trait; `Exhausted` when all together are longer than [`MAX_GATHER`](super::MAX_GATHER).
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
        barrier(self, ranks, deadline).await
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

/// Tags of the barriers of a part of the group, among them.
const GROUP_TAGS: u64 = TAGS | 1 << 61;
/// How much longer than its deadline a rank waits for the lowest, which knows who is missing; and how long that one takes to tell it.
const GRACE: Duration = Duration::from_secs(2);

/// A barrier of some ranks, by messages between them.
async fn barrier<B: Bootstrap + ?Sized>(
    bootstrap: &B,
    ranks: &[usize],
    deadline: Instant,
) -> Result<()> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    for rank in &ranks {
        check_rank(*rank, bootstrap.size())?;
    }
    let own = bootstrap.rank();
    let lowest = match ranks.first() {
        Some(lowest) if ranks.contains(&own) => *lowest,
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("rank {own} is not one of those that meet"),
            ));
        }
    };
    let tag = tag(&ranks);
    if own != lowest {
        bootstrap
            .send_until(lowest, tag, Bytes::new(), deadline)
            .await?;
        let verdict = bootstrap.receive_until(lowest, tag, deadline + GRACE).await;
        let verdict = verdict.map_err(|error| match error.kind() {
            ErrorKind::DeadlineExceeded => missing(std::iter::once(lowest), ranks.len()),
            _ => error,
        })?;
        if verdict.is_empty() {
            return Ok(());
        }
        return Err(decode_error(&verdict)?);
    }
    let others = ranks.get(1..).unwrap_or_default();
    let mut absent = Vec::new();
    let mut lost = None;
    for rank in others {
        // Past the deadline this takes what is there already.
        match bootstrap.receive_until(*rank, tag, deadline).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => absent.push(*rank),
            Err(error) => {
                lost = Some(error);
                break;
            }
        }
    }
    let count = ranks.len();
    let wrong = lost.or_else(|| (!absent.is_empty()).then(|| missing(absent.into_iter(), count)));
    let verdict: Bytes = wrong
        .as_ref()
        .map_or_else(Bytes::new, |error| encode_error(error).into());
    let until = deadline.max(after(GRACE));
    let told = others
        .iter()
        .map(|rank| bootstrap.send_until(*rank, tag, verdict.clone(), until));
    let told = futures::future::join_all(told).await;
    match wrong {
        // Those that cannot be told are what is wrong.
        Some(error) => Err(error),
        None => told.into_iter().collect(),
    }
}

/// One for each set of ranks: their count and checksum.
fn tag(ranks: &[usize]) -> u64 {
    let mut sum = crc32fast::Hasher::new();
    for rank in ranks {
        sum.update(&(*rank as u64).to_le_bytes());
    }
    GROUP_TAGS | (ranks.len() as u64) << 32 | u64::from(sum.finalize())
}
