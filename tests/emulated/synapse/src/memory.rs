//! Addresses: what is allocated on the device, and which host memory is mapped for it.

use std::{collections::BTreeMap, fs};

use crate::{
    abi::{Outcome, Status},
    device::Device,
    settings,
    stream::Direction,
};

/// Allocations begin at multiples of so many bytes.
const ALIGN: u64 = 128;

/// The tables.
#[derive(Debug)]
pub(crate) struct Memory {
    base: u64,
    len: u64,
    /// Start and length.
    pub(crate) allocations: BTreeMap<u64, u64>,
    /// Start and length of what is mapped.
    host: BTreeMap<u64, u64>,
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

    /// Allocates, at `wanted` when it is not 0 and free.
    pub(crate) fn allocate(&mut self, len: u64, wanted: u64) -> Outcome<u64> {
        if len == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let room = len
            .checked_next_multiple_of(ALIGN)
            .ok_or(Status::OUT_OF_DEVICE_MEMORY)?;
        let end = self.base + self.len;
        let mut at = self.base;
        for (start, taken) in &self.allocations {
            if start - at >= room && (wanted == 0 || (at..=start - room).contains(&wanted)) {
                break;
            }
            at = (start + taken).next_multiple_of(ALIGN);
        }
        if wanted > at {
            at = wanted;
        }
        if at > end || end - at < room {
            return Err(Status::OUT_OF_DEVICE_MEMORY);
        }
        self.allocations.insert(at, room);
        self.used += room;
        Ok(at)
    }

    /// Frees, by the start; the length that it had.
    pub(crate) fn free(&mut self, address: u64) -> Outcome<u64> {
        let len = self
            .allocations
            .remove(&address)
            .ok_or(Status::INVALID_ARGUMENT)?;
        self.used -= len;
        Ok(len)
    }

    /// Where in the pool an allocated range lies.
    fn device_range(&self, address: u64, len: u64) -> Option<u64> {
        let (start, room) = self.allocations.range(..=address).next_back()?;
        let end = address.checked_add(len)?;
        (end <= start + room).then(|| address - self.base)
    }

    /// Maps host memory.
    pub(crate) fn map(&mut self, start: u64, len: u64) -> Outcome {
        let end = start.checked_add(len).filter(|_| len > 0 && start != 0);
        let end = end.ok_or(Status::INVALID_ARGUMENT)?;
        let before = self.host.range(..end).next_back();
        let overlaps = before.is_some_and(|(other, len)| other + len > start);
        if self.host.contains_key(&start) || (overlaps && !settings::OVERLAP.on()) {
            return Err(Status::INVALID_ARGUMENT);
        }
        // The kernel pins pages for writing.
        if !is_writable(start, end) {
            return Err(Status::FAIL);
        }
        self.host.insert(start, len);
        Ok(())
    }

    /// Unmaps, by the start.
    pub(crate) fn unmap(&mut self, start: u64) -> Outcome {
        let gone = self.host.remove(&start);
        gone.map(drop).ok_or(Status::INVALID_ARGUMENT)
    }

    /// Whether a range lies in one mapping.
    pub(crate) fn is_mapped(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        self.host
            .range(..=start)
            .any(|(first, len)| end <= first + len)
    }

    /// How many ranges of the program's are mapped.
    pub(crate) fn mapped(&self) -> u64 {
        self.host.len() as u64
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

/// Writes one value. What is not there any more loses the device.
pub(crate) fn fill(device: &Device, to: u64, len: u64, value: u8) -> Outcome {
    let pool = device.card.base - device.card.allocated_base;
    let offset = device.memory.lock().device_range(to, len);
    let gone = || device.fault(format!("{len} bytes at {to:#x} to be filled are gone"));
    let mut at = offset.ok_or_else(gone)? + pool;
    let piece = vec![value; len.min(1 << 20) as usize];
    let end = at + len;
    while at < end {
        let some = (end - at).min(1 << 20) as usize;
        device.bytes.write(at, &piece[..some]).map_err(|_| gone())?;
        at += some as u64;
    }
    Ok(())
}
