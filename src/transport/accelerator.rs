//! What an accelerator is: the traits that a device's transport implements and the worker drives, to copy between the host's memory and the
//! device's.
//!
//! ```text
//! Accelerator ── domain() ──▶ MemoryDomain   (whose memory is this, allocate, export; shared by the context's workers)
//!      │
//!      └─────── open() ────▶ CopyEngine      (copies, one for each worker that met the device's memory, behind the worker's lock)
//! ```
//!
//! # Duties
//! * [`Accelerator::probe`] takes no device and initialises no driver.
//! * [`CopyEngine::copy`], [`flush`](CopyEngine::flush) and [`progress`](CopyEngine::progress) are called on runtime threads with the worker's lock
//!   held: they make no driver call that can take longer than a few microseconds, and `progress` makes none at all while nothing has completed.
//! * [`CopyEngine::arm`] follows *arm, then drain, then await*, as that of an [`Interface`](super::Interface).
//! * Every copy that was accepted is reported exactly once, in any order, also when the device is lost.

use std::{fmt, sync::Arc};

use crate::{
    error::{Error, ErrorKind, Result},
    memory::MemoryDomain,
    transport::{Registry, SendError},
    types::MemoryType,
};

/// A kind of device whose memory can be copied to and from. Lives as long as the context.
pub trait Accelerator: Send + Sync + fmt::Debug + 'static {
    /// The name used in configuration (`cuda_copy`, `rocm_copy`, …).
    fn name(&self) -> &'static str;

    /// Whether its library and a device are there.
    ///
    /// # Errors
    /// The reason why not, with the remedy where there is one.
    fn probe(&self) -> Result<()>;

    /// Who knows its memory.
    fn domain(&self) -> Arc<dyn MemoryDomain>;

    /// Whether copies to or from this memory are its business. The host's is not.
    fn serves(&self, memory_type: MemoryType) -> bool;

    /// Opens it for one worker. May take long; called outside the worker's lock, on a thread that may block.
    ///
    /// # Errors
    /// What the driver said.
    fn open(&self) -> Result<Box<dyn CopyEngine>>;
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// Host memory.
    Host {
        /// First byte.
        address: *mut u8,
        /// The accelerator's own domain allocated it as [`MemoryType::HostPinned`], so that the device reads and writes it by itself.
        pinned: bool,
    },
    /// Memory of a device.
    Device {
        /// First byte, as the device has it.
        address: u64,
        /// Which device's.
        memory_type: MemoryType,
    },
}

/// Bytes to copy. At least one end is the accelerator's.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// Where they are.
    pub from: CopyEnd,
    /// Where they go. Does not overlap `from`.
    pub to: CopyEnd,
    /// How many, at least 1 and at most [`CopyAttributes::max_copy`].
    pub length: usize,
    /// Given back to [`CopySink::copied`].
    pub token: u64,
}

#[allow(unsafe_code)]
// SAFETY: plain addresses; whoever submits the request vouches for them.
unsafe impl Send for CopyRequest {}

/// What an engine can do; fixed when it is opened. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyAttributes {
    /// Longest single copy.
    pub max_copy: usize,
    /// Copies that may be under way at once.
    pub max_in_flight: usize,
    /// Length of the pieces that a long transfer is best cut into when it goes through host memory.
    pub fragment: usize,
    /// Whether it takes ordinary host memory as an end: its own staging then. Else one end is pinned, or both are the device's.
    pub takes_pageable: bool,
}

/// A stream of the program's own: a queue of work for a device, in which it is done in order. Made by the types of its vendor, such as
/// [`CudaStream`](super::cuda::CudaStream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStream {
    pub(crate) accelerator: &'static str,
    pub(crate) device: u16,
    pub(crate) raw: usize,
}

/// A place in the program's own work for a device: the end of a stream as it is now, or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlace {
    /// All that is in this stream when the engine is asked.
    Stream(DeviceStream),
    /// What this event was last recorded behind, with the fields of a stream.
    Event(DeviceStream),
}

impl DeviceStream {
    /// The name of the [`Accelerator`] whose engine takes it.
    #[must_use]
    pub fn accelerator(&self) -> &'static str {
        self.accelerator
    }
}

impl DevicePlace {
    /// The name of the [`Accelerator`] whose engine takes it.
    #[must_use]
    pub fn accelerator(&self) -> &'static str {
        let (Self::Stream(at) | Self::Event(at)) = self;
        at.accelerator
    }
}

/// Where an engine reports.
pub trait CopySink {
    /// The copy with this token is over: its bytes are visible at their place, for the host and for the device's next copy; or nothing is known of
    /// them. Its memory is free.
    fn copied(&mut self, token: u64, result: Result<()>);

    /// The device is lost. What is under way is reported by [`CopySink::copied`] first; nothing more is accepted.
    fn lost(&mut self, error: Error);
}

/// Copies for one worker. Called with the worker's lock held.
pub trait CopyEngine: Send + fmt::Debug {
    /// What it can do.
    fn attributes(&self) -> CopyAttributes;

    /// Begins a copy. Copies may be done in any order; one that must see another's bytes is begun after the other was reported.
    ///
    /// # Safety
    /// Both ends stay valid, and nobody else writes either or reads `to`, until the copy was reported or the engine was dropped.
    ///
    /// # Errors
    /// [`SendError::Full`]: too many are under way, nothing was taken; try again after the next report. [`SendError::Failed`]: this copy cannot be done.
    #[allow(unsafe_code)]
    unsafe fn copy(&mut self, request: CopyRequest) -> Result<(), SendError>;

    /// Reports `token` by [`CopySink::copied`] once the program's work up to `place` is done: then what that work wrote can be copied. Counts as a
    /// copy under way. The place is fixed by this call.
    ///
    /// # Errors
    /// As of [`CopyEngine::copy`]; `InvalidArgument`: the stream is capturing a graph; `Unsupported`: not this accelerator's.
    fn after(&mut self, place: DevicePlace, token: u64) -> Result<(), SendError> {
        let _ = token;
        Err(SendError::Failed(foreign(place.accelerator())))
    }

    /// Makes the program's stream wait from here on until [`CopyEngine::release`] is called with the number that this gives: work that the program
    /// queues afterwards sees what was copied before. The engine releases what is still held when it ends.
    ///
    /// # Errors
    /// `Exhausted`: too many are held; `Unsupported`: the driver cannot, or not this accelerator's; `InvalidArgument`: the stream is capturing a graph.
    fn hold(&mut self, stream: DeviceStream) -> Result<u64> {
        Err(foreign(stream.accelerator))
    }

    /// Lets a stream go on. No call of the driver.
    fn release(&mut self, hold: u64) {
        let _ = hold;
    }

    /// The end of a batch: what was begun is handed to the device now.
    fn flush(&mut self);

    /// Reports what has completed, at most about `budget` copies. Returns how many.
    fn progress(&mut self, budget: usize, sink: &mut dyn CopySink) -> usize;

    /// Registers its fds. As [`Interface::register`](super::Interface::register).
    ///
    /// # Errors
    /// What the system said.
    fn register(&mut self, registry: Registry) -> Result<()>;

    /// An fd registered under `token` became ready.
    fn ready(&mut self, token: usize);

    /// Asks to be woken through the fds by the next completion. `false`: something has completed already. Nothing is asked for when nothing is under way.
    fn arm(&mut self) -> bool;

    /// Takes back [`CopyEngine::arm`]: this side polls again.
    fn disarm(&mut self);

    /// Waits until nothing is under way; what is not over within a few seconds is given up with the device, and its memory is never
    /// touched again by it or never freed. Called before the engine is dropped, on a thread that may block.
    fn quiesce(&mut self);
}

#[cold]
fn foreign(accelerator: &str) -> Error {
    let text = format!("this engine takes no streams of {accelerator}");
    Error::new(ErrorKind::Unsupported, text)
}
