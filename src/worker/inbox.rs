//! Active messages that arrive: one inbox for each id, in the order of arrival, and what becomes of messages that have none.
//!
//! A peer can fill an inbox as far as it has credits: the capacity for each connection, [`am::GRANT`] at least. What it sends to an id
//! without an inbox is thrown away at once, answered by a refusal that returns the credit, and takes no memory here.
//!
//! A message for who polls at this moment, or for a callback, stays where it arrived if it can ([`Content::InPlace`]) until it was looked at.
//!
//! # Safety
//! A message that is [`Held`] is dropped before the interface that brought it: those in an inbox go with the [`Core`], which the engine drops before its
//! interfaces, and who takes one out holds the worker while it is looked at.
#![allow(unsafe_code)]

use std::{collections::VecDeque, sync::Arc, task::Waker};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::BufferMut,
    protocol::{
        am,
        control::{self, Announcement},
        ledger::{AccountId, Amount},
        window::{Due, Terms, eager_cost},
    },
    transport::{Held, Hold, InPlace, Place},
    types::{AmId, EndpointId, LinkId, OpKey, Tag},
    util::{by_id::ById, waker_slot::WakerSlot},
    worker::{
        core::Core,
        deliver::violation,
        direct::{FIRST_LOOKS, LOOKS, PASSES},
        engine::Engine,
        operations::Work,
        peer::at,
        windows::Window,
    },
};

/// Longest message that is kept in place.
const INLINE: usize = 48;

/// What a message takes beside its payload.
const PLACE: Amount = Amount::message(size_of::<Standing>());

/// A message in an inbox.
pub(crate) struct Arrived {
    pub(crate) link: LinkId,
    pub(crate) from: EndpointId,
    account: AccountId,
    /// What it takes of the window of its id until it is taken; 0 for an announced one.
    cost: u32,
    pub(crate) content: Content,
}

impl Arrived {
    /// All of it; an empty message is left.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            content: std::mem::take(&mut self.content),
            ..*self
        }
    }
}

/// A message that was taken where it lies, past the queues.
pub(crate) struct Front {
    pub(crate) link: LinkId,
    pub(crate) from: EndpointId,
    header: u16,
    held: Held,
}

impl Front {
    #[inline(always)]
    pub(crate) fn arrived(self) -> Arrived {
        Arrived {
            link: self.link,
            from: self.from,
            account: AccountId::NOBODY,
            cost: 0,
            content: Content::InPlace {
                header: self.header,
                held: self.held,
            },
        }
    }

    /// A copy of it.
    #[inline(always)]
    pub(crate) fn kept(self) -> Content {
        Content::of_held(self.header, self.held)
    }
}

/// What such a message leaves to be given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Owed {
    link: LinkId,
    id: AmId,
    messages: Due,
    bytes: Due,
}

impl Owed {
    #[inline(always)]
    pub(crate) fn is_nothing(&self) -> bool {
        (self.messages, self.bytes) == (Due::Nothing, Due::Nothing)
    }
}

/// A place in the queue of an inbox.
enum Standing {
    Message(Arrived),
    /// Its sender took it back. It keeps its place, and its sender is charged for that, until those before it are gone: never the first of a
    /// queue.
    CalledBack {
        link: LinkId,
        account: AccountId,
    },
}

/// What is here of a message. `header` is the length of the user's header, in front.
pub(crate) enum Content {
    Inline {
        header: u8,
        length: u8,
        bytes: [u8; INLINE],
    },
    Whole {
        header: u16,
        bytes: Bytes,
    },
    /// Where it arrived.
    InPlace {
        header: u16,
        held: Held,
    },
    Announced(Box<Announced>),
}

/// A message whose payload is still with its sender.
pub(crate) struct Announced {
    pub(crate) rts: Announcement,
    pub(crate) header: Bytes,
}

impl Content {
    /// What it takes of its connection's account.
    #[inline]
    fn amount(&self) -> Amount {
        let bytes = match self {
            Self::Inline { .. } | Self::InPlace { .. } => 0,
            Self::Whole { bytes, .. } => bytes.len(),
            Self::Announced(announced) => size_of::<Announced>() + announced.header.len(),
        };
        Amount {
            bytes: PLACE.bytes + bytes as u64,
            ..PLACE
        }
    }

    fn eager(header: usize, body: &[u8]) -> Self {
        if body.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..body.len()].copy_from_slice(body);
            Self::Inline {
                header: header as u8,
                length: body.len() as u8,
                bytes,
            }
        } else {
            Self::Whole {
                header: header as u16,
                bytes: Bytes::copy_from_slice(body),
            }
        }
    }

    /// Left where it is, if there is a hold for that, else as [`Content::eager`].
    #[inline(always)]
    fn in_place(header: usize, body: &[u8], hold: Option<&Arc<Hold>>) -> Self {
        // SAFETY: within the call of the sink that brought both; the module's docs for the end.
        match hold.and_then(|hold| unsafe { hold.take(body) }) {
            Some(held) => Self::InPlace {
                header: header as u16,
                held,
            },
            None => Self::eager(header, body),
        }
    }

    /// The same in memory of its own.
    #[inline]
    pub(crate) fn kept(self) -> Self {
        match self {
            Self::InPlace { header, held } => Self::of_held(header, held),
            kept => kept,
        }
    }

    /// A copy of what lies in place.
    #[inline]
    fn of_held(header: u16, held: Held) -> Self {
        let length = held.length();
        if length <= INLINE {
            let mut bytes = [0; INLINE];
            held.copy_to(&mut bytes[..length]);
            Self::Inline {
                header: header as u8,
                length: length as u8,
                bytes,
            }
        } else {
            Self::Whole {
                header,
                bytes: held.to_vec().into(),
            }
        }
    }
}

impl Default for Content {
    /// Of an empty message.
    fn default() -> Self {
        Self::Inline {
            header: 0,
            length: 0,
            bytes: [0; INLINE],
        }
    }
}

struct Inbox {
    /// Never used again: an inbox that was opened later under the same id is another one.
    serial: u64,
    capacity: u32,
    /// The first was not called back.
    queue: VecDeque<Standing>,
    /// How many came before the first of the queue.
    passed: u64,
    waker: WakerSlot,
    /// Runs the callback, when there is one, and whether it runs or is about to.
    runner: Option<Waker>,
    running: bool,
}

impl Inbox {
    /// The next message.
    #[inline]
    fn pop(&mut self) -> Option<Arrived> {
        match self.queue.pop_front()? {
            Standing::Message(arrived) => {
                self.passed += 1;
                Some(arrived)
            }
            gone => {
                self.queue.push_front(gone);
                None
            }
        }
    }

    /// The first of the queue, if it was called back: whose it was, and who was charged.
    #[inline]
    fn pop_gone(&mut self) -> Option<(LinkId, AccountId)> {
        let Some(Standing::CalledBack { link, account }) = self.queue.front() else {
            return None;
        };
        let gone = (*link, *account);
        self.queue.pop_front();
        self.passed += 1;
        Some(gone)
    }

    /// Marks the message of this number as called back: who is charged for it, and what it was.
    fn call_back(&mut self, number: u64) -> Option<(AccountId, Content)> {
        let index = usize::try_from(number.checked_sub(self.passed)?).ok()?;
        let standing = self.queue.get_mut(index)?;
        let Standing::Message(Arrived { link, account, .. }) = *standing else {
            return None;
        };
        let gone = Standing::CalledBack { link, account };
        match std::mem::replace(standing, gone) {
            Standing::Message(arrived) => Some((account, arrived.content)),
            Standing::CalledBack { .. } => None,
        }
    }
}

/// An inbox that is empty and polled at this moment: the next message goes to who polls, by no queue and no account.
struct Awaited {
    id: AmId,
    capacity: u32,
    /// It is to be kept: copied at once rather than left in place and copied then.
    keeps: bool,
    arrived: Option<Arrived>,
}

/// Ends the look, also when something in a pass panics.
struct Looking<'a>(&'a mut Engine);

impl Drop for Looking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.core.inboxes.awaited = None;
    }
}

/// The inboxes of a worker.
#[derive(Default)]
pub(crate) struct Inboxes {
    open: ById<Inbox>,
    serial: u64,
    awaited: Option<Awaited>,
    /// A message waits in place for a callback.
    is_held: bool,
}

impl Inboxes {
    #[inline]
    fn find(&mut self, id: AmId) -> Option<&mut Inbox> {
        self.open.get_mut(id.0)
    }

    /// The capacity of an inbox that is open.
    pub(super) fn capacity(&mut self, id: AmId) -> Option<u32> {
        self.find(id).map(|inbox| inbox.capacity)
    }

    fn own(&mut self, id: AmId, serial: u64) -> Option<&mut Inbox> {
        self.find(id).filter(|inbox| inbox.serial == serial)
    }

    /// Whether the next message is taken at once.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether a message has come, since this was asked, that stays in place until the lock is gone and a callback runs: better soon than late.
    #[inline]
    pub(super) fn has_held(&mut self) -> bool {
        std::mem::take(&mut self.is_held)
    }
}

#[cold]
fn too_many() -> Error {
    violation("the peer sent more active messages than it has credits for")
}

/// What is refused.
enum Refused {
    Eager { cost: u64 },
    Announced { op: u64 },
}

impl Engine {
    /// Takes the next message of the link that brought the last one, if it is for this inbox and nothing comes before it: where it lies, past the
    /// queues. What is then to be given back to the peer is left to [`Engine::am_settle`]. `looks`: of [`Wanted`](crate::transport::Wanted).
    #[inline(always)]
    pub(crate) fn am_front(&mut self, id: AmId, serial: u64, looks: u32) -> Option<(Front, Owed)> {
        if self.is_armed() {
            return None;
        }
        let inbox = self.core.inboxes.own(id, serial)?;
        // Whoever left a waker looks by itself first.
        if !inbox.queue.is_empty() || !inbox.waker.is_empty() {
            return None;
        }
        let terms = Terms::messages(inbox.capacity);
        // SAFETY: module docs.
        let InPlace { from, header, held } = unsafe {
            self.take_in_place(
                control::AM_EAGER,
                am::word(id, 0),
                am::word(AmId(u16::MAX), 0),
                looks,
            )
        }?;
        let peer = at(&mut self.core.peers, from)?;
        let inbound = peer.am.inbound(id);
        if !inbound.bytes.pass(eager_cost(held.length())) {
            self.core.exceeded(from);
            return None;
        }
        if !inbound.window.pass(1) {
            self.core.broken(from, too_many());
            return None;
        }
        let Ok((_, header)) = am::parse(header, held.length()) else {
            let text = "an active message is shorter than its header";
            self.core.broken(from, violation(text));
            return None;
        };
        let messages = match inbound.is_new {
            false => inbound.window.due(&terms),
            true => Due::Now,
        };
        let bytes = inbound.bytes.due(&Terms::ACTIVE);
        let owed = Owed {
            link: from,
            id,
            messages,
            bytes,
        };
        let front = Front {
            link: from,
            from: peer.id,
            header: header as u16,
            held,
        };
        Some((front, owed))
    }

    /// What follows [`Engine::am_front`].
    #[cold]
    pub(crate) fn am_settle(&mut self, owed: Owed) {
        let Owed {
            link,
            id,
            messages,
            bytes,
        } = owed;
        self.core.give_back(Window::Messages(link, id), messages);
        self.core.give_back(Window::Active(link, id), bytes);
    }

    /// The next message: one that waits, or one that arrives while this looks, for the length of one lap: at what is likeliest, and in fewer passes at
    /// everything.
    #[inline(always)]
    pub(crate) fn am_now(&mut self, id: AmId, serial: u64, keeps: bool) -> Option<Arrived> {
        let mut waited = false;
        let mut arrived = None;
        for _ in 0..PASSES {
            let looks = if waited { LOOKS } else { 0 };
            if let Some((front, owed)) = self.am_front(id, serial, looks) {
                if !owed.is_nothing() {
                    self.am_settle(owed);
                }
                arrived = Some(front.arrived());
                break;
            }
            arrived = self.am_try(id, serial, keeps);
            if arrived.is_some() || self.core.inboxes.has_held() {
                break;
            }
            waited = true;
        }
        if arrived.is_none() {
            self.first_looks = 0;
        } else if waited {
            self.late += 1;
            self.first_looks = FIRST_LOOKS;
        }
        arrived
    }

    /// One that waits, or one that a single pass brings.
    #[inline(never)]
    pub(crate) fn am_try(&mut self, id: AmId, serial: u64, keeps: bool) -> Option<Arrived> {
        let inbox = self.core.inboxes.own(id, serial)?;
        if !inbox.queue.is_empty() {
            return self.core.am_take(id, serial);
        }
        inbox.running = false;
        // Its own progress must not wake it.
        inbox.waker.take();
        self.core.inboxes.awaited = Some(Awaited {
            id,
            capacity: inbox.capacity,
            keeps,
            arrived: None,
        });
        let lent = Looking(self);
        lent.0.progress();
        match &mut lent.0.core.inboxes.awaited {
            Some(awaited) => awaited.arrived.take(),
            None => lent.0.core.am_take(id, serial),
        }
    }

    /// The next message for a callback, which runs on while there are some: one that waits, or one that is there where the last one came from.
    pub(crate) fn am_next(&mut self, id: AmId, serial: u64) -> Option<Arrived> {
        let inbox = self.core.inboxes.own(id, serial)?;
        if inbox.queue.is_empty() {
            // It runs: what comes now stays in place for it, and wakes nobody.
            self.glance();
        }
        self.core.am_take(id, serial)
    }
}

impl Core {
    /// Opens the inbox of an id. Peers that were refused hear of it.
    pub(crate) fn am_open(&mut self, id: AmId, capacity: u32) -> Result<u64> {
        if self.inboxes.find(id).is_some() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("active messages of id {} are received already", id.0),
            ));
        }
        self.inboxes.serial += 1;
        let serial = self.inboxes.serial;
        let inbox = || Inbox {
            serial,
            capacity,
            queue: VecDeque::new(),
            passed: 0,
            waker: WakerSlot::default(),
            runner: None,
            running: false,
        };
        self.inboxes.open.entry(id.0, inbox);
        for peer in self.peers.iter_mut().flatten() {
            let told = peer.am.admit(id);
            let owed = peer.am.inbound_of(id).and_then(|inbound| {
                inbound.overlook();
                inbound.owed(capacity)
            });
            let (messages, bytes) = owed.unwrap_or_default();
            if peer.is_alive()
                && (told || owed.is_some())
                && let Err(error) = peer.control(
                    control::AM_CREDIT,
                    am::credit(id, messages, false),
                    &bytes.to_le_bytes(),
                )
            {
                self.failures.push((peer.slot, error));
            }
        }
        Ok(serial)
    }

    /// Has messages of an inbox taken by `runner`, which is woken when there are some, rather than by a task.
    pub(crate) fn am_run_by(&mut self, id: AmId, serial: u64, runner: Waker) {
        if let Some(inbox) = self.inboxes.own(id, serial) {
            inbox.runner = Some(runner);
        }
    }

    /// Closes an inbox: what waits in it is refused. Gives back what is to be dropped without the lock.
    pub(crate) fn am_close(&mut self, id: AmId, serial: u64) -> Option<Waker> {
        self.inboxes.own(id, serial)?;
        let inbox = self.inboxes.open.remove(id.0)?;
        // By connection: messages, and bytes of those that came unasked.
        let mut refusals: Vec<(LinkId, u32, u64)> = Vec::new();
        for standing in inbox.queue {
            let link = match &standing {
                Standing::Message(arrived) => {
                    self.am_let_go(id, arrived);
                    arrived.link
                }
                Standing::CalledBack { link, account } => {
                    self.ledger.give(*account, PLACE);
                    *link
                }
            };
            let Some(inbound) = at(&mut self.peers, link).and_then(|peer| peer.am.inbound_of(id))
            else {
                continue;
            };
            inbound.window.refuse(1);
            let mut bytes = 0;
            if let Standing::Message(arrived) = &standing {
                bytes = u64::from(arrived.cost);
                inbound.bytes.refuse(bytes);
                if let Content::Announced(announced) = &arrived.content {
                    self.am_reject(link, arrived.from, announced.rts.op, NOBODY);
                }
            }
            match refusals.iter_mut().find(|(of, ..)| *of == link) {
                Some((_, count, sum)) => {
                    *count += 1;
                    *sum += bytes;
                }
                None => refusals.push((link, 1, bytes)),
            }
        }
        for (link, count, bytes) in refusals {
            if let Some(peer) = self.peer(link) {
                peer.am.refuse(id);
            }
            self.am_tell_refused(link, id, count, bytes);
        }
        inbox.runner
    }

    /// The way of an eager message to who polls for it. `false`: it goes another.
    #[inline(always)]
    pub(super) fn am_direct(
        &mut self,
        link: LinkId,
        word: u64,
        body: &[u8],
        hold: Option<&Arc<Hold>>,
    ) -> bool {
        let Some(awaited) = &mut self.inboxes.awaited else {
            return false;
        };
        let id = awaited.id;
        if am::id(word) != id || awaited.arrived.is_some() {
            return false;
        }
        let Ok((_, header)) = am::parse(word, body.len()) else {
            return false;
        };
        let Some(peer) = at(&mut self.peers, link) else {
            return false;
        };
        let Some(inbound) = peer.am.inbound_of(id) else {
            return false;
        };
        let cost = eager_cost(body.len());
        if !inbound.bytes.admits(cost) || !inbound.window.pass(1) {
            return false;
        }
        inbound.bytes.pass(cost);
        let hold = hold.filter(|_| !awaited.keeps);
        awaited.arrived = Some(Arrived {
            link,
            from: peer.id,
            account: AccountId::NOBODY,
            cost: 0,
            content: Content::in_place(header, body, hold),
        });
        let messages = inbound.window.due(&Terms::messages(awaited.capacity));
        let bytes = inbound.bytes.due(&Terms::ACTIVE);
        if (messages, bytes) != (Due::Nothing, Due::Nothing) {
            self.give_back(Window::Messages(link, id), messages);
            self.give_back(Window::Active(link, id), bytes);
        }
        true
    }

    /// An eager message, whole, in all other cases.
    pub(super) fn am_eager(
        &mut self,
        link: LinkId,
        word: u64,
        body: &[u8],
        hold: Option<&Arc<Hold>>,
    ) -> Result<()> {
        let (id, header) = am::parse(word, body.len())?;
        let cost = eager_cost(body.len());
        self.am_hold(link, id, cost)?;
        self.am_push(link, id, Refused::Eager { cost }, |inbox| {
            let hold = hold.filter(|_| inbox.runner.is_some());
            Content::in_place(header, body, hold)
        })
    }

    /// Where the payload of a long eager message goes: to memory of its own, if there is an inbox.
    pub(super) fn am_place(
        &mut self,
        link: LinkId,
        word: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let total = prefix.len() + length;
        let (id, _) = am::parse(word, total)?;
        let cost = eager_cost(total);
        if !self.am_hold(link, id, cost)? {
            self.am_refuse(link, id, Refused::Eager { cost });
            return Ok(Place::Discard);
        }
        let mut data = vec![0; total];
        data[..prefix.len()].copy_from_slice(prefix);
        let address = data[prefix.len()..].as_mut_ptr();
        let work = Work::AmLanding { data, word };
        let key = self.operations.insert(Some(link), true, work);
        Ok(self.lend(key, address))
    }

    /// Such a payload is here.
    pub(super) fn am_landed(&mut self, link: LinkId, key: OpKey) {
        let Some(Work::AmLanding { data, word }) =
            self.operations.remove(key).map(|entry| entry.work)
        else {
            return;
        };
        let cost = eager_cost(data.len());
        let pushed = am::parse(word, data.len()).and_then(|(id, header)| {
            if self.inboxes.find(id).is_none()
                && let Some(inbound) = self.peer(link).and_then(|peer| peer.am.inbound_of(id))
            {
                // It was closed meanwhile.
                inbound.bytes.refuse(cost);
            }
            self.am_push(link, id, Refused::Eager { cost }, |_| Content::Whole {
                header: header as u16,
                bytes: data.into(),
            })
        });
        if let Err(error) = pushed {
            self.broken(link, error);
        }
    }

    /// An announced message.
    pub(super) fn am_announced(&mut self, link: LinkId, word: u64, body: &[u8]) -> Result<()> {
        let (rts, end) = Announcement::decode(body)?;
        let user = body.get(end..).unwrap_or(&[]);
        let (id, header) = am::parse(word, user.len())?;
        if header != user.len() {
            return Err(violation(
                "an announced message has bytes behind its header",
            ));
        }
        let empty = rts.length == 0 && self.inboxes.find(id).is_some();
        let op = rts.op;
        self.am_push(link, id, Refused::Announced { op }, |_| {
            if empty {
                // Nothing is left to fetch.
                Content::eager(header, user)
            } else {
                let header = Bytes::copy_from_slice(user);
                Content::Announced(Box::new(Announced { rts, header }))
            }
        })?;
        if empty {
            self.control(link, control::DONE, op, &[]);
        }
        Ok(())
    }

    /// Counts an eager message against the window of its id. `false`: nobody receives it, and it is not counted.
    fn am_hold(&mut self, link: LinkId, id: AmId, cost: u64) -> Result<bool> {
        if self.inboxes.find(id).is_none() {
            return Ok(false);
        }
        if let Some(peer) = self.peer(link)
            && !peer.am.inbound(id).bytes.hold(cost)
        {
            return Err(violation(
                "the peer exceeded the window of its active messages",
            ));
        }
        Ok(true)
    }

    /// Puts a message into its inbox, or refuses it. An eager one was counted.
    #[inline]
    fn am_push(
        &mut self,
        link: LinkId,
        id: AmId,
        refused: Refused,
        content: impl FnOnce(&Inbox) -> Content,
    ) -> Result<()> {
        let Some(peer) = at(&mut self.peers, link) else {
            return Ok(());
        };
        let Some(inbox) = self.inboxes.find(id) else {
            self.am_refuse(link, id, refused);
            return Ok(());
        };
        let account = peer.account.unwrap_or(AccountId::NOBODY);
        let content = content(inbox);
        let op = match &content {
            Content::Announced(announced) => Some(announced.rts.op),
            _ => None,
        };
        if op.is_some_and(|op| peer.am.announced.contains_key(&op)) {
            return Err(violation("announced twice"));
        }
        let inbound = peer.am.inbound(id);
        if !inbound.window.hold(1) {
            return Err(too_many());
        }
        self.ledger.take(account, content.amount())?;
        let is_new = inbound.is_new;
        let messages = inbound.window.due(&Terms::messages(inbox.capacity));
        let bytes = inbound.bytes.due(&Terms::ACTIVE);
        if let Some(op) = op {
            let number = inbox.passed + inbox.queue.len() as u64;
            peer.am.announced.insert(op, (id, number));
        }
        let is_held = matches!(content, Content::InPlace { .. });
        inbox.queue.push_back(Standing::Message(Arrived {
            link,
            from: peer.id,
            account,
            cost: match refused {
                Refused::Eager { cost } => cost as u32,
                Refused::Announced { .. } => 0,
            },
            content,
        }));
        if let Some(waker) = inbox.waker.take() {
            self.wakes.push(waker);
        } else if let Some(runner) = &inbox.runner
            && !std::mem::replace(&mut inbox.running, true)
        {
            self.wakes.push(runner.clone());
        }
        self.inboxes.is_held |= is_held;
        // What comes later waits behind it.
        let awaited = &mut self.inboxes.awaited;
        awaited.take_if(|awaited| awaited.id == id && awaited.arrived.is_none());
        if is_new {
            self.give_messages(link, id);
        }
        if (messages, bytes) != (Due::Nothing, Due::Nothing) {
            self.give_back(Window::Messages(link, id), messages);
            self.give_back(Window::Active(link, id), bytes);
        }
        Ok(())
    }

    /// Tells a peer that nobody receives this; nothing of it is kept.
    #[cold]
    fn am_refuse(&mut self, link: LinkId, id: AmId, what: Refused) {
        if let Some(peer) = self.peer(link) {
            peer.am.refuse(id);
        }
        let bytes = match what {
            Refused::Eager { cost } => cost,
            Refused::Announced { op } => {
                self.control(link, control::NACK, op, &rejection(NOBODY));
                0
            }
        };
        self.am_tell_refused(link, id, 1, bytes);
    }

    /// Messages are thrown away, with so many bytes that came unasked.
    fn am_tell_refused(&mut self, link: LinkId, id: AmId, count: u32, bytes: u64) {
        let credit = am::credit(id, count, bytes > 0);
        self.control(link, control::AM_REFUSED, credit, &bytes.to_le_bytes());
    }

    /// Takes the next message; its credit, and its share of the window, go back to the peer in time.
    #[inline]
    pub(crate) fn am_take(&mut self, id: AmId, serial: u64) -> Option<Arrived> {
        let inbox = self.inboxes.own(id, serial)?;
        let Some(arrived) = inbox.pop() else {
            inbox.running = false;
            return None;
        };
        let capacity = inbox.capacity;
        self.am_let_go(id, &arrived);
        self.am_clear(id);
        self.am_return(arrived.link, id, capacity, u64::from(arrived.cost));
        Some(arrived)
    }

    /// A message has left the inbox.
    #[inline]
    fn am_return(&mut self, link: LinkId, id: AmId, capacity: u32, cost: u64) {
        if let Some(peer) = at(&mut self.peers, link)
            && let is_open = peer.matches_announced()
            && let Some(inbound) = peer.am.inbound_of(id)
        {
            inbound.window.read(1);
            inbound.bytes.read(cost);
            if is_open {
                let messages = inbound.window.due(&Terms::messages(capacity));
                let bytes = inbound.bytes.due(&Terms::ACTIVE);
                if (messages, bytes) != (Due::Nothing, Due::Nothing) {
                    self.give_back(Window::Messages(link, id), messages);
                    self.give_back(Window::Active(link, id), bytes);
                }
            }
        }
    }

    /// The task that waits for the next message.
    #[inline]
    pub(crate) fn am_waker(&mut self, id: AmId, serial: u64) -> Option<&mut WakerSlot> {
        self.inboxes.own(id, serial).map(|inbox| &mut inbox.waker)
    }

    /// Begins to fetch the payload of an announced message into `buffer`, which has the room.
    pub(crate) fn am_fetch(
        &mut self,
        (link, from): (LinkId, EndpointId),
        id: AmId,
        rts: Announcement,
        (buffer, unstaged): (BufferMut, bool),
    ) -> OpKey {
        let order = self.unexpected.arrival();
        let key = self.enter_receive(buffer, link, order);
        if let Some(entry) = self.operations.get(key) {
            entry.discards = true;
            entry.unstaged = unstaged;
        }
        if self
            .endpoint(link, from)
            .is_some_and(|peer| peer.is_alive())
        {
            self.begin_rendezvous(key, link, from, Tag(u64::from(id.0)), rts);
        } else {
            self.fail_operation(
                key,
                Error::new(
                    ErrorKind::ConnectionReset,
                    "the sender is gone, and the message with it",
                ),
            );
        }
        key
    }

    /// Tells the sender of an announced message that nobody fetches it.
    pub(crate) fn am_reject(&mut self, link: LinkId, from: EndpointId, op: u64, reason: &str) {
        if self
            .endpoint(link, from)
            .is_some_and(|peer| peer.is_alive())
        {
            self.control(link, control::NACK, op, &rejection(reason));
        }
    }

    /// The sender takes an announced message back, if nobody has taken it.
    pub(super) fn am_cancel(&mut self, link: LinkId, op: u64) -> bool {
        let Some(peer) = at(&mut self.peers, link) else {
            return false;
        };
        let Some((id, number)) = peer.am.announced.remove(&op) else {
            return false;
        };
        self.am_call_back(id, number);
        true
    }

    /// The message in this place of an inbox is gone.
    fn am_call_back(&mut self, id: AmId, number: u64) {
        let Some(inbox) = self.inboxes.find(id) else {
            return;
        };
        let Some((account, content)) = inbox.call_back(number) else {
            return;
        };
        self.ledger.give(account, content.amount());
        self.ledger.hold(account, PLACE);
        self.am_clear(id);
    }

    /// Drops from the front of an inbox what was called back: its credits go back.
    fn am_clear(&mut self, id: AmId) {
        while let Some(inbox) = self.inboxes.find(id)
            && let Some((link, account)) = inbox.pop_gone()
        {
            let capacity = inbox.capacity;
            self.ledger.give(account, PLACE);
            self.am_return(link, id, capacity, 0);
        }
    }

    /// A message has left its inbox, or goes with it.
    #[inline]
    fn am_let_go(&mut self, id: AmId, arrived: &Arrived) {
        self.ledger.give(arrived.account, arrived.content.amount());
        if let Content::Announced(announced) = &arrived.content
            && let Some(peer) = at(&mut self.peers, arrived.link)
            && peer
                .am
                .announced
                .get(&announced.rts.op)
                .is_some_and(|(of, _)| *of == id)
        {
            peer.am.announced.remove(&announced.rts.op);
        }
    }

    /// A connection has ended: what it only announced went with it.
    pub(super) fn am_ended(&mut self, link: LinkId) {
        let Some(peer) = at(&mut self.peers, link) else {
            return;
        };
        for (_, (id, number)) in std::mem::take(&mut peer.am.announced) {
            self.am_call_back(id, number);
        }
    }

    /// Forgets all that was brought under an account.
    pub(super) fn am_forget(&mut self, account: AccountId) {
        let ids: Vec<u16> = self.inboxes.open.iter().map(|(id, _)| id).collect();
        for id in ids.into_iter().map(AmId) {
            let Some(inbox) = self.inboxes.find(id) else {
                continue;
            };
            let passed = inbox.passed;
            let places = (passed..).zip(&inbox.queue);
            let own: Vec<u64> = places
                .filter(|(_, standing)| {
                    matches!(standing, Standing::Message(arrived) if arrived.account == account)
                })
                .map(|(number, _)| number)
                .collect();
            for number in own {
                self.am_call_back(id, number);
            }
        }
    }

    /// The worker has ended: nothing more comes.
    pub(super) fn am_end(&mut self) {
        for inbox in self.inboxes.open.values_mut() {
            self.wakes.extend(inbox.waker.take());
        }
    }
}

const NOBODY: &str = "no inbox is open for this id";

/// The body of a rejection: the kind, and as much of the reason as there is room for.
fn rejection(reason: &str) -> Vec<u8> {
    const ROOM: usize = 46;
    let mut end = reason.len().min(ROOM);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut body = control::error_kind_code(ErrorKind::Rejected)
        .to_le_bytes()
        .to_vec();
    body.extend_from_slice(&reason.as_bytes()[..end]);
    body
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        config::RendezvousThreshold,
        protocol::thresholds::Lending,
        transport::{
            Connected, Interface, Link, LinkAttributes, PeerInfo, Registry, SendError, Sink,
        },
        types::{Identity, WorkerId},
        worker::peer::{Made, Peer},
    };

    pub(in crate::worker) type Sent = Arc<Mutex<Vec<(u8, u64)>>>;

    /// A link that takes everything and remembers what it was.
    #[derive(Debug)]
    struct Wire(Sent);

    impl Link for Wire {
        fn attributes(&self) -> LinkAttributes {
            LinkAttributes {
                transport: "test",
                max_short: 48,
                max_bcopy: 8192,
                max_zcopy: 0,
            }
        }
        fn am_short(&mut self, id: u8, header: u64, _: &[u8]) -> Result<(), SendError> {
            self.0.lock().push((id, header));
            Ok(())
        }
        fn am_bcopy(&mut self, id: u8, header: u64, _: &[u8], _: &[u8]) -> Result<(), SendError> {
            self.am_short(id, header, &[])
        }
        fn flush(&mut self, _: &mut dyn Sink) {}
        fn is_flushed(&self) -> bool {
            true
        }
    }

    pub(in crate::worker) const LINK: LinkId = LinkId::new(0, 1);
    const ID: AmId = AmId(3);

    /// A core with one connection.
    pub(in crate::worker) fn core() -> (Core, Sent) {
        let sent = Sent::default();
        let mut core = Core::new(Arc::default(), RendezvousThreshold::default());
        let link = Wire(sent.clone());
        let account = core.ledger.open(crate::protocol::ledger::Source::User(1));
        core.add_peer(Peer::new(Made {
            id: EndpointId(1),
            slot: LINK,
            interface: 0,
            link: Box::new(link),
            short: 48,
            eager: 8184,
            lending: Lending::new(None),
            worker: WorkerId([0; 16]),
            info: PeerInfo {
                identity: Identity {
                    boot: [1; 16],
                    net_namespace: 0,
                    pid_namespace: 0,
                    user_namespace: 0,
                    user: 0,
                    pid: 0,
                },
                name: "peer".into(),
                certificates: None,
            },
            account,
            transports: Vec::new(),
            one_copy: None,
            handles: 1,
        }));
        (core, sent)
    }

    fn eager(core: &mut Core, id: AmId, body: &[u8]) -> Result<()> {
        core.message(LINK, control::AM_EAGER, am::word(id, 0), body)
    }

    fn rts(length: u64, op: u64) -> [u8; control::Rts::SIZE] {
        control::Rts {
            op,
            length,
            address: 0,
            segment: 0,
            segment_offset: 0,
            slot: control::NONE,
        }
        .encode()
    }

    #[track_caller]
    fn violates(core: &mut Core, result: Result<()>) {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Protocol);
        assert_eq!(core.failures.len(), 1, "the connection is closed");
    }

    #[test]
    fn credits_are_kept() {
        let (mut core, sent) = core();
        let serial = core.am_open(ID, 20).unwrap();
        for _ in 0..20 {
            eager(&mut core, ID, b"x").unwrap();
        }
        assert_eq!(
            *sent.lock(),
            [(control::AM_CREDIT, am::credit(ID, 4, false))],
            "what the inbox has room for beyond the first ones"
        );
        // What is taken comes back in batches.
        for _ in 0..5 {
            assert!(core.am_take(ID, serial).is_some());
        }
        assert_eq!(sent.lock().len(), 2);
        for _ in 0..5 {
            eager(&mut core, ID, b"x").unwrap();
        }
        let result = eager(&mut core, ID, b"x");
        violates(&mut core, result);
    }

    #[test]
    fn announced_messages_need_credits_too() {
        let (mut core, _) = core();
        core.am_open(ID, 1).unwrap();
        for op in 0..16 {
            let word = am::word(ID, 0);
            core.message(LINK, control::AM_RTS, word, &rts(1 << 40, op))
                .unwrap();
        }
        let result = eager(&mut core, ID, b"x");
        violates(&mut core, result);
    }

    #[test]
    fn lengths_are_checked() {
        let word = |header| am::word(ID, header);
        let announced = rts(9, 1);
        let mut trailing = announced.to_vec();
        trailing.push(7);
        let cases: [(u8, u64, &[u8]); 6] = [
            (control::AM_EAGER, word(3), b"xx"),
            (control::AM_EAGER, word(0xffff), &[0; 70_000]),
            (control::AM_RTS, word(0), &announced[..43]),
            (control::AM_RTS, word(1), &announced),
            (control::AM_RTS, word(0), &trailing),
            (control::AM_EAGER, word(am::MAX_HEADER + 1), &[0; 5000]),
        ];
        for open in [true, false] {
            for (id, header, body) in cases {
                let (mut core, _) = core();
                if open {
                    core.am_open(ID, 16).unwrap();
                }
                let result = core.message(LINK, id, header, body);
                violates(&mut core, result);
            }
        }
        let (mut core, _) = core();
        let placed = core.place(LINK, control::AM_EAGER, word(3), b"x", 1);
        violates(&mut core, placed.map(|_| ()));
    }

    #[test]
    fn the_window_holds_for_active_messages() {
        let (mut core, _) = core();
        core.am_open(ID, 1000).unwrap();
        let body = vec![0; 8000];
        let mut result = Ok(());
        for _ in 0..200 {
            result = eager(&mut core, ID, &body);
            if result.is_err() {
                break;
            }
        }
        violates(&mut core, result);
    }

    /// Who closes an inbox owes its sender what is thrown away with it, and what had been taken before.
    #[test]
    fn a_window_is_whole_again_with_the_next_inbox() {
        let (mut core, _) = core();
        let body = vec![0; 8000];
        let whole = (am::WINDOW / eager_cost(body.len())) as usize;
        for _ in 0..3 {
            let serial = core.am_open(ID, 1000).unwrap();
            let place = core.place(LINK, control::AM_EAGER, am::word(ID, 0), &[], 8000);
            for _ in 1..whole {
                eager(&mut core, ID, &body).unwrap();
            }
            for _ in 0..5 {
                assert!(core.am_take(ID, serial).is_some());
            }
            core.am_close(ID, serial);
            let Ok(Place::Memory { token, .. }) = place else {
                panic!("{place:?}")
            };
            core.placed(LINK, token);
        }
        core.am_open(ID, 1000).unwrap();
        for _ in 0..whole {
            eager(&mut core, ID, &body).unwrap();
        }
        let result = eager(&mut core, ID, &body);
        violates(&mut core, result);
    }

    #[test]
    fn what_nobody_receives_takes_no_memory() {
        let (mut core, sent) = core();
        for number in 0..=u16::MAX {
            eager(&mut core, AmId(number), &[0; 4000]).unwrap();
            core.message(LINK, control::AM_RTS, am::word(AmId(number), 0), &rts(9, 1))
                .unwrap();
        }
        assert_eq!(core.operations.iter().count(), 0);
        let answers = std::mem::take(&mut *sent.lock());
        let refusals = answers.iter().filter(|(id, _)| *id == control::AM_REFUSED);
        assert_eq!(refusals.count(), 2 << 16);
        // Whichever is opened then, the peer hears of it.
        for id in [0, 63, 64, 40_000] {
            core.am_open(AmId(id), 16).unwrap();
            let told = sent.lock().pop();
            assert_eq!(
                told,
                Some((control::AM_CREDIT, am::credit(AmId(id), 0, false)))
            );
        }
        assert!(core.failures.is_empty());
    }

    #[test]
    fn echoes_of_nothing_are_ignored() {
        let (mut core, sent) = core();
        core.am_open(ID, 16).unwrap();
        for id in [control::AM_CREDIT, control::AM_REFUSED] {
            for word in [0, u64::MAX, am::credit(ID, u32::MAX, true)] {
                core.message(LINK, id, word, &[1; 40]).unwrap();
            }
        }
        core.message(LINK, control::CANCEL, 5, &[]).unwrap();
        assert!(core.failures.is_empty() && sent.lock().is_empty());
        eager(&mut core, ID, b"x").unwrap();
    }

    #[test]
    fn a_place_that_lands_after_the_inbox_closed_is_refused() {
        let (mut core, sent) = core();
        let serial = core.am_open(ID, 16).unwrap();
        let place = core.place(LINK, control::AM_EAGER, am::word(ID, 2), b"ab", 6000);
        let Ok(Place::Memory { token, .. }) = place else {
            panic!("{place:?}")
        };
        core.am_close(ID, serial);
        core.placed(LINK, token);
        assert_eq!(
            sent.lock().pop(),
            Some((control::AM_REFUSED, am::credit(ID, 1, true)))
        );
        assert_eq!(core.operations.iter().count(), 0);
        assert!(core.failures.is_empty());
    }

    /// Brings messages that may be taken from the front.
    #[derive(Debug)]
    struct Front {
        hold: Arc<Hold>,
        messages: VecDeque<(u64, &'static [u8])>,
    }

    #[allow(unsafe_code)]
    impl Interface for Front {
        fn attach(&mut self, _: LinkId, _: Connected) -> Result<Box<dyn Link>> {
            Err(too_many())
        }
        fn detach(&mut self, _: LinkId) {}
        fn register(&mut self, _: Registry) -> Result<()> {
            Ok(())
        }
        fn progress(&mut self, _: usize, _: &mut dyn Sink) -> usize {
            0
        }
        unsafe fn take_in_place(
            &mut self,
            id: u8,
            header: u64,
            mask: u64,
            _: u32,
        ) -> Option<InPlace> {
            let (front, body) = *self.messages.front()?;
            assert_eq!(id, control::AM_EAGER);
            if (front ^ header) & mask != 0 {
                return None;
            }
            // SAFETY: the caller's promise; the body is static.
            let held = unsafe { self.hold.take(body) }?;
            self.messages.pop_front();
            Some(InPlace {
                from: LINK,
                header: front,
                held,
            })
        }
        fn arm(&mut self) -> bool {
            true
        }
        fn disarm(&mut self) {}
    }

    fn engine(messages: Vec<(u64, &'static [u8])>, capacity: u32) -> (Engine, u64, Sent) {
        let (mut core, sent) = core();
        let serial = core.am_open(ID, capacity).unwrap();
        let mut engine = Engine::new(core).unwrap();
        let front = Front {
            hold: Hold::new(),
            messages: messages.into(),
        };
        engine.install("test", Box::new(front)).unwrap();
        (engine, serial, sent)
    }

    #[test]
    fn what_is_in_front_is_taken_by_its_inbox_in_order_and_counted() {
        let other = am::word(AmId(4), 0);
        let word = am::word(ID, 1);
        let messages: Vec<(u64, &'static [u8])> = vec![(word, b"ab"), (word, b"cd"), (other, b"")];
        let (mut engine, serial, sent) = engine(messages, 64);
        let (front, owed) = engine.am_front(ID, serial, 0).expect("it is there");
        assert!(engine.am_front(ID, serial, 0).is_none(), "one at a time");
        // The first of an id: the peer hears how many more there may be.
        assert!(!owed.is_nothing());
        engine.am_settle(owed);
        let credit = (control::AM_CREDIT, am::credit(ID, 64 - 15, false));
        assert_eq!(*sent.lock(), [credit]);
        assert!(
            matches!(front.kept(), Content::Inline { header: 1, length: 2, bytes } if bytes.starts_with(b"ab"))
        );
        eager(&mut engine.core, ID, b"before").unwrap();
        assert!(engine.am_front(ID, serial, 0).is_none(), "another waits");
        assert!(engine.core.am_take(ID, serial).is_some());
        assert!(
            engine.am_front(ID, serial + 1, 0).is_none(),
            "not its inbox"
        );
        let (front, owed) = engine.am_front(ID, serial, 0).expect("it is there");
        assert!(owed.is_nothing());
        drop(front);
        assert!(engine.am_front(ID, serial, 0).is_none(), "another's");
        assert!(engine.core.failures.is_empty());
        let left = engine.core.peer(LINK).unwrap().am.inbound_of(ID).unwrap();
        assert!(left.window.admits(62) && !left.window.admits(63));
        assert_eq!(engine.core.held().unexpected_messages, 0);
    }

    #[test]
    fn what_a_peer_may_not_send_is_refused_in_front_too() {
        let long: &'static [u8] = &[0; 8000];
        let plain = am::word(ID, 0);
        let cases = [
            (vec![(am::word(ID, 3), &b"xx"[..])], 0),
            (vec![(am::word(ID, 0xffff), long)], 0),
            // More than it has credits for, when nothing is given back; more than the window.
            (vec![(plain, &b"x"[..]); 20], 16),
            (vec![(plain, long); 200], 66),
        ];
        for (messages, allowed) in cases {
            let capacity = if allowed > 16 { 1000 } else { 1 };
            let (mut engine, serial, _) = engine(messages, capacity);
            let mut taken = 0;
            while let Some((front, owed)) = engine.am_front(ID, serial, 0) {
                if capacity > 1 && taken == 0 {
                    engine.am_settle(owed);
                }
                drop(front);
                taken += 1;
            }
            assert_eq!(taken, allowed);
            let failed = &engine.core.failures[..];
            assert!(
                matches!(failed, [(LINK, error)] if error.kind() == ErrorKind::Protocol),
                "{failed:?}"
            );
        }
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let long = "ä".repeat(40);
        let body = rejection(&long);
        assert!(body.len() <= 48);
        let error = control::error_of(&body);
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains(&"ä".repeat(23)), "{error}");
        let foreign = control::error_of(&[8, 0, 0xff, b'\n']);
        assert!(!foreign.to_string().contains('\n'), "{foreign}");
    }
}
