//! Puts and gets of many blocks: the initiator's side.

use std::ptr;

use crate::{
    error::Result,
    protocol::{
        control::{self, LayoutAnswer},
        layout::Checking,
    },
    transport::Place,
    types::{LinkId, OpKey, Priority},
    worker::{
        copy::{Remote, Transfer},
        ctx::Ctx,
        layout::{FEW, LONG, mismatch, within},
        movers::Movers,
        operations::{End, Get, Work},
        peer::at,
        spread::Spread,
        violation::violation,
    },
};

impl Ctx {
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
            .named(link, key)
            .map(|entry| &mut *entry.work)
        else {
            // Of one that has ended, or never was: its end is taken note of, its bytes are not kept.
            self.answered(link, &answer)?;
            return Ok(Place::Discard);
        };
        let base = get.layout.as_ref().map_or(0, |plan| plan.base());
        let at = within(&answer, base);
        let run = get.buffer.host_from_mut(at);
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
            .named(link, key)
            .filter(|entry| entry.is_under_way())
        else {
            return Ok(None);
        };
        if entry.copies > 0 {
            return Err(violation("blocks for what this side copies itself"));
        }
        let Work::Get(get) = &mut *entry.work else {
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
        let plan = self.operations.work(key).and_then(Work::layout);
        if !plan.is_some_and(|plan| std::mem::take(&mut plan.is_unanswered)) {
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
        self.ctx.arrange(key, priority, false);
        self.begin_layout(link, key);
        key
    }

    /// Checks what has to be checked, and starts to move.
    pub(crate) fn begin_layout(&mut self, link: LinkId, key: OpKey) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        if entry.work.layout().is_none() {
            return;
        }
        let End {
            length,
            on_device,
            pull,
            ..
        } = entry.work.end();
        let Some(plan) = entry.work.layout() else {
            return;
        };
        let (target, shape, cursor) = (plan.target, plan.shape.clone(), plan.cursor);
        let (region, is_part) = (plan.length, plan.part.is_some());
        // Checked by this side's processor, and then moved by an engine, of this side or the peer's.
        let staged = length > 0 && (on_device || target.on_device && !pull);
        let blocks = match shape.total() {
            Some(Ok(total)) => plan.blocks(length, total),
            _ => 0,
        };
        let pieces = match &mut *entry.work {
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
                    .and_then(|peer| Ctx::direct_path(peer, &target, region, !pull))
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
            region: Some((target.slot, target.generation)),
            spread: Some(spread),
            ..Transfer::new(link, key, (ptr::null_mut(), length), remote, pull)
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
        get.buffer.scatter(at, data);
        if answer.status == 2 {
            self.fail_operation(key, control::error_of(&answer.code.to_le_bytes()));
        } else if get.got == get.buffer.len() {
            self.copied(key, Ok(()));
        }
        Ok(())
    }
}
