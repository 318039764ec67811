//! Puts and gets of many blocks: the owner's side.
//!
//! # Safety
//! Exposed memory is written within the bounds of an `Arc<Exposed>` that is held meanwhile, by copying only.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::{Error, ErrorKind, Result},
    memory::region::Exposed,
    protocol::{
        control::{self, LayoutAnswer, LayoutHeader},
        layout::{Places, Shape, outside},
    },
    types::{Access, LinkId, Priority},
    worker::{
        blocks::{Answer, Asked, parse, parse_put, start},
        ctx::Ctx,
        layout::REQUESTS,
        movers::Movers,
        operations::{Outgoing, Serve},
        peer::at,
        source::Source,
        spread::copy_run,
        violation::violation,
    },
};

impl Ctx {
    /// Blocks of a peer's put.
    pub(crate) fn put_layout(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let (header, shape, signal, mut data) = parse_put(body)?;
        if data.len() as u64 != header.length {
            return Err(violation("a put with more or fewer bytes than its blocks"));
        }
        let admitted = self.admit(&header, &shape, Access::WRITE);
        let admitted = admitted.and_then(|exposed| {
            if exposed.device.is_some() && !data.is_empty() {
                // The descriptor says that it is to be announced.
                let text = "the host does not reach the memory";
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            let raise = signal.map(|signal| self.find_counter(&signal));
            Ok((exposed, raise.transpose()?))
        });
        let Some((exposed, raise)) = self.granted(link, op, admitted) else {
            return Ok(());
        };
        let mut cursor = start(&shape, header.position);
        while !data.is_empty()
            && let Some((offset, block)) = shape.run(&cursor)
        {
            let length = data.len().min(usize::try_from(block).unwrap_or(usize::MAX));
            let (part, rest) = data.split_at(length);
            // SAFETY: `admit` checked every block against the exposed memory, which is held; `data` lies elsewhere.
            unsafe {
                let to = exposed.address.add(offset as usize);
                copy_run(part.as_ptr(), to, length);
            }
            shape.advance(&mut cursor, length as u64);
            data = rest;
        }
        if let Some(raise) = raise {
            self.raise(&raise);
        }
        if header.last != 0 {
            self.control(link, control::DONE, op, &[]);
        }
        Ok(())
    }

    /// Breaks off an answer that has begun.
    pub(crate) fn answer_failed(&mut self, link: LinkId, op: u64, kind: ErrorKind) {
        self.refuse_blocks(link, op, 0, kind);
        if let Some(peer) = self.peer(link) {
            peer.requests().serving = peer.requests().serving.saturating_sub(1);
        }
    }

    /// Answers a request for blocks that get no further.
    pub(crate) fn refuse_blocks(&mut self, link: LinkId, op: u64, position: u64, kind: ErrorKind) {
        let answer = LayoutAnswer {
            position,
            status: 2,
            code: control::error_kind_code(kind),
        };
        self.control(link, control::LAYOUT_DATA, op, &answer.encode());
    }

    /// What a request for blocks needs; `None`: it was refused.
    fn granted_blocks<T>(
        &mut self,
        link: LinkId,
        op: u64,
        position: u64,
        asked: Result<T>,
    ) -> Option<T> {
        asked
            .inspect_err(|error| self.refuse_blocks(link, op, position, error.kind()))
            .ok()
    }

    /// The region that a message names, if every block of it may be accessed so.
    pub(in crate::worker) fn admit(
        &self,
        header: &LayoutHeader,
        shape: &Shape,
        access: Access,
    ) -> Result<Arc<Exposed>> {
        let (slot, generation) = (header.slot, header.generation);
        let exposed = self.regions.check(slot, generation, 0, 0, access)?;
        let size = exposed.length as u64;
        if header.position.checked_add(header.length).is_none() {
            return Err(outside());
        }
        let inside = match shape {
            Shape::Strided(strided) => strided.extent().is_some_and(|(total, end)| {
                let part = header.position.checked_add(header.length);
                end <= size && part.is_some_and(|part| part <= total)
            }),
            Shape::Indexed(indexed) => indexed.blocks.as_slice().iter().all(|block| {
                let end = (block.offset as u64).checked_add(block.len as u64);
                end.is_some_and(|end| end <= size)
            }),
        };
        if inside { Ok(exposed) } else { Err(outside()) }
    }
}

impl Movers {
    /// A peer's request.
    pub(crate) fn get_layout(&mut self, link: LinkId, op: u64, body: &[u8]) -> Result<()> {
        let header = LayoutHeader::decode(body)?;
        let (shape, rest) = parse(&header, body.get(LayoutHeader::SIZE..).unwrap_or(&[]))?;
        if !rest.is_empty() || header.last != 0 {
            return Err(violation("a request that is not one"));
        }
        let admitted = self
            .ctx
            .admit(&header, &shape, Access::READ)
            .and_then(|exposed| {
                if let Some((memory_type, _)) = exposed.device {
                    self.devices.slot_for(&[memory_type])?;
                }
                Ok(exposed)
            });
        let position = header.position;
        let Some(exposed) = self.ctx.granted_blocks(link, op, position, admitted) else {
            return Ok(());
        };
        let Some(peer) = at(&mut self.ctx.peers, link) else {
            return Ok(());
        };
        if peer.requests().serving >= REQUESTS {
            return Err(violation("more requests than are allowed at a time"));
        }
        let account = peer.account;
        let blocks = match exposed.device.is_some() && header.length > 0 {
            true => Asked::Device(Places::new(shape, header.position)),
            false => {
                let cursor = start(&shape, header.position);
                Asked::Host(shape, cursor)
            }
        };
        let answer = Answer {
            blocks,
            position: header.position,
        };
        let charged = self.ctx.ledger.charge(account, answer.weight());
        let Some(charged) = self.ctx.granted_blocks(link, op, position, charged) else {
            return Ok(());
        };
        if let Some(peer) = self.ctx.peer(link) {
            peer.requests().serving += 1;
        }
        let serve = Serve {
            charged,
            source: Source::Region(exposed),
            offset: 0,
            length: header.length as usize,
            out: Outgoing { to: op, next: 0 },
            answer: Some(Box::new(answer)),
        };
        self.start_serve(link, serve, None, Priority::Normal);
        Ok(())
    }
}
