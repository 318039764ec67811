//! Copies so small that the processor makes them sooner than a device is told of them: by loads and stores through a large BAR, where the host reaches all of
//! the device's memory at the device's own addresses.
//!
//! # When it pays
//! Stores are combined and posted; loads are not cached and take about a microsecond for each line. A copy by the device takes 6 µs and more. So far the limits
//! are those of a link of PCIe 4 by its data sheet, not measured on a device: 16 KiB are stored within about 1.5 µs, 256 bytes loaded within 4 µs. A call here keeps
//! the worker's lock.
//!
//! # Order
//! A fence ends the stores, so that what is handed to the device later, by its doorbell, comes behind the bytes. Where the device has a register that
//! flushes what the host wrote (HDP), it is written and read back.
//!
//! # Safety
//! Whoever asks for a copy vouches for both ends during the call. Memory is touched only when it is an allocation of this process's that was met and not freed, of
//! a device with a large BAR.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{Ordering::SeqCst, fence},
    },
};

use super::shared::Shared;
use crate::{
    driver::hsa::HdpFlush,
    error::Result,
    transport::accelerator::{CopyRequest, InlineCopy, SmallCopies, SmallCopy, Way},
    types::MemoryType,
};

/// What is copied here.
const LIMITS: SmallCopies = SmallCopies {
    name: "large BAR",
    to_device: 16 << 10,
    to_host: 256,
};

/// Small copies of one engine.
#[derive(Debug)]
pub(super) struct Bar {
    shared: Arc<Shared>,
    /// By ordinal.
    flush: Vec<Option<HdpFlush>>,
}

/// `None`: no device has a large BAR.
pub(super) fn open(shared: &Arc<Shared>) -> Option<Box<dyn InlineCopy>> {
    let devices = &shared.machine().ok()?.devices;
    devices
        .iter()
        .any(|device| device.large_bar)
        .then_some(())?;
    let flush = devices.iter().map(|device| device.agent.hdp_flush());
    Some(Box::new(Bar {
        shared: Arc::clone(shared),
        flush: flush.collect(),
    }))
}

impl InlineCopy for Bar {
    fn small_copies(&self) -> Option<SmallCopies> {
        Some(LIMITS)
    }

    unsafe fn try_copy(&mut self, request: &CopyRequest) -> Result<bool> {
        let Some(copy) = SmallCopy::of(request, &LIMITS) else {
            return Ok(false);
        };
        let seen = self.shared.known.find(copy.device, copy.length);
        let Some(MemoryType::Rocm(ordinal)) = seen
            .filter(|seen| seen.by_host)
            .map(|seen| seen.memory_type)
        else {
            return Ok(false);
        };
        // The engine tells that the device is lost.
        let machine = self.shared.machine()?;
        if super::failure::fault(machine, ordinal)?.is_some() {
            return Ok(false);
        }
        let window = ptr::with_exposed_provenance_mut::<u8>(copy.device as usize);
        if copy.way == Way::Store {
            // SAFETY: the caller vouches for both ends; the host reaches the device's.
            unsafe { ptr::copy_nonoverlapping(copy.host.cast_const(), window, copy.length) };
            fence(SeqCst);
            if let Some(Some(flush)) = self.flush.get(usize::from(ordinal)) {
                flush.flush();
            }
        } else {
            fence(SeqCst);
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(window.cast_const(), copy.host, copy.length) };
        }
        Ok(true)
    }
}
