//! `gdr_copy`: copies so small that the processor makes them sooner than a stream is told of them, by loads and stores through a window onto the
//! device's memory (BAR1).
//!
//! ```text
//! try_copy ─▶ short enough? ─▶ a window there? ──yes──▶ still the same memory? ──yes──▶ store or load
//!                                  │ no                    │ no: the window goes
//!                                  └▶ touched before? ─yes─▶ the mapper's thread makes one, for the next copies
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `windows` | the windows of an engine, at most 32, and what is known not to be mapped |
//! | `mapper` | the thread that maps and unmaps, 16 µs and more each |
//!
//! # When it pays
//! Stores are combined and posted: 0.09 µs up to 64 bytes, then 9.6 GB/s; loads are not cached: 0.9 µs, then 0.53 GB/s (README of GDRCopy, V100). A copy by
//! a stream takes 6 to 7 µs there. Even at 40 KB and 2.5 KB; the limits below are the next smaller powers of two, as a call here keeps the
//! worker's lock.
//!
//! # That the memory is still the same
//! Memory is freed without a word to this library, and the address given out again. So the number that the driver gives an allocation once and for all is
//! compared before each copy: the one call of the driver that a copy costs. Where the end of memory is told (wharf's own), its window goes by that.
//!
//! # Order
//! The library ends a copy to the device with a store fence, so that what is handed to the device later, by its doorbell, comes behind the bytes. A copy from
//! the device sees what was reported before it began.
//!
//! # Without GDRCopy
//! Drivers from CUDA 13.3 on map device memory by themselves where the device says so (attribute 152): used where GDRCopy is not there. What such a driver
//! does when memory is freed that is still mapped was not seen yet; nothing here touches it then.
//!
//! # Safety
//! Whoever asks for a copy vouches for both ends during the call. A window onto freed memory is never used: its number is no more that of the
//! address.
#![allow(unsafe_code)]

mod mapper;
mod windows;

use std::{path::Path, slice};

use crate::{
    driver::{
        cuda::{Cuda, DevicePtr},
        gdr::{DirectWindow, Gdr},
    },
    error::{Error, ErrorKind, Result},
    transport::accelerator::{CopyRequest, InlineCopy, SmallCopies, SmallCopy, Way},
    types::MemoryType,
};
use mapper::{Made, Maker, Mapper};
use windows::Windows;

/// What is copied here.
const LIMITS: SmallCopies = SmallCopies {
    name: "gdr_copy",
    to_device: 32 << 10,
    to_host: 2 << 10,
};

/// Small copies of one engine.
#[derive(Debug)]
pub(super) struct GdrCopy {
    cuda: &'static Cuda,
    windows: Windows,
    mapper: Mapper,
}

impl GdrCopy {
    /// With GDRCopy's library, this one or as it is found on this machine, else by the driver, which is initialised. Takes milliseconds the first time.
    /// Errors: why there is neither: no library, or no kernel module that answers; and no device whose memory the driver maps.
    pub(super) fn open(library: Option<&Path>, cuda: &'static Cuda) -> Result<Self> {
        let session = match Gdr::load(library).and_then(Gdr::open) {
            Ok(session) => Some(session),
            Err(_) if is_mapped_by(cuda) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            cuda,
            windows: Windows::new()?,
            mapper: Mapper::new(Maker::new(cuda, session)),
        })
    }

    /// Takes in what the mapper has made, and lets go of windows whose memory's end was told.
    fn settle(&mut self) {
        if let Some(made) = self.mapper.take() {
            match made {
                Made::Window(window) => {
                    if let Some(old) = self.windows.insert(window) {
                        self.mapper.retire(old);
                    }
                }
                Made::Refused { range, error } => {
                    tracing::debug!(target: "wharf::cuda", "no window onto {range:?}: {error}");
                    if error.kind() == ErrorKind::Exhausted
                        && let Some(old) = self.windows.evict()
                    {
                        self.mapper.retire(old);
                    }
                    if let Some(range) = range {
                        self.windows.refuse(range);
                    }
                }
            }
        }
        while let Some(old) = self.windows.ended() {
            self.mapper.retire(old);
        }
    }

    #[cold]
    fn missed(&mut self, at: u64) {
        if !self.mapper.is_busy() && self.windows.wants(at) {
            self.mapper.map(DevicePtr(at));
        }
    }
}

impl InlineCopy for GdrCopy {
    fn small_copies(&self) -> Option<SmallCopies> {
        Some(LIMITS)
    }

    unsafe fn try_copy(&mut self, request: &CopyRequest) -> Result<bool> {
        let Some(copy) = SmallCopy::of(request, &LIMITS) else {
            return Ok(false);
        };
        if !matches!(copy.memory_type, MemoryType::Cuda(_)) {
            return Ok(false);
        }
        let (host, at, length) = (copy.host, copy.device, copy.length);
        self.settle();
        let Some(index) = self.windows.find(at, length) else {
            self.missed(at);
            return Ok(false);
        };
        match self.cuda.buffer_id(DevicePtr(at)) {
            Ok(Some(id)) if self.windows.is_of(index, id) => {}
            Ok(_) => {
                if let Some(old) = self.windows.remove(index) {
                    self.mapper.retire(old);
                }
                self.missed(at);
                return Ok(false);
            }
            // The device may be lost: its stream tells.
            Err(_) => return Ok(false),
        }
        let Some((pane, offset)) = self.windows.at(index, at) else {
            return Ok(false);
        };
        let done = match copy.way {
            Way::Store => {
                // SAFETY: the caller vouches for the source, which is not null.
                let source = unsafe { slice::from_raw_parts(host, length) };
                // SAFETY: the allocation lives, as the caller vouches, and is the one that the window is onto, as was just asked.
                unsafe { pane.write(offset, source) }
            }
            // SAFETY: as above; the caller vouches for the target.
            Way::Load => unsafe { pane.read(offset, host, length) },
        };
        if let Err(error) = done {
            tracing::debug!(target: "wharf::cuda", "a copy through {pane:?}: {error}");
            if let Some(old) = self.windows.remove(index) {
                self.mapper.retire(old);
            }
            return Ok(false);
        }
        Ok(true)
    }
}

/// What makes small copies on this machine. The driver is asked only if it is in use.
/// Errors: why nothing does.
pub(super) fn probe(library: Option<&Path>, cuda: Option<&'static Cuda>) -> Result<String> {
    let opened = Gdr::load(library).and_then(|gdr| gdr.open().map(|_| gdr));
    match opened {
        Ok(gdr) => {
            let (major, minor) = gdr.version();
            Ok(format!("{} {major}.{minor}", gdr.library()))
        }
        Err(_) if cuda.is_some_and(is_mapped_by) => Ok("the CUDA driver's own mappings".to_owned()),
        Err(error) => Err(error),
    }
}

/// Whether the driver maps memory of some device by itself.
fn is_mapped_by(cuda: &'static Cuda) -> bool {
    let devices = cuda.devices().unwrap_or_default();
    let mut devices = devices.iter();
    devices.any(|device| DirectWindow::is_supported(device).unwrap_or(false))
}

/// For an engine that goes on without it.
pub(super) fn open(library: Option<&Path>, cuda: &'static Cuda) -> Option<Box<dyn InlineCopy>> {
    let opened = GdrCopy::open(library, cuda);
    let note = |error: Error| tracing::debug!(target: "wharf::cuda", "no gdr_copy: {error}");
    Some(Box::new(opened.map_err(note).ok()?))
}
