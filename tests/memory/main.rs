//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `fork` | a child made by `fork` or `clone` is refused, its parent goes on |

#[path = "../support/mod.rs"]
mod support;

mod fork;
