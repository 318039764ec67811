//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
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
mod uffd;
