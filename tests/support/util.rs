//! What the library's sources that a test program compiles into itself take from `crate::util`.

// None of them uses all of it.
#![allow(dead_code)]

#[path = "../../src/util/lock.rs"]
pub(crate) mod lock;
#[path = "../../src/util/secret.rs"]
pub(crate) mod secret;
