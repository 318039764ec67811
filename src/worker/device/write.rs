//! Out of device memory into a byte stream: parts wait in fragments until the stream has its turn on the link (`stream/outgoing.rs`).

use crate::{
    memory::Buffer,
    types::{LinkId, OpKey},
    worker::{
        core::Core,
        operations::{Outcome, Work},
        stream::StreamKey,
    },
};

use super::{
    pipe::{Kind, Pipe, Stage},
    pool::Fragment,
};

/// A buffer that a stream owns and the host does not reach.
pub(crate) struct DeviceWrite {
    stream: StreamKey,
    pub(super) buffer: Buffer,
    /// Bytes that have left.
    sent: usize,
}

impl Core {
    /// Enters such a buffer, and begins to copy it out.
    pub(crate) fn start_write(&mut self, link: LinkId, stream: StreamKey, buffer: Buffer) -> OpKey {
        let (types, total) = (buffer.device_types(), buffer.len());
        let slot = self.devices.slot_for(&types);
        let work = Work::Write(DeviceWrite {
            stream,
            buffer,
            sent: 0,
        });
        let key = self.operations.insert(Some(link), true, work);
        match slot {
            Ok(slot) => self.begin_staged(key, Pipe::new(Kind::Write, slot, total)),
            Err(error) => {
                self.stream_write_failed(stream, &error);
                self.fail_operation(key, error);
            }
        }
        key
    }

    /// A part is in its fragment.
    pub(super) fn write_loaded(&mut self, key: OpKey, id: u32) {
        let Some(pipe) = self.pipe(key) else { return };
        if let Some(part) = pipe.part(id) {
            part.stage = Stage::Ready;
        }
        let first = pipe.parts.front().is_some_and(|part| part.id == id);
        if first && let Some(Work::Write(write)) = self.operations.get(key).map(|entry| &entry.work)
        {
            let stream = write.stream;
            self.stream_write_ready(stream, key);
        }
    }

    /// The next bytes of such a buffer, if they are in a fragment: where, and how many.
    pub(crate) fn write_ready(&mut self, key: OpKey) -> Option<(Fragment, *mut u8, usize)> {
        let entry = self.operations.get(key)?;
        let Work::Write(write) = &entry.work else {
            return None;
        };
        let sent = write.sent;
        let part = entry.pipe()?.parts.front()?;
        let fragment = part.fragment.clone()?;
        let within = sent - part.position;
        let address = fragment.address().wrapping_add(within);
        (part.stage == Stage::Ready).then_some((fragment, address, part.length - within))
    }

    /// So many of them have left. `true`: those were the last.
    pub(crate) fn write_sent(&mut self, key: OpKey, count: usize) -> bool {
        let Some(entry) = self.operations.get(key) else {
            return true;
        };
        let Work::Write(write) = &mut entry.work else {
            return true;
        };
        write.sent += count;
        let (sent, total) = (write.sent, write.buffer.len());
        if sent == total {
            self.finish(key, Outcome::Done(Ok(())));
            return true;
        }
        if let Some(pipe) = entry.pipe()
            && let Some(part) = pipe.parts.front()
            && sent == part.position + part.length
        {
            let id = part.id;
            pipe.end(id);
            self.devices.step_soon(key);
        }
        false
    }

    /// The stream is broken: nothing of it leaves any more.
    pub(crate) fn end_write(&mut self, key: OpKey) {
        self.finish(key, Outcome::Done(Ok(())));
    }

    pub(super) fn write_failed(&mut self, key: OpKey, error: &crate::error::Error) {
        if let Some(Work::Write(write)) = self.operations.get(key).map(|entry| &entry.work) {
            let stream = write.stream;
            self.stream_write_failed(stream, error);
        }
    }
}
