//! The parts of the room that the code under test uses.
#![allow(dead_code)]

#[path = "../../src/sys/fd_passing.rs"]
pub(crate) mod fd_passing;
#[path = "../../src/sys/identity.rs"]
pub(crate) mod identity;
#[path = "../../src/sys/process.rs"]
pub(crate) mod process;
