//! How byte streams open, are accepted, and end.

use crate::{
    error::{Error, Result},
    protocol::{
        control,
        ledger::Amount,
        stream::{STREAM_BACKLOG, STREAM_OPEN_MAX, StreamName},
    },
    types::{EndpointId, LinkId},
    worker::{
        core::Core,
        ctx::Ctx,
        movers::Movers,
        peer::{Peer, at},
        pressure::Deferred,
        stream::{Stream, key::StreamKey, outgoing::WriteEnd, reading::BLOCK},
    },
};

impl Ctx {
    /// Nobody is charged for a stream any more: it is accepted, or goes.
    fn uncharge_stream(&mut self, stream: &mut Stream) {
        if let Some((account, bytes)) = stream.charged.take() {
            self.ledger.give(account, Amount::STREAM);
            self.ledger.give(account, Amount::bytes(bytes as usize));
        }
    }
}

impl Movers {
    /// Charges for bytes of a stream that nobody has accepted. `false`: it is too much, and the stream is refused.
    pub(in crate::worker) fn charge_stream(&mut self, stream: &mut Stream, length: usize) -> bool {
        let Some((account, bytes)) = &mut stream.charged else {
            return true;
        };
        // The first of them take a block.
        let more = match *bytes {
            0 => length.max(BLOCK),
            _ => length,
        };
        let taken = self.ctx.ledger.take(*account, Amount::bytes(more));
        if taken.is_ok() {
            *bytes += more as u64;
            return true;
        }
        if let Some(peer) = self.ctx.peer(stream.link) {
            let incoming = &mut peer.streams().incoming;
            incoming.retain(|waiting| *waiting != stream.key);
        }
        self.ctx.uncharge_stream(stream);
        stream.reading.discard();
        self.refuse_stream(stream);
        false
    }

    /// Ends what this side writes at once, and throws away what has not left.
    pub(in crate::worker) fn reset_stream(&mut self, stream: &mut Stream) {
        if matches!(stream.writing.end, WriteEnd::Sent) || stream.ended.is_some() {
            return;
        }
        self.ctx.end_writes(stream);
        let lent = stream
            .writing
            .give_up(|buffer| self.ctx.deferred.push(Deferred::Buffer(buffer)));
        stream.writing.end = WriteEnd::Sent;
        let (link, header) = (stream.link, stream.header());
        self.take_back(link, Vec::from_iter(lent));
        self.ctx.control(link, control::STREAM_RESET, header, &[]);
        self.ctx.close_soon(Some(link));
    }
}

impl Core {
    /// Opens a stream. `None`: no more may be open or unaccepted now.
    pub(crate) fn open_stream(
        &mut self,
        link: LinkId,
        endpoint: EndpointId,
    ) -> Option<Result<StreamKey>> {
        let Some(peer) = at(&mut self.movers.ctx.peers, link).filter(|peer| peer.id == endpoint)
        else {
            return Some(Err(crate::worker::send::closed()));
        };
        if let Some(error) = peer.error() {
            return Some(Err(error));
        }
        let streams = peer.streams();
        if streams.opened.open.len() >= STREAM_OPEN_MAX
            || streams.unaccepted.len() >= STREAM_BACKLOG
        {
            return None;
        }
        let id = streams.opened.next;
        streams.opened.next += 1;
        streams.unaccepted.push_back(id);
        let key = self.streams.insert(link, id, true).key;
        streams.opened.open.insert(id, key);
        let name = StreamName {
            id,
            of_sender: true,
        };
        self.movers
            .ctx
            .control(link, control::STREAM_OPEN, name.header(), &[]);
        Some(Ok(key))
    }

    /// Accepts the next stream that the peer has opened.
    pub(crate) fn accept_stream(
        &mut self,
        link: LinkId,
        endpoint: EndpointId,
    ) -> Option<Result<StreamKey>> {
        let Some(peer) = at(&mut self.movers.ctx.peers, link).filter(|peer| peer.id == endpoint)
        else {
            return Some(Err(crate::worker::send::closed()));
        };
        if let Some(key) = peer.streams().incoming.pop_front() {
            if peer.is_alive() {
                self.movers
                    .ctx
                    .control(link, control::STREAM_ACCEPTED, 1, &[]);
            }
            if let Some(stream) = self.streams.get(key) {
                self.movers.ctx.uncharge_stream(stream);
                // The rest of its window.
                self.movers.ctx.read_from(stream, 0);
            }
            return Some(Ok(key));
        }
        peer.over().map(Err)
    }

    /// A reader is gone. What is left of the stream, if nothing needs it any more, to be dropped outside the lock.
    pub(crate) fn drop_stream_reader(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        stream.reading.is_held = false;
        self.movers.ctx.drop_later(stream.reading.waker.take());
        if stream.reading.end.is_none() && stream.ended.is_none() {
            let (link, header) = (stream.link, stream.header());
            self.movers
                .ctx
                .control(link, control::STREAM_STOP, header, &[]);
        }
        stream.reading.discard();
        self.settle_stream(key)
    }

    /// A writer is gone: the end follows what it wrote.
    pub(crate) fn drop_stream_writer(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        stream.writing.is_held = false;
        self.movers.ctx.drop_later(stream.writing.waker.take());
        self.finish_stream(key);
        self.settle_stream(key)
    }

    /// Ends what this side writes at once, and throws away what has not left.
    pub(crate) fn reset_stream(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get(key) {
            self.movers.reset_stream(stream);
        }
    }

    /// After either direction has ended or a handle has gone: takes the stream out of what it is in no more.
    pub(in crate::worker) fn settle_stream(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.streams.get(key)?;
        if stream.named && stream.is_over() {
            stream.named = false;
            let (link, id, opened_here) = (stream.link, stream.id, stream.opened_here);
            if let Some(peer) = at(&mut self.movers.ctx.peers, link) {
                let streams = peer.streams();
                streams.refused -= usize::from(std::mem::take(&mut stream.is_refused));
                streams.table(opened_here).open.remove(&id);
                if opened_here {
                    peer.streams().openers.take(&mut self.movers.ctx.wakes);
                }
            }
        }
        if stream.is_held() || (stream.named && stream.ended.is_none()) {
            return None;
        }
        self.streams.remove(key)
    }

    /// The connection has ended: readers get what has arrived, then the reason.
    pub(crate) fn end_streams(&mut self, link: LinkId, error: &Error) {
        let ctx = &mut self.movers.ctx;
        let Some(streams) = at(&mut ctx.peers, link).and_then(Peer::known_streams) else {
            return;
        };
        let open = Vec::from_iter(streams.open());
        streams.opened.open.clear();
        streams.accepted.open.clear();
        streams.accepters.take(&mut ctx.wakes);
        streams.openers.take(&mut ctx.wakes);
        let mut lent = Vec::new();
        for key in open {
            let Some(stream) = self.streams.get(key) else {
                continue;
            };
            stream.named = false;
            stream.ended = Some(error.clone());
            let drop_later = |buffer| ctx.deferred.push(Deferred::Buffer(buffer));
            lent.extend(stream.writing.give_up(drop_later));
            stream.reading.lent = None;
            ctx.wakes.extend(stream.reading.waker.take());
            ctx.wakes.extend(stream.writing.waker.take());
            if !stream.is_held() {
                self.streams.remove(key);
            }
        }
        self.movers.take_back(link, lent);
    }

    /// Whether a stream of the link has bytes that have not left, or an end that was not told.
    pub(crate) fn has_unsent(&mut self, link: LinkId) -> bool {
        let streams = at(&mut self.movers.ctx.peers, link).and_then(Peer::known_streams);
        streams.is_some_and(|streams| self.streams.has_unsent(streams.open()))
    }

    /// A connection closes: nothing new is written or opened on it, and who waits for room for that is told so now. The end may be long in coming.
    pub(crate) fn close_writes(&mut self, link: LinkId) {
        let Some(streams) = at(&mut self.movers.ctx.peers, link).and_then(Peer::known_streams)
        else {
            return;
        };
        let open = Vec::from_iter(streams.open());
        streams.openers.take(&mut self.movers.ctx.wakes);
        for key in open {
            if let Some(stream) = self.streams.get(key) {
                self.movers.ctx.wakes.extend(stream.writing.waker.take());
            }
        }
    }

    /// The record of an ended connection goes, and with it the streams that nobody accepted.
    pub(crate) fn forget_streams(&mut self, link: LinkId) {
        let peer = at(&mut self.movers.ctx.peers, link).filter(|peer| !peer.is_alive());
        let Some(streams) = peer.and_then(Peer::known_streams) else {
            return;
        };
        for key in std::mem::take(&mut streams.incoming) {
            if let Some(mut stream) = self.streams.remove(key) {
                self.movers.ctx.uncharge_stream(&mut stream);
            }
        }
    }
}
