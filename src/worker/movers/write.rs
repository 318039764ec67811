//! Bytes of a device that a stream writes.

use crate::{
    memory::Buffer,
    types::{LinkId, OpKey},
    worker::{
        ctx::{Ctx, Event},
        device::{
            pipe::{Kind, Pipe},
            pool::Fragment,
            write::DeviceWrite,
        },
        movers::Movers,
        operations::{Ended, Work},
        stream::key::StreamKey,
    },
};

impl Ctx {
    /// The next bytes of such a buffer, if they are in a fragment: where, and how many.
    pub(crate) fn write_ready(&mut self, key: OpKey) -> Option<(Fragment, *mut u8, usize)> {
        let entry = self.operations.get(key)?;
        let Work::Write(write) = &*entry.work else {
            return None;
        };
        let sent = write.sent;
        entry.pipe()?.ready(sent)
    }

    /// The stream is broken: nothing of it leaves any more.
    pub(crate) fn end_write(&mut self, key: OpKey) {
        self.finish(key, Ended::Done(Ok(())));
    }

    pub(in crate::worker) fn write_failed(&mut self, key: OpKey, error: &crate::error::Error) {
        if let Some(Work::Write(write)) = self.operations.work(key) {
            let event = Event::Unwritten(write.stream, error.clone());
            self.events.push_back(event);
        }
    }
}

impl Movers {
    /// Lets as many of its bytes be copied out as leave for certain, `room` of those that have not left. What is in a fragment and cannot leave would hold
    /// up others, of which the reader may want something first. How many are left of `room`, where all of it has a fragment or had one.
    pub(crate) fn let_write(&mut self, key: OpKey, room: usize) -> Option<usize> {
        let entry = self.ctx.operations.get(key)?;
        let Work::Write(write) = &*entry.work else {
            return None;
        };
        let sent = write.sent;
        let pipe = entry.pipe()?;
        let most = pipe.total.min(sent.saturating_add(room)).max(pipe.most);
        let has_begun = pipe.next == pipe.total;
        if most > pipe.most {
            pipe.most = most;
            self.devices.step_soon(key);
        }
        has_begun.then(|| (sent + room).saturating_sub(most))
    }

    /// Enters such a buffer. [`Movers::let_write`] begins to copy it out.
    pub(crate) fn start_write(&mut self, link: LinkId, stream: StreamKey, buffer: Buffer) -> OpKey {
        let (types, total) = (buffer.device_types(), buffer.len());
        let slot = self.devices.slot_for(&types);
        let work = Work::Write(DeviceWrite {
            stream,
            buffer,
            sent: 0,
        });
        let key = self.ctx.operations.insert(Some(link), true, work);
        match slot {
            Ok(slot) => self.begin_staged(key, Pipe::new(Kind::Write, slot, total)),
            Err(error) => {
                let event = Event::Unwritten(stream, error.clone());
                self.ctx.events.push_back(event);
                self.fail_operation(key, error);
            }
        }
        key
    }

    /// So many of them have left. `true`: those were the last.
    pub(crate) fn write_sent(&mut self, key: OpKey, count: usize) -> bool {
        let Some(entry) = self.ctx.operations.get(key) else {
            return true;
        };
        let Work::Write(write) = &mut *entry.work else {
            return true;
        };
        write.sent += count;
        let (sent, total) = (write.sent, write.buffer.len());
        if sent == total {
            self.finish(key, Ended::Done(Ok(())));
            return true;
        }
        if entry.pipe().is_some_and(|pipe| pipe.end_sent(sent)) {
            self.devices.step_soon(key);
        }
        false
    }
}
