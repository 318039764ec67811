//! Synapse, the runtime of Intel Gaudi: found, initialised when a device is asked for, and the one device that a process has.
//!
//! Comes in: the path of a library, or none. Goes out: [`Synapse`], one for each library file and process; from it [`Device`], either the one that
//! somebody in this process has acquired ([`Synapse::attach`]) or one taken for this process ([`Synapse::acquire`]); from that memory, mappings of
//! host memory, streams and events. Uses `library`. Tests: `tests/driver/synapse.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the header says |
//! | `status` | `synStatus` and what kind of error each is |
//! | `device` | the process's device: what it is, its memory, host memory mapped for it |
//! | `stream` | streams and events: copies, order, completion |
//!
//! A process has one device at most, and a device one process. There is no file descriptor and no callback for a finished copy: an event is recorded
//! behind it and queried. Device memory is no memory of the host's: its addresses are numbers.
//!
//! # What may block
//! Loading, initialising (seconds), acquiring and releasing (seconds: the firmware is loaded, the card is reset after a release), allocating, mapping
//! and unmapping (they pin pages). They belong on a thread that may block. Copies, records and queries take microseconds.
//!
//! # Safety
//! The functions called here are those of `sys`, found by exact name, in a library that is never unloaded. A call gets pointers to live local variables,
//! larger than the header says where the library writes a struct, and handles that this room made and keeps alive. Synapse is safe to call from several
//! threads. Calls by which the device reads or writes memory that the caller names are `unsafe` themselves. A child made by `fork` may not use the
//! parent's device: every object knows its process.
#![allow(unsafe_code)]

mod device;
mod status;
mod stream;
mod sys;

use std::{
    ffi::{CString, OsStr},
    fmt, fs,
    path::Path,
    ptr,
};

use parking_lot::Mutex;

pub(crate) use device::{
    Device, DeviceAllocation, DeviceInfo, DeviceType, HostAllocation, HostMapping, MemoryInfo,
};
pub(crate) use status::Status;
pub(crate) use stream::{CopyList, Direction, Event, MAX_COPY, Stream};

use super::{
    library::{Absent, Library, MissingSymbol, Search, listed},
    loaded::Loaded,
};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBSYNAPSE";

/// By the loader's search first, then where the packages put it.
const NAMES: &[&str] = &["libSynapse.so", "/usr/lib/habanalabs/libSynapse.so"];

/// What the small library lacks. The archived SynapseAI_Core has the same file name and another `synDeviceInfo`: by it an address would be taken for a descriptor.
const MARK: &str = "synDeviceGetInfoV2";

/// Synapse in this process. Loaded, not necessarily initialised.
pub(crate) struct Synapse {
    api: sys::Symbols,
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

/// Which device to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice<'a> {
    /// By the number of its module, which stays the same over restarts of the machine.
    Module(u32),
    /// By its PCI address, as in `0000:33:00.0`.
    Pci(&'a str),
}

impl fmt::Display for Choice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module(module) => write!(f, "module {module}"),
            Self::Pci(address) => f.write_str(address),
        }
    }
}

impl Synapse {
    /// The library that this process has loaded already, else the one at `path`, the one that `WHARF_LIBSYNAPSE` names, or `libSynapse.so`. Loaded once
    /// for each file; initialises nothing. The first call for a file may take seconds: the library brings many others.
    ///
    /// # Errors
    /// `Unsupported`: no such library, with all that was tried and the loader's words; one without a required function; the small SynapseAI_Core; without a
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

    /// All functions that are looked for, and whether each is required.
    pub(crate) fn functions() -> impl Iterator<Item = (&'static str, bool)> {
        let names = sys::Symbols::NAMES.iter();
        names.map(|(name, _, required)| (*name, *required))
    }

    /// Whether many copies go in one call.
    pub(crate) fn copies_lists(&self) -> bool {
        self.api.synMemCopyAsyncMultiple.is_some()
    }

    /// How many devices the machine shows to Synapse. Initialises nothing.
    ///
    /// # Errors
    /// `Unsupported`; what Synapse reports, before it is initialised too.
    pub(crate) fn device_count(&self) -> Result<u32> {
        let call = self.optional(self.api.synDeviceGetCount, "synDeviceGetCount")?;
        let mut count = 0;
        // SAFETY: writes one number.
        let status = unsafe { call(&raw mut count) };
        status.check("synDeviceGetCount")?;
        Ok(count)
    }

    /// The device that this process has acquired already, by whomever. Initialises and acquires nothing; `None` when there is none, or when Synapse is not
    /// initialised. It is never released here, and its file descriptor is not ours to close.
    ///
    /// # Errors
    /// What Synapse reports beyond that: `DeviceLost` after a reset, `Io`.
    pub(crate) fn attach(&'static self) -> Result<Option<Device>> {
        let mut room = sys::InfoRoom::ZERO;
        // SAFETY: writes a struct into room of 4,096 bytes.
        let status =
            unsafe { (self.api.synDeviceGetInfoV2)(sys::THE_DEVICE, (&raw mut room).cast()) };
        match status {
            Status::UNINITIALIZED | Status::FAIL | Status::NO_DEVICE_FOUND => Ok(None),
            status => {
                status.check("synDeviceGetInfoV2")?;
                // Checked now, so that nothing is built on an answer that cannot be.
                DeviceInfo::new(&room.info)?;
                // The number that every runtime gives to the one device.
                Ok(Some(Device::new(self, 0, false)))
            }
        }
    }

    /// Takes a device for this process and gives it back with the last of what was made from it. Initialises Synapse if nobody has. Takes the whole card
    /// from every other process: call it only for a program that asked for it.
    ///
    /// # Errors
    /// `Unsupported`: no such device, or another process has it; no device at all; `Exhausted`: this process has a device already
    /// ([`Synapse::attach`]); `InvalidArgument`; `Io`.
    pub(crate) fn acquire(&'static self, choice: Choice<'_>) -> Result<Device> {
        let mut id = 0;
        let (status, call) = match choice {
            Choice::Module(module) => {
                self.initialise()?;
                // SAFETY: writes one number.
                let status = unsafe { (self.api.synDeviceAcquireByModuleId)(&raw mut id, module) };
                (status, "synDeviceAcquireByModuleId")
            }
            Choice::Pci(address) => {
                // An empty address means any device to Synapse.
                let text = CString::new(address).ok().filter(|text| !text.is_empty());
                let text = text.ok_or_else(|| {
                    let text = format!("{address:?} is no PCI address");
                    Error::new(ErrorKind::InvalidArgument, text)
                })?;
                self.initialise()?;
                // SAFETY: writes one number; the string lives through the call.
                let status = unsafe { (self.api.synDeviceAcquire)(&raw mut id, text.as_ptr()) };
                (status, "synDeviceAcquire")
            }
        };
        if status != Status::SUCCESS {
            let what = format!("{call} of {choice}");
            return Err(status.error(&what));
        }
        Ok(Device::new(self, id, true))
    }

    /// Initialises Synapse if nobody has. Never where there is no device file, unless somebody named the library: on such a machine it may hang.
    ///
    /// # Errors
    /// `Unsupported`: no device file; `Forked`: it was initialised here before this process was forked; what Synapse reports. What failed may be tried again.
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

    /// An optional function, or the error that names it.
    fn optional<F>(&self, function: Option<F>, name: &'static str) -> Result<F> {
        function.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("{} has no {name}", self.library()),
            )
        })
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
fn forked() -> Error {
    Error::new(
        ErrorKind::Forked,
        "Synapse was initialised before this process was forked; its device cannot be used in the child",
    )
}
