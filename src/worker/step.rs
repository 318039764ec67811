//! One step of an operation that goes out, and what steps have in common.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns, as `verbs/send.rs` has it.
#![allow(unsafe_code)]

use crate::{
    error::Result,
    transport::{LinkAttributes, MAX_PREFIX, RawSlice, SendError, Zcopy},
    worker::metrics::Counted,
};

/// From this size on a payload is sent from where it is, if the link can.
pub(in crate::worker) const ZCOPY_FROM: usize = 8 << 10;

/// Fragments of one operation that a link may hold at a time.
pub(crate) const FRAGMENTS_IN_FLIGHT: u32 = 4;

/// How one step of an operation went.
pub(crate) enum Step {
    /// Nothing more to send for it.
    Sent,
    /// More to send, after others had their turn.
    More,
    /// Waits for an event; put in the queue again by it.
    Parked,
    /// Waits until the peer takes another announcement.
    Held,
}

pub(crate) fn fragment_size(attributes: &LinkAttributes, prefix: usize) -> usize {
    if attributes.max_zcopy > 0 {
        FRAGMENT.min(attributes.max_zcopy)
    } else {
        COPIED.min(attributes.max_bcopy - prefix)
    }
}

/// Sends one message by the way that suits its size.
///
/// # Safety
/// As [`Link::am_zcopy`](crate::transport::Link::am_zcopy) asks.
pub(crate) unsafe fn transmit(
    link: &mut Counted,
    attributes: &LinkAttributes,
    id: u8,
    header: u64,
    prefix: &[u8],
    data: &[u8],
    token: u64,
) -> Result<Zcopy, SendError> {
    if prefix.len() + data.len() <= attributes.max_bcopy
        && (attributes.max_zcopy == 0 || data.len() < ZCOPY_FROM || prefix.len() > MAX_PREFIX)
    {
        link.am_bcopy(id, header, prefix, data)
            .map(|()| Zcopy::Done)
    } else {
        let payload = RawSlice {
            address: data.as_ptr(),
            length: data.len(),
        };
        // SAFETY: the caller's promise.
        unsafe { link.am_zcopy(id, header, prefix, payload, token) }
    }
}

/// Longest one that is copied: both ends copy at the same time, each another one.
pub(in crate::worker) const COPIED: usize = 32 << 10;

/// Longest fragment: what a small message waits behind at most.
pub(in crate::worker) const FRAGMENT: usize = 256 << 10;
