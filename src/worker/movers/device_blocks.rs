//! Blocks of device memory.

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{
        control::{self, LayoutHeader, Signal},
        layout::{Places, Shape},
    },
    transport::SendError,
    types::{Access, LinkId, OpKey},
    worker::{
        blocks::parse,
        ctx::Ctx,
        device::{
            blocks::RUNS,
            pipe::{Kind, Pipe},
            route::Route,
        },
        layout::{LEAST, PACK, REQUESTS, list_part},
        movers::Movers,
        operations::{Fill, Work},
        peer::at,
        step::Step,
        violation::violation,
    },
};

impl Ctx {
    /// Length of the part that begins at `next`: at most `most`, as many runs as an engine is asked for at once, and as many blocks of the peer as one
    /// turn looks at. 0: nothing but empty blocks was found.
    pub(in crate::worker) fn part_length(
        &mut self,
        key: OpKey,
        next: usize,
        most: usize,
        load: bool,
    ) -> usize {
        let mut length = 0;
        for _ in 0..RUNS {
            let run = match load {
                true => self.source_run(key, next + length),
                false => self.target_run(key, next + length),
            };
            match run {
                Some(run) if run.length > 0 => length += run.length.min(most - length),
                // Whoever moves it says what is wrong.
                _ => length = most,
            }
            if length == most {
                break;
            }
        }
        let plan = match self.operations.get(key).map(|entry| &mut entry.work) {
            Some(Work::Put(put)) => put.layout.as_mut(),
            Some(Work::Get(get)) => get.layout.as_mut(),
            _ => None,
        };
        match plan {
            Some(plan) => plan.cut(next, length),
            None => length,
        }
    }

    /// Announces the next part of a put into blocks of device memory: all of loops, a list as far as a message goes.
    pub(crate) fn announce_layout(
        &mut self,
        link_id: LinkId,
        key: OpKey,
    ) -> Result<Step, SendError> {
        let Some(peer) = at(&mut self.peers, link_id) else {
            return Ok(Step::Sent);
        };
        let mut prefix = [0; LayoutHeader::SIZE + Signal::SIZE];
        let room = peer.attributes.max_bcopy.clamp(LEAST, PACK) - prefix.len();
        let (Some(link), Some(entry)) = (peer.link.as_mut(), self.operations.get(key)) else {
            return Ok(Step::Parked);
        };
        let Work::Put(put) = &mut entry.work else {
            return Ok(Step::Sent);
        };
        let Some(plan) = &mut put.layout else {
            return Ok(Step::Sent);
        };
        let requests = peer.requests.get_or_insert_default();
        if requests.asked >= REQUESTS {
            requests.waiting.push_back(key);
            return Ok(Step::Parked);
        }
        let left = put.buffer.len() - put.next;
        let mut header = LayoutHeader {
            generation: plan.target.generation,
            position: put.next as u64,
            length: left as u64,
            slot: plan.target.slot,
            blocks: control::NONE,
            last: 1,
        };
        let (shape, offset, mut cursor) = (plan.shape.clone(), plan.target.offset, plan.cursor);
        let scratch = &mut self.scratch;
        scratch.clear();
        match &*shape {
            Shape::Strided(strided) => {
                scratch.extend_from_slice(&strided.shifted(offset).form().encode());
            }
            Shape::Indexed(_) => {
                let (blocks, bytes) =
                    list_part(&shape, &mut cursor, offset, left, room, 0, scratch);
                if bytes == 0 && left > 0 {
                    plan.cursor = cursor;
                    return Ok(Step::More);
                }
                header.blocks = blocks;
                header.length = bytes as u64;
            }
        }
        let mut length = LayoutHeader::SIZE;
        // Once all is visible.
        if let Some(signal) = &put.signal
            && header.length == left as u64
        {
            header.last = 3;
            prefix[length..].copy_from_slice(&signal.encode());
            length = prefix.len();
        }
        prefix[..LayoutHeader::SIZE].copy_from_slice(&header.encode());
        link.am_bcopy(control::LAYOUT_RTS, key.0, &prefix[..length], scratch)?;
        requests.asked += 1;
        plan.is_unanswered = true;
        plan.cursor = cursor;
        put.next += header.length as usize;
        Ok(Step::Sent)
    }

    /// A put of a peer is answered: if its blocks were announced, the peer may announce others.
    pub(crate) fn fill_answered(&mut self, link: LinkId, key: OpKey) {
        if let Some(Work::Fill(fill)) = self.operations.get(key).map(|entry| &entry.work)
            && fill.places.is_some()
            && let Some(peer) = self.peer(link)
        {
            peer.requests().serving = peer.requests().serving.saturating_sub(1);
        }
    }
}

impl Movers {
    /// Begins a put or get, in the table, between blocks that were checked and memory of which an end is out of its processor's reach.
    pub(crate) fn begin_device_layout(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let (types, total, kind) = match &mut entry.work {
            Work::Put(put) => {
                let Some(plan) = &put.layout else { return };
                let target = plan.target;
                if target.on_device {
                    put.announced = true;
                    return self.submit(link, key);
                }
                let types = put.buffer.device_types();
                (types, put.buffer.len(), Kind::Put { target })
            }
            Work::Get(get) => {
                let Some(plan) = &get.layout else { return };
                let target = plan.target;
                let types = get.buffer.device_types();
                (types, get.buffer.len(), Kind::Get { target })
            }
            _ => return,
        };
        match self.devices.slot_for(&types) {
            Ok(slot) => self.begin_staged(key, Pipe::new(kind, slot, total)),
            Err(error) => self.fail_operation(key, error),
        }
    }

    /// A peer puts into blocks of memory that this side has to fill itself.
    pub(crate) fn layout_announced(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let header = LayoutHeader::decode(body)?;
        let rest = body.get(LayoutHeader::SIZE..).unwrap_or(&[]);
        let (signal, rest) = match header.last {
            1 => (None, rest),
            3 => {
                let signal = Signal::decode(rest)?;
                (Some(signal), rest.get(Signal::SIZE..).unwrap_or(&[]))
            }
            _ => return Err(violation("a put with a mark that there is not")),
        };
        let (shape, rest) = parse(&header, rest)?;
        if !rest.is_empty() {
            return Err(violation("an announcement that is longer than its blocks"));
        }
        if at(&mut self.ctx.peers, link).is_some_and(|peer| peer.requests().serving >= REQUESTS) {
            return Err(violation("more requests than are allowed at a time"));
        }
        let admitted = self
            .ctx
            .admit(&header, &shape, Access::WRITE)
            .and_then(|exposed| {
                let raise = signal.map(|signal| self.ctx.find_counter(&signal));
                let Some((memory_type, _)) = exposed.device else {
                    // The descriptor says so.
                    let text = "host memory is put into, not filled";
                    return Err(Error::new(ErrorKind::InvalidArgument, text));
                };
                let slot = self.devices.slot_for(&[memory_type])?;
                Ok((exposed, raise.transpose()?.map(Box::new), slot))
            });
        let (exposed, signal, slot) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                self.ctx.refuse(link, op, error.kind());
                return Ok(());
            }
        };
        let places = Places::new(shape, header.position);
        let charged = match self.ctx.charge_request(link, places.weight()) {
            Ok(charged) => charged,
            Err(error) => {
                self.ctx.refuse(link, op, error.kind());
                return Ok(());
            }
        };
        if let Some(peer) = self.ctx.peer(link) {
            peer.requests().serving += 1;
        }
        let fill = Fill {
            charged,
            exposed,
            offset: 0,
            op,
            signal,
            places: Some(Box::new(places)),
        };
        let way = (header.position, Route::Staged);
        self.start_fill(link, fill, slot, header.length as usize, way);
        Ok(())
    }
}
