//! Puts, gets and mapped memory: what is done directly, and what is asked of the owner.
//!
//! # Safety
//! Direct access is for who has shown the region's key to its owner (`MAP`), which then writes the generation into the words that it shares with that
//! peer alone. It is bracketed by `Pair::enter` and `Pair::leave`, with a look at the region's generation between: the owner frees exposed memory only
//! after it revoked the generation and saw this side outside. Local memory is the caller's, for the length of the call.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{
    error::Result,
    memory::region::stale,
    protocol::{
        control::{self, Join},
        plan::{self, Accesses},
    },
    trace,
    transport::{Inside, Pair, Standing},
    types::{DeviceKey, EndpointId, LinkId, OpKey, Priority},
    util::copy::{SHORTEST, copy, copy_short},
    worker::{
        copy::{Remote, Transfer},
        ctx::Ctx,
        device::Fragment,
        metrics::WorkerMetrics,
        movers::Movers,
        operations::{End, Work},
        peer::{OneCopy, Peer, at, of},
        rma::{INLINE, Near, Target, ends, what, within},
    },
};

impl Ctx {
    pub(crate) fn show_key(&mut self, link: LinkId, segment: u64, slot: u32, generation: u64) {
        if let Some(peer) = self.peer(link) {
            peer.show_key(segment, slot, generation);
        }
    }

    /// How the target is reached directly, if it is.
    pub(crate) fn direct_path(
        peer: &mut Peer,
        target: &Target,
        length: usize,
        write: bool,
    ) -> Option<Remote> {
        let one_copy = peer.one_copy.as_ref()?;
        if target.on_device {
            return None;
        }
        if target.slot as usize >= Pair::GENERATIONS {
            // Past the table of generations: only the owner's software can say whether it is still exposed.
            return None;
        }
        let offset = target.segment_offset.checked_add(target.offset)?;
        let address = target.address.wrapping_add(target.offset);
        let remote = one_copy.reach(target.segment, offset, length, address, write);
        let is_let = one_copy.pair.standing(target.slot, target.generation) == Standing::Let;
        if !is_let || target.segment != 0 && !matches!(remote, Some(Remote::Mapped(..))) {
            // Later operations find it open and mapped; this one goes the other way.
            peer.show_key(target.segment, target.slot, target.generation);
        }
        remote.filter(|_| is_let)
    }

    /// Where `length` bytes lie that are `offset` behind the target, mapped here and exposed there for as long as what comes with them is kept. `None`:
    /// they are not, there is no connection, or its window is `window` or more operations full. What of `near` the owner allows, the caller has
    /// checked. Nothing is done here by a closure: one with several uses would be called.
    #[inline(always)]
    pub(crate) fn in_mapping(
        &mut self,
        (link, id): (LinkId, EndpointId),
        near: &Near,
        (offset, length): (u64, usize),
        write: bool,
        window: usize,
    ) -> Option<(*mut u8, Inside<'_>, &mut WorkerMetrics)> {
        let peer =
            of(&mut self.peers, link, id).filter(|peer| peer.is_open() && peer.posted < window)?;
        let one_copy = peer.one_copy.as_ref()?;
        let target = &near.target;
        let mapping = one_copy.mapping_near(target.segment, &near.place)?;
        let start = target.segment_offset.checked_add(offset)?;
        let address = within(mapping, start, length, write)?;
        let inside = one_copy.pair.inside(target.slot, target.generation)?;
        Some((address, inside, &mut self.counts))
    }

    /// Copies a short run of bytes to or from mapped memory at once, as [`Ctx::in_mapping`].
    ///
    /// # Safety
    /// `local` must be valid for `length` bytes, for writing when `pull`.
    #[inline(always)]
    pub(crate) unsafe fn copy_in_mapping(
        &mut self,
        place: (LinkId, EndpointId),
        near: &Near,
        offset: u64,
        (local, length): (*mut u8, usize),
        pull: bool,
        window: usize,
    ) -> Option<()> {
        if length > INLINE {
            return None;
        }
        let range = (offset, length);
        let (remote, inside, counts) = self.in_mapping(place, near, range, !pull, window)?;
        let (from, to) = ends(local, remote, pull);
        // SAFETY: valid for `length`: one is the caller's, the other was checked against the mapping, and is exposed while `inside` is kept. At two
        // addresses they do not overlap, even when they are the same memory within one process.
        unsafe {
            match length <= SHORTEST {
                true => copy_short(from, to, length),
                false => copy(from, to, length),
            }
        }
        drop(inside);
        counts.copied(true, length);
        trace::operation(what(pull), length, "in mapped memory");
        Some(())
    }

    /// Does a short put or get at once. `None`: there is no direct path, or it is too long for the caller's turn.
    ///
    /// # Safety
    /// `local` must be valid for `length` bytes, for writing when `pull`.
    #[inline]
    pub(crate) unsafe fn access_now(
        &mut self,
        link: LinkId,
        target: &Target,
        local: *mut u8,
        length: usize,
        pull: bool,
    ) -> Option<Result<()>> {
        if length > INLINE {
            return None;
        }
        let peer = at(&mut self.peers, link)?;
        if target.slot as usize >= Pair::GENERATIONS {
            return None;
        }
        if let Some(one_copy) = &peer.one_copy
            && let Some(remote) = one_copy.mapped_at(target, length, !pull)
        {
            one_copy.pair.enter();
            let standing = one_copy.pair.standing(target.slot, target.generation);
            if standing == Standing::Let {
                let (from, to) = ends(local, remote, pull);
                // SAFETY: valid for `length`: one is the caller's, the other was checked against the mapping. At two addresses they do not
                // overlap, even when they are the same memory within one process.
                unsafe { copy(from, to, length) };
                self.counts.copied(true, length);
                trace::operation(what(pull), length, "in mapped memory");
            }
            one_copy.pair.leave();
            return match standing {
                Standing::Let => Some(Ok(())),
                Standing::TakenBack => Some(Err(stale())),
                Standing::Unknown => {
                    peer.show_key(target.segment, target.slot, target.generation);
                    None
                }
            };
        }
        let Remote::Address(address) = Self::direct_path(peer, target, length, !pull)? else {
            return None;
        };
        let one_copy = peer.one_copy.as_ref()?;
        let cma = one_copy.cma.as_ref()?;
        one_copy.pair.enter();
        let result = if one_copy.pair.standing(target.slot, target.generation) != Standing::Let {
            Err(stale())
        } else {
            // SAFETY: `local` is valid by the caller's promise; the remote side is revocable.
            unsafe { cma.copy(address, local, length, pull) }
        };
        one_copy.pair.leave();
        if result.is_ok() {
            self.counts.copied(false, length);
            trace::operation(what(pull), length, "by cma");
        }
        Some(result)
    }

    /// What is tried for a put or get, in this order.
    #[inline]
    fn ways_of(&mut self, link: LinkId, target: &Target, here: &End) -> &'static [Accesses] {
        let ends = (here.on_device, target.on_device);
        let own = ends != (false, false) && self.is_to_itself(link);
        plan::accesses(!here.pull, ends, own, here.length)
    }

    /// How the target is reached straight, if it is, and a word to count in.
    fn path(
        &mut self,
        link: LinkId,
        target: &Target,
        ways: &[Accesses],
        &End { length, pull, .. }: &End,
    ) -> (Option<Remote>, Option<u32>) {
        let peer = at(&mut self.peers, link).filter(|_| ways.contains(&Accesses::Straight));
        let Some((path, peer)) =
            peer.and_then(|peer| Some((Self::direct_path(peer, target, length, !pull)?, peer)))
        else {
            return (None, None);
        };
        let one_copy = peer.one_copy.as_ref();
        let joined = one_copy.filter(|one_copy| plan::is_joined(one_copy.cma.is_some(), length));
        (
            Some(path),
            joined.and_then(|one_copy| one_copy.pair.acquire()),
        )
    }
}

/// A put or get, in the table, between one run here and one there.
struct OneRun {
    link: LinkId,
    key: OpKey,
    target: Target,
    here: End,
}

impl Movers {
    /// Starts a put or get between one run here and one there. `route`: keys by which network devices reach the region.
    pub(crate) fn start_run(
        &mut self,
        link: LinkId,
        target: Target,
        mut work: Work,
        (priority, unstaged): (Priority, bool),
        route: Option<&Arc<[DeviceKey]>>,
    ) -> OpKey {
        let here = work.end();
        let ways = self.ctx.ways_of(link, &target, &here);
        let (path, chunks) = self.ctx.path(link, &target, ways, &here);
        match &mut work {
            Work::Put(put) => {
                put.announced = ways.contains(&Accesses::Announced);
                put.slot = chunks;
            }
            Work::Get(get) => get.slot = chunks,
            _ => {}
        }
        let key = self.ctx.operations.insert(Some(link), false, work);
        self.ctx.arrange(key, priority, unstaged);
        let run = OneRun {
            link,
            key,
            target,
            here,
        };
        self.start_by(&run, ways, (path, chunks), route);
        key
    }

    /// Begins a put or get by the first of these ways that there is.
    fn start_by(
        &mut self,
        run: &OneRun,
        ways: &[Accesses],
        (path, chunks): (Option<Remote>, Option<u32>),
        route: Option<&Arc<[DeviceKey]>>,
    ) {
        let OneRun {
            link, key, target, ..
        } = *run;
        let is_straight = path.is_some();
        let stops = target.on_device && !run.here.on_device && run.here.length > 0;
        for way in ways {
            match way {
                Accesses::Straight if is_straight => self.start_access(run, path, chunks),
                Accesses::Devices if self.ctx.rma_by_devices(link, key, &target, route) => {}
                Accesses::Straight | Accesses::Devices => continue,
                Accesses::Within => self.begin_within(key, target),
                Accesses::Parts => self.begin_parts(key, target),
                // What is announced is a message as well: its owner pulls.
                Accesses::Announced | Accesses::Messages => {
                    match self.may_not_stop(key).filter(|_| stops) {
                        Some(error) => self.fail_operation(key, error),
                        None => self.submit(link, key),
                    }
                }
            }
            return;
        }
    }

    /// Starts a put or get of a part that is in a fragment, for the operation that it is a part of. Without a target it asks for a part of what was
    /// announced.
    pub(in crate::worker) fn start_part(
        &mut self,
        link: LinkId,
        (parent, fragment): ((OpKey, u32), Fragment),
        priority: Priority,
        mut work: Work,
        target: Option<Target>,
    ) {
        let here = work.end();
        let key = self.ctx.operations.insert(Some(link), false, work);
        if let Some(entry) = self.ctx.operations.get(key) {
            let staged = entry.staged.get_or_insert_default();
            (staged.parent, staged.fragment) = (Some(parent), Some(fragment));
            entry.priority = priority;
        }
        let Some(peer) = self.ctx.peer(link) else {
            return;
        };
        peer.posted += 1;
        let Some(target) = target else {
            return self.submit(link, key);
        };
        if here.in_blocks {
            return self.begin_layout(link, key);
        }
        let path = Ctx::direct_path(peer, &target, here.length, !here.pull);
        let run = OneRun {
            link,
            key,
            target,
            here,
        };
        self.start_access(&run, path, None);
    }

    fn start_access(&mut self, run: &OneRun, path: Option<Remote>, chunks: Option<u32>) {
        let OneRun {
            link,
            key,
            target,
            here:
                End {
                    local,
                    length,
                    pull,
                    ..
                },
        } = *run;
        let Some(remote) = path else {
            self.submit(link, key);
            return;
        };
        if let Some(chunks) = chunks {
            let join = Join {
                generation: target.generation,
                offset: target.offset,
                length: length as u64,
                address: local as u64,
                slot: target.slot,
                chunks,
                put: u32::from(!pull),
            };
            self.ctx.control(link, control::JOIN, key.0, &join.encode());
        }
        self.start_transfer(Transfer {
            chunks,
            region: Some((target.slot, target.generation)),
            ..Transfer::new(link, key, (local, length), remote, pull)
        });
    }
}

impl Peer {
    /// Shows the owner of a region its key, once, so that it is let at the region directly, and gets the segment that it lies in.
    pub(in crate::worker) fn show_key(&mut self, segment: u64, slot: u32, generation: u64) {
        let Some(one_copy) = &mut self.one_copy else {
            return;
        };
        if slot as usize >= Pair::GENERATIONS {
            return;
        }
        let is_let = one_copy.pair.standing(slot, generation) != Standing::Unknown
            || one_copy.told.shown.insert(slot, generation) == Some(generation);
        let is_mapped = segment == 0
            || one_copy.mapping(segment).is_some()
            || one_copy.told.asked.contains(&segment);
        if !is_mapped {
            one_copy.told.asks_for(segment);
        }
        if !(is_let && is_mapped) {
            // A failure shows on the link itself.
            let _ = self.control(control::MAP, generation, &slot.to_le_bytes());
        }
    }
}

impl OneCopy {
    /// Where the target lies in this process, when its segment is mapped here.
    #[inline]
    pub(in crate::worker) fn mapped_at(
        &self,
        target: &Target,
        length: usize,
        write: bool,
    ) -> Option<*mut u8> {
        let mapping = self.mapping(target.segment)?;
        let start = target.segment_offset.checked_add(target.offset)?;
        within(mapping, start, length, write)
    }
}
