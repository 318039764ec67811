//! What a monitor of memory is, and the one that sees nothing.
//!
//! # Safety
//! The trait is unsafe to implement because caches, and the hardware behind them, believe it; nothing here is unsafe to execute.
#![allow(unsafe_code)]

use std::fmt;

use crate::{
    error::Result,
    memory::AddressRange,
    types::text::{flags, words},
};

/// When an event arrives, relative to the change that it tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Before the change, in the thread that makes it.
    Before,
    /// After it. Another thread may own the addresses already: [`MemoryMonitor::validate`] has to be asked at each use of a cached answer.
    After,
}

/// What happened to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The mapping went away (`munmap`, `brk`, `shmdt`), or another took its place (`MAP_FIXED`).
    Unmapped,
    /// The mapping moved (`mremap`).
    Moved,
    /// The pages were given back, the mapping stays (`madvise`).
    Discarded,
    /// An allocator took the block back.
    Freed,
    /// The program or another library said so.
    Notified,
    /// Nothing: but the monitor has no place any more to watch it, and what changes from now on is not told.
    Unwatched,
}

/// Whether what the caches know is up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Validity {
    /// Every change that had returned before the call has been delivered.
    Valid,
    /// Some change has not been delivered yet.
    Pending,
}

words! { Timing, "timing": Before = "before", After = "after" }
words! {
    Cause, "cause":
    Unmapped = "unmapped",
    Moved = "moved",
    Discarded = "discarded",
    Freed = "freed",
    Notified = "notified",
    Unwatched = "unwatched",
}
words! { Validity, "validity": Valid = "valid", Pending = "pending" }

bitflags::bitflags! {
    /// Classes of changes that a monitor sees.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventClasses: u32 {
        /// `munmap` called through libc.
        const UNMAP = 1;
        /// `mmap` with `MAP_FIXED` over a mapping.
        const OVERMAP = 1 << 1;
        /// `mremap`: moved, shrunk, or onto another mapping.
        const REMAP = 1 << 2;
        /// `madvise` with `DONTNEED`, `FREE`, `REMOVE` and their kind.
        const DISCARD = 1 << 3;
        /// The program break going down.
        const BREAK = 1 << 4;
        /// System V shared memory detached or attached over a mapping.
        const SYSV = 1 << 5;
        /// System calls that do not pass through libc's functions.
        const DIRECT = 1 << 6;
        /// Blocks that Rust's global allocator frees or moves.
        const RUST_HEAP = 1 << 7;
        /// What the program or another library tells.
        const NOTIFIED = 1 << 8;
    }
}

flags! {
    EventClasses, "class of changes":
    UNMAP = "unmap",
    OVERMAP = "overmap",
    REMAP = "remap",
    DISCARD = "discard",
    BREAK = "break",
    SYSV = "sysv",
    DIRECT = "direct",
    RUST_HEAP = "rust-heap",
    NOTIFIED = "notified",
}

impl EventClasses {
    /// Whether every way in which heap memory can go away is seen, so that registrations of memory of unknown owners may be kept.
    #[must_use]
    pub const fn covers_foreign_memory(self) -> bool {
        self.contains(
            Self::UNMAP
                .union(Self::OVERMAP)
                .union(Self::REMAP)
                .union(Self::DISCARD)
                .union(Self::BREAK),
        )
    }
}

/// Sees changes of this process's mappings and tells of them by [`invalidate`](super::invalidate).
///
/// # Safety
/// Caches believe it: a change of a class in [`MemoryMonitor::classes`] within a watched range must be delivered, before the change
/// takes effect with [`Timing::Before`], and before [`MemoryMonitor::validate`] says `Valid` with [`Timing::After`].
pub unsafe trait MemoryMonitor: Send + Sync + fmt::Debug {
    /// Its name in configuration and logs.
    fn name(&self) -> &'static str;

    /// When its events arrive.
    fn timing(&self) -> Timing;

    /// What it sees, as its self-test found.
    fn classes(&self) -> EventClasses;

    /// Tells of changes in `range` from now on, until it tells that something of it is [`Unwatched`](Cause::Unwatched): it does so of what nobody
    /// [uses](super::MemorySink::uses), for want of places. Ends of the range may be anywhere; whole pages are watched. Watching twice is watching once.
    ///
    /// # Errors
    /// `Unsupported`: memory of a kind that it cannot watch. `Exhausted`: too many ranges that are in use. Then nothing in the range may be cached.
    fn watch(&self, range: AddressRange) -> Result<()>;

    /// Nobody is interested in `range` any more: no cache of this process, as all share one monitor. Events for it may still come.
    fn unwatch(&self, range: AddressRange);

    /// Whether all changes that had returned before this call are delivered. Takes no lock, allocates nothing.
    fn validate(&self) -> Validity;

    /// Whether [`validate`](Self::validate) has to be asked at each use of a cached answer: with [`Timing::After`], and where events can end
    /// without a word.
    fn is_asked_at_each_use(&self) -> bool {
        self.timing() == Timing::After
    }
}

/// Sees nothing. With it, only memory that the program promises to announce, or that wharf owns, may be cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMonitor;

// SAFETY: it has no classes, so it promises nothing.
unsafe impl MemoryMonitor for NoMonitor {
    fn name(&self) -> &'static str {
        "none"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        EventClasses::NOTIFIED
    }

    fn watch(&self, _: AddressRange) -> Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}
