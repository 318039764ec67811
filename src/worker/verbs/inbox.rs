//! Active messages that come in.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Waker,
};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::BufferMut,
    protocol::{
        am,
        control::{self, Announcement},
        ledger::AccountId,
        window::{Due, Terms, eager_cost},
    },
    transport::{Hold, Place},
    types::{AmId, EndpointId, LinkId, OpKey, Tag},
    util::waker_slot::WakerSlot,
    worker::{
        core::Core,
        ctx::{Ctx, sender_gone},
        inbox::{
            Inbox, NOBODY, PLACE, Refused, Standing,
            content::{Announced, Arrived, Content},
            rejection, too_many,
        },
        operations::Work,
        peer::at,
        violation::violation,
    },
};

impl Ctx {
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
                    self.give_active(link, id, capacity, (messages, bytes));
                }
            }
        }
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
            plenty: Terms::messages(capacity).plenty(),
            queue: VecDeque::new(),
            passed: 0,
            waker: WakerSlot::default(),
            runner: None,
            running: false,
        };
        self.inboxes.open.entry(id.0, inbox);
        for peer in self.movers.ctx.peers.iter_mut().flatten() {
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
                self.movers.ctx.failures.push((peer.slot, error));
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
        let mut inbox = self.inboxes.open.remove(id.0)?;
        self.movers.ctx.drop_later(inbox.waker.take());
        // By connection: messages, and bytes of those that came unasked.
        let mut refusals: BTreeMap<LinkId, (u32, u64)> = BTreeMap::new();
        for standing in inbox.queue {
            let link = match &standing {
                Standing::Message(arrived) => {
                    self.movers.ctx.am_let_go(id, arrived);
                    arrived.link
                }
                Standing::CalledBack { link, account } => {
                    self.movers.ctx.ledger.give(*account, PLACE);
                    *link
                }
            };
            let Some(inbound) =
                at(&mut self.movers.ctx.peers, link).and_then(|peer| peer.am.inbound_of(id))
            else {
                continue;
            };
            inbound.window.refuse(1);
            let mut bytes = 0;
            if let Standing::Message(arrived) = &standing {
                bytes = u64::from(arrived.cost);
                inbound.bytes.refuse(bytes);
                if let Content::Announced(announced) = &arrived.content {
                    self.movers
                        .ctx
                        .am_reject(link, arrived.from, announced.rts.op, NOBODY);
                }
            }
            let (count, sum) = refusals.entry(link).or_default();
            (*count, *sum) = (*count + 1, *sum + bytes);
        }
        for (link, (count, bytes)) in refusals {
            if let Some(peer) = self.movers.ctx.peer(link) {
                peer.am.refuse(id);
            }
            self.movers.ctx.am_tell_refused(link, id, count, bytes);
        }
        inbox.runner
    }

    /// The way of an eager message to who polls for it. `false`: it goes another.
    #[inline(always)]
    pub(in crate::worker) fn am_direct(
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
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
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
            let capacity = awaited.capacity;
            self.movers
                .ctx
                .give_active(link, id, capacity, (messages, bytes));
        }
        true
    }

    /// An eager message, whole, in all other cases.
    pub(in crate::worker) fn am_eager(
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
    pub(in crate::worker) fn am_place(
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
            self.movers.ctx.am_refuse(link, id, Refused::Eager { cost });
            return Ok(Place::Discard);
        }
        self.movers.ctx.begin_arriving(link, total)?;
        let mut data = vec![0; total];
        data[..prefix.len()].copy_from_slice(prefix);
        let address = data[prefix.len()..].as_mut_ptr();
        let work = Work::AmLanding { data, word };
        let key = self.movers.ctx.operations.insert(Some(link), true, work);
        Ok(self.movers.ctx.lend(key, address))
    }

    /// Such a payload is here.
    pub(in crate::worker) fn am_landed(&mut self, link: LinkId, key: OpKey) {
        let Some(Work::AmLanding { data, word }) = self.movers.ctx.operations.take_work(key) else {
            return;
        };
        self.movers.ctx.end_arriving(link, data.len());
        let cost = eager_cost(data.len());
        let pushed = am::parse(word, data.len()).and_then(|(id, header)| {
            if self.inboxes.find(id).is_none()
                && let Some(inbound) = self
                    .movers
                    .ctx
                    .peer(link)
                    .and_then(|peer| peer.am.inbound_of(id))
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
            self.movers.ctx.broken(link, error);
        }
    }

    /// An announced message.
    pub(in crate::worker) fn am_announced(
        &mut self,
        link: LinkId,
        word: u64,
        body: &[u8],
    ) -> Result<()> {
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
            self.movers.ctx.control(link, control::DONE, op, &[]);
        }
        Ok(())
    }

    /// Counts an eager message against the window of its id. `false`: nobody receives it, and it is not counted.
    fn am_hold(&mut self, link: LinkId, id: AmId, cost: u64) -> Result<bool> {
        if self.inboxes.find(id).is_none() {
            return Ok(false);
        }
        if let Some(peer) = self.movers.ctx.peer(link)
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
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return Ok(());
        };
        let Some(inbox) = self.inboxes.find(id) else {
            self.movers.ctx.am_refuse(link, id, refused);
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
        self.movers.ctx.ledger.take(account, content.amount())?;
        let is_new = inbound.is_new;
        let capacity = inbox.capacity;
        let messages = inbound.window.due(&Terms::messages(capacity));
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
            self.movers.ctx.wakes.push(waker);
        } else if let Some(runner) = &inbox.runner
            && !std::mem::replace(&mut inbox.running, true)
        {
            self.movers.ctx.wakes.push(runner.clone());
        }
        self.inboxes.is_held |= is_held;
        // What comes later waits behind it.
        let awaited = &mut self.inboxes.awaited;
        awaited.take_if(|awaited| awaited.id == id && awaited.arrived.is_none());
        if is_new {
            self.movers.ctx.give_messages(link, id, capacity);
        }
        if (messages, bytes) != (Due::Nothing, Due::Nothing) {
            self.movers
                .ctx
                .give_active(link, id, capacity, (messages, bytes));
        }
        Ok(())
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
        self.movers.ctx.am_let_go(id, &arrived);
        self.am_clear(id);
        self.movers
            .ctx
            .am_return(arrived.link, id, capacity, u64::from(arrived.cost));
        Some(arrived)
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
        let key = self.enter_payload(link, buffer, unstaged);
        if self
            .movers
            .ctx
            .endpoint(link, from)
            .is_some_and(|peer| peer.is_alive())
        {
            self.movers
                .begin_rendezvous(key, link, from, Tag(u64::from(id.0)), rts);
        } else {
            self.fail_operation(key, sender_gone());
        }
        key
    }

    /// The sender takes an announced message back, if nobody has taken it.
    pub(in crate::worker) fn am_cancel(&mut self, link: LinkId, op: u64) -> bool {
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
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
        self.movers.ctx.ledger.give(account, content.amount());
        self.movers.ctx.ledger.hold(account, PLACE);
        self.am_clear(id);
    }

    /// Drops from the front of an inbox what was called back: its credits go back.
    fn am_clear(&mut self, id: AmId) {
        while let Some(inbox) = self.inboxes.find(id)
            && let Some((link, account)) = inbox.pop_gone()
        {
            let capacity = inbox.capacity;
            self.movers.ctx.ledger.give(account, PLACE);
            self.movers.ctx.am_return(link, id, capacity, 0);
        }
    }

    /// A connection has ended: what it only announced went with it.
    pub(in crate::worker) fn am_ended(&mut self, link: LinkId) {
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return;
        };
        for (_, (id, number)) in std::mem::take(&mut peer.am.announced) {
            self.am_call_back(id, number);
        }
    }

    /// Forgets all that was brought under an account.
    pub(in crate::worker) fn am_forget(&mut self, account: AccountId) {
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
    pub(in crate::worker) fn am_end(&mut self) {
        for inbox in self.inboxes.open.values_mut() {
            self.movers.ctx.wakes.extend(inbox.waker.take());
        }
    }
}
