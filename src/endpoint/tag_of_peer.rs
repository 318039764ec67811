//! Tagged receives that take a message of one peer alone, and end with it.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{OpError, Operation, Result},
    memory::{BufferMut, ReceiveBuffer},
    types::{Mask, Priority, Tag},
    worker::aside::Deadline,
};

use super::{
    handle::Endpoint,
    op::{Op, set_deadline},
    tag::{Received, TagMatched, enter, post_of_peer},
};

impl Endpoint {
    /// Receives the next message of this endpoint's peer with exactly this tag; [`TagRecvFrom::mask`] says which bits of it count instead. It takes its turn
    /// among all receives of the worker, in the order in which they were posted or first polled.
    ///
    /// ```
    /// # async fn run() -> wharf::Result<()> {
    /// # use wharf::{Context, Worker};
    /// # let worker = Worker::new(&Context::builder().transports("self")?.build()?)?;
    /// # let endpoint = worker.connect(&worker.address()?).await?;
    /// # endpoint.tag_send(7, "question").await?;
    /// let question = endpoint.tag_recv(7, vec![0; 64]).await?;
    /// # assert_eq!(question.bytes(), b"question");
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    /// What ended the connection, once all that had arrived is received: no message of this peer comes any more. `Truncated` when the message is longer than the
    /// buffer. The buffer comes back.
    pub fn tag_recv<B: ReceiveBuffer + Unpin>(
        &self,
        tag: impl Into<Tag>,
        buffer: B,
    ) -> TagRecvFrom<'_, B> {
        TagRecvFrom {
            endpoint: self,
            tag: tag.into(),
            mask: Mask::ALL,
            buffer: buffer.into(),
            unstaged: false,
            deadline: Deadline::None,
            begun: None,
            kind: PhantomData,
        }
    }

    /// Waits for such a message and claims it, to be received later with a buffer of its size.
    ///
    /// # Errors
    /// What ended the connection.
    pub fn tag_matched(&self, tag: impl Into<Tag>) -> TagMatched<'_> {
        let peer = Some(self.place());
        TagMatched::new(self.handle(), peer, tag.into(), Mask::ALL)
    }
}

/// A tagged receive from one peer; made by [`Endpoint::tag_recv`].
///
/// # Completion
/// Resolves when the whole message is in the buffer, or when the connection is over and what had arrived is received. A message longer than the buffer is an
/// error of kind `Truncated`, and gone.
///
/// # Cancel safety
/// Cancel safe: a receive that is dropped takes no message with it. One that had matched puts it back in its place.
#[must_use = "a receive does nothing unless awaited or posted"]
#[derive(Debug)]
pub struct TagRecvFrom<'a, B: ReceiveBuffer + Unpin> {
    endpoint: &'a Endpoint,
    tag: Tag,
    mask: Mask,
    buffer: BufferMut,
    unstaged: bool,
    deadline: Deadline,
    begun: Option<Op<Received<B>>>,
    kind: PhantomData<fn() -> B>,
}

impl<B: ReceiveBuffer + Unpin> TagRecvFrom<'_, B> {
    /// Takes a message whose tag agrees in these bits, where without it all of them count.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// As [`TagRecv::forbid_staging`](crate::TagRecv::forbid_staging).
    pub fn forbid_staging(mut self) -> Self {
        self.unstaged = true;
        self
    }

    /// Fails with `DeadlineExceeded` after this long; the buffer comes back unless a message was under way into it.
    pub fn deadline(mut self, after: Duration) -> Self {
        set_deadline(&mut self.begun, &mut self.deadline, after);
        self
    }

    /// Posts the receive now: it takes its place before all that are posted later. It ends with the endpoint, which has to be kept.
    pub fn post(mut self) -> Op<Received<B>> {
        self.begun.take().unwrap_or_else(|| self.begin())
    }

    fn begin(&mut self) -> Op<Received<B>> {
        let handle = self.endpoint.handle();
        let buffer = std::mem::take(&mut self.buffer);
        let begun = enter(handle, buffer, |engine, buffer| {
            let order = engine.core.unexpected.arrival();
            let ctx = engine.ctx();
            let key = ctx.enter_receive(buffer, None, order);
            ctx.arrange(key, Priority::Normal, self.unstaged);
            post_of_peer(engine, key, self.endpoint.place(), self.tag, self.mask);
            key
        });
        let deadline = std::mem::take(&mut self.deadline);
        Op::new(handle, begun, deadline, Operation::TagRecv)
    }
}

impl<B: ReceiveBuffer + Unpin> Future for TagRecvFrom<'_, B> {
    type Output = Result<Received<B>, OpError<B>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let begun = this.begun.take().unwrap_or_else(|| this.begin());
        Pin::new(this.begun.insert(begun)).poll(cx)
    }
}
