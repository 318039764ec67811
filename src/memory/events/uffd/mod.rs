//! The monitor by userfaultfd: the kernel tells of every change of a watched mapping, whoever makes it, after the change.
//!
//! | file | holds |
//! |---|---|
//! | `thread` | the reader of the events |
//! | `intervals` | which addresses are registered, and which still matter |
//! | `page` | the page of the strict check |
//! | `fork` | children close the descriptor |
//!
//! Seen: `munmap`, `mmap(MAP_FIXED)` over, `mremap`, `brk`, `madvise` with `DONTNEED`, `FREE` and `REMOVE`, by any thread, library, direct
//! system call or io_uring. Not seen: `MADV_GUARD_INSTALL`, `shmat` with `SHM_REMAP` over, `remap_file_pages`, and files that shrink or get
//! holes under their mapping. System V shared memory is refused, as its detachment is not seen.
//!
//! Costs: 10 to 20 µs for each unmap of watched memory (two context switches), 2 µs and more to watch, nothing for memory that is not watched.

#[cfg(test)]
mod tests;

mod fork;
mod intervals;
mod page;
mod thread;
mod watch;

pub use watch::Uffd;
