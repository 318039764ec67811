//! An emulated Synapse: the exported names of `libSynapse.so` that a program needs which copies, for tests on machines without a Gaudi.
//!
//! It is as strict as the real one, and stricter where a mistake would go well by luck there:
//! * nothing works before `synInitialize` (28) but the version and the statuses' texts; a process has one device, a device one process;
//! * device addresses are not canonical (Gaudi2 and 3): whoever takes them for pointers faults. Memory that is not allocated when a copy's turn comes,
//!   by one byte, is a page fault of the device: it is lost (17), with every call after it;
//! * host memory that is not mapped is refused (34); what has gone before a copy's turn comes loses the device;
//! * memory that is freed or unmapped while a copy under way uses it loses the device at once;
//! * a stream has a queue and a thread for each direction. They run late, with random delays, and in any order to each other, unless events order them;
//! * a source is read, and a target written, when the copy's turn comes;
//! * new device memory does not hold zeros.
//!
//! What it cannot show: the speed and the memory order of a device, graphs, tensors and kernels; the order that a runtime may keep in one stream.
//!
//! # Where the answers come from
//! The header (2025) gives the signatures, the numbers and these rules: a stream with work in it is not destroyed (22); flags that must be 0; an event
//! that a stream waits for is of another stream; `synEventElapsedTime`; a wished address is a wish; a second `synInitialize` is none unless
//! `HABANA_DISABLE_DOUBLE_SYN_INITIALIZE` is set (29).
//!
//! A runtime of 2024, whose source is public, gives these: what a call says without a device (26, in most; to map and to unmap 1; to release 8); 26 for
//! flags of memory, for device memory freed twice, for an event destroyed twice, for a release while another thread is in a call; 33 for an event that is
//! none and 1 for a stream that is none; 1 for a copy from or to address 0; 18 for an attribute that is none, with the others written; 9 for a device
//! type that no card has; 28 for a second `synDestroy`.
//!
//! Where they differ, and where neither says anything, it is this emulator's choice:
//! * the runtime waits in `synStreamDestroy`; here it is 22, as the header says;
//! * the runtime ends a process that asks about an event that was never recorded; here it is passed, as the header says, and a misuse;
//! * the runtime takes in silence, and here is refused: no bytes to allocate (1); null and what is not mapped to free or unmap (1, device memory 26), to
//!   free without a device (26), memory of `synHostMalloc` to unmap and mapped memory to `synHostFree` (1), memory to map that is mapped already (1). All
//!   but the first, the last and what has no device are misuses;
//! * the runtime looks at no device number; here any but 0 is 8, and a misuse;
//! * flags of streams, and of events but `EVENT_COLLECT_TIME`, are refused (1), and so is a null result or a text without room;
//! * overlapping maps are refused (1); several copies in one call are all refused when one is; copies of 4 GiB and more are (1);
//! * `synDestroy` releases a device that is acquired, as the runtime does, and that is a misuse; what is left at a release is one as well;
//! * in a forked child every call gives 28; where a device was lost, every call gives its status, though a runtime may end the process;
//! * a status is described by its name; a card's clock and its masks are made up; attributes of graphs are unknown (18).
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
//! | `live` | how many streams, events, allocations, mappings, pieces of `synHostMalloc` and bytes there are |
//! | `inside` | how many calls are under way with the device |
//!
//! # Where things are
//! `abi` types of the header; `gate` what every function does first; `exports` the names; `device`, `memory`, `stream` the work; `settings`, `control`
//! the rest. Tests: `tests/driver/synapse.rs`, by wharf's own loader; `tests/emulated/stranger_synapse`, by the header alone.

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
