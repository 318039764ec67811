//! What a peer says about streams, acted upon. A message about a stream that has ended is late when it concerns what this side writes, and a
//! breach of the protocol when it brings more of what the peer said had ended.
//!
//! # Safety
//! [`Landing`] declares bytes initialised that the interface says it has placed.
#![allow(unsafe_code)]

use crate::{
    error::{ErrorKind, Result},
    protocol::{
        control,
        ledger::Amount,
        stream::{STREAM_BACKLOG, STREAM_BYTES, STREAM_OPEN_MAX, StreamName},
    },
    transport::Place,
    types::{LinkId, OpKey},
    worker::{
        core::Core,
        ctx::Ctx,
        operations::Work,
        peer::at,
        stream::{
            incoming::{Landing, exceeded},
            key::StreamKey,
            outgoing::WriteEnd,
            reading::ReadEnd,
        },
        violation::violation,
    },
};

impl Ctx {
    /// The stream that a message means; `None` when it is over.
    #[inline]
    pub(in crate::worker) fn named(
        &mut self,
        link: LinkId,
        header: u64,
    ) -> Result<Option<StreamKey>> {
        let name = StreamName::of(header);
        let Some(peer) = at(&mut self.peers, link) else {
            return Ok(None);
        };
        let table = peer.streams().table(!name.of_sender);
        match table.open.get(&name.id) {
            Some(key) => Ok(Some(*key)),
            None if name.id < table.next => Ok(None),
            None => Err(violation("a message for a stream that was never opened")),
        }
    }

    /// The peer has sent more of a stream than it may.
    #[cold]
    pub(in crate::worker) fn exceeded_stream(&mut self, link: LinkId) {
        self.broken(link, exceeded());
    }

    fn stream_accepted(&mut self, link: LinkId, count: u64) -> Result<()> {
        let Some(peer) = at(&mut self.peers, link) else {
            return Ok(());
        };
        let streams = peer.streams();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > streams.unaccepted.len() {
            return Err(violation("more streams accepted than were opened"));
        }
        streams.unaccepted.drain(..count);
        self.wakes.append(&mut streams.openers);
        Ok(())
    }
}

impl Core {
    pub(crate) fn stream_message(
        &mut self,
        link: LinkId,
        id: u8,
        header: u64,
        body: &[u8],
    ) -> Result<()> {
        match id {
            control::STREAM_DATA => self.stream_data(link, header, body),
            control::STREAM_WINDOW => {
                let (bytes, _) = body
                    .split_first_chunk()
                    .ok_or_else(|| violation("short message"))?;
                self.stream_window(link, header, u64::from_le_bytes(*bytes))
            }
            control::STREAM_RTS => self.stream_announced(link, header, body),
            control::STREAM_TAKEN => self.stream_taken(link, header, body),
            control::STREAM_FIN => self.stream_end(link, header, ReadEnd::Fin),
            control::STREAM_RESET => self.stream_end(link, header, ReadEnd::Reset),
            control::STREAM_OPEN => self.stream_opened(link, header),
            control::STREAM_ACCEPTED => self.movers.ctx.stream_accepted(link, header),
            control::STREAM_STOP => self.stream_stopped(link, header, body),
            _ => Err(violation("unknown message")),
        }
    }

    /// Makes room in the books for `length` bytes of the peer. `None`: the connection is over.
    #[inline]
    pub(in crate::worker) fn expect(
        &mut self,
        link: LinkId,
        header: u64,
        length: usize,
    ) -> Result<Option<StreamKey>> {
        if self.movers.ctx.peer(link).is_none() {
            return Ok(None);
        }
        let key = self.movers.ctx.named(link, header)?;
        let Some(stream) = key.and_then(|key| self.streams.get(key)) else {
            return Err(violation("more of a stream after its end"));
        };
        if stream.reading.end.is_some() {
            return Err(violation("more of a stream after its end"));
        }
        if stream.reading.lent.is_some() {
            return Err(violation(
                "more of a stream before what was announced is taken",
            ));
        }
        if !stream.reading.hold(length) {
            return Err(exceeded());
        }
        Ok(key)
    }

    #[inline]
    fn stream_data(&mut self, link: LinkId, header: u64, data: &[u8]) -> Result<()> {
        let Some(key) = self.expect(link, header, data.len())? else {
            return Ok(());
        };
        let mut rest = data;
        let mut direct = self.streams.direct.take();
        let Some(stream) = self.streams.get(key) else {
            return Ok(());
        };
        if !stream.reading.is_held {
            // It was told to stop.
            self.streams.direct = direct;
            return Ok(());
        }
        let mut read = 0;
        if let Some(direct) = &mut direct
            && direct.key == key
            && stream.reading.is_empty()
        {
            read = direct.fill(rest);
            rest = &rest[read..];
        }
        if stream.charged.is_some() {
            self.streams.direct = direct;
            if self.charge_stream(key, rest.len())
                && let Some(stream) = self.streams.get(key)
            {
                stream.reading.append(rest);
            }
            return Ok(());
        }
        if !rest.is_empty() {
            stream.reading.append(rest);
        }
        self.movers.ctx.wakes.extend(stream.reading.waker.take());
        self.streams.direct = direct;
        self.read_from(key, read);
        Ok(())
    }

    /// A message of one connection that was taken for another's of the same name.
    #[cold]
    pub(in crate::worker) fn stream_taken_for_another(
        &mut self,
        link: LinkId,
        header: u64,
        data: &[u8],
    ) {
        if let Err(error) = self.stream_data(link, header, data) {
            self.movers.ctx.broken(link, error);
        }
    }

    /// Where the payload of a long frame goes.
    pub(crate) fn place_stream(
        &mut self,
        link: LinkId,
        header: u64,
        prefix: &[u8],
        length: usize,
    ) -> Result<Place> {
        if !prefix.is_empty() {
            return Err(violation("data of a stream with something before them"));
        }
        let Some(key) = self.expect(link, header, length)? else {
            return Ok(Place::Discard);
        };
        if self
            .streams
            .get(key)
            .is_none_or(|stream| !stream.reading.is_held)
        {
            return Ok(Place::Discard);
        }
        if !self.charge_stream(key, length) {
            return Ok(Place::Discard);
        }
        // At most a window, or it would not have been expected.
        let mut data = self.streams.spares.take(length);
        let address = data.spare_capacity_mut().as_mut_ptr().cast();
        let landing = Landing {
            stream: key,
            data,
            length,
        };
        let op = self
            .movers
            .ctx
            .operations
            .insert(Some(link), true, Work::StreamIn(landing));
        Ok(self.movers.ctx.lend(op, address))
    }

    /// All of it is there.
    pub(crate) fn stream_landed(&mut self, op: OpKey) {
        let Some(Work::StreamIn(Landing {
            stream,
            mut data,
            length,
        })) = self.movers.ctx.operations.take_work(op)
        else {
            return;
        };
        // SAFETY: the capacity is at least `length`, and the interface has placed as many bytes there.
        unsafe { data.set_len(length) };
        let key = stream;
        if let Some(stream) = self.streams.get(key)
            && stream.reading.is_held
            && stream.reading.end.is_none()
        {
            stream.reading.push(data);
            self.movers.ctx.wakes.extend(stream.reading.waker.take());
            self.read_from(key, 0);
        }
    }

    fn stream_window(&mut self, link: LinkId, header: u64, returned: u64) -> Result<()> {
        let Some(key) = self.movers.ctx.named(link, header)? else {
            return Ok(());
        };
        let Some(stream) = self.streams.get(key) else {
            return Ok(());
        };
        let writing = &mut stream.writing;
        if !writing.window.returned(returned, STREAM_BYTES) {
            return Err(violation("more window returned than was used"));
        }
        self.movers.ctx.wakes.extend(writing.waker.take());
        if writing.has_unsent() {
            self.queue_stream(key);
        }
        Ok(())
    }

    fn stream_end(&mut self, link: LinkId, header: u64, end: ReadEnd) -> Result<()> {
        if end == ReadEnd::Reset
            && let Some(key) = self.movers.ctx.named(link, header)?
            && let Some(stream) = self.streams.get(key)
        {
            // Taken back: nothing is said about it any more.
            stream.reading.lent = None;
        }
        let Some(key) = self.expect(link, header, 0)? else {
            return Ok(());
        };
        if let Some(stream) = self.streams.get(key) {
            stream.reading.end = Some(end);
            self.movers.ctx.wakes.extend(stream.reading.waker.take());
        }
        if end == ReadEnd::Reset {
            self.discard_unread(key);
        }
        self.settle_stream(key);
        Ok(())
    }

    fn stream_opened(&mut self, link: LinkId, header: u64) -> Result<()> {
        let name = StreamName::of(header);
        let Some(peer) = at(&mut self.movers.ctx.peers, link) else {
            return Ok(());
        };
        let account = peer.account;
        let streams = peer.streams();
        if !name.of_sender || name.id != streams.accepted.next {
            return Err(violation("a stream opened out of turn"));
        }
        if streams.incoming.len() >= STREAM_BACKLOG
            || streams.accepted.open.len() >= STREAM_OPEN_MAX
        {
            return Err(violation("more streams opened than may be"));
        }
        streams.accepted.next += 1;
        let key = self.streams.insert(link, name.id, false);
        streams.accepted.open.insert(name.id, key);
        if let Some(stream) = self.streams.get(key) {
            stream.charged = account.map(|account| (account, 0));
        }
        let charged = account.map_or(Ok(()), |account| {
            self.movers.ctx.ledger.take(account, Amount::STREAM)
        });
        if charged.is_ok() {
            streams.incoming.push_back(key);
            self.movers.ctx.wakes.append(&mut streams.accepters);
        } else {
            if let Some(stream) = self.streams.get(key) {
                stream.charged = None;
            }
            self.refuse_stream(key);
        }
        Ok(())
    }

    /// Ends both directions of a stream that nobody here will have. It stays known until the peer has answered.
    pub(in crate::worker) fn refuse_stream(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(key) else {
            return;
        };
        stream.reading.is_held = false;
        stream.writing.is_held = false;
        let (link, header) = (stream.link, stream.header());
        let why = control::error_kind_code(ErrorKind::Exhausted).to_le_bytes();
        self.movers
            .ctx
            .control(link, control::STREAM_STOP, header, &why);
        self.reset_stream(key);
    }

    fn stream_stopped(&mut self, link: LinkId, header: u64, body: &[u8]) -> Result<()> {
        let Some(key) = self.movers.ctx.named(link, header)? else {
            return Ok(());
        };
        let refused = body
            .first_chunk()
            .map(|code| control::error_kind(u16::from_le_bytes(*code)));
        let name = StreamName::of(header);
        if refused.is_some()
            && !name.of_sender
            && let Some(peer) = at(&mut self.movers.ctx.peers, link)
            && let Ok(index) = peer.streams().unaccepted.binary_search(&name.id)
        {
            // It is not among those that will be accepted, in order.
            peer.streams().unaccepted.remove(index);
            self.movers.ctx.wakes.append(&mut peer.streams().openers);
        }
        if let Some(stream) = self.streams.get(key)
            && !matches!(stream.writing.end, WriteEnd::Sent)
        {
            stream.writing.stopped = Some(refused);
            self.movers.ctx.wakes.extend(stream.writing.waker.take());
            self.reset_stream(key);
            self.settle_stream(key);
        }
        Ok(())
    }
}
