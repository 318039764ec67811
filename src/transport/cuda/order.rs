//! The program's own streams and events, which transfers are ordered with.
//!
//! # Safety
//! Handles are vouched for by whoever made a [`CudaStream`] or [`CudaEvent`] of them.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::shared::NAME;
use crate::{
    driver::cuda::{Cuda, Event, RawEvent, RawStream, Stream, Waiting},
    error::{Error, ErrorKind, Result},
    transport::accelerator::{DevicePlace, DeviceStream},
};

/// A CUDA stream of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "CUstream")]
#[doc(alias = "cudaStream_t")]
pub struct CudaStream(DeviceStream);

impl CudaStream {
    /// The stream of a `CUstream` or `cudaStream_t`. `device` is the ordinal of its device. Null and `CU_STREAM_LEGACY` are the default stream of the
    /// device's primary context, the one that the runtime library and the frameworks use.
    ///
    /// # Safety
    /// The stream, and its context, live until every operation that it was given to is over and every worker that had such an operation is closed.
    #[must_use]
    pub unsafe fn from_raw(stream: *mut c_void, device: u16) -> Self {
        Self(DeviceStream {
            accelerator: NAME,
            device,
            raw: stream.expose_provenance(),
        })
    }
}

impl From<CudaStream> for DeviceStream {
    fn from(stream: CudaStream) -> Self {
        stream.0
    }
}

impl From<CudaStream> for DevicePlace {
    /// All that is in the stream when an operation is begun.
    fn from(stream: CudaStream) -> Self {
        Self::Stream(stream.0)
    }
}

/// A CUDA event of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "CUevent")]
#[doc(alias = "cudaEvent_t")]
pub struct CudaEvent(DeviceStream);

impl CudaEvent {
    /// The event of a `CUevent` or `cudaEvent_t`; what counts is the place where it was last recorded when an operation is begun. `device` is the
    /// ordinal of its device.
    ///
    /// # Safety
    /// The event lives until every operation that it was given to is over, and, when one of them was cancelled, until its worker is closed: a device
    /// that is still being opened is asked about the event then. Of a device's events a worker waits for four at a time; more than that wait for one
    /// of these. Streams have no such limit.
    #[must_use]
    pub unsafe fn from_raw(event: *mut c_void, device: u16) -> Self {
        Self(DeviceStream {
            accelerator: NAME,
            device,
            raw: event.expose_provenance(),
        })
    }
}

impl From<CudaEvent> for DevicePlace {
    fn from(event: CudaEvent) -> Self {
        Self::Event(event.0)
    }
}

/// A place that was asked about.
#[derive(Debug)]
pub(super) enum Mark {
    /// Recorded by wharf.
    Ours(Event),
    /// The program's event.
    Theirs(RawEvent),
}

/// Fixes the place. A few short calls.
/// Errors: `InvalidArgument`: no such stream, or it is capturing a graph; what the driver said.
pub(super) fn mark(cuda: &'static Cuda, place: DevicePlace) -> Result<Mark> {
    match place {
        DevicePlace::Event(event) => Ok(Mark::Theirs(RawEvent(event.raw))),
        DevicePlace::Stream(stream) => {
            let stream = adopt(cuda, stream)?;
            let guard = stream.context().enter()?;
            let event = guard.event(Waiting::Spin)?;
            stream.record(&guard, &event)?;
            Ok(Mark::Ours(event))
        }
    }
}

/// The stream, checked.
/// Errors: as of [`mark`].
pub(super) fn adopt(cuda: &'static Cuda, stream: DeviceStream) -> Result<Stream> {
    /// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` of the header.
    const LEGACY: usize = 1;
    const PER_THREAD: usize = 2;
    let raw = RawStream(stream.raw);
    match stream.raw {
        PER_THREAD => Err(Error::new(
            ErrorKind::InvalidArgument,
            "the default stream of each thread is another one in wharf's threads: give a stream of its own",
        )),
        0 | LEGACY => {
            let context = cuda.device(stream.device)?.active_context()?;
            let context = context.ok_or_else(|| {
                let text = format!(
                    "nobody uses cuda:{}: it has no default stream",
                    stream.device
                );
                Error::new(ErrorKind::InvalidArgument, text)
            })?;
            // SAFETY: a default stream lives as long as its context, which is retained.
            unsafe { context.adopt_stream(raw) }
        }
        // SAFETY: whoever made the handle vouches for it.
        _ => unsafe { cuda.adopt_stream(raw) },
    }
}
