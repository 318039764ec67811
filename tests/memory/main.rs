//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `allocator` | the allocator of this program, which notices calls that must not be |
//! | `domain` | experts for memory: asked, allocating, exporting |
//! | `expert` | a device that is not there, for the others |
//! | `fakes` | a registration cache over fakes |
//! | `fork` | a child made by `fork` or `clone` is refused, its parent goes on |
//! | `hooks` | patched libc functions: results, threads, signals, other patchers |
//! | `limits` | registration cache: count, bytes, what is in use, unreleased bytes, the end, bad input |
//! | `matrix` | which monitor sees which change, as a table |
//! | `memtype` | what is known of memory by its address |
//! | `merge` | registration cache: UCX's list of behaviours, merging, replacing, events |
//! | `model` | registration cache: random scripts against a map of regions and versions of pages |
//! | `no_alloc` | no handler allocates |
//! | `pool` | buffers that stay registered |
//! | `prepare` | what a process needs for a monitor |
//! | `single_flight` | registration cache: many at once, dropped, failing, slow, panicking |
//! | `uffd` | the monitor by userfaultfd |

mod allocator;
mod domain;
mod expert;
mod fakes;
mod fork;
mod hooks;
mod limits;
mod matrix;
mod memtype;
mod merge;
mod model;
mod no_alloc;
mod pool;
mod prepare;
mod single_flight;
#[path = "../support/mod.rs"]
mod support;
mod uffd;
