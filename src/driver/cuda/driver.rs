//! The CUDA driver of this process: its library, found and loaded once for each file, and its functions.
//!
//! # Safety
//! As in [`super`]. A function is found by its exact name, in the version that brought its ABI; a call gets pointers to live local variables.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, c_char, c_void},
    fmt,
    path::Path,
    ptr::{self, NonNull},
};

use super::{Status, sys};
use crate::{
    driver::{
        forks::Initialised,
        library::{Absent, Library, MissingSymbol, Search, function, listed},
        loaded::Loaded,
    },
    error::{Error, ErrorKind, Result},
};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBCUDA";

const WHAT: &str = "the CUDA driver";

/// A function that every driver has.
const ANCHOR: &str = "cuInit";

/// Not `libcuda.so`: that is the toolkit's stub to link against.
const NAMES: &[&str] = &["libcuda.so.1"];

/// One of these is there where a driver is loaded: on a server or desktop, on Tegra, under Windows.
const PRESENCE: &[&str] = &[
    "/dev/nvidiactl",
    "/dev/nvhost-ctrl",
    "/dev/nvmap",
    "/dev/dxg",
];

/// The oldest driver that has all that is required.
const OLDEST: Version = Version(11_000);

/// A CUDA version, as the driver counts: 1000 × major + 10 × minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Version(pub(crate) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The CUDA driver of this process. Loaded, not necessarily initialised.
pub(crate) struct Cuda {
    pub(super) api: sys::Symbols,
    library: Library,
    version: Version,
    initialised: Initialised,
}

/// Every driver that was loaded.
static LOADED: Loaded<Cuda> = Loaded::new();

impl Cuda {
    /// The driver in the library at `path`, else in the one that `WHARF_LIBCUDA` names, else in `libcuda.so.1`. Loaded once for each
    /// file; initialises nothing. The first call for a file may take milliseconds.
    /// Errors: `Unsupported`: no such library, with all that was tried and the loader's words; one without a required function; the toolkit's stub.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        let present = || Absent::unless_any(WHAT, PRESENCE);
        LOADED.load(&Self::search(path), present, ANCHOR, Self::with_library)
    }

    /// The driver if this process has it loaded already, because somebody in it uses CUDA. Loads nothing, so that asking does not bring
    /// a driver into programs that use none.
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
        let version = version_of(&library)?;
        let find = |name: &'static str, since: u32| find(&library, version, name, since);
        // SAFETY: the names are exact, and the version asked for is that of the ABI in the table.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| lacking(&library, version, &missing))?;
        tracing::debug!(
            target: "wharf::cuda",
            "loaded {} (CUDA {})",
            library.name(),
            version
        );
        Ok(Self {
            api,
            library,
            version,
            initialised: Initialised::new("CUDA"),
        })
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// The newest CUDA version that the driver serves.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Whether [`Cuda::initialise`] has been done in this process.
    pub(crate) fn is_initialised(&self) -> bool {
        self.initialised.is_here()
    }

    /// Whether anybody in this process has initialised the driver, and it has a device: before, there is no memory of a device. One cheap call,
    /// which initialises nothing.
    pub(crate) fn is_in_use(&self) -> bool {
        self.device_count().is_some_and(|count| count > 0)
    }

    /// How many devices there are; `None` while nobody has initialised the driver.
    pub(crate) fn device_count(&self) -> Option<u16> {
        self.usable().ok()?;
        let mut count = 0;
        // SAFETY: writes one number; before initialisation it says so.
        let status = unsafe { (self.api.cuDeviceGetCount)(&raw mut count) };
        (status == Status::SUCCESS).then(|| u16::try_from(count).unwrap_or(0))
    }

    /// Initialises the driver if nobody has. Takes up to seconds the first time; nothing later. A process that has done it must not be
    /// forked to use the device in the child. What failed may be tried again.
    /// Errors: `Unsupported`: no device, the stub, versions that do not go together; `Forked`.
    pub(crate) fn initialise(&self) -> Result<()> {
        self.initialised.once(|| {
            // SAFETY: takes a number.
            let status = unsafe { (self.api.cuInit)(0) };
            status.check("cuInit")
        })
    }

    /// That the driver may be called in this process.
    /// Errors: `Forked`.
    pub(super) fn usable(&self) -> Result<()> {
        self.initialised.check()
    }

    /// An optional function, or the error that names it.
    pub(super) fn optional<F>(&self, function: Option<F>, name: &'static str) -> Result<F> {
        function.ok_or_else(|| {
            let since = sys::Symbols::SINCE.iter().find(|(known, _)| *known == name);
            let since = since.map_or(self.version, |(_, since)| Version(*since));
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} (CUDA {}) has no {name}, which CUDA {since} brought",
                    self.library(),
                    self.version
                ),
            )
        })
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("library", &self.library.name())
            .field("version", &self.version)
            .field("initialised", &self.is_initialised())
            .field("functions", &self.api)
            .finish_non_exhaustive()
    }
}

/// The driver's version.
/// Errors: `Unsupported`: a library that has no function for it, which is no driver; the stub.
fn version_of(library: &Library) -> Result<Version> {
    let found = library.find("cuDriverGetVersion").ok_or_else(|| {
        let text = format!(
            "{} is not a CUDA driver: it has no cuDriverGetVersion",
            library.name()
        );
        Error::new(ErrorKind::Unsupported, text)
    })?;
    // SAFETY: the name has had this signature since CUDA 2.2.
    let call = unsafe { function::<unsafe extern "C" fn(*mut i32) -> Status>(found) };
    let mut version = 0;
    // SAFETY: writes one number; may be called before the driver is initialised.
    let status = unsafe { call(&raw mut version) };
    if status == Status::STUB_LIBRARY {
        let why = format!("{}: {status}", library.name());
        return Err(Error::new(ErrorKind::Unsupported, why).with_source(status));
    }
    status.check("cuDriverGetVersion")?;
    Ok(Version(u32::try_from(version).unwrap_or(0)))
}

/// A function by its exact name, or from the driver itself where the library does not export it. Never one that came after the driver's
/// version: a library may export more than its driver can do.
fn find(
    library: &Library,
    version: Version,
    name: &'static str,
    since: u32,
) -> Option<NonNull<c_void>> {
    if version.0 < since {
        return None;
    }
    library.find(name).or_else(|| {
        let ask = library.find("cuGetProcAddress_v2")?;
        // SAFETY: the exact name of this ABI, which takes the fifth argument.
        let ask = unsafe { function::<sys::GetProcAddress>(ask) };
        proc_address(ask, name, since)
    })
}

/// Asks the driver for a function that the library does not export, in the version that brought its ABI. Never in a newer one: then
/// another ABI could come under the same name.
fn proc_address(
    ask: sys::GetProcAddress,
    name: &'static str,
    since: u32,
) -> Option<NonNull<c_void>> {
    let base = name.split_once("_v").map_or(name, |(base, _)| base);
    let base = CString::new(base).ok()?;
    let mut address: *mut c_void = ptr::null_mut();
    let mut found = 0;
    // SAFETY: a string that ends with a zero, and two variables to be written.
    let status = unsafe {
        ask(
            base.as_ptr().cast::<c_char>(),
            &raw mut address,
            i32::try_from(since).ok()?,
            0,
            &raw mut found,
        )
    };
    // Success with a null pointer is possible.
    (status == Status::SUCCESS).then(|| NonNull::new(address))?
}

/// The error for a library that lacks required functions.
fn lacking(library: &Library, version: Version, missing: &[MissingSymbol]) -> Error {
    let mut text = format!("{} (CUDA {version}) has no ", library.name());
    let name = |symbol: &MissingSymbol| format!("{} (CUDA {})", symbol.name, Version(symbol.since));
    text.push_str(&listed(missing, name));
    text.push_str(&format!("; a driver of CUDA {OLDEST} or newer is needed"));
    Error::new(ErrorKind::Unsupported, text)
}
