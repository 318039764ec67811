//! Puts out of device memory into host memory of a peer: each part is copied into a fragment, and put from there like any host memory. Into
//! device memory of a peer the peer fills itself (`pull.rs`).
//!
//! # Safety
//! A part is put as a put of its own, whose buffer is the fragment, with the fragment as its owner.
#![allow(unsafe_code)]

use crate::{
    memory::Buffer,
    types::OpKey,
    worker::{
        movers::Movers,
        operations::{Ended, Put, Work},
        rma::Target,
    },
};

use crate::worker::device::pipe::Stage;

impl Movers {
    /// A part is in its fragment: put from there.
    pub(in crate::worker) fn put_loaded(&mut self, key: OpKey, id: u32, mut target: Target) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let (Some(link), priority) = (entry.link, entry.priority) else {
            return;
        };
        let Some(pipe) = entry.pipe() else { return };
        let Some(part) = pipe.part(id) else { return };
        part.stage = Stage::Travelling;
        let (position, length) = (part.position, part.length);
        let Some(fragment) = part.fragment.clone() else {
            return;
        };
        let last = pipe.next == pipe.total
            && pipe
                .parts
                .iter()
                .all(|part| part.stage == Stage::Travelling);
        if let Work::Put(put) = &mut *entry.work {
            // No more to be called back.
            put.next = 1;
            if last
                && put.local
                && put.signal.is_none()
                && !entry.detached
                && entry.outcome.is_none()
            {
                // The source is free.
                entry.outcome = Some(Ended::Done(Ok(())));
                self.ctx.wakes.extend(entry.waker.take());
            }
        }
        let layout = entry.work.layout().and_then(|plan| plan.part(position));
        if layout.is_none() {
            target.offset += position as u64;
        }
        let address = fragment.address();
        // SAFETY: a fragment is at least that long and initialised, and nothing writes it until the part is over.
        let buffer = unsafe { Buffer::from_raw(address, length, fragment.clone()) };
        let put = Put {
            layout,
            ..Put::new(buffer, (target.slot, target.generation), target.offset)
        };
        let of = ((key, id), fragment);
        self.start_part(link, of, priority, Work::Put(put), Some(target));
    }
}
