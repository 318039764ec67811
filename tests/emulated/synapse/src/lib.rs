//! An emulated Synapse: the exported names of `libSynapse.so` that copies need, for tests on machines without a Gaudi.
//!
//! It is as strict as the real one, and stricter where a mistake would go well by luck there:
//! * nothing works before `synInitialize` (28) and without an acquired device (8); a process has one device, a device one process;
//! * device addresses are not canonical (Gaudi2 and 3): whoever takes them for pointers faults. Memory that is not allocated when a copy's turn comes
//!   is a page fault of the device: it is lost (17), with every call after it;
//! * host memory that is not mapped is refused (34); what was unmapped, or has gone, before a copy's turn comes loses the device;
//! * a stream has a queue and a thread for each direction. They run late, with random delays, and in any order to each other, unless events order them;
//! * a source is read, and a target written, when the copy's turn comes.
//!
//! What it cannot show: the speed and the memory order of a device, graphs and kernels. That overlapping maps are refused, and which statuses
//! wrong calls get, is this emulator's choice where no source says it.
//!
//! # Environment
//! `EMULATED_SYNAPSE_NAME` sets a number at the start; the names, their meaning and defaults stand in `settings.rs`. `EMULATED_SYNAPSE_FAULTS` is a
//! fault plan. `EMULATED_HLTHUNK_FOLDER` names the folder that keeps processes, and the emulated hl-thunk, from having one card at once; without it they
//! do not know of each other. A copy of the file that lacks `synDeviceGetInfoV2`, with `EMULATED_SYNAPSE_SMALL=1`, is the small SynapseAI_Core.
//!
//! # The device's descriptor
//! It is a memory file that says which card it is: `gaudi.rs` of the common parts. The emulated SCAL and hl-thunk know it by that, in any process.
//!
//! # Control
//! `isize wharf_emulated_control(const char *command, char *answer, size_t room)` gives the answer's length, or -1 with a reason. Numbers are
//! decimal or begin with `0x`.
//!
//! | command | what it does |
//! |---|---|
//! | `set NAME VALUE`, `get NAME` | a setting; the answer of `set` is its old value |
//! | `fault PLAN…`, `fault clear`, `fault waiting` | `NAME[:CARD]@NTH[+]=CODE`, or `slow:MICROSECONDS`, `die:CODE`, `late:CODE`, `skip`; `*` is every name |
//! | `count NAME`, `counts`, `calls`, `trace` | calls of one name, of each, of all; the last 4,096 |
//! | `misused`, `misuses` | what must not be done |
//! | `forget`, `reset` | clears counts, trace and misuses; `reset` also faults and holds |
//! | `hold DIRECTION`, `release` | keeps copies of a direction (0, 1, 2, or `all`) from starting; lets all go |
//! | `lose CODE` | the device is lost: every call gives the code, 17 for a reset |
//! | `fill ADDRESS LEN SEED`, `compare ADDRESS LEN SEED`, `digest ADDRESS LEN` | device memory: writes the pattern; `same` or the first wrong byte; FNV-1a |
//! | `live` | how many streams, events, allocations, mappings and bytes there are |
//!
//! # Where things are
//! `abi` types of the header; `gate` what every function does first; `exports` the names; `device`, `memory`, `stream` the work; `settings`, `control`
//! the rest. Tests: `tests/driver/synapse.rs`, by wharf's own loader.

// A header's numbers are of all widths; the conversions are what the ABI means.
#![allow(clippy::cast_possible_truncation)]

mod abi;
mod control;
mod device;
mod exports;
mod gate;
mod memory;
mod settings;
mod stream;
