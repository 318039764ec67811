//! What the connections of a worker to one device share: a completion queue, and receives.
//!
//! # Safety
//! A receive's memory belongs to the device from when it is posted until its completion was polled.
#![allow(unsafe_code)]

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use super::{buffers::Memory, device::OpenDevice, wire::HEADER};
use crate::{
    driver::verbs::{
        Access, Completion, CompletionChannel, CompletionQueue, ReceiveRequest, Sge,
        SharedReceiveQueue,
    },
    error::{Error, ErrorKind, Result},
    trace,
    util::lock::Mutex,
};

/// Longest body of a message, in bytes.
pub(super) const BODY: usize = 8 << 10;
/// Bytes of a receive, and of the longest message with its header.
pub(super) const SEGMENT: usize = BODY + HEADER;
/// Receives of one set of queues.
const RECEIVES: u32 = 1024;
/// The least that is of use.
const LEAST_RECEIVES: u32 = 128;
/// Receives that are posted with one call.
pub(super) const BATCH: usize = 32;
/// Receives that may have been taken and not be posted again yet, though the other side was told of them already.
const SPARE: u32 = 2 * BATCH as u32;
// Less than a batch is left unposted for as long as nothing comes, besides the one that is being delivered.
const _: () = assert!(SPARE as usize >= BATCH);
/// Messages that carry only credits and that a peer may have on their way: it owes at most two halves of a window, one more for whichever was
/// counted a moment before, and the one that a flush waits for.
const CREDIT_MESSAGES: u32 = 4;
/// The most that may come for a connection that is not attached.
pub(super) const EARLY: usize = (WINDOWS.1 + CREDIT_MESSAGES) as usize;
/// Messages of one peer that may be on their way.
const WINDOWS: (u32, u32) = (16, 128);
/// Entries of a completion queue, where the device has so many.
const COMPLETIONS: u32 = 8192;

/// One set of queues. Never grows: who finds no room makes another set.
pub(super) struct Queues {
    receive_queue: SharedReceiveQueue,
    pub(super) completions: CompletionQueue,
    pub(super) channel: CompletionChannel,
    receives: Memory,
    count: u32,
    left: Mutex<Left>,
    /// Numbers of queue pairs of connections that are not attached yet. What comes for them is kept.
    expected: Mutex<HashSet<u32>>,
    /// Nothing comes of them any more.
    failed: AtomicBool,
    /// [`OpenDevice::failed_queues`] when they were made.
    made_at: u64,
    pub(super) device: Arc<OpenDevice>,
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues")
            .field("device", &self.device.name())
            .field("receives", &self.count)
            .finish_non_exhaustive()
    }
}

/// What no connection has yet.
#[derive(Debug)]
struct Left {
    receives: u32,
    completions: u32,
}

impl Queues {
    /// Makes them, and posts all receives. May take milliseconds.
    pub(super) fn new(device: &Arc<OpenDevice>, sends: u32) -> Result<Self> {
        let most = device.attributes.max_shared_receives.min(RECEIVES);
        let mut count = most;
        // A low limit on locked memory takes fewer.
        let receives = loop {
            let length = count as usize * SEGMENT;
            match Memory::new(&device.domain, length, Access::LOCAL_WRITE) {
                Err(error)
                    if error.kind() == ErrorKind::Exhausted && count / 2 >= LEAST_RECEIVES =>
                {
                    count /= 2;
                }
                made => break made?,
            }
        };
        if count < most {
            trace::slower!(format!("few receives: {}", device.name()), target: "wharf::verbs", device = device.name(), "{count} receives instead of {most}: too little memory may be locked (ulimit -l)");
        }
        let entries = device.attributes.max_completions.min(COMPLETIONS);
        if count < SPARE + WINDOWS.0 + CREDIT_MESSAGES || entries < count + sends {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has queues of {count} receives and {entries} completions: too few",
                    device.name()
                ),
            ));
        }
        let made_at = device.failed_queues();
        let channel = device.context.completion_channel()?;
        let completions = device
            .context
            .completion_queue(entries, Some(&channel), 0, 0)?;
        let receive_queue = device.domain.shared_receive_queue(count, 1, 0)?;
        let this = Self {
            receive_queue,
            completions,
            channel,
            receives,
            count,
            left: Mutex::new(Left {
                receives: count - SPARE,
                completions: entries - count,
            }),
            expected: Mutex::default(),
            failed: AtomicBool::new(false),
            made_at,
            device: Arc::clone(device),
        };
        let all: Vec<u32> = (0..count).collect();
        for some in all.chunks(BATCH) {
            // SAFETY: never posted before.
            unsafe { this.post(some) }?;
        }
        Ok(this)
    }

    /// Nothing comes of them any more: new connections get others.
    pub(super) fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed) || self.made_at != self.device.failed_queues()
    }

    pub(super) fn receive_queue(&self) -> &SharedReceiveQueue {
        &self.receive_queue
    }

    /// Takes a part of what is left: completions for so many sends, and for `messages` a window.
    pub(super) fn reserve(
        self: &Arc<Self>,
        completions: u32,
        messages: bool,
    ) -> Option<Reservation> {
        let mut left = self.left.lock();
        let (window, receives) = match messages {
            true => {
                let window = (left.receives / 8).clamp(WINDOWS.0, WINDOWS.1);
                (window, window + CREDIT_MESSAGES)
            }
            false => (0, 0),
        };
        if left.receives < receives || left.completions < completions {
            return None;
        }
        left.receives -= receives;
        left.completions -= completions;
        Some(Reservation {
            window,
            receives,
            completions,
            number: AtomicU32::new(NONE),
            queues: Arc::clone(self),
        })
    }

    /// Whether a connection with this queue pair is being made.
    pub(super) fn expects(&self, number: u32) -> bool {
        self.expected.lock().contains(&number)
    }

    /// What was received into a buffer.
    ///
    /// # Safety
    /// Its completion was polled, and it is not posted again as long as the slice lives.
    #[inline]
    pub(super) unsafe fn received(&self, index: u32, length: u32) -> &[u8] {
        let length = (length as usize).min(SEGMENT);
        // SAFETY: the device wrote it and is done with it.
        unsafe {
            self.receives
                .bytes(index as usize % self.count as usize * SEGMENT, length)
        }
    }

    /// Posts at most [`BATCH`] receives.
    /// Errors: what the device said.
    ///
    /// # Safety
    /// They are not posted, and nobody looks at them.
    #[inline]
    pub(super) unsafe fn post(&self, indices: &[u32]) -> Result<()> {
        let mut pieces = [Sge::default(); BATCH];
        let mut requests = [ReceiveRequest::new(0, &[]); BATCH];
        let places = pieces.iter_mut().zip(&mut requests);
        let mut count = 0;
        for ((piece, request), index) in places.zip(indices) {
            *piece = self.receives.piece(*index as usize * SEGMENT, SEGMENT);
            *request =
                ReceiveRequest::new(RECEIVE | u64::from(*index), std::slice::from_ref(piece));
            count += 1;
        }
        // SAFETY: memory of ours that nobody uses; it is registered for longer than the queue exists, or its key means nothing any more.
        unsafe { self.receive_queue.post(&mut requests[..count]) }.map_err(|refused| {
            let error = refused.error("ibv_post_srq_recv", self.device.name());
            match refused.is_full() {
                // There are no more than it was made for.
                true => Error::new(ErrorKind::Exhausted, error.to_string()).with_source(error),
                false => error,
            }
        })
    }
}

/// In the number of a request: it is a receive, and the rest is its index.
const RECEIVE: u64 = 1 << 63;

/// The index of the receive that has completed; `None`: it was a send.
#[inline]
pub(super) fn receive_of(completion: &Completion) -> Option<u32> {
    let id = completion.id();
    (id & RECEIVE != 0).then_some(id as u32)
}

/// A connection's part of its queues. Given back when dropped, after the queue pair.
#[derive(Debug)]
pub(super) struct Reservation {
    /// Messages that the peer may have on their way.
    pub(super) window: u32,
    receives: u32,
    completions: u32,
    /// Of the queue pair, as long as the connection is not attached.
    number: AtomicU32,
    pub(super) queues: Arc<Queues>,
}

/// Numbers have 24 bits.
const NONE: u32 = u32::MAX;

impl Reservation {
    /// The connection's queue pair has this number; messages may come before the connection is attached.
    pub(super) fn expect(&self, number: u32) {
        self.number.store(number, Relaxed);
        self.queues.expected.lock().insert(number);
    }

    /// Whether the connection is not attached yet.
    pub(super) fn is_expected(&self) -> bool {
        self.number.load(Relaxed) != NONE
    }

    /// The connection is attached, or gone.
    pub(super) fn settle(&self) {
        let number = self.number.swap(NONE, Relaxed);
        if number != NONE {
            self.queues.expected.lock().remove(&number);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.settle();
        let mut left = self.queues.left.lock();
        left.receives += self.receives;
        left.completions += self.completions;
    }
}
