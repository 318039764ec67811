//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `allocator` | the allocator of this program, which notices calls that must not be |
//! | `device` | the device of the oracle is one |
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
//! | `oracle` | random programs whose every transfer is compared with what a device saw, for each monitor and allocator |
//! | `pool` | buffers that stay registered |
//! | `prepare` | what a process needs for a monitor |
//! | `reuse` | one thread unmaps, another maps the same addresses and transfers at once |
//! | `script` | the random program |
//! | `single_flight` | registration cache: many at once, dropped, failing, slow, panicking |
//! | `uffd` | the monitor by userfaultfd |

mod allocator;
mod device;
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
mod oracle;
mod pool;
mod prepare;
#[allow(dead_code)]
#[path = "../../examples/registration_cache.rs"]
mod registration_cache;
mod reuse;
mod script;
mod single_flight;
#[path = "../support/mod.rs"]
mod support;
mod uffd;
#[path = "../support/uring.rs"]
mod uring;

/// The example checks what it prints.
#[test]
fn the_example_works() {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(support::watchdog(support::LIMIT, registration_cache::run()))
        .expect("an example that works");
}
