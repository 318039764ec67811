//! Puts and gets that go in messages, and what a peer asked for: the next message of each.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns, as in `step.rs`. Exposed memory is read within the bounds of an `Arc<Exposed>` that the entry
//! holds, by copying only: a peer may write it meanwhile.
#![allow(unsafe_code)]

use std::{ops::Range, slice};

use crate::{
    protocol::control::{self, GetRequest, LayoutAnswer, PutHeader, PutRts, Signal},
    transport::{FRAGMENT, SendError},
    worker::{
        blocks::{Asked, EACH, pack},
        layout::{LAYOUT_PREFIX, LEAST, PACK, Plan, Requests, skip_empty},
        operations::{Get, Put, Serve},
        signal::{layout_prefix, put_prefix, put_prefix_size},
        source::Source,
        step::{Outlet, Step, ZCOPY_FROM, fragment_size},
    },
};

impl Put {
    /// The next piece of it, from where it lies; the short runs of many blocks are packed.
    pub(super) fn step(&mut self, outlet: &mut Outlet<'_>) -> Result<Step, SendError> {
        if outlet.is_full() {
            return Ok(Step::Parked);
        }
        let left = self.buffer.len() - self.next;
        let mut header = PutHeader {
            generation: self.region.1,
            offset: self.offset + self.next as u64,
            slot: self.region.0,
            last: 0,
        };
        let mut data = self.buffer.host_from(self.next);
        if let Some(plan) = &mut self.layout {
            // What is consecutive on both sides.
            let (offset, block) = skip_empty(&plan.shape, &mut plan.cursor);
            data = &data[..data.len().min(usize::try_from(block).unwrap_or(usize::MAX))];
            if data.len() < ZCOPY_FROM {
                return self.step_packed(outlet);
            }
            header.offset = plan.target.offset + offset;
        }
        let longest = put_prefix_size(self.signal.is_some());
        data = &data[..data
            .len()
            .min(fragment_size(outlet.link, &outlet.attributes, longest))];
        header.last = u32::from(data.len() == left);
        let (prefix, length) = put_prefix(header, self.signal.as_deref());
        // SAFETY: `data` is the put's own, and the entry's with it.
        unsafe { outlet.transmit(control::PUT, outlet.key.0, &prefix[..length], data) }?;
        if let Some(plan) = &mut self.layout {
            plan.shape.advance(&mut plan.cursor, data.len() as u64);
        }
        self.next += data.len();
        Ok(Step::after(data.len() == left))
    }

    fn step_packed(&mut self, outlet: &mut Outlet<'_>) -> Result<Step, SendError> {
        let Some(plan) = &mut self.layout else {
            return Ok(Step::Sent);
        };
        let part = self.next..self.buffer.len();
        let room = outlet.attributes.max_bcopy.clamp(LEAST, PACK) - LAYOUT_PREFIX;
        let Some((mut header, cursor)) = plan.describe(part.clone(), room, 1, outlet.scratch)
        else {
            return Ok(Step::More);
        };
        let taken = header.length as usize;
        self.buffer.gather(self.next, taken, outlet.scratch);
        header.last = u32::from(taken == part.len());
        let (prefix, length) = layout_prefix(header, self.signal.as_deref());
        outlet.link.am_bcopy(
            control::PUT_LAYOUT,
            outlet.key.0,
            &prefix[..length],
            outlet.scratch,
        )?;
        plan.cursor = cursor;
        self.next += taken;
        Ok(Step::after(taken == part.len()))
    }

    /// Tells the owner of the memory, which pulls the bytes.
    pub(super) fn announce(
        &mut self,
        outlet: &mut Outlet<'_>,
        unstaged: bool,
    ) -> Result<Step, SendError> {
        let signal = self.signal.as_deref().map(|signal| signal.encode());
        let mut mark = if signal.is_some() { 3 } else { 1 };
        if self.buffer.is_on_device() {
            mark |= control::OF_DEVICE;
        }
        if unstaged {
            mark |= control::UNSTAGED;
        }
        let rts = PutRts {
            generation: self.region.1,
            offset: self.offset,
            length: self.buffer.len() as u64,
            slot: self.region.0,
            last: mark,
        };
        let signal = signal.as_ref().map_or(&[][..], |signal| &signal[..]);
        outlet
            .link
            .am_bcopy(control::PUT_RTS, outlet.key.0, &rts.encode(), signal)?;
        self.next = self.buffer.len();
        Ok(Step::Sent)
    }

    /// The same of the next part that goes into blocks of device memory.
    pub(super) fn announce_blocks(
        &mut self,
        outlet: &mut Outlet<'_>,
        requests: &mut Requests,
    ) -> Result<Step, SendError> {
        let part = self.next..self.buffer.len();
        let Some(plan) = &mut self.layout else {
            return Ok(Step::Sent);
        };
        let signal = self.signal.as_deref();
        match ask_blocks(outlet, requests, plan, part, control::LAYOUT_RTS, signal)? {
            Ok(length) => {
                plan.is_unanswered = true;
                self.next += length;
                Ok(Step::Sent)
            }
            Err(step) => Ok(step),
        }
    }
}

impl Get {
    /// Asks the owner of the memory, or the sender of an announced message.
    pub(super) fn ask(&self, outlet: &mut Outlet<'_>) -> Result<Step, SendError> {
        let (offset, length) = (self.offset, self.buffer.len() as u64);
        let Outlet { link, key, .. } = outlet;
        match self.pull {
            Some(op) => {
                let pull = control::Pull {
                    to: key.0,
                    offset,
                    length,
                };
                link.am_short(control::PULL, op, &pull.encode())?;
            }
            None => {
                let (slot, generation) = self.region;
                let request = GetRequest {
                    generation,
                    offset,
                    length,
                    slot,
                };
                link.am_short(control::GET, key.0, &request.encode())?;
            }
        }
        Ok(Step::Sent)
    }

    /// Asks for the next blocks.
    pub(super) fn ask_blocks(
        &mut self,
        outlet: &mut Outlet<'_>,
        requests: &mut Requests,
    ) -> Result<Step, SendError> {
        let total = self.buffer.len();
        let Some(plan) = &mut self.layout else {
            return Ok(Step::Sent);
        };
        let begin = plan.asked;
        match ask_blocks(
            outlet,
            requests,
            plan,
            begin..total,
            control::GET_LAYOUT,
            None,
        )? {
            Ok(length) => {
                plan.asked += length;
                plan.due.push(begin..plan.asked);
                Ok(Step::after(plan.asked == total))
            }
            Err(step) => Ok(step),
        }
    }
}

/// Names the next blocks to their owner, as far as one message does: all of loops, a part of a list. Returns how many bytes they are, or why it is
/// not done now. `signal` goes with the last, to be raised once all is visible.
fn ask_blocks(
    outlet: &mut Outlet<'_>,
    requests: &mut Requests,
    plan: &mut Plan,
    part: Range<usize>,
    id: u8,
    signal: Option<&Signal>,
) -> Result<Result<usize, Step>, SendError> {
    if !requests.may_ask(outlet.key) {
        return Ok(Err(Step::Parked));
    }
    let room = outlet.attributes.max_bcopy.clamp(LEAST, PACK) - LAYOUT_PREFIX;
    let described = plan.describe(part.clone(), room, 0, outlet.scratch);
    let Some((mut header, cursor)) = described else {
        return Ok(Err(Step::More));
    };
    header.last = u32::from(id == control::LAYOUT_RTS);
    let signal = signal.filter(|_| header.length == part.len() as u64);
    let (prefix, length) = layout_prefix(header, signal);
    outlet
        .link
        .am_bcopy(id, outlet.key.0, &prefix[..length], outlet.scratch)?;
    requests.asked += 1;
    plan.cursor = cursor;
    Ok(Ok(header.length as usize))
}

impl Serve {
    /// The next part of what a peer asked for.
    pub(super) fn step(
        &mut self,
        outlet: &mut Outlet<'_>,
        effort: &mut u64,
    ) -> Result<Step, SendError> {
        if self.answer.is_some() {
            return self.step_blocks(outlet, effort);
        }
        let left = self.length - self.out.next;
        let run = match &self.source {
            Source::Message(buffer) => return outlet.fragment(&mut self.out, buffer),
            Source::Region(_) if left == 0 => &[],
            // SAFETY: the range was checked against the exposed memory, which the entry holds and which the host reaches, for else
            // the operation has a pipe. A peer may write it meanwhile; only this copy outwards reads it.
            Source::Region(exposed) => unsafe {
                let first = exposed.address.add(self.offset + self.out.next);
                slice::from_raw_parts(first, left)
            },
        };
        outlet.fragment_of(&mut self.out, run, left)
    }

    /// The same of blocks: a long one from where it lies, short ones packed.
    fn step_blocks(
        &mut self,
        outlet: &mut Outlet<'_>,
        effort: &mut u64,
    ) -> Result<Step, SendError> {
        let (Some(answer), Source::Region(exposed)) = (&mut self.answer, &self.source) else {
            return Ok(Step::Parked);
        };
        let Asked::Host(shape, at) = &mut answer.blocks else {
            return Ok(Step::Parked);
        };
        if outlet.is_full() {
            return Ok(Step::Parked);
        }
        let out = &mut self.out;
        let left = self.length - out.next;
        let position = answer.position + out.next as u64;
        let frame = |taken| LayoutAnswer {
            position,
            status: u16::from(taken == left),
            code: 0,
        };
        let mut cursor = *at;
        let (offset, block) = skip_empty(shape, &mut cursor);
        let run = left.min(usize::try_from(block).unwrap_or(usize::MAX));
        let taken;
        if run >= ZCOPY_FROM {
            // The other end may have to buffer it.
            let most =
                fragment_size(outlet.link, &outlet.attributes, LayoutAnswer::SIZE).min(FRAGMENT);
            taken = run.min(most);
            // SAFETY: the block was checked against the exposed memory, which the entry holds. A peer may write it meanwhile; only this
            // copy outwards reads it.
            let data =
                unsafe { slice::from_raw_parts(exposed.address.add(offset as usize), taken) };
            let prefix = frame(taken).encode();
            // SAFETY: the same.
            unsafe { outlet.transmit(control::LAYOUT_DATA, out.to, &prefix, data) }?;
            shape.advance(&mut cursor, taken as u64);
        } else {
            let room = outlet.attributes.max_bcopy.clamp(LEAST, PACK) - LayoutAnswer::SIZE;
            *effort += EACH
                * pack(
                    exposed,
                    (shape, &mut cursor),
                    left.min(room),
                    outlet.scratch,
                );
            taken = outlet.scratch.len();
            let prefix = frame(taken).encode();
            outlet
                .link
                .am_bcopy(control::LAYOUT_DATA, out.to, &prefix, outlet.scratch)?;
        }
        *at = cursor;
        out.next += taken;
        Ok(Step::after(taken == left))
    }
}
