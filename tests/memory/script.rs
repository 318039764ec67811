//! A random program: threads that allocate, free, move and discard memory, and between that let a device read and write it through cached
//! registrations. After each transfer the device's bytes must be the CPU's.
//!
//! # Safety
//! A [`Block`] is memory that the script made and that no reference points to; one thread owns it, and reads and writes it by copies only.
//! Calls that change a mapping name addresses within one block of the thread that makes them.
#![allow(unsafe_code)]

use std::{alloc::Layout, fmt, mem::ManuallyDrop, ptr, sync::Arc, thread};

use parking_lot::Mutex;
use wharf::{
    Access,
    memory::{AddressRange, MemoryMonitor, RegistrationCache, RegistrationCacheOptions},
};

use crate::uring::UringRegistrar;

const PAGE: usize = 4096;
/// Registrations that the ring has room for, and the cache.
const SLOTS: u16 = 1024;
const REGIONS: usize = 256;
/// Blocks of one thread.
const BLOCKS: usize = 16;
/// Bytes of one transfer.
const LONGEST: usize = 64 << 10;

/// What the script does and with what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) threads: u64,
    /// Steps of each thread.
    pub(crate) steps: u64,
    /// Whether the device writes as well. Through a stale registration it writes into whatever the pages are now used for.
    pub(crate) device_writes: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) transfers: u64,
    /// Transfers whose bytes were not the CPU's.
    pub(crate) stale: u64,
    /// The first of them.
    pub(crate) first: Option<String>,
    /// Mappings that were changed or given back.
    pub(crate) changes: u64,
    pub(crate) forks: u64,
    /// Calls of the cache that failed, with the first reason.
    pub(crate) refused: u64,
    pub(crate) reason: Option<String>,
    pub(crate) statistics: String,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            transfers,
            stale,
            changes,
            forks,
            refused,
            ..
        } = self;
        write!(
            f,
            "{transfers} transfers, {changes} changes, {forks} forks, {stale} stale, {refused} refused"
        )?;
        for text in self.first.iter().chain(&self.reason) {
            write!(f, "; first: {text}")?;
        }
        write!(f, "; {}", self.statistics)
    }
}

impl Script {
    pub(crate) fn run(self, monitor: Arc<dyn MemoryMonitor>) -> Outcome {
        let device = UringRegistrar::new(SLOTS);
        let options = RegistrationCacheOptions::default()
            .max_regions(REGIONS)
            .max_bytes(64 << 20);
        let cache = RegistrationCache::new(device.clone(), monitor, options).expect("a cache");
        let shared = Mutex::new(Vec::new());
        let outcomes: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|index| {
                    let (cache, device, shared) = (&cache, &device, &shared);
                    scope.spawn(move || {
                        let mut actor = Actor {
                            script: self,
                            index,
                            step: 0,
                            random: Random(self.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                            cache,
                            device,
                            shared,
                            blocks: Vec::new(),
                            outcome: Outcome::default(),
                        };
                        actor.play();
                        actor.outcome
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic in the script"))
                .collect()
        });
        drop(shared);
        let mut all = Outcome {
            statistics: format!("{:?}", cache.statistics()),
            ..Outcome::default()
        };
        for outcome in outcomes {
            all.transfers += outcome.transfers;
            all.stale += outcome.stale;
            all.changes += outcome.changes;
            all.forks += outcome.forks;
            all.refused += outcome.refused;
            all.first = all.first.or(outcome.first);
            all.reason = all.reason.or(outcome.reason);
        }
        all
    }
}

/// One thread of the script.
struct Actor<'a> {
    script: Script,
    index: u64,
    step: u64,
    random: Random,
    cache: &'a RegistrationCache<UringRegistrar>,
    device: &'a UringRegistrar,
    /// Blocks on their way from one thread to another.
    shared: &'a Mutex<Vec<Block>>,
    blocks: Vec<Block>,
    outcome: Outcome,
}

impl Actor<'_> {
    fn play(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for step in 0..self.script.steps {
                self.step = step;
                match self.random.below(100) {
                    0..45 => self.transfer(None).await,
                    45..53 => self.allocate(),
                    53..58 => self.map(),
                    58..67 => {
                        // A block is used right before it goes, and what comes next right away.
                        self.transfer(None).await;
                        self.give_back();
                        self.allocate();
                        self.transfer(self.blocks.len().checked_sub(1)).await;
                    }
                    67..74 => self.reallocate().await,
                    74..79 => self.change(Self::overmap).await,
                    79..84 => self.change(Self::remap).await,
                    84..92 => self.change(Self::discard).await,
                    92..97 => self.exchange(),
                    97..99 => self.trim(),
                    _ => self.fork().await,
                }
            }
        });
    }

    /// Picks a block of those with a mapping of their own, uses it, changes it, uses it again.
    async fn change(&mut self, how: fn(&mut Self, usize)) {
        let mapped: Vec<_> = (0..self.blocks.len())
            .filter(|&index| self.blocks[index].layout.is_none())
            .collect();
        let Some(&index) = mapped.get(self.random.index(mapped.len())) else {
            return self.map();
        };
        self.transfer(Some(index)).await;
        how(self, index);
        self.outcome.changes += 1;
        if index < self.blocks.len() {
            self.transfer(Some(index)).await;
        }
    }

    async fn transfer(&mut self, index: Option<usize>) {
        if self.blocks.is_empty() {
            self.allocate();
        }
        let index = index.unwrap_or_else(|| self.random.index(self.blocks.len()));
        let (base, whole) = (self.blocks[index].base, self.blocks[index].length);
        let length = 1 + self.random.index(whole.min(LONGEST));
        let address = base + self.random.index(whole - length + 1);
        // Half of the time the bytes are those that the last change left there.
        let mut expected = vec![0; length];
        if self.random.below(2) == 0 {
            self.random.fill(&mut expected);
            // SAFETY: within the block, which is this thread's.
            unsafe { ptr::copy_nonoverlapping(expected.as_ptr(), address as *mut u8, length) };
        } else {
            // SAFETY: as above.
            unsafe {
                ptr::copy_nonoverlapping(address as *const u8, expected.as_mut_ptr(), length)
            };
        }
        let range = AddressRange::new(address as u64, length as u64).expect("a range");
        let registration = match self.cache.get(range, Access::READ | Access::WRITE).await {
            Ok(registration) => registration,
            Err(error) => {
                self.outcome.refused += 1;
                let place = self.place(index, range);
                self.outcome
                    .reason
                    .get_or_insert_with(|| format!("{error:?} {place}"));
                return;
            }
        };
        assert!(
            registration.range().contains(range),
            "{}",
            self.place(index, range)
        );
        self.outcome.transfers += 1;
        let seen = self
            .device
            .read(&registration, range.start(), length)
            .expect("the device reads");
        let mut right = seen == expected;
        if right && self.script.device_writes && self.random.below(3) == 0 {
            self.random.fill(&mut expected);
            // SAFETY: within the block, which is this thread's and has no references.
            unsafe { self.device.write(&registration, range.start(), &expected) }
                .expect("the device writes");
            let mut seen = vec![0; length];
            // SAFETY: within the block, which is this thread's.
            unsafe { ptr::copy_nonoverlapping(address as *const u8, seen.as_mut_ptr(), length) };
            right = seen == expected;
        }
        if !right {
            self.outcome.stale += 1;
            let place = self.place(index, range);
            self.outcome.first.get_or_insert(place);
        }
    }

    fn place(&self, index: usize, range: AddressRange) -> String {
        let Self { script, step, .. } = self;
        let block = &self.blocks[index];
        format!(
            "{script:?}: thread {} step {step}, {range} of {block:?}",
            self.index
        )
    }

    fn allocate(&mut self) {
        if self.blocks.len() == BLOCKS {
            self.give_back();
        }
        // 64 bytes to 2 MiB: small ones share pages, large ones have mappings of their own with most allocators.
        let length = (64 << self.random.below(15)) + self.random.index(64);
        let layout = Layout::from_size_align(length, 8).expect("a layout");
        // SAFETY: the length is not 0.
        let pointer = unsafe { std::alloc::alloc(layout) };
        assert!(!pointer.is_null(), "{length} bytes");
        // SAFETY: allocated above. The CPU may only read what was written.
        unsafe { ptr::write_bytes(pointer, 0x5a, length) };
        self.blocks.push(Block {
            base: pointer as usize,
            length,
            layout: Some(layout),
            shared: false,
        });
    }

    fn map(&mut self) {
        if self.blocks.len() == BLOCKS {
            self.give_back();
        }
        // Now and then large enough for huge pages.
        let pages = match self.random.below(16) {
            0 => 512 + self.random.index(512),
            _ => 1 + self.random.index(64),
        };
        let shared = self.random.below(8) == 0;
        let base = map_at(0, pages * PAGE, shared, 0).expect("memory");
        self.blocks.push(Block {
            base,
            length: pages * PAGE,
            layout: None,
            shared,
        });
    }

    fn give_back(&mut self) {
        if !self.blocks.is_empty() {
            let index = self.random.index(self.blocks.len());
            drop(self.blocks.swap_remove(index));
            self.outcome.changes += 1;
        }
    }

    async fn reallocate(&mut self) {
        let heap: Vec<_> = (0..self.blocks.len())
            .filter(|&index| self.blocks[index].layout.is_some())
            .collect();
        let Some(&index) = heap.get(self.random.index(heap.len())) else {
            return self.allocate();
        };
        self.transfer(Some(index)).await;
        let length = (64 << self.random.below(15)) + self.random.index(64);
        let block = &mut self.blocks[index];
        let layout = block.layout.expect("of the heap");
        // SAFETY: allocated with this layout; the new length is not 0.
        let pointer = unsafe { std::alloc::realloc(block.base as *mut u8, layout, length) };
        assert!(!pointer.is_null(), "{length} bytes");
        if length > block.length {
            // SAFETY: the part that came in addition.
            unsafe { ptr::write_bytes(pointer.add(block.length), 0x5b, length - block.length) };
        }
        block.base = pointer as usize;
        block.length = length;
        block.layout = Some(Layout::from_size_align(length, 8).expect("a layout"));
        self.outcome.changes += 1;
        self.transfer(Some(index)).await;
    }

    /// Some pages of a block.
    fn part(&mut self, index: usize) -> (usize, usize) {
        let block = &self.blocks[index];
        let pages = block.length / PAGE;
        let first = self.random.index(pages);
        let count = 1 + self.random.index(pages - first);
        (block.base + first * PAGE, count * PAGE)
    }

    fn overmap(&mut self, index: usize) {
        let (address, length) = self.part(index);
        let shared = self.blocks[index].shared;
        map_at(address, length, shared, libc::MAP_FIXED).expect("memory over memory");
    }

    fn discard(&mut self, index: usize) {
        let (address, length) = self.part(index);
        let advice = match (self.blocks[index].shared, self.random.below(4)) {
            (true, _) => libc::MADV_REMOVE,
            (false, 0) => libc::MADV_FREE,
            (false, _) => libc::MADV_DONTNEED,
        };
        // SAFETY: pages of a block of this thread's; what they hold is not needed.
        let done = unsafe { libc::madvise(address as *mut libc::c_void, length, advice) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// Grows, shrinks or moves a block. A monitor's mark on a part of it can make that impossible; then nothing happens.
    fn remap(&mut self, index: usize) {
        let pages = 1 + self.random.index(96);
        let block = &self.blocks[index];
        let (old, from) = (block.base as *mut libc::c_void, block.length);
        if self.random.below(3) == 0 {
            // Onto new memory of the same length.
            let target = map_at(0, from, block.shared, 0).expect("memory");
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: both are this thread's, and do not overlap.
            let moved =
                unsafe { libc::mremap(old, from, from, flags, target as *mut libc::c_void) };
            if moved == libc::MAP_FAILED {
                // It failed half way: the target, and with some kernels a part of the block, is unmapped, and another thread may have the
                // addresses by now. So neither is unmapped again.
                let _ = ManuallyDrop::new(self.blocks.swap_remove(index));
                self.map();
            } else {
                self.blocks[index].base = target;
            }
            return;
        }
        // What shared memory is made longer by lies behind its file's end.
        let to = if block.shared {
            from.min(pages * PAGE)
        } else {
            pages * PAGE
        };
        // SAFETY: the block is this thread's, and only the script keeps its address.
        let moved = unsafe { libc::mremap(old, from, to, libc::MREMAP_MAYMOVE) };
        if moved != libc::MAP_FAILED {
            let block = &mut self.blocks[index];
            block.base = moved as usize;
            block.length = to;
        }
    }

    /// Hands a block to another thread, or takes one.
    fn exchange(&mut self) {
        let mut shared = self.shared.lock();
        if self.random.below(2) == 0 && !self.blocks.is_empty() && shared.len() < BLOCKS {
            let index = self.random.index(self.blocks.len());
            shared.push(self.blocks.swap_remove(index));
        } else if self.blocks.len() < BLOCKS {
            self.blocks.extend(shared.pop());
        }
    }

    fn trim(&mut self) {
        // SAFETY: gives free memory of the allocator's back.
        unsafe { libc::malloc_trim(0) };
        self.outcome.changes += 1;
    }

    /// A child that writes into its copy and unmaps it, while the parent goes on.
    async fn fork(&mut self) {
        if self.outcome.forks > 20 {
            return;
        }
        let private: Vec<_> = self
            .blocks
            .iter()
            .filter(|block| !block.shared && block.layout.is_none())
            .map(|block| (block.base, block.length))
            .collect();
        // SAFETY: the child makes system calls and writes to memory of the script's, and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            for (base, length) in private {
                // SAFETY: the child's own copy of mappings that only the script uses.
                unsafe {
                    ptr::write_bytes(base as *mut u8, 0xff, length);
                    libc::munmap(base as *mut libc::c_void, length);
                }
            }
            // SAFETY: ends at once.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        self.outcome.forks += 1;
        for _ in 0..3 {
            self.transfer(None).await;
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {}
        assert_eq!(status, 0, "the forked child failed");
        self.transfer(None).await;
    }
}

/// Memory of the script's: the heap's if it has a layout, else a mapping of its own. Given back when dropped.
#[derive(Debug)]
struct Block {
    base: usize,
    length: usize,
    layout: Option<Layout>,
    shared: bool,
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.layout {
            // SAFETY: allocated with this layout, and nobody else keeps it.
            Some(layout) => unsafe { std::alloc::dealloc(self.base as *mut u8, layout) },
            // SAFETY: mapped by the script, and nobody else keeps it.
            None => unsafe {
                libc::munmap(self.base as *mut libc::c_void, self.length);
            },
        }
    }
}

/// Anonymous memory at an address, or anywhere if that is 0.
pub(crate) fn map_at(
    address: usize,
    length: usize,
    shared: bool,
    flags: libc::c_int,
) -> std::io::Result<usize> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    // SAFETY: with `MAP_FIXED` over pages of the caller's own, else where nothing is.
    let base = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            kind | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(base as usize)
}

/// Numbers that follow from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `limit`; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    pub(crate) fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
