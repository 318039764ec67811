//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|

#[path = "../support/mod.rs"]
mod support;
