//! Copies between the memories of two processes, in steps; the transfers are in [copy](crate::worker::copy).

use std::time::Duration;

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::control,
    types::LinkId,
    worker::{
        copy::{STEPS, Step, Transfer, gone},
        movers::{Errand, Movers, Told},
        peer::at,
    },
};

/// How long a connection may go on whose peer a copy did not find. What the peer said last is still
/// to be read then, and says how it ended; in order, or not.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

impl Movers {
    pub(crate) fn start_transfer(&mut self, transfer: Transfer) {
        let entry = self.ctx.operations.get(transfer.op);
        // One that has ended is its future's to take, with the memory.
        if let Some(entry) = entry.filter(|entry| entry.is_under_way()) {
            entry.copies += 1;
            self.transfers.push(transfer);
        }
    }

    /// Moves one chunk of each of a few transfers.
    pub(crate) fn step_transfers(&mut self) -> usize {
        let steps = self.transfers.len().min(STEPS);
        for _ in 0..steps {
            if self.next_transfer >= self.transfers.len() {
                self.next_transfer = 0;
            }
            let index = self.next_transfer;
            if index >= self.transfers.len() {
                break;
            }
            match self.step(index) {
                Ok(Step::Moved) => self.next_transfer += 1,
                Ok(Step::Checked) => self.layout_checked(index),
                Ok(Step::Exhausted) => self.end_transfer(index, None),
                Ok(Step::Complete) => self.end_transfer(index, Some(Ok(()))),
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionReset | ErrorKind::PeerDied => self.lose(index, error),
                    _ => self.end_transfer(index, Some(Err(error))),
                },
            }
        }
        steps
    }

    /// One turn of a transfer.
    fn step(&mut self, index: usize) -> Result<Step> {
        let transfer = &mut self.transfers[index];
        match transfer.check() {
            Some(true) => return Ok(Step::Checked),
            Some(false) => return Ok(Step::Moved),
            None => {}
        }
        let before = transfer.moved();
        let one_copy = at(&mut self.ctx.peers, transfer.link)
            .and_then(|peer| peer.one_copy.as_ref())
            .ok_or_else(gone)?;
        one_copy.pair.enter();
        let moved = transfer.step(&one_copy.pair, one_copy.cma.as_ref());
        one_copy.pair.leave();
        let Some((length, is_last)) = moved? else {
            return Ok(Step::Exhausted);
        };
        let is_mapped = transfer.remote.is_mapped();
        self.ctx.counts.copied(is_mapped, length);
        if is_last {
            return Ok(Step::Complete);
        }
        // Where both ends count chunks the other one sees them.
        if let (Some(op), None) = (transfer.peer_op, transfer.chunks) {
            let now = transfer.moved();
            self.ctx.tell_moved(transfer.link, op, before, now);
        }
        Ok(Step::Moved)
    }

    fn take_transfer(&mut self, index: usize) -> Transfer {
        let transfer = self.transfers.swap_remove(index);
        if let Some(entry) = self.ctx.operations.get(transfer.op) {
            entry.copies -= 1;
        }
        transfer
    }

    /// The blocks of a transfer are checked: now it may begin.
    fn layout_checked(&mut self, index: usize) {
        let transfer = self.take_transfer(index);
        self.begin_layout(transfer.link, transfer.op);
    }

    /// Takes out a transfer whose peer is gone. Its operation ends with the connection, which knows
    /// how the peer ended, unless it does not end at all: of a process whose first thread has ended
    /// memory cannot be copied, whatever the others do.
    fn lose(&mut self, index: usize, error: Error) {
        let Transfer { op, link, .. } = self.take_transfer(index);
        self.ctx.helped(op);
        let work = async move {
            tokio::time::sleep(ENDS_WITHIN).await;
            Box::new(move |movers: &mut Self| movers.end_lost(link, error)) as Told
        };
        self.errand(Errand::Wait(Box::pin(work)));
    }

    fn end_lost(&mut self, link: LinkId, error: Error) {
        if at(&mut self.ctx.peers, link).is_some_and(|peer| peer.is_alive()) {
            self.ctx.failures.push((link, error));
        }
    }

    /// Takes a transfer out; `verdict` settles its operation, and tells the other end.
    pub(crate) fn end_transfer(&mut self, index: usize, verdict: Option<Result<()>>) {
        let transfer = self.take_transfer(index);
        match verdict {
            None => self.ctx.helped(transfer.op),
            Some(Ok(())) => {
                if let Some(op) = transfer.peer_op {
                    self.ctx.control(transfer.link, control::DONE, op, &[]);
                }
                self.copied(transfer.op, Ok(()));
            }
            Some(Err(error)) => {
                if let Some(word) = transfer.chunks
                    && let Some(one_copy) = self.ctx.one_copy(transfer.link)
                {
                    one_copy.pair.revoke(word);
                }
                if let Some(op) = transfer.peer_op {
                    self.ctx.refuse(transfer.link, op, error.kind());
                }
                self.copied(transfer.op, Err(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        memory::BufferMut,
        protocol::{control::Join, plan::CHUNK},
        transport::Sink,
        types::Access,
        worker::{pair::Pair, peer::Peer},
    };

    /// A peer that asks for help again and again is helped with so many copies at a time, and with more when those have ended, well or not.
    #[tokio::test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    async fn help_has_a_bound() {
        let pair = Pair::new().await;
        let (here, link) = (&pair.here, pair.link);
        let source = vec![7_u8; 2 * CHUNK];
        // Without the lock, which its end takes.
        let regions = here
            .shared
            .with(|engine| engine.core.movers.ctx.regions.clone());
        let memory = BufferMut::from(vec![0; source.len()]);
        let region = regions.expose(memory, Access::WRITE).expect("exposed");
        here.shared.with(|engine| {
            let one_copy = engine.core.movers.ctx.one_copy(link);
            let cma = &one_copy.expect("memory in common").cma;
            assert!(cma.is_some(), "this process reads its own memory");
            // Of memory that is there, and that is not.
            for address in [source.as_ptr() as u64, 4096] {
                let one_copy = engine
                    .core
                    .movers
                    .ctx
                    .one_copy(link)
                    .expect("memory in common");
                let chunks = one_copy.pair.acquire().expect("a word");
                let join = Join {
                    generation: region.exposed().generation,
                    offset: 0,
                    length: source.len() as u64,
                    address,
                    slot: region.exposed().slot,
                    chunks,
                    put: 1,
                };
                for op in 0..1000 {
                    let asked = engine.core.message(link, control::JOIN, op, &join.encode());
                    asked.expect("in order");
                }
                assert_eq!(engine.core.movers.transfers.len(), 32);
                while !engine.core.movers.transfers.is_empty() {
                    engine.core.movers.step_transfers();
                }
                assert_eq!(engine.core.movers.ctx.operations.len(), 0);
            }
            let mut bytes = vec![0; source.len()];
            region.read_at(0, &mut bytes).expect("within");
            assert_eq!(bytes, source);
        });
        pair.end();
    }

    /// A peer that says that it has ended the connection, and keeps it: what it asked for holds
    /// nothing, and the connection ends.
    #[tokio::test]
    #[ignore = "needs process_vm_readv: a container may refuse it"]
    async fn a_peer_that_is_over_and_stays_is_left() {
        let pair = Pair::new().await;
        let (here, link) = (&pair.here, pair.link);
        let regions = here
            .shared
            .with(|engine| engine.core.movers.ctx.regions.clone());
        let memory = BufferMut::from(vec![0; 2 * CHUNK]);
        let region = regions.expose(memory, Access::WRITE).expect("exposed");
        let source = vec![7_u8; 2 * CHUNK];
        pair.there.shared.with(|engine| {
            let ctx = &mut engine.core.movers.ctx;
            let back = ctx.connections().next().expect("connected").slot;
            ctx.one_copy(back).expect("memory in common").pair.end();
        });
        here.shared.with(|engine| {
            let one_copy = engine.core.movers.ctx.one_copy(link);
            let one_copy = one_copy.expect("memory in common");
            let join = Join {
                generation: region.exposed().generation,
                offset: 0,
                length: source.len() as u64,
                address: source.as_ptr() as u64,
                slot: region.exposed().slot,
                chunks: one_copy.pair.acquire().expect("a word"),
                put: 1,
            };
            let asked = engine.core.message(link, control::JOIN, 0, &join.encode());
            asked.expect("in order");
            let movers = &mut engine.core.movers;
            assert_eq!(movers.transfers.len(), 1);
            movers.step_transfers();
            assert_eq!(
                (movers.transfers.len(), movers.ctx.operations.len()),
                (0, 0)
            );
            assert!(movers.ctx.failures.is_empty(), "its last words may be here");
            assert!(matches!(movers.errands[..], [Errand::Wait(_)]));
            movers.end_lost(link, gone());
            engine.progress();
            let is_alive = |peer: &mut Peer| peer.is_alive();
            assert!(!at(&mut engine.core.movers.ctx.peers, link).is_some_and(is_alive));
        });
        // Nobody is inside.
        let _memory = region.unexpose().await;
        pair.end();
    }
}
