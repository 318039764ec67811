//! The runtime that the program has loaded, and its functions.
//!
//! # Safety
//! As of the room's door.
#![allow(unsafe_code)]

use std::{fmt, path::Path};

use crate::driver::library::{Search, symbols};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBHIP";

/// Newest first.
const NAMES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];

/// `hipStream_t`, an opaque pointer; 0 is the default stream.
pub(crate) type RawStream = usize;
/// `hipEvent_t`.
pub(super) type RawEvent = usize;

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
    pub(super) api: Symbols,
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
}

impl fmt::Debug for Hip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hip").finish_non_exhaustive()
    }
}

/// Makes a stream's device the thread's current one, and puts the former back on drop. Nothing where HIP cannot say.
pub(super) struct OnDevice {
    hip: Hip,
    former: Option<i32>,
}

impl OnDevice {
    /// # Safety
    /// The stream is one of this HIP.
    pub(super) unsafe fn of(hip: Hip, stream: RawStream) -> Self {
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
pub(super) fn check(code: u32, call: &str) -> Result<()> {
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
