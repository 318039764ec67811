//! Addresses: what is allocated on the device, and which host memory is mapped for it.

use std::{collections::BTreeMap, fs};

use wharf_emulated_common::backing::HostPages;

use crate::{
    abi::{Outcome, Status},
    device::Device,
    settings,
    stream::Direction,
};

/// Allocations begin at multiples of so many bytes.
pub(crate) const ALIGN: u64 = 128;

/// What new memory is filled with, at its edges: a program that takes it for zeros is found out.
const JUNK: u8 = 0xA5;

/// How much of either edge.
const EDGE: u64 = 64 << 10;

/// Host memory that is mapped.
#[derive(Debug)]
struct Mapped {
    len: u64,
    /// Of `synHostMalloc`; `None` for the program's own.
    pages: Option<HostPages>,
}

/// The tables.
#[derive(Debug)]
pub(crate) struct Memory {
    base: u64,
    len: u64,
    /// Start and length, as it was asked for: a byte further is none of the program's.
    pub(crate) allocations: BTreeMap<u64, u64>,
    /// What is mapped, by its start.
    host: BTreeMap<u64, Mapped>,
    /// Bytes that are allocated.
    pub(crate) used: u64,
}

impl Memory {
    pub(crate) const fn new(base: u64, len: u64) -> Self {
        Self {
            base,
            len,
            allocations: BTreeMap::new(),
            host: BTreeMap::new(),
            used: 0,
        }
    }

    /// Bytes that are free.
    pub(crate) const fn free_bytes(&self) -> u64 {
        self.len - self.used
    }

    /// Allocates, at `wanted` when that is an address that can be had: it is a wish.
    pub(crate) fn allocate(&mut self, len: u64, wanted: u64) -> Outcome<u64> {
        if len == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let room = len
            .checked_next_multiple_of(ALIGN)
            .ok_or(Status::OUT_OF_DEVICE_MEMORY)?;
        let at = match wanted {
            wanted if wanted.is_multiple_of(ALIGN) && self.is_free(wanted, room) => wanted,
            _ => self.first_free(room).ok_or(Status::OUT_OF_DEVICE_MEMORY)?,
        };
        self.allocations.insert(at, len);
        self.used += room;
        Ok(at)
    }

    fn is_free(&self, start: u64, room: u64) -> bool {
        let Some(end) = start.checked_add(room) else {
            return false;
        };
        let before = self.allocations.range(..end).next_back();
        start >= self.base
            && end <= self.base + self.len
            && before.is_none_or(|(at, len)| at + len.next_multiple_of(ALIGN) <= start)
    }

    fn first_free(&self, room: u64) -> Option<u64> {
        let mut at = self.base;
        for (start, len) in &self.allocations {
            if start - at >= room {
                return Some(at);
            }
            at = start + len.next_multiple_of(ALIGN);
        }
        (self.base + self.len - at >= room).then_some(at)
    }

    /// How long the allocation is that begins there.
    pub(crate) fn allocated(&self, address: u64) -> Option<u64> {
        self.allocations.get(&address).copied()
    }

    /// Frees, by the start; the length that it had, with what lies behind it.
    pub(crate) fn free(&mut self, address: u64) -> Option<u64> {
        let len = self.allocations.remove(&address)?;
        let room = len.next_multiple_of(ALIGN);
        self.used -= room;
        Some(room)
    }

    /// Where in the pool an allocated range lies.
    fn device_range(&self, address: u64, len: u64) -> Option<u64> {
        let (start, allocated) = self.allocations.range(..=address).next_back()?;
        let end = address.checked_add(len)?;
        (end <= start + allocated).then(|| address - self.base)
    }

    /// Maps host memory.
    pub(crate) fn map(&mut self, start: u64, len: u64) -> Outcome {
        let end = start.checked_add(len).filter(|_| len > 0 && start != 0);
        let end = end.ok_or(Status::INVALID_ARGUMENT)?;
        let before = self.host.range(..end).next_back();
        let overlaps = before.is_some_and(|(other, mapped)| other + mapped.len > start);
        if self.host.contains_key(&start) || (overlaps && !settings::OVERLAP.on()) {
            return Err(Status::INVALID_ARGUMENT);
        }
        // The kernel pins pages for writing.
        if !is_writable(start, end) {
            return Err(Status::FAIL);
        }
        self.host.insert(start, Mapped { len, pages: None });
        Ok(())
    }

    /// Host memory that comes mapped: its start.
    pub(crate) fn pin(&mut self, len: u64) -> Outcome<u64> {
        if len == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let pages = HostPages::new(len).map_err(|_| Status::OUT_OF_HOST_MEMORY)?;
        let start = pages.start();
        let pages = Some(pages);
        self.host.insert(start, Mapped { len, pages });
        Ok(start)
    }

    /// How long the mapping is that begins there: of the program's own memory, or of Synapse's.
    pub(crate) fn mapped_at(&self, start: u64, is_pinned: bool) -> Option<u64> {
        let mapped = self.host.get(&start)?;
        (mapped.pages.is_some() == is_pinned).then_some(mapped.len)
    }

    /// Unmaps, by the start; memory of Synapse's goes with it.
    pub(crate) fn unmap(&mut self, start: u64) {
        self.host.remove(&start);
    }

    /// Whether a range lies in one mapping.
    pub(crate) fn is_mapped(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        self.host
            .range(..=start)
            .any(|(first, mapped)| end <= first + mapped.len)
    }

    /// How many ranges of the program's are mapped.
    pub(crate) fn mapped(&self) -> u64 {
        self.host.len() as u64 - self.pinned()
    }

    /// How many ranges of `synHostMalloc` there are.
    pub(crate) fn pinned(&self) -> u64 {
        let pinned = self.host.values().filter(|mapped| mapped.pages.is_some());
        pinned.count() as u64
    }
}

/// Whether all of the range is there and may be written.
fn is_writable(start: u64, end: u64) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return false;
    };
    let mut at = start;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let range = range.and_then(|(from, to)| {
            Some((
                u64::from_str_radix(from, 16).ok()?,
                u64::from_str_radix(to, 16).ok()?,
            ))
        });
        let (Some((from, to)), Some(rights)) = (range, words.next()) else {
            return false;
        };
        if (from..to).contains(&at) {
            if !rights.starts_with("rw") {
                return false;
            }
            at = to;
            if at >= end {
                return true;
            }
        }
    }
    false
}

/// Moves the bytes of a copy. What is not there any more loses the device.
pub(crate) fn execute(
    device: &Device,
    direction: Direction,
    from: u64,
    len: u64,
    to: u64,
) -> Outcome {
    let pool = device.card.base - device.card.allocated_base;
    let (source, target) = {
        let memory = device.memory.lock();
        let place = |address: u64, host: bool, side: &str| {
            let found = match host {
                true => memory.is_mapped(address, len).then_some(address),
                false => memory
                    .device_range(address, len)
                    .map(|offset| offset + pool),
            };
            found.ok_or_else(|| {
                format!("the {side} of a copy of {len} bytes, {address:#x}, is gone")
            })
        };
        let source = place(from, direction == Direction::ToDevice, "source");
        let target = place(to, direction == Direction::ToHost, "target");
        (source, target)
    };
    let (source, target) = match (source, target) {
        (Ok(source), Ok(target)) => (source, target),
        (Err(what), _) | (_, Err(what)) => return Err(device.fault(what)),
    };
    let bytes = &device.bytes;
    let moved = match direction {
        Direction::ToDevice => bytes.write_from(target, source, len),
        Direction::ToHost => bytes.read_to(source, target, len),
        Direction::Within => bytes.copy_to(source, bytes, target, len),
    };
    moved.map_err(|error| {
        device.fault(format!(
            "host memory of a copy of {len} bytes from {from:#x} to {to:#x} is gone: {error}"
        ))
    })
}

/// Writes a value again and again. What is not there any more loses the device.
pub(crate) fn fill(device: &Device, to: u64, len: u64, value: [u8; 4]) -> Outcome {
    let pool = device.card.base - device.card.allocated_base;
    let offset = device.memory.lock().device_range(to, len);
    let gone = || device.fault(format!("{len} bytes at {to:#x} to be filled are gone"));
    let mut at = offset.ok_or_else(gone)? + pool;
    let some = len.min(1 << 20) as usize;
    let piece: Vec<u8> = value.into_iter().cycle().take(some).collect();
    let end = at + len;
    while at < end {
        let some = (end - at).min(1 << 20) as usize;
        device.bytes.write(at, &piece[..some]).map_err(|_| gone())?;
        at += some as u64;
    }
    Ok(())
}

/// Makes new memory hold what nobody wrote.
pub(crate) fn spoil(device: &Device, at: u64, len: u64) -> Outcome {
    let offset = at - device.card.allocated_base;
    let edge = vec![JUNK; len.min(EDGE) as usize];
    for start in [offset, offset + len - edge.len() as u64] {
        device.bytes.write(start, &edge).map_err(|_| Status::FAIL)?;
    }
    Ok(())
}
