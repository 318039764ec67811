//! What was done, told to who asks.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use crate::worker::{
    engine::Engine,
    metrics::{Traffic, WorkerMetrics},
    shared::Shared,
};

impl Shared {
    /// What the worker has done so far.
    pub(crate) fn metrics(&self) -> WorkerMetrics {
        let dialling = &self.dialling;
        let mut metrics = self.ask(|engine| engine.metrics()).unwrap_or_default();
        metrics.connects = dialling.made.load(Relaxed);
        metrics.connects_failed = dialling.failed.load(Relaxed);
        metrics.connect_time = Duration::from_nanos(dialling.nanoseconds.load(Relaxed));
        let accepted = &self.accepted;
        metrics.accepted = accepted.made.load(Relaxed);
        let over_limit = accepted.over_limit();
        metrics.refused.source.connections = over_limit.source;
        metrics.refused.worker.connections = over_limit.worker;
        metrics.refused_over_limit = over_limit.source + over_limit.worker;
        metrics.refused_by_check = accepted.not_admitted.load(Relaxed);
        metrics.refused_silent = accepted.silent.load(Relaxed);
        metrics.mean_wait = self.spin.mean();
        metrics
    }
}

impl Engine {
    fn metrics(&self) -> WorkerMetrics {
        let counts = &self.core.movers.ctx.counts;
        let mut lanes = self.lanes();
        for peer in self.core.movers.ctx.peers.iter().flatten() {
            if let (Some(lane), Some(link)) = (lanes.get_mut(peer.interface), &peer.link) {
                lane.sent.join(link.sent);
            }
        }
        let mut staged = counts.staged;
        let (count, bytes) = self.core.movers.devices.stopped();
        staged.join(Traffic { count, bytes });
        WorkerMetrics {
            lanes,
            mapped: counts.mapped,
            cma: counts.cma,
            one_sided: counts.one_sided,
            device_copies: counts.device_copies,
            staged,
            operations: self.core.movers.ctx.operations.entered() + self.core.posted.entered(),
            in_flight: self.core.movers.ctx.operations.len() + self.core.receives,
            held: self.core.movers.ctx.held(),
            refused: self.core.movers.ctx.refused(),
            found_at_once: counts.found_at_once,
            found_spinning: counts.found_spinning,
            parked: counts.parked,
            wakes: counts.wakes,
            doorbells: counts.doorbells,
            fd_wakeups: counts.fd_wakeups,
            arms: counts.arms,
            ..Default::default()
        }
    }
}
