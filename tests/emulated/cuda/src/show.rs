#![allow(unsafe_code)]
//! Device memory that the host may touch: managed memory, and physical memory of the host's.
//!
//! # Safety
//! The addresses come from the memory's table, which reserved them and gives them to one user at a time.

use wharf_emulated_common::backing::Backing;

use crate::abi::{Outcome, Status};

/// Shows `len` bytes at `offset` at the address `at`, which the caller took from the table.
pub(crate) fn show(backing: &Backing, offset: u64, at: u64, len: u64) -> Outcome {
    // SAFETY: the caller holds the table, where the range is a reservation that nothing else uses.
    unsafe { backing.show(offset, at, len) }.map_err(|_| Status::OUT_OF_MEMORY)
}
