//! Synapse in this process: its library, found and loaded once for each file, its functions, and initialising it.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name; a call gets pointers to live local variables.
#![allow(unsafe_code)]

use std::{ffi::OsStr, fmt, fs, path::Path};

use super::{Status, sys};
use crate::{
    driver::{
        library::{Absent, Library, MissingSymbol, Search, listed},
        loaded::Loaded,
    },
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBSYNAPSE";

/// By the loader's search first, then where the packages put it.
const NAMES: &[&str] = &["libSynapse.so", "/usr/lib/habanalabs/libSynapse.so"];

/// What the small library lacks. The archived SynapseAI_Core has the same file name and another `synDeviceInfo`: by it an address would be taken for a descriptor.
const MARK: &str = "synDeviceGetInfoV2";

/// Synapse in this process. Loaded, not necessarily initialised.
pub(crate) struct Synapse {
    pub(super) api: sys::Symbols,
    library: Library,
    /// Somebody named the library's file: then it is initialised without a look for device files.
    named: bool,
    /// The process in which it was initialised here; 0: not yet. Only one thread initialises.
    initialised_in: Mutex<u32>,
}

/// Every Synapse that was loaded.
static LOADED: Loaded<Synapse> = Loaded::new();

/// A function that every such library has.
const ANCHOR: &str = "synInitialize";

impl Synapse {
    /// The library that this process has loaded already, else the one at `path`, the one that `WHARF_LIBSYNAPSE` names, or `libSynapse.so`. Loaded once
    /// for each file; initialises nothing. The first call for a file may take seconds: the library brings many others.
    /// Errors: `Unsupported`: no such library, with all that was tried and the loader's words; one without a required function; the small SynapseAI_Core; without a
    /// path, a machine without a device file.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        if let Some(synapse) = Self::resident(path) {
            return Ok(synapse);
        }
        let search = Self::search(path);
        let named = search.explicit().is_some();
        let make = |library| Self::with_library(library, named);
        LOADED.load(&search, present, ANCHOR, make)
    }

    /// Synapse if this process has it loaded already, because somebody in it uses it. Loads nothing. A library that [`Synapse::load`] would refuse counts
    /// as none.
    pub(crate) fn resident(path: Option<&Path>) -> Option<&'static Self> {
        let search = Self::search(path);
        let named = search.explicit().is_some();
        LOADED.resident(&search, ANCHOR, |library| {
            Self::with_library(library, named)
        })
    }

    fn search(given: Option<&Path>) -> Search<'_> {
        Search {
            what: "Synapse",
            given,
            variable: VARIABLE,
            names: NAMES,
        }
    }

    /// Finds the functions of a loaded library.
    fn with_library(library: Library, named: bool) -> Result<Self> {
        let find = |name: &'static str, _| library.find(name);
        // SAFETY: exact names; the library that has other structs under the same names was told apart by the one that it lacks.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| lacking(&library, &missing))?;
        tracing::debug!(target: "wharf::gaudi", "loaded {}", library.name());
        Ok(Self {
            api,
            library,
            named,
            initialised_in: Mutex::new(0),
        })
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// Initialises Synapse if nobody has. Never where there is no device file, unless somebody named the library: on such a machine it may hang.
    /// Errors: `Unsupported`: no device file; `Forked`: it was initialised here before this process was forked; what Synapse reports. What failed may be tried again.
    pub(crate) fn initialise(&self) -> Result<()> {
        let mut initialised_in = self.initialised_in.lock();
        let this = std::process::id();
        if *initialised_in == this {
            return Ok(());
        }
        if *initialised_in != 0 {
            return Err(forked());
        }
        if !self.named {
            present()?;
        }
        // SAFETY: takes nothing.
        let status = unsafe { (self.api.synInitialize)() };
        if status != Status::ALREADY_INITIALIZED {
            status.check("synInitialize")?;
        }
        *initialised_in = this;
        Ok(())
    }
}

impl fmt::Debug for Synapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Synapse")
            .field("library", &self.library.name())
            .finish_non_exhaustive()
    }
}

/// That there may be a device: a look that loads and opens nothing. The nodes of one card are enough: a container may show no more.
fn present() -> Result<(), Absent> {
    let mut absent = Absent::new("Synapse");
    for (folder, begin) in [("/dev/accel", "accel_controlD"), ("/dev", "hl_controlD")] {
        match fs::read_dir(folder) {
            Ok(entries) => {
                let is_node = |name: &OsStr| name.to_string_lossy().starts_with(begin);
                if entries.flatten().any(|entry| is_node(&entry.file_name())) {
                    return Ok(());
                }
                absent.tried.push((
                    format!("{folder}/{begin}*"),
                    "no such device file".to_owned(),
                ));
            }
            Err(error) => absent
                .tried
                .push((format!("{folder}/{begin}*"), error.to_string())),
        }
    }
    Err(absent)
}

/// The error for a library that lacks required functions.
fn lacking(library: &Library, missing: &[MissingSymbol]) -> Error {
    let name = library.name();
    let has = |symbol: &str| library.find(symbol).is_some();
    let small = has("synDeviceGetInfo") && !has(MARK);
    let text = if small {
        format!(
            "{name} is the small SynapseAI_Core or too old: it has no {MARK}; give the libSynapse.so of Intel's packages ({VARIABLE})"
        )
    } else {
        let names = listed(missing, |symbol| symbol.name.to_owned());
        format!("{name} is no usable Synapse: it has no {names}")
    };
    Error::new(ErrorKind::Unsupported, text)
}

/// The error of a child made by `fork`.
pub(super) fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        "Synapse was initialised before this process was forked; its device cannot be used in the child",
    )
}
