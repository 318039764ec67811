//! What was done, told to who asks.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use crate::{
    protocol::plan::{CHUNK, TOLD},
    types::OpKey,
    worker::{
        copy::Transfer,
        core::Core,
        engine::Engine,
        metrics::{Traffic, WorkerMetrics},
        movers::Movers,
        one_sided::OneSided,
        operations::{Ended, RecvStage, SendStage, Work},
        shared::Shared,
    },
};

impl Core {
    /// How many bytes of an operation were moved, as this side knows it, and of how many: `None` for a receive that has no message. `None`: it is over, or moves
    /// nothing.
    pub(crate) fn moved(&mut self, key: OpKey) -> Option<(usize, Option<usize>)> {
        let Some(key) = self.entry_of(key) else {
            return (!self.is_over(key)).then_some((0, None));
        };
        let entry = self.movers.ctx.operations.get(key)?;
        let total = match &*entry.work {
            Work::Send(send) => Some(send.buffer.len()),
            Work::Recv(recv) => recv.arrival.map(|arrival| arrival.length),
            Work::Put(put) => Some(put.buffer.len()),
            Work::Get(get) => Some(get.buffer.len()),
            Work::Copy(copy) => Some(copy.from.len()),
            _ => return None,
        };
        match entry.outcome.as_ref().or(entry.deferred.as_ref()) {
            Some(Ended::Done(Ok(()))) => Some((total.unwrap_or(0), total)),
            Some(_) => None,
            None => Some((self.movers.counted(key).min(total.unwrap_or(0)), total)),
        }
    }
}

impl Movers {
    /// What whoever moves the bytes of an operation has counted.
    fn counted(&mut self, key: OpKey) -> usize {
        let Some(entry) = self.ctx.operations.get(key) else {
            return 0;
        };
        let pipe = entry
            .staged
            .as_ref()
            .and_then(|staged| staged.pipe.as_ref());
        if let Some(pipe) = pipe {
            return pipe.done;
        }
        if let Some(OneSided::Moves(moves)) = entry.one_sided.as_deref() {
            return moves.next;
        }
        let (in_messages, word) = match &*entry.work {
            Work::Send(send) => match &send.stage {
                SendStage::Streaming(out) => (out.next, None),
                _ => (0, send.slot),
            },
            Work::Recv(recv) => match recv.stage {
                RecvStage::Landing { got, .. } => (got, None),
                RecvStage::Shared(word) => (0, Some(word)),
                _ => (0, None),
            },
            // What was announced the peer fetches.
            Work::Put(put) if put.announced => (0, None),
            Work::Put(put) => (put.next, put.slot),
            Work::Get(get) => (get.got, get.slot),
            _ => (0, None),
        };
        let (link, told) = (entry.link, entry.told as usize * TOLD);
        let transfer = self.transfers.iter().find(|transfer| transfer.op == key);
        let copied = transfer.map_or(0, Transfer::moved);
        let by_both = word.and_then(|word| {
            let one_copy = self.ctx.one_copy(link?)?;
            let chunks = one_copy.pair.completed(word);
            Some((chunks as usize).saturating_mul(CHUNK))
        });
        in_messages.max(copied).max(by_both.unwrap_or(0)).max(told)
    }
}

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
        let ctx = &self.core.movers.ctx;
        let mut transports = self.transports();
        for peer in ctx.connections() {
            if let (Some(counts), Some(link)) = (transports.get_mut(peer.interface), &peer.link) {
                counts.sent.join(link.sent);
            }
        }
        let mut metrics = WorkerMetrics {
            transports,
            operations: ctx.operations.entered() + self.core.posted.entered(),
            in_flight: ctx.operations.len() + self.core.receives,
            held: ctx.held(),
            refused: ctx.refused(),
            ..ctx.counts.clone()
        };
        let (count, bytes) = self.core.movers.devices.stopped();
        metrics.staged.join(Traffic { count, bytes });
        metrics
    }
}
