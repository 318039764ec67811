#![allow(unsafe_code)]
//! The receiving half of all of a worker's connections.
//!
//! ```text
//!            traffic, or found by a scan
//!   cold ────────────────────────────────▶ hot
//!   parked flag up, looked at              polled in every pass
//!   one a pass and after a wake            parked flag up only while the interface is armed
//!        ◀────────────────────────────────
//!            empty for many passes, when more than four are hot
//! ```
//!
//! So a pass costs as much as there are busy peers, however many idle ones there are. A message from a cold peer rings the
//! doorbell; a worker that sleeps scans when it wakes, and one that spins meets it on its round through the cold links.
//!
//! # Safety
//! A ring's [`Consumer`] lies beside an `Arc` of the peer that owns the mapping, and an [`Established`] is attached once, because attaching
//! consumes it. Memory that a message is wanted in is its caller's affair.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
};

use mio::{Interest, unix::SourceFd};
use slab::Slab;

use super::{
    connector::Established,
    doorbell::before_the_look,
    link::{Peer, RECORD, ShmLink, WaitList, Waiter},
    options::NAME,
    ring::{Consumer, Inline, InlineInPlace},
};
use crate::{
    error::{Error, ErrorKind, Result},
    sys::{bell::BellSet, eventfd::EventFd, fd_passing, pidfd::PidFd, process},
    transport::{
        contract::{Connected, InPlace, Interface, Link, Registry, Sink, Taken, Wanted},
        shared_memory::SharedMemory,
    },
    types::LinkId,
};

/// So many links are polled in every pass, however idle.
const ALWAYS_HOT: usize = 4;
/// Empty looks, over all hot links together, after which an idle one cools.
const IDLE_LOOKS: usize = 4000;
/// The least share of the budget that a hot link gets in a pass.
const LEAST_QUOTA: usize = 8;
/// Messages taken by glances between two passes.
const GLANCES: u32 = 64;
/// Records read from one socket in a pass.
const RECORDS: usize = 64;

/// The receiving half of a worker's shared-memory links.
#[derive(Debug)]
pub(crate) struct ShmInterface {
    /// The doorbells of all connections, and `bell`.
    bells: BellSet,
    /// Rung by this worker itself.
    bell: Arc<EventFd>,
    registry: Option<Registry>,
    entries: Slab<Entry>,
    slots: HashMap<LinkId, usize>,
    /// Slots of the hot links.
    hot: Vec<usize>,
    /// Where in `hot` the next pass begins.
    turn: usize,
    /// The slot that brought the last message, and how many glances at it did since a pass.
    latest: usize,
    glances: u32,
    /// The next slot to look at on the round through the cold links.
    round: usize,
    /// Whether all cold links must be looked at: the interface has slept.
    scan: bool,
    armed: bool,
    /// Tokens of sockets and pidfds that had an event.
    events: Vec<Event>,
    waiting: Arc<WaitList>,
    /// Kept to save an allocation.
    writable: Vec<LinkId>,
    /// Links that are gone, of which a message is read where it lies.
    held: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: LinkId,
    consumer: Consumer,
    peer: Arc<Peer>,
    process: Option<Arc<PidFd>>,
    is_hot: bool,
    /// Empty looks in a row.
    idle: usize,
    /// Why the peer is gone. Reported when the ring is drained.
    ended: Option<Error>,
    /// Nothing is reported any more.
    is_dead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    token: usize,
    readable: bool,
    writable: bool,
}

impl Entry {
    /// Takes the next message, if one is there. An error ends the link: what is to be reported of it, if the sink does not know it.
    #[inline(always)]
    fn take(&mut self, sink: &mut dyn Sink) -> std::result::Result<bool, Option<Error>> {
        let id = self.id;
        let mut refused = false;
        self.consumer
            .take(|message, header, body, hold| {
                let outcome = sink.message_in_place(id, message, header, body, hold);
                refused = outcome.is_err();
                outcome
            })
            .map_err(|error| (!refused).then_some(error))
    }
}

/// What a look at a hot link showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Stays,
    Leaves,
}

impl ShmInterface {
    /// # Errors
    /// What the system said.
    pub(crate) fn new() -> io::Result<Self> {
        let (bells, bell) = (BellSet::new()?, Arc::new(EventFd::new()?));
        bells.add(&*bell)?;
        Ok(Self {
            bells,
            bell,
            registry: None,
            entries: Slab::new(),
            slots: HashMap::new(),
            hot: Vec::new(),
            turn: 0,
            latest: 0,
            glances: 0,
            round: 0,
            scan: false,
            armed: false,
            events: Vec::new(),
            waiting: Arc::default(),
            writable: Vec::new(),
            held: Vec::new(),
        })
    }

    /// Links that are polled in every pass.
    #[cfg(all(test, not(wharf_loom)))]
    pub(crate) fn hot_count(&self) -> usize {
        self.hot.len()
    }

    #[cfg(all(test, not(wharf_loom)))]
    pub(crate) fn is_hot(&self, id: LinkId) -> bool {
        self.slots
            .get(&id)
            .is_some_and(|slot| self.hot.contains(slot))
    }

    fn has_cold(&self) -> bool {
        self.hot.len() < self.entries.len()
    }

    fn watch(&self, slot: usize) -> Result<()> {
        let Some(registry) = &self.registry else {
            return Ok(());
        };
        let entry = &self.entries[slot];
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(
            &mut SourceFd(&entry.peer.socket.as_raw_fd()),
            slot << 1,
            interest,
        )?;
        if let Some(process) = &entry.process {
            registry.register(
                &mut SourceFd(&process.as_fd().as_raw_fd()),
                slot << 1 | 1,
                Interest::READABLE,
            )?;
        }
        Ok(())
    }

    fn unwatch(&self, entry: &Entry) {
        self.bells.remove(&entry.peer.bell);
        let Some(registry) = &self.registry else {
            return;
        };
        registry.deregister(&mut SourceFd(&entry.peer.socket.as_raw_fd()));
        if let Some(process) = &entry.process {
            registry.deregister(&mut SourceFd(&process.as_fd().as_raw_fd()));
        }
    }

    /// Makes a link hot. Its parked flag stays up while the interface is armed.
    fn heat(&mut self, slot: usize) {
        let entry = &mut self.entries[slot];
        entry.idle = 0;
        if !entry.is_hot {
            entry.is_hot = true;
            self.hot.push(slot);
        }
        if !self.armed {
            entry.consumer.unpark();
        }
    }

    /// Looks at the cold links: at all of them after a sleep, else at one.
    fn find_warm(&mut self) {
        if self.scan {
            self.scan = false;
            for slot in 0..self.entries.capacity() {
                self.heat_if_warm(slot);
            }
        } else {
            self.round += 1;
            if self.round >= self.entries.capacity() {
                self.round = 0;
            }
            self.heat_if_warm(self.round);
        }
    }

    fn heat_if_warm(&mut self, slot: usize) {
        if let Some(entry) = self.entries.get(slot)
            && !entry.is_hot
            && !entry.is_dead
            && entry.consumer.has_message()
        {
            self.heat(slot);
        }
    }

    /// Takes up to `quota` messages of a hot link.
    #[inline]
    fn look(&mut self, slot: usize, quota: usize, sink: &mut dyn Sink, done: &mut usize) -> Look {
        let entry = &mut self.entries[slot];
        let mut taken = 0;
        while taken < quota {
            match entry.take(sink) {
                Ok(true) => {
                    taken += 1;
                    if entry.consumer.is_held() {
                        // So that its reader comes before the next one, which could not stay where it is.
                        break;
                    }
                }
                Ok(false) => break,
                Err(error) => {
                    *done += taken + 1;
                    return self.give_up(slot, error, sink);
                }
            }
        }
        *done += taken;
        // Also when nothing was taken: the sender may have raised its flag after the last look.
        if entry.consumer.room_is_wanted() {
            entry.peer.ringer.ring();
        }
        if taken > 0 {
            entry.idle = 0;
            self.latest = slot;
            return Look::Stays;
        }
        if entry.ended.is_some() {
            let error = entry.ended.take();
            *done += 1;
            return self.give_up(slot, error, sink);
        }
        entry.idle += 1;
        if self.hot.len() > ALWAYS_HOT
            && entry.idle > IDLE_LOOKS / self.hot.len()
            && !entry.consumer.is_held()
        {
            self.cool(slot)
        } else {
            Look::Stays
        }
    }

    /// Arms one link by itself.
    #[cold]
    fn cool(&mut self, slot: usize) -> Look {
        let entry = &mut self.entries[slot];
        entry.idle = 0;
        before_the_look(entry.consumer.park());
        if entry.consumer.room_is_wanted() {
            entry.peer.ringer.ring();
        }
        if entry.consumer.has_message() {
            if !self.armed {
                entry.consumer.unpark();
            }
            return Look::Stays;
        }
        entry.is_hot = false;
        Look::Leaves
    }

    /// Ends a hot link, reporting `error` if there is one. The caller takes it off the hot list.
    #[cold]
    fn give_up(&mut self, slot: usize, error: Option<Error>, sink: &mut dyn Sink) -> Look {
        self.unwatch(&self.entries[slot]);
        let entry = &mut self.entries[slot];
        entry.is_dead = true;
        entry.is_hot = false;
        entry.peer.closed.store(true, Ordering::Relaxed);
        // Tells the peer, should it live. It fails when the connection is gone already.
        let _ = entry.peer.socket.shutdown(std::net::Shutdown::Both);
        let id = entry.id;
        let error = error.map(|error| error.over(NAME).with_peer(&entry.peer.name));
        self.waiting
            .take(|waiter| waiter.link == id, &mut Vec::new());
        if let Some(error) = error {
            sink.failed(id, error);
        }
        Look::Leaves
    }

    /// Works off what happened on sockets and pidfds.
    #[cold]
    fn handle_events(&mut self, sink: &mut dyn Sink) -> usize {
        let mut done = 0;
        let events = std::mem::take(&mut self.events);
        for event in events {
            let slot = event.token >> 1;
            let Some(entry) = self.entries.get_mut(slot) else {
                continue;
            };
            if entry.is_dead || entry.ended.is_some() {
                continue;
            }
            let id = entry.id;
            if event.token & 1 == 1 {
                if entry.process.as_ref().is_some_and(|peer| peer.has_exited()) {
                    entry.peer.segment.set_peer_exited();
                    entry.ended = Some(Error::new(
                        ErrorKind::PeerDied,
                        "the peer's process has ended",
                    ));
                    self.heat(slot);
                }
                continue;
            }
            if event.writable && entry.peer.share_waits.swap(false, Ordering::Relaxed) {
                done += 1;
                sink.writable(id);
            }
            if event.readable {
                done += self.read_socket(slot, sink);
            }
        }
        done
    }

    /// Takes memory that the peer shares, and notices that it hung up.
    fn read_socket(&mut self, slot: usize, sink: &mut dyn Sink) -> usize {
        let entry = &mut self.entries[slot];
        for done in 0..RECORDS {
            let mut record = [0; RECORD];
            let outcome = fd_passing::recv(entry.peer.socket.as_fd(), &mut record);
            let error = match outcome {
                Ok((RECORD, fds)) => {
                    let (segment, length) = record.split_at(8);
                    match <[_; 1]>::try_from(fds) {
                        Ok([fd]) => {
                            sink.shared(entry.id, number(segment), fd, number(length));
                            continue;
                        }
                        Err(fds) => fd_passing::close_elsewhere(fds),
                    }
                    Error::new(
                        ErrorKind::Protocol,
                        "a record of shared memory came without its file descriptor",
                    )
                }
                Ok((0, _)) => hung_up(entry, None),
                Ok((_, fds)) => {
                    fd_passing::close_elsewhere(fds);
                    Error::new(
                        ErrorKind::Protocol,
                        "a record of shared memory was cut short",
                    )
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return done,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Error::new(
                    ErrorKind::Protocol,
                    "a record of shared memory came with too many file descriptors",
                )
                .with_source(error),
                Err(error) => hung_up(entry, Some(error)),
            };
            entry.ended = Some(error);
            self.heat(slot);
            return done + 1;
        }
        // Edge-triggered: nobody tells about the rest.
        self.events.push(Event {
            token: slot << 1,
            readable: true,
            writable: false,
        });
        RECORDS
    }

    #[cold]
    fn tell_writable(&mut self, sink: &mut dyn Sink) -> usize {
        let mut writable = std::mem::take(&mut self.writable);
        self.waiting
            .take(|waiter| waiter.ring.has_room(), &mut writable);
        let done = writable.len();
        // Outside the list's lock: the sink may send, and find the ring full again.
        writable.drain(..).for_each(|id| sink.writable(id));
        self.writable = writable;
        done
    }

    fn take_flags_down(&mut self) {
        for &slot in &self.hot {
            self.entries[slot].consumer.unpark();
        }
        self.waiting
            .for_each(|waiter| waiter.ring.want_room().lower());
    }

    /// As [`Interface::take`], for what is not inline, and where more is to be done.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn take_other(&mut self, wanted: &mut Wanted) -> Taken {
        let Some(entry) = self.entries.get_mut(self.latest) else {
            return Taken::Nothing;
        };
        // SAFETY: the caller's promise.
        let Some((header, length)) = (unsafe { entry.consumer.take_wanted(wanted) }) else {
            return Taken::Nothing;
        };
        entry.idle = 0;
        self.glances += 1;
        wanted.header = header;
        Taken::Message {
            from: entry.id,
            length: length as u32,
        }
    }

    /// As [`Interface::take`], once the head is published.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn take_behind(&mut self, wanted: &mut Wanted) -> Taken {
        self.catch_up();
        // SAFETY: the caller's promise.
        unsafe { self.take(wanted) }
    }

    /// As [`Interface::take_in_place`], once it is.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn hold_behind(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
        looks: u32,
    ) -> Option<InPlace> {
        self.catch_up();
        // SAFETY: the caller's promise.
        unsafe { self.take_in_place(id, header, mask, looks) }
    }

    fn catch_up(&mut self) {
        if let Some(entry) = self.entries.get_mut(self.latest) {
            entry.consumer.publish();
        }
    }

    /// As [`Interface::take_in_place`], for what is not inline, and where more is to be done.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn hold_other(&mut self, id: u8, header: u64, mask: u64) -> Option<InPlace> {
        let entry = self.entries.get_mut(self.latest)?;
        // SAFETY: the caller's promise.
        let (header, held) = unsafe { entry.consumer.take_in_place(id, header, mask) }?;
        entry.idle = 0;
        self.glances += 1;
        Some(InPlace {
            from: entry.id,
            header,
            held,
        })
    }

    fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
        self.waiting.armed.store(armed, Ordering::Relaxed);
    }
}

impl Interface for ShmInterface {
    fn attach(&mut self, id: LinkId, connected: Connected) -> Result<Box<dyn Link>> {
        let Established { peer, process } = *connected.of::<Established>(NAME)?;
        peer.socket
            .set_nonblocking(true)
            .map_err(|error| Error::io("preparing the peer's socket", error))?;
        let peer = Arc::new(peer);
        // SAFETY: the entry keeps the segment mapped; the `Established` is consumed, so this is its one consumer here.
        let consumer =
            unsafe { Consumer::new(peer.segment.incoming(), peer.segment.has_barriers()) };
        let entry = Entry {
            id,
            consumer,
            peer: Arc::clone(&peer),
            process,
            is_hot: false,
            idle: 0,
            ended: None,
            is_dead: false,
        };
        self.bells
            .add(&peer.bell)
            .map_err(|error| Error::io("listening to the peer's doorbell", error))?;
        let slot = self.entries.insert(entry);
        if let Err(error) = self.watch(slot) {
            self.unwatch(&self.entries[slot]);
            self.entries.remove(slot);
            return Err(error);
        }
        self.slots.insert(id, slot);
        self.heat(slot);
        if self.armed {
            // The worker sleeps: arm the new link as well, and wake the worker if something is there already.
            let entry = &mut self.entries[slot];
            before_the_look(entry.consumer.park());
            if entry.consumer.has_message() {
                self.bell.ring();
            }
        }
        Ok(Box::new(ShmLink::new(
            id,
            peer,
            Arc::clone(&self.waiting),
            Arc::clone(&self.bell),
        )))
    }

    fn detach(&mut self, id: LinkId) {
        let Some(slot) = self.slots.remove(&id) else {
            return;
        };
        let entry = self.entries.remove(slot);
        if !entry.is_dead {
            self.unwatch(&entry);
        }
        entry.peer.closed.store(true, Ordering::Relaxed);
        self.hot.retain(|&hot| hot != slot);
        self.events.retain(|event| event.token >> 1 != slot);
        self.waiting
            .take(|waiter| waiter.link == id, &mut Vec::new());
        self.held.retain(|entry| entry.consumer.is_held());
        if entry.consumer.is_held() {
            self.held.push(entry);
        }
    }

    fn register(&mut self, registry: Registry) -> Result<()> {
        self.registry = Some(registry);
        let slots: Vec<usize> = self.slots.values().copied().collect();
        slots.into_iter().try_for_each(|slot| self.watch(slot))
    }

    fn ready(&mut self, token: usize, readable: bool, writable: bool) {
        self.events.push(Event {
            token,
            readable,
            writable,
        });
    }

    fn glance(&mut self, sink: &mut dyn Sink) -> bool {
        if self.glances == GLANCES {
            return false;
        }
        let slot = self.latest;
        let Some(entry) = self.entries.get_mut(slot).filter(|entry| entry.is_hot) else {
            return false;
        };
        match entry.take(sink) {
            Ok(true) => {
                entry.idle = 0;
                self.glances += 1;
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.give_up(slot, error, sink);
                self.hot.retain(|&hot| hot != slot);
                true
            }
        }
    }

    unsafe fn take(&mut self, wanted: &mut Wanted) -> Taken {
        if self.glances == GLANCES {
            return Taken::Nothing;
        }
        let Some(entry) = self.entries.get_mut(self.latest) else {
            return Taken::Nothing;
        };
        if !entry.is_hot {
            return Taken::Nothing;
        }
        // SAFETY: the caller's promise.
        match unsafe { entry.consumer.take_inline(wanted) } {
            Inline::Taken { header, length } => {
                entry.idle = 0;
                self.glances += 1;
                wanted.header = header;
                Taken::Message {
                    from: entry.id,
                    length: length as u32,
                }
            }
            Inline::Nothing => Taken::Nothing,
            // SAFETY: the caller's promise.
            Inline::Behind => unsafe { self.take_behind(wanted) },
            // SAFETY: the caller's promise.
            Inline::Other => unsafe { self.take_other(wanted) },
        }
    }

    unsafe fn take_in_place(
        &mut self,
        id: u8,
        header: u64,
        mask: u64,
        looks: u32,
    ) -> Option<InPlace> {
        if self.glances == GLANCES {
            return None;
        }
        let entry = self.entries.get_mut(self.latest)?;
        if !entry.is_hot {
            return None;
        }
        // SAFETY: the caller's promise; a link that is detached is kept while a message of it is held.
        match unsafe { entry.consumer.hold_inline(id, header, mask, looks) } {
            InlineInPlace::Held { header, held } => {
                entry.idle = 0;
                self.glances += 1;
                Some(InPlace {
                    from: entry.id,
                    header,
                    held,
                })
            }
            InlineInPlace::Nothing => None,
            // SAFETY: the caller's promise.
            InlineInPlace::Behind => unsafe { self.hold_behind(id, header, mask, looks) },
            // SAFETY: the caller's promise.
            InlineInPlace::Other => unsafe { self.hold_other(id, header, mask) },
        }
    }

    fn progress(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.glances = 0;
        let mut done = 0;
        if !self.events.is_empty() {
            done += self.handle_events(sink);
        }
        if self.has_cold() {
            self.find_warm();
        } else {
            // The last of them may have gone, or grown hot, since they were to be looked at.
            self.scan = false;
        }
        let count = self.hot.len();
        let quota = if count <= 1 {
            budget
        } else {
            (budget / count).max(LEAST_QUOTA)
        };
        for _ in 0..count {
            if done >= budget {
                break;
            }
            if self.turn >= self.hot.len() {
                self.turn = 0;
            }
            let slot = self.hot[self.turn];
            match self.look(slot, quota, sink, &mut done) {
                Look::Stays => self.turn += 1,
                Look::Leaves => {
                    self.hot.swap_remove(self.turn);
                }
            }
        }
        if !self.waiting.is_empty() {
            done += self.tell_writable(sink);
        }
        done
    }

    fn arm(&mut self) -> bool {
        self.held.retain(|entry| entry.consumer.is_held());
        if self.scan || !self.events.is_empty() {
            return false;
        }
        let mut calm = false;
        for &slot in &self.hot {
            calm |= self.entries[slot].consumer.park();
        }
        self.waiting.for_each(Waiter::ask);
        before_the_look(calm);
        let mut found = false;
        for &slot in &self.hot {
            let entry = &mut self.entries[slot];
            if entry.consumer.room_is_wanted() {
                entry.peer.ringer.ring();
            }
            found |= entry.ended.is_some() || entry.consumer.has_message();
        }
        self.waiting
            .for_each(|waiter| found |= waiter.ring.has_room());
        if found {
            self.take_flags_down();
        }
        self.set_armed(!found);
        !found
    }

    fn disarm(&mut self) {
        if self.armed {
            self.set_armed(false);
            self.take_flags_down();
            self.scan = self.has_cold();
        }
    }

    fn is_held(&self) -> bool {
        let mut hot = self.hot.iter();
        hot.any(|&slot| self.entries[slot].consumer.is_held())
    }

    fn rung(&mut self) {
        self.scan = self.has_cold();
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bells.as_fd())
    }
}

/// What the end of the peer's socket means: a process that ends closes its sockets before its pidfd says so, hence the look at
/// whether it is on its way out.
///
/// In both cases the peer is outside this side's memory: a process gives its memory up before its files, and a worker that
/// closes the connection is between two copies.
fn hung_up(entry: &Entry, error: Option<io::Error>) -> Error {
    entry.peer.segment.set_peer_exited();
    if entry
        .process
        .as_ref()
        .is_some_and(|process| process.has_exited() || is_exiting(entry.peer.socket.as_fd()))
    {
        return Error::new(ErrorKind::PeerDied, "the peer's process has ended");
    }
    let text = "the connection ended without a goodbye";
    let ended = Error::new(ErrorKind::ConnectionReset, text);
    match error {
        Some(error) => ended.with_source(error),
        None => ended,
    }
}

/// Whether the process is on its way out. Its id still means it: the caller saw that its pidfd has not fired.
fn is_exiting(socket: BorrowedFd<'_>) -> bool {
    fd_passing::peer_credentials(socket).is_ok_and(|peer| process::is_exiting(peer.pid))
}

/// Eight little-endian bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}
