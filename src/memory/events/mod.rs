//! Memory events: who tells the caches that memory went away (UCX's UCM).
//!
//! ```text
//!   munmap, madvise, free …          the caches
//!        │                              ▲ MemorySink::invalidate
//!   a MemoryMonitor ──▶ invalidate() ───┘  no lock, no allocation, no wait
//! ```
//!
//! A monitor sees changes of mappings, before or after they happen, and calls [`invalidate`], which hands the range to every subscribed
//! [`MemorySink`]. That path may run inside `munmap`, inside the allocator with its locks held, or in a signal handler: so nothing on it takes a
//! lock, allocates, frees, waits or logs.
//!
//! | file | holds |
//! |---|---|
//! | `dispatch` | [`invalidate`] and [`subscribe`] |
//! | `hooks/` | the monitor that patches libc, an explicit choice |
//! | `alloc` | the monitor that wraps the program's allocator |
//! | `imported` | the monitor fed by a UCX in the process, or by the program |
//! | `monitor` | the trait, what a monitor sees, the one that sees nothing |
//! | `choose` | which monitor there is, by name or by itself |
//! | `self_test` | what a monitor really sees |
//! | `uffd` | the monitor by userfaultfd |
//!
//! Tests: beside each, and `tests/memory/`.

mod alloc;
mod choose;
mod dispatch;
mod hooks;
mod imported;
mod monitor;
mod self_test;
mod uffd;

pub use alloc::{AllocMonitor, TrackedAlloc};
pub use choose::{MonitorKind, monitor};
pub use dispatch::{MemorySink, Subscription, invalidate, subscribe};
pub use hooks::{Hooks, disable_hooks, install_hooks};
pub use imported::{Imported, announce_all};
pub use monitor::{Cause, EventClasses, MemoryMonitor, NoMonitor, Timing, Validity};
pub use uffd::Uffd;
