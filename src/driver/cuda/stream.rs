//! Streams and events: copies, their order, and how one learns that they are done.
//!
//! Work of one stream is done in order, work of two in any. An event recorded in a stream marks a place in it: the host asks whether the
//! place was reached, another stream waits for it.
//!
//! How to learn that a copy is done, from the cheapest: a word that the stream writes behind it into pinned memory, read by the host without any
//! call ([`Stream::write_value`]); a host function behind it ([`Stream::notify`]), which costs a call and a thread's wake-up, and **is
//! never run when the context fails**; [`Event::is_done`] or [`Stream::is_idle`], a call each time, which do report a failure.
//!
//! # Safety
//! Streams and events are destroyed once, by drop, in the context that made them, which they hold; the driver finishes what was enqueued
//! first. Those of the program's are adopted (`unsafe`) and never destroyed. What a host function is given is an `Arc` that the function
//! gives back; on a failed context it is never given back, so that a late run can never meet freed memory.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{
    ContextGuard, Cuda, CudaContext, DevicePtr, RawContext, RawEvent, RawStream, Status, sys,
};
use crate::error::{Error, ErrorKind, Result};

/// A queue of copies on a device. Its calls need the guard of its own context.
pub(crate) struct Stream {
    context: CudaContext,
    raw: RawStream,
    owned: bool,
}

/// Which sides a copy has, for [`Stream::copy_between`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// From host memory to a device.
    ToDevice,
    /// From a device to host memory.
    ToHost,
    /// Between memories of devices.
    Across,
}

/// How [`Event::wait`] waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The thread spins.
    Spin,
    /// The thread sleeps.
    Sleep,
}

/// A place in a stream. Takes no times.
pub(crate) struct Event {
    context: CudaContext,
    raw: RawEvent,
    owned: bool,
}

/// What a stream runs on the host when all before it is done.
pub(crate) trait HostCallback: Send + Sync + 'static {
    /// Runs on a thread of the driver, which holds up the stream meanwhile: wake somebody and return. No call of the driver is allowed.
    fn run(&self);
}

impl ContextGuard<'_> {
    /// Makes a stream without order against the program's default stream. With `urgent` its copies go before those of other streams where the
    /// device has priorities.
    /// Errors: `Exhausted`, `DeviceLost`.
    pub(crate) fn stream(&self, urgent: bool) -> Result<Stream> {
        let api = &self.cuda().api;
        let mut raw = RawStream::NULL;
        let priority = match (
            api.cuCtxGetStreamPriorityRange,
            api.cuStreamCreateWithPriority,
        ) {
            (Some(range), Some(create)) if urgent => {
                let (mut least, mut greatest) = (0, 0);
                // SAFETY: writes two numbers.
                let status = unsafe { range(&raw mut least, &raw mut greatest) };
                status.check("cuCtxGetStreamPriorityRange")?;
                Some((create, greatest))
            }
            _ => None,
        };
        match priority {
            Some((create, priority)) => {
                // SAFETY: writes one handle.
                let status = unsafe { create(&raw mut raw, sys::STREAM_NON_BLOCKING, priority) };
                status.check("cuStreamCreateWithPriority")?;
            }
            None => {
                // SAFETY: writes one handle.
                let status =
                    unsafe { (api.cuStreamCreate)(&raw mut raw, sys::STREAM_NON_BLOCKING) };
                status.check("cuStreamCreate")?;
            }
        }
        Ok(Stream {
            context: self.context().clone(),
            raw,
            owned: true,
        })
    }

    /// Makes an event.
    /// Errors: `Exhausted`, `DeviceLost`.
    pub(crate) fn event(&self, waiting: Waiting) -> Result<Event> {
        let flags = match waiting {
            Waiting::Spin => sys::EVENT_DISABLE_TIMING,
            Waiting::Sleep => sys::EVENT_DISABLE_TIMING | sys::EVENT_BLOCKING_SYNC,
        };
        let mut raw = RawEvent::NULL;
        // SAFETY: writes one handle.
        let status = unsafe { (self.cuda().api.cuEventCreate)(&raw mut raw, flags) };
        status.check("cuEventCreate")?;
        Ok(Event {
            context: self.context().clone(),
            raw,
            owned: true,
        })
    }
}

impl Cuda {
    /// The program's own stream, with the context that it belongs to. It is never destroyed here. For the default stream be in its context.
    /// Errors: `InvalidArgument`: no stream, or one that is capturing a graph; `Unsupported` by drivers that cannot say.
    ///
    /// # Safety
    /// The stream and its context live for as long as this value.
    pub(crate) unsafe fn adopt_stream(&'static self, raw: RawStream) -> Result<Stream> {
        self.usable()?;
        let call = self.optional(self.api.cuStreamGetCtx, "cuStreamGetCtx")?;
        let mut context = RawContext::NULL;
        // SAFETY: a stream that lives, as the caller vouches, and a handle to be written.
        let status = unsafe { call(raw, &raw mut context) };
        status.check("cuStreamGetCtx")?;
        // SAFETY: the stream's context, which the caller vouches for.
        let context = unsafe { CudaContext::adopt(self, context) }?;
        // SAFETY: as above.
        unsafe { context.adopt_stream(raw) }
    }
}

impl CudaContext {
    /// The program's own stream of this context, or one of its default streams. It is never destroyed here.
    /// Errors: `InvalidArgument`: no stream, or one that is capturing a graph.
    ///
    /// # Safety
    /// The stream is of this context, or a default stream, and lives for as long as this value.
    pub(crate) unsafe fn adopt_stream(&self, raw: RawStream) -> Result<Stream> {
        let stream = Stream {
            context: self.clone(),
            raw,
            owned: false,
        };
        let capturing = stream.is_capturing(&stream.context.enter()?)?;
        if capturing {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the stream is capturing a graph: no transfer can be ordered with it now",
            ));
        }
        Ok(stream)
    }
}

impl Stream {
    /// The context.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> RawStream {
        self.raw
    }

    /// Enqueues a copy between any two addresses that the driver knows, or of pageable host memory; then the call itself may wait for the copy.
    /// Errors: `InvalidArgument`, `DeviceLost`. An error may also be of earlier work.
    ///
    /// # Safety
    /// Both ranges stay allocated, and nobody else uses the target nor changes the source, until the stream has passed the copy.
    pub(crate) unsafe fn copy(
        &self,
        guard: &ContextGuard<'_>,
        target: DevicePtr,
        source: DevicePtr,
        len: usize,
    ) -> Result<()> {
        guard.check(&self.context)?;
        // SAFETY: the caller vouches for both ranges.
        let status = unsafe { (guard.cuda().api.cuMemcpyAsync)(target, source, len, self.raw) };
        status.check("cuMemcpyAsync")
    }

    /// As [`Stream::copy`], by the call for just this route, so that the driver refuses an address that is not of the kind that it is said to be. Drivers
    /// without that call take any.
    /// Errors: as of [`Stream::copy`].
    ///
    /// # Safety
    /// As of [`Stream::copy`].
    pub(crate) unsafe fn copy_between(
        &self,
        guard: &ContextGuard<'_>,
        route: Route,
        target: DevicePtr,
        source: DevicePtr,
        len: usize,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let api = &guard.cuda().api;
        let (call, name) = match route {
            Route::ToDevice => (api.cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync_v2"),
            Route::ToHost => (api.cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2"),
            Route::Across => (api.cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync_v2"),
        };
        let Some(call) = call else {
            // SAFETY: the caller vouches for both ranges.
            return unsafe { self.copy(guard, target, source, len) };
        };
        // SAFETY: as above. A host address goes as the number that it is.
        let status = unsafe { call(target, source, len, self.raw) };
        status.check(name)
    }

    /// Enqueues moving managed memory to the stream's device, so that the device need not fetch it page by page.
    /// Errors: `Unsupported`; `InvalidArgument`: not managed memory.
    pub(crate) fn prefetch(
        &self,
        guard: &ContextGuard<'_>,
        start: DevicePtr,
        len: usize,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuMemPrefetchAsync, "cuMemPrefetchAsync")?;
        // SAFETY: changes no content.
        let status = unsafe { call(start, len, self.context.device().raw, self.raw) };
        status.check("cuMemPrefetchAsync")
    }

    /// Enqueues setting each byte of device memory.
    /// Errors: as of [`Stream::copy`].
    ///
    /// # Safety
    /// As of [`Stream::copy`], for the target.
    pub(crate) unsafe fn fill(
        &self,
        guard: &ContextGuard<'_>,
        target: DevicePtr,
        byte: u8,
        len: usize,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuMemsetD8Async, "cuMemsetD8Async")?;
        // SAFETY: the caller vouches for the range.
        let status = unsafe { call(target, byte, len, self.raw) };
        status.check("cuMemsetD8Async")
    }

    /// Enqueues writing a word of 8 bytes behind everything before it: who reads it with acquire sees what was copied. Never
    /// written when the context fails.
    /// Errors: `Unsupported` before CUDA 11.7, and by devices without
    /// [`StreamMemoryOps64`](super::Attribute::StreamMemoryOps64): use events then. `InvalidArgument`: misaligned, or managed memory.
    ///
    /// # Safety
    /// `at` is the device's address of 8 bytes, aligned to 8, that stay allocated until the stream has passed the write and that the host
    /// accesses by atomic operations alone.
    pub(crate) unsafe fn write_value(
        &self,
        guard: &ContextGuard<'_>,
        at: DevicePtr,
        value: u64,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuStreamWriteValue64_v2, "cuStreamWriteValue64_v2")?;
        // SAFETY: the caller vouches for the word. Flag 0: with the memory barrier.
        let status = unsafe { call(self.raw, at, value, 0) };
        status.check("cuStreamWriteValue64_v2")
    }

    /// Enqueues waiting until a word of 8 bytes has reached `value`, in cyclic order. The word may be written by another stream or by the host.
    /// Errors: as of [`Stream::write_value`].
    ///
    /// # Safety
    /// `at` is the device's address of 8 bytes, aligned to 8, that stay allocated until the stream has passed the wait, and that the host
    /// accesses by atomic operations alone.
    pub(crate) unsafe fn wait_value(
        &self,
        guard: &ContextGuard<'_>,
        at: DevicePtr,
        value: u64,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuStreamWaitValue64_v2, "cuStreamWaitValue64_v2")?;
        // SAFETY: the caller vouches for the word. Flag 0: until the word is at least the value.
        let status = unsafe { call(self.raw, at, value, 0) };
        status.check("cuStreamWaitValue64_v2")
    }

    /// Whether the driver has the calls that write and wait for words, and the device takes them.
    /// Errors: what the driver said of its device.
    pub(crate) fn has_words(&self) -> Result<bool> {
        let api = &self.context.cuda().api;
        if api.cuStreamWriteValue64_v2.is_none() || api.cuStreamWaitValue64_v2.is_none() {
            return Ok(false);
        }
        self.context
            .device()
            .has(super::Attribute::StreamMemoryOps64)
    }

    /// Enqueues marking this place by the event. An event marks one place: the last.
    /// Errors: `InvalidArgument`: another context's event; `DeviceLost`.
    pub(crate) fn record(&self, guard: &ContextGuard<'_>, event: &Event) -> Result<()> {
        guard.check(&self.context)?;
        guard.check(&event.context)?;
        // SAFETY: both live.
        let status = unsafe { (guard.cuda().api.cuEventRecord)(event.raw, self.raw) };
        status.check("cuEventRecord")
    }

    /// Enqueues waiting until the event's place, as it is now, is reached. The event may be another context's. One never recorded is reached.
    /// Errors: `DeviceLost`; `InvalidArgument`.
    pub(crate) fn wait(&self, guard: &ContextGuard<'_>, event: &Event) -> Result<()> {
        guard.check(&self.context)?;
        // SAFETY: both live.
        let status = unsafe { (guard.cuda().api.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        status.check("cuStreamWaitEvent")
    }

    /// Enqueues a call of the host. It is not run when the context fails before it: who waits for it needs another way to learn of that. The
    /// callback is kept until it has run; on a failed context for ever.
    /// Errors: `DeviceLost`, `Exhausted`; then it is never run.
    pub(crate) fn notify<C: HostCallback>(
        &self,
        guard: &ContextGuard<'_>,
        callback: Arc<C>,
    ) -> Result<()> {
        guard.check(&self.context)?;
        let data = Arc::into_raw(callback);
        // SAFETY: `trampoline` gets what it expects, an `Arc` of that type, which is alive until it ran.
        let status = unsafe {
            (guard.cuda().api.cuLaunchHostFunc)(
                self.raw,
                trampoline::<C>,
                data.cast_mut().cast::<c_void>(),
            )
        };
        if status != Status::SUCCESS {
            // SAFETY: it was not enqueued, so this is the only one who knows it.
            drop(unsafe { Arc::from_raw(data) });
        }
        status.check("cuLaunchHostFunc")
    }

    /// Whether all that was enqueued is done.
    /// Errors: `DeviceLost`, and whatever else the work ended with.
    pub(crate) fn is_idle(&self, guard: &ContextGuard<'_>) -> Result<bool> {
        guard.check(&self.context)?;
        // SAFETY: it lives.
        done(
            unsafe { (guard.cuda().api.cuStreamQuery)(self.raw) },
            "cuStreamQuery",
        )
    }

    /// Blocks the thread until all that was enqueued is done.
    /// Errors: as of [`Stream::is_idle`].
    pub(crate) fn synchronize(&self, guard: &ContextGuard<'_>) -> Result<()> {
        guard.check(&self.context)?;
        // SAFETY: it lives.
        let status = unsafe { (guard.cuda().api.cuStreamSynchronize)(self.raw) };
        status.check("cuStreamSynchronize")
    }

    /// Whether what is enqueued is recorded into a graph instead of done. Such a stream can take no part in a transfer.
    /// Errors: `DeviceLost`.
    pub(crate) fn is_capturing(&self, guard: &ContextGuard<'_>) -> Result<bool> {
        guard.check(&self.context)?;
        let cuda = guard.cuda();
        let call = cuda.optional(cuda.api.cuStreamIsCapturing, "cuStreamIsCapturing")?;
        let mut capture = sys::CAPTURE_NONE;
        // SAFETY: it lives; writes one number.
        let status = unsafe { call(self.raw, &raw mut capture) };
        match status {
            // Said of the default stream while another captures.
            Status::STREAM_CAPTURE_IMPLICIT => Ok(true),
            status => status
                .check("cuStreamIsCapturing")
                .map(|()| capture != sys::CAPTURE_NONE),
        }
    }
}

/// Runs a callback of [`Stream::notify`] and gives it back.
///
/// # Safety
/// `data` is of [`Arc::into_raw`] for the same type, and this is called once with it.
unsafe extern "C" fn trampoline<C: HostCallback>(data: *mut c_void) {
    // SAFETY: as the caller vouches.
    let callback = unsafe { Arc::from_raw(data.cast_const().cast::<C>()) };
    // A panic must not reach the driver's frames; the drop of the callback may panic as well.
    if catch_unwind(AssertUnwindSafe(|| {
        callback.run();
        drop(callback);
    }))
    .is_err()
    {
        tracing::error!(target: "wharf::cuda", "a host function panicked");
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let raw = self.raw;
        self.context.on_drop("destroying a stream", |guard| {
            // SAFETY: destroyed once.
            let status = unsafe { (guard.cuda().api.cuStreamDestroy_v2)(raw) };
            status.check("cuStreamDestroy_v2")
        });
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:#x} of {:?}", self.raw.0, self.context)
    }
}

impl Event {
    /// The program's own event of this context. It is never destroyed here.
    ///
    /// # Safety
    /// The event is of the context, and lives for as long as this value.
    pub(crate) unsafe fn adopt(context: &CudaContext, raw: RawEvent) -> Self {
        Self {
            context: context.clone(),
            raw,
            owned: false,
        }
    }

    /// The context.
    pub(crate) fn context(&self) -> &CudaContext {
        &self.context
    }

    /// Whether its place was reached. One never recorded is.
    /// Errors: `DeviceLost`, and whatever else the work before it ended with.
    pub(crate) fn is_done(&self, guard: &ContextGuard<'_>) -> Result<bool> {
        guard.check(&self.context)?;
        // SAFETY: it lives.
        done(
            unsafe { (guard.cuda().api.cuEventQuery)(self.raw) },
            "cuEventQuery",
        )
    }

    /// Blocks the thread until its place is reached.
    /// Errors: as of [`Event::is_done`].
    pub(crate) fn wait(&self, guard: &ContextGuard<'_>) -> Result<()> {
        guard.check(&self.context)?;
        // SAFETY: it lives.
        let status = unsafe { (guard.cuda().api.cuEventSynchronize)(self.raw) };
        status.check("cuEventSynchronize")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let raw = self.raw;
        self.context.on_drop("destroying an event", |guard| {
            // SAFETY: destroyed once.
            let status = unsafe { (guard.cuda().api.cuEventDestroy_v2)(raw) };
            status.check("cuEventDestroy_v2")
        });
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:#x} of {:?}", self.raw.0, self.context)
    }
}

/// Done, not yet, or failed.
fn done(status: Status, call: &str) -> Result<bool> {
    match status {
        Status::NOT_READY => Ok(false),
        status => status.check(call).map(|()| true),
    }
}
