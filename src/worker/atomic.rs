//! Atomic operations: by the initiator's processor where the word is mapped here, else by messages that the owner's software serves.
//!
//! # Safety
//! A mapped word is touched between `Pair::enter` and `Pair::leave`, with a look at the region's generation between, as in `rma`.
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind, Result},
    memory::atomic::execute,
    protocol::{atomic, control},
    transport::shm::Pair,
    types::{Access, AtomicRequest, LinkId, OpKey},
    worker::{
        core::Core,
        operations::{self, Outcome, Work},
        peer::at,
        rma::{Target, stale},
    },
};

impl Core {
    /// Does an atomic operation at once. `None`: the word is not mapped here.
    #[inline]
    pub(crate) fn atomic_now(
        &mut self,
        link: LinkId,
        target: &Target,
        request: &AtomicRequest,
    ) -> Option<Result<u64>> {
        let peer = at(&mut self.peers, link)?;
        let one_copy = peer.one_copy.as_ref()?;
        if target.slot as usize >= Pair::GENERATIONS || target.segment == 0 {
            return None;
        }
        let width = request.width.bytes();
        let Some(word) = one_copy.mapped_at(target, width) else {
            // Later operations find it mapped; this one goes the other way.
            peer.ask_mapping(target.segment, target.slot, target.generation);
            return None;
        };
        if !(word as usize).is_multiple_of(width) {
            // The descriptor contradicts itself: its owner says what it thinks of that.
            return None;
        }
        one_copy.pair.enter();
        let result = if one_copy.pair.peer_generation(target.slot) == target.generation {
            // SAFETY: aligned, and checked against the mapping by `mapped_at`; other processes use such words by atomics as well.
            Ok(unsafe { execute(word, request) })
        } else {
            Err(stale())
        };
        one_copy.pair.leave();
        Some(result)
    }

    /// Enters an atomic operation for the owner of the word, to be submitted.
    pub(crate) fn enter_atomic(
        &mut self,
        link: LinkId,
        target: &Target,
        request: &AtomicRequest,
        fetch: bool,
    ) -> OpKey {
        let message = control::Atomic {
            generation: target.generation,
            offset: target.offset,
            operand: request.operand,
            compare: request.compare,
            slot: target.slot,
            code: atomic::code(request, fetch),
        };
        let work = operations::Atomic {
            message: Some(message),
            fetch,
            sent: false,
        };
        self.operations
            .insert(Some(link), false, Work::Atomic(work))
    }

    /// A peer asks for an atomic operation on memory of this side.
    pub(super) fn atomic_request(
        &mut self,
        link: LinkId,
        op: u64,
        body: &control::Atomic,
    ) -> Result<()> {
        let (request, fetch) = atomic::request(body)?;
        let access = if fetch {
            Access::READ | Access::WRITE
        } else {
            Access::WRITE
        };
        let width = request.width.bytes() as u64;
        let done = self
            .regions
            .check(body.slot, body.generation, body.offset, width, access)
            .and_then(|exposed| {
                let old = exposed.atomic(body.offset as usize, &request)?;
                exposed.take_reached(&mut self.wakes);
                Ok(old)
            });
        match done {
            Ok(old) if fetch => self.control(link, control::FETCHED, op, &old.to_le_bytes()),
            Ok(_) => self.control(link, control::DONE, op, &[]),
            Err(error) => self.refuse(link, op, error.kind()),
        }
        Ok(())
    }

    /// The old value of a word has come.
    pub(super) fn fetched(&mut self, link: LinkId, key: OpKey, body: &[u8]) -> Result<()> {
        let old = body
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| Error::new(ErrorKind::Protocol, "not a word"))?;
        let Some(entry) = self
            .operations
            .get(key)
            .filter(|entry| entry.link == Some(link) && entry.outcome.is_none())
        else {
            return Ok(());
        };
        if !matches!(&entry.work, Work::Atomic(atomic) if atomic.fetch && atomic.sent) {
            return Err(Error::new(
                ErrorKind::Protocol,
                "a word for what asked for none",
            ));
        }
        self.finish(key, Outcome::Value(old));
        Ok(())
    }
}
