//! What a peer says about streams, acted upon. A message about a stream that has ended is late when it concerns what this side writes, and a
//! breach of the protocol when it brings more of what the peer said had ended.
//!
//! # Safety
//! [`Landing`] declares bytes initialised that the interface says it has placed.
#![allow(unsafe_code)]

use slab::Slab;

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
        movers::Movers,
        one_sided::word,
        operations::Work,
        peer::{Peer, at},
        stream::{
            Stream, find,
            incoming::{Landing, exceeded},
            outgoing::WriteEnd,
            reading::ReadEnd,
        },
        violation::violation,
    },
};

/// The stream that a message means; `None` when it is over.
#[inline]
pub(in crate::worker) fn named<'a>(
    entries: &'a mut Slab<Stream>,
    peers: &mut [Option<Peer>],
    link: LinkId,
    header: u64,
) -> Result<Option<&'a mut Stream>> {
    let name = StreamName::of(header);
    let Some(peer) = at(peers, link) else {
        return Ok(None);
    };
    let table = peer.streams().table(!name.of_sender);
    match table.open.get(&name.id) {
        Some(key) => Ok(find(entries, *key)),
        None if name.id < table.next => Ok(None),
        None => Err(violation("a message for a stream that was never opened")),
    }
}

/// The same, with room in the books for `length` bytes of the peer. `None`: the connection is over.
#[inline]
pub(in crate::worker) fn expect<'a>(
    entries: &'a mut Slab<Stream>,
    peers: &mut [Option<Peer>],
    link: LinkId,
    header: u64,
    length: usize,
) -> Result<Option<&'a mut Stream>> {
    if at(peers, link).is_none() {
        return Ok(None);
    }
    let stream = named(entries, peers, link, header)?;
    let Some(stream) = stream.filter(|stream| stream.reading.end.is_none()) else {
        return Err(violation("more of a stream after its end"));
    };
    if stream.reading.lent.is_some() {
        return Err(violation(
            "more of a stream before what was announced is taken",
        ));
    }
    if !stream.reading.hold(length) {
        return Err(exceeded());
    }
    Ok(Some(stream))
}

impl Ctx {
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
        streams.openers.take(&mut self.wakes);
        Ok(())
    }
}

impl Movers {
    /// Ends both directions of a stream that nobody here will have. It stays known until the peer has answered.
    pub(in crate::worker) fn refuse_stream(&mut self, stream: &mut Stream) {
        stream.reading.is_held = false;
        stream.writing.is_held = false;
        stream.is_refused = true;
        let (link, header) = (stream.link, stream.header());
        if let Some(peer) = self.ctx.peer(link) {
            peer.streams().refused += 1;
        }
        let why = control::error_kind_code(ErrorKind::Exhausted).to_le_bytes();
        self.ctx.control(link, control::STREAM_STOP, header, &why);
        self.reset_stream(stream);
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
            control::STREAM_WINDOW => self.stream_window(link, header, word(body)?),
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

    #[inline]
    fn stream_data(&mut self, link: LinkId, header: u64, data: &[u8]) -> Result<()> {
        let (streams, peers) = (&mut self.streams, &mut self.movers.ctx.peers);
        let found = expect(&mut streams.entries, peers, link, header, data.len())?;
        // One that nobody holds was told to stop.
        let Some(stream) = found.filter(|stream| stream.reading.is_held) else {
            return Ok(());
        };
        let mut read = 0;
        if let Some(direct) = &mut streams.direct
            && direct.key == stream.key
            && stream.reading.is_empty()
        {
            read = direct.fill(data);
        }
        let rest = &data[read..];
        if stream.charged.is_some() {
            if self.movers.charge_stream(stream, rest.len()) {
                stream.reading.append(rest);
            }
            return Ok(());
        }
        if !rest.is_empty() {
            stream.reading.append(rest);
        }
        self.movers.ctx.wakes.extend(stream.reading.waker.take());
        self.movers.ctx.read_from(stream, read);
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
        let (streams, peers) = (&mut self.streams, &mut self.movers.ctx.peers);
        let found = expect(&mut streams.entries, peers, link, header, length)?;
        let Some(stream) = found.filter(|stream| stream.reading.is_held) else {
            return Ok(Place::Discard);
        };
        if !self.movers.charge_stream(stream, length) {
            return Ok(Place::Discard);
        }
        // At most a window, or it would not have been expected.
        let mut data = streams.spares.take(length);
        let address = data.spare_capacity_mut().as_mut_ptr().cast();
        let landing = Landing {
            stream: stream.key,
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
        if let Some(stream) = self.streams.get(stream)
            && stream.reading.is_held
            && stream.reading.end.is_none()
        {
            stream.reading.push(data);
            self.movers.ctx.wakes.extend(stream.reading.waker.take());
            self.movers.ctx.read_from(stream, 0);
        }
    }

    fn stream_window(&mut self, link: LinkId, header: u64, returned: u64) -> Result<()> {
        let ctx = &mut self.movers.ctx;
        let Some(stream) = named(&mut self.streams.entries, &mut ctx.peers, link, header)? else {
            return Ok(());
        };
        let writing = &mut stream.writing;
        if !writing.window.returned(returned, STREAM_BYTES) {
            return Err(violation("more window returned than was used"));
        }
        ctx.wakes.extend(writing.waker.take());
        if writing.has_unsent() {
            ctx.queue_stream(stream);
            self.movers.let_writes(stream);
        }
        Ok(())
    }

    fn stream_end(&mut self, link: LinkId, header: u64, end: ReadEnd) -> Result<()> {
        let (entries, ctx) = (&mut self.streams.entries, &mut self.movers.ctx);
        if end == ReadEnd::Reset
            && let Some(stream) = named(entries, &mut ctx.peers, link, header)?
        {
            // Taken back: nothing is said about it any more.
            stream.reading.lent = None;
        }
        let Some(stream) = expect(entries, &mut ctx.peers, link, header, 0)? else {
            return Ok(());
        };
        stream.reading.end = Some(end);
        ctx.wakes.extend(stream.reading.waker.take());
        if end == ReadEnd::Reset {
            stream.reading.discard();
        }
        let key = stream.key;
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
        // Who opens keeps those that were refused among those that are not accepted, until it has heard of it and said so.
        if streams.incoming.len() + streams.refused >= STREAM_BACKLOG
            || streams.accepted.open.len() >= STREAM_OPEN_MAX
        {
            return Err(violation("more streams opened than may be"));
        }
        streams.accepted.next += 1;
        let stream = self.streams.insert(link, name.id, false);
        streams.accepted.open.insert(name.id, stream.key);
        let charged = account.map_or(Ok(()), |account| {
            self.movers.ctx.ledger.take(account, Amount::STREAM)
        });
        if charged.is_ok() {
            stream.charged = account.map(|account| (account, 0));
            streams.incoming.push_back(stream.key);
            streams.accepters.take(&mut self.movers.ctx.wakes);
        } else {
            self.movers.refuse_stream(stream);
        }
        Ok(())
    }

    fn stream_stopped(&mut self, link: LinkId, header: u64, body: &[u8]) -> Result<()> {
        let (entries, ctx) = (&mut self.streams.entries, &mut self.movers.ctx);
        let refused = body
            .first_chunk()
            .map(|code| control::error_kind(u16::from_le_bytes(*code)));
        let name = StreamName::of(header);
        // Of one that is over on this side, too.
        if refused.is_some()
            && !name.of_sender
            && let Some(peer) = at(&mut ctx.peers, link)
            && let Ok(index) = peer.streams().unaccepted.binary_search(&name.id)
        {
            // It is not among those that will be accepted, in order.
            peer.streams().unaccepted.remove(index);
            peer.streams().openers.take(&mut ctx.wakes);
        }
        let Some(stream) = named(entries, &mut ctx.peers, link, header)? else {
            return Ok(());
        };
        if !matches!(stream.writing.end, WriteEnd::Sent) {
            stream.writing.stopped = Some(refused);
            ctx.wakes.extend(stream.writing.waker.take());
            self.movers.reset_stream(stream);
            let key = stream.key;
            self.settle_stream(key);
        }
        Ok(())
    }
}
