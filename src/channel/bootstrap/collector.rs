//! Rank 0's part in collective calls: it collects the parts of all ranks, and gives all of them one verdict. No I/O, and no clock of its own.
//!
//! Calls are numbered by each rank for itself, from 0, so that the n-th call of one is the n-th of all. A call ends when all parts are there, when a
//! rank has died in it or has left without its part, or at the earliest deadline of those that are in it.

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    frame::{Gone, encode_verdict},
    limits::MAX_GATHER,
};
use crate::error::{Error, ErrorKind, Result};

/// Most calls that are under way at once.
pub(super) const MAX_ROUNDS: usize = 64;
/// Most failures that are kept for ranks that come later.
const MAX_FAILED: usize = 256;

/// What one rank is told about one call.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) rank: usize,
    pub(super) call: u64,
    pub(super) body: Bytes,
}

#[derive(Debug)]
pub(super) struct Collector {
    size: usize,
    rounds: BTreeMap<u64, Round>,
    /// Bytes in the rounds.
    held: usize,
    failed: BTreeMap<u64, Bytes>,
    /// The next call of each rank, and of the one that is furthest.
    next: Vec<u64>,
    begun: u64,
    gone: BTreeMap<usize, Gone>,
}

#[derive(Debug)]
struct Round {
    parts: Vec<Option<Bytes>>,
    missing: usize,
    deadline: Instant,
}

impl Round {
    fn missing(&self) -> impl Iterator<Item = usize> {
        self.parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.is_none())
            .map(|(rank, _)| rank)
    }
}

impl Collector {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            rounds: BTreeMap::new(),
            held: 0,
            failed: BTreeMap::new(),
            next: vec![0; size],
            begun: 0,
            gone: BTreeMap::new(),
        }
    }

    /// Takes the part of a rank.
    /// Errors: `Protocol` when the rank does not count as it should, or has too many calls under way.
    pub(super) fn part(
        &mut self,
        rank: usize,
        call: u64,
        deadline: Instant,
        bytes: Bytes,
    ) -> Result<Vec<Verdict>> {
        let begun = self.begun;
        let next = self.next.get_mut(rank).filter(|next| **next == call);
        let Some(next) = next else {
            return Err(Error::new(
                ErrorKind::Protocol,
                "a rank's collective calls are out of order",
            ));
        };
        if call >= begun && self.rounds.len() >= MAX_ROUNDS {
            return Err(Error::new(
                ErrorKind::Protocol,
                "more than 64 collective calls are under way",
            ));
        }
        *next += 1;
        self.begun = begun.max(*next);
        if call < begun && !self.rounds.contains_key(&call) {
            let body = self.failed.get(&call).cloned().unwrap_or_else(|| {
                let error = Error::new(
                    ErrorKind::DeadlineExceeded,
                    "the call ended long ago without this rank",
                );
                encode_verdict(&Err(error))
            });
            return Ok(vec![Verdict { rank, call, body }]);
        }
        let size = self.size;
        let round = self.rounds.entry(call).or_insert_with(|| Round {
            parts: vec![None; size],
            missing: size,
            deadline,
        });
        self.held += bytes.len();
        round.missing -= 1;
        round.deadline = round.deadline.min(deadline);
        if let Some(part) = round.parts.get_mut(rank) {
            *part = Some(bytes);
        }
        if self.held > MAX_GATHER {
            let error = Error::new(
                ErrorKind::Exhausted,
                format!("what the ranks give is longer than {MAX_GATHER} bytes together"),
            );
            return Ok(self.fail(call, &error));
        }
        if round.missing == 0 {
            return Ok(self.end(call, |parts| {
                encode_verdict(&Ok(parts.into_iter().flatten().collect()))
            }));
        }
        let is_missing = |rank: usize| round.parts.get(rank).is_some_and(Option::is_none);
        let mut gone_ranks = self.gone.iter();
        let lost = gone_ranks.find(|(rank, _)| is_missing(**rank));
        match lost.map(|(rank, how)| gone(*rank, *how)) {
            Some(error) => Ok(self.fail(call, &error)),
            None => Ok(Vec::new()),
        }
    }

    /// A rank is gone.
    pub(super) fn gone(&mut self, rank: usize, how: Gone) -> Vec<Verdict> {
        self.gone.entry(rank).or_insert(how);
        let lost: Vec<u64> = self
            .rounds
            .iter()
            .filter(|(_, round)| {
                // The part of one that died in the middle is no help: it will never know how the call ended.
                how == Gone::Died || round.parts.get(rank).is_some_and(Option::is_none)
            })
            .map(|(call, _)| *call)
            .collect();
        lost.into_iter()
            .flat_map(|call| self.fail(call, &gone(rank, how)))
            .collect()
    }

    /// When to look again by [`Collector::tick`].
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.rounds.values().map(|round| round.deadline).min()
    }

    /// Ends the calls whose deadline has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Verdict> {
        let late: Vec<(u64, Error)> = self
            .rounds
            .iter()
            .filter(|(_, round)| round.deadline <= now)
            .map(|(call, round)| (*call, missing(round.missing(), self.size)))
            .collect();
        late.iter()
            .flat_map(|(call, error)| self.fail(*call, error))
            .collect()
    }

    fn fail(&mut self, call: u64, error: &Error) -> Vec<Verdict> {
        let body = encode_verdict(&Err(error.clone()));
        self.failed.insert(call, body.clone());
        while self.failed.len() > MAX_FAILED {
            self.failed.pop_first();
        }
        self.end(call, |_| body)
    }

    /// Ends a call: one body for all that are in it, rank 0 last.
    fn end(&mut self, call: u64, body: impl FnOnce(Vec<Option<Bytes>>) -> Bytes) -> Vec<Verdict> {
        let Some(round) = self.rounds.remove(&call) else {
            return Vec::new();
        };
        self.held -= round.parts.iter().flatten().map(Bytes::len).sum::<usize>();
        let ranks: Vec<usize> = (0..self.size)
            .rev()
            .filter(|rank| round.parts.get(*rank).is_some_and(Option::is_some))
            .collect();
        let body = body(round.parts);
        ranks
            .into_iter()
            .map(|rank| Verdict {
                rank,
                call,
                body: body.clone(),
            })
            .collect()
    }
}

/// That a rank is gone.
pub(super) fn gone(rank: usize, how: Gone) -> Error {
    match how {
        Gone::Left => Error::new(ErrorKind::Closed, format!("rank {rank} has left the group")),
        Gone::Died => Error::new(ErrorKind::PeerDied, format!("rank {rank} has died")),
    }
}

/// That ranks did not come.
pub(super) fn missing(ranks: impl Iterator<Item = usize>, size: usize) -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        format!("{} of {size} did not come in time", named(ranks)),
    )
}

/// `rank 3`, or `ranks 1, 2, 3`: the first sixteen, and how many more.
fn named(ranks: impl Iterator<Item = usize>) -> String {
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    let (shown, more) = ranks.split_at(ranks.len().min(16));
    let mut text = format!(
        "{} {}",
        if ranks.len() == 1 { "rank" } else { "ranks" },
        shown.join(", ")
    );
    if !more.is_empty() {
        text.push_str(&format!(" and {} more", more.len()));
    }
    text
}
