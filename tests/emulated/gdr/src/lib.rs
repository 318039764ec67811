#![allow(unsafe_code)]
//! An emulated GDRCopy: the exported names of `libgdrapi.so.2`, over the memory of the emulated CUDA driver that the process has loaded.
//!
//! As strict as the library with its kernel module, and stricter where a mistake would go well by luck there:
//! * what is pinned are whole pages of the device's 64 KiB, live memory from `cuMemAlloc` alone (`EINVAL`), and no more than BAR1 holds (`ENOMEM`);
//! * a window is mapped once, whole (`EAGAIN`, `EINVAL`), unmapped as it was mapped, unpinned when it is unmapped (`EBUSY`), and closed
//!   after that; what a closing leaves is a misuse in the CUDA emulator's journal;
//! * when memory is freed its windows go: an access then ends the process. A copy of bytes that are freed while their pages are not is a misuse;
//! * handles are never used again, and belong to their session and process: a child made by `fork` gets `EACCES`.
//!
//! Calls are counted, and faults strike, in the CUDA emulator's journal and plan, by name; a fault's code is the errno.
//!
//! # Environment
//! `EMULATED_GDR_OPEN=0`: the kernel's part is not there. `EMULATED_GDR_BAR1`: bytes of BAR1, 256 MiB without. Both are read by `gdr_open`.
//!
//! Tests: `tests/emulated/stranger_cuda/gdr.rs`.
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are good for the call; null is checked. Mappings are made and taken here
//! alone. Functions of the CUDA emulator have the types of its `pin.rs`.

mod cuda;
mod exports;
mod table;
