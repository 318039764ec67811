//! An emulated libhl-thunk: the exported names of its interface of 2023, for tests on machines without a Gaudi card.
//!
//! It is as strict as the kernel's driver, and stricter where a mistake would go well by luck there:
//! * one owner for each card, across processes; a card is busy while any copy of its descriptor, a mapping of a command buffer or a dma-buf
//!   is open anywhere, and in reset for a while after that;
//! * device memory is never host memory: its addresses are not canonical and lead nowhere but through a copy;
//! * packets are read when their turn comes, on a thread for each queue with random delays, so that queues overtake each other; packets
//!   without an engine barrier are done in any order; host memory or mappings that have gone by then are a page fault of the card;
//! * a fault aborts all that runs, tells the notifier, and every later call is `EBUSY` until the card is closed;
//! * the kernel's memory of 64 ends: an older one went well, whatever happened. A submission when all 64 are running is held up and counted.
//!
//! What it cannot show: speed, visibility and order of the card's writes, which rules the silicon and its firmware keep, that the kernel pins
//! pages (a range that was unmapped and mapped anew is not told from the old one). What is not emulated: anything but `LIN_DMA`, internal queues
//! of the first Gaudi, kernels, interrupts, copies on Gaudi 3.
//!
//! # Loading
//! By path (`libwharf_emulated_hlthunk.so` beside the test's executable). A copy of the file under another name is another library with other
//! cards, which is how tests get one of their own.
//!
//! # Preloading
//! `LD_PRELOAD` lets a program's own `ioctl` come here, as `peer.rs` says: the kernel's call for which the library has no function.
//!
//! # Environment
//! `EMULATED_HLTHUNK_NAME` sets a number at the start; `settings.rs` has the names, their meaning and defaults. `EMULATED_HLTHUNK_FAULTS` is a
//! fault plan. `EMULATED_HLTHUNK_FOLDER` names a folder that processes share: then they share the ownership of the cards.
//! `EMULATED_HLTHUNK_VERSION` is the text of the version.
//!
//! # Control
//! `isize wharf_emulated_control(const char *command, char *answer, size_t room)` gives the answer's length, or -1 with a reason. Numbers are
//! decimal or begin with `0x`.
//!
//! | command | what it does |
//! |---|---|
//! | `set NAME VALUE`, `get NAME` | a setting; the answer of `set` is its old value |
//! | `fault PLAN…`, `fault clear`, `fault waiting` | `NAME[:CARD]@NTH[+]=ERRNO`, or `slow:MICROSECONDS`, `die:EVENTS` (the card is reset), `late:EVENTS` (what was queued resets it), `skip`; `*` is every name |
//! | `count NAME`, `counts`, `calls`, `trace` | calls of one name, of each, of all; the last ones with arguments and results |
//! | `misused`, `misuses` | what was done that works by luck or not at all |
//! | `forget`, `reset` | clears counts, trace and misuses; `reset` also faults and holds |
//! | `hold [CARD]`, `step CARD COUNT`, `release [CARD]` | keeps submissions from starting, lets some go, lets all go |
//! | `state CARD NUMBER`, `busy CARD 0\|1` | how a card says it is; whether a stranger has it |
//! | `break CARD EVENTS` | resets a card, and tells the notifier |
//! | `abort CARD` | aborts what runs, without a reset |
//! | `fill CARD ADDRESS LEN SEED`, `compare CARD ADDRESS LEN SEED` | device memory: the pattern of the common crate |
//! | `dmabuf FD` | what a dma-buf is of: place, offset and length, read from the descriptor alone |
//! | `live` | how many sessions, allocations, mappings, buffers, exports, … there are |

// A header's numbers are of all widths; the conversions are what the ABI means.
#![allow(clippy::cast_possible_truncation)]

mod abi;
mod control;
mod dmabuf;
mod execute;
mod exports;
mod gate;
mod hold;
mod memory;
mod node;
mod peer;
mod session;
mod settings;
mod submit;
