//! Vendor libraries, loaded at run time: symbols, structs, status codes, and a safe face over them.
//!
//! Comes in: the path of a library, or none; addresses that a device knows. Goes out: the driver as a value with typed calls, or an
//! error that says which names were tried and what the loader answered. Uses `error` and no other room: it knows neither buffers nor
//! transports. Nothing is linked: the same program runs on machines with and without the libraries.
//! Tests: `tests/driver/` and `tests/verbs/`, which compile this room into themselves.
//!
//! | folder | library | variable |
//! |---|---|---|
//! | `cuda` | `libcuda.so.1`, the CUDA driver | `WHARF_LIBCUDA` |
//! | `gdr` | `libgdrapi.so.2`, GDRCopy | `WHARF_LIBGDRAPI` |
//! | `hlthunk` | `libhl-thunk.so`, Intel's Gaudi cards | `WHARF_LIBHLTHUNK` |
//! | `scal` | `libscal.so`, what Synapse stands on | `WHARF_LIBSCAL` |
//! | `synapse` | `libSynapse.so`, the runtime of Intel Gaudi | `WHARF_LIBSYNAPSE` |
//! | `hsa` | `libhsa-runtime64.so.1`, the runtime under AMD's ROCm | `WHARF_LIBHSA` |
//! | `hip` | `libamdhip64.so`, where the program uses it | `WHARF_LIBHIP` |
//! | `verbs` | `libibverbs.so.1`, InfiniBand and RoCE | `WHARF_LIBIBVERBS` |
//! | `rdmacm` | `librdmacm.so.1`, their connections by IP address | `WHARF_LIBRDMACM` |
//!
//! What they share: `library` finds a library and its functions, `loaded` has each once, `forks` keeps children made by `fork` away, `status` is what all
//! status codes have. In each folder `sys.rs` holds what the library's header says, as far as it is used, and `mod.rs` is the face that the rest of the
//! crate sees; where it is a door alone, `driver.rs` below it finds the library and its functions. Nothing of a vendor is initialised before a device is
//! first used. A library is never unloaded: its functions may be called from any thread until
//! the process ends.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod forks;
#[cfg(feature = "cuda")]
pub(crate) mod gdr;
#[cfg(feature = "rocm")]
pub(crate) mod hip;
#[cfg(feature = "gaudi")]
pub(crate) mod hlthunk;
#[cfg(feature = "rocm")]
pub(crate) mod hsa;
mod library;
mod loaded;
#[cfg(feature = "verbs")]
pub(crate) mod rdmacm;
#[cfg(feature = "gaudi")]
pub(crate) mod scal;
mod status;
#[cfg(feature = "gaudi")]
pub(crate) mod synapse;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
