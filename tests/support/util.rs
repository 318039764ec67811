//! What the library's sources that a test program compiles into itself take from `crate::util`.

#[path = "../../src/util/lock.rs"]
pub(crate) mod lock;
