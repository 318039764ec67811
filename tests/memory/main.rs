//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `device` | the device of the oracle is one |
//! | `matrix` | which monitor sees which change, as a table |
//! | `oracle` | random programs whose every transfer is compared with what a device saw, for each monitor and allocator |
//! | `reuse` | one thread unmaps, another maps the same addresses and transfers at once |
//! | `script` | the random program |

mod device;
mod matrix;
mod script;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/uring.rs"]
mod uring;
