//! Copies within the process, between any two memories.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, OpError, Operation, Result},
    memory::{Buffer, BufferMut, ReceiveBuffer},
    types::MemoryType,
    worker::{
        device::{LocalCopy, admit},
        operations::Outcome,
    },
};

use super::{
    Fetched, Op, Worker,
    operation::{Completion, Deadline, Entered, Settled},
};

/// A copy within the process; made by [`Worker::copy`].
///
/// # Completion
/// Resolves when all bytes are in the target, which it gives back: visible to the host, to the device and to what is copied next.
///
/// # Cancel safety
/// Before the first poll nothing happens. After it the copy runs to its end whether or not this is dropped; the operation owns both buffers until
/// then.
#[must_use = "a copy does nothing unless awaited or posted"]
#[doc(alias = "cuMemcpyAsync")]
pub struct CopyBuffer<'a, B: ReceiveBuffer + Unpin> {
    worker: &'a Worker,
    from: Buffer,
    to: BufferMut,
    offset: usize,
    deadline: Deadline,
    entered: Option<Entered>,
    kind: PhantomData<fn() -> B>,
}

impl<'a, B: ReceiveBuffer + Unpin> CopyBuffer<'a, B> {
    fn new(worker: &'a Worker, from: Buffer, to: BufferMut) -> Self {
        Self {
            worker,
            from,
            to,
            offset: 0,
            deadline: Deadline::None,
            entered: None,
            kind: PhantomData,
        }
    }

    /// Where in the target the bytes go; at its beginning without.
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Fails with `DeadlineExceeded` after this long; the target does not come back when an engine is still writing it.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Deadline::After(after);
        self
    }

    /// Starts now, to be awaited later or not at all.
    pub fn post(mut self) -> Op<Fetched<B>> {
        let entered = self.enter();
        Op {
            entered,
            deadline: std::mem::take(&mut self.deadline),
            operation: Operation::Copy,
            kind: PhantomData,
        }
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
            admit(&self.worker.shared().context, &types, Operation::Copy)?;
        }
        Ok(types)
    }

    fn enter(&mut self) -> Entered {
        let types = self.check();
        let to = std::mem::take(&mut self.to);
        let types = match types {
            Ok(types) => types,
            Err(error) => {
                return Entered::over(Outcome::Buffer {
                    result: Err(error),
                    buffer: Some(to),
                });
            }
        };
        let copy = LocalCopy {
            from: std::mem::take(&mut self.from),
            to,
            offset: self.offset,
        };
        let key = self.worker.shared().with(|engine| {
            let key = engine.core.start_copy(copy, &types);
            if engine.closing {
                let error = Error::new(ErrorKind::Closed, "the worker is shutting down");
                engine.core.fail_operation(key, error);
            }
            key
        });
        Entered::new(self.worker.handle(), key)
    }
}

impl<B: ReceiveBuffer + Unpin> Future for CopyBuffer<'_, B> {
    type Output = Result<B, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.entered.is_none() {
            if this.worker.shared().must_yield(cx) {
                return Poll::Pending;
            }
            this.entered = Some(this.enter());
        }
        match &mut this.entered {
            Some(entered) => entered
                .poll(cx, &mut this.deadline, Operation::Copy)
                .map(|outcome| {
                    Fetched::settle(Settled(outcome)).map_err(|error| {
                        let (error, buffer) = error.into_parts();
                        OpError::new(error.during(Operation::Copy), buffer)
                    })
                }),
            None => Poll::Pending,
        }
    }
}

impl<B: ReceiveBuffer + Unpin> fmt::Debug for CopyBuffer<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyBuffer")
            .field("from", &self.from)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Copies `from` to `to`, both of this process and each in any memory: the host's, pinned, or a device's. By the engine of the device; host
    /// memory that is not pinned goes through pinned fragments, unless the engine takes it.
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
    /// `OutOfBounds` when there is no room for it, `Unsupported` when no accelerator in use moves such memory, `DeviceLost`, and what the driver
    /// said. The target comes back.
    pub fn copy<B: ReceiveBuffer + Unpin>(
        &self,
        from: impl Into<Buffer>,
        to: B,
    ) -> CopyBuffer<'_, B> {
        CopyBuffer::new(self, from.into(), to.into())
    }
}
