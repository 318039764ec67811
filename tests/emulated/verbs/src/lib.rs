#![allow(unsafe_code)]
//! An emulated libibverbs and librdmacm: two devices, `emu0` and `emu1`, on one network, which ends with the process or joins many.
//!
//! As strict as hardware, and stricter where a mistake would go well by luck there:
//! * keys are checked for every piece at every request: domain, range, rights; memory must be mapped when it is registered (`EFAULT`);
//! * a send queue's room comes back only when a completion that covers it is polled; more is `ENOMEM`;
//! * a queue for completions that overflows fails, and with it what uses it;
//! * a queue pair goes from state to state as it may (`EINVAL`), and fails with its first error; all else is flushed;
//! * a message without receive waits for one (retries 7), or fails;
//! * what others stand on is not destroyed (`EBUSY`), and a device that closes with anything left is a misuse;
//! * arming tells of what completes after it, not of what is there, and fails (`EIO`) when the device was said to have ended.
//!
//! Programs that were linked against rdma-core's library run on it unchanged, where it has the name `libibverbs.so.1` in `LD_LIBRARY_PATH`: names
//! have their versions (`build.rs` says where not), contexts have the table of rdma-core 44 before them, of which the calls for ports, devices, extended
//! queues for completions and extended queue pairs are there. `old 1` takes the table away, and the call for tables of
//! GIDs, as in old libraries.
//!
//! # One process, and many
//! Requests are carried out when they are posted, by the poster's thread; there is no time and no loss. Each process has devices of its own, which
//! reach nobody else's, unless `EMULATED_VERBS_FOLDER` names a folder: processes that name the same one have theirs on one network. A
//! queue pair there may be connected to one of another process, whose `emu0` and `emu1` have the same GIDs as this one's: its number
//! tells whose it is. What is posted to it is carried out by a thread of that process (`wire`), one request of a queue pair after the
//! other. Whoever dies, or is not where it receives, answers nothing: requests to
//! it are sent again as their queue pair says, but for half a second at most, and end. At most 255 processes are in a
//! folder at once. Connections by address (`cm`) are within one process all the same.
//!
//! # Environment
//! Read when the devices are first asked for: `EMULATED_VERBS_FAULTS` is a fault plan, `EMULATED_VERBS_JOURNAL` names a file that is written when the process
//! ends (`live NUMBER`, `count NAME NUMBER`, `misuse WHAT`), and `DMABUF`, `LATE`, `LOST` and `OLD` with the same prefix and the value 1 are as
//! below.
//!
//! # Control
//! `wharf_emulated_verbs_control`: `fault LINES` (see `faults` of the common package; names are those of functions, and `completion` for the
//! next request carried out, whose status is then the code), `clear`, `event DEVICE KIND ELEMENT`, `dmabuf 1` (the devices take dma-bufs), `lost 1` (whatever is sent gets lost, and nobody tells), `late 1` (the second half of what they write there comes when the same device reads, or the memory's driver flushes), `peermem 1` (memory of the emulated CUDA driver is registered by its address), `behind` (how many writes have not come), `break DEVICE cq|srq|qp` (all of them fail, and it is told), `port DEVICE STATE`, `cm KIND` (an event of connections), `misuses`, `live` (objects that are
//! not destroyed), `left` (the same, by kind), `old 1` (contexts that are opened then are as of an old library), `count FUNCTION`.
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are good for the call. Objects are boxes that stay until they are destroyed;
//! all state is under one lock.

mod abi;
mod bytes;
mod carry;
mod children;
mod cm;
mod completion;
mod completion_ex;
mod connection;
mod control;
mod device;
mod environment;
mod extended;
mod frame;
mod memory;
mod plan;
mod post;
mod queue;
mod queue_ex;
mod station;
mod text;
#[cfg(symbol_versions)]
mod versions;
mod wire;
mod world;
