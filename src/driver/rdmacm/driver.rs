//! librdmacm in this process: found and loaded once for each file, and its functions.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name.
#![allow(unsafe_code)]

use std::{ffi::c_int, fmt, path::Path, ptr};

use super::sys;
use crate::{
    driver::{
        library::Search,
        verbs::{self, Verbs, failure},
    },
    error::{Error, ErrorKind, Result},
    util::lock::Mutex,
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBRDMACM";

const NAMES: &[&str] = &["librdmacm.so.1"];

/// What errors name instead of a device, before there is one.
pub(super) const NO_DEVICE: &str = "rdma_cm";

/// The library of this process.
pub(crate) struct RdmaCm {
    pub(super) api: sys::Symbols,
    name: String,
    pub(super) verbs: &'static Verbs,
}

/// Every library that was loaded, one for each file. Never shrinks; grows with the number of different files.
static LOADED: Mutex<Vec<&'static RdmaCm>> = Mutex::new(Vec::new());

impl RdmaCm {
    /// The library at `path`, else the one that `WHARF_LIBRDMACM` names, else `librdmacm.so.1`. `verbs` must be the library that it uses
    /// itself: the one found without a path. May take milliseconds.
    /// Errors: `Unsupported`: no such library, with what was tried and the loader's words; one without a required function.
    pub(crate) fn load(path: Option<&Path>, verbs: &'static Verbs) -> Result<&'static Self> {
        let search = Search {
            what: "librdmacm",
            given: path,
            variable: VARIABLE,
            names: NAMES,
        };
        let library = search.open()?;
        let find = |name: &'static str, _since: u32| library.find(name);
        // SAFETY: the names are exact.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| verbs::lacking(&library, "librdmacm", &missing))?;
        // Found in what it depends on. Devices of one library mean nothing to another.
        let theirs = library.find(verbs::ANCHOR).map(|at| at.addr().get());
        if theirs.is_some_and(|theirs| theirs != verbs.anchor()) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} uses another libibverbs than {}, which {} names",
                    library.name(),
                    verbs.library(),
                    verbs::VARIABLE
                ),
            ));
        }
        let mut loaded = LOADED.lock();
        let same = |cm: &&Self| {
            ptr::eq(cm.verbs, verbs) && ptr::fn_addr_eq(cm.api.rdma_create_id, api.rdma_create_id)
        };
        if let Some(cm) = loaded.iter().copied().find(same) {
            return Ok(cm);
        }
        tracing::debug!(target: "wharf::verbs", "loaded {}", library.name());
        let name = library.name().to_owned();
        let cm: &'static Self = Box::leak(Box::new(Self { api, name, verbs }));
        loaded.push(cm);
        Ok(cm)
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for RdmaCm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RdmaCm").field(&self.library()).finish()
    }
}

/// For calls of this library: −1 and `errno`.
pub(super) fn answered(call: &str, answer: c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        -1 => Err(failure::failed(call, NO_DEVICE, failure::last())),
        other => failure::check(call, NO_DEVICE, other),
    }
}
