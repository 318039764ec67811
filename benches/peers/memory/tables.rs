//! What the registration cache's lookup is measured beside: other ways of finding the region that holds an address.
//!
//! # Safety
//! UCX's page table is loaded from the system's `libucs.so.0` (`ucs/datastruct/pgtable.h`, unchanged from 1.3 to 1.22): a structure of 64
//! bytes, regions of two addresses that are multiples of 16, directories of 136 bytes that are asked for by a callback. Each is given more
//! room than that. The regions and the table stay where they are until it is gone. Whoever looks up while another thread changes it holds
//! the lock; without the lock there is no other thread.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    collections::BTreeMap,
    ffi::{c_int, c_ulong, c_void},
    ops::Bound,
    sync::Arc,
};

use arc_swap::ArcSwap;
use crossbeam_skiplist::SkipMap;
use left_right::{Absorb, ReadHandle, ReadHandleFactory, WriteHandle};
use parking_lot::{Mutex, RwLock};
use rangemap::RangeMap;

/// Where regions begin, how far apart, and how long they are.
pub(crate) const BASE: u64 = 0x2000_0000_0000;
pub(crate) const STRIDE: u64 = 16 << 10;
pub(crate) const LENGTH: u64 = 8 << 10;

/// The `index`th region: its first address and the one behind its last.
pub(crate) fn region(index: u64) -> (u64, u64) {
    let start = BASE + index * STRIDE;
    (start, start + LENGTH)
}

/// Finds regions by address, in several threads.
pub(crate) trait Table: Sync {
    /// What one thread reads by.
    type Reader<'a>: FnMut(u64) -> bool + Send
    where
        Self: 'a;

    fn reader(&self) -> Self::Reader<'_>;

    /// Takes a region out and puts it in again.
    fn churn(&self, index: u64);
}

/// A macro, because `impl Trait` in associated types is not there yet.
macro_rules! table {
    ($name:ty, $self:ident, |$address:ident| $find:expr, |$index:ident| $churn:expr) => {
        impl Table for $name {
            type Reader<'a> = Box<dyn FnMut(u64) -> bool + Send + 'a>;

            fn reader(&self) -> Self::Reader<'_> {
                let $self = self;
                Box::new(move |$address| $find)
            }

            fn churn(&self, $index: u64) {
                let $self = self;
                $churn
            }
        }
    };
}
pub(crate) use table;

fn in_map(map: &BTreeMap<u64, u64>, address: u64) -> bool {
    matches!(map.range(..=address).next_back(), Some((_, end)) if address < *end)
}

pub(crate) struct Locked(RwLock<BTreeMap<u64, u64>>);

impl Locked {
    pub(crate) fn new(count: u64) -> Self {
        Self(RwLock::new((0..count).map(region).collect()))
    }
}

table!(
    Locked,
    this,
    |address| in_map(&this.0.read(), address),
    |index| {
        let (start, end) = region(index);
        this.0.write().remove(&start);
        this.0.write().insert(start, end);
    }
);

pub(crate) struct Ranges(RwLock<RangeMap<u64, u64>>);

impl Ranges {
    pub(crate) fn new(count: u64) -> Self {
        let ranges = (0..count).map(|index| (region(index).0..region(index).1, index));
        Self(RwLock::new(ranges.collect()))
    }
}

table!(
    Ranges,
    this,
    |address| this.0.read().get(&address).is_some(),
    |index| {
        let (start, end) = region(index);
        this.0.write().remove(start..end);
        this.0.write().insert(start..end, index);
    }
);

pub(crate) struct Skips(SkipMap<u64, u64>);

impl Skips {
    pub(crate) fn new(count: u64) -> Self {
        Self((0..count).map(region).collect())
    }
}

table!(
    Skips,
    this,
    |address| matches!(this.0.upper_bound(Bound::Included(&address)), Some(entry) if address < *entry.value()),
    |index| {
        let (start, end) = region(index);
        this.0.remove(&start);
        this.0.insert(start, end);
    }
);

pub(crate) struct Swapped(ArcSwap<Vec<(u64, u64)>>);

impl Swapped {
    pub(crate) fn new(count: u64) -> Self {
        Self(ArcSwap::from_pointee((0..count).map(region).collect()))
    }
}

table!(
    Swapped,
    this,
    |address| {
        let regions = this.0.load();
        let behind = regions.partition_point(|(start, _)| *start <= address);
        behind > 0 && address < regions[behind - 1].1
    },
    |index| {
        let entry = region(index);
        let mut regions = Vec::clone(&this.0.load());
        let place = regions.partition_point(|other| *other < entry);
        regions.remove(place);
        this.0.store(Arc::new(regions.clone()));
        regions.insert(place, entry);
        this.0.store(Arc::new(regions));
    }
);

#[derive(Clone)]
struct Map(BTreeMap<u64, u64>);

enum Change {
    Insert(u64, u64),
    Remove(u64),
}

impl Absorb<Change> for Map {
    fn absorb_first(&mut self, change: &mut Change, _: &Self) {
        match *change {
            Change::Insert(start, end) => self.0.insert(start, end),
            Change::Remove(start) => self.0.remove(&start),
        };
    }

    fn sync_with(&mut self, first: &Self) {
        self.0.clone_from(&first.0);
    }
}

pub(crate) struct LeftRight {
    write: Mutex<WriteHandle<Map, Change>>,
    readers: ReadHandleFactory<Map>,
}

impl LeftRight {
    pub(crate) fn new(count: u64) -> Self {
        let map = Map((0..count).map(region).collect());
        let (write, read): (_, ReadHandle<Map>) = left_right::new_from_empty(map);
        Self {
            write: Mutex::new(write),
            readers: read.factory(),
        }
    }
}

impl Table for LeftRight {
    type Reader<'a> = Box<dyn FnMut(u64) -> bool + Send + 'a>;

    fn reader(&self) -> Self::Reader<'_> {
        let read = self.readers.handle();
        Box::new(move |address| read.enter().is_some_and(|map| in_map(&map.0, address)))
    }

    fn churn(&self, index: u64) {
        let (start, end) = region(index);
        let mut write = self.write.lock();
        write.append(Change::Remove(start)).publish();
        write.append(Change::Insert(start, end)).publish();
    }
}

/// `ucs_pgt_region_t`.
#[repr(C, align(16))]
struct UcxRegion {
    start: c_ulong,
    end: c_ulong,
}

type InitCall = unsafe extern "C" fn(
    *mut c_void,
    unsafe extern "C" fn(*const c_void) -> *mut c_void,
    unsafe extern "C" fn(*const c_void, *mut c_void),
) -> i8;
type CleanupCall = unsafe extern "C" fn(*mut c_void);
type ChangeCall = unsafe extern "C" fn(*mut c_void, *mut UcxRegion) -> i8;
type LookupCall = unsafe extern "C" fn(*const c_void, c_ulong) -> *mut UcxRegion;

/// UCX's page table, bare or under the spin lock that UCX has around it.
pub(crate) struct Ucx {
    table: Box<UnsafeCell<[u64; 64]>>,
    regions: Box<[UnsafeCell<UcxRegion>]>,
    lock: Option<Box<UnsafeCell<libc::pthread_spinlock_t>>>,
    insert: ChangeCall,
    remove: ChangeCall,
    lookup: LookupCall,
    cleanup: CleanupCall,
    _library: libloading::Library,
}

// SAFETY: all changes and lookups hold the lock; without one there is a single thread, see the chapter above.
unsafe impl Sync for Ucx {}

/// Room for a directory: 16 entries and a count.
const DIRECTORY: std::alloc::Layout = match std::alloc::Layout::from_size_align(256, 64) {
    Ok(layout) => layout,
    Err(_) => panic!("a layout"),
};

unsafe extern "C" fn new_directory(_: *const c_void) -> *mut c_void {
    // SAFETY: the layout has bytes.
    unsafe { std::alloc::alloc_zeroed(DIRECTORY) }.cast()
}

unsafe extern "C" fn old_directory(_: *const c_void, directory: *mut c_void) {
    // SAFETY: allocated above.
    unsafe { std::alloc::dealloc(directory.cast(), DIRECTORY) }
}

impl Ucx {
    pub(crate) fn new(count: u64, locked: bool) -> Result<Self, libloading::Error> {
        // SAFETY: the system's library, whose initialiser reads its own configuration; the types are those of the header named above.
        let (library, init, insert, remove, lookup, cleanup) = unsafe {
            let library = libloading::Library::new("libucs.so.0")?;
            let init = *library.get::<InitCall>(c"ucs_pgtable_init")?;
            let insert = *library.get::<ChangeCall>(c"ucs_pgtable_insert")?;
            let remove = *library.get::<ChangeCall>(c"ucs_pgtable_remove")?;
            let lookup = *library.get::<LookupCall>(c"ucs_pgtable_lookup")?;
            let cleanup = *library.get::<CleanupCall>(c"ucs_pgtable_cleanup")?;
            (library, init, insert, remove, lookup, cleanup)
        };
        let this = Self {
            table: Box::new(UnsafeCell::new([0; 64])),
            regions: (0..count)
                .map(region)
                .map(|(start, end)| UnsafeCell::new(UcxRegion { start, end }))
                .collect(),
            lock: locked.then(|| {
                let mut lock = Box::new(UnsafeCell::new(0));
                // SAFETY: not used yet.
                let done: c_int = unsafe { libc::pthread_spin_init(lock.get_mut(), 0) };
                assert_eq!(done, 0, "a spin lock");
                lock
            }),
            insert,
            remove,
            lookup,
            cleanup,
            _library: library,
        };
        // SAFETY: more room than the structure needs, at a place of its own.
        let done = unsafe { init(this.table(), new_directory, old_directory) };
        assert_eq!(done, 0, "ucs_pgtable_init");
        for region in &this.regions {
            // SAFETY: regions apart from each other, which stay.
            let done = unsafe { (this.insert)(this.table(), region.get()) };
            assert_eq!(done, 0, "ucs_pgtable_insert");
        }
        Ok(this)
    }

    fn table(&self) -> *mut c_void {
        self.table.get().cast()
    }

    fn locked<T>(&self, work: impl FnOnce() -> T) -> T {
        if let Some(lock) = &self.lock {
            // SAFETY: initialised, and given back below by the same thread.
            unsafe { libc::pthread_spin_lock(lock.get()) };
        }
        let result = work();
        if let Some(lock) = &self.lock {
            // SAFETY: taken above.
            unsafe { libc::pthread_spin_unlock(lock.get()) };
        }
        result
    }
}

table!(
    Ucx,
    this,
    |address| {
        // SAFETY: under the lock, or alone.
        let found = this.locked(|| unsafe { (this.lookup)(this.table(), address) });
        !found.is_null()
    },
    |index| {
        let region = this.regions[index as usize].get();
        // SAFETY: under the lock; the region is in the table.
        this.locked(|| unsafe { (this.remove)(this.table(), region) });
        // SAFETY: under the lock; the region is in it no more.
        this.locked(|| unsafe { (this.insert)(this.table(), region) });
    }
);

impl Drop for Ucx {
    fn drop(&mut self) {
        for region in &self.regions {
            // SAFETY: nobody else is left; the region is in the table.
            unsafe { (self.remove)(self.table(), region.get()) };
        }
        // SAFETY: initialised, empty, and used no more.
        unsafe { (self.cleanup)(self.table()) };
    }
}
