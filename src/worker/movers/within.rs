//! What a worker puts into, gets from and sends to itself, with a device at either end, step by step.

use crate::{
    error::{Error, ErrorKind, Result},
    memory::Buffer,
    protocol::control::Pull,
    types::{Access, LinkId, OpKey},
    worker::{ctx::Ctx, device::within::Own, movers::Movers, operations::Work, rma::Target},
};

impl Ctx {
    /// Whether a link ends where it begins.
    pub(crate) fn is_to_itself(&self, link: LinkId) -> bool {
        let peer = self.peers.get(link.index()).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.slot == link && peer.is_own())
    }

    fn announced_here(&mut self, link: LinkId, send: OpKey, total: usize) -> Result<Buffer> {
        let all = Pull {
            to: 0,
            offset: 0,
            length: total as u64,
        };
        let found = self.announced_range(link, send, &all)?;
        let ended = || Error::new(ErrorKind::Canceled, "its send has ended");
        found.map(|(source, _)| source).ok_or_else(ended)
    }
}

impl Movers {
    /// Begins a put or get, in the table, on a link to oneself.
    pub(crate) fn begin_within(&mut self, key: OpKey, target: Target) {
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        let mut signal = None;
        let (access, mut types, total) = match &mut *entry.work {
            Work::Put(put) => {
                // Begun: it is not called back.
                put.next = 1;
                signal = put.signal.as_deref().copied();
                (Access::WRITE, put.buffer.device_types(), put.buffer.len())
            }
            Work::Get(get) => (Access::READ, get.buffer.device_types(), get.buffer.len()),
            _ => return,
        };
        let (slot, offset) = (target.slot, target.offset);
        let found =
            self.ctx
                .regions
                .check_any(slot, target.generation, offset, total as u64, access);
        // A signal that cannot be raised is told before anything is put.
        let found = match signal.map(|signal| self.ctx.find_counter(&signal)) {
            Some(Err(error)) => found.and(Err(error)),
            _ => found,
        };
        let exposed = match found {
            Ok(exposed) => exposed,
            Err(error) => return self.fail_operation(key, error),
        };
        types.extend(exposed.device.map(|(memory_type, _)| memory_type));
        types.dedup();
        if let Some(entry) = self.ctx.operations.get(key) {
            let offset = offset as usize;
            entry.staged.get_or_insert_default().own = Some(Own { exposed, offset });
        }
        self.begin_local(key, &types, total);
    }

    /// Receives an announced message of this worker, out of the memory that it was sent from.
    pub(in crate::worker) fn receive_within(
        &mut self,
        key: OpKey,
        link: LinkId,
        op: u64,
        total: usize,
    ) {
        let (source, mut types) = match self.ctx.announced_here(link, OpKey(op), total) {
            Ok(source) => (source.clone(), source.device_types()),
            Err(error) => return self.fail_operation(key, error),
        };
        // What may not stop on its way out.
        let unstaged = source.is_on_device() && self.ctx.is_unstaged(OpKey(op));
        if let Some(Work::Recv(recv)) = self.ctx.operations.work(key) {
            types.extend(recv.buffer.device_types());
        }
        if let Err(error) = self.devices.slots_for(&types) {
            self.ctx.refuse(link, op, error.kind());
            return self.fail_operation(key, error);
        }
        let Some(entry) = self.ctx.operations.get(key) else {
            return;
        };
        entry.unstaged |= unstaged;
        let staged = entry.staged.get_or_insert_default();
        staged.source = Some(source);
        staged.sender = Some(op);
        self.begin_local(key, &types, total);
    }
}
