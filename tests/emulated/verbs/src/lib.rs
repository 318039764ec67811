#![allow(unsafe_code)]
//! An emulated libibverbs and librdmacm: two devices, `emu0` and `emu1`, joined within one process.
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
//! Requests are carried out when they are posted, by the poster's thread; there is no time, no loss, and no second process. The extended
//! tables of newer libraries are absent, as in old ones.
//!
//! # Control
//! `wharf_emulated_verbs_control`: `fault LINES` (see `faults` of the common package; names are those of functions, and `completion` for the
//! next request carried out, whose status is then the code), `clear`, `event DEVICE KIND ELEMENT`, `dmabuf 1` (the devices take dma-bufs; so does `EMULATED_VERBS_DMABUF=1`), `late 1` (or `EMULATED_VERBS_LATE=1`) (the second half of what they write there comes when the same device reads, or the memory's driver flushes), `peermem 1` (memory of the emulated CUDA driver is registered by its address), `behind` (how many writes have not come), `break DEVICE cq|srq|qp` (all of them fail, and it is told), `port DEVICE STATE`, `cm KIND` (an event of connections), `misuses`, `live` (objects that are
//! not destroyed), `left` (the same, by kind), `count FUNCTION`.
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are good for the call. Objects are boxes that stay until they are destroyed;
//! all state is under one lock.

mod abi;
mod cm;
mod exports;
mod world;
