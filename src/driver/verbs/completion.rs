//! Completion queues, and channels that tell when one has something.
//!
//! To sleep until something completes: take all events, poll until empty, arm, poll once more (an entry that was there before the arming
//! tells nothing), and only then wait for the channel's descriptor.
//!
//! # Safety
//! A queue keeps its channel, and that its device. Events are acknowledged in the call that takes them, so that destroying a queue never
//! waits long. See `verbs`.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    fmt,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{
    Completion, Context,
    context::{Open, set_nonblocking},
    failure,
    sys::{RawChannel, RawCq},
};
use crate::error::{Error, ErrorKind, Result};

/// Tells by a descriptor that a queue which was armed has something.
#[derive(Clone)]
pub(crate) struct CompletionChannel(Arc<Channel>);

struct Channel {
    open: Arc<Open>,
    raw: NonNull<RawChannel>,
    fd: RawFd,
}

// SAFETY: the library allows every call on a channel from every thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.open.is_here() {
            // SAFETY: made once; its queues, which keep it, are gone.
            let answer =
                unsafe { (self.open.verbs.api.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
            self.open.ended("ibv_destroy_comp_channel", answer);
        }
    }
}

impl Context {
    /// A new channel. Its descriptor does not block.
    /// Errors: as of any call.
    pub(crate) fn completion_channel(&self) -> Result<CompletionChannel> {
        let open = self.open();
        open.usable()?;
        // SAFETY: the context lives.
        let raw = unsafe { (open.verbs.api.ibv_create_comp_channel)(open.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| open.failed("ibv_create_comp_channel"))?;
        // SAFETY: a field that does not change.
        let fd = unsafe { (&raw const (*raw.as_ptr()).fd).read() };
        let open = Arc::clone(open);
        let channel = CompletionChannel(Arc::new(Channel { open, raw, fd }));
        set_nonblocking(fd, self.name())?;
        Ok(channel)
    }

    /// A queue for `entries` completions (there may be more), which tells `channel` when it was armed. `token` comes back in events;
    /// `vector` is below the number of the device's completion vectors.
    ///
    /// More completions than it has room for make the queue fail, and with it all that uses it.
    /// Errors: `InvalidArgument`: more entries than the device has, or a channel of another device. `Exhausted`: no memory, with the remedy.
    pub(crate) fn completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        token: u64,
        vector: u32,
    ) -> Result<CompletionQueue> {
        let open = self.open();
        open.usable()?;
        if let Some(channel) = channel
            && !Arc::ptr_eq(&channel.0.open, open)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the completion channel is another device's",
            ));
        }
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector).unwrap_or(c_int::MAX);
        let context = ptr::without_provenance_mut::<c_void>(token as usize);
        let raw_channel = channel.map_or(ptr::null_mut(), |channel| channel.0.raw.as_ptr());
        // SAFETY: the context and the channel live; the token is not dereferenced.
        let raw = unsafe {
            (open.verbs.api.ibv_create_cq)(open.raw(), entries, context, raw_channel, vector)
        };
        let raw = NonNull::new(raw).ok_or_else(|| open.failed("ibv_create_cq"))?;
        Ok(CompletionQueue(Arc::new(Queue {
            open: Arc::clone(open),
            channel: channel.cloned(),
            raw,
        })))
    }
}

impl CompletionChannel {
    /// Takes one event, with the token of its queue; `None`: there is none. Never waits. Of one queue there is at most one for each time that it was
    /// armed, so who has taken that needs not ask for more.
    /// Errors: `DeviceLost`: nothing more will come.
    pub(crate) fn take(&self) -> Result<Option<u64>> {
        let open = &*self.0.open;
        let mut raw: *mut RawCq = ptr::null_mut();
        let mut context: *mut c_void = ptr::null_mut();
        loop {
            // SAFETY: two variables are written.
            let answer = unsafe {
                (open.verbs.api.ibv_get_cq_event)(
                    self.0.raw.as_ptr(),
                    &raw mut raw,
                    &raw mut context,
                )
            };
            if answer == 0 {
                break;
            }
            match failure::last() {
                libc::EINTR => {}
                libc::EAGAIN => return Ok(None),
                errno => return Err(failure::failed("ibv_get_cq_event", open.name(), errno)),
            }
        }
        // SAFETY: an event of this queue that was taken; it stays until it is acknowledged.
        unsafe { (open.verbs.api.ibv_ack_cq_events)(raw, 1) };
        Ok(Some(context.addr() as u64))
    }

    /// Takes all events that are there, and says how many; `told` is called with the token of each event's queue. When it returns, the descriptor
    /// was found empty.
    /// Errors: as of [`CompletionChannel::take`].
    pub(crate) fn drain(&self, mut told: impl FnMut(u64)) -> Result<u32> {
        let mut count = 0_u32;
        while let Some(token) = self.take()? {
            count = count.saturating_add(1);
            told(token);
        }
        Ok(count)
    }
}

impl AsRawFd for CompletionChannel {
    /// Readable when there is an event. To be taken by [`CompletionChannel::drain`], never read.
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel is.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompletionChannel")
            .field(&self.0.fd)
            .finish()
    }
}

/// Where the ends of work requests are told.
#[derive(Clone)]
pub(crate) struct CompletionQueue(Arc<Queue>);

pub(super) struct Queue {
    open: Arc<Open>,
    channel: Option<CompletionChannel>,
    raw: NonNull<RawCq>,
}

// SAFETY: the library allows every call on a queue from every thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.open.is_here() {
            // SAFETY: made once; the queue pairs that use it keep it, and are gone. Waits for events being acknowledged, which is soon.
            let answer = unsafe { (self.open.verbs.api.ibv_destroy_cq)(self.raw.as_ptr()) };
            self.open.ended("ibv_destroy_cq", answer);
        }
    }
}

impl CompletionQueue {
    pub(super) fn raw(&self) -> *mut RawCq {
        self.0.raw.as_ptr()
    }

    pub(super) fn open(&self) -> &Arc<Open> {
        &self.0.open
    }

    /// How many completions it has room for.
    pub(crate) fn capacity(&self) -> u32 {
        // SAFETY: a field of the live queue.
        let cqe = unsafe { (&raw const (*self.raw()).cqe).read() };
        u32::try_from(cqe).unwrap_or(0)
    }

    /// Takes completions, as many as are there and fit into `to`, in the order in which they happened. How many were taken.
    /// Errors: `DeviceLost`: the queue has failed; nothing more comes of it.
    pub(crate) fn poll(&self, to: &mut [Completion]) -> Result<usize> {
        let room = c_int::try_from(to.len()).unwrap_or(c_int::MAX);
        // SAFETY: a completion is the library's struct, and there is room for so many.
        let found = unsafe { (self.0.open.poll_cq)(self.raw(), room, to.as_mut_ptr().cast()) };
        match usize::try_from(found) {
            Ok(found) => Ok(found.min(to.len())),
            Err(_) => Err(self.failed(found)),
        }
    }

    #[cold]
    fn failed(&self, answer: c_int) -> Error {
        Error::new(
            ErrorKind::DeviceLost,
            format!(
                "ibv_poll_cq on {}: the completion queue has failed ({answer})",
                self.0.open.name()
            ),
        )
    }

    /// Has the next completion told by the channel, once; or, with `solicited_only`, the next that a peer asked to be told or that failed.
    /// Errors: `InvalidArgument`: there is no channel; else as of any call.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        if self.0.channel.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the completion queue has no channel",
            ));
        }
        // SAFETY: the queue lives.
        let answer =
            unsafe { (self.0.open.req_notify_cq)(self.raw(), c_int::from(solicited_only)) };
        self.0.open.check("ibv_req_notify_cq", answer)
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.0.open.name())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
