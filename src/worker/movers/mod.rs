//! How bytes travel that are not in messages: copies between the memories of two processes, engines of devices, network devices.
//!
//! Comes in: operations of the table, and what links, engines and network devices say of them. Goes out: their ends, to `ctx`; each [`Errand`],
//! to whoever lets go of the lock. What they act upon is in files below: `copy`, `spread`, `layout`, `list`, `blocks`, `rma`, `one_sided`, `device`.
//!
//! | file | holds |
//! |---|---|
//! | `copy` | one copy between two processes, of one run and of many |
//! | `rma`, `layout`, `blocks`, `list` | puts and gets: of one run, of many blocks at either side; messages of many pieces |
//! | `rendezvous` | announced messages: which way their bytes come |
//! | `one_sided` | what network devices do |
//! | `engines`, `order`, `pipe` | engines of devices, the order of their copies, transfers that stop in pinned memory |
//! | `local`, `within`, `pull`, `serve`, `put`, `route`, `write`, `device_blocks` | those transfers, by where they begin and end |
//!
//! Tests: `tests/device/`, `tests/rc_faults/`, `tests/process/`, `tests/api/`.

mod blocks;
mod copy;
mod device_blocks;
mod engines;
mod layout;
mod list;
mod local;
mod one_sided;
mod order;
mod pipe;
mod pull;
mod put;
mod rendezvous;
mod rma;
mod route;
pub(in crate::worker) mod serve;
mod within;
mod write;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    config::RendezvousScheme,
    error::{Error, ErrorKind, Result},
    memory::{Buffer, BufferMut, keeper, region::Guest},
    protocol::matching::Arrival as Order,
    transport::{LocalKeys, Pair, Registering},
    types::{EndpointId, LinkId, OpKey},
    worker::{
        copy::Transfer,
        ctx::{Ctx, sender_gone},
        device::{Devices, route::What},
        one_sided::OneSided,
        operations::{
            Arrival, Body, Ended, Entry, Get, Put, RecvStage, SendStage, Unexpected, Work,
        },
        pressure::Deferred,
    },
};

/// A peer that may be inside this side's memory at this moment, and what memory that is. Lingers until it is seen outside.
pub(crate) struct Lingering {
    pub(crate) pair: Arc<Pair>,
    /// `None` for exposed memory, whose owner asks [`Pair::is_peer_outside`].
    memory: Option<Work>,
}

/// A peer whose connection has ended, inside exposed memory.
struct Gone(Arc<Pair>);

impl Guest for Gone {
    fn is_outside(&self) -> bool {
        self.0.is_peer_outside()
    }

    fn cut(&self) {}
}

/// Memory that a peer was inside when it was taken back, and which is given a moment before it lingers.
pub(crate) struct Leaving {
    pair: Arc<Pair>,
    what: Left,
    until: Instant,
}

/// Whose memory that is.
enum Left {
    /// An operation's, which has failed.
    Failed(OpKey, Error),
    /// Nobody's any more.
    Memory(Work),
}

/// Copying a chunk takes less.
const LEAVES_WITHIN: Duration = Duration::from_micros(200);

/// Between two looks at what lingers, at first and at most.
const LINGER: Duration = Duration::from_micros(100);
const LINGER_MOST: Duration = Duration::from_millis(100);

/// What is done with the movers when something has ended that took long.
pub(crate) type Told = Box<dyn FnOnce(&mut Movers) + Send>;
/// Something that takes long, and then that.
pub(crate) type Long = Pin<Box<dyn Future<Output = Told> + Send>>;

/// What takes a thread, the runtime, or long, and so begins once the lock is gone.
pub(crate) enum Errand {
    /// Opens the engine of an accelerator. [`Movers::engine_opened`] is told.
    Open(usize),
    /// Exports or imports device memory. [`Ctx::export_ended`] or [`Movers::import_ended`] is told.
    Route(usize, What),
    /// Waits for memory to be registered, or for that to end.
    Wait(Long),
    /// Clears the memory of a receive, bit by bit, and waits then for it to be registered. [`Movers::registered`] is told.
    Clear(LinkId, OpKey, Registering<LocalKeys>),
    /// Has [`Movers::make_way`] called in a while.
    Attend,
    /// Ends a connection that closes and that nobody holds, should the peer not do so in time: whether `CLOSE` has gone.
    SeeOff(LinkId, EndpointId, bool),
}

pub(crate) struct Movers {
    pub(crate) ctx: Ctx,
    /// Each is announced by a [`Deferred::Errand`].
    pub(crate) errands: Vec<Errand>,
    pub(crate) transfers: Vec<Transfer>,
    /// Which of them has the next turn.
    pub(crate) next_transfer: usize,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) lingering: Vec<Lingering>,
    /// When they are looked at next, and how long before the look after that.
    linger_next: Instant,
    linger_pause: Duration,
    /// Something was kept since the reactor looked last, which looks again as long as there is something.
    pub(in crate::worker) linger_new: bool,
    pub(crate) devices: Devices,
    /// How announced messages go by network devices.
    pub(crate) scheme: RendezvousScheme,
}

impl Movers {
    pub(crate) fn new(ctx: Ctx) -> Self {
        Self {
            ctx,
            errands: Vec::new(),
            transfers: Vec::new(),
            next_transfer: 0,
            leaving: Vec::new(),
            lingering: Vec::new(),
            linger_next: Instant::now(),
            linger_pause: LINGER,
            linger_new: false,
            devices: Devices::default(),
            scheme: RendezvousScheme::default(),
        }
    }

    /// As [`Ctx::finish`]; what engines of devices held for it goes first.
    pub(crate) fn finish(&mut self, key: OpKey, ended: Ended) {
        let is_staged = |entry: &mut Entry| {
            entry.staged.is_some() && entry.in_flight == 0 && !entry.is_copied()
        };
        match self.ctx.operations.get(key).is_some_and(is_staged) {
            true => self.finish_staged(key, ended),
            false => self.ctx.finish(key, ended),
        }
    }

    /// A receive has matched a message that keeps its place.
    fn succeed(&mut self, key: OpKey, order: Order, message: &Unexpected, op: OpKey) {
        let arrived = match self.ctx.operations.get(op) {
            None => return self.fail_operation(key, sender_gone()),
            Some(entry) if entry.outcome.is_none() => {
                entry.successor = Some(Box::new(key));
                false
            }
            Some(_) => true,
        };
        if arrived {
            if let Some(mut entry) = self.ctx.operations.remove(op)
                && let Some(ended) = entry.outcome.take()
                && let Some((order, message)) = self.ctx.message_of(&mut entry, ended)
            {
                self.hand_over(key, order, message);
                self.ctx.defer_drop_entry(entry);
            }
        } else if let Some(entry) = self.ctx.operations.get(key)
            && let Work::Recv(recv) = &mut *entry.work
        {
            recv.stage = RecvStage::Waiting(op);
            recv.order = order;
            recv.arrival = Some(Arrival {
                length: message.len(),
                tag: message.tag,
                from: message.from,
            });
        }
    }

    /// Gives a whole or announced message to a posted receive or claim.
    pub(crate) fn hand_over(&mut self, key: OpKey, order: Order, mut message: Unexpected) {
        let Some(entry) = self.ctx.operations.attach(key, message.link) else {
            return;
        };
        match &mut *entry.work {
            Work::Claim(post) => {
                *post = None;
                // It may be received much later, and its sender waits for no receive.
                self.ctx.take_in(&mut message);
                self.finish(key, Ended::Claimed(Box::new((order, message))));
            }
            Work::Recv(recv) => {
                recv.order = order;
                let on_device = recv.buffer.is_on_device() || message.body.is_on_device();
                let (link, from, tag) = (message.link, message.from, message.tag);
                match message.body {
                    Body::Arriving { op, .. } => self.succeed(key, order, &message, op),
                    Body::Announced(rts) => self.begin_rendezvous(key, link, from, tag, rts),
                    body if on_device => self.store_body(key, (link, from, tag), body),
                    _ => {
                        recv.stage = RecvStage::Done;
                        let mut buffer = std::mem::take(&mut recv.buffer);
                        let result = self.ctx.take_whole(&mut buffer, message);
                        self.ctx.received(key, buffer, result);
                    }
                }
            }
            _ => {}
        }
    }

    /// The operation whose memory a one-copy transfer was moving has it all, or failed.
    pub(crate) fn copied(&mut self, key: OpKey, result: Result<()>) {
        let Err(result) = self.end_written(key, result) else {
            // It is over once the peer can no longer write it.
            return;
        };
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        if let Err(error) = result {
            self.fail_operation(key, error);
            return;
        }
        let link = entry.link;
        match &mut *entry.work {
            Work::Recv(recv) => {
                recv.stage = RecvStage::Done;
                let ended = match (recv.arrival, link) {
                    (Some(arrival), Some(link)) if recv.claims => {
                        let (order, buffer) = (recv.order, std::mem::take(&mut recv.buffer));
                        let message = self.ctx.message_again(arrival, link, buffer);
                        Ended::Claimed(Box::new((order, message)))
                    }
                    (Some(_), _) => Ended::Done(Ok(())),
                    (None, _) => {
                        let text = "complete before it began";
                        Ended::Done(Err(Error::new(ErrorKind::Protocol, text)))
                    }
                };
                self.ctx.way_over(link, key, true);
                self.finish(key, ended);
            }
            Work::Get(_) => self.ctx.finish(key, Ended::Done(Ok(()))),
            Work::Put(_) => self.ctx.put_visible(key),
            Work::Send(_) => {
                self.ctx.way_over(link, key, true);
                self.finish(key, Ended::Done(Ok(())));
            }
            Work::Copy(_) => self.finish(key, Ended::Done(Ok(()))),
            _ => self.ctx.helped(key),
        }
    }

    /// Ends an operation with an error. The buffer comes back unless the peer stays in it.
    pub(crate) fn fail_operation(&mut self, key: OpKey, error: Error) {
        let Err(Err(error)) = self.end_written(key, Err(error)) else {
            return;
        };
        self.ctx.resign(key);
        let is_copied = |entry: &mut Entry| entry.copies > 0;
        if self.ctx.operations.get(key).is_some_and(is_copied)
            && let Some(index) = self
                .transfers
                .iter()
                .position(|transfer| transfer.op == key)
        {
            // Its own transfer ends first, and tells the peer.
            self.end_transfer(index, Some(Err(error)));
            return;
        }
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let link = entry.link;
        let written = match &*entry.work {
            Work::Recv(recv) => matches!(recv.stage, RecvStage::Copying | RecvStage::Shared(_)),
            // The peer may help, but with one run only.
            Work::Get(get) => get.layout.is_none(),
            // The owner may be copying a share out of it.
            Work::Put(put) => put.slot.is_some(),
            _ => false,
        };
        // No future waits for the memory of a send, and devices have a say in whose memory it is.
        let waits = written && entry.one_sided.is_none();
        let is_staged = entry.staged.is_some();
        // The peer may be copying out of it, and take what it copies for the message. It ends other sends itself.
        let read = matches!(&*entry.work, Work::Send(send)
            if matches!(send.stage, SendStage::Announced | SendStage::AwaitMatch))
            && link.is_some_and(|link| self.ctx.peer(link).is_some_and(|peer| !peer.is_alive()));
        self.ctx.way_over(link, key, false);
        let pair = link
            .filter(|_| (written || read) && !is_staged)
            .and_then(|link| Some(self.ctx.one_copy(link)?.pair.clone()))
            .filter(|pair| !pair.is_peer_outside());
        match pair {
            None => self.finish(key, Ended::Done(Err(error))),
            Some(pair) if waits && !pair.is_slow() => self.let_leave(pair, key, error),
            Some(pair) => self.fail_inside(pair, key, error),
        }
    }

    /// The peer is: the memory stays with a stand-in, and the future learns that it does not come back. The word of the transfer stays in use: the
    /// peer may still count a chunk in it.
    fn fail_inside(&mut self, pair: Arc<Pair>, key: OpKey, error: Error) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        // What takes a place of the connection's gives it back, and a put that nobody waits for is told to the next flush.
        let (stand_in, ended) = match *entry.work {
            Work::Put(_) => {
                let put = Put {
                    acknowledged: true,
                    ..Put::new(Buffer::default(), (0, 0), 0)
                };
                (Work::Put(put), Ended::Done(Err(error)))
            }
            Work::Get(_) => {
                let get = Get::new(BufferMut::default(), (0, 0), 0);
                (Work::Get(get), Ended::Lost(error))
            }
            Work::Recv(_) => (Work::Flush, Ended::Lost(error)),
            _ => (Work::Flush, Ended::Done(Err(error))),
        };
        let work = std::mem::replace(&mut *entry.work, stand_in);
        self.keep(pair, work);
        self.finish(key, ended);
    }

    /// The peer is for as long as it copies a chunk: the operation ends in a pass after that, and nothing else ends it meanwhile.
    fn let_leave(&mut self, pair: Arc<Pair>, key: OpKey, error: Error) {
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.one_sided = Some(Box::new(OneSided::Leaving));
            self.push_leaving(pair, Left::Failed(key, error));
        }
    }

    fn push_leaving(&mut self, pair: Arc<Pair>, what: Left) {
        self.leaving.push(Leaving {
            pair,
            what,
            until: Instant::now() + LEAVES_WITHIN,
        });
    }

    #[cfg(test)]
    pub(crate) fn has_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// How long peers may stay in what they are in: tests have their own clock.
    #[cfg(test)]
    pub(crate) fn let_stay(&mut self, until: Instant) {
        for leaving in &mut self.leaving {
            leaving.until = until;
        }
    }

    /// Lets go of memory that the peer may be inside, once it is outside.
    pub(crate) fn let_go(&mut self, pair: &Arc<Pair>, memory: Work) {
        if pair.is_peer_outside() {
            self.ctx.defer_drop(memory);
        } else if pair.is_slow() {
            self.keep(pair.clone(), memory);
        } else {
            self.push_leaving(pair.clone(), Left::Memory(memory));
        }
    }

    /// Ends what peers have left, and what they stay in. Returns how many. `all`: without another moment.
    pub(crate) fn end_leaving(&mut self, all: bool) -> usize {
        if self.leaving.is_empty() {
            return 0;
        }
        let (mut left, before) = (Vec::new(), self.leaving.len());
        while !self.leaving.is_empty() {
            let now = Instant::now();
            // What fails leaves its memory behind, to be looked at next.
            for leaving in std::mem::take(&mut self.leaving) {
                let is_outside = leaving.pair.is_peer_outside();
                if is_outside || all || leaving.until <= now {
                    self.end_left(leaving.pair, leaving.what, is_outside);
                } else {
                    left.push(leaving);
                }
            }
        }
        self.leaving = left;
        before - self.leaving.len()
    }

    fn end_left(&mut self, pair: Arc<Pair>, what: Left, is_outside: bool) {
        pair.set_slow(!is_outside);
        match (what, is_outside) {
            (Left::Memory(memory), true) => self.ctx.defer_drop(memory),
            (Left::Memory(memory), false) => {
                let memory = Some(memory);
                self.push_lingering(Lingering { pair, memory });
            }
            (Left::Failed(key, error), _) => {
                if let Some(entry) = self.ctx.operations.get(key) {
                    entry.one_sided = None;
                }
                match is_outside {
                    true => self.finish(key, Ended::Done(Err(error))),
                    false => self.fail_inside(pair, key, error),
                }
            }
        }
    }

    /// Transfers of a connection that has ended are taken back.
    pub(crate) fn revoke_all(&mut self, link: LinkId) {
        let Self { ctx, transfers, .. } = self;
        transfers.retain(|transfer| {
            if transfer.link == link
                && let Some(word) = transfer.chunks
                && let Some(one_copy) = ctx.one_copy(link)
            {
                one_copy.pair.revoke(word);
            }
            transfer.link != link
        });
    }

    /// Has something done once the lock is gone.
    pub(in crate::worker) fn errand(&mut self, errand: Errand) {
        self.errands.push(errand);
        self.ctx.deferred.push(Deferred::Errand);
    }

    /// Keeps memory that a peer may be inside, from the next pass on: who makes passes learns of it.
    fn keep(&mut self, pair: Arc<Pair>, memory: Work) {
        self.leaving.push(Leaving {
            pair,
            what: Left::Memory(memory),
            until: Instant::now(),
        });
    }

    /// The same for what the peer of a connection that has ended was let at. Each region knows of it by itself: it may outlive the worker.
    pub(crate) fn linger_in_exposed(&mut self, pair: Arc<Pair>) {
        for slot in pair.lets() {
            let guest = Box::new(Gone(pair.clone()));
            self.ctx.regions.is_left_inside(slot, guest);
        }
        self.push_lingering(Lingering { pair, memory: None });
    }

    fn push_lingering(&mut self, kept: Lingering) {
        self.lingering.push(kept);
        self.linger_new = true;
        self.linger_pause = LINGER;
        self.linger_next = Instant::now();
    }

    /// The worker goes. Memory that a peer is still inside, which is stopped in the middle of a copy, outlives it.
    pub(crate) fn outlive(&mut self) {
        self.end_leaving(true);
        self.release_lingering();
        let mut lingering = std::mem::take(&mut self.lingering);
        lingering.retain(|kept| kept.memory.is_some());
        if !lingering.is_empty() {
            keeper::keep(Box::new(move || {
                lingering.retain(|kept| !kept.pair.is_peer_outside());
                lingering.is_empty()
            }));
        }
    }

    /// How long until what lingers is looked at again. For the reactor, which sees to it: no arrival tells that a peer has left.
    pub(in crate::worker) fn until_lingering(&mut self) -> Option<Duration> {
        self.linger_new = false;
        let next = self.linger_next;
        (!self.lingering.is_empty()).then(|| next.saturating_duration_since(Instant::now()))
    }

    /// Lets go of memory whose writers are seen outside.
    pub(crate) fn release_lingering(&mut self) {
        if self.lingering.is_empty() {
            return;
        }
        // A look may be a system call, and some peers never go.
        let now = Instant::now();
        if now < self.linger_next {
            return;
        }
        let before = self.lingering.len();
        let mut last = (std::ptr::null(), false);
        let (over, kept) = std::mem::take(&mut self.lingering)
            .into_iter()
            .partition(|kept| {
                // Many in a row are of one peer.
                let pair = Arc::as_ptr(&kept.pair);
                if last.0 != pair {
                    last = (pair, kept.pair.is_peer_outside());
                }
                last.1
            });
        self.lingering = kept;
        self.linger_pause = match self.lingering.len() < before {
            true => LINGER,
            false => (self.linger_pause * 2).min(LINGER_MOST),
        };
        self.linger_next = now + self.linger_pause;
        for kept in Vec::<Lingering>::into_iter(over) {
            match kept.memory {
                Some(work) => self.ctx.defer_drop(work),
                None => self.ctx.look_at_counters(),
            }
        }
    }
}
