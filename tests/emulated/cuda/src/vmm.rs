//! Physical memory and addresses apart: reserve, create, map, set access; physical memory crosses processes as a
//! descriptor or as a fabric handle.

use std::{collections::HashMap, fs::File, os::fd::OwnedFd, sync::Arc};

use wharf_emulated_common::backing::Backing;

use crate::{
    abi::{AccessDesc, AllocationProp, Location, Outcome, Status, handle_type, location},
    device::{Device, Used},
    driver::driver,
    memory::{BLOCK, Memory},
    settings,
    show::show,
};

/// What parts of multicast objects are multiples of.
pub(crate) const MULTICAST: u64 = 8 << 20;

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Its handle.
    pub(crate) handle: u64,
    pub(crate) backing: Arc<Backing>,
    pub(crate) location: Location,
    /// Which handles of it may be made.
    pub(crate) handle_types: u32,
    rdma_capable: u8,
    _used: Option<Used>,
}

impl Physical {
    /// Ordinal of its device; 0 for the host's memory.
    pub(crate) fn device(&self) -> usize {
        match self.location.kind {
            location::DEVICE => self.location.id.max(0) as usize,
            _ => 0,
        }
    }

    /// Whether the host may touch it.
    const fn is_host(&self) -> bool {
        self.location.kind != location::DEVICE
    }

    /// Whether handles of the type may be made.
    pub(crate) const fn allows(&self, handle_type: u32) -> bool {
        self.handle_types & handle_type != 0
    }
}

/// A handle and how often it was given out.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) physical: Arc<Physical>,
    times: u32,
}

/// Physical memory at addresses.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) physical: Arc<Physical>,
    pub(crate) offset: u64,
    /// Never used again.
    pub(crate) id: u64,
    /// `CUmemAccess_flags` by device.
    access: HashMap<usize, u32>,
    /// Where its reservation begins.
    room: u64,
    shown: bool,
}

impl Mapping {
    /// Whether the device may read and write it.
    pub(crate) fn is_reachable_by(&self, device: usize) -> bool {
        self.access.get(&device) == Some(&3)
    }
}

impl Memory {
    /// `cuMemAddressReserve`.
    pub(crate) fn reserve(&mut self, len: u64, align: u64) -> Outcome<u64> {
        if len == 0 || !len.is_multiple_of(BLOCK) {
            return Err(Status::INVALID_VALUE);
        }
        if align != 0 && !align.is_power_of_two() {
            return Err(Status::INVALID_VALUE);
        }
        let start = self.reserve_room(len, align.max(BLOCK))?;
        self.reserved.insert(start, len);
        Ok(start)
    }

    /// `cuMemAddressFree`: exactly what was reserved, with nothing mapped.
    pub(crate) fn unreserve(&mut self, start: u64, len: u64) -> Outcome {
        if self.reserved.get(&start) != Some(&len) {
            return Err(Status::INVALID_VALUE);
        }
        if self.mappings.range(start..start + len).next().is_some() {
            return Err(Status::INVALID_VALUE);
        }
        self.reserved.remove(&start);
        self.leave(start);
        Ok(())
    }

    /// `cuMemMap`.
    pub(crate) fn map(&mut self, address: u64, len: u64, offset: u64, handle: u64) -> Outcome {
        let physical = Arc::clone(&self.handle(handle)?.physical);
        if len == 0 || !len.is_multiple_of(BLOCK) || !address.is_multiple_of(BLOCK) || offset != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if len > physical.backing.len() {
            return Err(Status::INVALID_VALUE);
        }
        let end = address.checked_add(len).ok_or(Status::INVALID_VALUE)?;
        let room = match self.reserved.range(..=address).next_back() {
            Some((start, size)) if end <= start + size => *start,
            _ => return Err(Status::INVALID_VALUE),
        };
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(_, mapping)| mapping.address + mapping.len > address) {
            return Err(Status::ALREADY_MAPPED);
        }
        let mapping = Mapping {
            address,
            len,
            physical,
            offset,
            id: driver().number(),
            access: HashMap::new(),
            room,
            shown: false,
        };
        self.mappings.insert(address, mapping);
        Ok(())
    }

    /// `cuMemUnmap`: whole mappings, as they were made. To be dropped without the lock.
    pub(crate) fn unmap(&mut self, address: u64, len: u64) -> Outcome<Vec<Mapping>> {
        self.whole(address, len)?;
        let starts: Vec<u64> = self
            .mappings
            .range(address..address + len)
            .map(|(start, _)| *start)
            .collect();
        let mut gone = Vec::new();
        for start in starts {
            if let Some(mapping) = self.mappings.remove(&start) {
                if mapping.shown {
                    self.hide(mapping.room, mapping.address, mapping.len);
                }
                gone.push(mapping);
            }
        }
        Ok(gone)
    }

    /// `cuMemSetAccess`.
    pub(crate) fn set_access(&mut self, address: u64, len: u64, wanted: &[AccessDesc]) -> Outcome {
        self.whole(address, len)?;
        for desc in wanted {
            if ![0, 1, 3].contains(&desc.flags) {
                return Err(Status::INVALID_VALUE);
            }
            let device = device_of(desc.location)?;
            for (_, mapping) in self.mappings.range_mut(address..address + len) {
                let Some(device) = device else {
                    if !mapping.physical.is_host() {
                        return Err(Status::NOT_SUPPORTED);
                    }
                    if desc.flags == 3 && !mapping.shown {
                        show(
                            &mapping.physical.backing,
                            mapping.offset,
                            mapping.address,
                            mapping.len,
                        )?;
                        mapping.shown = true;
                    }
                    continue;
                };
                if mapping.physical.location.kind == location::DEVICE
                    && mapping.physical.device() != device
                    && !crate::device::can_reach(device, mapping.physical.device())
                {
                    return Err(Status::INVALID_DEVICE);
                }
                mapping.access.insert(device, desc.flags);
            }
        }
        Ok(())
    }

    /// `cuMemGetAccess`.
    pub(crate) fn access(&self, at: Location, address: u64) -> Outcome<u64> {
        let mapping = self.mapping(address).ok_or(Status::INVALID_VALUE)?;
        Ok(match device_of(at)? {
            Some(device) => u64::from(mapping.access.get(&device).copied().unwrap_or(0)),
            None => u64::from(mapping.shown) * 3,
        })
    }

    /// `cuMemCreate`.
    pub(crate) fn create(&mut self, len: u64, prop: &AllocationProp) -> Outcome<u64> {
        granularity(prop)?;
        if len == 0 || !len.is_multiple_of(BLOCK) {
            return Err(Status::INVALID_VALUE);
        }
        if prop.handle_types & !(handle_type::POSIX_FD | handle_type::FABRIC) != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        if prop.handle_types & handle_type::FABRIC != 0 && !settings::FABRIC.on() {
            return Err(Status::NOT_SUPPORTED);
        }
        let device = device_of(prop.location)?;
        let used = device.map(|device| Device::take(device, len)).transpose()?;
        let physical = device.map_or(-1, |device| i64::from(driver().devices[device].physical));
        let name = format!(
            "emulated-cuda-vmm-{physical}-{}-{}-{}",
            prop.handle_types, prop.rdma_capable, prop.location.kind
        );
        let backing = Backing::new(&name, len).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(self.add_handle(
            backing,
            prop.location,
            prop.handle_types,
            prop.rdma_capable,
            used,
        ))
    }

    fn add_handle(
        &mut self,
        backing: Backing,
        location: Location,
        handle_types: u32,
        rdma_capable: u8,
        used: Option<Used>,
    ) -> u64 {
        let handle = driver().number();
        let physical = Arc::new(Physical {
            handle,
            backing: Arc::new(backing),
            location,
            handle_types,
            rdma_capable,
            _used: used,
        });
        self.handles.insert(handle, Handle { physical, times: 1 });
        handle
    }

    /// `cuMemRelease`. To be dropped without the lock.
    pub(crate) fn release(&mut self, handle: u64) -> Outcome<Option<Handle>> {
        let entry = self.handles.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
        entry.times -= 1;
        Ok(if entry.times == 0 {
            self.handles.remove(&handle)
        } else {
            None
        })
    }

    /// The physical memory of a handle.
    pub(crate) fn handle(&self, handle: u64) -> Outcome<&Handle> {
        self.handles.get(&handle).ok_or(Status::INVALID_VALUE)
    }

    /// `cuMemRetainAllocationHandle`.
    pub(crate) fn retain(&mut self, address: u64) -> Outcome<u64> {
        let mapping = self.mapping(address).ok_or(Status::INVALID_VALUE)?;
        let physical = Arc::clone(&mapping.physical);
        let handle = physical.handle;
        let entry = self
            .handles
            .entry(handle)
            .or_insert(Handle { physical, times: 0 });
        entry.times += 1;
        Ok(handle)
    }

    /// Takes in physical memory of another process, by a descriptor; the file's name says what it is.
    pub(crate) fn import(&mut self, fd: OwnedFd, wanted: u32) -> Outcome<u64> {
        let link = std::fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&fd)
        ))
        .map_err(|_| Status::INVALID_VALUE)?;
        let link = link.to_string_lossy();
        let words = link
            .strip_prefix("/memfd:emulated-cuda-vmm-")
            .and_then(|rest| rest.split(' ').next())
            .ok_or(Status::INVALID_VALUE)?;
        // The device may be -1, so the number's sign is in the way of a plain split.
        let (sign, words) = match words.strip_prefix('-') {
            Some(words) => (-1, words),
            None => (1, words),
        };
        let numbers: Vec<i64> = words
            .split('-')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| Status::INVALID_VALUE)?;
        let [physical, types, rdma_capable, kind] = numbers[..] else {
            return Err(Status::INVALID_VALUE);
        };
        if types as u32 & wanted == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let id = match physical * sign {
            -1 => 0,
            physical => visible(physical as u32)? as i32,
        };
        let backing = Backing::from_file(File::from(fd)).map_err(|_| Status::INVALID_VALUE)?;
        let location = Location {
            kind: kind as u32,
            id,
        };
        Ok(self.add_handle(backing, location, types as u32, rdma_capable as u8, None))
    }

    /// The mapping that holds `address`.
    pub(crate) fn mapping(&self, address: u64) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address - mapping.address < mapping.len).then_some(mapping)
    }

    /// The mappings of a range without a gap: each with how much of it is skipped, and how much is in the range.
    pub(crate) fn mapped(&self, address: u64, len: u64) -> Outcome<Vec<(&Mapping, u64, u64)>> {
        let mut parts = Vec::new();
        let end = address.checked_add(len).ok_or(Status::INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            let mapping = self.mapping(at).ok_or(Status::INVALID_VALUE)?;
            let skipped = at - mapping.address;
            let count = (mapping.len - skipped).min(end - at);
            parts.push((mapping, skipped, count));
            at += count;
        }
        Ok(parts)
    }

    /// Checks that a range is made of whole mappings.
    fn whole(&self, address: u64, len: u64) -> Outcome {
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let parts = self.mapped(address, len)?;
        let whole = parts
            .iter()
            .all(|(mapping, skipped, count)| *skipped == 0 && *count == mapping.len);
        if whole {
            Ok(())
        } else {
            Err(Status::INVALID_VALUE)
        }
    }
}

/// The ordinal of a location; nothing for the host.
fn device_of(at: Location) -> Outcome<Option<usize>> {
    match at.kind {
        location::DEVICE => {
            let ordinal = usize::try_from(at.id).map_err(|_| Status::INVALID_DEVICE)?;
            if ordinal < driver().devices.len() {
                Ok(Some(ordinal))
            } else {
                Err(Status::INVALID_DEVICE)
            }
        }
        location::HOST | location::HOST_NUMA | location::HOST_NUMA_CURRENT => Ok(None),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// The ordinal under which a device of the machine is visible here.
pub(crate) fn visible(physical: u32) -> Outcome<usize> {
    driver()
        .devices
        .iter()
        .position(|device| device.physical == physical)
        .ok_or(Status::INVALID_DEVICE)
}

/// `cuMemGetAllocationGranularity`.
pub(crate) fn granularity(prop: &AllocationProp) -> Outcome<u64> {
    // Pinned is the only type.
    if prop.kind != 1 {
        return Err(Status::INVALID_VALUE);
    }
    device_of(prop.location)?;
    Ok(BLOCK)
}

/// `cuMemGetAllocationPropertiesFromHandle`.
pub(crate) fn properties(physical: &Physical) -> AllocationProp {
    AllocationProp {
        kind: 1,
        handle_types: physical.handle_types,
        location: physical.location,
        win32: 0,
        compression: 0,
        rdma_capable: physical.rdma_capable,
        usage: 0,
        reserved: [0; 4],
    }
}

impl Handle {
    /// What came in is the handle's last.
    pub(crate) const fn physical(&self) -> &Arc<Physical> {
        &self.physical
    }
}
