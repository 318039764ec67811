//! Tagged receives that allocate by the length of their message.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    error::{Operation, Result},
    types::{Mask, Tag},
    worker::{aside::Deadline, ctx::truncated},
};

use super::{
    handle::Endpoint,
    message::zeroes,
    op::Op,
    tag::{MessageInfo, Received, TagMatched},
    worker::Worker,
};

impl Worker {
    /// Receives the next message with exactly this tag, from any endpoint, into memory of its length; [`TagRecvBytes::mask`] says which bits of the tag count
    /// instead. Nothing is allocated before a message has come, and nothing for one that is longer than `limit`: what peers announce costs no memory.
    ///
    /// # Errors
    /// `Truncated` when the message is longer than `limit`, and gone; `Exhausted` when there is no memory for it; what ended the connection in the middle of it;
    /// `Closed` when the worker shuts down.
    pub fn tag_recv_bytes(&self, tag: impl Into<Tag>, limit: usize) -> TagRecvBytes<'_> {
        TagRecvBytes::new(
            TagMatched::new(self.handle(), None, tag.into(), Mask::ALL),
            limit,
        )
    }
}

impl Endpoint {
    /// As [`Worker::tag_recv_bytes`], of this endpoint's peer alone, with which it ends: see [`Endpoint::tag_recv`].
    ///
    /// # Errors
    /// As there; what ended the connection.
    pub fn tag_recv_bytes(&self, tag: impl Into<Tag>, limit: usize) -> TagRecvBytes<'_> {
        TagRecvBytes::new(self.tag_matched(tag), limit)
    }
}

/// A tagged receive that allocates; made by [`Worker::tag_recv_bytes`] and [`Endpoint::tag_recv_bytes`].
///
/// # Completion
/// Resolves when the whole message is here. A short one is not copied for it, but for up to 48 bytes.
///
/// # Cancel safety
/// Cancel safe: dropped, it takes no message with it. One that had matched goes back to its place.
#[must_use = "a receive does nothing unless awaited"]
#[derive(Debug)]
pub struct TagRecvBytes<'a> {
    matched: TagMatched<'a>,
    limit: usize,
    deadline: Deadline,
    /// The message has been matched, and is elsewhere.
    rest: Option<(MessageInfo, Op<Received<Vec<u8>>>)>,
}

impl<'a> TagRecvBytes<'a> {
    fn new(matched: TagMatched<'a>, limit: usize) -> Self {
        Self {
            matched,
            limit,
            deadline: Deadline::None,
            rest: None,
        }
    }

    /// Takes a message whose tag agrees in these bits, where without it all of them count.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.matched = self.matched.mask(mask);
        self
    }

    /// Fails with `DeadlineExceeded` after this long. A message that was under way goes back to its place.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Deadline::After(after);
        self
    }

    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Result<Received<Bytes>>> {
        if self.rest.is_none() {
            let mut matched = ready!(Pin::new(&mut self.matched).poll(cx))?;
            let info = matched.info();
            let is_short = info.len <= self.limit;
            if is_short && let Some(buffer) = matched.take_bytes() {
                return Poll::Ready(Ok(received(info, buffer)));
            }
            let buffer = match is_short {
                true => zeroes(info.len as u64, Operation::TagRecv)?,
                // It has no room, and its sender hears that it is over.
                false => Vec::new(),
            };
            self.rest = Some((info, matched.recv(buffer)));
        }
        let Some((info, rest)) = &mut self.rest else {
            return Poll::Pending;
        };
        let result = ready!(Pin::new(rest).poll(cx));
        Poll::Ready(match info.len <= self.limit {
            true => Ok(received(*info, result?.buffer.into())),
            false => Err(truncated(info.len as u64, self.limit)),
        })
    }
}

fn received(info: MessageInfo, buffer: Bytes) -> Received<Bytes> {
    Received {
        buffer,
        len: info.len,
        tag: info.tag,
        from: info.from,
    }
}

impl Future for TagRecvBytes<'_> {
    type Output = Result<Received<Bytes>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(result) = this.poll_received(cx) {
            return Poll::Ready(result);
        }
        match this.deadline.is_over(&this.matched.handle.shared, cx) {
            true => {
                this.rest = None;
                this.matched.begun = None;
                Poll::Ready(Err(Deadline::error(Operation::TagRecv)))
            }
            false => Poll::Pending,
        }
    }
}
