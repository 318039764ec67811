//! How connections and workers end.

use std::task::{Context as TaskContext, Poll};

use crate::{
    error::Error,
    types::{EndpointId, LinkId, OpKey},
    worker::{core::Core, operations::Work, peer::Status, shared::Shared},
};

impl Shared {
    /// Ready when a connection is over.
    pub(crate) fn poll_closed(
        &self,
        cx: &mut TaskContext<'_>,
        link: LinkId,
        id: EndpointId,
    ) -> Poll<Option<Error>> {
        self.with(|engine| {
            engine.progress();
            match engine.core.endpoint(link, id) {
                None => Poll::Ready(None),
                Some(peer) => match &peer.status {
                    Status::Closed(error) => Poll::Ready(Some(error.duplicate())),
                    _ => {
                        if !peer
                            .waiters
                            .iter()
                            .any(|waiter| waiter.will_wake(cx.waker()))
                        {
                            peer.waiters.push(cx.waker().clone());
                        }
                        Poll::Pending
                    }
                },
            }
        })
    }

    /// Begins to close an endpoint: `CLOSE` goes out once its operations have ended.
    pub(crate) fn begin_close(&self, link: LinkId, id: EndpointId) {
        self.with(|engine| {
            if let Some(peer) = engine.core.endpoint(link, id)
                && matches!(peer.status, Status::Open)
            {
                peer.status = Status::Closing { sent: false };
                engine.core.close_step(link);
            }
        });
    }

    /// Ends a connection at once.
    pub(crate) fn abort(&self, link: LinkId, id: EndpointId, error: Error) {
        self.with(|engine| {
            if engine.core.endpoint(link, id).is_some() {
                engine.fail(link, error);
            }
        });
    }
}

impl Core {
    /// Ends all operations that belong to no connection.
    pub(crate) fn end_all(&mut self, error: &Error) {
        let keys: Vec<OpKey> = self
            .operations
            .iter()
            .filter(|(_, entry)| entry.outcome.is_none())
            .map(|(key, _)| key)
            .collect();
        for key in keys {
            if self.operations.get(key).is_some_and(|entry| {
                matches!(
                    entry.work,
                    Work::Recv(_) | Work::Claim(_) | Work::Flush { .. }
                )
            }) {
                self.fail_operation(key, error.duplicate());
            }
        }
        self.wakes.append(&mut self.arrivals);
        self.am_end();
        self.regions.take_waiters(&mut self.wakes);
    }
}
