//! A peer that breaks the rules of streams. Its messages are given to the core of a worker with a connection to itself, as its link would.

use crate::{
    Context,
    error::{Error, ErrorKind, Result},
    memory::Buffer,
    protocol::{
        control::{
            STREAM_ACCEPTED, STREAM_DATA, STREAM_FIN, STREAM_OPEN, STREAM_RESET, STREAM_RTS,
            STREAM_STOP, STREAM_TAKEN, STREAM_WINDOW, StreamRts, error_kind_code,
        },
        stream::{STREAM_BACKLOG, STREAM_FIRST, StreamName},
    },
    transport::{Place, Sink},
    types::{EndpointId, LinkId},
    util::testing::run,
    worker::{Handle, connect, core::Core, engine::Engine, stream::key::StreamKey},
};

use super::outgoing::{Loan, Piece};

const PIECE: usize = 64 << 10;

/// What a peer says, without the link.
struct Hostile<'a> {
    engine: &'a mut Engine,
    link: LinkId,
    endpoint: EndpointId,
}

impl Hostile<'_> {
    /// A message about stream `id`, of the peer's set or of this side's.
    fn say(&mut self, message: u8, id: u64, of_sender: bool, body: &[u8]) -> Result<()> {
        let name = StreamName { id, of_sender };
        self.engine
            .core
            .message(self.link, message, name.header(), body)
    }

    fn fine(&mut self, message: u8, id: u64, body: &[u8]) {
        self.say(message, id, true, body).expect("it is allowed");
    }

    #[track_caller]
    fn breach(&mut self, message: u8, id: u64, body: &[u8]) {
        let error = self
            .say(message, id, true, body)
            .expect_err("it is not allowed");
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }

    fn core(&mut self) -> &mut Core {
        &mut self.engine.core
    }
}

/// Plays it; afterwards the connection must have ended if something was refused, and the worker must have nothing left of it.
fn play_over(transport: &str, act: &dyn Fn(&mut Hostile<'_>)) {
    run(async {
        let context = Context::builder()
            .transports(transport)
            .and_then(|builder| builder.rendezvous_threshold(0).build())
            .expect("a context");
        let handle = Handle::start(&context).expect("a worker");
        let shared = &handle.shared;
        // Memory is shared with another worker only.
        let other = (transport != "self").then(|| Handle::start(&context).expect("a worker"));
        let peer = other.as_ref().map_or(shared, |other| &other.shared);
        let address = connect::address(peer).expect("an address");
        let destination = connect::Destination::Worker(address);
        let (link, endpoint) = connect::connect(shared, destination)
            .await
            .expect("connected");
        shared.with(|engine| {
            act(&mut Hostile {
                engine,
                link,
                endpoint,
            });
            if !engine.core.movers.ctx.failures.is_empty() {
                engine.progress();
                let closed = engine
                    .core
                    .movers
                    .ctx
                    .peer(link)
                    .is_none_or(|peer| peer.over().is_some());
                assert!(closed, "the connection has ended");
            }
        });
        if transport != "self" {
            // A close would wait for the other worker.
            let over = Error::new(ErrorKind::Closed, "over");
            shared.with(|engine| engine.abort(link, endpoint, over));
        }
        shared.release_endpoint(link, endpoint);
        let left = shared.with(|engine| engine.core.streams.entries.len());
        assert_eq!(left, 0, "streams left behind");
    });
}

/// What a peer announces.
fn rts(length: u64, address: u64) -> StreamRts {
    StreamRts {
        length,
        address,
        segment: 0,
        segment_offset: 0,
        word: 0,
    }
}

impl Hostile<'_> {
    /// A buffer of this side's, announced to the peer, and how messages of the peer's name its stream.
    fn announces(&mut self, length: usize) -> StreamKey {
        let (link, endpoint) = (self.link, self.endpoint);
        let core = self.core();
        let key = core.open_stream(link, endpoint).expect("room");
        let key = key.expect("opened");
        let buffer = Buffer::from(vec![7; length]);
        core.write_stream_buffer(key, buffer).expect("taken");
        assert!(self.is_out(key), "it is announced");
        key
    }

    fn is_out(&mut self, key: StreamKey) -> bool {
        let stream = self.core().streams.get(key).expect("it is open");
        let front = stream.writing.pieces.front();
        matches!(
            front,
            Some(Piece::Owned {
                loan: Loan::Out(_),
                ..
            })
        )
    }

    /// The peer says what it has taken of the first stream of this side's.
    fn takes(&mut self, taken: u64) -> Result<()> {
        self.say(STREAM_TAKEN, 0, false, &taken.to_le_bytes())
    }

    #[track_caller]
    fn takes_too_much(&mut self, taken: u64) {
        let refused = self.takes(taken).expect_err("it is not allowed");
        assert_eq!(refused.kind(), ErrorKind::Protocol);
    }

    /// Everything that was refused ends the connection; then both handles go.
    fn leaves(&mut self, key: StreamKey) {
        self.engine.progress();
        self.core().drop_stream_reader(key);
        self.core().drop_stream_writer(key);
    }

    /// What a reader of the peer's first stream finds.
    fn reads(&mut self) -> Option<Vec<u8>> {
        let link = self.link;
        let peer = self.core().movers.ctx.peer(link).expect("a peer");
        let key = *peer.streams().accepted.open.get(&0).expect("a stream");
        let chunk = self.engine.read_stream_chunk(key, true)?;
        chunk.ok()?.map(|chunk| chunk.to_vec())
    }
}

macro_rules! breaches {
    (over $transport:literal: $($(#[$doc:meta])* $name:ident: |$peer:ident| $body:block)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            play_over($transport, &|$peer| $body);
        }
    )+};
    ($($(#[$doc:meta])* $name:ident: |$peer:ident| $body:block)+) => {
        breaches! { over "self": $($(#[$doc])* $name: |$peer| $body)+ }
    };
}

breaches! {
    never_opened: |peer| { peer.breach(STREAM_DATA, 0, b"x"); }
    never_opened_end: |peer| { peer.breach(STREAM_FIN, 0, &[]); }
    never_opened_stop: |peer| { peer.breach(STREAM_STOP, 3, &[]); }
    never_opened_window: |peer| { peer.breach(STREAM_WINDOW, 0, &[0; 8]); }
    unknown_number: |peer| { peer.breach(99, 0, &[0; 44]); }
    out_of_turn: |peer| { peer.breach(STREAM_OPEN, 1, &[]); }
    opened_twice: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_OPEN, 0, &[]);
    }
    opened_in_this_sides_name: |peer| {
        let refused = peer.say(STREAM_OPEN, 0, false, &[]);
        assert_eq!(refused.expect_err("it is not allowed").kind(), ErrorKind::Protocol);
    }
    too_many: |peer| {
        for id in 0..STREAM_BACKLOG as u64 {
            peer.fine(STREAM_OPEN, id, &[]);
        }
        peer.breach(STREAM_OPEN, STREAM_BACKLOG as u64, &[]);
    }
    /// Streams that ended before anybody accepted them count as well.
    too_many_short_ones: |peer| {
        for id in 0..STREAM_BACKLOG as u64 {
            peer.fine(STREAM_OPEN, id, &[]);
            peer.fine(STREAM_RESET, id, &[]);
            peer.fine(STREAM_STOP, id, &[]);
        }
        peer.breach(STREAM_OPEN, STREAM_BACKLOG as u64, &[]);
    }
    window_exceeded: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        for _ in 0..STREAM_FIRST as usize / PIECE {
            peer.fine(STREAM_DATA, 0, &[7; PIECE]);
        }
        peer.fine(STREAM_DATA, 0, &[]);
        peer.breach(STREAM_DATA, 0, &[7]);
    }
    /// A long frame is refused before memory is set aside for it.
    window_exceeded_by_a_long_frame: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        let (link, header) = (peer.link, StreamName { id: 0, of_sender: true }.header());
        let place = peer.core().place(link, STREAM_DATA, header, &[], STREAM_FIRST as usize);
        assert!(matches!(place.expect("a whole window"), Place::Memory { .. }));
        let place = peer.core().place(link, STREAM_DATA, header, &[], 1);
        assert_eq!(place.expect_err("one more").kind(), ErrorKind::Protocol);
    }
    prefix_before_data: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        let (link, header) = (peer.link, StreamName { id: 0, of_sender: true }.header());
        let place = peer.core().place(link, STREAM_DATA, header, &[1], 8192);
        assert_eq!(place.expect_err("it is not allowed").kind(), ErrorKind::Protocol);
    }
    data_after_the_end: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_DATA, 0, b"all");
        peer.fine(STREAM_FIN, 0, &[]);
        peer.breach(STREAM_DATA, 0, b"more");
    }
    two_ends: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_FIN, 0, &[]);
        peer.breach(STREAM_RESET, 0, &[]);
    }
    data_after_a_reset: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_RESET, 0, &[]);
        peer.breach(STREAM_DATA, 0, b"more");
    }
    /// Of a stream that both ends are done with.
    data_of_one_that_is_gone: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_FIN, 0, &[]);
        peer.fine(STREAM_STOP, 0, &[]);
        // Late words about what this side wrote are no breach.
        peer.fine(STREAM_STOP, 0, &[]);
        peer.fine(STREAM_WINDOW, 0, &8_u64.to_le_bytes());
        peer.breach(STREAM_DATA, 0, b"more");
    }
    window_returned_twice: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_WINDOW, 0, &1_u64.to_le_bytes());
    }
    window_overflows: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_WINDOW, 0, &u64::MAX.to_le_bytes());
    }
    window_without_a_number: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_WINDOW, 0, &[1, 2, 3]);
    }
    accepted_what_was_not_opened: |peer| {
        let link = peer.link;
        let refused = peer.core().message(link, STREAM_ACCEPTED, 1, &[]);
        assert_eq!(refused.expect_err("it is not allowed").kind(), ErrorKind::Protocol);
    }
    accepted_more_than_was_opened: |peer| {
        let (link, endpoint) = (peer.link, peer.endpoint);
        let key = peer.core().open_stream(link, endpoint).expect("room").expect("opened");
        peer.core().drop_stream_reader(key);
        peer.core().drop_stream_writer(key);
        let refused = peer.core().message(link, STREAM_ACCEPTED, u64::MAX, &[]);
        assert_eq!(refused.expect_err("it is not allowed").kind(), ErrorKind::Protocol);
    }
    /// The place of a stream among those that wait to be accepted, where both ends were done with it before.
    refused_after_it_was_over: |peer| {
        let (link, endpoint) = (peer.link, peer.endpoint);
        let key = peer.core().open_stream(link, endpoint).expect("room").expect("opened");
        peer.core().drop_stream_reader(key);
        peer.say(STREAM_RESET, 0, false, &[]).expect("it is allowed");
        peer.core().drop_stream_writer(key);
        assert!(peer.core().streams.get(key).is_none(), "it is over");
        let why = error_kind_code(ErrorKind::Exhausted).to_le_bytes();
        peer.say(STREAM_STOP, 0, false, &why).expect("it is allowed");
        let streams = peer.core().movers.ctx.peer(link).expect("a peer").streams();
        assert!(streams.unaccepted.is_empty());
    }
    /// One byte at a time takes no more memory than at once.
    small_frames_are_gathered: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        for _ in 0..STREAM_FIRST {
            peer.fine(STREAM_DATA, 0, &[7]);
        }
        let (_, stream) = peer.core().streams.entries.iter().next().expect("a stream");
        assert!(stream.reading.chunks.len() < 64, "{} chunks", stream.reading.chunks.len());
        peer.breach(STREAM_DATA, 0, &[7]);
    }
}

breaches! {
    announced_without_common_memory: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
    }
}

breaches! { over "shm":
    announced_by_half: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode()[..35]);
    }
    announced_on_no_stream: |peer| { peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode()); }
    announced_nothing: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(0, 4096).encode());
    }
    announced_more_than_there_is: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(1 << 63, 4096).encode());
    }
    announced_past_the_end_of_memory: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, u64::MAX - 4096).encode());
    }
    announced_past_the_end_of_a_segment: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        let announced = StreamRts { segment: 1, segment_offset: u64::MAX, ..rts(1 << 20, 0) };
        peer.breach(STREAM_RTS, 0, &announced.encode());
    }
    announced_twice: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
    }
    data_before_what_was_announced_is_taken: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
        peer.breach(STREAM_DATA, 0, b"more");
    }
    end_before_what_was_announced_is_taken: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
        peer.breach(STREAM_FIN, 0, &[]);
    }
    announced_after_the_end: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_FIN, 0, &[]);
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
    }
    /// A reset takes it back, and is the end.
    announced_and_reset: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.fine(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
        peer.fine(STREAM_RESET, 0, &[]);
        assert_eq!(peer.reads(), None);
        peer.breach(STREAM_RTS, 0, &rts(1 << 20, 4096).encode());
    }
    /// Nothing is read under a word that does not stand, where nothing is mapped, or in a segment that nobody gave: the bytes are asked for.
    announced_and_not_there: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        let link = peer.link;
        let word = peer.core().movers.ctx.one_copy(link).and_then(|one_copy| one_copy.pair.acquire()).expect("a word");
        let nowhere = [
            rts(1 << 20, (&raw const *peer).addr() as u64),
            StreamRts { word: u32::MAX, ..rts(1 << 20, 4096) },
            StreamRts { word, ..rts(1 << 20, 4096) },
            StreamRts { word, ..rts(1 << 20, 0) },
            StreamRts { word, ..rts((1 << 63) - 1, 1 << 62) },
            StreamRts { word, segment: 77, segment_offset: 1 << 62, ..rts(1 << 20, 0) },
        ];
        for announced in nowhere {
            peer.fine(STREAM_RTS, 0, &announced.encode());
            assert_eq!(peer.reads(), None);
            peer.fine(STREAM_DATA, 0, b"sent");
            assert_eq!(peer.reads().as_deref(), Some(&b"sent"[..]));
        }
        peer.fine(STREAM_RESET, 0, &[]);
        peer.fine(STREAM_STOP, 0, &[]);
    }
    took_what_was_not_announced: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        peer.breach(STREAM_TAKEN, 0, &[0; 8]);
    }
    took_of_no_stream: |peer| { peer.breach(STREAM_TAKEN, 0, &[0; 8]); }
    took_more_than_was_announced: |peer| {
        let key = peer.announces(200_000);
        peer.takes_too_much(200_001);
        peer.leaves(key);
    }
    took_beyond_measure: |peer| {
        let key = peer.announces(200_000);
        peer.takes_too_much(u64::MAX);
        peer.leaves(key);
    }
    took_without_a_number: |peer| {
        let key = peer.announces(200_000);
        let refused = peer.say(STREAM_TAKEN, 0, false, &[0; 7]);
        assert_eq!(refused.expect_err("it is not allowed").kind(), ErrorKind::Protocol);
        peer.leaves(key);
    }
    took_twice: |peer| {
        let key = peer.announces(200_000);
        peer.takes(200_000).expect("it was announced");
        assert!(matches!(peer.core().has_left(key, 1), Some(Ok(()))));
        peer.takes_too_much(200_000);
        peer.leaves(key);
    }
    /// What a reader cannot take is sent, and announced no more.
    took_a_part: |peer| {
        let key = peer.announces(200_000);
        peer.takes(70_000).expect("it was announced");
        assert!(!peer.is_out(key));
        peer.takes_too_much(200_000);
        peer.leaves(key);
    }
    /// Said before the peer heard of the reset; once.
    took_what_was_taken_back: |peer| {
        let key = peer.announces(200_000);
        peer.core().reset_stream(key);
        peer.takes(200_000).expect("it did not know");
        peer.takes_too_much(200_000);
        peer.leaves(key);
    }
    /// Words come back: many buffers are announced one after the other.
    words_come_back: |peer| {
        let key = peer.announces(200_000);
        for number in 2..200 {
            let buffer = Buffer::from(vec![7; 200_000]);
            peer.core().write_stream_buffer(key, buffer).expect("taken");
            peer.takes(200_000).expect("it was announced");
            peer.engine.progress();
            assert!(peer.is_out(key), "buffer {number}");
        }
        peer.core().reset_stream(key);
        let link = peer.link;
        let pair = peer.core().movers.ctx.one_copy(link).expect("common memory").pair.clone();
        let words: Vec<_> = std::iter::from_fn(|| pair.acquire()).collect();
        assert_eq!(words.len(), crate::transport::Pair::OWN_TRANSFERS);
        words.into_iter().for_each(|word| pair.release(word));
        peer.leaves(key);
    }
}
