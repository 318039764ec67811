//! Atomic operations.
//!
//! # Safety
//! A mapped word is touched between `Pair::enter` and `Pair::leave`, with a look at the region's generation between, as in `rma`.
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{
        atomic::{COUNTER_SIZE, execute, raise},
        region::stale,
    },
    protocol::{atomic, control},
    transport::{Pair, RemoteRange, SendError, Standing},
    types::{Access, AtomicRequest, EndpointId, LinkId, OpKey},
    worker::{
        atomic::MappedCounter,
        ctx::Ctx,
        operations::{self, Ask, Ended, Work},
        peer::at,
        rma::{Near, Target},
        step::Outlet,
        violation::violation,
    },
};

impl Ctx {
    /// A network device, or the peer's, did not do an atomic operation.
    pub(in crate::worker) fn atomic_refused(&mut self, key: OpKey, error: Error) {
        let error = match error.kind() {
            // This side has checked the range and the rights.
            ErrorKind::AccessDenied => stale().with_source(error),
            _ => error,
        };
        self.fail_operation(key, error);
    }

    /// Enters an atomic operation, or a question, for which nobody waits, to be submitted.
    pub(crate) fn enter_atomic(&mut self, link: LinkId, asks: Ask, fetch: bool) -> OpKey {
        let detached = matches!(asks, Ask::Settle);
        let work = Work::Atomic(operations::Atomic {
            asks,
            fetch,
            sent: false,
        });
        self.operations.insert(Some(link), detached, work)
    }

    /// Does an atomic operation at once. `None`: the word is not mapped here.
    #[inline]
    pub(crate) fn atomic_now(
        &mut self,
        link: LinkId,
        target: &Target,
        request: &AtomicRequest,
    ) -> Option<Result<u64>> {
        self.within_mapping(link, target, request.width.bytes(), |word| {
            // SAFETY: aligned, and checked against the mapping by `mapped_at`; other processes use such words by atomics as well.
            unsafe { execute(word, request) }
        })
    }

    /// As [`Ctx::in_mapping`], an atomic operation; what the word was.
    #[inline(always)]
    pub(crate) fn atomic_in_mapping(
        &mut self,
        place: (LinkId, EndpointId),
        near: &Near,
        offset: u64,
        request: &AtomicRequest,
        window: usize,
    ) -> Option<u64> {
        let width = request.width;
        if !near.is_aligned(offset, width) {
            return None;
        }
        let (word, inside, _) =
            self.in_mapping(place, near, (offset, width.bytes()), true, window)?;
        if !width.divides(word as u64) {
            // A descriptor that contradicts itself: its owner says what it thinks of that.
            return None;
        }
        // SAFETY: aligned, and checked against the mapping; other processes use such words by atomics as well.
        let old = unsafe { execute(word, request) };
        drop(inside);
        Some(old)
    }

    /// Raises a counter at once. `None`: it is not mapped here; else whether somebody sleeps there, whom only a message wakes.
    #[inline]
    pub(crate) fn raise_now(
        &mut self,
        link: LinkId,
        target: &Target,
        add: u64,
    ) -> Option<Result<bool>> {
        self.within_mapping(link, target, COUNTER_SIZE, |word| {
            // SAFETY: as in `atomic_now`, for both words.
            unsafe { raise(word, add) }
        })
    }

    /// A peer's counter, to be raised without the worker, if it is mapped here.
    pub(crate) fn mapped_counter(
        &mut self,
        link: LinkId,
        target: &Target,
    ) -> Option<MappedCounter> {
        let word = self.within_mapping(link, target, COUNTER_SIZE, |word| word)?;
        let word = word.ok()?;
        let one_copy = at(&mut self.peers, link)?.one_copy.as_ref()?;
        Some(MappedCounter {
            word,
            _mapping: one_copy.mapping(target.segment)?.clone(),
            pair: one_copy.pair.clone(),
            region: (target.slot, target.generation),
        })
    }

    /// Does something with `length` bytes that are mapped here and exposed there, and begin at a multiple of their length, or of eight.
    #[inline]
    pub(crate) fn within_mapping<R>(
        &mut self,
        link: LinkId,
        target: &Target,
        length: usize,
        act: impl FnOnce(*mut u8) -> R,
    ) -> Option<Result<R>> {
        let peer = at(&mut self.peers, link)?;
        let one_copy = peer.one_copy.as_ref()?;
        if target.slot as usize >= Pair::GENERATIONS || target.segment == 0 {
            return None;
        }
        let Some(word) = one_copy.mapped_at(target, length, true) else {
            // Later operations find it mapped; this one goes the other way.
            peer.show_key(target.segment, target.slot, target.generation);
            return None;
        };
        if !(word as usize).is_multiple_of(length.min(8)) {
            // The descriptor contradicts itself: its owner says what it thinks of that.
            return None;
        }
        one_copy.pair.enter();
        let result = match one_copy.pair.standing(target.slot, target.generation) {
            Standing::Let => Some(Ok(act(word))),
            Standing::TakenBack => Some(Err(stale())),
            Standing::Unknown => None,
        };
        one_copy.pair.leave();
        if result.is_none() {
            peer.show_key(target.segment, target.slot, target.generation);
        }
        result
    }

    /// A peer asks for an atomic operation on memory of this side.
    pub(in crate::worker) fn atomic_request(
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
    pub(in crate::worker) fn word_fetched(
        &mut self,
        link: LinkId,
        key: OpKey,
        body: &[u8],
    ) -> Result<()> {
        let old = body
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| violation("not a word"))?;
        let Some(entry) = self
            .operations
            .named(link, key)
            .filter(|entry| entry.outcome.is_none())
        else {
            return Ok(());
        };
        if !matches!(&*entry.work, Work::Atomic(atomic) if atomic.fetch && atomic.sent) {
            return Err(violation("a word for what asked for none"));
        }
        self.finish(key, Ended::Value(old));
        Ok(())
    }
}

impl operations::Atomic {
    /// Asks the owner of the word, or a network device. `false`: none does such any more.
    pub(super) fn ask(&mut self, outlet: &mut Outlet<'_>) -> Result<bool, SendError> {
        let Outlet { link, key, .. } = outlet;
        match &self.asks {
            Ask::Owner(message) => link.am_short(control::ATOMIC, key.0, &message.encode())?,
            Ask::Settle => link.am_short(control::SETTLE, key.0, &[])?,
            Ask::Device(word) => {
                let remote = RemoteRange {
                    address: word.address,
                    keys: word.key.as_slice(),
                };
                let ways = link
                    .one_sided()
                    .filter(|ways| ways.attributes().atomics && ways.reaches(remote.keys));
                let Some(ways) = ways else {
                    return Ok(false);
                };
                ways.atomic(word.atomic, remote, key.0)?;
            }
        }
        self.sent = true;
        Ok(true)
    }
}
