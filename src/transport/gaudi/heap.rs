//! Allocations in a card's memory, which the driver hands out in pages of hundreds of MiB.
//!
//! First fit, in pools of whole pages; what is free is joined with its neighbours. A pool without allocations is given back, but for one.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::backend::Pages;
use crate::error::{Error, ErrorKind, Result};

/// What every allocation begins at a multiple of, and is a multiple of.
const ALIGNMENT: u64 = 64;
/// The same from this length on.
const PAGE: u64 = 4096;

/// A card's.
#[derive(Debug, Default)]
pub(super) struct Heap {
    pools: Vec<Pool>,
    /// By address.
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Pool {
    /// Closed before the memory is given back, which it would keep.
    dma_buf: Option<OwnedFd>,
    memory: Arc<dyn Pages>,
    /// Start and length.
    free: BTreeMap<u64, u64>,
}

/// A number that no other allocation of this process has or had.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// An allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) start: u64,
    pub(super) length: u64,
    /// No other allocation of this process has or had it.
    pub(super) id: u64,
}

impl Pool {
    fn start(&self) -> u64 {
        self.memory.address()
    }

    fn end(&self) -> u64 {
        self.start() + self.memory.length()
    }

    fn holds(&self, address: u64) -> bool {
        (self.start()..self.end()).contains(&address)
    }

    fn is_empty(&self) -> bool {
        let length = self.memory.length();
        self.free.values().next() == Some(&length)
    }

    fn take(&mut self, length: u64, alignment: u64) -> Option<u64> {
        let (start, room, at) = self.free.iter().find_map(|(start, room)| {
            let at = start.checked_next_multiple_of(alignment)?;
            let fits = room
                .checked_sub(at - start)
                .is_some_and(|left| left >= length);
            fits.then_some((*start, *room, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let left = start + room - (at + length);
        if left > 0 {
            self.free.insert(at + length, left);
        }
        Some(at)
    }

    fn give_back(&mut self, mut start: u64, mut length: u64) {
        if let Some((before, room)) = self.free.range(..start).next_back()
            && before + room == start
        {
            (start, length) = (*before, room + length);
        }
        if let Some(room) = self.free.remove(&(start + length)) {
            length += room;
        }
        self.free.insert(start, length);
    }
}

impl Heap {
    /// What an allocation of `length` bytes takes; `None`: there cannot be so many.
    pub(super) fn rounded(length: u64) -> Option<u64> {
        let alignment = if length < PAGE { ALIGNMENT } else { PAGE };
        length.checked_next_multiple_of(alignment)
    }

    /// Takes `length` bytes out of the pools that there are. The answer has this length; what was taken is [rounded](Heap::rounded) up.
    pub(super) fn take(&mut self, length: u64) -> Option<Taken> {
        let rounded = Self::rounded(length)?;
        let alignment = if length < PAGE { ALIGNMENT } else { PAGE };
        let mut pools = self.pools.iter_mut();
        let start = pools.find_map(|pool| pool.take(rounded, alignment))?;
        let taken = Taken {
            start,
            length,
            id: next_id(),
        };
        self.taken.insert(start, taken);
        Some(taken)
    }

    pub(super) fn add(&mut self, memory: Box<dyn Pages>) {
        let free = BTreeMap::from([(memory.address(), memory.length())]);
        self.pools.push(Pool {
            dma_buf: None,
            memory: Arc::from(memory),
            free,
        });
    }

    /// Ends an allocation. What comes back is to be dropped without a lock, where it may take long.
    #[must_use]
    pub(super) fn give_back(&mut self, start: u64) -> Option<Box<dyn std::any::Any + Send>> {
        let taken = self.taken.remove(&start)?;
        let index = self.pools.iter().position(|pool| pool.holds(start))?;
        self.pools[index].give_back(start, Self::rounded(taken.length)?);
        let empty = self.pools.iter().filter(|pool| pool.is_empty()).count();
        if self.pools[index].is_empty() && empty > 1 {
            return Some(Box::new(self.pools.swap_remove(index)));
        }
        None
    }

    /// The allocation that an address lies in.
    pub(super) fn find(&self, address: u64) -> Option<Taken> {
        let (_, taken) = self.taken.range(..=address).next_back()?;
        (address - taken.start < taken.length).then_some(*taken)
    }

    /// The pool that an address is in.
    ///
    /// # Errors
    /// `InvalidArgument`: none.
    fn pool(&mut self, address: u64) -> Result<&mut Pool> {
        let pool = self.pools.iter_mut().find(|pool| pool.holds(address));
        pool.ok_or_else(|| {
            let text = format!("{address:#x} is in no memory of the card");
            Error::new(ErrorKind::InvalidArgument, text)
        })
    }

    /// The memory that is to be exported for an address, and what [`Heap::exported`] is told then.
    /// Errors: `InvalidArgument`: no memory of this card.
    pub(super) fn unexported(&mut self, address: u64) -> Result<Arc<dyn Pages>> {
        Ok(Arc::clone(&self.pool(address)?.memory))
    }

    /// Keeps the dma-buf of the memory that an address is in. One that there is already stays.
    /// Errors: as of [`Heap::unexported`].
    pub(super) fn exported(&mut self, address: u64, dma_buf: OwnedFd) -> Result<()> {
        self.pool(address)?.dma_buf.get_or_insert(dma_buf);
        Ok(())
    }

    /// A new descriptor of the pool's dma-buf, and where in it the address is; `None`: it was not exported yet.
    /// Errors: as of [`Heap::unexported`]; `Exhausted`: no descriptor.
    pub(super) fn dma_buf(&mut self, address: u64) -> Result<Option<(OwnedFd, u64)>> {
        let pool = self.pool(address)?;
        let offset = address - pool.start();
        let Some(dma_buf) = &pool.dma_buf else {
            return Ok(None);
        };
        let copy = dma_buf
            .try_clone()
            .map_err(|error| Error::io("a descriptor of a dma-buf", error))?;
        Ok(Some((copy, offset)))
    }

    /// Closes what keeps the card open beside its own descriptor.
    pub(super) fn close_exports(&mut self) {
        for pool in &mut self.pools {
            pool.dma_buf = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake(u64, u64);
    impl Pages for Fake {
        fn address(&self) -> u64 {
            self.0
        }
        fn length(&self) -> u64 {
            self.1
        }
        fn export(&self) -> Result<OwnedFd> {
            Err(Error::new(ErrorKind::Unsupported, "a fake"))
        }
    }

    #[test]
    fn random_allocations_never_overlap_and_all_comes_back() {
        let mut heap = Heap::default();
        assert!(heap.take(1).is_none());
        heap.add(Box::new(Fake(0x10_0000_0040, 1 << 20)));
        heap.add(Box::new(Fake(0x20_0000_0000, 1 << 20)));
        let mut state = 7_u64;
        let mut held: Vec<Taken> = Vec::new();
        let mut last = 0;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let pick = (state >> 33) as usize;
            if pick.is_multiple_of(3) && !held.is_empty() {
                let taken = held.swap_remove(pick % held.len());
                assert_eq!(heap.find(taken.start + taken.length - 1), Some(taken));
                let _ = heap.give_back(taken.start);
                assert_eq!(heap.find(taken.start), None);
            } else if let Some(taken) = heap.take(pick as u64 % 9000 + 1) {
                assert!(taken.id > last, "an id that was given before");
                last = taken.id;
                assert!(taken.start.is_multiple_of(ALIGNMENT));
                let overlaps = |other: &Taken| {
                    taken.start < other.start + other.length
                        && other.start < taken.start + taken.length
                };
                assert!(!held.iter().any(overlaps), "{taken:?} is another's");
                held.push(taken);
            }
        }
        assert!(held.len() > 50);
        let mut freed = 0;
        for taken in held {
            freed += usize::from(heap.give_back(taken.start).is_some());
        }
        assert_eq!(freed, 1, "one pool is kept");
        assert_eq!(heap.pools.len(), 1);
        assert!(heap.pools[0].is_empty() && heap.pools[0].free.len() == 1);
    }

    #[test]
    fn no_length_is_too_long_to_be_refused() {
        let mut heap = Heap::default();
        heap.add(Box::new(Fake(4096, 8192)));
        assert!(heap.take(u64::MAX).is_none() && heap.take(8193).is_none());
        assert!(heap.take(8192).is_some() && heap.take(1).is_none());
        assert!(heap.give_back(1).is_none(), "nobody's");
    }
}
