//! The HSA runtime of this process: its library, found and loaded once for each file, and its functions.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name; a call gets pointers to live local variables.
#![allow(unsafe_code)]

use std::{fmt, path::Path, sync::OnceLock};

use super::{
    RawAgent, Status,
    sys::{self, system},
    watchers::{Faults, FreedTable},
};
use crate::{
    driver::{
        forks::Initialised,
        library::{Absent, Library, MissingSymbol, Search, listed},
        loaded::Loaded,
    },
    error::{Error, ErrorKind, Result},
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBHSA";

const WHAT: &str = "the HSA runtime";

/// A function that every runtime has.
const ANCHOR: &str = "hsa_init";

/// The same in all releases of ROCm.
const NAMES: &[&str] = &["libhsa-runtime64.so.1"];

/// The kernel's driver.
const KFD: &str = "/dev/kfd";

/// One of these is there where a driver is loaded: on Linux, under Windows.
const PRESENCE: &[&str] = &[KFD, "/dev/dxg"];

/// The HSA runtime of this process. Loaded, not necessarily initialised.
pub(crate) struct Hsa {
    pub(super) api: sys::Symbols,
    library: Library,
    /// Whether this room holds its count.
    initialised: Initialised,
    /// All agents with the header's numbers of their kinds, in the runtime's order, once they were asked for.
    pub(super) agents: OnceLock<Vec<(RawAgent, u32)>>,
    pub(super) freed: FreedTable,
    pub(super) faults: Faults,
}

/// Every runtime that was loaded.
static LOADED: Loaded<Hsa> = Loaded::new();

impl Hsa {
    /// The runtime in the library at `path`, else in the one that `WHARF_LIBHSA` names, else in `libhsa-runtime64.so.1`. Loaded once for each
    /// file; initialises nothing. The first call for a file may take milliseconds.
    /// Errors: `Unsupported`: no such library, with all that was tried and the loader's words; one without a required function.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        let present = || Absent::unless_any(WHAT, PRESENCE);
        LOADED.load(&Self::search(path), present, ANCHOR, Self::with_library)
    }

    /// The runtime if this process has it loaded already, because somebody in it uses HSA or HIP. Loads nothing, so that asking does not bring
    /// a runtime into programs that use none.
    pub(crate) fn resident(path: Option<&Path>) -> Option<&'static Self> {
        LOADED.resident(&Self::search(path), ANCHOR, Self::with_library)
    }

    fn search(given: Option<&Path>) -> Search<'_> {
        Search {
            what: WHAT,
            given,
            variable: VARIABLE,
            names: NAMES,
        }
    }

    /// Finds the functions of a loaded library.
    fn with_library(library: Library) -> Result<Self> {
        let find = |name: &'static str, _since: u32| library.find(name);
        // SAFETY: the names are exact; the runtime never changed the signature of one.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| lacking(&library, &missing))?;
        tracing::debug!(target: "wharf::rocm", "loaded {}", library.name());
        Ok(Self {
            api,
            library,
            initialised: Initialised::new("HSA"),
            agents: OnceLock::new(),
            freed: FreedTable::default(),
            faults: Faults::default(),
        })
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// Whether [`Hsa::initialise`] has been done in this process.
    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.is_here()
    }

    /// Whether anybody in this process has initialised the runtime: before, there is no memory of a device. One cheap call, which initialises
    /// nothing.
    pub(crate) fn is_in_use(&self) -> bool {
        if self.usable().is_err() {
            return false;
        }
        let mut major = 0_u16;
        // SAFETY: writes a u16; before initialisation it says so.
        let status = unsafe {
            (self.api.hsa_system_get_info)(system::VERSION_MAJOR, (&raw mut major).cast())
        };
        status == Status::SUCCESS
    }

    /// Initialises the runtime, or takes one more count where somebody has done so. Takes up to seconds the first time; nothing later. A process
    /// that has done it must not be forked to use the device in the child. What failed may be tried again.
    /// Errors: `Unsupported`: no device; `PermissionDenied`: the device's file is not this user's; `Exhausted`; `Forked`.
    pub(crate) fn initialise(&self) -> Result<()> {
        self.initialised.once(|| {
            // SAFETY: takes nothing.
            let status = unsafe { (self.api.hsa_init)() };
            match status {
                Status::SUCCESS => Ok(()),
                status => Err(not_initialised(status)),
            }
        })
    }

    /// Whether memory can be exported as a dma-buf: the library has the function, and the runtime does not say that the kernel cannot.
    /// Initialises it.
    /// Errors: as of [`Hsa::initialise`].
    pub(crate) fn has_dma_buf(&self) -> Result<bool> {
        self.initialise()?;
        if self.api.hsa_amd_portable_export_dmabuf.is_none() {
            return Ok(false);
        }
        // As wide as no attribute is, in case it is no byte.
        let mut answer = 0_u64;
        // SAFETY: writes a bool.
        let status = unsafe {
            (self.api.hsa_system_get_info)(system::DMABUF_SUPPORTED, (&raw mut answer).cast())
        };
        match status {
            Status::SUCCESS => Ok(answer != 0),
            // Releases that export and cannot be asked yet: the export itself says.
            Status::ERROR_INVALID_ARGUMENT => Ok(true),
            status => Err(status.error("hsa_system_get_info")),
        }
    }

    /// That the runtime may be called in this process.
    /// Errors: `Forked`.
    pub(super) fn usable(&self) -> Result<()> {
        self.initialised.check()
    }

    /// An optional function, or the error that names it.
    pub(super) fn optional<F>(&self, function: Option<F>, name: &'static str) -> Result<F> {
        function.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{} has no {name}: a newer ROCm is needed", self.library()),
            )
        })
    }

    /// What somebody's drop does; what fails is only told. Nothing in a forked child, where the runtime cannot be called.
    pub(super) fn on_drop(&self, call: &str, free: impl FnOnce(&sys::Symbols) -> Status) {
        if self.usable().is_err() {
            return;
        }
        match free(&self.api) {
            Status::SUCCESS => {}
            // The program shut the runtime down too often, or the process ends: everything is freed.
            Status::ERROR_NOT_INITIALIZED => {
                tracing::debug!(target: "wharf::rocm", "{call}: {}", Status::ERROR_NOT_INITIALIZED);
            }
            status => tracing::warn!(target: "wharf::rocm", "{call}: {status}"),
        }
    }
}

impl fmt::Debug for Hsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hsa")
            .field("library", &self.library.name())
            .field("initialised", &self.is_initialised())
            .field("functions", &self.api)
            .finish_non_exhaustive()
    }
}

/// The error of an `hsa_init` that failed. The runtime has one status for all reasons, so the usual ones are looked for.
#[cold]
fn not_initialised(status: Status) -> Error {
    use nix::unistd::{AccessFlags, access};
    if status != Status::ERROR_OUT_OF_RESOURCES {
        return status.error("hsa_init");
    }
    let opens = access(KFD, AccessFlags::R_OK | AccessFlags::W_OK);
    let (kind, why) = match opens {
        Ok(()) => (status.kind(), String::new()),
        Err(nix::Error::EACCES | nix::Error::EPERM) => (
            ErrorKind::PermissionDenied,
            format!(
                "; this user may not open {KFD}: join the group that owns it (render or video)"
            ),
        ),
        Err(error) => (
            ErrorKind::Unsupported,
            format!(
                "; there is no device: {KFD}: {} (is the amdgpu driver loaded, and the device passed into the container?)",
                error.desc()
            ),
        ),
    };
    Error::new(kind, format!("hsa_init: {status}{why}")).with_source(status)
}

/// The error for a library that lacks required functions.
fn lacking(library: &Library, missing: &[MissingSymbol]) -> Error {
    let mut text = if missing.iter().any(|symbol| symbol.name == "hsa_init") {
        format!("{} is not an HSA runtime: it has no ", library.name())
    } else {
        format!("{} has no ", library.name())
    };
    text.push_str(&listed(missing, |symbol| symbol.name.to_owned()));
    text.push_str("; that of ROCm 5.2.3 or newer is needed");
    Error::new(ErrorKind::Unsupported, text)
}
