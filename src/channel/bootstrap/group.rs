//! A barrier of some ranks, by messages between them.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Bootstrap, GROUP_TAGS, after, check_rank,
    collector::missing,
    frame::{decode_error, encode_error},
};
use crate::error::{Error, ErrorKind, Result};

/// How much longer than its deadline a rank waits for the lowest, which knows who is missing; and how long that one takes to tell it.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn barrier<B: Bootstrap + ?Sized>(
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
