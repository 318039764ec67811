//! Who waits for a place, awaited; and the lines of those who wait.

use std::task::{Context as TaskContext, Poll};

use crate::{
    error::Result,
    types::{EndpointId, LinkId},
    util::waiters::Waiters,
    worker::{ctx::Ctx, shared::Shared},
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

    /// A future that waited in a line goes.
    pub(crate) fn forget(&self, place: (LinkId, EndpointId), line: Line, ticket: u64) {
        let waker = self.ask(|engine| engine.ctx().line(place, line)?.forget(ticket));
        drop(waker);
    }
}

/// What futures of a connection wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    Ending,
    Ready,
    Openers,
    Accepters,
}

impl Ctx {
    /// Those who wait for it.
    pub(crate) fn line(
        &mut self,
        (link, id): (LinkId, EndpointId),
        line: Line,
    ) -> Option<&mut Waiters> {
        let peer = self.endpoint(link, id)?;
        Some(match line {
            Line::Ending => &mut peer.ending,
            Line::Ready => &mut peer.ready,
            Line::Openers => &mut peer.streams().openers,
            Line::Accepters => &mut peer.streams().accepters,
        })
    }
}
