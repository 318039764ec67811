//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `fakes` | a cache over fakes |
//! | `fork` | a child made by `fork` or `clone` is refused, its parent goes on |
//! | `limits` | registration cache: count, bytes, what is in use, unreleased bytes, the end, bad input |
//! | `merge` | registration cache: UCX's list of behaviours, merging, replacing, events |
//! | `model` | registration cache: random scripts against a map of regions and versions of pages |
//! | `single_flight` | registration cache: many at once, dropped, failing, slow, panicking |
//! | `allocator` | the allocator of this program, which notices calls that must not be |
//! | `hooks` | patched libc functions: results, threads, signals, other patchers |
//! | `matrix` | which monitor sees which change, as a table |
//! | `no_alloc` | no handler allocates |
//! | `prepare` | what a process needs for a monitor |
//! | `uffd` | the monitor by userfaultfd |

mod allocator;
mod hooks;
mod matrix;
mod no_alloc;
mod prepare;
#[path = "../support/mod.rs"]
mod support;

mod fakes;
mod fork;
mod limits;
mod merge;
mod model;
mod single_flight;

mod uffd;
