//! The queue pair that carries a channel's bytes, and its memory.
//!
//! # Safety
//! The memory is one allocation of slots, which the device reads and writes only between the posting of a slot and its completion, or the
//! queue pair's end. Each slot has a mark that says whether it is posted: bytes of a posted slot are not touched here, and no slot is posted
//! twice. The queue pair is dropped before the registration, and the memory is freed
//! when that has ended.
#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ops::Range,
    ptr::NonNull,
    slice,
};

use super::window::{HEADER, RECEIVES};
use crate::{
    driver::verbs::{
        Access, Capacity, Completion, CompletionChannel, CompletionQueue, MemoryRegion, QueuePair,
        QueuePairOptions, ReceiveRequest, SendFlags, SendRequest, Sge, Verbs,
    },
    error::{Error, ErrorKind, Result},
};

/// Bytes of a slot.
pub(super) const SLOT: usize = 4096;
/// Slots to send from.
pub(super) const SENDS: usize = 4;

/// Those to receive into come first.
const SLOTS: usize = RECEIVES + SENDS;

/// Zeroed pages, registered.
#[derive(Debug)]
struct Pages(NonNull<u8>, Option<MemoryRegion>);

// SAFETY: an allocation of its own.
unsafe impl Send for Pages {}
// SAFETY: shared references give nothing away.
unsafe impl Sync for Pages {}

const PAGES: Layout = match Layout::from_size_align(SLOTS * SLOT, SLOT) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

impl Pages {
    fn new() -> Self {
        // SAFETY: not of size 0.
        let start = unsafe { alloc_zeroed(PAGES) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(PAGES));
        Self(start, None)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Where the registration does not end they stay: the device may go on to write them.
        if self.1.take().is_none_or(|region| region.end().is_ok()) {
            // SAFETY: allocated with this layout; the device knows them no longer.
            unsafe { dealloc(self.0.as_ptr(), PAGES) };
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// So many bytes were received into a slot.
    Received { slot: usize, length: usize },
    /// A slot was sent.
    Sent { slot: usize },
}

/// A queue pair with its memory.
#[derive(Debug)]
pub(super) struct Pair {
    // In the order of their ends.
    queue_pair: QueuePair,
    queue: CompletionQueue,
    pages: Pages,
    posted: [bool; SLOTS],
}

impl Pair {
    /// Opens the device of that name and makes a queue pair on it, reset.
    /// Errors: as of the calls: `DeviceLost`, `Exhausted` with the remedy.
    pub(super) fn open(verbs: &'static Verbs, device: &str) -> Result<(Self, CompletionChannel)> {
        let devices = verbs.devices()?;
        let found = devices.iter().find(|found| found.name() == device);
        let Some(found) = found else {
            return Err(Error::new(
                ErrorKind::DeviceLost,
                format!("the device {device} is gone"),
            ));
        };
        let context = found.open()?;
        let domain = context.protection_domain()?;
        let channel = context.completion_channel()?;
        let queue = context.completion_queue(SLOTS as u32, Some(&channel), 0, 0)?;
        let mut pages = Pages::new();
        let address = pages.0.as_ptr().expose_provenance();
        // SAFETY: pages of their own, touched by the rules above.
        let region = unsafe { domain.register(address, SLOTS * SLOT, Access::LOCAL_WRITE) }?;
        pages.1 = Some(region);
        let queue_pair = domain.queue_pair(&QueuePairOptions {
            sends: &queue,
            receives: &queue,
            shared_receives: None,
            capacity: Capacity {
                sends: SENDS as u32,
                receives: RECEIVES as u32,
                send_pieces: 1,
                receive_pieces: 1,
                inline_bytes: 0,
            },
            signal_all: false,
        })?;
        let pair = Self {
            queue_pair,
            queue,
            pages,
            posted: [false; SLOTS],
        };
        Ok((pair, channel))
    }

    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Has the next completion told by the channel.
    /// Errors: as of any call.
    pub(super) fn arm(&self) -> Result<()> {
        self.queue.arm(false)
    }

    /// The slots to send from.
    pub(super) fn send_slots() -> Vec<usize> {
        (RECEIVES..SLOTS).collect()
    }

    fn piece(&self, range: Range<usize>) -> Result<Sge> {
        match &self.pages.1 {
            Some(region) => region.piece(range),
            None => Err(Error::new(
                ErrorKind::Closed,
                "pages that are not registered",
            )),
        }
    }

    fn free(&self, slot: usize) -> Result<()> {
        match self.posted.get(slot) {
            Some(false) => Ok(()),
            _ => Err(Error::new(ErrorKind::Protocol, "a slot that is in use")),
        }
    }

    /// Posts the first receives.
    /// Errors: as [`Pair::receive`].
    pub(super) fn receive_all(&mut self) -> Result<()> {
        (0..RECEIVES).try_for_each(|slot| self.receive(slot))
    }

    /// Posts a receive.
    /// Errors: `WouldBlock`: full, which is not so by the count of slots. Else as of any call.
    pub(super) fn receive(&mut self, slot: usize) -> Result<()> {
        self.free(slot)?;
        let piece = [self.piece(slot * SLOT..(slot + 1) * SLOT)?];
        let mut request = [ReceiveRequest::new(slot as u64, &piece)];
        // SAFETY: the slot is free, and marked until it has completed.
        let posted = unsafe { self.queue_pair.post_receive(&mut request) };
        posted.map_err(|refused| refused.error("ibv_post_recv", self.queue_pair.device()))?;
        self.posted[slot] = true;
        Ok(())
    }

    /// The bytes of a slot after the header, to be filled.
    /// Errors: `Protocol`: the slot is in use.
    pub(super) fn body(&mut self, slot: usize) -> Result<&mut [u8]> {
        self.free(slot)?;
        // SAFETY: a free slot of the pages, which live as long as this does, borrowed with it.
        let bytes =
            unsafe { slice::from_raw_parts_mut(self.pages.0.as_ptr().add(slot * SLOT), SLOT) };
        Ok(&mut bytes[HEADER..])
    }

    /// The bytes of a slot that has been received into.
    /// Errors: `Protocol`: the slot is in use, or has fewer.
    pub(super) fn bytes(&self, slot: usize, length: usize) -> Result<&[u8]> {
        self.free(slot)?;
        if length > SLOT {
            return Err(Error::new(ErrorKind::Protocol, "more than a slot holds"));
        }
        // SAFETY: as above.
        Ok(unsafe { slice::from_raw_parts(self.pages.0.as_ptr().add(slot * SLOT), length) })
    }

    /// Sends a slot: the header, and so many bytes of its body.
    /// Errors: as [`Pair::receive`].
    pub(super) fn send(&mut self, slot: usize, header: [u8; HEADER], length: usize) -> Result<()> {
        self.free(slot)?;
        // SAFETY: as above.
        let bytes =
            unsafe { slice::from_raw_parts_mut(self.pages.0.as_ptr().add(slot * SLOT), HEADER) };
        bytes.copy_from_slice(&header);
        let start = slot * SLOT;
        let piece = [self.piece(start..start + HEADER + length.min(SLOT - HEADER))?];
        let mut request = [SendRequest::send(slot as u64, &piece, SendFlags::SIGNALED)];
        // SAFETY: the slot is free, and marked until it has completed.
        let posted = unsafe { self.queue_pair.post_send(&mut request) };
        posted.map_err(|refused| refused.error("ibv_post_send", self.queue_pair.device()))?;
        self.posted[slot] = true;
        Ok(())
    }

    /// What is done by now, in order. Empty: nothing.
    /// Errors: what the device says of a request that failed; the queue pair is of no use then.
    pub(super) fn poll(&mut self, to: &mut Vec<Done>) -> Result<()> {
        to.clear();
        let mut some = [Completion::default(); SLOTS];
        let count = self.queue.poll(&mut some)?;
        for completion in &some[..count] {
            let slot = usize::try_from(completion.id()).unwrap_or(usize::MAX);
            let Some(posted) = self.posted.get_mut(slot) else {
                return Err(Error::new(ErrorKind::Protocol, "the end of nothing"));
            };
            *posted = false;
            if let Some(error) = completion.error() {
                return Err(error);
            }
            to.push(if slot < RECEIVES {
                Done::Received {
                    slot,
                    length: completion.bytes() as usize,
                }
            } else {
                Done::Sent { slot }
            });
        }
        Ok(())
    }
}
