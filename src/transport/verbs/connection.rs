//! What both halves of a link share: its rails, the send queues, the credits.
//!
//! # Safety
//! What is sent comes from a rail's ring, of which the state says which part the device has, or is inline, which the device has copied when
//! posting returns. Memory of others is named by [`Connection::one_sided`] alone, whose callers vouch for it.
#![allow(unsafe_code)]

use std::{
    collections::VecDeque,
    fmt,
    net::Shutdown,
    ops::Range,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use socket2::Socket;

use super::{
    devices::{Devices, SharedReaper},
    domain::Domain,
    options::NAME,
    pace::{self, MEASURED, Pace},
    queues::SEGMENT,
    rail::{Rail, retire},
    wire::{HEADER, Header, Kind},
};
use crate::{
    driver::verbs::{SendFlags, SendRequest, Sge},
    error::{Error, ErrorKind, Result},
    sys::fd_socket,
    transport::SendError,
    util::lock::Mutex,
};

/// Bytes of a rail's ring.
pub(super) const RING: usize = 256 << 10;
/// Slots of a send queue for what must not wait: credits, and the mark of a rail's end.
pub(super) const SPARE_SLOTS: u32 = 8;
/// At the latest each so manieth request has its completion told.
const SIGNAL: u32 = 64;
const LINE: u64 = 64;

/// What a slot of the send queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A message or credits: nobody asks for its end.
    Own,
    /// A message that goes over another rail should this one fail: its number, and where it stands in the ring.
    Message {
        sequence: u32,
        offset: usize,
        length: usize,
    },
    /// So many bytes of memory of others: its end is told with this token.
    OneSided(u64, u64),
    /// Written from the ring, or inline: its end is told with this token.
    Written(u64),
    /// So many bytes come into the ring at this place, and are told with this token.
    Fetch(u64, usize, usize),
}

#[derive(Debug)]
struct Slot {
    work: Work,
    /// The ring is free up to here when it has ended.
    ring: u64,
}

/// The send queue of a rail. Requests have numbers that count up; slots are those from `done` to `posted`.
#[derive(Debug)]
struct Sending {
    posted: u64,
    done: u64,
    /// Since the last request whose completion is told.
    quiet: u32,
    /// The ring's head then.
    quiet_ring: u64,
    slots: VecDeque<Slot>,
    /// Bytes of the ring that were ever taken, and that are free again.
    head: u64,
    tail: u64,
    depth: u32,
    /// Somebody has asked whether all is acknowledged: the completion of each request is told from then on.
    asked: bool,
    pace: Pace,
}

impl Sending {
    fn new(depth: u32) -> Self {
        Self {
            posted: 0,
            done: 0,
            quiet: 0,
            quiet_ring: 0,
            slots: VecDeque::with_capacity((depth + SPARE_SLOTS) as usize),
            head: 0,
            tail: 0,
            depth,
            asked: false,
            pace: Pace::default(),
        }
    }

    fn used(&self) -> u32 {
        (self.posted - self.done) as u32
    }

    /// Where so many bytes of the ring begin, and its head behind them; `None`: no room.
    fn take(&self, length: usize) -> Option<(usize, u64)> {
        let ring = RING as u64;
        let length = (length as u64).next_multiple_of(LINE);
        let mut from = self.head;
        if from % ring + length > ring {
            from = from.next_multiple_of(ring);
        }
        (from + length - self.tail <= ring).then_some(((from % ring) as usize, from + length))
    }

    /// Whether any message finds room.
    fn has_room(&self) -> bool {
        self.used() < self.depth && self.take(SEGMENT).is_some()
    }

    /// Whether the completion of the next request has to be told, so that room comes back in time.
    fn must_signal(&self, head: u64) -> bool {
        self.asked
            || self.quiet + 1 >= SIGNAL.min(self.depth / 4)
            || head - self.quiet_ring >= RING as u64 / 4
    }

    fn note(&mut self, work: Work, ring: u64, signaled: bool) {
        self.posted += 1;
        self.head = ring;
        self.slots.push_back(Slot { work, ring });
        if signaled {
            self.quiet = 0;
            self.quiet_ring = ring;
        } else {
            self.quiet += 1;
        }
    }
}

/// A rail has failed, and the ends find out what has arrived.
#[derive(Debug)]
struct Switch {
    from: usize,
    /// Nothing more comes of it here.
    drained: bool,
    /// The message that the peer waits for, once nothing more comes of it there.
    theirs: Option<u32>,
    /// Messages went over it, and whether they are still here was not looked at.
    carried: bool,
}

#[derive(Debug)]
struct State {
    /// By rail.
    sending: Vec<Sending>,
    alive: Vec<bool>,
    /// The rail that messages go over: the first that is alive.
    main: usize,
    switch: Option<Switch>,
    /// A device was lost on the way: it may have taken messages along that it had acknowledged.
    lost: bool,
    /// Nothing is sent any more; the interface tells why.
    over: bool,
    /// A send found no room.
    waits: bool,
    /// Another request found none.
    wants: bool,
    /// Messages that may be sent, and how many at most.
    credits: u32,
    most: u32,
    /// Of this side's messages, how many the peer said to have left their receives, modulo 2^16.
    returned: u16,
    /// The same of the peer's, those that it has not been told of, and its window.
    given: u16,
    owed: u32,
    window: u32,
    /// Numbers of the next message, each way.
    next: u32,
    expected: u32,
}

/// The end of what was not a message, and where among all that was brought its bytes are.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) token: u64,
    pub(super) fetched: Option<Range<usize>>,
}

/// What an arrival means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    /// The link had no room and has some now.
    pub(super) writable: bool,
    /// The peer is to be given its credits.
    pub(super) owes: bool,
}

/// A connection.
pub(super) struct Connection {
    peer: Box<str>,
    /// A peer on this host may pass descriptors over it, though none belong there.
    control: fd_socket::Socket<Socket>,
    pub(super) rails: Vec<Rail>,
    state: Mutex<State>,
    /// The sending half was dropped.
    dropped: AtomicBool,
    /// Why a request was refused.
    refused: OnceLock<Error>,
    /// Longest body that the peer takes.
    pub(super) longest: usize,
    reaper: SharedReaper,
    /// What one-sided operations register memory with.
    pub(super) memory: Option<Arc<Domain>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("rails", &self.rails)
            .finish_non_exhaustive()
    }
}

/// Why a request was not posted.
enum Unposted {
    Full,
    Failed(Error),
}

impl Connection {
    /// Over these rails; messages go over the first, and over the next when that fails, one-sided operations over those that are for them, if there
    /// are. This end takes `window` messages, and the peer `credits`, of at most `longest` bytes.
    pub(super) fn new(
        peer: &str,
        control: fd_socket::Socket<Socket>,
        rails: Vec<Rail>,
        (window, credits): (u32, u32),
        longest: usize,
        devices: &Devices,
    ) -> Self {
        let depth = devices.options.sends;
        Self {
            peer: peer.into(),
            control,
            state: Mutex::new(State {
                sending: rails.iter().map(|_| Sending::new(depth)).collect(),
                // Of those for messages.
                alive: rails.iter().map(|rail| !rail.data).collect(),
                main: 0,
                switch: None,
                lost: false,
                over: false,
                waits: false,
                wants: false,
                credits,
                most: credits,
                returned: 0,
                given: 0,
                owed: 0,
                window,
                next: 0,
                expected: 0,
            }),
            rails,
            dropped: AtomicBool::new(false),
            refused: OnceLock::new(),
            longest,
            reaper: Arc::clone(&devices.reaper),
            // Without it messages go all the same.
            memory: devices.memory().ok(),
        }
    }

    /// The control socket's descriptor.
    pub(super) fn fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }

    /// The control socket.
    pub(super) fn control(&self) -> &Socket {
        &self.control
    }

    /// Adds peer and transport to an error.
    pub(super) fn named(&self, error: Error) -> Error {
        error.with_peer(&self.peer).over(NAME)
    }

    /// Nothing more is sent.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
    }

    /// Tells the peer that this end is gone.
    pub(super) fn hang_up(&self) {
        self.end();
        // Fails only where the connection is gone already.
        let _ = self.control.shutdown(Shutdown::Both);
    }

    /// A request was refused: nothing tells of that but this. The control socket ends, at the other end too, and the interface finds why.
    #[cold]
    fn give_up(&self, state: &mut State, error: Error) -> Error {
        state.over = true;
        let _ = self.refused.set(error.clone());
        let _ = self.control.shutdown(Shutdown::Both);
        error
    }

    /// Why this end has ended the control socket, if it has.
    pub(super) fn refused(&self) -> Option<Error> {
        self.refused.get().cloned()
    }

    /// The sending half ends.
    pub(super) fn set_dropped(&self) {
        self.dropped.store(true, Relaxed);
        self.hang_up();
    }

    /// Whether the sending half has ended.
    pub(super) fn dropped(&self) -> bool {
        self.dropped.load(Relaxed)
    }

    /// Sends a message with body `prefix` and `payload`, copied before it returns.
    #[inline]
    pub(super) fn message(
        &self,
        id: u8,
        header: u64,
        prefix: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        if prefix.len() + payload.len() > self.longest {
            return Err(too_long(prefix.len() + payload.len(), self.longest));
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let main = state.main;
        let (Some(rail), Some(sending)) = (self.rails.get(main), state.sending.get_mut(main))
        else {
            return Err(SendError::Full);
        };
        if state.over
            || state.switch.is_some()
            || state.credits == 0
            || sending.used() >= sending.depth
        {
            state.waits = true;
            return Err(SendError::Full);
        }
        let head = Header {
            id,
            kind: Kind::Message,
            credits: state.given.wrapping_add(state.owed as u16),
            sequence: state.next,
            header,
        };
        let keep = self.rails.get(1).is_some_and(|rail| !rail.data);
        match send(rail, sending, &head, prefix, payload, keep, false) {
            Ok(()) => {
                state.credits -= 1;
                state.tell(&head);
                state.next = state.next.wrapping_add(1);
                Ok(())
            }
            Err(Unposted::Full) => {
                state.waits = true;
                Err(SendError::Full)
            }
            Err(Unposted::Failed(error)) => {
                Err(SendError::Failed(self.named(self.give_up(state, error))))
            }
        }
    }

    /// Gives the peer its credits, if half its window is owed. Where there is no room now it is tried again when something has completed.
    pub(super) fn give_credits(&self) {
        let mut state = self.state.lock();
        if state.owed * 2 >= state.window {
            self.tell_credits(&mut state);
        }
    }

    /// Tells the peer of all its credits. `false`: that could not be posted now.
    fn tell_credits(&self, state: &mut State) -> bool {
        let main = state.main;
        let (Some(rail), Some(sending)) = (self.rails.get(main), state.sending.get_mut(main))
        else {
            return false;
        };
        if state.over || state.switch.is_some() {
            return false;
        }
        let head = Header {
            id: 0,
            kind: Kind::Credits,
            credits: state.given.wrapping_add(state.owed as u16),
            sequence: 0,
            header: 0,
        };
        if sending.used() >= sending.depth + SPARE_SLOTS - 2 {
            return false;
        }
        match send(rail, sending, &head, &[], &[], false, true) {
            Ok(()) => {
                state.tell(&head);
                true
            }
            Err(Unposted::Full) => false,
            Err(Unposted::Failed(error)) => {
                drop(self.give_up(state, error));
                false
            }
        }
    }

    /// A message came over a rail: takes its credits, and counts its receive as free again, which it is when this pass is over. `None`: it is
    /// to be thrown away, for the peer was told that nothing more comes of that rail, and sends it again.
    /// Errors: `DeviceLost`: one was lost with its device. `Protocol`: it is not the next one, or gives more credits than there are.
    #[inline]
    pub(super) fn arrived(&self, rail: usize, head: &Header) -> Result<Option<News>> {
        let mut state = self.state.lock();
        if !state.alive.get(rail).copied().unwrap_or(false) && !state.is_draining(rail) {
            return Ok(None);
        }
        let broken = |what: &'static str| Err(Error::new(ErrorKind::Protocol, what));
        if head.kind == Kind::Message {
            if head.sequence != state.expected {
                if state.lost {
                    return Err(Error::new(ErrorKind::DeviceLost, LOST));
                }
                return broken("a message is missing");
            }
            if state.owed >= state.window {
                return broken("more messages than the window allows");
            }
            state.expected = state.expected.wrapping_add(1);
            state.owed += 1;
        }
        let more = head.credits.wrapping_sub(state.returned);
        let credits = state.credits + u32::from(more);
        if credits > state.most {
            return broken("more credits than there are");
        }
        state.credits = credits;
        state.returned = head.credits;
        Ok(Some(News {
            writable: more > 0 && state.wake(),
            owes: state.owed * 2 >= state.window,
        }))
    }

    /// A request has completed, and with it all before it. What was not a message is added to `ended`, and what that brought to `brought`.
    #[inline]
    pub(super) fn completed(
        &self,
        rail: usize,
        number: u64,
        ended: &mut Vec<Ended>,
        brought: &mut Vec<u8>,
    ) -> News {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(sending) = state.sending.get_mut(rail) else {
            return News::default();
        };
        while sending.done <= number
            && let Some(slot) = sending.slots.pop_front()
        {
            sending.done += 1;
            sending.tail = slot.ring;
            match slot.work {
                Work::Own | Work::Message { .. } => {}
                Work::OneSided(token, bytes) => {
                    if bytes >= MEASURED {
                        sending.pace.ended(bytes, Instant::now());
                    }
                    ended.push(Ended {
                        token,
                        fetched: None,
                    });
                }
                Work::Written(token) => ended.push(Ended {
                    token,
                    fetched: None,
                }),
                Work::Fetch(token, offset, length) => {
                    // Copied: what follows may use that part of the ring.
                    let fetched = self.rails.get(rail).map(|rail| {
                        let from = brought.len();
                        // SAFETY: the request has ended, and the part is given to no other before this returns.
                        brought.extend_from_slice(unsafe { rail.ring.bytes(offset, length) });
                        from..brought.len()
                    });
                    ended.push(Ended { token, fetched });
                }
            }
        }
        if state.switch.is_some() {
            self.resend(state);
        }
        News {
            writable: state.wake(),
            owes: state.owed * 2 >= state.window,
        }
    }

    /// The rail by which so many bytes are moved first, of some.
    pub(super) fn first_of(&self, rails: &[usize], bytes: u64) -> Option<usize> {
        if let [only] = rails {
            return Some(*only);
        }
        let state = self.state.lock();
        let paces = rails.iter().filter_map(|rail| state.sending.get(*rail));
        let first = pace::first(paces.map(|sending| &sending.pace), bytes)?;
        rails.get(first).copied()
    }

    /// The shares of some rails in long transfers, in hundredths, where they were measured and differ.
    pub(super) fn shares(&self, rails: &[usize]) -> Option<Vec<u32>> {
        let state = self.state.lock();
        let paces = rails.iter().filter_map(|rail| state.sending.get(*rail));
        let paces: Vec<Pace> = paces.map(|sending| sending.pace).collect();
        pace::shares(&paces)
    }

    /// Posts a request that is no message, made by `make` with a number and flags to be used. `token` is told when it has completed.
    /// Errors: as a message's.
    ///
    /// # Safety
    /// The memory that the request names is left alone, and stays registered, until the token was told or the link was dropped.
    pub(super) unsafe fn one_sided<'a>(
        &self,
        rail: usize,
        (token, bytes): (u64, u64),
        make: impl FnOnce(u64, SendFlags) -> SendRequest<'a>,
    ) -> Result<(), SendError> {
        self.with_room(rail, |rail, sending| {
            let request = make(sending.posted, SendFlags::SIGNALED);
            // SAFETY: the caller vouches for it.
            unsafe { post(rail, request) }?;
            let ring = sending.head;
            sending.note(Work::OneSided(token, bytes), ring, true);
            if bytes >= MEASURED {
                sending.pace.posted(bytes, Instant::now());
            }
            Ok(())
        })
    }

    /// Posts a write of `data`, which is copied, made by `make` as of [`Connection::one_sided`].
    /// Errors: as a message's.
    pub(super) fn short_write(
        &self,
        rail: usize,
        token: u64,
        data: &[u8],
        make: impl for<'a> FnOnce(u64, &'a [Sge; 1], SendFlags) -> SendRequest<'a>,
    ) -> Result<(), SendError> {
        self.with_room(rail, |rail, sending| {
            let mut flags = SendFlags::SIGNALED;
            let (piece, ring) = if data.len() <= rail.inline {
                flags |= SendFlags::INLINE;
                let piece = Sge {
                    addr: data.as_ptr().expose_provenance() as u64,
                    length: data.len() as u32,
                    lkey: 0,
                };
                (piece, sending.head)
            } else {
                let (offset, end) = sending.take(data.len()).ok_or(Unposted::Full)?;
                // SAFETY: a part of the ring that no slot holds.
                unsafe { rail.ring.write(offset, data) };
                (rail.ring.piece(offset, data.len()), end)
            };
            let piece = [piece];
            let request = make(sending.posted, &piece, flags);
            // SAFETY: inline bytes live during the call; the part of the ring is left alone until its slot has ended.
            unsafe { post(rail, request) }?;
            sending.note(Work::Written(token), ring, true);
            Ok(())
        })
    }

    /// Posts a request that brings `length` bytes, made by `make`. They are told with `token`.
    /// Errors: as a message's.
    pub(super) fn fetch(
        &self,
        rail: usize,
        token: u64,
        length: usize,
        make: impl for<'a> FnOnce(u64, &'a [Sge; 1], SendFlags) -> SendRequest<'a>,
    ) -> Result<(), SendError> {
        self.with_room(rail, |rail, sending| {
            let (offset, ring) = sending.take(length).ok_or(Unposted::Full)?;
            let piece = [rail.ring.piece(offset, length)];
            let request = make(sending.posted, &piece, SendFlags::SIGNALED);
            // SAFETY: the part of the ring is left alone until its slot has ended.
            unsafe { post(rail, request) }?;
            sending.note(Work::Fetch(token, offset, length), ring, true);
            Ok(())
        })
    }

    /// Posts what `act` posts. Where there is no room, it will be told.
    fn with_room(
        &self,
        index: usize,
        act: impl FnOnce(&Rail, &mut Sending) -> Result<(), Unposted>,
    ) -> Result<(), SendError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (Some(rail), Some(sending)) = (self.rails.get(index), state.sending.get_mut(index))
        else {
            return Err(SendError::Full);
        };
        let live = match rail.data {
            true => rail.is_live(),
            false => state.alive[index],
        };
        if state.over || !live || sending.used() >= sending.depth {
            state.wants = true;
            return Err(SendError::Full);
        }
        match act(rail, sending) {
            Ok(()) => Ok(()),
            Err(Unposted::Full) => {
                state.wants = true;
                Err(SendError::Full)
            }
            Err(Unposted::Failed(error)) => {
                Err(SendError::Failed(self.named(self.give_up(state, error))))
            }
        }
    }

    /// A request of a rail for one-sided operations has failed, and the rail with it. What it and those before it were for, of which none is
    /// known to have been done.
    #[cold]
    pub(super) fn rail_failed(&self, rail: usize, number: u64) -> Vec<u64> {
        if let Some(rail) = self.rails.get(rail) {
            rail.end();
        }
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut tokens = Vec::new();
        let Some(sending) = state.sending.get_mut(rail) else {
            return tokens;
        };
        while sending.done <= number
            && let Some(slot) = sending.slots.pop_front()
        {
            sending.done += 1;
            sending.tail = slot.ring;
            match slot.work {
                Work::Own | Work::Message { .. } => {}
                Work::OneSided(token, _) | Work::Written(token) | Work::Fetch(token, ..) => {
                    tokens.push(token);
                }
            }
        }
        sending.pace.emptied();
        // Who waits for room has to look for another way.
        state.wants = false;
        tokens
    }

    /// What a request that failed was for, if its end is to be told.
    pub(super) fn token_of(&self, rail: usize, number: u64) -> Option<u64> {
        let state = self.state.lock();
        let sending = state.sending.get(rail)?;
        let place = usize::try_from(number.checked_sub(sending.done)?).ok()?;
        match sending.slots.get(place)?.work {
            Work::Own | Work::Message { .. } => None,
            Work::OneSided(token, _) | Work::Written(token) | Work::Fetch(token, ..) => Some(token),
        }
    }

    /// Whether the peer's devices have acknowledged everything. If not, and nobody would tell of what was posted last, credits follow it, whose end
    /// is told: a write of nothing, which takes no receive, is refused by a queue pair that nobody may write by. The peer keeps one receive
    /// for that, so it is done once for each rail.
    pub(super) fn is_flushed(&self) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.sending.iter().all(|sending| sending.used() == 0) {
            return true;
        }
        let main = state.main;
        // What is no message is told always.
        let quiet = |sending: &Sending| sending.quiet > 0;
        if state.sending.get(main).is_some_and(quiet) && self.tell_credits(state) {
            state.sending[main].asked = true;
        }
        false
    }
}

/// When a rail fails: what was on its way goes over the next.
impl Connection {
    /// Whether a rail can be used.
    pub(super) fn is_alive(&self, rail: usize) -> bool {
        let state = self.state.lock();
        state.alive.get(rail).is_some_and(|alive| *alive)
    }

    /// Whether the ends have not agreed yet on what a rail that failed has carried.
    pub(super) fn is_switching(&self) -> bool {
        self.state.lock().switch.is_some()
    }

    /// Whether a rail has failed, and all that it had brought is taken.
    pub(super) fn is_past(&self, index: usize) -> bool {
        let state = self.state.lock();
        let (Some(rail), Some(sending)) = (self.rails.get(index), state.sending.get(index)) else {
            return false;
        };
        match rail.data {
            true => !rail.is_live() && sending.used() == 0,
            false => !state.alive[index] && !state.is_draining(index),
        }
    }

    /// Whether something is under way on a rail.
    pub(super) fn is_busy(&self, rail: usize) -> bool {
        let state = self.state.lock();
        state
            .sending
            .get(rail)
            .is_some_and(|sending| sending.used() > 0)
    }

    /// A rail has failed here or at the peer. `false`: there is no other that could take its place, or it has one-sided operations, which
    /// nobody can know to be done or not; then the connection is over. `lost`: its device is, so that no mark is to be waited for: what its
    /// completion queue holds is all that comes.
    #[cold]
    pub(super) fn fail_rail(&self, index: usize, lost: bool) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (Some(rail), Some(sending)) = (self.rails.get(index), state.sending.get_mut(index))
        else {
            return false;
        };
        if state.over || state.switch.is_some() {
            return false;
        }
        let own = |slot: &Slot| matches!(slot.work, Work::Own | Work::Message { .. });
        if !sending.slots.iter().all(own) {
            return false;
        }
        let carried = state.main == index;
        let mut others = state.alive.iter().enumerate();
        // Without one it stays alive: what had come over it before its end is delivered.
        let Some((next, _)) = others.find(|(other, alive)| **alive && *other != index) else {
            return false;
        };
        let ended = rail.to_error();
        if lost {
            // One that is gone refuses that, and brings nothing either.
            state.lost = true;
        } else {
            // What is posted behind its end completes last of all.
            let mark = SendRequest::write(MARK, &[], SendFlags::SIGNALED, 0, 0);
            // SAFETY: no bytes.
            if ended.is_err() || unsafe { post(rail, mark) }.is_err() {
                return false;
            }
        }
        state.alive[index] = false;
        state.main = next;
        state.switch = Some(Switch {
            from: index,
            drained: false,
            theirs: None,
            carried,
        });
        true
    }

    /// Nothing more comes of the rail that failed: the message that is waited for, to be told to the peer. `None`: that is known already.
    pub(super) fn drained(&self, rail: usize) -> Option<u32> {
        let mut state = self.state.lock();
        let expected = state.expected;
        let switch = state.switch.as_mut();
        let switch = switch.filter(|switch| switch.from == rail && !switch.drained)?;
        switch.drained = true;
        Some(expected)
    }

    /// The device of a rail that has failed is lost. Whether more was to come of the rail, which then does not.
    pub(super) fn lose_rail(&self, rail: usize) -> bool {
        let mut state = self.state.lock();
        let draining = state.is_draining(rail);
        state.lost |= draining;
        draining
    }

    /// The peer has told which message it waits for, nothing more coming of that rail.
    /// Errors: `Protocol`: it is another rail, or told before.
    pub(super) fn peer_drained(&self, rail: usize, expected: u32) -> Result<()> {
        let mut state = self.state.lock();
        match &mut state.switch {
            Some(switch) if switch.from == rail && switch.theirs.is_none() => {
                switch.theirs = Some(expected);
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Protocol,
                "another rail has failed for the peer",
            )),
        }
    }

    /// Sends again what did not arrive, once both ends know what that is.
    pub(super) fn resume(&self) -> News {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.resend(state);
        News {
            writable: state.wake(),
            owes: false,
        }
    }

    #[cold]
    fn resend(&self, state: &mut State) {
        let Some(Switch {
            from,
            drained: true,
            theirs: Some(theirs),
            carried,
        }) = state.switch
        else {
            return;
        };
        let main = state.main;
        let (Some(old), Some(new)) = (self.rails.get(from), self.rails.get(main)) else {
            return;
        };
        if carried && state.first_from(from, theirs) != theirs {
            // Nobody has it any more: this side was told that it had arrived.
            let error = Error::new(ErrorKind::DeviceLost, LOST);
            drop(self.give_up(state, error));
            return;
        }
        if let Some(switch) = &mut state.switch {
            switch.carried = false;
        }
        while let Some(slot) = state.sending[from].slots.front() {
            if let Work::Message {
                sequence,
                offset,
                length,
            } = slot.work
                && sequence.wrapping_sub(theirs).cast_signed() >= 0
            {
                let sending = &mut state.sending[main];
                if sending.used() >= sending.depth {
                    return;
                }
                let Some((to, ring)) = sending.take(length) else {
                    return;
                };
                // SAFETY: the old queue pair has ended, so the device reads that part no more; the new part is held by no slot.
                unsafe { new.ring.write(to, old.ring.bytes(offset, length)) };
                let piece = [new.ring.piece(to, length)];
                let request = SendRequest::send(sending.posted, &piece, SendFlags::SIGNALED);
                // SAFETY: that part of the ring is left alone until its slot has ended.
                if let Err(Unposted::Failed(error)) = unsafe { post(new, request) } {
                    // No completion tells of it.
                    drop(self.give_up(state, error));
                    return;
                }
                let work = Work::Message {
                    sequence,
                    offset: to,
                    length,
                };
                sending.note(work, ring, true);
            }
            state.sending[from].slots.pop_front();
        }
        let old = &mut state.sending[from];
        old.done = old.posted;
        state.switch = None;
        // Credits that were lost are told anew. There is room: those that were not acknowledged had theirs beside what was sent again, and what was
        // posted behind others tells of them too.
        self.tell_credits(state);
    }
}

/// What a device does that says that it has messages, and goes before it has given them out.
const LOST: &str = "a device that failed has lost messages that it had acknowledged";

/// The number of the mark that is posted behind a rail's end.
pub(super) const MARK: u64 = 1 << 62;

impl State {
    /// Whether a rail has failed, and what it had brought may not all have been taken.
    fn is_draining(&self, rail: usize) -> bool {
        let switch = self.switch.as_ref();
        switch.is_some_and(|switch| switch.from == rail && !switch.drained)
    }

    /// The first message from this one on that a rail still has, or the next that is sent.
    fn first_from(&self, rail: usize, from: u32) -> u32 {
        let slots = self.sending[rail].slots.iter();
        let mut messages = slots.filter_map(|slot| match slot.work {
            Work::Message { sequence, .. } => Some(sequence),
            _ => None,
        });
        let first = messages.find(|sequence| sequence.wrapping_sub(from).cast_signed() >= 0);
        first.unwrap_or(self.next)
    }

    /// The peer is told of all that it is owed.
    #[inline]
    fn tell(&mut self, head: &Header) {
        self.given = head.credits;
        self.owed = 0;
    }

    /// Whether someone waited for room that is there now.
    fn wake(&mut self) -> bool {
        let wake = self.waits
            && !self.over
            && self.credits > 0
            && self.switch.is_none()
            && self.sending.get(self.main).is_some_and(Sending::has_room);
        // These need no credits.
        let other = self.wants && !self.over && self.sending.iter().any(Sending::has_room);
        if wake {
            self.waits = false;
        }
        if other {
            self.wants = false;
        }
        wake || other
    }
}

impl Drop for Connection {
    /// When this returns no device uses memory of others any longer: neither this end's, for what is under way, nor the peer's, with keys that it was
    /// given to read or write a message.
    fn drop(&mut self) {
        let rails = std::mem::take(&mut self.rails);
        let mut rest = Vec::new();
        let mut others = Vec::new();
        let mut never = Vec::new();
        for (rail, sending) in rails.into_iter().zip(&self.state.get_mut().sending) {
            let lent = |slot: &Slot| matches!(slot.work, Work::OneSided(..));
            let idle = !sending.slots.iter().any(lent);
            // Peers read and write over rails for that alone.
            if idle && (!rail.data || rail.to_error().is_ok()) {
                match rail.reservation.is_expected() {
                    true => never.push(rail),
                    false => others.push(rail),
                }
                continue;
            }
            let Rail {
                queue_pair,
                ring,
                reservation,
                ..
            } = rail;
            reservation.queues.device.served.end(queue_pair);
            rest.push((ring, reservation));
        }
        self.reaper.drop_later((rest, others));
        retire(never);
    }
}

#[cold]
fn too_long(length: usize, most: usize) -> SendError {
    SendError::Failed(Error::new(
        ErrorKind::InvalidArgument,
        format!("a message of {length} bytes is longer than {most}"),
    ))
}

/// # Safety
/// As [`QueuePair::post_send`](crate::driver::verbs::QueuePair::post_send).
#[inline]
unsafe fn post(rail: &Rail, request: SendRequest<'_>) -> Result<(), Unposted> {
    // SAFETY: the caller vouches for it.
    match unsafe { rail.queue_pair.post_send(&mut [request]) } {
        Ok(()) => Ok(()),
        // It has room for all that is counted: the device has run out of something, and no completion would tell that it has it again.
        Err(refused) if refused.is_full() => {
            let error = refused.error("ibv_post_send", rail.queue_pair.device());
            Err(Unposted::Failed(Error::new(
                ErrorKind::Exhausted,
                format!("{error}, with fewer requests than it was made for"),
            )))
        }
        Err(refused) => Err(Unposted::Failed(
            refused.error("ibv_post_send", rail.queue_pair.device()),
        )),
    }
}

/// Posts a message: inline, or out of the ring.
#[inline]
fn send(
    rail: &Rail,
    sending: &mut Sending,
    head: &Header,
    prefix: &[u8],
    payload: &[u8],
    keep: bool,
    signaled: bool,
) -> Result<(), Unposted> {
    let sequence = head.sequence;
    let head = head.encode();
    let total = HEADER + prefix.len() + payload.len();
    let mut pieces = [Sge::default(); 3];
    let mut count = 0;
    let mut flags = SendFlags::empty();
    let mut ring = sending.head;
    let mut work = Work::Own;
    if total <= rail.inline {
        if keep {
            let (offset, end) = sending.take(total).ok_or(Unposted::Full)?;
            // SAFETY: a part of the ring that no slot holds.
            unsafe { fill(rail, offset, &head, prefix, payload) };
            ring = end;
            work = Work::Message {
                sequence,
                offset,
                length: total,
            };
        }
        flags |= SendFlags::INLINE;
        for part in [&head[..], prefix, payload] {
            if !part.is_empty() {
                pieces[count] = Sge {
                    addr: part.as_ptr().expose_provenance() as u64,
                    length: part.len() as u32,
                    lkey: 0,
                };
                count += 1;
            }
        }
    } else {
        let Some((offset, end)) = sending.take(total) else {
            return Err(Unposted::Full);
        };
        // SAFETY: a part of the ring that no slot holds.
        unsafe { fill(rail, offset, &head, prefix, payload) };
        pieces[0] = rail.ring.piece(offset, total);
        count = 1;
        ring = end;
        if keep {
            work = Work::Message {
                sequence,
                offset,
                length: total,
            };
        }
    }
    let signaled = signaled || sending.must_signal(ring);
    if signaled {
        flags |= SendFlags::SIGNALED;
    }
    let request = SendRequest::send(sending.posted, &pieces[..count], flags);
    // SAFETY: inline bytes live during the call; the part of the ring is left alone until its slot has ended.
    unsafe { post(rail, request) }?;
    sending.note(work, ring, signaled);
    Ok(())
}

/// # Safety
/// No slot holds that part of the ring.
#[inline]
unsafe fn fill(rail: &Rail, offset: usize, head: &[u8; HEADER], prefix: &[u8], payload: &[u8]) {
    // SAFETY: the caller says so.
    unsafe {
        rail.ring.write(offset, head);
        rail.ring.write(offset + HEADER, prefix);
        rail.ring.write(offset + HEADER + prefix.len(), payload);
    }
}
