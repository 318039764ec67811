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
        movers::{Movers, rma::OneRun},
        operations::{Ended, Put, Work},
        rma::Target,
    },
};

use crate::worker::device::pipe::{Kind, Pipe, Stage};

impl Movers {
    /// Begins a put that is in the table.
    pub(crate) fn begin_device_put(&mut self, key: OpKey, target: Target) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let Work::Put(put) = &*entry.work else { return };
        let (types, total) = (put.buffer.device_types(), put.buffer.len());
        match self.devices.slot_for(&types) {
            Ok(slot) => self.begin_staged(key, Pipe::new(Kind::Put { target }, slot, total)),
            Err(error) => self.fail_operation(key, error),
        }
    }

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
        let layout = match &mut *entry.work {
            Work::Put(put) => put.layout.as_mut().and_then(|plan| plan.part(position)),
            _ => None,
        };
        let blocks = layout.is_some();
        if !blocks {
            target.offset += position as u64;
        }
        let address = fragment.address();
        // SAFETY: a fragment is at least that long and initialised, and nothing writes it until the part is over.
        let buffer = unsafe { Buffer::from_raw(address, length, fragment) };
        let put = Put {
            buffer,
            region: (target.slot, target.generation),
            offset: target.offset,
            next: 0,
            local: false,
            acknowledged: false,
            slot: None,
            signal: None,
            signal_due: false,
            layout,
            announced: false,
        };
        let child = self
            .ctx
            .operations
            .insert(Some(link), false, Work::Put(put));
        if let Some(entry) = self.ctx.operations.get(child) {
            entry.staged.get_or_insert_default().parent = Some((key, id));
            entry.priority = priority;
        }
        if let Some(peer) = self.ctx.peer(link) {
            peer.posted += 1;
        }
        match blocks {
            true => self.begin_layout(link, child),
            false => self.start_part(&OneRun {
                link,
                key: child,
                target,
                local: address,
                length,
                pull: false,
            }),
        }
    }
}
