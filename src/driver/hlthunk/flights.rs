//! The submissions of a card whose end nobody has read.
//!
//! The kernel remembers how a submission ended until 64 newer ones have come; after that it says that it went well. And when 64 are running, the
//! library spins inside the next submission until one is done. So both are counted here.

use std::collections::BTreeMap;

use super::status::Errno;
use crate::util::lock::Mutex;

/// How many submissions of one card are running at most.
pub(crate) const IN_FLIGHT: usize = 32;
/// How many newer submissions may come before an end must have been read: fewer than the 64 that the kernel of a Gaudi 2 remembers.
const REMEMBERED: u64 = 60;

/// How a submission ended.
pub(super) type Outcome = Result<(), Errno>;

/// The submissions of a card whose end nobody has read.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// Held while one is made, so that numbers come in order.
    pub(super) submitting: Mutex<()>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    newest: u64,
    unread: BTreeMap<u64, Flight>,
}

#[derive(Debug)]
struct Flight {
    outcome: Option<Outcome>,
    /// Somebody will ask.
    awaited: bool,
}

impl Flights {
    pub(super) fn has_room(&self) -> bool {
        let table = self.table.lock();
        let mut running = table
            .unread
            .iter()
            .filter(|(_, flight)| flight.outcome.is_none());
        let oldest = running.next().map(|(seq, _)| *seq);
        let count = running.count() + usize::from(oldest.is_some());
        count < IN_FLIGHT && oldest.is_none_or(|oldest| table.newest - oldest < REMEMBERED)
    }

    pub(super) fn running(&self) -> Vec<u64> {
        let table = self.table.lock();
        let running = table.unread.iter().filter(|(_, f)| f.outcome.is_none());
        running.map(|(seq, _)| *seq).collect()
    }

    pub(super) fn begin(&self, seq: u64) {
        let mut table = self.table.lock();
        table.newest = table.newest.max(seq);
        table.unread.insert(
            seq,
            Flight {
                outcome: None,
                awaited: true,
            },
        );
    }

    /// Keeps how it ended for who asks, or for nobody.
    pub(super) fn end(&self, seq: u64, outcome: Outcome) {
        let mut table = self.table.lock();
        match table.unread.get_mut(&seq) {
            Some(flight) if flight.awaited => flight.outcome = Some(outcome),
            Some(_) => {
                table.unread.remove(&seq);
            }
            None => {}
        }
    }

    /// What is known of its end, without a call.
    pub(super) fn known(&self, seq: u64) -> Option<Outcome> {
        self.table.lock().unread.get(&seq)?.outcome
    }

    /// Its end has been read.
    pub(super) fn read(&self, seq: u64) {
        self.table.lock().unread.remove(&seq);
    }

    /// Nobody will ask for it. Whether it has ended.
    pub(super) fn forget(&self, seq: u64) -> bool {
        let mut table = self.table.lock();
        match table.unread.get_mut(&seq) {
            Some(flight) if flight.outcome.is_none() => {
                flight.awaited = false;
                false
            }
            _ => {
                table.unread.remove(&seq);
                true
            }
        }
    }

    /// Whether it is running, as far as was heard.
    pub(super) fn is_running(&self, seq: u64) -> bool {
        let table = self.table.lock();
        table
            .unread
            .get(&seq)
            .is_some_and(|flight| flight.outcome.is_none())
    }

    pub(super) fn ended(&self, seqs: &[u64]) -> u32 {
        let table = self.table.lock();
        let ended = |seq: &u64| table.unread.get(seq).is_some_and(|f| f.outcome.is_some());
        let bits = seqs.iter().enumerate();
        bits.fold(0, |set, (bit, seq)| set | u32::from(ended(seq)) << bit)
    }
}
