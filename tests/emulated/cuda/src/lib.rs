//! An emulated CUDA driver: the driver API's exported names, for tests on machines without a device.
//!
//! It is as strict as the real one, and stricter where a mistake would go well by luck there:
//! * device addresses fault when the host touches them (`SIGSEGV`; `write(2)` and `process_vm_readv` give `EFAULT`);
//! * copies happen late, on a thread for each stream, with random delays, so streams overtake each other; sources are read
//!   when the copy's turn comes; memory that has gone by then breaks the context (700) and every call after it;
//! * contexts are each thread's own stack; a stream or event of another context, a missing suffix, a call from a host
//!   function, an overlap of registered memory are errors, or end the process with a message;
//! * memory, events and pools cross processes.
//!
//! Kernels run from their PTX, as much of it as `wharf-emulated-ptx` reads, on a memory as weak as the text allows; a text that is beyond it is
//! refused (218), with the line on stderr. Launches of wharf's own kernels are looked at more closely (`kernels`).
//!
//! What it cannot show: the speed of a device, contention in a driver. libcudart does not run on it (its private tables are nowhere documented).
//!
//! # Loading
//! By path (`libwharf_emulated_cuda.so` beside the test's executable), or copied to a folder as `libcuda.so.1` for a program
//! that knows nothing of it. One process has one driver; a copy of the file under another name is another driver.
//!
//! # Environment
//! `EMULATED_CUDA_NAME` sets a number at the start; the names, their meaning and defaults stand in `settings.rs`. The ones
//! that tests want: `DEVICES` (2), `MEMORY` (16 GiB each), `VERSION` (13000), `DELAY_US` (50), `PEERS`, `PAGEABLE`, `REUSE`,
//! `FREE_WAITS`, `FETCH`, `FABRIC`, `MULTICAST`, `LATENCY_NS`, `BANDWIDTH_MBS`, `HANG_MS`. `EMULATED_CUDA_FAULTS` is a fault plan.
//! `EMULATED_CUDA_JOURNAL` names a file that is written when the process ends: `count NAME NUMBER` for each function that was called,
//! `misuse …` for each misuse, `cpu MICROSECONDS`.
//! `CUDA_VISIBLE_DEVICES` works as on the real driver.
//!
//! # Control
//! `isize wharf_emulated_control(const char *command, char *answer, size_t room)` gives the answer's length, or -1 with a
//! reason. Numbers are decimal or begin with `0x`.
//!
//! | command | what it does |
//! |---|---|
//! | `set NAME VALUE`, `get NAME` | a setting; the answer of `set` is its old value |
//! | `fault PLAN…`, `fault clear`, `fault waiting` | `NAME[:DEVICE]@NTH[+]=CODE`, or `slow:MICROSECONDS`, `die:CODE`, `late:CODE`, `skip`; `*` is every name |
//! | `count NAME`, `counts`, `calls` | calls of one name, of each, of all |
//! | `trace` | the last 4,096 calls: nanoseconds, thread, name, four arguments, result |
//! | `misused`, `misuses` | what was done that the real driver leaves undefined or that works by luck |
//! | `forget`, `reset` | clears counts, trace and misuses; `reset` also faults and holds |
//! | `hold [DEVICE]`, `step DEVICE COUNT`, `release [DEVICE]` | keeps queued operations from starting, lets some go, lets all go; `all` is every device |
//! | `openings` | openings of another process's memory that wait for `open_held` to be 0 |
//! | `break DEVICE CODE` | breaks the contexts of a device |
//! | `kernel STREAM MICROSECONDS [fill ADDRESS LEN SEED \| break CODE]` | queues what takes so long and then writes the pattern, or goes wrong |
//! | `memset ADDRESS LEN BYTE`, `fill ADDRESS LEN SEED` | writes at once |
//! | `compare ADDRESS LEN SEED` | `same`, or the first byte that differs |
//! | `digest ADDRESS LEN` | 64 bits of FNV-1a in hexadecimal |
//! | `live` | how many contexts, streams, events, pools, bytes, allocations, … there are |
//!
//! Byte `i` of the pattern `seed` is the highest byte of `(seed + i) × 0x9E3779B97F4A7C15`, wrapping.
//!
//! # Where things are
//! `abi` types of the header; `gate` what every function does first; `exports` the names; `context`, `stream`, `event`,
//! `memory`, `host`, `vmm`, `pool`, `ipc`, `pointer`, `copy`, `kernels` the work; `pin` what the emulated GDRCopy asks for; `device`, `settings`, `control` the rest. Tests: `tests/emulated/stranger_cuda`,
//! by the loader, as a stranger.

// A header's numbers are of all widths; the conversions are what the ABI means.
#![allow(clippy::cast_possible_truncation)]

mod abi;
mod at_exit;
mod at_fork;
mod context;
mod control;
mod copy;
mod device;
mod driver;
mod event;
mod exports;
mod gate;
mod host;
mod ipc;
mod kernels;
mod memory;
mod objects;
mod pin;
mod pointer;
mod pool;
mod settings;
mod show;
mod stream;
mod vmm;
