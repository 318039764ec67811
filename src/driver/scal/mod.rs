//! SCAL, the layer between Synapse and a Gaudi: asked where the memory pool lies out of which everything in this process is allocated.
//!
//! Comes in: the path of a library, or none, and the file descriptor of a device. Goes out: [`Scal`]; from it a [`Handle`], from that what a pool is ([`PoolInfo`]).
//! Uses `library`. Tests: `tests/driver/scal.rs`.
//!
//! A handle is there in the process alone in which SCAL was set up on just this descriptor, by Synapse ([`Scal::attach`]); nothing is set up here.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library that is never unloaded. A call gets live local variables, larger than
//! the header says where the library writes a struct. A handle is somebody else's, and looked up again for each use, so it is not used after it has
//! gone, unless that happens at the very moment.
#![allow(unsafe_code)]

mod sys;

use std::{ffi::CString, fmt, os::fd::RawFd, path::Path};

use super::{
    library::{Library, Search, names},
    loaded::Loaded,
    status::status,
};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBSCAL";

/// By the loader's search first, then where the packages put it.
const NAMES: &[&str] = &["libscal.so", "/usr/lib/habanalabs/libscal.so"];

/// The pool that all of a program's device memory comes from.
pub(crate) const GLOBAL_HBM: &str = "global_hbm";

/// What SCAL answers: 0, or a negative number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    /// The name in the header, kind and phrase.
    const fn known(self) -> Option<(&'static str, ErrorKind, &'static str)> {
        Some(match self.0 {
            0 => ("SCAL_SUCCESS", ErrorKind::Io, "no error"),
            -1 => (
                "SCAL_FAILURE",
                ErrorKind::Io,
                "SCAL does not say what failed",
            ),
            -2 => (
                "SCAL_TIMED_OUT",
                ErrorKind::DeadlineExceeded,
                "it took too long",
            ),
            -3 => (
                "SCAL_FW_LOAD_ERROR",
                ErrorKind::Io,
                "the firmware was not loaded",
            ),
            -4 => (
                "SCAL_INVALID_PARAM",
                ErrorKind::InvalidArgument,
                "an argument is not one that SCAL takes",
            ),
            -5 => ("SCAL_OUT_OF_MEMORY", ErrorKind::Exhausted, "out of memory"),
            -6 => ("SCAL_NOT_READY", ErrorKind::Io, "the device is not ready"),
            -7 => (
                "SCAL_RESET_REQUIRED",
                ErrorKind::DeviceLost,
                "the device needs a reset, and nothing on it goes on",
            ),
            -8 => (
                "SCAL_INVALID_CONFIG",
                ErrorKind::Configuration,
                "the configuration is wrong",
            ),
            -11 => (
                "SCAL_NOT_FOUND",
                ErrorKind::InvalidArgument,
                "SCAL does not find it",
            ),
            -12 => (
                "SCAL_NOT_IMPLEMENTED",
                ErrorKind::Unsupported,
                "this library does not have it",
            ),
            _ => return None,
        })
    }
}

status!(Code, success: Self(0));

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, _, phrase)) => write!(f, "{phrase} ({name}, {})", self.0),
            None => write!(f, "SCAL error {}", self.0),
        }
    }
}

/// SCAL's library in this process.
pub(crate) struct Scal {
    api: sys::Symbols,
    library: Library,
}

/// Every library that was loaded.
static LOADED: Loaded<Scal> = Loaded::new();

/// A function that every such library has.
const ANCHOR: &str = "scal_get_handle_from_fd";

impl Scal {
    /// The library if this process has it loaded already. Loads nothing: where Synapse has not, no descriptor has a handle.
    pub(crate) fn resident(path: Option<&Path>) -> Option<&'static Self> {
        LOADED.resident(&Self::search(path), ANCHOR, Self::with_library)
    }

    fn search(given: Option<&Path>) -> Search<'_> {
        Search {
            what: "SCAL",
            given,
            variable: VARIABLE,
            names: NAMES,
        }
    }

    fn with_library(library: Library) -> Result<Self> {
        let find = |name: &'static str, _| library.find(name);
        // SAFETY: exact names of a library with that file name.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| {
            let text = format!("{} has no {}", library.name(), names(&missing));
            Error::new(ErrorKind::Unsupported, text)
        })?;
        tracing::debug!(target: "wharf::gaudi", "loaded {}", library.name());
        Ok(Self { api, library })
    }

    /// What was set up on this very descriptor (a duplicate will not do), in this process. Sets nothing up.
    /// Errors: `Unsupported`: nothing was, here; what SCAL reports beyond that.
    pub(crate) fn attach(&'static self, fd: RawFd) -> Result<Handle> {
        self.find(fd)?;
        Ok(Handle {
            scal: self,
            fd,
            process: std::process::id(),
        })
    }

    fn find(&self, fd: RawFd) -> Result<sys::RawHandle> {
        let mut raw = 0;
        // SAFETY: takes a number, writes one handle.
        let code = Code(unsafe { (self.api.scal_get_handle_from_fd)(fd, &raw mut raw) });
        match code {
            // What the library says of a descriptor that it does not know.
            Code(-1 | -11) => {
                let text = format!(
                    "scal_get_handle_from_fd of descriptor {fd}: SCAL is not set up on it in this process; acquire the device by Synapse first ({code})"
                );
                Err(Error::new(ErrorKind::Unsupported, text).with_source(code))
            }
            code => {
                code.check("scal_get_handle_from_fd")?;
                if raw == 0 {
                    let text = "scal_get_handle_from_fd succeeded without a handle";
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Ok(raw)
            }
        }
    }
}

impl fmt::Debug for Scal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scal")
            .field("library", &self.library.name())
            .finish_non_exhaustive()
    }
}

/// SCAL on one card.
#[derive(Debug)]
pub(crate) struct Handle {
    scal: &'static Scal,
    fd: RawFd,
    process: u32,
}

impl Handle {
    /// A memory pool, by its name in SCAL's configuration: [`GLOBAL_HBM`].
    /// Errors: `InvalidArgument`: there is no such pool; `Unsupported`: SCAL has been taken down; `Forked`; what SCAL reports.
    pub(crate) fn pool(&self, name: &str) -> Result<PoolInfo> {
        if self.process != std::process::id() {
            return Err(Error::new(
                ErrorKind::Forked,
                "SCAL was set up before this process was forked; it cannot be used in the child",
            ));
        }
        let text = CString::new(name).map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, "a pool's name with a zero byte")
        })?;
        let raw = self.scal.find(self.fd)?;
        let api = &self.scal.api;
        let mut pool = 0;
        // SAFETY: a handle that was just found, and a string that lives through the call; writes one handle.
        let code = unsafe { (api.scal_get_pool_handle_by_name)(raw, text.as_ptr(), &raw mut pool) };
        Code(code).check(&format!("scal_get_pool_handle_by_name of {name:?}"))?;
        let mut room = sys::InfoRoom::zero();
        // SAFETY: the pool lives as long as its handle; writes a struct into room of 4,096 bytes.
        let code = unsafe { (api.scal_pool_get_infoV2)(pool, (&raw mut room).cast()) };
        Code(code).check("scal_pool_get_infoV2")?;
        PoolInfo::new(&room.info)
    }
}

/// A memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolInfo {
    /// The device's address of its first byte.
    pub(crate) base: u64,
    /// Its bytes.
    pub(crate) total: u64,
    /// Those that are free.
    pub(crate) free: u64,
    /// Where the mapping begins that the pool lies in: what an export as a dma-buf takes, with `base - allocated_base` as the offset.
    pub(crate) allocated_base: u64,
}

impl PoolInfo {
    /// Reads what the library wrote.
    ///
    /// # Errors
    /// `Io`: it cannot be.
    fn new(raw: &sys::RawPoolInfo) -> Result<Self> {
        let fits = raw.device_base.checked_add(raw.total).is_some();
        if raw.device_base == 0
            || raw.total == 0
            || !fits
            || raw.free > raw.total
            || raw.device_allocated_base == 0
            || raw.device_allocated_base > raw.device_base
        {
            let text = format!(
                "scal_pool_get_infoV2 answered what cannot be: {} of {} bytes free at {:#x}, allocated at {:#x}",
                raw.free, raw.total, raw.device_base, raw.device_allocated_base
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(Self {
            base: raw.device_base,
            total: raw.total,
            free: raw.free,
            allocated_base: raw.device_allocated_base,
        })
    }
}
