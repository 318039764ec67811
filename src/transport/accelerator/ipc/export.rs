//! What this process gives to others: the allocation that an address lies in, remembered as long as it is the same.

use std::{collections::HashMap, sync::Arc};

use super::{
    descriptor::{Allocation, Descriptor, Origin, Way},
    sharing::{Sharing, Tickets},
};
use crate::{
    error::{Error, ErrorKind, Result},
    transport::accelerator::Export,
    util::lock::Mutex,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Exporter<S: Sharing> {
    sharing: Arc<S>,
    origin: Origin,
    tickets: Tickets<S>,
    known: Mutex<Known<S::Way>>,
}

/// Allocations that were exported, by id. One that was freed is found no more, since its id is never used again.
#[derive(Debug)]
struct Known<W> {
    entries: HashMap<u64, (u64, Arc<Allocation<W>>)>,
    /// Counts uses.
    clock: u64,
}

/// Most of [`Known`]; about 300 bytes each.
const MOST: usize = 256;

impl<S: Sharing> Exporter<S> {
    pub(super) fn new(sharing: Arc<S>, origin: Origin) -> Self {
        Self {
            tickets: Tickets::new(&sharing),
            sharing,
            origin,
            known: Mutex::new(Known {
                entries: HashMap::new(),
                clock: 0,
            }),
        }
    }

    /// See [`Accelerator::export`](crate::transport::accelerator::Accelerator::export).
    pub(super) fn export(&self, address: u64, length: u64) -> Result<Export> {
        if length == 0 || address.checked_add(length).is_none() {
            let text = format!("{length} bytes at {address:#x} are no memory to export");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // Each time: it tells whether the allocation is still the one that was exported.
        let (id, seen) = self.sharing.look(address)?;
        if let Some(known) = self.known(id) {
            return part(&known, address, length);
        }
        let shared = match self.sharing.share(address, id, &seen, &self.tickets)? {
            Ok(shared) => shared,
            Err(why) => return Ok(Export::Impossible(why)),
        };
        // It may have been freed in between, and the calls have been about another.
        if self.sharing.look(address)?.0 != id {
            let text = format!("the memory at {address:#x} was freed while it was exported");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let allocation = Arc::new(Allocation {
            origin: self.origin.clone(),
            device: shared.device,
            id,
            base: shared.base,
            length: shared.length,
            way: shared.way,
        });
        self.keep(Arc::clone(&allocation));
        part(&allocation, address, length)
    }

    /// The same when it is known already: one look.
    pub(super) fn exported(&self, address: u64, length: u64) -> Option<Export> {
        let (id, _) = self.sharing.look(address).ok()?;
        part(&*self.known(id)?, address, length).ok()
    }

    fn known(&self, id: u64) -> Option<Arc<Allocation<S::Way>>> {
        let mut known = self.known.lock();
        let known = &mut *known;
        let (used, allocation) = known.entries.get_mut(&id)?;
        known.clock += 1;
        *used = known.clock;
        Some(Arc::clone(allocation))
    }

    fn keep(&self, allocation: Arc<Allocation<S::Way>>) {
        let mut known = self.known.lock();
        let known = &mut *known;
        if known.entries.len() >= MOST {
            let oldest = known.entries.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                known.entries.remove(&oldest);
            }
        }
        known.clock += 1;
        let entry = (known.clock, Arc::clone(&allocation));
        known.entries.insert(allocation.id, entry);
    }
}

/// The descriptor of a part of an allocation.
fn part<W: Way>(allocation: &Allocation<W>, address: u64, length: u64) -> Result<Export> {
    let offset = address.checked_sub(allocation.base);
    let ends = |offset: &u64| {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= allocation.length)
    };
    let Some(offset) = offset.filter(ends) else {
        if allocation.way.is_piece() {
            // Its neighbour may be the next piece.
            return Ok(Export::Impossible(format!(
                "{length} bytes at {address:#x} are of several pieces of physical memory"
            )));
        }
        let text = format!("{length} bytes at {address:#x} are not all of one allocation");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    };
    let descriptor = Descriptor {
        allocation: allocation.clone(),
        offset,
        length,
    };
    Ok(Export::Descriptor(descriptor.encode()))
}
