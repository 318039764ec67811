//! Out of device memory: the bytes of a send or of exposed memory, fragment by fragment onto the link, in order. While one is on its way the next
//! ones are copied out of the device.
//!
//! # Safety
//! A fragment that a link sends from where it is belongs to an entry of the table as well ([`Work::Frame`]), which stays until the link has said
//! that it is done with it, or is dropped.
#![allow(unsafe_code)]

use std::slice;

use crate::{
    error::{ErrorKind, Result},
    memory::Buffer,
    protocol::{
        control::{self, LayoutAnswer, Pull},
        plan,
    },
    transport::{FRAGMENT, RawSlice, SendError},
    types::{LinkId, OpKey, Priority},
    worker::{
        ctx::{Ctx, Event},
        device::{
            forbidden,
            pipe::{Kind, Pipe, Stage},
            pool::Side,
        },
        movers::Movers,
        one_sided::OneSided,
        operations::{Ended, Outgoing, SendStage, Serve, Work},
        peer::at,
        source::Source,
        step::{Step, ZCOPY_FROM, fragment_size, lend, lent},
        violation::violation,
    },
};

impl Ctx {
    /// What of an announced operation is asked for, and its priority. `None`: it has ended meanwhile. The announcement is answered by it.
    pub(in crate::worker) fn announced_range(
        &mut self,
        link: LinkId,
        key: OpKey,
        pull: &Pull,
    ) -> Result<Option<(Buffer, Priority)>> {
        let Some(entry) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link) && entry.is_under_way())
        else {
            return Ok(None);
        };
        let priority = entry.priority;
        let mut answered = false;
        let buffer = match &mut *entry.work {
            Work::Send(send) if matches!(send.stage, SendStage::Announced) => {
                send.stage = SendStage::Pulled;
                answered = send.counts();
                &send.buffer
            }
            Work::Send(send) if matches!(send.stage, SendStage::Pulled) => &send.buffer,
            // Its keys were asked for, and do not help.
            Work::Send(send)
                if matches!(send.stage, SendStage::AwaitMatch)
                    && matches!(entry.one_sided.as_deref(), Some(OneSided::Offers(_))) =>
            {
                entry.one_sided = None;
                send.stage = SendStage::Pulled;
                &send.buffer
            }
            Work::Put(put) if put.announced && put.next > 0 => &put.buffer,
            _ => return Err(violation("asks for what was not announced")),
        };
        let (offset, length) = (pull.offset, pull.length);
        if offset
            .checked_add(length)
            .is_none_or(|end| end > buffer.len() as u64)
        {
            return Err(violation("asks for more than was announced"));
        }
        let (offset, length) = (offset as usize, length as usize);
        let part = buffer.slice(offset..offset + length);
        if answered {
            self.announcement_over(link);
        }
        Ok(Some((part, priority)))
    }

    /// Whether the bytes of an operation may not stop on their way.
    pub(in crate::worker) fn is_unstaged(&mut self, key: OpKey) -> bool {
        self.operations.get(key).is_some_and(|entry| entry.unstaged)
    }

    /// A part is in its fragment: it leaves when those before it have.
    pub(in crate::worker) fn part_loaded(&mut self, key: OpKey, id: u32) {
        let Some(pipe) = self.pipe(key) else { return };
        if let Some(part) = pipe.part(id) {
            part.stage = Stage::Ready;
        }
        let first = pipe.parts.front().is_some_and(|part| part.id == id);
        let Some(entry) = self.operations.get(key).filter(|_| first) else {
            return;
        };
        match (&*entry.work, entry.link) {
            (Work::Write(write), _) => {
                let event = Event::Loaded(write.stream, key);
                self.events.push_back(event);
            }
            (_, Some(link)) => self.submit(link, key),
            _ => {}
        }
    }
}

impl Movers {
    /// Enters what a peer asked for, and begins. `parent`: the send that it is all of.
    pub(crate) fn start_serve(
        &mut self,
        link: LinkId,
        serve: Serve,
        parent: Option<OpKey>,
        priority: Priority,
    ) {
        let types = match &serve.source {
            Source::Region(exposed) => {
                Vec::from_iter(exposed.device.map(|(memory_type, _)| memory_type))
            }
            Source::Message(buffer) => buffer.device_types(),
        };
        let (total, to) = (serve.length, serve.out.to);
        let slot = match types.is_empty() || total == 0 {
            true => None,
            false => match self.devices.slot_for(&types) {
                Ok(slot) => Some(slot),
                Err(error) => {
                    self.ctx.served(&Work::Serve(serve));
                    self.ctx.refuse(link, to, error.kind());
                    if let Some(send) = parent {
                        self.fail_operation(send, error);
                    }
                    return;
                }
            },
        };
        let key = self
            .ctx
            .operations
            .insert(Some(link), true, Work::Serve(serve));
        if let Some(entry) = self.ctx.operations.get(key) {
            entry.priority = priority;
            if let Some(send) = parent {
                entry.staged.get_or_insert_default().parent = Some((send, 0));
            }
        }
        match slot {
            Some(slot) => self.begin_staged(key, Pipe::new(Kind::Serve, slot, total)),
            None => self.submit(link, key),
        }
    }

    /// The receiver asks for a part of what this side has announced.
    pub(crate) fn pulled(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let pull = Pull::decode(body)?;
        let Some((part, priority)) = self.ctx.announced_range(link, key, &pull)? else {
            // It has ended meanwhile.
            self.ctx.refuse(link, pull.to, ErrorKind::Canceled);
            return Ok(());
        };
        if self.ctx.is_unstaged(key) && part.is_on_device() {
            // Its end comes back from the peer.
            self.ctx.refuse(link, pull.to, ErrorKind::Unsupported);
            return Ok(());
        }
        // As often as it likes.
        let charged = self.ctx.charge_request(link, 0);
        let Some(charged) = self.ctx.granted(link, pull.to, charged) else {
            return Ok(());
        };
        let serve = Serve {
            charged,
            ..of(part, pull.to)
        };
        self.start_serve(link, serve, None, priority);
        Ok(())
    }

    /// The receiver of a send from device memory takes its fragments as they come.
    pub(crate) fn stream_send(&mut self, link: LinkId, key: OpKey, to: u64) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let priority = entry.priority;
        let Work::Send(send) = &mut *entry.work else {
            return;
        };
        send.stage = SendStage::Pulled;
        let serve = of(send.buffer.clone(), to);
        if self.ctx.is_unstaged(key) {
            self.ctx.refuse(link, to, ErrorKind::Unsupported);
            return self.fail_operation(key, forbidden(true));
        }
        self.start_serve(link, serve, Some(key), priority);
    }

    /// Copies as many parts into fragments as there are.
    pub(in crate::worker) fn step_serve(&mut self, key: OpKey) {
        while let Some((fragment, _, length)) = self.next_part(key, Side::Out)
            && let Some(pipe) = self.ctx.pipe(key)
        {
            let id = pipe.begin(length, Some(fragment), Stage::Loading);
            self.move_part(key, id, true);
        }
    }

    /// The next message out of the fragments.
    pub(crate) fn advance_staged(
        &mut self,
        link_id: LinkId,
        key: OpKey,
    ) -> Result<Step, SendError> {
        let (Some(peer), Some(entry)) = (
            at(&mut self.ctx.peers, link_id),
            self.ctx.operations.get(key),
        ) else {
            return Ok(Step::Sent);
        };
        let attributes = peer.attributes;
        let Some(link) = peer.link.as_mut() else {
            return Ok(Step::Parked);
        };
        let (Work::Serve(serve), Some(staged)) = (&mut *entry.work, &mut entry.staged) else {
            return Ok(Step::Sent);
        };
        let (to, next) = (serve.out.to, serve.out.next);
        let ready = staged.pipe.as_ref().and_then(|pipe| pipe.ready(next));
        let Some((fragment, address, ready)) = ready else {
            return Ok(Step::Parked);
        };
        let (id, before) = match serve.answer {
            Some(_) => (control::LAYOUT_DATA, LayoutAnswer::SIZE),
            None => (control::FRAGMENT, 0),
        };
        // Blocks may be buffered by the other end; what an engine has made is no longer than that anyway.
        let length = ready
            .min(fragment_size(link, &attributes, before))
            .min(FRAGMENT);
        // Blocks that were asked for say where they belong.
        let answer = serve
            .answer
            .as_ref()
            .map(|answer| answer.frame(next, next + length == serve.length).encode());
        let prefix = answer.as_ref().map_or(&[][..], |answer| &answer[..]);
        let short = length < ZCOPY_FROM && prefix.len() + length <= attributes.max_bcopy;
        if attributes.max_zcopy == 0 || short {
            // SAFETY: within the fragment, which the part holds, and which no engine is copying into any more.
            let data = unsafe { slice::from_raw_parts(address, length) };
            link.am_bcopy(id, to, prefix, data)?;
        } else {
            let holder = Work::Frame { fragment };
            let frame = lend(&mut self.ctx.operations, link_id, holder);
            let payload = RawSlice { address, length };
            // SAFETY: the entry `frame` holds the fragment, and stays until the link says that it has been sent, or is dropped.
            let sent = unsafe { link.am_zcopy(id, to, prefix, payload, frame.0) };
            lent(&mut self.ctx.operations, frame, sent)?;
        }
        Ok(self.staged_sent(link_id, key, length))
    }

    /// More of what the peer asked for has left.
    fn staged_sent(&mut self, link: LinkId, key: OpKey, length: usize) -> Step {
        let Some(entry) = self.ctx.operations.get(key) else {
            return Step::Sent;
        };
        let Work::Serve(serve) = &mut *entry.work else {
            return Step::Sent;
        };
        serve.out.next += length;
        let (sent, is_all) = (serve.out.next, serve.out.next == serve.length);
        let blocks = serve.answer.is_some();
        let parent = entry.staged.as_ref().and_then(|staged| staged.parent);
        if entry.pipe().is_some_and(|pipe| !pipe.end_sent(sent)) {
            return Step::More;
        }
        if is_all {
            if blocks && let Some(peer) = self.ctx.peer(link) {
                peer.requests().serving = peer.requests().serving.saturating_sub(1);
            }
            self.finish(key, Ended::Done(Ok(())));
            return Step::Sent;
        }
        if let Some((send, _)) = parent
            && let Some(entry) = self.ctx.operations.get(send)
        {
            entry.told = plan::told(sent);
        }
        self.devices.step_soon(key);
        match self.ctx.pipe(key).and_then(|pipe| pipe.ready(sent)) {
            Some(_) => Step::More,
            None => Step::Parked,
        }
    }
}

/// All of a buffer, for the peer's operation `to`.
pub(in crate::worker) fn of(buffer: Buffer, to: u64) -> Serve {
    Serve {
        charged: None,
        length: buffer.len(),
        source: Source::Message(buffer),
        offset: 0,
        out: Outgoing { to, next: 0 },
        answer: None,
    }
}
