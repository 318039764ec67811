//! libibverbs in this process: found and loaded once for each file, and its functions.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name.
#![allow(unsafe_code)]

use std::{fmt, path::Path, ptr};

use super::sys;
use crate::{
    driver::library::{Library, MissingSymbol, Search, listed},
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBIBVERBS";

const NAMES: &[&str] = &["libibverbs.so.1"];

/// A function by which libraries are told apart.
pub(in crate::driver) const ANCHOR: &str = "ibv_open_device";

/// The library of this process. Opens no device.
pub(crate) struct Verbs {
    pub(super) api: sys::Symbols,
    library: Library,
}

/// Every library that was loaded, one for each file. Never shrinks; grows with the number of different files.
static LOADED: Mutex<Vec<&'static Verbs>> = Mutex::new(Vec::new());

impl Verbs {
    /// The library at `path`, else the one that `WHARF_LIBIBVERBS` names, else `libibverbs.so.1`. Loaded once for each file. May take
    /// milliseconds.
    /// Errors: `Unsupported`: no such library, with what was tried and the loader's words; one without a required function.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        let library = search(path).open()?;
        let find = |name: &'static str, _since: u32| library.find(name);
        // SAFETY: the names are exact, and `dlsym` finds the default version, which is the one in the table.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| lacking(&library, "libibverbs", &missing))?;
        let mut loaded = LOADED.lock();
        let same = |verbs: &&Self| ptr::fn_addr_eq(verbs.api.ibv_open_device, api.ibv_open_device);
        if let Some(verbs) = loaded.iter().copied().find(same) {
            return Ok(verbs);
        }
        tracing::debug!(target: "wharf::verbs", "loaded {}", library.name());
        let verbs: &'static Self = Box::leak(Box::new(Self { api, library }));
        loaded.push(verbs);
        Ok(verbs)
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// The address of [`ANCHOR`] in it.
    pub(in crate::driver) fn anchor(&self) -> usize {
        (self.api.ibv_open_device as *const ()).addr()
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verbs").field(&self.library()).finish()
    }
}

fn search(given: Option<&Path>) -> Search<'_> {
    Search {
        what: "libibverbs",
        given,
        variable: VARIABLE,
        names: NAMES,
    }
}

/// The error for a library that lacks required functions.
pub(in crate::driver) fn lacking(
    library: &Library,
    what: &str,
    missing: &[MissingSymbol],
) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{} is no {what} that can be used: it has no {}; rdma-core 28 or newer is needed",
            library.name(),
            listed(missing, |symbol| symbol.name.to_owned()),
        ),
    )
}
