//! Places for connections whose handshake is under way.
//!
//! Each kind of listening socket has places of its own, of which one source may hold three quarters. Whoever comes while all are taken, or all that its
//! source may hold, takes the place of a connection whose peer says nothing: of the source that holds most, the oldest. It waits while there is none.
//! So neither silence nor single drops keep others out, and a crowd that comes at once waits its turn. A source whose places are all stuck is sent away,
//! so that others do not wait behind it.

use std::{
    collections::HashMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::Notify,
    time::{sleep, sleep_until},
};

use crate::{
    error::{Error, ErrorKind},
    transport::channel::Activity,
    types::Source,
    util::lock::Mutex,
};

/// Places for one kind of socket.
const PLACES: usize = 128;

/// How long a peer may say nothing before another takes its place. A few round trips over any network, and a scheduler's delay.
const SILENCE: Duration = Duration::from_millis(250);

/// The same, for a message that was begun: drops of single bytes do not keep a place. And for the set-up of a path, which takes time at both ends: from
/// one message, either way, to the next, of which there are not many.
const SLOWNESS: Duration = Duration::from_secs(1);

/// How old all that a source holds must be for who comes from there to be sent away instead of waited for.
const STUCK: Duration = Duration::from_secs(2);

/// How long a peer may take to say anything at all, whether or not another waits.
pub(super) const FIRST_BYTES: Duration = Duration::from_secs(2);

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The peer is to say who it is.
    Greeting,
    /// It has; now the program is to take it.
    Asking,
    /// A path is being set up.
    Setup,
}

/// The places of one kind of socket.
#[derive(Debug)]
pub(crate) struct Backlog {
    table: Mutex<Table>,
    /// A place may have become free.
    changed: Notify,
}

impl Backlog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(Table::new(PLACES)),
            changed: Notify::new(),
        })
    }

    /// Has all whose peers are silent give their places back.
    pub(crate) fn clear(&self) {
        self.table.lock().clear(Instant::now());
    }

    /// Waits for a place. `None`: the source has its share, and makes nothing of it.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn enter(self: &Arc<Self>, source: Source) -> Option<Pending> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = Instant::now();
            let found = self.table.lock().enter(source, now);
            match found {
                Entered::Place(key, activity, displaced) => {
                    return Some(Pending {
                        backlog: self.clone(),
                        key,
                        activity,
                        displaced,
                    });
                }
                Entered::Stuck => return None,
                Entered::Full(None) => changed.await,
                Entered::Full(Some(until)) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(until.into()) => {}
                },
            }
        }
    }
}

/// A connection that holds a place. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Pending {
    backlog: Arc<Backlog>,
    key: u64,
    activity: Arc<Activity>,
    displaced: Arc<Notify>,
}

impl Pending {
    /// Where its channel notes what its peer does.
    pub(crate) fn activity(&self) -> Arc<Activity> {
        self.activity.clone()
    }

    /// A new stage begins.
    pub(crate) fn begin(&self, stage: Stage) {
        let mut table = self.backlog.table.lock();
        if let Some(held) = table.held(self.key) {
            held.stage = stage;
            held.told = false;
            held.activity.restart(Instant::now());
        }
        drop(table);
        self.backlog.changed.notify_waiters();
    }

    /// Ready when the stage has taken `limit`, when the peer has not said anything in it within `first`, and when it is silent and another needs the
    /// place: with the reason, which is `WouldBlock` in the last case. An honest peer that was slow to speak may dial again.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn expired(&self, first: Duration, limit: Duration) -> Error {
        let begin = Instant::now();
        let mut displaced = pin!(self.displaced.notified());
        loop {
            let heard = self.activity.times().heard;
            let time = match heard {
                true => limit,
                false => limit.min(first),
            };
            tokio::select! {
                () = sleep((begin + time).saturating_duration_since(Instant::now())) => {
                    if self.activity.times().heard == heard {
                        let text = match heard {
                            true => format!("no handshake within {time:?}"),
                            false => format!("nothing was heard of the peer within {time:?}"),
                        };
                        return Error::new(ErrorKind::DeadlineExceeded, text);
                    }
                }
                () = &mut displaced => {
                    if self.backlog.table.lock().gives_way(self.key, Instant::now()) {
                        let text = "the listener gave the place of this connection, which was silent, to another";
                        return Error::new(ErrorKind::WouldBlock, text);
                    }
                    // It spoke up in the last moment.
                    self.backlog.changed.notify_waiters();
                    displaced.set(self.displaced.notified());
                }
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.backlog
            .table
            .lock()
            .held
            .retain(|held| held.key != self.key);
        self.backlog.changed.notify_waiters();
    }
}

/// What came of asking for a place.
enum Entered {
    Place(u64, Arc<Activity>, Arc<Notify>),
    /// To be asked for again at this time, or when something has changed.
    Full(Option<Instant>),
    Stuck,
}

#[derive(Debug)]
struct Held {
    key: u64,
    source: Source,
    since: Instant,
    stage: Stage,
    activity: Arc<Activity>,
    /// It was told that another needs its place.
    told: bool,
    displaced: Arc<Notify>,
}

impl Held {
    /// When another may take its place.
    fn until(&self) -> Option<Instant> {
        let times = self.activity.times();
        match self.stage {
            Stage::Greeting => Some((times.bytes + SILENCE).min(times.message + SLOWNESS)),
            Stage::Asking => None,
            Stage::Setup => Some(times.message + SLOWNESS),
        }
    }
}

/// Who holds the places, the oldest first.
#[derive(Debug)]
struct Table {
    held: Vec<Held>,
    places: usize,
    /// The most that one source may hold.
    share: usize,
    next: u64,
}

impl Table {
    fn new(places: usize) -> Self {
        Self {
            held: Vec::new(),
            places,
            share: places - places / 4,
            next: 0,
        }
    }

    fn held(&mut self, key: u64) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.key == key)
    }

    fn enter(&mut self, source: Source, now: Instant) -> Entered {
        let mut counts: HashMap<Source, usize> = HashMap::new();
        for held in &self.held {
            *counts.entry(held.source).or_default() += 1;
        }
        let count = |source| counts.get(&source).copied().unwrap_or(0);
        let has_share = count(source) < self.share;
        if has_share && self.held.len() < self.places {
            self.next += 1;
            let activity = Arc::new(Activity::new(now));
            let displaced = Arc::new(Notify::new());
            self.held.push(Held {
                key: self.next,
                source,
                since: now,
                stage: Stage::Greeting,
                activity: activity.clone(),
                told: false,
                displaced: displaced.clone(),
            });
            return Entered::Place(self.next, activity, displaced);
        }
        let stuck = !has_share && self.is_stuck(source, now);
        let mut next: Option<Instant> = None;
        let mut found: Option<&mut Held> = None;
        for held in &mut self.held {
            if !has_share && held.source != source {
                continue;
            }
            if held.told {
                // Its place is on its way.
                return Entered::Full(None);
            }
            match held.until() {
                Some(until) if until <= now => {
                    let most = found.as_ref().map_or(0, |found| count(found.source));
                    if count(held.source) > most {
                        found = Some(held);
                    }
                }
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => {}
            }
        }
        match found {
            Some(held) => {
                held.told = true;
                held.displaced.notify_one();
                Entered::Full(None)
            }
            None if stuck => Entered::Stuck,
            None => Entered::Full(next),
        }
    }

    /// Whether all connections from there have been at it for long.
    fn is_stuck(&self, source: Source, now: Instant) -> bool {
        let mut own = self.held.iter().filter(|held| held.source == source);
        // Who waits for the program is not to blame.
        own.all(|held| held.stage != Stage::Asking && held.since + STUCK <= now)
    }

    fn clear(&mut self, now: Instant) {
        for held in &mut self.held {
            if !held.told && held.until().is_some_and(|until| until <= now) {
                held.told = true;
                held.displaced.notify_one();
            }
        }
    }

    /// Whether one that was told is silent still.
    fn gives_way(&mut self, key: u64, now: Instant) -> bool {
        self.held(key).is_some_and(|held| {
            let silent = held.told && held.until().is_some_and(|until| until <= now);
            held.told = silent;
            silent
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ONE: Source = Source::V4(Ipv4Addr::new(10, 0, 0, 1));
    const TWO: Source = Source::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn place(table: &mut Table, source: Source, now: Instant) -> (u64, Arc<Activity>) {
        match table.enter(source, now) {
            Entered::Place(key, activity, _) => (key, activity),
            Entered::Full(until) => panic!("full until {until:?}"),
            Entered::Stuck => panic!("stuck"),
        }
    }

    /// The one that has to go, when it does.
    fn displaced(table: &mut Table, source: Source, now: Instant) -> Option<u64> {
        assert!(matches!(table.enter(source, now), Entered::Full(_)));
        let key = table.held.iter().find(|held| held.told)?.key;
        let gives_way = table.gives_way(key, now);
        assert!(gives_way, "it was chosen for its silence");
        table.held.retain(|held| held.key != key);
        Some(key)
    }

    #[test]
    fn a_source_has_a_share_and_others_the_rest() {
        let (mut table, now) = (Table::new(8), Instant::now());
        for _ in 0..6 {
            place(&mut table, ONE, now);
        }
        let Entered::Full(Some(until)) = table.enter(ONE, now) else {
            panic!("more than the share");
        };
        assert_eq!(until, now + SILENCE);
        let (other, _) = place(&mut table, TWO, now);
        place(&mut table, TWO, now);
        // All silent for as long: of the source that holds most, the oldest.
        let later = now + SILENCE;
        assert_eq!(displaced(&mut table, TWO, later), Some(1));
        place(&mut table, TWO, later);
        // Whoever has used up the share takes of its own.
        table.held.push(Held {
            key: 99,
            source: ONE,
            since: now,
            stage: Stage::Greeting,
            activity: Arc::new(Activity::new(now)),
            told: false,
            displaced: Arc::default(),
        });
        assert_eq!(displaced(&mut table, ONE, later), Some(2));
        assert!(table.held(other).is_some());
    }

    /// Messages that are complete, of which there are not many, keep a place, single bytes do not.
    #[test]
    fn who_makes_progress_stays() {
        let (mut table, begin) = (Table::new(4), Instant::now());
        let users = [1, 2, 3, 4].map(Source::User);
        let [speaks, drips, asks, set_up] = users.map(|user| place(&mut table, user, begin));
        table.held(asks.0).expect("held").stage = Stage::Asking;
        table.held(set_up.0).expect("held").stage = Stage::Setup;
        let mut now = begin;
        while now < begin + SLOWNESS - SILENCE {
            now += SILENCE / 2;
            speaks.1.received(now);
            drips.1.received(now);
            set_up.1.received(now);
            assert_eq!(displaced(&mut table, Source::Unknown, now), None);
        }
        while now < begin + SLOWNESS {
            now += SILENCE / 2;
            speaks.1.received(now);
            drips.1.received(now);
            set_up.1.received(now);
        }
        speaks.1.completed(now);
        assert_eq!(displaced(&mut table, Source::Unknown, now), Some(drips.0));
        place(&mut table, Source::User(5), now);
        assert_eq!(displaced(&mut table, Source::Unknown, now), Some(set_up.0));
        place(&mut table, Source::User(6), now);
        assert_eq!(displaced(&mut table, Source::Unknown, now), None);
        let all = [speaks.0, asks.0];
        assert!(all.into_iter().all(|key| table.held(key).is_some()));
        // In the end all but the one that waits for the program.
        now += SLOWNESS;
        assert_eq!(displaced(&mut table, Source::Unknown, now), Some(speaks.0));
        place(&mut table, Source::User(7), now);
        assert_eq!(displaced(&mut table, Source::Unknown, now), Some(5));
    }

    /// Others come behind it in the system's queue.
    #[test]
    fn a_source_that_is_stuck_is_not_waited_for() {
        let (mut table, begin) = (Table::new(4), Instant::now());
        let own = [(); 3].map(|()| place(&mut table, ONE, begin));
        for (key, _) in &own {
            table.held(*key).expect("held").stage = Stage::Setup;
        }
        let mut now = begin;
        while now < begin + STUCK {
            own.iter().for_each(|(_, activity)| activity.completed(now));
            assert!(matches!(table.enter(ONE, now), Entered::Full(Some(_))));
            now += SILENCE;
        }
        assert!(matches!(table.enter(ONE, now), Entered::Stuck));
        table.held(own[1].0).expect("held").stage = Stage::Asking;
        assert!(matches!(table.enter(ONE, now), Entered::Full(_)));
        place(&mut table, TWO, now);
        assert!(matches!(table.enter(TWO, now), Entered::Full(_)));
    }

    #[test]
    fn who_is_silent_can_be_sent_away_altogether() {
        let (mut table, begin) = (Table::new(8), Instant::now());
        let silent = [ONE, TWO].map(|source| place(&mut table, source, begin).0);
        let now = begin + SILENCE;
        let (speaks, activity) = place(&mut table, ONE, begin);
        activity.received(now);
        let (late, _) = place(&mut table, ONE, now);
        table.clear(now);
        assert!(silent.into_iter().all(|key| table.gives_way(key, now)));
        assert!(!table.gives_way(speaks, now) && !table.gives_way(late, now));
    }

    /// One that was told and hears its peer in that moment keeps its place.
    #[test]
    fn the_last_word_counts() {
        let (mut table, begin) = (Table::new(1), Instant::now());
        let (key, activity) = place(&mut table, ONE, begin);
        let now = begin + SILENCE;
        assert!(matches!(table.enter(TWO, now), Entered::Full(None)));
        activity.received(now);
        assert!(!table.gives_way(key, now));
        let Entered::Full(Some(until)) = table.enter(TWO, now) else {
            panic!("it stays");
        };
        assert_eq!(until, now + SILENCE);
    }
}
