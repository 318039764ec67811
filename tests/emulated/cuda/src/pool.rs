//! Memory pools: one memory file each, from which stream-ordered allocations come. Their addresses are used again at once.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use parking_lot::Mutex;
use wharf_emulated_common::backing::Backing;

use crate::{
    abi::{AccessDesc, Outcome, PoolProps, Status, handle_type, location},
    context::Context,
    device::Device,
    driver::driver,
    ipc::Token,
    memory::{Allocation, BLOCK, Kind},
    objects, settings, vmm,
};

/// Addresses of a pool, unless it says otherwise; the memory is taken as it is used.
const ROOM: u64 = 8 << 30;
const ALIGN: u64 = 512;

/// A pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    /// Which handles of it may be made.
    pub(crate) handle_types: u32,
    pub(crate) backing: Arc<Backing>,
    /// Where its room begins.
    start: u64,
    /// What is allocated: offset and length.
    ranges: Mutex<BTreeMap<u64, u64>>,
    access: Mutex<HashMap<usize, u32>>,
    /// Another process's: nothing can be allocated from it.
    imported: bool,
    /// The device's own: cannot be destroyed.
    default: bool,
    attributes: Mutex<HashMap<u32, u64>>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        driver().memory.lock().leave(self.start);
    }
}

impl Pool {
    fn register(
        device: usize,
        handle_types: u32,
        backing: Backing,
        imported: bool,
        default: bool,
    ) -> Outcome<Arc<Self>> {
        let start = driver().memory.lock().reserve_room(backing.len(), BLOCK)?;
        let pool = Arc::new(Self {
            handle: objects::pool_handle(),
            device,
            handle_types,
            backing: Arc::new(backing),
            start,
            ranges: Mutex::default(),
            access: Mutex::default(),
            imported,
            default,
            attributes: Mutex::default(),
        });
        let mut objects = driver().objects.lock();
        objects.pools.insert(pool.handle, Arc::clone(&pool));
        Ok(pool)
    }

    fn new(device: usize, handle_types: u32, room: u64, default: bool) -> Outcome<Arc<Self>> {
        let physical = driver().devices[device].physical;
        let name = format!("emulated-cuda-pool-{physical}-{handle_types}");
        let backing = Backing::new(&name, room).map_err(|_| Status::OUT_OF_MEMORY)?;
        Self::register(device, handle_types, backing, false, default)
    }

    /// `cuMemPoolCreate`.
    pub(crate) fn create(props: &PoolProps) -> Outcome<Arc<Self>> {
        if props.kind != 1 || props.location.kind != location::DEVICE {
            return Err(Status::INVALID_VALUE);
        }
        let device = usize::try_from(props.location.id)
            .ok()
            .filter(|device| *device < driver().devices.len())
            .ok_or(Status::INVALID_DEVICE)?;
        let supported = handle_type::POSIX_FD
            | if settings::FABRIC.on() {
                handle_type::FABRIC
            } else {
                0
            };
        if props.handle_types & !supported != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        let room = match props.max_size as u64 {
            0 => ROOM,
            size => size.next_multiple_of(BLOCK).min(ROOM),
        };
        Self::new(device, props.handle_types, room, false)
    }

    /// The device's own pool, which cannot be exported.
    pub(crate) fn default_of(device: usize) -> Outcome<Arc<Self>> {
        let found = {
            let objects = driver().objects.lock();
            objects
                .pools
                .values()
                .find(|pool| pool.default && pool.device == device)
                .cloned()
        };
        match found {
            Some(pool) => Ok(pool),
            None => Self::new(device, handle_type::NONE, ROOM, true),
        }
    }

    /// `cuMemPoolDestroy`. What is allocated from it lives on.
    pub(crate) fn destroy(handle: u64) -> Outcome {
        let pool = objects::pool(handle)?;
        if pool.default {
            return Err(Status::INVALID_VALUE);
        }
        let gone = driver().objects.lock().pools.remove(&handle);
        drop(gone);
        Ok(())
    }

    /// Allocates; the memory belongs to no context.
    pub(crate) fn allocate(self: &Arc<Self>, len: u64) -> Outcome<u64> {
        if self.imported || len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let capacity = len
            .checked_next_multiple_of(ALIGN)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let used = Device::take(self.device, capacity)?;
        let offset = {
            let mut ranges = self.ranges.lock();
            let mut at = 0;
            for (start, size) in &*ranges {
                if start - at >= capacity {
                    break;
                }
                at = start + size;
            }
            if at
                .checked_add(capacity)
                .is_none_or(|end| end > self.backing.len())
            {
                return Err(Status::OUT_OF_MEMORY);
            }
            ranges.insert(at, capacity);
            at
        };
        Ok(self.place(offset, len, Some(used)))
    }

    fn place(self: &Arc<Self>, offset: u64, len: u64, used: Option<crate::device::Used>) -> u64 {
        let address = self.start + offset;
        driver().memory.lock().insert(Allocation {
            address,
            len,
            id: driver().number(),
            device: self.device,
            context: None,
            kind: Kind::Pooled(Arc::clone(self)),
            backing: Arc::clone(&self.backing),
            offset,
            room: self.start,
            sync_memops: false,
            preferred: -2,
            _used: used,
        });
        address
    }

    /// A range is free again.
    pub(crate) fn give_back(&self, offset: u64) {
        if let Some(len) = self.ranges.lock().remove(&offset) {
            // Only the machine's memory is at stake.
            let _ = self.backing.discard(offset, len);
        }
    }

    /// Whether a device may read and write it: its own always, unless it is imported.
    pub(crate) fn is_reachable_by(&self, device: usize) -> bool {
        match self.access.lock().get(&device) {
            Some(flags) => *flags == 3,
            None => device == self.device && !self.imported,
        }
    }

    /// `cuMemPoolSetAccess`.
    pub(crate) fn set_access(&self, wanted: &[AccessDesc]) -> Outcome {
        for desc in wanted {
            let device = usize::try_from(desc.location.id)
                .ok()
                .filter(|device| {
                    desc.location.kind == location::DEVICE && *device < driver().devices.len()
                })
                .ok_or(Status::INVALID_DEVICE)?;
            // Its own device's access cannot be taken away.
            if ![0, 1, 3].contains(&desc.flags)
                || (device == self.device && desc.flags == 0 && !self.imported)
            {
                return Err(Status::INVALID_VALUE);
            }
            if device != self.device && !crate::device::can_reach(device, self.device) {
                return Err(Status::INVALID_DEVICE);
            }
            self.access.lock().insert(device, desc.flags);
        }
        Ok(())
    }

    /// `cuMemPoolGetAccess`.
    pub(crate) fn access(&self, device: usize) -> u32 {
        if self.is_reachable_by(device) { 3 } else { 0 }
    }

    /// `cuMemPoolGetAttribute`.
    pub(crate) fn attribute(&self, attribute: u32) -> Outcome<u64> {
        let used = || self.ranges.lock().values().sum();
        Ok(match attribute {
            5..=8 => used(),
            1..=4 => self
                .attributes
                .lock()
                .get(&attribute)
                .copied()
                .unwrap_or_else(|| u64::from(attribute != 4)),
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// `cuMemPoolSetAttribute`.
    pub(crate) fn set_attribute(&self, attribute: u32, value: u64) -> Outcome {
        match attribute {
            1..=4 => {
                self.attributes.lock().insert(attribute, value);
                Ok(())
            }
            6 | 8 if value == 0 => Ok(()),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// Whether a handle of the type may be made of it.
    pub(crate) const fn allows(&self, handle_type: u32) -> bool {
        self.handle_types & handle_type != 0
    }

    /// Takes in a pool of another process; the file's name says what it is.
    pub(crate) fn import(fd: OwnedFd, wanted: u32) -> Outcome<Arc<Self>> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
            .map_err(|_| Status::INVALID_VALUE)?;
        let link = link.to_string_lossy();
        let (physical, types) = link
            .strip_prefix("/memfd:emulated-cuda-pool-")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|words| words.split_once('-'))
            .ok_or(Status::INVALID_VALUE)?;
        let physical = physical.parse().map_err(|_| Status::INVALID_VALUE)?;
        let types: u32 = types.parse().map_err(|_| Status::INVALID_VALUE)?;
        if types & wanted == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let device = vmm::visible(physical)?;
        let backing = Backing::from_file(File::from(fd)).map_err(|_| Status::INVALID_VALUE)?;
        Self::register(device, types, backing, true, false)
    }

    /// `cuMemPoolImportPointer`.
    pub(crate) fn import_pointer(self: &Arc<Self>, token: &Token) -> Outcome<u64> {
        if !self.imported || token.inode != self.backing.inode() {
            return Err(Status::INVALID_VALUE);
        }
        let end = token.offset.checked_add(token.len);
        if token.len == 0 || end.is_none_or(|end| end > self.backing.len()) {
            return Err(Status::INVALID_VALUE);
        }
        let taken = driver()
            .memory
            .lock()
            .allocation(self.start + token.offset)
            .is_some();
        if taken {
            return Err(Status::ALREADY_MAPPED);
        }
        Ok(self.place(token.offset, token.len, None))
    }
}

/// The pool that `cuMemAllocAsync` uses in a context.
pub(crate) fn current(context: &Context) -> Outcome<Arc<Pool>> {
    Pool::default_of(context.device)
}
