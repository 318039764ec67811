//! An emulated HSA runtime: the exported names of ROCm's `libhsa-runtime64.so.1` that copies and sharing need, for tests on machines without a device.
//!
//! It is as strict as the real one, and stricter where a mistake would go well by luck there:
//! * device addresses fault when the host touches them, unless the devices have a large BAR (`bar`);
//! * locked host memory has **another address for agents**; a copy that is given the host's, or memory that its agent was not allowed to reach, is a memory
//!   fault: the system event handlers are called, and without one the process ends, as on the real runtime. What was under way on that device is never done;
//! * copies happen late, on threads, with random delays, and in any order but that of the signals they wait for;
//! * a copy of no bytes succeeds and never touches its signal; a signal that became negative never is 0, so what waits for it never begins;
//! * a dma-buf begins before the memory that was exported; a handle is made for exact allocations only, and lives with its process;
//! * a destroyed signal in a call ends the process with a message.
//!
//! What it cannot show: the speed, caches and memory order of a device, queues and kernels, virtual memory (`hsa_amd_vmem_*`).
//!
//! # Loading
//! By path (`libwharf_emulated_hsa.so` beside the test's executable). One process has one runtime; a copy of the file under another name is another one. An
//! older runtime is a copy that lacks names.
//!
//! # Environment
//! `EMULATED_HSA_NAME` sets a number at the start; names, meaning and defaults stand in `settings.rs`. `EMULATED_HSA_FAULTS` is a fault plan.
//!
//! # Control
//! `isize wharf_emulated_control(const char *command, char *answer, size_t room)` gives the answer's length, or -1 with a reason. Numbers are decimal or begin
//! with `0x`. Devices are counted from 0.
//!
//! | command | what it does |
//! |---|---|
//! | `set NAME VALUE`, `get NAME` | a setting; the answer of `set` is its old value |
//! | `fault PLAN…`, `fault clear`, `fault waiting` | `NAME[:DEVICE]@NTH[+]=STATUS`, or `slow:MICROSECONDS`, `skip`; of copies also `late:NUMBER` (the signal becomes minus that), `die:0` (the device fails) |
//! | `count NAME`, `counts`, `calls`, `trace` | calls of one name, of each, of all; the last 4,096. `handler` counts handlers that ran |
//! | `misused`, `misuses` | what was done that the real runtime leaves undefined or that works by luck |
//! | `forget`, `reset` | clears counts, trace and misuses; `reset` also faults and holds |
//! | `hold [DEVICE]`, `step DEVICE COUNT`, `release [DEVICE]` | keeps copies from starting, lets some go, lets all go |
//! | `break DEVICE` | the device fails with a hardware exception |
//! | `memset ADDRESS LEN BYTE`, `fill ADDRESS LEN SEED` | writes at once, at agents' addresses |
//! | `compare ADDRESS LEN SEED`, `digest ADDRESS LEN` | `same`, or the first byte that differs; 64 bits of FNV-1a |
//! | `live` | how many allocations, locks, signals, … there are |
//!
//! # Where things are
//! `abi` types of the headers; `gate` what every function does first; `exports` the names; `agent`, `memory`, `signal`, `copy`, `share`, `event` the work; `settings`,
//! `control` the rest. Tests: `tests/driver/hsa/`, through the driver.

// A header's numbers are of all widths; the conversions are what the ABI means.
#![allow(clippy::cast_possible_truncation)]

mod abi;
mod agent;
mod control;
mod copy;
mod event;
mod exports;
mod gate;
mod memory;
mod runtime;
mod settings;
mod share;
mod signal;
mod svm;
