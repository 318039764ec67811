//! libhl-thunk in this process: found, refused where it is of 2021, loaded once for each file, and its functions.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name; what tells the library's generation is asked for before any other is called.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_void},
    fmt,
    path::Path,
};

use super::sys;
use crate::{
    driver::{
        library::{Library, Search, function, names},
        loaded::Loaded,
    },
    error::{Error, ErrorKind, Result},
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBHLTHUNK";

/// Without a version: the library has no other soname. The folder is where the vendor's packages put it.
const NAMES: &[&str] = &["libhl-thunk.so", "/usr/lib/habanalabs/libhl-thunk.so"];

/// libhl-thunk in this process.
pub(crate) struct HlThunk {
    pub(super) api: sys::Symbols,
    library: Library,
    version: String,
}

/// Every library that was loaded.
static LOADED: Loaded<HlThunk> = Loaded::new();

/// A function that every such library has.
const ANCHOR: &str = "hlthunk_open";

impl HlThunk {
    /// The library at `path`, else the one that `WHARF_LIBHLTHUNK` names, else `libhl-thunk.so`, there or in `/usr/lib/habanalabs`. Opens no
    /// card. The first call for a file may take milliseconds.
    /// Errors: `Unsupported`: no such library, with all that was tried and the loader's words; one without a required function; one of 2021.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        LOADED.load(&search(path), || Ok(()), ANCHOR, Self::with_library)
    }

    fn with_library(library: Library) -> Result<Self> {
        if library.find("hlthunk_open").is_some() && library.find(sys::GENERATION).is_none() {
            return Err(of_2021(&library));
        }
        let find = |name: &'static str, _| library.find(name);
        // SAFETY: exact names; the generation was just asked for.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| {
            let text = format!(
                "{} is no libhl-thunk of 2023 or newer: it has no {}",
                library.name(),
                names(&missing)
            );
            Error::new(ErrorKind::Unsupported, text)
        })?;
        // SAFETY: both functions are of this library.
        let version = unsafe { version(api.hlthunk_get_version, api.hlthunk_free) };
        tracing::debug!(target: "wharf::gaudi", "loaded {} ({version})", library.name());
        Ok(Self {
            api,
            library,
            version,
        })
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// An optional function, or the error that names it.
    pub(super) fn optional<F>(&self, function: Option<F>, name: &'static str) -> Result<F> {
        function.ok_or_else(|| {
            let text = format!("{} ({}) has no {name}", self.library(), self.version);
            Error::new(ErrorKind::Unsupported, text)
        })
    }
}

impl fmt::Debug for HlThunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HlThunk")
            .field("library", &self.library())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn search(given: Option<&Path>) -> Search<'_> {
    Search {
        what: "libhl-thunk",
        given,
        variable: VARIABLE,
        names: NAMES,
    }
}

type GetVersion = unsafe extern "C" fn() -> *mut std::ffi::c_char;
type Free = unsafe extern "C" fn(*mut c_void);

/// What the library says of itself.
///
/// # Safety
/// The functions are `hlthunk_get_version` and `hlthunk_free` of one library.
unsafe fn version(get: GetVersion, free: Free) -> String {
    // SAFETY: takes nothing; its signature is the same in every release.
    let text = unsafe { get() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: a string of the library's that ends with a zero.
    let copy = unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: given back once, to the library that made it.
    unsafe { free(text.cast()) };
    if copy.trim().is_empty() {
        return "unknown".to_owned();
    }
    copy
}

/// The refusal of a library with the older interface.
#[cold]
fn of_2021(library: &Library) -> Error {
    let found = library
        .find("hlthunk_get_version")
        .zip(library.find("hlthunk_free"));
    let version = found.map_or_else(
        || "unknown".to_owned(),
        |(get, free)| {
            // SAFETY: both have had these signatures in every release.
            let (get, free): (GetVersion, Free) = unsafe { (function(get), function(free)) };
            // SAFETY: both are of this library.
            unsafe { version(get, free) }
        },
    );
    let text = format!(
        "{} is a libhl-thunk with the interface of 2021 (version {version}, without {}): its calls take other arguments; install the Gaudi software of 2023 (1.10) or newer, or name another library by {VARIABLE}",
        library.name(),
        sys::GENERATION
    );
    Error::new(ErrorKind::Unsupported, text)
}
