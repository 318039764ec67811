//! Copies between the memories of two processes, in steps; the transfers are in [copy](crate::worker::copy).
//!
//! # Safety
//! Local memory is owned by an entry of the table of operations that counts its transfers (`Entry::copies`) and stays while there are any.
//! Remote memory is touched only between `Pair::enter` and `Pair::leave`, after a look at the word by which its owner revokes the right;
//! its owner frees it only after revoking, by the word, by the region's generation, or, of what has neither, by ending the connection, and after having seen this side outside (`Core::fail` and `Region::unexpose`).
#![allow(unsafe_code)]

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::{control, plan::CHUNK},
    transport::Standing,
    util::copy::copy,
    worker::{
        copy::{Remote, STEPS, Step, Transfer, over, too_many},
        movers::Movers,
        peer::at,
    },
};

impl Movers {
    pub(crate) fn start_transfer(&mut self, transfer: Transfer) {
        if let Some(entry) = self.ctx.operations.get(transfer.op) {
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
                Err(error) => self.end_transfer(index, Some(Err(error))),
            }
        }
        steps
    }

    fn step(&mut self, index: usize) -> Result<Step> {
        let transfer = &mut self.transfers[index];
        if transfer.spread.is_some() {
            return self.step_spread(index);
        }
        let one_copy = at(&mut self.ctx.peers, transfer.link)
            .and_then(|peer| peer.one_copy.as_mut())
            .ok_or_else(|| Error::new(ErrorKind::ConnectionReset, "the link is gone"))?;
        let total = transfer.total();
        let pair = &one_copy.pair;
        pair.enter();
        let moved = (|| {
            if pair.peer_over() {
                return Err(over());
            }
            if let Some((slot, generation)) = transfer.region
                && pair.standing(slot, generation) != Standing::Let
            {
                return Err(Error::new(
                    ErrorKind::StaleKey,
                    "the remote memory is not exposed any more",
                ));
            }
            let chunk = match transfer.chunks {
                Some(word) => match pair.claim(word, total) {
                    // The peer can set the word back as often as it likes.
                    Some(_) if transfer.next as u64 == total => return Err(too_many()),
                    Some(chunk) => {
                        transfer.next += 1;
                        chunk as usize
                    }
                    None => return Ok(false),
                },
                None => transfer.next,
            };
            let offset = chunk * CHUNK;
            let length = CHUNK.min(transfer.length - offset);
            // SAFETY: `offset + length` lies within `local`, which the operation owns (`copies` > 0).
            let local = unsafe { transfer.local.add(offset) };
            match (&transfer.remote, transfer.pull) {
                (Remote::Mapped(mapping, start), pull) => {
                    // SAFETY: the range was checked against the mapping when the transfer was made.
                    let remote = unsafe { mapping.as_ptr().add(start + offset) };
                    let (from, to) = if pull {
                        (remote.cast_const(), local)
                    } else {
                        (local.cast_const(), remote)
                    };
                    // SAFETY: both are valid for `length` bytes; a mapping of the peer's memory and own memory do not overlap.
                    unsafe { copy(from, to, length) };
                }
                (Remote::Address(address), pull) => {
                    let cma = one_copy.cma.as_ref().ok_or_else(|| {
                        Error::new(ErrorKind::Unsupported, "no direct access to the peer")
                    })?;
                    let remote = address.wrapping_add(offset as u64);
                    if pull {
                        // SAFETY: `local` is valid for `length` bytes and owned.
                        unsafe { cma.read(remote, local, length) }?;
                    } else {
                        // SAFETY: as above; the peer's memory is revocable, see the chapter on safety.
                        unsafe { cma.write(remote, local, length) }?;
                    }
                }
            }
            let is_mapped = matches!(transfer.remote, Remote::Mapped(..));
            self.ctx.counts.copied(is_mapped, length);
            Ok(true)
        })();
        let step = moved.map(|moved| {
            let complete = match transfer.chunks {
                _ if !moved => return Step::Exhausted,
                // Counted inside: who has seen this side outside may use the word for another transfer.
                Some(word) => one_copy.pair.complete(word) == total,
                None => {
                    transfer.next += 1;
                    transfer.next as u64 == total
                }
            };
            if complete {
                Step::Complete
            } else {
                Step::Moved
            }
        });
        one_copy.pair.leave();
        step
    }

    /// Takes a transfer out; `verdict` settles its operation, and tells the other end.
    pub(crate) fn end_transfer(&mut self, index: usize, verdict: Option<Result<()>>) {
        let transfer = self.transfers.swap_remove(index);
        if let Some(entry) = self.ctx.operations.get(transfer.op) {
            entry.copies -= 1;
        }
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
        Context,
        memory::BufferMut,
        protocol::control::Join,
        transport::Sink,
        types::Access,
        worker::{Handle, connect},
    };

    /// A peer that asks for help again and again is helped with so many copies at a time, and with more when those have ended, well or not.
    #[tokio::test]
    async fn help_has_a_bound() {
        let builder = Context::builder().transports("shm").expect("of this build");
        let context = builder.build().expect("a context");
        let (here, there) = (Handle::start(&context), Handle::start(&context));
        let (here, there) = (here.expect("a worker"), there.expect("a worker"));
        let address = connect::address(&there.shared).expect("an address");
        let (link, endpoint) =
            connect::connect(&here.shared, connect::Destination::Worker(address))
                .await
                .expect("connected");
        let source = vec![7_u8; 2 * CHUNK];
        // Without the lock, which its end takes.
        let regions = here
            .shared
            .with(|engine| engine.core.movers.ctx.regions.clone());
        let memory = BufferMut::from(vec![0; source.len()]);
        let region = regions.expose(memory, Access::WRITE).expect("exposed");
        here.shared.with(|engine| {
            let one_copy = engine
                .core
                .movers
                .ctx
                .one_copy(link)
                .expect("memory in common");
            if one_copy.cma.is_none() {
                eprintln!("skipped: this process may not read its own memory by process_vm_readv");
                return;
            }
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
        let over = Error::new(ErrorKind::Closed, "over");
        here.shared
            .with(|engine| engine.abort(link, endpoint, over));
        here.shared.release_endpoint(link, endpoint);
    }
}
