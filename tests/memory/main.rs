//! Memory events, the memory-type cache and the registration cache, by what a program sees of them.
//!
//! | file | holds |
//! |---|---|
//! | `domain` | experts for memory: asked, allocating, exporting |
//! | `expert` | a device that is not there, for the others |
//! | `fork` | a child made by `fork` or `clone` is refused, its parent goes on |
//! | `matrix` | which monitor sees which change, as a table |
//! | `memtype` | what is known of memory by its address |
//! | `pool` | buffers that stay registered |

mod matrix;
#[path = "../support/mod.rs"]
mod support;

mod domain;
mod expert;
mod fork;
mod memtype;
mod pool;
