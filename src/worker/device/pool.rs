//! Fragments of pinned host memory that transfers of device memory stop in: few, allocated once, given back on every way out.
//!
//! There are two pools for each engine. Fragments of [`Side::Out`] are filled from memory of this process and wait for nothing but the device and
//! the link; those of [`Side::In`] are held while a peer fills them, which may itself be waiting for one of its [`Side::Out`]. So nobody waits in a
//! circle. One link holds no more than a half of a pool, that a peer which has stopped does not stop the others. Where several peers hold all of it, others
//! wait, and none is handed out for [`Side::looks`] looks in a row, the connection goes whose peer has had a fragment for longest. A fragment is never
//! taken from under a peer: the link lets go of it first.

use std::{fmt, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{self, DomainMemory, MemoryDomain},
    transport::CopyEnd,
    types::{LinkId, MemoryType},
    util::lock::Mutex,
};

/// Fragments of one side.
pub(crate) const FRAGMENTS: usize = 16;
/// Those that one link may hold of them.
const OF_A_LINK: usize = FRAGMENTS / 2;
/// Bounds of a fragment's length, whatever the engine likes best, in bytes.
const LENGTHS: (usize, usize) = (4 << 10, 4 << 20);

/// What a fragment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Bytes of this process, on their way to a peer or to another memory.
    Out,
    /// Bytes that a peer sends.
    In,
}

impl Side {
    /// So many looks, some seconds apart, find that none was handed out to those that wait: ten minutes, in which a program may compute and leave its
    /// worker alone. Who sends into one of [`Side::In`] may have to wait for one of [`Side::Out`] at its end, where a peer of its own is given as long.
    pub(in crate::worker) const fn looks(self) -> u32 {
        match self {
            Self::Out => 120,
            Self::In => 240,
        }
    }
}

/// The memory of both sides.
pub(crate) struct Pinned {
    memory: Box<dyn DomainMemory>,
    /// Of a fragment.
    pub(crate) length: usize,
    /// Whether the device reads and writes it by itself.
    pub(crate) pinned: bool,
    sides: [Mutex<Free>; 2],
}

#[derive(Default)]
struct Free {
    places: Vec<usize>,
    /// The links of those that are held. `None`: no link's.
    held: Vec<Option<LinkId>>,
    /// One was given back since this was last asked.
    released: bool,
    /// How many were handed out.
    taken: u64,
    /// That number at the last look at those that wait, and so many looks in a row.
    stalled: (u64, u32),
}

impl Free {
    fn of(&self, link: Option<LinkId>) -> usize {
        self.held.iter().filter(|held| **held == link).count()
    }
}

impl Pinned {
    /// Allocates it. May take long.
    pub(crate) fn new(
        domain: &Arc<dyn MemoryDomain>,
        fragment: usize,
        pageable: bool,
    ) -> Result<Arc<Self>> {
        let length = fragment.clamp(LENGTHS.0, LENGTHS.1);
        let bytes = length * FRAGMENTS * 2;
        let domains = [domain.clone()];
        let (memory, pinned) = match memory::allocate(&domains, MemoryType::HostPinned, bytes) {
            Ok(memory) => (memory, true),
            Err(_) if pageable => {
                let host: Arc<dyn MemoryDomain> = Arc::new(memory::HostDomain);
                (memory::allocate(&[host], MemoryType::Host, bytes)?, false)
            }
            Err(error) => return Err(error),
        };
        if !memory.memory_type().is_host_accessible() {
            let text = "the memory for fragments is out of the host's reach";
            return Err(Error::new(ErrorKind::Io, text).during(Operation::Memory));
        }
        let free = |first: usize| {
            Mutex::new(Free {
                places: (first..first + FRAGMENTS).rev().collect(),
                ..Free::default()
            })
        };
        Ok(Arc::new(Self {
            memory,
            length,
            pinned,
            sides: [free(0), free(FRAGMENTS)],
        }))
    }

    /// Takes a fragment. `None`: there is none for this link now.
    pub(crate) fn take(self: &Arc<Self>, side: Side, link: Option<LinkId>) -> Option<Fragment> {
        let mut free = self.sides[side as usize].lock();
        if free.of(link) >= OF_A_LINK {
            return None;
        }
        let place = free.places.pop()?;
        free.held.push(link);
        free.taken += 1;
        let number = free.taken;
        drop(free);
        Some(Fragment(Arc::new(Held {
            pinned: self.clone(),
            side,
            link,
            place,
            number,
        })))
    }

    /// Whether a link that may have a fragment waits for others to give one back.
    pub(crate) fn is_lacking(&self, side: Side, link: Option<LinkId>) -> bool {
        let free = self.sides[side as usize].lock();
        free.places.is_empty() && free.of(link) < OF_A_LINK
    }

    /// One more look at those that [lack](Self::is_lacking) one: whether enough in a row found that none was handed out.
    pub(in crate::worker) fn has_stalled(&self, side: Side) -> bool {
        let mut free = self.sides[side as usize].lock();
        if free.stalled.0 != free.taken {
            free.stalled = (free.taken, 0);
        }
        free.stalled.1 += 1;
        let has_stalled = free.stalled.1 > side.looks();
        if has_stalled {
            free.stalled.1 = 0;
        }
        has_stalled
    }

    /// Whether a fragment was given back since [`Pinned::has`] was last asked about this side.
    pub(crate) fn was_released(&self, side: Side) -> bool {
        self.sides[side as usize].lock().released
    }

    /// Whether there is a fragment for this link.
    pub(crate) fn has(&self, side: Side, link: Option<LinkId>) -> bool {
        let mut free = self.sides[side as usize].lock();
        free.released = false;
        !free.places.is_empty() && free.of(link) < OF_A_LINK
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({:?})", self.memory)
    }
}

/// A fragment. Free again when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Fragment(Arc<Held>);

struct Held {
    pinned: Arc<Pinned>,
    side: Side,
    link: Option<LinkId>,
    place: usize,
    /// The higher, the later it was handed out.
    number: u64,
}

impl Fragment {
    /// Its number among those that were handed out, if it is of this pool.
    pub(in crate::worker) fn number_in(&self, pinned: &Arc<Pinned>, side: Side) -> Option<u64> {
        (Arc::ptr_eq(&self.0.pinned, pinned) && self.0.side == side).then_some(self.0.number)
    }

    /// Its first byte, good for writing by whoever was given the fragment.
    pub(crate) fn address(&self) -> *mut u8 {
        let start = self.0.pinned.memory.range().start() as usize;
        // The domain's driver knows the address; where it came from is not this process's code.
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
        start.wrapping_add(self.0.place * self.0.pinned.length)
    }

    /// It, as an end of a copy.
    pub(crate) fn end(&self) -> CopyEnd {
        CopyEnd::Host {
            address: self.address(),
            pinned: self.0.pinned.pinned,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut free = self.pinned.sides[self.side as usize].lock();
        free.places.push(self.place);
        free.released = true;
        if let Some(index) = free.held.iter().position(|held| *held == self.link) {
            free.held.swap_remove(index);
        }
    }
}

impl fmt::Debug for Fragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fragment({})", self.0.place)
    }
}
