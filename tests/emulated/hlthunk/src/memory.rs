//! What has an address for the card's engines: device memory, and host memory that was mapped. The first Gaudi's memory is all there always.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    sync::Arc,
};

use crate::{
    abi::{Chip, Outcome},
    peer::Peer,
};

/// The tables.
#[derive(Debug)]
pub(crate) struct Memory {
    chip: Chip,
    size: u64,
    page: u64,
    used: Vec<bool>,
    pub(crate) allocations: HashMap<u64, Allocation>,
    /// Mappings of device memory: address and handle.
    mapped: BTreeMap<u64, u64>,
    pub(crate) host: BTreeMap<u64, HostRange>,
    /// dma-bufs of other cards, by address.
    pub(crate) peers: BTreeMap<u64, Arc<Peer>>,
    next_handle: u64,
    next_address: u64,
    next_host: u64,
}

/// Device memory with a handle: pages that need not lie side by side.
#[derive(Debug)]
pub(crate) struct Allocation {
    pages: Vec<usize>,
    mapped: Option<u64>,
}

/// Host memory that the engines reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    address: u64,
    len: u64,
}

/// A piece of what an address means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// Bytes at an offset of the card's memory.
    Device(u64),
    /// Bytes at an address of this process.
    Host(u64),
    /// Bytes at an offset of what is mapped of another card at an address.
    Peer(u64, u64),
}

impl Memory {
    pub(crate) fn new(chip: Chip, size: u64) -> Self {
        let page = chip.page();
        Self {
            chip,
            size,
            page,
            used: vec![false; (size / page) as usize],
            allocations: HashMap::new(),
            mapped: BTreeMap::new(),
            host: BTreeMap::new(),
            peers: BTreeMap::new(),
            next_handle: 1,
            next_address: chip.dram_base(),
            next_host: chip.host_base(),
        }
    }

    pub(crate) fn allocate(&mut self, size: u64, page_size: u64) -> Outcome<u64> {
        if self.chip == Chip::Gaudi {
            // Its memory is not virtual: the kernel answers success with the handle 0.
            return Ok(0);
        }
        if size == 0 || (page_size != 0 && !page_size.is_power_of_two()) {
            return Err(libc::EINVAL);
        }
        let count = size.div_ceil(self.page) as usize;
        let free = self.used.iter().enumerate().filter(|(_, used)| !**used);
        let pages: Vec<usize> = free.map(|(page, _)| page).take(count).collect();
        if pages.len() < count {
            return Err(libc::ENOMEM);
        }
        for page in &pages {
            self.used[*page] = true;
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let mapped = None;
        self.allocations
            .insert(handle, Allocation { pages, mapped });
        Ok(handle)
    }

    pub(crate) fn free(&mut self, handle: u64) -> Outcome {
        match self.allocations.get(&handle) {
            Some(allocation) if allocation.mapped.is_none() => {}
            _ => return Err(libc::EINVAL),
        }
        if let Some(allocation) = self.allocations.remove(&handle) {
            for page in allocation.pages {
                self.used[page] = false;
            }
        }
        Ok(())
    }

    pub(crate) fn map(&mut self, handle: u64, hint: u64) -> Outcome<u64> {
        let page = self.page;
        let base = self.chip.dram_base();
        let allocation = self.allocations.get(&handle).ok_or(libc::EINVAL)?;
        if allocation.mapped.is_some() {
            return Err(libc::EINVAL);
        }
        let len = allocation.pages.len() as u64 * page;
        let fits = hint > base && (hint - base).is_multiple_of(page) && self.is_free(hint, len);
        let address = if fits {
            hint
        } else {
            // A page between mappings, and no address twice: who runs over an end or keeps an old address is caught.
            loop {
                let address = self.next_address;
                self.next_address += len + page;
                if self.is_free(address, len) {
                    break address;
                }
            }
        };
        self.mapped.insert(address, handle);
        if let Some(allocation) = self.allocations.get_mut(&handle) {
            allocation.mapped = Some(address);
        }
        Ok(address)
    }

    fn is_free(&self, address: u64, len: u64) -> bool {
        let before = self.mapped.range(..address + len).next_back();
        before.is_none_or(|(start, handle)| start + self.len_of(*handle) <= address)
    }

    fn len_of(&self, handle: u64) -> u64 {
        let allocation = self.allocations.get(&handle);
        allocation.map_or(0, |allocation| allocation.pages.len() as u64 * self.page)
    }

    /// How long the mapping at exactly this address is.
    pub(crate) fn mapping(&self, address: u64) -> Option<u64> {
        Some(self.len_of(*self.mapped.get(&address)?))
    }

    /// Ends a mapping of either kind.
    pub(crate) fn unmap(&mut self, address: u64) -> Outcome {
        if self.host.remove(&address).is_some() || self.peers.remove(&address).is_some() {
            return Ok(());
        }
        let handle = self.mapped.remove(&address).ok_or(libc::EINVAL)?;
        if let Some(allocation) = self.allocations.get_mut(&handle) {
            allocation.mapped = None;
        }
        Ok(())
    }

    pub(crate) fn map_host(&mut self, address: u64, len: u64) -> Outcome<u64> {
        const PAGE: u64 = 4096;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        if !is_writable(address, len) {
            return Err(libc::EFAULT);
        }
        let within = address % PAGE;
        let device = self.next_host + within;
        self.next_host += (within + len).next_multiple_of(PAGE) + PAGE;
        self.host.insert(device, HostRange { address, len });
        Ok(device)
    }

    /// Maps a dma-buf of another card.
    pub(crate) fn map_peer(&mut self, peer: Peer) -> u64 {
        let address = self.next_address;
        self.next_address += peer.len().next_multiple_of(self.page) + self.page;
        self.peers.insert(address, Arc::new(peer));
        address
    }

    /// Whether `len` bytes at `address` lie in the card's memory or in one mapping.
    pub(crate) fn is_known(&self, address: u64, len: u64) -> bool {
        self.resolve(address, len).is_ok()
    }

    /// What `len` bytes at `address` are; they must not leave a mapping.
    pub(crate) fn resolve(&self, address: u64, len: u64) -> Result<Vec<(Place, u64)>, ()> {
        let end = address.checked_add(len).ok_or(())?;
        if let Some((start, range)) = self.host.range(..=address).next_back()
            && end <= start + range.len
        {
            return Ok(vec![(Place::Host(range.address + (address - start)), len)]);
        }
        if self.chip == Chip::Gaudi {
            let offset = address.checked_sub(self.chip.dram_base()).ok_or(())?;
            if offset + len > self.size {
                return Err(());
            }
            return Ok(vec![(Place::Device(offset), len)]);
        }
        if let Some((start, peer)) = self.peers.range(..=address).next_back()
            && end <= start + peer.len()
        {
            return Ok(vec![(Place::Peer(*start, address - start), len)]);
        }
        let (start, handle) = self.mapped.range(..=address).next_back().ok_or(())?;
        let allocation = self.allocations.get(handle).ok_or(())?;
        if end > start + allocation.pages.len() as u64 * self.page {
            return Err(());
        }
        let mut pieces = Vec::new();
        let mut at = address - start;
        let last = end - start;
        while at < last {
            let piece = (self.page - at % self.page).min(last - at);
            let page = allocation.pages[(at / self.page) as usize] as u64;
            pieces.push((Place::Device(page * self.page + at % self.page), piece));
            at += piece;
        }
        Ok(pieces)
    }
}

/// Whether all of it is mapped for reading and writing: the kernel pins pages to write to them.
fn is_writable(address: u64, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    let mut at = address;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some((start, stop)) = words.next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let hex = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (start, stop) = (hex(start), hex(stop));
        if stop <= at {
            continue;
        }
        if start > at || !words.next().is_some_and(|rights| rights.starts_with("rw")) {
            return false;
        }
        at = stop;
        if at >= end {
            return true;
        }
    }
    false
}
