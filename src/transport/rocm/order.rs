//! The program's own HIP streams, which transfers are ordered with.
//!
//! HIP is used where the program has loaded it, and never loaded for this: without it there is no stream.
//!
//! # Safety
//! Handles are vouched for by whoever made a [`RocmStream`] of them.
#![allow(unsafe_code)]

use std::{ffi::c_void, path::Path, sync::Arc};

use super::machine::NAME;
use crate::{
    driver::{
        hip::{Hip, HipEvent, Hold},
        hsa::SignalCallback,
    },
    error::{Error, ErrorKind, Result},
    transport::accelerator::{DevicePlace, DeviceStream},
};

/// A HIP stream of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "hipStream_t")]
pub struct RocmStream(DeviceStream);

impl RocmStream {
    /// The stream of a `hipStream_t`. `device` is the ordinal of its device, as in `MemoryType::Rocm`. Null is the default stream of the device that is current in
    /// the thread that begins the operation.
    ///
    /// # Safety
    /// The stream lives until every operation that it was given to is over and every worker that had such an operation is closed.
    #[must_use]
    pub unsafe fn from_raw(stream: *mut c_void, device: u16) -> Self {
        Self(DeviceStream {
            accelerator: NAME,
            device,
            raw: stream.expose_provenance(),
        })
    }
}

impl From<RocmStream> for DeviceStream {
    fn from(stream: RocmStream) -> Self {
        stream.0
    }
}

impl From<RocmStream> for DevicePlace {
    /// All that is in the stream when an operation is begun.
    fn from(stream: RocmStream) -> Self {
        Self::Stream(stream.0)
    }
}

/// A place that was asked about.
pub(super) type Mark = Arc<HipEvent>;

/// A stream that waits for copies.
#[derive(Debug)]
pub(super) struct Waiter {
    hip: Hip,
    raw: usize,
}

/// Opens when the last copy that has it is done, or nobody has it any more.
#[derive(Debug)]
pub(super) struct Held(pub(super) Hold);

impl SignalCallback for Held {
    /// Nothing: the last of those that have it opens it by its drop.
    fn run(&self, _: i64) {}
}

/// Fixes the place. A few short calls.
/// Errors: `Unsupported`: HIP is not in this process; `InvalidArgument`: the stream is capturing a graph; what HIP said.
pub(super) fn mark(library: Option<&Path>, place: DevicePlace) -> Result<Mark> {
    let DevicePlace::Stream(stream) = place else {
        let text = "HIP events of the program's are not waited for: give the stream";
        return Err(Error::new(ErrorKind::Unsupported, text).over(NAME));
    };
    // SAFETY: whoever made the handle vouches for it.
    unsafe { hip(library)?.mark(stream.raw) }.map(Arc::new)
}

/// The stream, which [`Waiter::hold`] has wait.
/// Errors: `Unsupported`: HIP is not in this process.
pub(super) fn waiter(library: Option<&Path>, stream: DeviceStream) -> Result<Waiter> {
    Ok(Waiter {
        hip: hip(library)?,
        raw: stream.raw,
    })
}

impl Waiter {
    /// Has it wait for what is opened by the last drop.
    /// Errors: `Unsupported`: not here; `InvalidArgument`: the stream is capturing a graph; what HIP said.
    pub(super) fn hold(&self) -> Result<Arc<Held>> {
        // SAFETY: whoever made the handle vouches for it.
        let hold = unsafe { self.hip.hold(self.raw) };
        hold.map(|hold| Arc::new(Held(hold)))
    }
}

fn hip(library: Option<&Path>) -> Result<Hip> {
    Hip::resident(library).ok_or_else(|| {
        let text = "this program has not loaded HIP (libamdhip64.so.7, .6 or .5): it cannot have a stream of it";
        Error::new(ErrorKind::Unsupported, text).over(NAME)
    })
}
