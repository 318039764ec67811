//! An interpreter of a part of PTX, on a memory as weak as the text allows.
//!
//! In: the text of a module, a launch, and a [`Memory`] that lies beyond the device. Out: what the threads did there. It knows no driver: the emulated
//! CUDA driver runs kernels by it, and the tests of this package run wharf's own kernels with a word of their text changed.
//!
//! # The memory
//! ```text
//! thread   stores that nobody else has seen yet, a few
//! block    lines of 64 bytes: those that were written, those that were read
//! device   the same, for all blocks and launches
//! beyond   what the host, other devices and other processes see
//! ```
//! * A plain store goes down floor by floor, each at a moment that a seeded generator picks, and not in the order of the program: only stores to the same
//!   bytes keep theirs. A plain load may be answered by what an earlier one has brought, on any floor.
//! * A relaxed (or volatile) store lingers in its thread as well, and goes from there to the floor of its scope: `.cta` the block, `.gpu` the device,
//!   `.sys` beyond. A relaxed load and an atomic are done there at once.
//! * A release at a scope moves all that was written above its floor to that floor first, an acquire forgets all that was read above it; a fence does
//!   both. `bar.sync` moves the stores of the block's threads to the block.
//! * What a block's threads wrote comes to the device at the block's end. What is on the device goes beyond by [`Device::settle`]: whoever embeds this
//!   calls it where the host may look.
//!
//! So a text that lacks a release or an acquire fails with some seed, if what it should have ordered can be seen. What the model does not do, and so does
//! not show: a store is never done before a load in front of it; an acquire at `.cta` orders nothing, as threads of a block read the same lines; a release
//! moves what others of its block or device wrote, too, whether or not this thread has seen it; a plain store that no release follows is seen at the
//! block's end at the latest.
//!
//! # The text
//! PTX as `parse` reads it: functions and entries with parameters by value, registers of up to 64 bits, `call`, loads, stores and atomics of all orders and
//! scopes in global memory, vectors of 2 and 4, arithmetic of integers, `bar.sync`, fences, `nanosleep`. No memory of other spaces, no floating point
//! but as bits, no textures. All else is an error that names the line.
//!
//! Threads are interleaved by the same generator: one seed is one run, as far as nothing beyond the device moves by itself.

mod caches;
mod execute;
mod launch;
mod memory;
mod parse;
mod program;

pub use caches::Device;
pub use launch::{Grid, Launch, Turn};
pub use memory::{Bytes, Fault, Memory};
pub use parse::Malformed;
pub use program::{Function, Parameter, Program};
