//! Copies that the processor makes by itself, within the call.

use std::fmt;

use crate::{
    error::Result,
    transport::accelerator::{CopyEnd, CopyRequest, SmallCopies},
    types::MemoryType,
};

/// A window of the processor's into device memory (`gdr_copy`), for copies too small to be worth a stream's while.
pub(in crate::transport) trait InlineCopy: Send + fmt::Debug {
    /// What it makes, at most: for people.
    fn small_copies(&self) -> Option<SmallCopies> {
        None
    }

    /// Makes the copy now if it can and it pays; `false`: a stream makes it. The host's end may be ordinary memory. Called with the worker's
    /// lock held: it makes no slow call; what is not mapped yet is mapped by another thread meanwhile.
    ///
    /// # Errors
    /// This copy cannot be made at all.
    ///
    /// # Safety
    /// As of [`CopyEngine::copy`](crate::transport::accelerator::CopyEngine::copy), for the length of the call.
    #[allow(unsafe_code)]
    unsafe fn try_copy(&mut self, request: &CopyRequest) -> Result<bool>;
}

/// Which way a small copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum Way {
    /// Into the device's memory.
    Store,
    /// Out of it.
    Load,
}

/// A copy between the host and a device.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct SmallCopy {
    pub(in crate::transport) way: Way,
    /// Not null.
    pub(in crate::transport) host: *mut u8,
    pub(in crate::transport) device: u64,
    pub(in crate::transport) memory_type: MemoryType,
    pub(in crate::transport) length: usize,
}

impl SmallCopy {
    /// `None`: of other ends, or not within `limits`. What is wrong otherwise, the device tells.
    pub(in crate::transport) fn of(request: &CopyRequest, limits: &SmallCopies) -> Option<Self> {
        let (way, host, end) = match (request.from, request.to) {
            (CopyEnd::Host { address, .. }, device) => (Way::Store, address, device),
            (device, CopyEnd::Host { address, .. }) => (Way::Load, address, device),
            _ => return None,
        };
        let CopyEnd::Device {
            address: device,
            memory_type,
        } = end
        else {
            return None;
        };
        let limit = match way {
            Way::Store => limits.to_device,
            Way::Load => limits.to_host,
        };
        let length = request.length;
        ((1..=limit).contains(&length) && !host.is_null()).then_some(Self {
            way,
            host,
            device,
            memory_type,
            length,
        })
    }
}
