//! Puts and gets of many blocks: the initiator's side.
//!
//! # Safety
//! Zero-copy sends lend memory that the entry of the table owns, as in `send.rs`.
#![allow(unsafe_code)]

use crate::{
    error::Result,
    protocol::{
        control::{self, LayoutAnswer, LayoutHeader, PutHeader, Signal, StridedForm},
        layout::{Checking, Shape},
    },
    transport::{Place, SendError, Zcopy},
    types::{LinkId, OpKey, Priority},
    worker::{
        copy::{Remote, Transfer},
        ctx::Ctx,
        layout::{FEW, LEAST, LONG, PACK, REQUESTS, list_part, mismatch, skip_empty, within},
        movers::Movers,
        operations::{Get, Work},
        peer::at,
        signal::{put_prefix, put_prefix_size},
        spread::Spread,
        step::{FRAGMENTS_IN_FLIGHT, Step, ZCOPY_FROM, fragment_size, transmit},
        violation::violation,
    },
};

impl Ctx {
    /// The next message of a put or get with a plan, or of the answer to one.
    pub(crate) fn advance_layout(&mut self, link: LinkId, key: OpKey) -> Result<Step, SendError> {
        match self.operations.get(key).map(|entry| &entry.work) {
            Some(Work::Put(put)) if put.announced => self.announce_layout(link, key),
            Some(Work::Put(_)) => self.put_layout_step(link, key),
            Some(Work::Get(_)) => self.get_layout_step(link, key),
            Some(Work::Serve(_)) => self.answer_step(link, key),
            _ => Ok(Step::Sent),
        }
    }

    fn put_layout_step(&mut self, link_id: LinkId, key: OpKey) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let attributes = peer.attributes;
        let (Some(link), Some(entry)) = (peer.link.as_mut(), self.operations.get(key)) else {
            return Ok(Step::Parked);
        };
        if entry.in_flight >= FRAGMENTS_IN_FLIGHT {
            return Ok(Step::Parked);
        }
        let Work::Put(put) = &mut entry.work else {
            return Ok(Step::Sent);
        };
        let Some(plan) = &mut put.layout else {
            return Ok(Step::Sent);
        };
        let signal = put.signal.as_deref();
        let total = put.buffer.len();
        let left = total - put.next;
        // What is consecutive here.
        let source = match put.buffer.list() {
            Some(list) => list.run(put.next),
            None => put
                .buffer
                .as_slice()
                .and_then(|bytes| bytes.get(put.next..))
                .unwrap_or(&[]),
        };
        let mut cursor = plan.cursor;
        let (offset, block) = skip_empty(&plan.shape, &mut cursor);
        let run = source
            .len()
            .min(usize::try_from(block).unwrap_or(usize::MAX));
        let taken;
        if run >= ZCOPY_FROM {
            let data = &source[..run.min(fragment_size(
                &attributes,
                put_prefix_size(signal.is_some()),
            ))];
            taken = data.len();
            let header = PutHeader {
                generation: plan.target.generation,
                offset: plan.target.offset + offset,
                slot: plan.target.slot,
                last: u32::from(taken == left),
            };
            let (prefix, length) = put_prefix(header, signal);
            // SAFETY: `data` is owned by the entry, which stays while `in_flight` counts this.
            let sent = unsafe {
                transmit(
                    link,
                    &attributes,
                    control::PUT,
                    key.0,
                    &prefix[..length],
                    data,
                    key.0,
                )
            }?;
            plan.shape.advance(&mut cursor, taken as u64);
            entry.in_flight += u32::from(sent == Zcopy::Pending);
        } else {
            let scratch = &mut self.scratch;
            scratch.clear();
            let mut prefix = [0; LayoutHeader::SIZE + Signal::SIZE];
            let room = attributes.max_bcopy.clamp(LEAST, PACK) - prefix.len();
            let mut header = LayoutHeader {
                generation: plan.target.generation,
                position: (plan.base() + put.next) as u64,
                length: 0,
                slot: plan.target.slot,
                blocks: control::NONE,
                last: 0,
            };
            match &*plan.shape {
                Shape::Strided(strided) => {
                    scratch.extend_from_slice(&strided.shifted(plan.target.offset).form().encode());
                    taken = left.min(room - StridedForm::SIZE);
                    cursor = strided.seek((plan.base() + put.next + taken) as u64);
                }
                Shape::Indexed(_) => {
                    let (blocks, bytes) = list_part(
                        &plan.shape,
                        &mut cursor,
                        plan.target.offset,
                        left,
                        room,
                        1,
                        scratch,
                    );
                    if bytes < left && bytes == 0 {
                        plan.cursor = cursor;
                        return Ok(Step::More);
                    }
                    header.blocks = blocks;
                    taken = bytes;
                }
            }
            match put.buffer.list() {
                Some(list) => list.gather(put.next, taken, scratch),
                None => scratch.extend_from_slice(&source[..taken]),
            }
            header.length = taken as u64;
            let mut length = LayoutHeader::SIZE;
            header.last = u32::from(taken == left);
            if let Some(signal) = signal
                && taken == left
            {
                header.last = 3;
                prefix[length..].copy_from_slice(&signal.encode());
                length = prefix.len();
            }
            prefix[..LayoutHeader::SIZE].copy_from_slice(&header.encode());
            link.am_bcopy(control::PUT_LAYOUT, key.0, &prefix[..length], scratch)?;
        }
        plan.cursor = cursor;
        put.next += taken;
        if put.next == total {
            self.put_progress(key);
            return Ok(Step::Sent);
        }
        Ok(Step::More)
    }

    fn get_layout_step(&mut self, link_id: LinkId, key: OpKey) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let room = peer.attributes.max_bcopy.clamp(LEAST, PACK) - LayoutHeader::SIZE;
        let (Some(link), Some(entry)) = (peer.link.as_mut(), self.operations.get(key)) else {
            return Ok(Step::Parked);
        };
        let Work::Get(get) = &mut entry.work else {
            return Ok(Step::Sent);
        };
        let total = get.buffer.len();
        let Some(plan) = &mut get.layout else {
            return Ok(Step::Sent);
        };
        let requests = peer.requests.get_or_insert_default();
        if requests.asked >= REQUESTS {
            requests.waiting.push_back(key);
            return Ok(Step::Parked);
        }
        let left = total - plan.asked;
        let mut header = LayoutHeader {
            generation: plan.target.generation,
            position: (plan.base() + plan.asked) as u64,
            length: left as u64,
            slot: plan.target.slot,
            blocks: control::NONE,
            last: 0,
        };
        let mut cursor = plan.cursor;
        let scratch = &mut self.scratch;
        scratch.clear();
        match &*plan.shape {
            Shape::Strided(strided) => {
                scratch.extend_from_slice(&strided.shifted(plan.target.offset).form().encode());
            }
            Shape::Indexed(_) => {
                let (blocks, bytes) = list_part(
                    &plan.shape,
                    &mut cursor,
                    plan.target.offset,
                    left,
                    room,
                    0,
                    scratch,
                );
                if bytes < left && bytes == 0 {
                    plan.cursor = cursor;
                    return Ok(Step::More);
                }
                header.blocks = blocks;
                header.length = bytes as u64;
            }
        }
        link.am_bcopy(control::GET_LAYOUT, key.0, &header.encode(), scratch)?;
        requests.asked += 1;
        plan.cursor = cursor;
        let begin = plan.asked;
        plan.asked += header.length as usize;
        plan.due.push(begin..plan.asked);
        Ok(if plan.asked == total {
            Step::Sent
        } else {
            Step::More
        })
    }

    /// Where a long part goes.
    pub(crate) fn place_layout_data(
        &mut self,
        link: LinkId,
        key: OpKey,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        let answer = LayoutAnswer::decode(prefix)?;
        let Some(Work::Get(get)) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link))
            .map(|entry| &mut entry.work)
        else {
            // Of one that has ended, or never was: its end is taken note of, its bytes are not kept.
            self.answered(link, &answer)?;
            return Ok(Place::Discard);
        };
        let base = get.layout.as_ref().map_or(0, |plan| plan.base());
        let at = within(&answer, base);
        let run = match get.buffer.list_mut() {
            Some(list) => list.run(at),
            None => get
                .buffer
                .as_mut_slice()
                .and_then(|bytes| bytes.get_mut(at..))
                .unwrap_or(&mut []),
        };
        if run.len() < length {
            return Ok(Place::Whole);
        }
        let address = run.as_mut_ptr();
        self.answered(link, &answer)?;
        Ok(match self.layout_landing(link, key, &answer, length)? {
            Some(_) => self.lend(key, address),
            None => Place::Discard,
        })
    }

    /// Counts bytes that came for a get, if it is still there and they are its.
    fn layout_landing(
        &mut self,
        link: LinkId,
        key: OpKey,
        answer: &LayoutAnswer,
        length: usize,
    ) -> Result<Option<(usize, &mut Get)>> {
        let Some(entry) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link) && entry.outcome.is_none())
        else {
            return Ok(None);
        };
        if entry.copies > 0 {
            return Err(violation("blocks for what this side copies itself"));
        }
        let Work::Get(get) = &mut entry.work else {
            return Err(violation("blocks for what asked for none"));
        };
        let Some(plan) = &mut get.layout else {
            return Err(violation("blocks for what asked for none"));
        };
        let at = within(answer, plan.base());
        if answer.status == 2 {
            // A refusal, of whichever request.
            return match length {
                0 => Ok(Some((at, get))),
                _ => Err(violation("a refusal with bytes")),
            };
        }
        let due = plan.due.iter().position(|due| due.start == at);
        let Some((index, due)) = due.and_then(|index| Some((index, plan.due.get_mut(index)?)))
        else {
            return Err(violation("bytes that were not asked for"));
        };
        if length > due.len() || answer.status == 1 && length < due.len() {
            return Err(violation("bytes that were not asked for"));
        }
        due.start += length;
        if answer.status == 1 {
            plan.due.swap_remove(index);
        }
        get.got += length;
        Ok(Some((at, get)))
    }

    /// After the last part of an answer the next request may go.
    fn answered(&mut self, link: LinkId, answer: &LayoutAnswer) -> Result<()> {
        if answer.status == 0 {
            return Ok(());
        }
        let Some(peer) = self.peer(link) else {
            return Ok(());
        };
        peer.requests().asked = peer
            .requests()
            .asked
            .checked_sub(1)
            .ok_or_else(|| violation("an answer to no request"))?;
        self.ask_next(link);
        Ok(())
    }

    /// The owner has answered the part of a put that was announced. `false`: none was.
    pub(crate) fn announcement_answered(&mut self, link: LinkId, key: OpKey) -> bool {
        let asked = match self.operations.get(key).map(|entry| &mut entry.work) {
            Some(Work::Put(put)) => put.layout.as_mut().map(|plan| &mut plan.is_unanswered),
            _ => None,
        };
        if !asked.is_some_and(std::mem::take) {
            return false;
        }
        if let Some(peer) = self.peer(link) {
            peer.requests().asked = peer.requests().asked.saturating_sub(1);
        }
        self.ask_next(link);
        true
    }

    /// A place among the requests is free.
    fn ask_next(&mut self, link: LinkId) {
        while let Some(key) = self
            .peer(link)
            .and_then(|peer| peer.requests().waiting.pop_front())
        {
            if self
                .operations
                .get(key)
                .is_some_and(|entry| entry.outcome.is_none())
            {
                self.submit(link, key);
                break;
            }
        }
    }
}

impl Movers {
    /// Starts a put or get that has a plan.
    pub(crate) fn start_layout(&mut self, link: LinkId, work: Work, priority: Priority) -> OpKey {
        let key = self.ctx.operations.insert(Some(link), false, work);
        self.ctx.prioritize(key, priority);
        self.begin_layout(link, key);
        key
    }

    /// Checks what has to be checked, and starts to move.
    pub(crate) fn begin_layout(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let (plan, on_device, length, pull) = match &entry.work {
            Work::Put(put) => (
                &put.layout,
                put.buffer.is_on_device(),
                put.buffer.len(),
                false,
            ),
            Work::Get(get) => (
                &get.layout,
                get.buffer.is_on_device(),
                get.buffer.len(),
                true,
            ),
            _ => return,
        };
        let Some(plan) = plan else { return };
        let (target, shape, cursor) = (plan.target, plan.shape.clone(), plan.cursor);
        let (region, is_part) = (plan.length, plan.part.is_some());
        // Checked by this side's processor, and then moved by an engine, of this side or the peer's.
        let staged = length > 0 && (on_device || target.on_device && !pull);
        let blocks = match shape.total() {
            Some(Ok(total)) => plan.blocks(length, total),
            _ => 0,
        };
        let pieces = match &mut entry.work {
            _ if on_device => Vec::new(),
            Work::Put(put) => put.buffer.extents(),
            Work::Get(get) => get.buffer.extents(),
            _ => return,
        };
        let mut spread = Spread::new(pieces, shape, length).starting_at(cursor);
        let remote = match spread.shape.total() {
            None => {
                spread.checking = Some(Checking::default());
                Remote::Address(0)
            }
            Some(Err(error)) => return self.fail_operation(key, error),
            Some(Ok(total)) if !is_part && total != length as u64 => {
                return self.fail_operation(key, mismatch(length, total));
            }
            Some(Ok(_)) if staged => return self.begin_device_layout(link, key),
            Some(Ok(_)) => {
                let remote = at(&mut self.ctx.peers, link)
                    .filter(|_| length > 0)
                    .and_then(|peer| Ctx::direct_path(peer, &target, region))
                    .filter(|remote| {
                        matches!(remote, Remote::Mapped(..))
                            || blocks <= FEW
                            || length as u64 / blocks >= LONG
                    });
                match remote {
                    Some(remote) => remote,
                    None => return self.submit(link, key),
                }
            }
        };
        self.start_transfer(Transfer {
            link,
            op: key,
            peer_op: None,
            local: std::ptr::null_mut(),
            length,
            remote,
            pull,
            chunks: None,
            region: Some((target.slot, target.generation)),
            next: 0,
            spread: Some(spread),
        });
    }

    /// A part of the answer to a get.
    pub(crate) fn layout_data(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let answer = LayoutAnswer::decode(body)?;
        let data = body.get(LayoutAnswer::SIZE..).unwrap_or(&[]);
        self.ctx.answered(link, &answer)?;
        let Some((at, get)) = self.ctx.layout_landing(link, key, &answer, data.len())? else {
            return Ok(());
        };
        match get.buffer.list_mut() {
            Some(list) => list.scatter(at, data),
            None => {
                let bytes = get.buffer.as_mut_slice().unwrap_or(&mut []);
                if let Some(to) = bytes.get_mut(at..at + data.len()) {
                    to.copy_from_slice(data);
                }
            }
        }
        if answer.status == 2 {
            self.fail_operation(key, control::error_of(&answer.code.to_le_bytes()));
        } else if get.got == get.buffer.len() {
            self.copied(key, Ok(()));
        }
        Ok(())
    }
}
