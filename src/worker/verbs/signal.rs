//! Signals: raised here, and asked for at the peer.

use crate::{
    error::{Error, ErrorKind, Result},
    protocol::control::{self, Signal},
    transport::SendError,
    types::{Access, AtomicOp, AtomicRequest, LinkId, OpKey},
    worker::{
        ctx::Ctx,
        operations::{self, Ask, Ended, Work},
        peer::Peer,
        signal::Raise,
    },
};

impl Ctx {
    /// Sends a signal at once. `false`: it has to wait for its turn.
    #[inline]
    pub(crate) fn signal_now(&mut self, link: LinkId, signal: &Signal) -> bool {
        self.peer(link)
            .is_some_and(|peer| peer.queue.is_empty() && peer.try_signal(signal).is_ok())
    }

    /// The bytes of a put are visible, and it was not the peer's software that put them there: its signal is due, or it is over.
    pub(in crate::worker) fn put_visible(&mut self, key: OpKey) {
        let Some(entry) = self.operations.get(key) else {
            return;
        };
        let link = entry.link;
        let Work::Put(put) = &mut *entry.work else {
            return;
        };
        put.acknowledged = true;
        if put.signal.is_some()
            && let Some(link) = link
        {
            put.signal_due = true;
            self.submit(link, key);
        } else {
            self.finish(key, Ended::Done(Ok(())));
        }
    }

    /// Enters a signal that has to wait for room: as a put whose bytes are visible, and which has none.
    pub(crate) fn start_signal(&mut self, link: LinkId, signal: Signal) -> OpKey {
        if let Some(peer) = self.peer(link) {
            peer.posted += 1;
        }
        let put = Work::Put(operations::Put::of_nothing(signal));
        let key = self.operations.insert(Some(link), false, put);
        self.put_visible(key);
        key
    }

    /// Finds the counter of a peer's signal.
    pub(in crate::worker) fn find_counter(&self, signal: &Signal) -> Result<Raise> {
        let (generation, offset) = (signal.generation, signal.offset);
        let counter = self
            .regions
            .check(signal.slot, generation, offset, 8, Access::WRITE)?;
        let add = AtomicRequest::new(AtomicOp::Add, signal.add);
        counter.word(offset as usize, add.width)?;
        if counter.access.contains(Access::DEVICE_ATOMIC) {
            let text = "a counter of network devices";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Raise {
            counter,
            offset: offset as usize,
            add,
        })
    }

    /// Applies a signal; who waits for the counter is woken when the lock is gone.
    pub(in crate::worker) fn raise(&mut self, raise: &Raise) {
        // Found by `find_counter`, so it is within bounds and aligned.
        if raise.counter.atomic(raise.offset, &raise.add).is_ok() {
            raise.counter.take_reached(&mut self.wakes);
        }
    }

    /// A peer that raised counters in memory is not there any more: it may have gone before it said that somebody is to be woken.
    pub(in crate::worker) fn look_at_counters(&mut self) {
        self.regions.take_reached(&mut self.wakes);
    }

    /// A signal on its own has come.
    pub(in crate::worker) fn signalled(&mut self, link: LinkId, signal: &Signal) {
        match self.find_counter(signal) {
            Ok(raise) => self.raise(&raise),
            // Raised in memory before: whoever slept has seen that, and has dropped the counter since.
            Err(_) if signal.add == 0 => {}
            Err(error) => {
                if let Some(peer) = self.peer(link) {
                    peer.signals.refused.get_or_insert_with(|| error.kind());
                }
            }
        }
    }

    /// The peer asks whether its signals were applied; all that it sent before have come.
    pub(in crate::worker) fn settle(&mut self, link: LinkId, op: u64) {
        match self.peer(link).and_then(|peer| peer.signals.refused.take()) {
            Some(kind) => self.refuse(link, op, kind),
            None => self.control(link, control::DONE, op, &[]),
        }
    }

    /// Asks the peer for the signals sent since it was last asked, if there are any.
    pub(in crate::worker) fn begin_settle(&mut self, link: LinkId) {
        let Some(peer) = self.peer(link) else { return };
        if !std::mem::take(&mut peer.signals.unsettled) {
            return;
        }
        peer.posted += 1;
        let key = self.enter_atomic(link, Ask::Settle, false);
        self.submit(link, key);
    }
}

impl Peer {
    /// Sends a signal, if there is room now.
    pub(in crate::worker) fn try_signal(&mut self, signal: &Signal) -> Result<(), SendError> {
        let Some(link) = &mut self.link else {
            return Err(SendError::Full);
        };
        link.am_short(control::SIGNAL, 0, &signal.encode())?;
        self.signals.unsettled = true;
        Ok(())
    }
}
