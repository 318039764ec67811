//! HIP, for two things: to wait for what a program has put into a stream of its own, and to have such a stream wait. Copies are the HSA runtime's
//! business.
//!
//! The library is used only when the program has it loaded already: a stream of a HIP that is not there cannot exist, and a second one next to the
//! program's would be another runtime. Its soname changes with each major release; the functions used here did not. Tests: `tests/driver/hsa/`.
//!
//! # Safety
//! The functions are found by exact name, in a library that is never unloaded; their arguments are handles and pointers to live local variables. A
//! stream is the caller's promise (`unsafe`). An event is destroyed once, by its drop.
#![allow(unsafe_code)]

use std::{fmt, path::Path};

use super::library::{Search, symbols};
use crate::error::{Error, ErrorKind, Result};

mod hold;

pub(crate) use hold::Hold;

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBHIP";

/// Newest first.
const NAMES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];

/// `hipStream_t`, an opaque pointer; 0 is the default stream.
pub(crate) type RawStream = usize;
type RawEvent = usize;

/// `hipErrorNotReady`.
const NOT_READY: u32 = 600;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;

symbols! {
    /// The functions of `libamdhip64.so`. `since` is 1000 × major of ROCm.
    struct Symbols;
    required {
        hipEventCreateWithFlags(*mut RawEvent, u32) -> u32, since 5000;
        hipEventRecord(RawEvent, RawStream) -> u32, since 5000;
        hipEventQuery(RawEvent) -> u32, since 5000;
        hipEventDestroy(RawEvent) -> u32, since 5000;
    }
    optional {
        hipGetDevice(*mut i32) -> u32, since 5000;
        hipSetDevice(i32) -> u32, since 5000;
        hipStreamGetDevice(RawStream, *mut i32) -> u32, since 5000;
        hipStreamIsCapturing(RawStream, *mut u32) -> u32, since 5000;
        hipStreamWaitValue64(RawStream, usize, u64, u32, u64) -> u32, since 5000;
        hipExtMallocWithFlags(*mut usize, usize, u32) -> u32, since 5000;
        hipHostMalloc(*mut usize, usize, u32) -> u32, since 5000;
        hipHostGetDevicePointer(*mut usize, usize, u32) -> u32, since 5000;
        hipHostFree(usize) -> u32, since 5000;
        hipGetLastError() -> u32, since 5000;
    }
}

/// The HIP runtime of this process, which the program loaded.
#[derive(Clone, Copy)]
pub(crate) struct Hip {
    api: Symbols,
}

/// A place in a stream. Destroyed on drop.
pub(crate) struct HipEvent {
    hip: Hip,
    raw: RawEvent,
}

impl Hip {
    /// HIP, if this process has it loaded already: the file at `path`, else the one that `WHARF_LIBHIP` names, else any of ROCm 7, 6, 5. Loads nothing.
    pub(crate) fn resident(path: Option<&Path>) -> Option<Self> {
        let search = Search {
            what: "HIP",
            given: path,
            variable: VARIABLE,
            names: NAMES,
        };
        let library = search.resident()?;
        // SAFETY: exact names, whose signatures are the same in ROCm 5, 6 and 7.
        let api = unsafe { Symbols::resolve(&|name, _| library.find(name)) };
        match api {
            Ok(api) => Some(Self { api }),
            Err(missing) => {
                tracing::debug!(target: "wharf::rocm", "{}: lacks {missing:?}", library.name());
                None
            }
        }
    }

    /// Marks the end of a stream as it is now. Microseconds.
    ///
    /// # Errors
    /// `Exhausted`: no event; `InvalidArgument`: the stream captures a graph, or is none.
    ///
    /// # Safety
    /// The stream is one of this HIP, and is not destroyed during the call.
    pub(crate) unsafe fn mark(self, stream: RawStream) -> Result<HipEvent> {
        // Events are of the thread's current device, and recorded in streams of it only.
        // SAFETY: of the stream the caller vouches.
        let _device = unsafe { OnDevice::of(self, stream) };
        let mut raw = 0;
        // SAFETY: writes one handle.
        let code = unsafe { (self.api.hipEventCreateWithFlags)(&raw mut raw, DISABLE_TIMING) };
        check(code, "hipEventCreateWithFlags")?;
        let event = HipEvent { hip: self, raw };
        // SAFETY: an event of the stream's device; of the stream the caller vouches.
        let code = unsafe { (self.api.hipEventRecord)(event.raw, stream) };
        check(code, "hipEventRecord")?;
        Ok(event)
    }
}

impl fmt::Debug for Hip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hip").finish_non_exhaustive()
    }
}

impl HipEvent {
    /// Whether all that was in the stream is done. A call each time.
    ///
    /// # Errors
    /// `DeviceLost` and others: the work failed.
    pub(crate) fn is_done(&self) -> Result<bool> {
        // SAFETY: an event that lives.
        match unsafe { (self.hip.api.hipEventQuery)(self.raw) } {
            NOT_READY => Ok(false),
            code => check(code, "hipEventQuery").map(|()| true),
        }
    }
}

impl Drop for HipEvent {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; the runtime keeps what it needs.
        let code = unsafe { (self.hip.api.hipEventDestroy)(self.raw) };
        if let Err(error) = check(code, "hipEventDestroy") {
            tracing::debug!(target: "wharf::rocm", "{error}");
        }
    }
}

impl fmt::Debug for HipEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HIP event {:#x}", self.raw)
    }
}

/// Makes a stream's device the thread's current one, and puts the former back on drop. Nothing where HIP cannot say.
struct OnDevice {
    hip: Hip,
    former: Option<i32>,
}

impl OnDevice {
    /// # Safety
    /// The stream is one of this HIP.
    unsafe fn of(hip: Hip, stream: RawStream) -> Self {
        let api = &hip.api;
        let nothing = Self { hip, former: None };
        let (Some(get), Some(set), Some(of)) =
            (api.hipGetDevice, api.hipSetDevice, api.hipStreamGetDevice)
        else {
            return nothing;
        };
        let (mut former, mut device) = (0, 0);
        // SAFETY: write one number each; of the stream the caller vouches.
        let asked = unsafe { (get(&raw mut former), of(stream, &raw mut device)) };
        // The default stream is the current device's.
        if stream == 0 || asked != (0, 0) || former == device {
            return nothing;
        }
        // SAFETY: takes a number.
        let changed = unsafe { set(device) } == 0;
        Self {
            hip,
            former: changed.then_some(former),
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        if let (Some(former), Some(set)) = (self.former, self.hip.api.hipSetDevice) {
            // SAFETY: takes a number, which HIP gave.
            unsafe { set(former) };
        }
    }
}

/// Success, or the error of `call`. Numbers of `hipError_t`, which are CUDA's.
fn check(code: u32, call: &str) -> Result<()> {
    let kind = match code {
        0 => return Ok(()),
        2 => ErrorKind::Exhausted,
        1 | 101 | 400 | 709 | 900..=907 => ErrorKind::InvalidArgument,
        700 | 710 | 719 => ErrorKind::DeviceLost,
        801 => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    Err(Error::new(kind, format!("{call}: HIP error {code}")))
}
