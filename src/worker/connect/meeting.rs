//! Connections by address between two workers that may both dial: which one stands, and taking one that the peer made.

use std::task::Poll;

use crate::{
    types::{EndpointId, LinkId, WorkerId},
    worker::{peer::at, shared::Shared},
};

/// Counts one connection of a meeting in, and out again however it ends.
pub(super) struct Met<'a> {
    shared: &'a Shared,
    worker: WorkerId,
    accepts: bool,
}

impl<'a> Met<'a> {
    /// A dial. `None`: a connection of the peer's is being accepted already.
    pub(super) fn dials(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.entry(worker).or_default();
        (meeting.accepting == 0).then(|| {
            meeting.dialling += 1;
            Self {
                shared,
                worker,
                accepts: false,
            }
        })
    }

    /// A request. `None`: this side's own connection is the one.
    pub(super) fn accepts(shared: &'a Shared, worker: WorkerId) -> Option<Self> {
        let mut meetings = shared.wireup.meetings.lock();
        let meeting = meetings.entry(worker).or_default();
        if meeting.dialling > 0 {
            if shared.id < worker {
                return None;
            }
            meeting.crossed = true;
        }
        meeting.accepting += 1;
        Some(Self {
            shared,
            worker,
            accepts: true,
        })
    }

    pub(super) fn has_crossed(&self) -> bool {
        let meetings = self.shared.wireup.meetings.lock();
        meetings
            .get(&self.worker)
            .is_some_and(|meeting| meeting.crossed)
    }
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        let mut meetings = self.shared.wireup.meetings.lock();
        if let Some(meeting) = meetings.get_mut(&self.worker) {
            *meeting.count(self.accepts) -= 1;
            if meeting.dialling == 0 {
                meeting.crossed = false;
                if meeting.accepting == 0 {
                    meetings.remove(&self.worker);
                }
            }
        }
        drop(meetings);
        if self.accepts {
            // Who waited for it looks again, and dials if there is nothing.
            self.shared.with(|engine| {
                let ctx = engine.ctx();
                ctx.wakes.append(&mut ctx.arrivals);
            });
        }
    }
}

/// Waits for a connection that the peer makes. `None`: none is being made any more.
pub(super) async fn arrival(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    let coming = || {
        let meetings = shared.wireup.meetings.lock();
        meetings
            .get(&worker)
            .is_some_and(|meeting| meeting.accepting > 0)
    };
    std::future::poll_fn(|cx| {
        if coming() {
            shared.with(|engine| engine.ctx().arrivals.push(cx.waker().clone()));
            if coming() {
                return claim(shared, worker)
                    .map_or(Poll::Pending, |found| Poll::Ready(Some(found)));
            }
        }
        // One that was accepted could be claimed before it was counted out.
        Poll::Ready(claim(shared, worker))
    })
    .await
}

/// Takes a connection that the worker itself has made to this one.
pub(super) fn claim(shared: &Shared, worker: WorkerId) -> Option<(LinkId, EndpointId)> {
    shared.with(|engine| {
        let ctx = engine.ctx();
        let index = ctx.unclaimed.iter().position(|link| {
            let peer = at(&mut ctx.peers, *link);
            peer.is_some_and(|peer| peer.worker == worker && peer.is_open())
        })?;
        let link = ctx.unclaimed.swap_remove(index);
        let peer = ctx.peer(link)?;
        peer.handles += 1;
        peer.claimed = true;
        Some((link, peer.id))
    })
}
