//! The receiving half of all of a worker's connections.
//!
//! A pass polls each completion queue. A set sleeps as `driver::verbs::completion` says: events taken, queue empty, armed, polled once
//! more; what that last poll finds is kept for the next pass.
//!
//! # Safety
//! A receive that has completed belongs to this side until it is posted again, which is done after its message was delivered.
#![allow(unsafe_code)]

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry as HashEntry},
    fmt, io,
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use mio::{Interest, unix::SourceFd};
use slab::Slab;

use super::{
    connection::{Connection, Ended, MARK},
    connector::Established,
    device::OpenDevice,
    link::RcLink,
    options::NAME,
    queues::{BATCH, EARLY, Queues, receive_of},
    rail::Rail,
    room::Room,
    wire::{Drained, FRAME, Header, Kind},
};
use crate::{
    driver::verbs::{Completion, Status},
    error::{Error, ErrorKind, Result},
    sys::{fd_passing, timerfd::TimerFd},
    trace,
    transport::{Connected, Interface, Link, Registry, Sink},
    types::LinkId,
};

/// Completions taken with one call.
const TAKEN: usize = 16;

/// What a token stands for: in its upper bits.
const CONTROL: usize = 0;
const CHANNEL: usize = 1;
const DEVICE: usize = 2;
const CLOCK: usize = 3;
const BELL: usize = 4;
const SHIFT: u32 = 32;

/// How long both ends may take until what a failed rail had carried goes over the next.
const SWITCH: Duration = Duration::from_secs(10);
/// Passes in which what came before a connection's end is looked for: more than a completion queue has entries. What comes later, for others,
/// does not keep its end from being told.
const LAST_PASSES: u32 = 1 << 14;

/// The interface.
pub(super) struct RcInterface {
    /// Keeps what connections are made in for as long as the worker.
    room: Arc<Room>,
    sets: Vec<QueueSet>,
    /// Sets of queues that there ever were.
    made: usize,
    /// A set that has failed has no connection any more.
    useless: bool,
    devices: Vec<Watched>,
    connections: Slab<Entry>,
    keys: HashMap<LinkId, usize>,
    /// Keys of connections whose socket has something, or that are over. May hold some that are gone.
    busy: Vec<usize>,
    ending: usize,
    /// Keys of connections that devices may have told of before they were attached.
    fresh: Vec<usize>,
    ended: Vec<Ended>,
    /// What was brought to those.
    brought: Vec<u8>,
    /// Rails of lost devices, of which nothing more comes.
    abandoned: Vec<(usize, usize)>,
    /// The set that is served first.
    turn: usize,
    /// Connections that change rails, and since when.
    switching: Vec<(usize, LinkId, Instant)>,
    /// Tells when one of them takes too long. Made for the first.
    clock: Option<TimerFd>,
    rang: bool,
    registry: Option<Registry>,
}

impl fmt::Debug for RcInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcInterface")
            .field("sets", &self.sets.len())
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// A set of queues that connections use.
struct QueueSet {
    queues: Arc<Queues>,
    /// What its channel is registered under.
    token: usize,
    /// The channel has events.
    told: bool,
    /// The next completion makes an event.
    armed: bool,
    /// Something has completed since, so that the event may be there already.
    fired: bool,
    failed: bool,
    /// Completions that were taken and not served.
    found: [Completion; TAKEN],
    at: usize,
    count: usize,
    /// Completions of connections that are not attached yet, and those to be served before `found`.
    early: Vec<Completion>,
    due: VecDeque<Completion>,
    /// Receives to be posted.
    free: Vec<u32>,
    /// Connections by the number of their queue pair, with the rail.
    by_number: HashMap<u32, (usize, usize)>,
    /// The last one that was looked up.
    last: Option<(u32, (usize, usize))>,
}

struct Watched {
    device: Arc<OpenDevice>,
    told: bool,
    /// Events that were looked at.
    news: u64,
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    connection: Arc<Connection>,
    readable: bool,
    /// What has been read of a frame.
    partial: [u8; FRAME],
    have: usize,
    /// Why it is over, once what had arrived before is delivered.
    end: Option<Error>,
    /// Passes that may still find some of that.
    passes: u32,
}

impl QueueSet {
    fn new(queues: Arc<Queues>, token: usize) -> Self {
        Self {
            queues,
            token,
            told: false,
            armed: false,
            fired: false,
            failed: false,
            found: [Completion::default(); TAKEN],
            at: 0,
            count: 0,
            early: Vec::new(),
            due: VecDeque::new(),
            free: Vec::with_capacity(BATCH),
            by_number: HashMap::new(),
            last: None,
        }
    }

    /// Takes completions. Whether there are some to be served.
    #[inline]
    fn fill(&mut self, most: usize) -> Result<bool> {
        if self.at < self.count {
            return Ok(true);
        }
        (self.at, self.count) = (0, 0);
        while self.count < TAKEN
            && let Some(completion) = self.due.pop_front()
        {
            self.found[self.count] = completion;
            self.count += 1;
        }
        if self.count > 0 || self.failed {
            return Ok(self.count > 0);
        }
        let most = most.clamp(1, TAKEN);
        self.count = self.queues.completions.poll(&mut self.found[..most])?;
        self.fired |= self.count > 0;
        Ok(self.count > 0)
    }

    /// A connection is attached: what has come for it is served next.
    fn attached(&mut self, number: u32) -> Result<()> {
        self.last = None;
        let (due, early): (Vec<_>, _) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|completion| completion.queue_pair() == number);
        self.early = early;
        if !due.is_empty() {
            // In the order in which they came.
            let later = self.unserved();
            self.due.extend(due);
            self.due.extend(later);
        }
        self.sweep()
    }

    /// Throws away what came for connections that were given up before they were attached.
    #[cold]
    fn sweep(&mut self) -> Result<()> {
        let (early, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|completion: &Completion| self.queues.expects(completion.queue_pair()));
        self.early = early;
        lost.iter()
            .filter_map(receive_of)
            .try_for_each(|index| self.freed(index))
    }

    /// Keeps what came for a connection that is not attached. `false`: the peer sends more than it may, and the connection will miss this.
    #[cold]
    fn keep(&mut self, completion: &Completion) -> bool {
        let number = completion.queue_pair();
        let same = |early: &&Completion| early.queue_pair() == number;
        let room = self.early.iter().filter(same).count() < EARLY;
        if room {
            self.early.push(*completion);
        }
        room
    }

    #[inline]
    fn find(&mut self, number: u32) -> Option<(usize, usize)> {
        if let Some((last, place)) = self.last
            && last == number
        {
            return Some(place);
        }
        let place = *self.by_number.get(&number)?;
        self.last = Some((number, place));
        Some(place)
    }

    /// Whether nothing comes of it, and nobody waits for that either.
    fn is_useless(&self) -> bool {
        (self.failed || self.queues.device.is_lost()) && self.by_number.is_empty()
    }

    /// Takes out what was polled and not served, in the order in which it came.
    fn unserved(&mut self) -> VecDeque<Completion> {
        let found = self.found[self.at..self.count].iter().copied();
        let all = found.chain(self.due.drain(..)).collect();
        (self.at, self.count) = (0, 0);
        all
    }

    /// Takes all completions that are there. Those of a queue pair that is over free their receives: another may get its number. The others are
    /// served later.
    #[cold]
    fn take_all(&mut self, over: u32) -> Result<()> {
        let mut all = self.unserved();
        let mut some = [Completion::default(); TAKEN];
        let polled = loop {
            match self.queues.completions.poll(&mut some) {
                Ok(0) => break Ok(()),
                Ok(count) => all.extend(&some[..count]),
                Err(error) => break Err(error),
            }
            self.fired = true;
        };
        let (gone, due): (VecDeque<_>, _) = all
            .into_iter()
            .partition(|completion| completion.queue_pair() == over);
        self.due = due;
        polled?;
        gone.iter()
            .filter_map(receive_of)
            .try_for_each(|index| self.freed(index))
    }

    /// A receive is free again.
    #[inline]
    fn freed(&mut self, index: u32) -> Result<()> {
        self.free.push(index);
        if self.free.len() >= BATCH {
            return self.post();
        }
        Ok(())
    }

    /// Posts the receives that are free.
    fn post(&mut self) -> Result<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        // SAFETY: each was taken from a completion, and its message delivered.
        let posted = unsafe { self.queues.post(&self.free) };
        self.free.clear();
        posted
    }

    /// Takes the channel's event: there is one for each arming, and to ask for another would be a system call.
    fn drain(&mut self) -> Result<()> {
        if std::mem::take(&mut self.told) && self.queues.channel.take()?.is_some() {
            self.armed = false;
        }
        Ok(())
    }
}

impl Entry {
    /// Tells of a message that has come. `Err`: the connection is over, without a reason where the worker knows.
    #[inline]
    fn deliver(&self, rail: usize, bytes: &[u8], sink: &mut dyn Sink) -> Result<(), Option<Error>> {
        let Some((head, body)) = Header::decode(bytes) else {
            return Err(Some(broken("what came is no message")));
        };
        let Some(news) = self.connection.arrived(rail, &head)? else {
            return Ok(());
        };
        if news.writable {
            sink.writable(self.id);
        }
        if head.kind == Kind::Message && sink.message(self.id, head.id, head.header, body).is_err()
        {
            return Err(None);
        }
        if news.owes {
            self.connection.give_credits();
        }
        Ok(())
    }
}

impl RcInterface {
    /// Without connections.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            room,
            sets: Vec::new(),
            made: 0,
            useless: false,
            devices: Vec::new(),
            connections: Slab::new(),
            keys: HashMap::new(),
            busy: Vec::new(),
            ending: 0,
            fresh: Vec::new(),
            ended: Vec::new(),
            brought: Vec::new(),
            abandoned: Vec::new(),
            turn: 0,
            switching: Vec::new(),
            clock: None,
            rang: false,
            registry: None,
        }
    }

    /// Watches a set of queues, and its device. The set's place.
    fn watch(&mut self, queues: &Arc<Queues>) -> Result<usize> {
        let same = |set: &QueueSet| Arc::ptr_eq(&set.queues, queues);
        if queues.has_failed() {
            return Err(Error::new(
                ErrorKind::DeviceLost,
                format!("{}: the queues have failed", queues.device.name()),
            ));
        }
        if let Some(place) = self.sets.iter().position(same) {
            return Ok(place);
        }
        let device = &queues.device;
        if !self
            .devices
            .iter()
            .any(|one| Arc::ptr_eq(&one.device, device))
        {
            if let Some(registry) = &self.registry {
                register(registry, device.events_fd(), DEVICE, self.devices.len())?;
            }
            device.rings(self.room.retired.bell());
            self.devices.push(Watched {
                device: Arc::clone(device),
                told: true,
                news: 0,
            });
        }
        if let Some(registry) = &self.registry {
            register(registry, queues.channel.as_raw_fd(), CHANNEL, self.made)?;
        }
        self.sets.push(QueueSet::new(Arc::clone(queues), self.made));
        self.made += 1;
        Ok(self.sets.len() - 1)
    }

    /// Serves what one set has. Returns how many things happened.
    #[inline]
    fn serve(&mut self, place: usize, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        while happened < budget {
            let set = &mut self.sets[place];
            let more = set.drain().and_then(|()| set.fill(budget - happened));
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let failed = self.queues_failed_alone(place, &error);
                    return happened + usize::from(failed);
                }
            }
            while happened < budget {
                let set = &mut self.sets[place];
                let Some(completion) = set.found[..set.count].get(set.at).copied() else {
                    break;
                };
                set.at += 1;
                happened += 1;
                match receive_of(&completion) {
                    Some(index) => self.received(place, index, &completion, sink),
                    None => self.sent(place, &completion, sink),
                }
            }
            let set = &self.sets[place];
            if set.at == set.count && set.count < TAKEN {
                // It was empty a moment ago.
                break;
            }
        }
        // Less than a batch of free receives is left for later passes: so many are promised to no peer.
        let set = &mut self.sets[place];
        if !set.early.is_empty()
            && let Err(error) = set.sweep()
        {
            self.queues_failed(place, &error);
        }
        happened
    }

    /// A receive has completed.
    #[inline]
    fn received(&mut self, place: usize, index: u32, completion: &Completion, sink: &mut dyn Sink) {
        let set = &mut self.sets[place];
        let found = set.find(completion.queue_pair());
        if found.is_none() && set.queues.expects(completion.queue_pair()) && set.keep(completion) {
            return;
        }
        // A connection that is gone: what came is thrown away.
        if let Some((key, rail)) = found
            && let Some(entry) = self.connections.get(key)
        {
            if entry
                .connection
                .rails
                .get(rail)
                .is_some_and(|rail| rail.data)
            {
                let text = "a message came over a rail for one-sided operations";
                self.over(key, broken(text));
            } else if completion.is_success() {
                // SAFETY: completed, and posted again below.
                let bytes = unsafe { set.queues.received(index, completion.bytes()) };
                match entry.deliver(rail, bytes, sink) {
                    Ok(()) => {}
                    Err(Some(error)) => self.over(key, error),
                    // The worker knows.
                    Err(None) => drop(self.remove(key)),
                }
            } else {
                self.broke(key, rail, completion);
            }
        }
        if let Err(error) = self.sets[place].freed(index) {
            self.queues_failed(place, &error);
        }
    }

    /// A send has completed, and with it all before it.
    #[inline]
    fn sent(&mut self, place: usize, completion: &Completion, sink: &mut dyn Sink) {
        let Some((key, rail)) = self.sets[place].find(completion.queue_pair()) else {
            return;
        };
        if completion.id() == MARK {
            self.drained(key, rail, sink);
            return;
        }
        if !completion.is_success() {
            if self.is_data(key, rail) {
                return self.data_rail_failed(key, rail, completion, sink);
            }
            if let Some(entry) = self.connections.get(key)
                && completion.status() != Status::WR_FLUSH_ERR
                && let Some(token) = entry.connection.token_of(rail, completion.id())
                && let Some(error) = completion.error()
            {
                // What came behind it ends with the connection.
                sink.refused(entry.id, token, entry.connection.named(error));
            }
            self.broke(key, rail, completion);
            return;
        }
        let Some(entry) = self.connections.get(key) else {
            return;
        };
        let news =
            entry
                .connection
                .completed(rail, completion.id(), &mut self.ended, &mut self.brought);
        for Ended { token, fetched } in self.ended.drain(..) {
            match fetched {
                Some(range) => sink.fetched(entry.id, token, &self.brought[range]),
                None => sink.sent(entry.id, token),
            }
        }
        self.brought.clear();
        if news.writable {
            sink.writable(entry.id);
        }
        if news.owes {
            entry.connection.give_credits();
        }
    }

    fn is_data(&self, key: usize, rail: usize) -> bool {
        let entry = self.connections.get(key);
        let rail = entry.and_then(|entry| entry.connection.rails.get(rail));
        rail.is_some_and(|rail| rail.data)
    }

    /// A request of a rail for one-sided operations has failed, and the rail with it. Messages go on.
    #[cold]
    fn data_rail_failed(
        &self,
        key: usize,
        rail: usize,
        completion: &Completion,
        sink: &mut dyn Sink,
    ) {
        let (Some(entry), Some(error)) = (self.connections.get(key), completion.error()) else {
            return;
        };
        if completion.status() != Status::WR_FLUSH_ERR {
            trace::slower!(format!("a one-sided rail: {:?}", error.kind()), target: "wharf::verbs", transport = NAME, %error, remedy = RAIL, "a rail for one-sided operations has failed: what went over it goes in messages");
        }
        for token in entry.connection.rail_failed(rail, completion.id()) {
            let error = entry.connection.named(error.clone());
            sink.refused(entry.id, token, error);
        }
        sink.writable(entry.id);
    }

    /// A request has failed, and with it the rail.
    #[cold]
    fn broke(&mut self, key: usize, rail: usize, completion: &Completion) {
        let Some(entry) = self.connections.get(key) else {
            return;
        };
        let index = rail;
        let Some(rail) = entry.connection.rails.get(index) else {
            return;
        };
        let told = rail
            .reservation
            .queues
            .device
            .told(rail.queue_pair.number());
        let error = match (completion.error(), told) {
            (Some(error), Some(kind)) if completion.status() == Status::WR_FLUSH_ERR => {
                Error::new(error.kind(), format!("{error} ({kind})")).with_source(error)
            }
            (Some(error), _) => error,
            (None, _) => return,
        };
        let text = format!("{}: {error}", rail.queue_pair.device());
        let kind = match error.kind() {
            // What this side cannot have done: the other end, or the way to it.
            ErrorKind::Truncated | ErrorKind::AccessDenied => ErrorKind::Protocol,
            kind => kind,
        };
        let error = Error::new(kind, text).with_source(error);
        if !self.rail_failed(key, index, &error) {
            self.over(key, error);
        }
    }

    /// A completion queue has failed. `false`: so has its device, as nobody may have heard yet; then its connections go on over others.
    #[cold]
    fn queues_failed_alone(&mut self, place: usize, error: &Error) -> bool {
        let device = &self.sets[place].queues.device;
        device.take_events();
        let alone = !device.is_lost();
        if alone {
            self.queues_failed(place, error);
        }
        alone
    }

    /// A completion queue has failed, or a receive could not be posted: all of its connections are over.
    #[cold]
    fn queues_failed(&mut self, place: usize, error: &Error) {
        let set = &mut self.sets[place];
        if std::mem::replace(&mut set.failed, true) {
            return;
        }
        set.queues.fail();
        self.useless |= set.is_useless();
        let mut keys: Vec<usize> = set
            .by_number
            .values()
            .filter(|(key, rail)| {
                let entry = self.connections.get(*key);
                !entry.is_some_and(|entry| entry.connection.is_past(*rail))
            })
            .map(|(key, _)| *key)
            .collect();
        keys.dedup();
        for key in keys {
            self.over(key, Error::new(error.kind(), error.to_string()));
        }
    }

    /// A connection is over. It is told when what had arrived before is delivered.
    #[cold]
    fn over(&mut self, key: usize, error: Error) {
        // Of this device nothing else is told to who asks for a peer.
        let error = match error.kind() {
            ErrorKind::DeviceLost => error.of_kind(ErrorKind::Unreachable),
            _ => error,
        };
        if let Some(entry) = self.connections.get_mut(key)
            && entry.end.is_none()
        {
            entry.connection.end();
            entry.end = Some(error);
            self.ending += 1;
            self.busy.push(key);
        }
    }

    /// Reads what the control socket has.
    fn read_control(&mut self, key: usize, sink: &mut dyn Sink) -> usize {
        loop {
            let Some(entry) = self.connections.get_mut(key) else {
                return 0;
            };
            let socket = entry.connection.control().as_fd();
            let error = match fd_passing::recv(socket, &mut entry.partial[entry.have..]) {
                Ok((0, _)) => entry
                    .connection
                    .refused()
                    .unwrap_or_else(|| reset("the connection ended without a goodbye")),
                Ok((_, fds)) if !fds.is_empty() => {
                    fd_passing::close_elsewhere(fds);
                    broken(DESCRIPTORS)
                }
                Ok((count, _)) => {
                    entry.have += count;
                    if entry.have < FRAME {
                        continue;
                    }
                    entry.have = 0;
                    match Drained::decode(&entry.partial) {
                        Some(frame) => match self.peer_drained(key, frame, sink) {
                            Ok(()) => continue,
                            Err(error) => error,
                        },
                        None => broken("what came on the control socket is no frame"),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    entry.readable = false;
                    return 0;
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    broken(DESCRIPTORS).with_source(error)
                }
                Err(error) => reset("the control socket broke").with_source(error),
            };
            self.over(key, error);
            return 1;
        }
    }

    /// The peer has given a rail up, and says what it waits for.
    #[cold]
    fn peer_drained(&mut self, key: usize, frame: Drained, sink: &mut dyn Sink) -> Result<()> {
        let Some(entry) = self.connections.get(key) else {
            return Ok(());
        };
        let rail = usize::from(frame.rail);
        if entry.connection.is_alive(rail) {
            let of = entry.connection.rails.get(rail);
            let lost = of.is_some_and(|rail| rail.reservation.queues.device.is_lost());
            if !entry.connection.fail_rail(rail, lost) {
                return Err(reset("the peer has lost a rail, and there is no other"));
            }
            if lost {
                self.abandoned.push((key, rail));
            }
        }
        entry.connection.peer_drained(rail, frame.expected)?;
        if entry.connection.resume().writable {
            sink.writable(entry.id);
        }
        self.watch_switch(key)
    }

    /// Nothing more comes of a rail that failed: the peer is told what is waited for.
    #[cold]
    fn drained(&mut self, key: usize, rail: usize, sink: &mut dyn Sink) {
        let Some(entry) = self.connections.get(key) else {
            return;
        };
        let Some(expected) = entry.connection.drained(rail) else {
            return;
        };
        let frame = Drained {
            rail: rail as u8,
            expected,
        };
        // A few frames in all: they have room.
        match fd_passing::send(entry.connection.control().as_fd(), &frame.encode(), &[]) {
            Ok(FRAME) => {
                if entry.connection.resume().writable {
                    sink.writable(entry.id);
                }
            }
            _ => self.over(key, reset("the control socket broke")),
        }
    }

    /// Gives a rail up. `false`: the connection cannot go on without it.
    #[cold]
    fn rail_failed(&mut self, key: usize, rail: usize, error: &Error) -> bool {
        let Some(entry) = self.connections.get(key) else {
            return true;
        };
        let lost = error.kind() == ErrorKind::DeviceLost;
        if !entry.connection.is_alive(rail) {
            // The rest of it. A device that is lost meanwhile does not bring the mark.
            if lost && entry.connection.lose_rail(rail) {
                self.abandoned.push((key, rail));
            }
            return true;
        }
        if !entry.connection.fail_rail(rail, lost) {
            return false;
        }
        trace::slower!(format!("a rail: {:?}", error.kind()), target: "wharf::verbs", %error, remedy = RAIL, "a rail has failed; messages go over another");
        if lost {
            self.abandoned.push((key, rail));
        }
        if let Err(error) = self.watch_switch(key) {
            self.over(key, error);
        }
        true
    }

    /// A connection changes rails: sees to it that this ends.
    #[cold]
    fn watch_switch(&mut self, key: usize) -> Result<()> {
        let Some(entry) = self.connections.get(key) else {
            return Ok(());
        };
        let id = entry.id;
        if !entry.connection.is_switching() {
            return Ok(());
        }
        // An earlier one has ended, or this is the one that the peer has answered now, which it does once.
        self.switching.retain(|(_, of, _)| *of != id);
        let failed = |error: io::Error| Error::io("a timer for a rail that failed", error);
        if self.clock.is_none() {
            let clock = TimerFd::new().map_err(failed)?;
            if let Some(registry) = &self.registry {
                register(registry, clock.as_raw_fd(), CLOCK, 0)?;
            }
            self.clock = Some(clock);
        }
        if self.switching.is_empty()
            && let Some(clock) = &mut self.clock
        {
            clock.start(SWITCH).map_err(failed)?;
        }
        self.switching.push((key, id, Instant::now()));
        Ok(())
    }

    /// For tests: the time for a change of rails is over.
    #[cfg(test)]
    pub(super) fn switches_are_late(&mut self) {
        for (_, _, since) in &mut self.switching {
            *since = since.checked_sub(SWITCH).expect("an uptime of seconds");
        }
        self.rang = true;
    }

    /// Ends connections that have changed rails for too long.
    #[cold]
    fn look_at_switches(&mut self) {
        let mut late = Vec::new();
        let connections = &self.connections;
        self.switching.retain(|(key, id, since)| {
            let entry = connections.get(*key).filter(|entry| entry.id == *id);
            let goes_on =
                entry.is_some_and(|entry| entry.end.is_none() && entry.connection.is_switching());
            let over = since.elapsed() >= SWITCH;
            if goes_on && over {
                late.push(*key);
            }
            goes_on && !over
        });
        for key in late {
            let text = format!(
                "a rail has failed, and after {} s the ends have not agreed on what it had carried",
                SWITCH.as_secs()
            );
            self.over(key, Error::new(ErrorKind::ConnectionReset, text));
        }
        if let Some((_, _, since)) = self.switching.first()
            && let Some(clock) = &mut self.clock
        {
            let left = SWITCH.saturating_sub(since.elapsed());
            if let Err(error) = clock.start(left) {
                tracing::error!(target: "wharf::verbs", %error, "a timer for rails that failed");
            }
        }
    }

    /// Whether the set of one rail of a connection, or of any, has something.
    fn has_left(&mut self, key: usize, only: Option<usize>) -> bool {
        let Some(entry) = self.connections.get(key) else {
            return false;
        };
        let mut rails = entry.connection.rails.iter().enumerate();
        rails.any(|(index, rail)| {
            if only.is_some_and(|only| only != index) {
                return false;
            }
            let queues = &rail.reservation.queues;
            let same = |set: &&mut QueueSet| Arc::ptr_eq(&set.queues, queues);
            let set = self.sets.iter_mut().find(same);
            set.is_some_and(|set| set.fill(TAKEN).unwrap_or(false))
        })
    }

    /// Looks what the devices told.
    fn look_at_devices(&mut self) {
        if !self.fresh.is_empty() {
            self.look_at_fresh();
        }
        for place in 0..self.devices.len() {
            let watched = &mut self.devices[place];
            if std::mem::take(&mut watched.told) {
                watched.device.take_events();
            }
            let news = watched.device.news();
            if std::mem::replace(&mut watched.news, news) != news {
                self.look_for_failed(place);
            }
        }
    }

    #[cold]
    fn look_for_failed(&mut self, place: usize) {
        let device = Arc::clone(&self.devices[place].device);
        for place in 0..self.sets.len() {
            let set = &self.sets[place];
            if Arc::ptr_eq(&set.queues.device, &device) && set.queues.has_failed() {
                let text = format!("{}: a queue has failed", device.name());
                self.queues_failed(place, &Error::new(ErrorKind::DeviceLost, text));
            }
        }
        self.useless |= self.sets.iter().any(QueueSet::is_useless);
        let mut over = Vec::new();
        for (key, entry) in &self.connections {
            let rails = entry.connection.rails.iter().enumerate();
            over.extend(rails.filter_map(|(index, rail)| {
                let same = Arc::ptr_eq(&rail.reservation.queues.device, &device);
                let error = same.then(|| failure(&entry.connection, index)).flatten()?;
                Some((key, index, error))
            }));
        }
        self.rails_failed(over);
    }

    /// Looks what the devices told of connections before they were attached.
    #[cold]
    fn look_at_fresh(&mut self) {
        let mut over = Vec::new();
        for key in std::mem::take(&mut self.fresh) {
            let Some(entry) = self.connections.get(key) else {
                continue;
            };
            let all = 0..entry.connection.rails.len();
            over.extend(
                all.filter_map(|index| Some((key, index, failure(&entry.connection, index)?))),
            );
        }
        self.rails_failed(over);
    }

    fn rails_failed(&mut self, failed: Vec<(usize, usize, Error)>) {
        for (key, rail, error) in failed {
            // Memory of others is free again only when such a queue pair is gone.
            if self.is_data(key, rail) || !self.rail_failed(key, rail, &error) {
                self.over(key, error);
            }
        }
    }

    /// Serves the control sockets, and reports connections that are over and of which nothing is left.
    #[cold]
    fn serve_busy(&mut self, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        for key in std::mem::take(&mut self.busy) {
            let Some(entry) = self.connections.get(key) else {
                continue;
            };
            if entry.connection.dropped() {
                self.remove(key);
                continue;
            }
            if entry.end.is_none() {
                // When it ends here, the next pass looks for what is left.
                happened += self.read_control(key, sink);
                continue;
            }
            happened += 1;
            let passes = entry.passes;
            if passes > 0 && self.has_left(key, None) {
                if let Some(entry) = self.connections.get_mut(key) {
                    entry.passes = passes - 1;
                }
                self.busy.push(key);
            } else if let Some(entry) = self.remove(key)
                && let Some(error) = entry.end
            {
                sink.failed(entry.id, entry.connection.named(error));
            }
        }
        happened
    }

    /// Nothing is found by the numbers of a connection's queue pairs any more.
    fn forget_numbers(&mut self, key: usize, connection: &Connection) {
        for rail in &connection.rails {
            let queues = &rail.reservation.queues;
            let same = |set: &&mut QueueSet| Arc::ptr_eq(&set.queues, queues);
            // Of one that has no set there is no number.
            if let Some(set) = self.sets.iter_mut().find(same)
                && let HashEntry::Occupied(number) = set.by_number.entry(rail.queue_pair.number())
                && number.get().0 == key
            {
                number.remove();
                set.last = None;
                self.useless |= set.is_useless();
            }
        }
    }

    /// Lets go of sets that have failed and have no connection any more, and of their memory.
    #[cold]
    fn let_go(&mut self) {
        self.useless = false;
        let mut over = Vec::new();
        for set in self.sets.extract_if(.., |set| set.is_useless()) {
            if let Some(registry) = &self.registry {
                registry.deregister(&mut SourceFd(&set.queues.channel.as_raw_fd()));
            }
            set.queues.fail();
            over.push(set.queues);
        }
        self.turn = 0;
        self.room.let_go(over);
    }

    /// Nothing more comes of a connection's rails, and what has is polled before they are destroyed: providers (libmlx5) throw away what is there of a
    /// queue pair that is destroyed, and nobody would learn which receives those were. Rails for one-sided operations among them: the peer may send over
    /// those as well, though it should not.
    #[cold]
    fn take_what_came(&mut self, connection: &Connection) {
        for rail in &connection.rails {
            self.take_what_came_over(rail);
        }
    }

    #[cold]
    fn take_what_came_over(&mut self, rail: &Rail) {
        // One of a device that is gone has nothing.
        if rail.to_error().is_err() {
            return;
        }
        let queues = &rail.reservation.queues;
        let same = |set: &QueueSet| !set.failed && Arc::ptr_eq(&set.queues, queues);
        if let Some(place) = self.sets.iter().position(same)
            && let Err(error) = self.sets[place].take_all(rail.queue_pair.number())
        {
            self.queues_failed(place, &error);
        }
    }

    /// Ends rails that no connection was attached with.
    #[cold]
    fn end_retired(&mut self) {
        let rails = self.room.retired.take();
        if rails.is_empty() {
            return;
        }
        for rail in &rails {
            // Perhaps nobody has polled these queues yet. Those that have failed bring nothing.
            let Ok(place) = self.watch(&rail.reservation.queues) else {
                continue;
            };
            self.take_what_came_over(rail);
            rail.reservation.settle();
            // What was polled before.
            if let Err(error) = self.sets[place].sweep() {
                self.queues_failed(place, &error);
            }
        }
        self.room.devices.reaper.drop_later(rails);
    }

    /// Takes a connection out.
    fn remove(&mut self, key: usize) -> Option<Entry> {
        let entry = self.connections.try_remove(key)?;
        self.keys.remove(&entry.id);
        self.ending -= usize::from(entry.end.is_some());
        self.forget_numbers(key, &entry.connection);
        if let Some(registry) = &self.registry {
            registry.deregister(&mut SourceFd(&entry.connection.fd()));
        }
        entry.connection.hang_up();
        self.take_what_came(&entry.connection);
        Some(entry)
    }
}

/// Why a rail is to be given up, by what its device has told of it. One for one-sided operations ends by itself, if it can.
#[cold]
fn failure(connection: &Connection, index: usize) -> Option<Error> {
    let rail = connection.rails.get(index)?;
    let device = &rail.reservation.queues.device;
    if rail.data && !(device.is_lost() && connection.is_busy(index)) {
        if device.is_lost() || device.told(rail.queue_pair.number()).is_some() {
            // What is under way there is told by its completion.
            rail.end();
        } else if device.is_down(rail.port) && rail.is_live() {
            rail.end();
            // Nothing might ever be told of what is under way: it ends now.
            return rail.to_error().err();
        }
        return None;
    }
    if device.is_lost() {
        let text = format!("{} has failed or was removed", device.name());
        return Some(Error::new(ErrorKind::DeviceLost, text));
    }
    if device.is_down(rail.port) {
        let text = format!("{}: port {} is down", device.name(), rail.port);
        return Some(Error::new(ErrorKind::Unreachable, text));
    }
    let kind = device.told(rail.queue_pair.number())?;
    let number = rail.queue_pair.number();
    let text = format!("{}: queue pair {number:#x}: {kind}", device.name());
    Some(Error::new(ErrorKind::ConnectionReset, text))
}

/// What mends that a rail has failed: new connections have all of them.
const RAIL: &str =
    "look after the device and its network; connections that are made anew have all rails";

/// What a peer on this host does that passes some.
const DESCRIPTORS: &str = "file descriptors came on the control socket, where none belong";

fn broken(what: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

fn reset(what: &'static str) -> Error {
    Error::new(ErrorKind::ConnectionReset, what)
}

fn register(registry: &Registry, fd: RawFd, kind: usize, index: usize) -> Result<()> {
    registry.register(
        &mut SourceFd(&fd),
        kind << SHIFT | index,
        Interest::READABLE,
    )
}

impl Interface for RcInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let established = connected.of::<Established>(NAME)?;
        if self.keys.contains_key(&id) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a link is attached under this id already",
            ));
        }
        let Established(connection) = *established;
        let mut places = Vec::with_capacity(connection.rails.len());
        for rail in &connection.rails {
            places.push(self.watch(&rail.reservation.queues)?);
        }
        let key = self.connections.vacant_key();
        if let Some(registry) = &self.registry {
            register(registry, connection.fd(), CONTROL, key)?;
        }
        for (index, (rail, place)) in connection.rails.iter().zip(places).enumerate() {
            let set = &mut self.sets[place];
            set.by_number.insert(rail.queue_pair.number(), (key, index));
            if let Err(error) = set.attached(rail.queue_pair.number()) {
                // The key is the next one's.
                self.forget_numbers(key, &connection);
                return Err(error);
            }
        }
        for rail in &connection.rails {
            rail.reservation.settle();
        }
        self.connections.insert(Entry {
            id,
            connection: Arc::clone(&connection),
            readable: true,
            partial: [0; FRAME],
            have: 0,
            end: None,
            passes: LAST_PASSES,
        });
        self.keys.insert(id, key);
        self.busy.push(key);
        // What was told while it was being made, and looked at for others, concerns it as well.
        self.fresh.push(key);
        Ok(Box::new(RcLink::new(connection)))
    }

    fn detach(&mut self, id: LinkId) {
        if let Some(&key) = self.keys.get(&id) {
            self.remove(key);
            if self.useless {
                self.let_go();
            }
        }
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        for (index, watched) in self.devices.iter().enumerate() {
            register(&registry, watched.device.events_fd(), DEVICE, index)?;
        }
        for set in &self.sets {
            let fd = set.queues.channel.as_raw_fd();
            register(&registry, fd, CHANNEL, set.token)?;
        }
        for (key, entry) in &self.connections {
            register(&registry, entry.connection.fd(), CONTROL, key)?;
        }
        if let Some(clock) = &self.clock {
            register(&registry, clock.as_raw_fd(), CLOCK, 0)?;
        }
        register(&registry, self.room.retired.bell().as_raw_fd(), BELL, 0)?;
        self.registry = Some(registry);
        Ok(())
    }

    fn ready(&mut self, token: usize, readable: bool, _writable: bool) {
        let index = token & ((1 << SHIFT) - 1);
        match token >> SHIFT {
            CHANNEL => {
                let mut sets = self.sets.iter_mut();
                if let Some(set) = sets.find(|set| set.token == index) {
                    set.told = true;
                }
            }
            DEVICE => {
                if let Some(watched) = self.devices.get_mut(index) {
                    watched.told = true;
                }
            }
            CLOCK => self.rang = true,
            // Now: an interface without links makes no passes. The pass of one that has some looks at what devices told others.
            BELL => self.end_retired(),
            _ => {
                if let Some(entry) = self.connections.get_mut(index)
                    && readable
                    && !std::mem::replace(&mut entry.readable, true)
                {
                    self.busy.push(index);
                }
            }
        }
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let mut happened = 0;
        let count = self.sets.len();
        for step in 0..count {
            if happened < budget {
                // They take turns: one that always has something does not keep the others from being served.
                let place = match self.turn + step {
                    place if place < count => place,
                    place => place - count,
                };
                happened += self.serve(place, budget - happened, sink);
            }
        }
        self.turn = match self.turn + 1 {
            turn if turn < count => turn,
            _ => 0,
        };
        if self.room.retired.any() {
            self.end_retired();
        }
        self.look_at_devices();
        for (key, rail) in std::mem::take(&mut self.abandoned) {
            // What it had brought is delivered first.
            match self.has_left(key, Some(rail)) {
                true => self.abandoned.push((key, rail)),
                false => self.drained(key, rail, sink),
            }
        }
        if std::mem::take(&mut self.rang) {
            self.look_at_switches();
        }
        if !self.busy.is_empty() {
            happened += self.serve_busy(sink);
        }
        if self.useless {
            self.let_go();
        }
        happened
    }

    fn arm(&mut self) -> bool {
        if !self.busy.is_empty()
            || !self.abandoned.is_empty()
            || self.rang
            || self.room.retired.any()
        {
            return false;
        }
        for watched in &self.devices {
            if watched.told || watched.news != watched.device.news() {
                return false;
            }
        }
        for place in 0..self.sets.len() {
            let set = &mut self.sets[place];
            if set.at < set.count || !set.due.is_empty() {
                return false;
            }
            // What is left of a device that is lost was taken when that was told.
            let lost = set.queues.device.is_lost();
            if set.failed || lost || set.by_number.is_empty() {
                continue;
            }
            // Who sleeps with an event in the channel is woken for nothing.
            set.told |= std::mem::take(&mut set.fired) && set.armed;
            let armed = set.drain().and_then(|()| match set.armed {
                true => Ok(()),
                false => set.queues.completions.arm(false),
            });
            match armed.and_then(|()| set.fill(TAKEN)) {
                Ok(found) => {
                    set.armed = true;
                    if found {
                        return false;
                    }
                }
                Err(error) => {
                    // One that cannot be slept on is of no use; the next pass tells its connections.
                    self.queues_failed_alone(place, &error);
                    return false;
                }
            }
        }
        true
    }

    fn disarm(&mut self) {}
}
