//! Who waits for a place, awaited.

use std::task::{Context as TaskContext, Poll};

use crate::{
    error::Result,
    types::{EndpointId, LinkId},
    worker::shared::Shared,
};

impl Shared {
    /// Ready when another operation has a place: in the window, and on the link.
    pub(in crate::worker) fn poll_ready(
        &self,
        cx: &mut TaskContext<'_>,
        link: LinkId,
        id: EndpointId,
        ticket: &mut Option<u64>,
    ) -> Poll<Result<()>> {
        let window = self.ops_window;
        self.drive(
            cx,
            |engine| {
                engine.progress();
                let Some(peer) = engine.core.movers.ctx.endpoint(link, id) else {
                    return Some(Err(crate::worker::send::closed()));
                };
                if let Some(error) = peer.error() {
                    return Some(Err(error));
                }
                (peer.posted < window && peer.has_room()).then_some(Ok(()))
            },
            |engine, waker| {
                if let Some(peer) = engine.core.movers.ctx.endpoint(link, id) {
                    let before = peer.ready.leave(ticket, waker);
                    engine.ctx().drop_later(before);
                }
            },
        )
    }

    /// A future that waited for a place, or for the end, goes.
    pub(crate) fn forget_waiter(&self, link: LinkId, id: EndpointId, ticket: u64, ending: bool) {
        let waker = self.ask(|engine| {
            let peer = engine.core.movers.ctx.endpoint(link, id)?;
            if ending {
                peer.ending.forget(ticket)
            } else {
                peer.ready.forget(ticket)
            }
        });
        drop(waker);
    }
}
