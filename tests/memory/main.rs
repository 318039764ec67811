//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `device` | the device of the oracle is one |
//! | `matrix` | which monitor sees which change, as a table |
//! | `oracle` | random programs whose every transfer is compared with what a device saw, for each monitor and allocator |
//! | `reuse` | one thread unmaps, another maps the same addresses and transfers at once |
//! | `script` | the random program |
//! | `fork` | a child made by `fork` or `clone` is refused, its parent goes on |

mod device;
mod fork;
mod matrix;
mod oracle;
#[allow(dead_code)]
#[path = "../../examples/registration_cache.rs"]
mod registration_cache;
mod reuse;
mod script;
#[path = "../support/mod.rs"]
mod support;
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
