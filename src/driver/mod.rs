//! Vendor libraries, loaded at run time: symbols, structs, status codes, and a safe face over them.
//!
//! Comes in: the path of a library, or none; addresses that a device knows. Goes out: the driver as a value with typed calls, or an
//! error that says which names were tried and what the loader answered. Uses `error` and no other room: it knows neither buffers nor
//! transports. Nothing is linked: the same program runs on machines with and without the libraries.
//! Tests: `tests/driver/`, which compiles this room into itself.
//!
//! | folder | library | variable |
//! |---|---|---|
//! | `cuda` | `libcuda.so.1`, the CUDA driver | `WHARF_LIBCUDA` |
//! | `gdr` | `libgdrapi.so.2`, GDRCopy | `WHARF_LIBGDRAPI` |
//!
//! In each folder `sys.rs` holds what the library's header says, and `mod.rs` is the face that the rest of the crate sees. Nothing of a
//! vendor is initialised before a device is first used. A library is never unloaded: its functions may be called from any thread until
//! the process ends.

// The transports that use these rooms come one by one.
#![allow(
    dead_code,
    unused_imports,
    reason = "the transports that call it come after it"
)]

pub(crate) mod cuda;
pub(crate) mod gdr;
mod library;
