//! libhl-thunk, the lowest public interface to Intel's Gaudi cards: found, refused, and its cards.
//!
//! Comes in: the path of a library, or none. Goes out: [`HlThunk`], one for each library file and process; from it the cards of this
//! machine as [`CardInfo`], and [`Card`], one of them opened; from that memory, command rings and the notifier. Uses `library`.
//! Tests: `tests/driver/`.
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the headers say |
//! | `driver` | the library: found, refused, its functions |
//! | `status` | what each error number means, with a remedy |
//! | `physical` | which ranges of the first Gaudi's memory are in use |
//! | `flights` | the submissions whose end nobody has read |
//! | `device` | what a card is; control nodes; opening and closing |
//! | `memory` | device memory, mapped host memory, dma-bufs |
//! | `import` | memory of other cards |
//! | `packets` | the packet that copies, for each chip |
//! | `submit` | command buffers, submissions and waits |
//! | `notifier` | what tells of faults and resets |
//!
//! # Ownership
//! One process at a time has a card: who opens it keeps others out. Control nodes are anybody's; discovery opens nothing else. A card
//! that was given back may be in reset for seconds.
//!
//! # What may block
//! Everything but the wait of no time, the submission and the notifier's look: they are system calls that pin pages, program page tables or
//! wait for a reset. They belong on a thread that may block.
//!
//! # The interface of 2021
//! Some names of it take other arguments, so a library of that time is refused with its version.
//!
//! # The profiler's library
//! Opening a card has libhl-thunk look for `libhl_shim.so`, the vendor's profiler, unless the program's environment has
//! `HABANA_SHIM_DISABLE=1`. That is the library's own and is left alone here: a program may not change its environment while it runs.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library of the right generation that is never unloaded (it has a
//! destructor). A call gets pointers to live local variables, larger than what the headers say, and descriptors that this room opened and
//! keeps open, or that the caller vouches for.
#![allow(unsafe_code)]

mod device;
mod driver;
mod flights;
mod import;
mod memory;
mod notifier;
mod packets;
mod physical;
mod status;
mod submit;
mod sys;

pub(crate) use device::{BusId, Card, CardInfo, Chip, State};
pub(crate) use driver::HlThunk;
pub(crate) use flights::IN_FLIGHT;
pub(crate) use import::PeerMemory;
pub(crate) use memory::{Allocation, HostMapping};
pub(crate) use notifier::Notifier;
pub(crate) use packets::{LinDma, PACKET};
pub(crate) use submit::{CommandRing, Queue, Submission};
