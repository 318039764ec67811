//! Connections that peers made: how many there are, of whom, and how many were turned down.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use crate::{
    config::Limits,
    error::{Error, ErrorKind, Result},
    types::Source,
    util::lock::Mutex,
};

/// The connections of one worker that peers made.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    counts: Mutex<Counts>,
    pub(crate) made: AtomicU64,
    /// By the program's own check.
    pub(crate) not_admitted: AtomicU64,
    /// In the handshake.
    pub(crate) silent: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    sources: HashMap<Source, u64>,
    total: u64,
    over: OverLimit,
}

/// How many were turned down because as many are open as may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverLimit {
    /// With their source.
    pub(crate) source: u64,
    /// On the worker.
    pub(crate) worker: u64,
}

impl Accepted {
    /// Counts one in.
    /// Errors: `Exhausted`: there are as many as may be.
    pub(crate) fn enter(self: &Arc<Self>, source: Source, limits: &Limits) -> Result<Seat> {
        let mut counts = self.counts.lock();
        let total = counts.total;
        let own = counts.sources.get(&source).copied().unwrap_or(0);
        // As in the ledger, the source before the worker.
        let full = if own >= limits.source.connections {
            counts.over.source += 1;
            Some(format!(
                "the worker has {own} connections from {source}, which is its limit for one source"
            ))
        } else if total >= limits.worker.connections {
            counts.over.worker += 1;
            Some(format!(
                "the worker has {total} connections, which is its limit"
            ))
        } else {
            None
        };
        if let Some(text) = full {
            return Err(Error::new(ErrorKind::Exhausted, text));
        }
        *counts.sources.entry(source).or_default() += 1;
        counts.total += 1;
        let accepted = self.clone();
        Ok(Seat { accepted, source })
    }

    /// Who was not counted in.
    pub(crate) fn over_limit(&self) -> OverLimit {
        self.counts.lock().over
    }
}

/// One connection that is counted. Dropping it counts it out.
#[derive(Debug)]
pub(crate) struct Seat {
    accepted: Arc<Accepted>,
    source: Source,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.accepted.counts.lock();
        counts.total -= 1;
        if let Some(count) = counts.sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.sources.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_places_come_back() {
        let accepted = Arc::new(Accepted::default());
        let limits = Limits::default()
            .each_source(|quota| quota.connections(2))
            .whole_worker(|quota| quota.connections(3));
        let enter = |user| accepted.enter(Source::User(user), &limits);
        let one = enter(1).expect("the first");
        let _two = enter(1).expect("the second");
        let refused = enter(1).expect_err("two of one source");
        assert_eq!(refused.kind(), ErrorKind::Exhausted);
        assert!(refused.to_string().contains("user 1"), "{refused}");
        let other = enter(2).expect("another source");
        let refused = enter(3).expect_err("three in all");
        assert!(!refused.to_string().contains("user"), "{refused}");
        drop(one);
        let again = enter(1).expect("a place came back");
        let over = OverLimit {
            source: 1,
            worker: 1,
        };
        assert_eq!(accepted.over_limit(), over);
        drop((again, other));
        let counts = accepted.counts.lock();
        assert_eq!(
            (counts.sources.len(), counts.total),
            (1, 1),
            "nothing is kept"
        );
    }
}
