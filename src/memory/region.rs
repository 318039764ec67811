//! Memory exposed to peers, and the table that says what is exposed now.
//!
//! A region is named by its slot and a random 64-bit generation. Peers reach it in two ways: through software of this process, which looks
//! the pair up here for every access, or directly (mapped or by `process_vm_*`), once they have shown that pair, bracketed by a word that says so. `unexpose` revokes the
//! generation everywhere, waits until nobody is inside, and only then gives the buffer back. Network devices reach memory that is registered with
//! them; the registrations end before the buffer is given back.
//!
//! # Safety
//! While memory is exposed nothing in this process holds a reference into it: [`Region`] copies through raw pointers. `Exposed` holds the
//! buffer, so its address stays valid for as long as an `Arc<Exposed>` exists, or one of the buffer. A word that is copied by itself is one atomic
//! store or load: it may be what others poll.
#![allow(unsafe_code)]

use std::{
    any::Any,
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
    task::Waker,
    time::{Duration, Instant},
};

use super::{
    AddressRange, Buffer, BufferMut, DomainMemory, Segment, keeper,
    run::{Location, Run},
    waiters::Waiters,
};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::fork,
    types::{Access, DeviceKey, MemoryType},
    util::{copy::copy, lock::Mutex},
};

/// Who must know which regions are directly accessible no longer: each worker, for the words it shares with its peers.
pub(crate) trait RegionWatcher: Send + Sync {
    /// `slot` is exposed no longer. After it returned, an access that begins sees so. Returns the peers that had shown the key and that may be in
    /// the middle of one.
    fn revoke(&self, slot: u32, generation: u64) -> Vec<Box<dyn Guest>>;
}

/// A peer that may be inside exposed memory which was taken back.
pub(crate) trait Guest: Send + Sync {
    /// Whether it is outside, or dead. Once `true`, it comes back no more.
    fn is_outside(&self) -> bool;
    /// Ends its connection.
    fn cut(&self);
}

/// For so long a peer may be in the middle of one access to memory that was taken back: it is the copy of a chunk, some microseconds. Then its
/// connection ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// For so long a wait for that does not sleep.
const AT_WORK: Duration = Duration::from_micros(100);

/// The peers that memory which was taken back waits for.
#[derive(Default)]
struct Guests {
    inside: Vec<Box<dyn Guest>>,
    since: Option<Instant>,
    are_cut: bool,
}

impl Guests {
    fn all_outside(&mut self) -> bool {
        self.inside.retain(|guest| !guest.is_outside());
        self.inside.is_empty()
    }

    /// Whether all are outside, or have had their time.
    fn are_settled(&mut self) -> bool {
        if self.all_outside() || self.are_cut {
            return true;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            self.are_cut = true;
            self.inside.iter().for_each(|guest| guest.cut());
        }
        // A cut may have told that it is dead.
        self.are_cut
    }
}

/// One exposed buffer. Whoever holds an `Arc` of it may use its address. Peers' operations do, and its [`Region`], and nobody else for long: that
/// is how [`Region::revoke`] knows that they have ended.
pub(crate) struct Exposed {
    pub(crate) slot: u32,
    pub(crate) generation: u64,
    /// For the host; dangling when it does not reach the memory.
    pub(crate) address: *mut u8,
    /// Of memory that the host does not reach: its type, and its address for the device.
    pub(crate) device: Option<(MemoryType, u64)>,
    pub(crate) length: usize,
    pub(crate) access: Access,
    pub(crate) segment: Option<(Arc<Segment>, usize)>,
    /// Who was let in, and has not been seen outside since it was taken back.
    guests: Mutex<Guests>,
    /// Who waits for its value, see [`Exposed::value`].
    pub(crate) waiters: Waiters,
    /// What lets network devices reach it. Before the buffer, for it goes first.
    reach: Mutex<Option<DeviceReach>>,
    /// Operations of this process hold it too.
    buffer: Arc<BufferMut>,
}

/// Registrations of exposed memory with network devices. Dropping it ends them, and may block.
pub(crate) struct DeviceReach {
    /// Remote keys, for the descriptor.
    pub(crate) keys: Vec<DeviceKey>,
    /// Whoever writes reads back.
    pub(crate) read_back: bool,
    #[allow(dead_code, reason = "held to be dropped")]
    pub(crate) registered: Box<dyn Any + Send + Sync>,
}

// SAFETY: `address` points into `buffer`, which is held and itself Send and Sync; all access through it is by copying.
unsafe impl Send for Exposed {}
// SAFETY: as above; concurrent copies may tear, which is what remote access to one region means.
unsafe impl Sync for Exposed {}

impl Exposed {
    /// Tells the segment whether this exposes it for writing.
    fn tell_segment(&self, yes: bool) {
        if let Some((segment, _)) = &self.segment
            && self.access.contains(Access::WRITE)
        {
            segment.set_exposed(yes);
        }
    }

    /// Copies into the region, for a peer whose access was checked.
    pub(crate) fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        let target = self.bounds(offset, source.len())?;
        let (long, short) = (target.cast::<u64>(), target.cast::<u32>());
        if let Ok(word) = source.try_into()
            && long.is_aligned()
        {
            // SAFETY: `bounds` checked the word, which is aligned.
            let to = unsafe { AtomicU64::from_ptr(long) };
            to.store(u64::from_ne_bytes(word), Ordering::Release);
        } else if let Ok(word) = source.try_into()
            && short.is_aligned()
        {
            // SAFETY: as above.
            let to = unsafe { AtomicU32::from_ptr(short) };
            to.store(u32::from_ne_bytes(word), Ordering::Release);
        } else {
            // SAFETY: `bounds` checked the target; the source is elsewhere.
            unsafe { copy(source.as_ptr(), target, source.len()) };
        }
        Ok(())
    }

    /// Copies from the region, for a peer whose access was checked.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let source = self.bounds(offset, target.len())?;
        let (long, short) = (source.cast::<u64>(), source.cast::<u32>());
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *target)
            && long.is_aligned()
        {
            // SAFETY: `bounds` checked the word, which is aligned.
            let from = unsafe { AtomicU64::from_ptr(long) };
            *word = from.load(Ordering::Acquire).to_ne_bytes();
        } else if let Ok(word) = <&mut [u8; 4]>::try_from(&mut *target)
            && short.is_aligned()
        {
            // SAFETY: as above.
            let from = unsafe { AtomicU32::from_ptr(short) };
            *word = from.load(Ordering::Acquire).to_ne_bytes();
        } else {
            // SAFETY: `bounds` checked the source; the target is ours alone. A peer may write meanwhile: bytes may be old or new.
            unsafe { copy(source, target.as_mut_ptr(), target.len()) };
        }
        Ok(())
    }

    /// Its type.
    pub(crate) fn memory_type(&self) -> MemoryType {
        self.buffer.memory_type()
    }

    /// What follows `offset`, wherever it is.
    pub(crate) fn run(&self, offset: usize) -> Run {
        let at = match self.device {
            Some((memory_type, address)) => Location::Device {
                address,
                memory_type,
            },
            None => Location::Host {
                address: self.address,
                pinned: self.buffer.memory_type() == MemoryType::HostPinned,
            },
        };
        let length = self.length;
        Run { at, length }.skip(offset)
    }

    /// A part of the memory as a buffer, for the operations of this process that put from exposed memory or get into it. `keeper` keeps the memory.
    ///
    /// It is not what a buffer promises elsewhere: others may change the bytes, or read them half written. So it is only for transfers, which
    /// copy by address or hand the address to the system, and it is given to nobody who would look at the bytes.
    fn alias(&self, offset: usize, length: usize, keeper: Keeper) -> Result<BufferMut> {
        if self.device.is_none() {
            let address = self.bounds(offset, length)?;
            if length > 0 {
                // SAFETY: `bounds` checked the range, whose memory `keeper` keeps; that it is shared is the caller's business, as said above.
                return Ok(unsafe { BufferMut::from_raw(address, length, keeper) });
            }
        }
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.length)
        {
            return Err(
                Error::new(ErrorKind::OutOfBounds, "the range leaves the region")
                    .during(Operation::Memory),
            );
        }
        match self.buffer.device_range() {
            Some(range) if length > 0 => {
                let part: Box<dyn DomainMemory> = Box::new(Part {
                    range: range.part(offset, length),
                    memory_type: self.memory_type(),
                    _keeper: keeper,
                });
                Ok(part.into())
            }
            _ => Ok(BufferMut::default()),
        }
    }

    pub(super) fn bounds(&self, offset: usize, length: usize) -> Result<*mut u8> {
        if let Some((memory_type, _)) = self.device {
            return Err(out_of_reach(memory_type));
        }
        match offset.checked_add(length) {
            // SAFETY: offset lies within the exposed buffer, whose address is valid for `length` bytes.
            Some(end) if end <= self.length => Ok(unsafe { self.address.add(offset) }),
            _ => Err(
                Error::new(ErrorKind::OutOfBounds, "the range leaves the region")
                    .during(Operation::Memory),
            ),
        }
    }
}

/// What keeps exposed memory for an [alias](Exposed::alias).
enum Keeper {
    /// As an access of peers, for which a revocation waits.
    Access(#[allow(dead_code)] Arc<Exposed>),
    /// The memory alone.
    Memory(#[allow(dead_code)] Arc<BufferMut>),
}

/// A part of exposed device memory.
struct Part {
    range: AddressRange,
    memory_type: MemoryType,
    _keeper: Keeper,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.range).finish()
    }
}

// SAFETY: a part of memory that the keeper keeps, of its type; only memory that the host does not reach becomes one (`Exposed::alias`).
unsafe impl DomainMemory for Part {
    fn range(&self) -> AddressRange {
        self.range
    }

    fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    fn whole(&self) -> Option<AddressRange> {
        None
    }
}

#[derive(Default)]
pub(crate) struct RegionTable {
    slots: Mutex<Vec<Option<Arc<Exposed>>>>,
    watchers: Mutex<Vec<Weak<dyn RegionWatcher>>>,
    /// The slots that are free. Held while a slot changes and the watchers hear of it, so that they hear in that order. Taken before any
    /// worker's lock.
    free: Mutex<BTreeSet<u32>>,
}

/// That `length` bytes at `offset` may be accessed so in memory that is exposed for `given`, so many bytes of it.
/// Errors: `AccessDenied`, `OutOfBounds`.
pub(crate) fn admit(
    (given, size): (Access, u64),
    access: Access,
    offset: u64,
    length: u64,
) -> Result<()> {
    if !given.contains(access) {
        return Err(denied());
    }
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(out_of_bounds()),
    }
}

#[cold]
pub(crate) fn stale() -> Error {
    let text = "the remote memory is not exposed any more";
    Error::new(ErrorKind::StaleKey, text)
}

#[cold]
pub(crate) fn denied() -> Error {
    let text = "the region was not exposed for this access";
    Error::new(ErrorKind::AccessDenied, text)
}

#[cold]
pub(crate) fn out_of_bounds() -> Error {
    let text = "the range leaves the exposed region";
    Error::new(ErrorKind::OutOfBounds, text)
}

impl RegionTable {
    pub(crate) fn watch(&self, watcher: Weak<dyn RegionWatcher>) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }

    fn watchers(&self) -> Vec<Arc<dyn RegionWatcher>> {
        self.watchers
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The region of `slot`, if it is exposed under `generation`, to host memory. `publish` lets who has shown that key at it directly: no
    /// revocation of it passes between.
    pub(crate) fn let_at(
        &self,
        slot: u32,
        generation: u64,
        publish: impl FnOnce(),
    ) -> Option<Arc<Exposed>> {
        let slots = self.slots.lock();
        let exposed = slots.get(slot as usize)?.as_ref()?;
        if exposed.generation != generation || exposed.device.is_some() {
            return None;
        }
        publish();
        Some(exposed.clone())
    }

    /// The connection of a peer that was let at the region of `slot` has ended, and the peer may be inside: whoever takes the region back waits for it.
    pub(crate) fn is_left_inside(&self, slot: u32, guest: Box<dyn Guest>) {
        if let Some(Some(exposed)) = self.slots.lock().get(slot as usize) {
            let mut guests = exposed.guests.lock();
            guests.all_outside();
            guests.inside.push(guest);
        }
    }

    /// The region of `slot`, if it is exposed under `generation`.
    pub(crate) fn find(&self, slot: u32, generation: u64) -> Result<Arc<Exposed>> {
        match self.slots.lock().get(slot as usize) {
            Some(Some(exposed)) if exposed.generation == generation => Ok(exposed.clone()),
            _ => Err(stale()),
        }
    }

    /// As [`RegionTable::find`], for an access to `length` bytes at `offset`, by the processor: not to memory that it does not reach.
    pub(crate) fn check(
        &self,
        slot: u32,
        generation: u64,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<Arc<Exposed>> {
        let exposed = self.check_any(slot, generation, offset, length, access)?;
        match exposed.device {
            Some((memory_type, _)) if length > 0 => Err(out_of_reach(memory_type)),
            _ => Ok(exposed),
        }
    }

    /// The same for memory of any type.
    pub(crate) fn check_any(
        &self,
        slot: u32,
        generation: u64,
        offset: u64,
        length: u64,
        access: Access,
    ) -> Result<Arc<Exposed>> {
        let exposed = self.find(slot, generation)?;
        admit(
            (exposed.access, exposed.length as u64),
            access,
            offset,
            length,
        )?;
        Ok(exposed)
    }

    /// Takes the wakers of all who wait for the value of a region: a worker has ended.
    pub(crate) fn take_waiters(&self, wakes: &mut Vec<Waker>) {
        for exposed in self.slots.lock().iter().flatten() {
            exposed.waiters.take_all(wakes);
        }
    }

    /// Takes the wakers of those whose value has been reached, of every region: somebody who raised them in memory can tell nobody any more.
    pub(crate) fn take_reached(&self, wakes: &mut Vec<Waker>) {
        for exposed in self.slots.lock().iter().flatten() {
            exposed.take_reached(wakes);
        }
    }

    /// Exposes `buffer`.
    pub(crate) fn expose(self: &Arc<Self>, buffer: BufferMut, access: Access) -> Result<Region> {
        self.expose_in(buffer, access, None)
    }

    /// The same for memory that lies in a segment of which the buffer does not know.
    fn expose_in(
        self: &Arc<Self>,
        mut buffer: BufferMut,
        access: Access,
        segment: Option<(Arc<Segment>, usize)>,
    ) -> Result<Region> {
        if buffer.is_list() {
            // Exposed memory is one run.
            buffer.check_reachable(Operation::Memory)?;
        }
        let device = match (buffer.is_on_device(), buffer.device_range()) {
            (true, Some(range)) => Some((buffer.memory_type(), range.start())),
            _ => None,
        };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(ErrorKind::Io, format!("random generation: {error}"))
                .during(Operation::Memory)
        })?;
        // Odd: neither what stands in a table where nothing is exposed, nor what stands there for what is so no longer (`Pair::take_back`).
        let generation = u64::from_le_bytes(random) | 1;
        let mut free = self.free.lock();
        let mut slots = self.slots.lock();
        // The lowest: the first of them have words in what peers share.
        let slot = free.pop_first().map_or_else(
            || {
                slots.push(None);
                slots.len() - 1
            },
            |slot| slot as usize,
        );
        let exposed = Arc::new(Exposed {
            slot: slot as u32,
            generation,
            address: buffer.address(),
            device,
            length: buffer.len(),
            access,
            segment: segment.or_else(|| {
                buffer
                    .segment()
                    .map(|(segment, offset)| (segment.clone(), offset))
            }),
            guests: Mutex::default(),
            waiters: Waiters::default(),
            reach: Mutex::default(),
            buffer: Arc::new(buffer),
        });
        exposed.tell_segment(true);
        slots[slot] = Some(exposed.clone());
        drop(slots);
        Ok(Region {
            exposed: Some(exposed),
            table: self.clone(),
        })
    }

    fn revoke(&self, exposed: &Exposed) {
        let mut free = self.free.lock();
        match self.slots.lock().get_mut(exposed.slot as usize) {
            Some(slot)
                if slot
                    .as_ref()
                    .is_some_and(|held| held.generation == exposed.generation) =>
            {
                *slot = None;
                exposed.tell_segment(false);
                free.insert(exposed.slot);
            }
            // Revoked before: the slot may be another's by now.
            _ => return,
        }
        for watcher in self.watchers() {
            let inside = watcher.revoke(exposed.slot, exposed.generation);
            exposed.guests.lock().inside.extend(inside);
        }
    }
}

/// Memory that peers may read or write through its [`Descriptor`](crate::Descriptor).
///
/// It has no slice view, since a peer may change it at any time: [`Region::read_at`] and [`Region::write_at`] copy. Dropping it revokes the
/// access; the memory is freed once nobody is inside it any more. Where network devices reach it, that takes some 10 µs and more; of more than
/// 16 MiB they may write it for a moment after the drop, while it is kept. [`Region::unexpose`] waits for that elsewhere.
#[doc(alias = "ucp_mem_map")]
#[doc(alias = "ucp_mem_h")]
pub struct Region {
    exposed: Option<Arc<Exposed>>,
    table: Arc<RegionTable>,
}

impl Region {
    pub(crate) fn exposed(&self) -> &Arc<Exposed> {
        // Only `unexpose` and `drop` take it, and both end the region.
        self.exposed
            .as_ref()
            .expect("a region holds its memory until it ends")
    }

    /// Lets network devices reach it, until it ends.
    pub(crate) fn reach_by(&self, reach: DeviceReach) {
        *self.exposed().reach.lock() = Some(reach);
    }

    /// The keys by which network devices reach it, and whether what they write is to be read back.
    pub(crate) fn device_keys(&self) -> (Vec<DeviceKey>, bool) {
        let reach = self.exposed().reach.lock();
        let reach = reach.as_ref();
        reach.map_or_else(Default::default, |reach| {
            (reach.keys.clone(), reach.read_back)
        })
    }

    /// Bytes exposed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exposed().length
    }
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Which memory it is.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        self.exposed().memory_type()
    }
    /// What peers may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.exposed().access
    }

    /// Copies from the region.
    ///
    /// # Errors
    /// `OutOfBounds`; `Unsupported` when the memory is a device's.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.exposed().read(offset, target)
    }

    /// Copies into the region.
    ///
    /// # Errors
    /// As [`Region::read_at`].
    pub fn write_at(&self, offset: usize, source: &[u8]) -> Result<()> {
        self.exposed().write(offset, source)
    }

    /// Exposes it once more, under a key of its own: what is revoked of one does not touch the other. The memory lives as long as either.
    pub(crate) fn lend(&self, access: Access) -> Result<Self> {
        let exposed = self.exposed();
        let keeper = Keeper::Access(exposed.clone());
        let buffer = exposed.alias(0, exposed.length, keeper)?;
        self.table
            .expose_in(buffer, access, exposed.segment.clone())
    }

    /// Where a part of it begins, for whoever reaches it.
    pub(crate) fn address_of(&self, offset: usize) -> u64 {
        let exposed = self.exposed();
        let start = exposed.device.map_or(exposed.address as u64, |(_, at)| at);
        start.saturating_add(offset as u64)
    }

    /// A part of it to send from: see [`Exposed::alias`].
    pub(crate) fn source(&self, offset: usize, length: usize) -> Result<Buffer> {
        Ok(self.target(offset, length)?.freeze())
    }

    /// A part of it to receive into: see [`Exposed::alias`].
    pub(crate) fn target(&self, offset: usize, length: usize) -> Result<BufferMut> {
        let exposed = self.exposed();
        exposed.alias(offset, length, Keeper::Memory(exposed.buffer.clone()))
    }

    /// Nobody begins an access any more, at the first poll; devices of peers when it has resolved.
    async fn shut_out(&self) {
        self.table.revoke(self.exposed());
        let reach = self.exposed().reach.lock().take();
        if let Some(reach) = reach {
            // With the memory, which has to outlast it also when this future does not.
            let end = Ending(reach, self.exposed().clone());
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => {
                    // Broken off it is dropped all the same.
                    let _ = runtime.spawn_blocking(move || drop(end)).await;
                }
                Err(_) => drop(end),
            }
        }
    }

    /// Ends the exposure, and resolves when no access goes on: none directly, but for peers that were cut off in the middle of one, none by this
    /// side's software for a peer, which may stall in the middle of one as long as its connection lasts. The memory stays, for this process alone.
    pub(crate) async fn revoke(&self) {
        self.shut_out().await;
        // Accesses in flight are chunks of microseconds, or transfers of a peer that the keepalive watches.
        let start = Instant::now();
        while !self.exposed().guests.lock().are_settled() {
            match start.elapsed() < AT_WORK {
                true => std::hint::spin_loop(),
                false => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        while !self.is_left() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether no operation of a peer is under way here. Once it was revoked none begins.
    fn is_left(&self) -> bool {
        let left = Arc::strong_count(self.exposed()) == 1;
        // With the drop of the last: what it wrote is there.
        fence(Ordering::Acquire);
        left
    }

    /// Ends the exposure and gives the memory back once no access goes on. What a peer has mapped stays the peer's: the bytes come back in other
    /// memory then, at another address, and nothing that is written there afterwards is seen by that peer.
    ///
    /// # Cancel safety
    /// The access is revoked at the first poll; dropping the future then frees the memory when no peer is inside it.
    ///
    /// # Completion
    /// Every access that peers began before has ended; later ones fail with `StaleKey`. Only peers that have the descriptor are waited for. One that
    /// stays in the middle of a direct access for a second (its process is stopped, or it lies) is cut off, and what it may still do there does
    /// not reach the memory that is given back: that is a copy then, of host memory of whatever kind.
    #[doc(alias = "ucp_mem_unmap")]
    pub async fn unexpose(mut self) -> BufferMut {
        self.revoke().await;
        let exposed = self.exposed.take();
        let exposed = exposed.expect("a region holds its memory until it ends");
        let mut left = Left {
            guests: std::mem::take(&mut *exposed.guests.lock()),
            memory: Some(exposed.buffer.clone()),
        };
        drop(exposed);
        loop {
            let memory = left.memory.take().expect("put back below");
            match Arc::try_unwrap(memory) {
                // Who was cut off may come back to it at any time.
                Ok(buffer) if !left.guests.all_outside() => {
                    match left.memory.insert(Arc::new(buffer)).replica().await {
                        Ok(replica) => return replica,
                        Err(error) => no_replica(&error),
                    }
                }
                // Who has mapped it keeps the mapping.
                Ok(buffer) if buffer.was_given() => match buffer.replica().await {
                    Ok(replica) => return replica,
                    Err(error) => {
                        no_replica(&error);
                        return buffer;
                    }
                },
                Ok(buffer) => return buffer,
                Err(shared) => left.memory = Some(shared),
            }
            // This process's own operations in flight.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// What the processor answers that is to access memory which it does not reach.
#[cold]
fn out_of_reach(memory_type: MemoryType) -> Error {
    let text =
        format!("the exposed memory is of type {memory_type}, which the host does not reach");
    Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(exposed) = self.exposed.take() else {
            return;
        };
        if fork::forked() {
            // It is the parent's to revoke, and its buffer's mapping goes with the child.
            let _kept = std::mem::ManuallyDrop::new(exposed);
            return;
        }
        self.table.revoke(&exposed);
        let mut reach = exposed.reach.lock().take();
        if exposed.length <= AT_ONCE {
            drop(reach.take());
        }
        if reach.is_none() && exposed.guests.lock().all_outside() {
            return;
        }
        // A peer is inside this very moment, in a copy of at most one chunk, or devices reach the memory, which outlives that.
        keeper::keep(Box::new(move || {
            drop(reach.take());
            let mut guests = exposed.guests.lock();
            guests.are_settled() && guests.all_outside()
        }));
    }
}

/// Memory that was exposed, on its way back to the program.
struct Left {
    memory: Option<Arc<BufferMut>>,
    guests: Guests,
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && !self.guests.all_outside()
            && !fork::forked()
        {
            let mut guests = std::mem::take(&mut self.guests);
            keeper::keep(Box::new(move || {
                let _memory = &memory;
                guests.are_settled() && guests.all_outside()
            }));
        }
    }
}

#[cold]
fn no_replica(error: &Error) {
    tracing::error!(target: "wharf::memory", %error, "no memory to copy to what peers that had it exposed may still reach");
}

/// Registrations of so many bytes end within a drop: a millisecond or two. More of them on a thread.
const AT_ONCE: usize = 16 << 20;

/// The registrations of exposed memory, which end first, and the memory.
struct Ending(
    #[allow(dead_code)] DeviceReach,
    #[allow(dead_code)] Arc<Exposed>,
);

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len())
            .field("access", &self.access())
            .finish()
    }
}

#[cfg(all(test, not(wharf_loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// Words, so that the memory begins at one.
    fn words() -> BufferMut {
        let mut memory = vec![0_u64; 2];
        let address = memory.as_mut_ptr().cast();
        // SAFETY: the vector owns the sixteen bytes, rides along, and is used by nobody else.
        unsafe { BufferMut::from_raw(address, 16, memory) }
    }

    /// However many are exposed, one more takes no longer, and takes the lowest slot that is free.
    #[test]
    fn a_slot_is_found_at_once() {
        let table = Arc::new(RegionTable::default());
        let expose = || {
            let memory = BufferMut::from(vec![0; 8]);
            table.expose(memory, Access::READ).expect("a region")
        };
        let begin = Instant::now();
        let mut regions: Vec<_> = (0..40_000).map(|_| Some(expose())).collect();
        for freed in [31_000, 7, 30] {
            regions[freed] = None;
        }
        assert_eq!([(); 4].map(|()| expose().exposed().slot), [7, 7, 7, 7]);
        let held = [(); 4].map(|()| expose());
        assert_eq!(
            held.each_ref().map(|region| region.exposed().slot),
            [7, 30, 31_000, 40_000]
        );
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }

    /// A put that comes in a message is written by the worker's thread, while the owner looks for it from another.
    #[test]
    fn a_word_is_put_whole_under_who_polls_it() {
        const LAST: u8 = 250;
        let table = Arc::new(RegionTable::default());
        let region = table.expose(words(), Access::READ).expect("a region");
        let exposed = region.exposed();
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=LAST {
                    exposed.write(0, &[round; 8]).expect("within");
                    exposed.write(8, &[round; 4]).expect("within");
                    thread::yield_now();
                }
            });
            let mut last = 0;
            while last < LAST {
                let (mut long, mut short) = ([0; 8], [0; 4]);
                // In the order against that of the writer.
                region.read_at(8, &mut short).expect("within");
                region.read_at(0, &mut long).expect("within");
                let word = region.load::<u64>(0).expect("within").to_ne_bytes();
                assert!(short == [short[0]; 4] && long == [long[0]; 8] && word == [word[0]; 8]);
                assert!(last <= short[0] && short[0] <= long[0] && long[0] <= word[0]);
                last = short[0];
                thread::yield_now();
            }
        });
    }
}
