//! One step of an operation that goes out, and what steps have in common.
//!
//! # Safety
//! Zero-copy sends lend the link memory that the entry of the table owns, as `verbs/send.rs` has it.
#![allow(unsafe_code)]

use crate::{
    error::Result,
    memory::Buffer,
    protocol::control,
    transport::{LinkAttributes, MAX_PREFIX, RawSlice, SendError, Zcopy},
    types::{LinkId, OpKey},
    worker::{
        metrics::Counted,
        operations::{Ended, Operations, Outgoing, Work},
    },
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

impl Step {
    /// After a message that may have been the last.
    pub(crate) fn after(is_last: bool) -> Self {
        match is_last {
            true => Self::Sent,
            false => Self::More,
        }
    }
}

pub(crate) fn fragment_size(link: &Counted, attributes: &LinkAttributes, prefix: usize) -> usize {
    if attributes.max_zcopy > 0 {
        link.fragment().max(COPIED).min(attributes.max_zcopy)
    } else {
        COPIED.min(attributes.max_bcopy - prefix)
    }
}

/// Where an operation's next message goes: its link, at its turn there.
pub(crate) struct Outlet<'a> {
    pub(crate) link: &'a mut Counted,
    pub(crate) attributes: LinkAttributes,
    pub(crate) key: OpKey,
    /// Of its entry.
    pub(crate) in_flight: &'a mut u32,
    /// Where messages of many parts are put together.
    pub(crate) scratch: &'a mut Vec<u8>,
}

impl Outlet<'_> {
    /// Whether the link holds as much of the operation as it may.
    pub(crate) fn is_full(&self) -> bool {
        *self.in_flight >= FRAGMENTS_IN_FLIGHT
    }

    /// Sends one message by the way that suits its size.
    ///
    /// # Safety
    /// The entry of the operation owns `data`, and stays while `in_flight` counts this.
    pub(crate) unsafe fn transmit(
        &mut self,
        id: u8,
        header: u64,
        prefix: &[u8],
        data: &[u8],
    ) -> Result<(), SendError> {
        let most = self.attributes.max_bcopy;
        let is_zcopy = self.attributes.max_zcopy > 0;
        if prefix.len() + data.len() <= most
            && (!is_zcopy || data.len() < ZCOPY_FROM || prefix.len() > MAX_PREFIX)
        {
            return self.link.am_bcopy(id, header, prefix, data);
        }
        let payload = RawSlice {
            address: data.as_ptr(),
            length: data.len(),
        };
        // SAFETY: the caller's promise.
        let sent = unsafe { self.link.am_zcopy(id, header, prefix, payload, self.key.0) }?;
        *self.in_flight += u32::from(sent == Zcopy::Pending);
        Ok(())
    }

    /// Sends the next fragment of a message.
    pub(crate) fn fragment(
        &mut self,
        out: &mut Outgoing,
        message: &Buffer,
    ) -> Result<Step, SendError> {
        let (run, left) = (message.host_from(out.next), message.len() - out.next);
        if run.len() == left || run.len() >= ZCOPY_FROM {
            return self.fragment_of(out, run, left);
        }
        if self.is_full() {
            return Ok(Step::Parked);
        }
        let scratch = &mut *self.scratch;
        scratch.clear();
        message.gather(out.next, left.min(self.attributes.max_bcopy), scratch);
        self.link
            .am_bcopy(control::FRAGMENT, out.to, &[], scratch)?;
        out.next += scratch.len();
        Ok(Step::after(scratch.len() == left))
    }

    /// The same, of a run of bytes that the operation owns, which `left` bytes from here on begin with.
    pub(crate) fn fragment_of(
        &mut self,
        out: &mut Outgoing,
        run: &[u8],
        left: usize,
    ) -> Result<Step, SendError> {
        if self.is_full() {
            return Ok(Step::Parked);
        }
        let data = &run[..run.len().min(fragment_size(self.link, &self.attributes, 0))];
        // SAFETY: the operation's, as the caller says.
        unsafe { self.transmit(control::FRAGMENT, out.to, &[], data) }?;
        out.next += data.len();
        Ok(Step::after(data.len() == left))
    }
}

/// Enters memory, in `holder`, that a link is going to send from where it is.
pub(crate) fn lend(operations: &mut Operations, link: LinkId, holder: Work) -> OpKey {
    let key = operations.insert(Some(link), true, holder);
    if let Some(entry) = operations.get(key) {
        entry.in_flight = 1;
        // Over as soon as the link has let go of it.
        entry.deferred = Some(Ended::Done(Ok(())));
    }
    key
}

/// The link has taken it, or not.
pub(crate) fn lent(
    operations: &mut Operations,
    key: OpKey,
    sent: Result<Zcopy, SendError>,
) -> Result<(), SendError> {
    if !matches!(sent, Ok(Zcopy::Pending)) {
        operations.take_work(key);
    }
    sent.map(drop)
}

/// Longest one that is copied: both ends copy at the same time, each another one.
pub(in crate::worker) const COPIED: usize = 32 << 10;
