//! Into device memory: received messages, gets, and what peers put. For each fragment that it has, the receiver asks for as many bytes; they land
//! there like those of any get, and an engine copies them on.
//!
//! ```text
//! announced ─▶ PULL 0..n ─▶ ... FRAGMENT ─▶ engine ─┐
//!              PULL n..m ─▶      ... FRAGMENT ─▶ engine ─▶ DONE
//! ```
//!
//! What came unasked, a short message, is host memory of this side already: it is copied like any other (`local.rs`), and keeps its place in the
//! sender's window until then.
//!
//! # Safety
//! A part is asked for as a get of its own, whose buffer is the fragment, with the fragment as its owner: while the part travels nothing else uses
//! it.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{Buffer, BufferMut, region::Exposed},
    protocol::{
        control::{self, PutRts, Signal},
        layout::{Places, Shape},
        plan::{self, Comes},
    },
    types::{Access, EndpointId, LinkId, OpKey, Tag},
    worker::{
        core::Core,
        ctx::{Ctx, truncated},
        movers::Movers,
        operations::{Arrival, Body, Ended, Fill, Get, RecvStage, Work},
        signal::signal_of,
        violation::violation,
    },
};

use crate::worker::device::{
    pipe::{Kind, Pipe, Stage},
    pool::{Fragment, Side},
    route::Route,
};

/// A put into memory that this side has to fill itself, as its peer announces it.
pub(super) struct Announced {
    pub(super) op: u64,
    /// The memory, or why it may not be put into.
    pub(super) found: Result<Arc<Exposed>>,
    pub(super) signal: Option<Signal>,
    pub(super) offset: usize,
    pub(super) length: usize,
    /// The blocks that it goes to; they count among the requests of its peer.
    pub(super) blocks: Option<Shape>,
    /// Where in what was announced it begins.
    pub(super) first: u64,
    /// Out of device memory: whether nothing of it may stop on its way.
    pub(super) of_device: Option<bool>,
}

impl Ctx {
    /// All that a peer put is where it belongs.
    pub(in crate::worker) fn filled(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let Work::Fill(fill) = &mut *entry.work else {
            return;
        };
        let (op, signal, link) = (fill.op, fill.signal.take(), entry.link);
        if let Some(signal) = signal {
            self.raise(&signal);
        }
        if let Some(link) = link {
            self.fill_answered(link, key);
            self.control(link, control::DONE, op, &[]);
        }
        self.finish(key, Ended::Done(Ok(())));
    }
}

impl Movers {
    /// Begins to receive an announced message into memory that the host does not reach. `of_device`: out of such memory, perhaps.
    pub(crate) fn begin_pull(
        &mut self,
        key: OpKey,
        link: LinkId,
        op: u64,
        total: usize,
        of_device: bool,
    ) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        recv.stage = RecvStage::Copying;
        if total == 0 {
            self.ctx.control(link, control::DONE, op, &[]);
            return self.copied(key, Ok(()));
        }
        let own = self.ctx.is_to_itself(link);
        if plan::comes(own, of_device, true).contains(&Comes::Within) {
            return self.receive_within(key, link, op, total);
        }
        let Some(Work::Recv(recv)) = self.ctx.operations.work(key) else {
            return;
        };
        let types = recv.buffer.device_types();
        match self.devices.slot_for(&types) {
            Ok(slot) => {
                let mut pipe = Pipe::new(Kind::Pull { op, first: 0 }, slot, total);
                if of_device {
                    let unstaged = self.ctx.is_unstaged(key);
                    pipe.route = self.route_to(link, slot, total, unstaged);
                }
                self.begin_staged(key, pipe);
            }
            Err(error) => {
                self.ctx.refuse(link, op, error.kind());
                self.fail_operation(key, error);
            }
        }
    }

    /// A peer puts into memory that this side has to fill itself.
    pub(crate) fn put_announced(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let rts = PutRts::decode(body)?;
        let mark = rts.last & !(control::OF_DEVICE | control::UNSTAGED);
        if mark == 0 {
            return Err(violation("a put with a mark that there is not"));
        }
        let (signal, _) = signal_of(mark, body.get(PutRts::SIZE..).unwrap_or(&[]))?;
        let (generation, offset) = (rts.generation, rts.offset);
        let regions = &self.ctx.regions;
        let found = regions.check_any(rts.slot, generation, offset, rts.length, Access::WRITE);
        let unstaged = rts.last & control::UNSTAGED != 0;
        let announced = Announced {
            op,
            found,
            signal,
            offset: offset as usize,
            length: rts.length as usize,
            blocks: None,
            first: 0,
            of_device: (rts.last & control::OF_DEVICE != 0).then_some(unstaged),
        };
        self.fill_announced(link, announced);
        Ok(())
    }

    /// Lets a put in, counts it, and begins.
    pub(super) fn fill_announced(&mut self, link: LinkId, announced: Announced) {
        let (op, length, first) = (announced.op, announced.length, announced.first);
        let (signal, blocks) = (announced.signal, announced.blocks);
        let admitted = announced.found.and_then(|exposed| {
            let raise = signal.map(|signal| self.ctx.find_counter(&signal));
            let raise = raise.transpose()?.map(Box::new);
            let types = exposed.device.map(|(memory_type, _)| memory_type);
            if types.is_none() && length > 0 {
                // The descriptor says so.
                let text = "host memory is put into, not filled";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            let slot = self.devices.slot_for(types.as_slice())?;
            // Only now: the blocks were checked.
            let places = blocks.map(|shape| Box::new(Places::new(shape, first)));
            let weight = places.as_ref().map_or(0, |places| places.weight());
            let charged = self.ctx.charge_request(link, weight)?;
            Ok((exposed, raise, slot, places, charged))
        });
        let Some(admitted) = self.ctx.granted(link, op, admitted) else {
            return;
        };
        let (exposed, signal, slot, places, charged) = admitted;
        if places.is_some()
            && let Some(peer) = self.ctx.peer(link)
        {
            peer.requests().serving += 1;
        }
        let route = match announced.of_device.filter(|_| exposed.device.is_some()) {
            Some(unstaged) => self.route_to(link, slot, length, unstaged),
            None => Route::Staged,
        };
        let fill = Work::Fill(Fill {
            charged,
            exposed,
            offset: announced.offset,
            op,
            signal,
            places,
        });
        let key = self.ctx.operations.insert(Some(link), true, fill);
        let mut pipe = Pipe::new(Kind::Pull { op, first }, slot, length);
        pipe.route = route;
        if length > 0 {
            return self.begin_staged(key, pipe);
        }
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.staged.get_or_insert_default().pipe = Some(pipe);
        }
        self.staging_done(key);
    }

    /// Asks for as many parts as there are fragments.
    pub(in crate::worker) fn step_pull(&mut self, key: OpKey, kind: Kind) {
        if !self.step_route(key, kind) {
            return;
        }
        while let Some((fragment, next, length)) = self.next_part(key, Side::In)
            && let Some(entry) = self.ctx.operations.get(key)
        {
            let (Some(link), priority) = (entry.link, entry.priority) else {
                return;
            };
            let Some(pipe) = entry.pipe() else { return };
            let part = pipe.begin(length, Some(fragment.clone()), Stage::Travelling);
            let layout = entry.work.layout().and_then(|plan| plan.part(next));
            let (target, offset, pull) = match kind {
                Kind::Get { mut target } => {
                    if layout.is_none() {
                        target.offset += next as u64;
                    }
                    (Some(target), target.offset, None)
                }
                Kind::Pull { op, first } => (None, first + next as u64, Some(op)),
                _ => return,
            };
            let get = Get {
                layout,
                pull,
                ..Get::new(
                    whole(&fragment, length),
                    target.map_or((0, 0), |target| (target.slot, target.generation)),
                    offset,
                )
            };
            let of = ((key, part), fragment);
            self.start_part(link, of, priority, Work::Get(get), target);
        }
    }

    /// A part has landed in its fragment: on to where it belongs.
    pub(in crate::worker) fn part_landed(&mut self, key: OpKey, id: u32) {
        if let Some(part) = self.ctx.pipe(key).and_then(|pipe| pipe.part(id)) {
            part.stage = Stage::Storing;
            self.move_part(key, id, false);
        }
    }

    /// A message is here, and it or the buffer that it is for is out of the host's reach: an engine copies it.
    pub(crate) fn store_message(
        &mut self,
        key: OpKey,
        (link, from, tag): (LinkId, EndpointId, Tag),
        data: Buffer,
        credit: u64,
    ) {
        let Some(entry) = self.ctx.operations.attach(key, link) else {
            return self.ctx.consumed(link, credit);
        };
        let Work::Recv(recv) = &mut *entry.work else {
            return;
        };
        let (length, room) = (data.len(), recv.buffer.len());
        recv.stage = RecvStage::Copying;
        recv.arrival = Some(Arrival { length, tag, from });
        let mut types = data.device_types();
        types.extend(recv.buffer.device_types());
        let staged = entry.staged.get_or_insert_default();
        staged.source = Some(data);
        staged.credit = credit;
        if length > room {
            return self.fail_operation(key, truncated(length as u64, room));
        }
        self.begin_local(key, &types, length);
    }

    /// The same for a message as the unexpected ones are kept.
    pub(crate) fn store_body(&mut self, key: OpKey, of: (LinkId, EndpointId, Tag), body: Body) {
        let (data, ack, credit) = match body {
            Body::Inline { length, bytes, ack } => {
                let data = bytes.get(..usize::from(length)).unwrap_or(&bytes).to_vec();
                let cost = crate::protocol::window::eager_cost(data.len());
                (Buffer::from(data), ack, cost)
            }
            Body::Whole { data, ack, credit } => (data, ack, u64::from(credit)),
            Body::Announced(_) | Body::Arriving { .. } => {
                let error = Error::new(ErrorKind::Unsupported, "not a whole message");
                return self.fail_operation(key, error);
            }
        };
        if let Some(op) = ack {
            self.ctx.control(of.0, control::DONE, op, &[]);
        }
        self.store_message(key, of, data, credit);
    }
}

impl Core {
    /// Enters a receive of a payload that is here.
    pub(crate) fn am_store(
        &mut self,
        (link, from): (LinkId, EndpointId),
        data: Buffer,
        (buffer, unstaged): (BufferMut, bool),
    ) -> OpKey {
        let key = self.enter_payload(link, buffer, unstaged);
        self.movers
            .store_message(key, (link, from, Tag(0)), data, 0);
        key
    }

    /// A receive of an active message's payload.
    pub(crate) fn enter_payload(
        &mut self,
        link: LinkId,
        buffer: BufferMut,
        unstaged: bool,
    ) -> OpKey {
        let order = self.unexpected.arrival();
        let key = self.movers.ctx.enter_receive(buffer, Some(link), order);
        if let Some(entry) = self.movers.ctx.operations.get(key) {
            entry.discards = true;
            entry.unstaged = unstaged;
        }
        key
    }
}

/// A fragment as the buffer of an operation.
fn whole(fragment: &Fragment, length: usize) -> BufferMut {
    // SAFETY: a fragment is at least that long, initialised from the start, stays where it is, and is used through this alone until the part
    // has landed.
    unsafe { BufferMut::from_raw(fragment.address(), length, fragment.clone()) }
}
