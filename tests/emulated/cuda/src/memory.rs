//! Everything that has an address: device memory, managed memory, pinned host memory, mapped physical memory.
//!
//! ```text
//! room        2 MiB or more of addresses that fault, with the bytes in a memory file
//!  ├ allocation   small ones share a room of their context, at multiples of 512 bytes
//!  └ …
//! freed room ──► quarantine: its addresses stay taken until 512 rooms are there
//! ```
//! Numbers of allocations (`BUFFER_ID`) are never used again.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use wharf_emulated_common::backing::{Backing, Reservation};

use crate::{
    abi::{Outcome, Status},
    context::Context,
    device::{Device, Used},
    driver::driver,
    host::Pinned,
    ipc::Opened,
    pin::Pin,
    pool::Pool,
    settings,
    vmm::{Handle, Mapping},
};

/// Granularity of device memory.
pub(crate) const BLOCK: u64 = 2 << 20;
/// Allocations up to this size share rooms.
const SMALL: u64 = 1 << 20;
/// Alignment of small ones.
const ALIGN: u64 = 512;
/// How many freed rooms keep their addresses.
const QUARANTINE: usize = 512;

/// Where a copy's bytes are.
#[derive(Debug)]
pub(crate) enum Place {
    /// At an address, which is looked up when the copy's turn comes.
    At(u64),
    /// Taken in the call.
    Taken(Vec<u8>),
}

/// Bytes of device memory.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) backing: Arc<Backing>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Class {
    /// Device memory.
    Device {
        /// Ordinal of the device.
        device: usize,
    },
    /// Managed memory.
    Managed,
    /// Host memory of the driver's or registered with it.
    Pinned,
    /// All else.
    Pageable,
}

impl Class {
    /// Whether it counts as device memory for a copy.
    pub(crate) const fn is_device(self) -> bool {
        matches!(self, Self::Device { .. } | Self::Managed)
    }
}

/// How an allocation was made.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// From a pool; imported if the pool is.
    Pooled(Arc<Pool>),
    /// Another process's, by the inode of its room and how often it was opened.
    Opened {
        /// The memory file.
        inode: u64,
        /// How often.
        times: u32,
    },
}

/// Device memory that was allocated.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// Never used again.
    pub(crate) id: u64,
    pub(crate) device: usize,
    /// Handle and number of the context; a pool's memory has none.
    pub(crate) context: Option<(u64, u64)>,
    pub(crate) kind: Kind,
    pub(crate) backing: Arc<Backing>,
    /// Its first byte in the backing.
    pub(crate) offset: u64,
    /// Where its room begins.
    pub(crate) room: u64,
    pub(crate) sync_memops: bool,
    /// Preferred location of managed memory: ordinal, -1 the host, -2 none.
    pub(crate) preferred: i32,
    /// Counted until it is dropped.
    pub(crate) _used: Option<Used>,
}

impl Allocation {
    /// The address behind its last byte.
    pub(crate) const fn end(&self) -> u64 {
        self.address + self.len
    }
}

#[derive(Debug)]
struct Room {
    reservation: Reservation,
    /// Allocations in it.
    live: u32,
}

/// The room that a context's next small allocation comes from.
#[derive(Debug)]
struct Block {
    room: u64,
    backing: Arc<Backing>,
    used: u64,
}

/// Freed memory whose addresses are given out again.
#[derive(Debug)]
struct Spare {
    context: u64,
    capacity: u64,
    address: u64,
    room: u64,
    backing: Arc<Backing>,
    offset: u64,
}

/// The tables.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    rooms: BTreeMap<u64, Room>,
    quarantine: VecDeque<u64>,
    blocks: HashMap<u64, Block>,
    spares: Vec<Spare>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) pinned: BTreeMap<u64, Pinned>,
    pub(crate) opened: HashMap<u64, Opened>,
    /// Reserved addresses: start and length.
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) handles: HashMap<u64, Handle>,
    /// Pages that the host sees, by the number of whoever is told when they go.
    pub(crate) pins: HashMap<u64, Pin>,
}

impl Memory {
    /// `cuMemAlloc`.
    pub(crate) fn allocate(&mut self, context: &Arc<Context>, len: u64) -> Outcome<u64> {
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let small = is_small(len);
        let unit = if small { ALIGN } else { BLOCK };
        let capacity = len
            .checked_next_multiple_of(unit)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let used = Device::take(context.device, capacity)?;
        if !settings::REUSE.on() {
            for spare in std::mem::take(&mut self.spares) {
                self.leave(spare.room);
            }
        }
        let (address, room, backing, offset) = if settings::REUSE.on()
            && let Some(at) = self
                .spares
                .iter()
                .position(|spare| spare.context == context.id && spare.capacity == capacity)
        {
            let spare = self.spares.swap_remove(at);
            (spare.address, spare.room, spare.backing, spare.offset)
        } else if small {
            self.suballocate(context, capacity)?
        } else {
            let (room, backing) = self.new_room(context.device, capacity)?;
            (room, room, backing, 0)
        };
        if settings::POISON.on() {
            poison(&backing, offset, capacity, 0xA5);
        }
        self.insert(Allocation {
            address,
            len,
            id: driver().number(),
            device: context.device,
            context: Some((context.handle, context.id)),
            kind: Kind::Device,
            backing,
            offset,
            room,
            sync_memops: false,
            preferred: -2,
            _used: Some(used),
        });
        Ok(address)
    }

    fn suballocate(
        &mut self,
        context: &Arc<Context>,
        capacity: u64,
    ) -> Outcome<(u64, u64, Arc<Backing>, u64)> {
        let full = self
            .blocks
            .get(&context.id)
            .is_none_or(|block| block.used + capacity > BLOCK);
        if full {
            if let Some(block) = self.blocks.remove(&context.id) {
                self.leave(block.room);
            }
            let (room, backing) = self.new_room(context.device, BLOCK)?;
            let used = 0;
            self.blocks.insert(
                context.id,
                Block {
                    room,
                    backing,
                    used,
                },
            );
        }
        let block = self
            .blocks
            .get_mut(&context.id)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let offset = block.used;
        block.used += capacity;
        let (room, backing) = (block.room, Arc::clone(&block.backing));
        self.enter(room);
        Ok((room + offset, room, backing, offset))
    }

    /// `cuMemAllocManaged`: the host may touch it.
    pub(crate) fn allocate_managed(&mut self, context: &Arc<Context>, len: u64) -> Outcome<u64> {
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let capacity = len
            .checked_next_multiple_of(BLOCK)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let used = Device::take(context.device, capacity)?;
        let (room, backing) = self.new_room(context.device, capacity)?;
        crate::show::show(&backing, 0, room, capacity)?;
        self.insert(Allocation {
            address: room,
            len,
            id: driver().number(),
            device: context.device,
            context: Some((context.handle, context.id)),
            kind: Kind::Managed,
            backing,
            offset: 0,
            room,
            sync_memops: false,
            preferred: -2,
            _used: Some(used),
        });
        Ok(room)
    }

    /// Adds an allocation. Its room counts it already.
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        self.allocations.insert(allocation.address, allocation);
    }

    /// `cuMemFree`: exactly the address that was given out. What comes back is to be dropped without the lock.
    pub(crate) fn free(&mut self, address: u64) -> Outcome<Allocation> {
        let allocation = self
            .allocations
            .get(&address)
            .ok_or(Status::INVALID_VALUE)?;
        if matches!(allocation.kind, Kind::Opened { .. }) {
            return Err(Status::INVALID_VALUE);
        }
        let allocation = self
            .allocations
            .remove(&address)
            .ok_or(Status::INVALID_VALUE)?;
        self.let_go(&allocation);
        Ok(allocation)
    }

    /// A pool's memory comes back; nothing if it is gone already.
    pub(crate) fn free_pooled(&mut self, address: u64) -> Option<Allocation> {
        match self.allocations.get(&address)?.kind {
            Kind::Pooled(_) => self.free(address).ok(),
            _ => None,
        }
    }

    /// What removing an allocation means for its room.
    fn let_go(&mut self, allocation: &Allocation) {
        if settings::POISON.on() && !matches!(allocation.kind, Kind::Opened { .. }) {
            poison(&allocation.backing, allocation.offset, allocation.len, 0xDF);
        }
        match (&allocation.kind, allocation.context) {
            (Kind::Pooled(pool), _) => pool.give_back(allocation.offset),
            (Kind::Device, Some((_, context))) if settings::REUSE.on() => {
                if !is_small(allocation.len) {
                    self.revoke(allocation.room);
                }
                let unit = if is_small(allocation.len) {
                    ALIGN
                } else {
                    BLOCK
                };
                self.spares.push(Spare {
                    context,
                    capacity: allocation.len.next_multiple_of(unit),
                    address: allocation.address,
                    room: allocation.room,
                    backing: Arc::clone(&allocation.backing),
                    offset: allocation.offset,
                });
            }
            (Kind::Managed, _) => {
                if let Some(room) = self.rooms.get(&allocation.room) {
                    // It cannot fail short of the kernel's memory: then the host can touch it on.
                    let _ = room
                        .reservation
                        .hide(allocation.room, room.reservation.len());
                }
                self.leave(allocation.room);
            }
            _ => self.leave(allocation.room),
        }
    }

    /// Takes away all that belonged to a context. To be dropped without the lock.
    pub(crate) fn drop_context(&mut self, context: u64) -> (Vec<Allocation>, Vec<Pinned>) {
        if let Some(block) = self.blocks.remove(&context) {
            self.leave(block.room);
        }
        let (spares, others) = std::mem::take(&mut self.spares)
            .into_iter()
            .partition(|spare| spare.context == context);
        self.spares = others;
        let gone: Vec<Spare> = spares;
        for spare in gone {
            self.leave(spare.room);
        }
        let mut gone = Vec::new();
        let all = std::mem::take(&mut self.allocations);
        for (address, allocation) in all {
            if allocation.context.is_some_and(|(_, id)| id == context) {
                // Its addresses are not given out again.
                self.leave(allocation.room);
                if let Kind::Managed = allocation.kind
                    && let Some(room) = self.rooms.get(&allocation.room)
                {
                    let _ = room
                        .reservation
                        .hide(allocation.room, room.reservation.len());
                }
                gone.push(allocation);
            } else {
                self.allocations.insert(address, allocation);
            }
        }
        let rooms: Vec<u64> = self
            .opened
            .extract_if(|_, opened| opened.context == context)
            .map(|(_, opened)| opened.room)
            .collect();
        for room in rooms {
            self.leave(room);
        }
        let (host, others) = std::mem::take(&mut self.pinned)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, pinned)| pinned.context.1 == context);
        self.pinned = others;
        (gone, host.into_values().collect())
    }

    /// New addresses with bytes behind them, on the device.
    fn new_room(&mut self, device: usize, len: u64) -> Outcome<(u64, Arc<Backing>)> {
        let name = format!("emulated-cuda-memory-{}", driver().devices[device].physical);
        let backing = Backing::new(&name, len).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok((self.reserve_room(len, BLOCK)?, Arc::new(backing)))
    }

    /// New addresses, counted once.
    pub(crate) fn reserve_room(&mut self, len: u64, align: u64) -> Outcome<u64> {
        let reservation = Reservation::new(len, align).map_err(|_| Status::OUT_OF_MEMORY)?;
        let start = reservation.start();
        self.rooms.insert(
            start,
            Room {
                reservation,
                live: 1,
            },
        );
        Ok(start)
    }

    /// One more allocation in a room.
    pub(crate) fn enter(&mut self, room: u64) {
        if let Some(room) = self.rooms.get_mut(&room) {
            room.live += 1;
        }
    }

    /// One fewer. The last one sends the room to the quarantine.
    pub(crate) fn leave(&mut self, start: u64) {
        let Some(room) = self.rooms.get_mut(&start) else {
            return;
        };
        room.live -= 1;
        if room.live > 0 {
            return;
        }
        self.revoke(start);
        self.quarantine.push_back(start);
        while self.quarantine.len() > QUARANTINE {
            if let Some(oldest) = self.quarantine.pop_front() {
                self.rooms.remove(&oldest);
            }
        }
    }

    /// Tells those who look into a room that its memory goes.
    fn revoke(&mut self, room: u64) {
        for (number, pin) in self.pins.extract_if(|_, pin| pin.room == room) {
            (pin.revoked)(number);
        }
    }

    /// Makes part of a room fault again.
    pub(crate) fn hide(&self, room: u64, at: u64, len: u64) {
        if let Some(room) = self.rooms.get(&room) {
            let _ = room.reservation.hide(at, len);
        }
    }

    /// The allocation that holds `address`.
    pub(crate) fn allocation(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address < allocation.end()).then_some(allocation)
    }

    /// The same, to change it.
    pub(crate) fn allocation_mut(&mut self, address: u64) -> Option<&mut Allocation> {
        let (_, allocation) = self.allocations.range_mut(..=address).next_back()?;
        (address < allocation.end()).then_some(allocation)
    }

    /// The first allocation that has some of a range.
    pub(crate) fn first_within(&self, address: u64, len: u64) -> Option<&Allocation> {
        let begun = || self.allocations.range(address..address + len).next();
        self.allocation(address)
            .or_else(|| begun().map(|(_, allocation)| allocation))
    }

    /// Whether `address` is of this driver's device memory, live or not.
    pub(crate) fn is_ours(&self, address: u64) -> bool {
        let room = self.rooms.range(..=address).next_back();
        room.is_some_and(|(_, room)| room.reservation.holds(address))
    }

    /// What a range is, for a call.
    pub(crate) fn classify(&self, address: u64, len: u64) -> Outcome<Class> {
        let end = address
            .checked_add(len)
            .filter(|_| address != 0)
            .ok_or(Status::INVALID_VALUE)?;
        if let Some(allocation) = self.allocation(address) {
            if end > allocation.end() {
                return Err(Status::INVALID_VALUE);
            }
            return Ok(match allocation.kind {
                Kind::Managed => Class::Managed,
                _ => Class::Device {
                    device: allocation.device,
                },
            });
        }
        if let Some(mapping) = self.mapping(address) {
            self.mapped(address, len)?;
            return Ok(Class::Device {
                device: mapping.physical.device(),
            });
        }
        if self.is_ours(address) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(if self.is_pinned(address, len) {
            Class::Pinned
        } else {
            Class::Pageable
        })
    }

    /// The bytes behind a range, for a device that reaches for them; nothing when it is host memory.
    ///
    /// What is device memory no more, or not this device's to touch, is an illegal address.
    pub(crate) fn spans(
        &self,
        address: u64,
        len: u64,
        device: usize,
    ) -> Outcome<Option<Vec<Span>>> {
        let illegal = |why| illegal(device, address, len, why);
        if let Some(allocation) = self.allocation(address) {
            if address + len > allocation.end() {
                return Err(illegal("behind the end of its allocation"));
            }
            if let Kind::Pooled(pool) = &allocation.kind
                && !pool.is_reachable_by(device)
            {
                return Err(illegal("of a pool that this device may not reach"));
            }
            return Ok(Some(vec![Span {
                backing: Arc::clone(&allocation.backing),
                offset: allocation.offset + (address - allocation.address),
                len,
            }]));
        }
        if self.mapping(address).is_some() {
            let parts = self
                .mapped(address, len)
                .map_err(|_| illegal("not all of it is mapped"))?;
            let spans = parts.into_iter().map(|(mapping, skipped, len)| {
                if !mapping.is_reachable_by(device) {
                    return Err(illegal("mapped for others"));
                }
                Ok(Span {
                    backing: Arc::clone(&mapping.physical.backing),
                    offset: mapping.offset + skipped,
                    len,
                })
            });
            return spans.collect::<Outcome<Vec<_>>>().map(Some);
        }
        if self.is_ours(address) {
            return Err(illegal("of no allocation"));
        }
        Ok(None)
    }
}

/// What a device says of an address that it cannot use. The status does not tell which that was, nor why: that is written to the log, as with kernels.
pub(crate) fn illegal(
    device: usize,
    address: u64,
    len: u64,
    why: impl std::fmt::Display,
) -> Status {
    eprintln!("emulated CUDA driver: device {device}, {len} bytes at {address:#x}: {why}");
    Status::ILLEGAL_ADDRESS
}

/// Whether an allocation shares a room. None does where a dma-buf is mapped by the host: it begins where its file does.
fn is_small(len: u64) -> bool {
    len <= SMALL && !maps_dma_bufs()
}

/// Whether the host can map a dma-buf: from CUDA 13.3 on.
pub(crate) fn maps_dma_bufs() -> bool {
    settings::VERSION.get() >= 13030 && settings::DMABUF.on()
}

fn poison(backing: &Backing, offset: u64, len: u64, byte: u8) {
    let piece = vec![byte; len.min(1 << 20) as usize];
    let mut done = 0;
    while done < len {
        let count = (len - done).min(piece.len() as u64);
        // It cannot fail short of the machine's memory: then there is no poison.
        let _ = backing.write(offset + done, &piece[..count as usize]);
        done += count;
    }
}
