//! Copies within the process, between any two memories, in order with the program's own streams.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project::pin_project;

use crate::{
    error::{Error, ErrorKind, OpError, Operation, Result},
    memory::{Buffer, BufferMut, ReceiveBuffer},
    transport::{DevicePlace, DeviceStream},
    types::MemoryType,
    worker::{
        Explanation,
        aside::Deadline,
        device::{LocalCopy, Order, admit_each, unknown},
        operations::{Arrival, Outcome},
    },
};

use super::{Fetched, Op, Worker, op::set_deadline, operation::refused};

/// A copy within the process; made by [`Worker::copy`].
///
/// # Order with streams of the program's
/// A device does the work of a stream (a `CUstream`, a `hipStream_t`) in its own time. [`CopyBuffer::after`] has the copy begin when what is in such a stream is done,
/// and [`CopyBuffer::then_on`] has such a stream wait for the copy; [`CopyBuffer::queued`] tells from when on. Neither makes the program wait for the
/// device:
///
/// ```no_run
/// # use wharf::{Buffer, BufferMut, Worker, transport::cuda::CudaStream};
/// # async fn run(worker: &Worker, kernel: impl Fn(), source: Buffer, target: BufferMut, raw: *mut std::ffi::c_void) -> wharf::Result<()> {
/// // SAFETY: the stream lives until the worker has ended.
/// let stream = unsafe { CudaStream::from_raw(raw, 0) };
/// kernel(); // Queues in the stream work that writes the source.
/// let copy = worker.copy(source, target).after(stream).then_on(stream).queued().await?;
/// kernel(); // Queues work that reads the target: the device begins it behind the copy.
/// let target = copy.await?;
/// # drop(target);
/// # Ok(())
/// # }
/// ```
///
/// # Completion
/// Resolves when all bytes are in the target, which it gives back: visible to the host, to the device and to what is copied next.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the copy runs to its end whether or not this is dropped; the operation owns both buffers until
/// then. So do the places it comes after and the streams that come after it: they are the program's, and live until the operation is over.
#[must_use = "a copy does nothing unless awaited or posted"]
#[doc(alias = "cuMemcpyAsync")]
#[derive(Debug)]
pub struct CopyBuffer<'a, B: ReceiveBuffer + Unpin> {
    worker: &'a Worker,
    from: Buffer,
    to: BufferMut,
    offset: usize,
    order: Order,
    unstaged: bool,
    deadline: Deadline,
    begun: Option<Op<Fetched<B>>>,
    kind: PhantomData<fn() -> B>,
}

impl<'a, B: ReceiveBuffer + Unpin> CopyBuffer<'a, B> {
    fn new(worker: &'a Worker, from: Buffer, to: BufferMut) -> Self {
        Self {
            worker,
            from,
            to,
            offset: 0,
            order: Order::default(),
            unstaged: false,
            deadline: Deadline::None,
            begun: None,
            kind: PhantomData,
        }
    }

    /// Where in the target the bytes go; at its beginning without.
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Begins only when the program's work up to this place is done: all that is in a stream, or what an event was last recorded behind, when the
    /// copy is posted or polled first (where its device is not open yet, when it is). More than one place may be given. Between host memories too.
    ///
    /// A copy that is cancelled, or whose deadline passes, while it waits there has touched nothing, and ends at once.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn after(mut self, place: impl Into<DevicePlace>) -> Self {
        self.order.after.push(place.into());
        self
    }

    /// Makes a stream of the program's wait for the copy, without the program: [`CopyBuffer::queued`] resolves when it does.
    ///
    /// What is in the stream already does not wait, nor does what the program puts there before that. The stream is made to wait when all of the
    /// copy is in the hands of the device; where the bytes go on by the processor (host memory that is not pinned, a device of another accelerator
    /// than the stream's), when the copy is over. A stream is never left waiting: not for a copy that fails, is dropped or cancelled, nor when the
    /// worker ends.
    ///
    /// A CUDA stream waits on the device alone. A HIP stream waits for a word that a thread of the runtime's sets when the copy ends, as copies are not
    /// HIP's own; where HIP has no such waits, and with every other accelerator, this is the end of the copy.
    #[doc(alias = "cuStreamWaitEvent")]
    #[doc(alias = "hipStreamWaitEvent")]
    pub fn then_on(mut self, stream: impl Into<DeviceStream>) -> Self {
        self.order.then.push(stream.into());
        self
    }

    /// Fails with `Unsupported` where its bytes would stop in pinned host memory on the way, as
    /// [`ContextBuilder::forbid_staging`](crate::ContextBuilder::forbid_staging) has it for all operations.
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Starts, and resolves when what the program queues from now on in the streams of [`CopyBuffer::then_on`] comes after the copy; with none of
    /// them, when the copy is over. Gives the copy, to be awaited for its target.
    ///
    /// # Errors
    /// Those of the copy, as far as they are known by then; `InvalidArgument` when a stream is capturing a graph.
    pub fn queued(self) -> Queued<'a, B> {
        Queued(self)
    }

    /// Fails with `DeadlineExceeded` after this long; the target does not come back when an engine is still writing it.
    pub fn deadline(mut self, after: Duration) -> Self {
        set_deadline(&mut self.begun, &mut self.deadline, after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    pub fn post(mut self) -> Op<Fetched<B>> {
        let begun = self.begun.take();
        begun.unwrap_or_else(|| self.begin())
    }

    /// What of both the host does not reach.
    fn check(&self) -> Result<Vec<MemoryType>> {
        let (length, room) = (self.from.len(), self.to.len());
        if self.offset.checked_add(length).is_none_or(|end| end > room) {
            let text = format!(
                "{length} bytes to offset {} of a buffer of {room}",
                self.offset
            );
            return Err(Error::new(ErrorKind::OutOfBounds, text).during(Operation::Copy));
        }
        let mut types = self.from.device_types();
        types.extend(self.to.device_types());
        types.dedup();
        if !types.is_empty() {
            admit_each(&self.worker.shared().context, &types, Operation::Copy)?;
        }
        let accelerators = self.worker.shared().context.accelerators();
        for name in self.order.accelerators() {
            if accelerators.iter().all(|known| known.name() != name) {
                return Err(unknown(name).during(Operation::Copy));
            }
        }
        Ok(types)
    }

    fn begin(&mut self) -> Op<Fetched<B>> {
        let types = self.check();
        let begun = types.and_then(|types| {
            self.worker.shared().begin(Operation::Copy, |engine| {
                let copy = LocalCopy {
                    from: std::mem::take(&mut self.from),
                    to: std::mem::take(&mut self.to),
                    offset: self.offset,
                };
                let order = std::mem::take(&mut self.order);
                engine
                    .movers()
                    .start_copy(copy, &types, order, self.unstaged)
            })
        });
        let begun = begun
            .map(|(key, _)| key)
            .map_err(|error| refused(error, std::mem::take(&mut self.to)));
        let deadline = std::mem::take(&mut self.deadline);
        Op::new(self.worker.handle(), begun, deadline, Operation::Copy)
    }
}

impl<B: ReceiveBuffer + Unpin> Future for CopyBuffer<'_, B> {
    type Output = Result<B, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let begun = this.begun.take().unwrap_or_else(|| this.begin());
        Pin::new(this.begun.insert(begun)).poll(cx)
    }
}

/// Waits until streams of the program's come after a copy; made by [`CopyBuffer::queued`].
///
/// # Completion
/// Resolves when work that the program queues in these streams from now on finds the bytes. It gives the copy, which may still go on.
///
/// # Cancel safety
/// As [`CopyBuffer`]: after the first poll the copy, and what it does for the streams, happens whether or not this is dropped.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Queued<'a, B: ReceiveBuffer + Unpin>(CopyBuffer<'a, B>);

impl<B: ReceiveBuffer + Unpin> Future for Queued<'_, B> {
    type Output = Result<Op<Fetched<B>>, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let copy = &mut self.0;
        let mut op = copy.begun.take().unwrap_or_else(|| copy.begin());
        if let Some((handle, key, _)) = op.place()
            && handle.shared.poll_queued(cx, key) == Poll::Ready(true)
        {
            return Poll::Ready(Ok(op));
        }
        // It is not queued yet, or has failed, or its deadline has passed.
        let Poll::Ready(copied) = Pin::new(&mut op).poll(cx) else {
            // That poll may have brought it there, while no waker of this future was known.
            let is_queued = op.place().and_then(|(handle, key, _)| {
                let shared = &handle.shared;
                shared.ask(|engine| engine.ctx().is_queued(key))
            });
            if is_queued == Some(true) {
                return Poll::Ready(Ok(op));
            }
            copy.begun = Some(op);
            return Poll::Pending;
        };
        let handle = copy.worker.handle();
        Poll::Ready(copied.map(|buffer: B| {
            let outcome = Outcome::Buffer(Ok(Arrival::unnamed(0)), buffer.into());
            let ended = Err(Box::new(outcome));
            Op::new(handle, ended, Deadline::None, Operation::Copy)
        }))
    }
}

/// Waits for a place in the program's own work; made by [`Worker::reached`].
///
/// # Completion
/// Resolves when the work up to that place is done, and what it wrote can be moved by any operation.
///
/// # Cancel safety
/// Nothing is lost by dropping it.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
#[pin_project]
pub struct Reached<'a>(#[pin] CopyBuffer<'a, Vec<u8>>);

impl Future for Reached<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let reached = ready!(self.project().0.poll(cx));
        Poll::Ready(reached.map(drop).map_err(|error| error.into_parts().0))
    }
}

impl Worker {
    /// Copies `from` to `to`, both of this process and each in any memory: the host's, pinned, or a device's. By the engine of the device; host
    /// memory that is not pinned goes through pinned fragments, unless the engine takes it. So does what goes between devices of two accelerators,
    /// several fragments at a time.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # let context = wharf::Context::builder().transports("self")?.build()?;
    /// # let worker = wharf::Worker::new(&context)?;
    /// let copied = worker.copy("to any memory", vec![0; 16]).at(3).await?;
    /// assert_eq!(&copied[3..], b"to any memory");
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    /// `OutOfBounds` when there is no room for it, `Unsupported` when no accelerator in use moves such memory or takes such a stream, `DeviceLost`,
    /// and what the driver said; `InvalidArgument`: no such stream, or it is capturing a graph. The target comes back.
    pub fn copy<B: ReceiveBuffer + Unpin>(
        &self,
        from: impl Into<Buffer>,
        to: B,
    ) -> CopyBuffer<'_, B> {
        CopyBuffer::new(self, from.into(), to.into())
    }

    /// How a [copy](Worker::copy) of `length` bytes goes from memory of one type into memory of another, and why no better way. Nothing moves, and nothing is opened
    /// for it: what an engine does is known once it is open. Said of one run of bytes at either end.
    #[must_use]
    pub fn explain_copy(&self, from: MemoryType, to: MemoryType, length: usize) -> Explanation {
        let explained = self
            .shared()
            .ask(|engine| engine.movers().explain_copy(from, to, length));
        explained.unwrap_or_else(|| Explanation::never("the worker was shut down"))
    }

    /// Waits, without a thread, until the program's work up to this place is done: all that is in a stream, or what an event was last recorded
    /// behind. To be awaited before memory that such work writes is sent, put or exposed; a [copy](Worker::copy) does it by itself.
    ///
    /// # Errors
    /// `Unsupported`: no accelerator in use takes such a stream; `InvalidArgument`: no such stream, or it is capturing a graph; `DeviceLost`.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn reached(&self, place: impl Into<DevicePlace>) -> Reached<'_> {
        Reached(self.copy(Buffer::new(), Vec::new()).after(place))
    }
}
