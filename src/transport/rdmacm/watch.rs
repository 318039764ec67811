//! Descriptors of the libraries, watched by the runtime.
//!
//! # Safety
//! Both channels keep their descriptor open and the same as long as they live, and what watches holds them.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    driver::{rdmacm::EventChannel, verbs::CompletionChannel},
    error::{Error, Result},
};

/// Readable when there are events. To be made on a runtime.
/// Errors: what the system said.
pub(super) fn events(channel: EventChannel) -> Result<AsyncFd<EventChannel>> {
    // SAFETY: one of the two; see above.
    unsafe { watch(channel) }
}

/// Readable when a queue that was armed has something. To be made on a runtime.
/// Errors: what the system said.
pub(super) fn completions(channel: CompletionChannel) -> Result<AsyncFd<CompletionChannel>> {
    // SAFETY: as above.
    unsafe { watch(channel) }
}

/// # Safety
/// The descriptor stays open and the same as long as `channel` lives.
unsafe fn watch<C: AsFd + std::os::fd::AsRawFd>(channel: C) -> Result<AsyncFd<C>> {
    // SAFETY: the caller says so.
    unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }
        .map_err(|error| Error::io("watching an RDMA device's descriptor", error))
}
