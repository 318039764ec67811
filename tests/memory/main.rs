//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `matrix` | which monitor sees which change, as a table |

mod matrix;
#[path = "../support/mod.rs"]
mod support;
