//! A peer that breaks the rules of streams. Its messages are given to the core of a worker with a connection to itself, as its link would.

use crate::{
    Context,
    error::{ErrorKind, Result},
    protocol::{
        control::{
            STREAM_ACCEPTED, STREAM_DATA, STREAM_FIN, STREAM_OPEN, STREAM_RESET, STREAM_STOP,
            STREAM_WINDOW,
        },
        stream::{STREAM_BACKLOG, STREAM_BYTES, StreamName},
    },
    transport::{Place, Sink},
    types::{EndpointId, LinkId},
    worker::{Handle, core::Core, engine::Engine, wireup},
};

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
fn play(act: impl FnOnce(&mut Hostile<'_>)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let context = Context::builder()
            .transports("self")
            .and_then(|builder| builder.build())
            .expect("a context");
        let handle = Handle::start(&context).expect("a worker");
        let shared = &handle.shared;
        let address = wireup::address(shared).expect("an address");
        let destination = wireup::Destination::Worker(address);
        let (link, endpoint) = wireup::connect(shared, destination)
            .await
            .expect("connected");
        shared.with(|engine| {
            act(&mut Hostile {
                engine,
                link,
                endpoint,
            });
            if !engine.core.failures.is_empty() {
                engine.progress();
                let closed = engine
                    .core
                    .peer(link)
                    .is_none_or(|peer| peer.over().is_some());
                assert!(closed, "the connection has ended");
            }
        });
        shared.release_endpoint(link, endpoint);
        let left = shared.with(|engine| engine.core.streams.entries.len());
        assert_eq!(left, 0, "streams left behind");
    });
}

macro_rules! breaches {
    ($($(#[$doc:meta])* $name:ident: |$peer:ident| $body:block)+) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            play(|$peer| $body);
        }
    )+};
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
        for _ in 0..STREAM_BYTES as usize / PIECE {
            peer.fine(STREAM_DATA, 0, &[7; PIECE]);
        }
        peer.fine(STREAM_DATA, 0, &[]);
        peer.breach(STREAM_DATA, 0, &[7]);
    }
    /// A long frame is refused before memory is set aside for it.
    window_exceeded_by_a_long_frame: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        let (link, header) = (peer.link, StreamName { id: 0, of_sender: true }.header());
        let place = peer.core().place(link, STREAM_DATA, header, &[], STREAM_BYTES as usize);
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
    /// One byte at a time takes no more memory than at once.
    small_frames_are_gathered: |peer| {
        peer.fine(STREAM_OPEN, 0, &[]);
        for _ in 0..STREAM_BYTES {
            peer.fine(STREAM_DATA, 0, &[7]);
        }
        let (_, stream) = peer.core().streams.entries.iter().next().expect("a stream");
        assert!(stream.reading.chunks.len() < 64, "{} chunks", stream.reading.chunks.len());
        peer.breach(STREAM_DATA, 0, &[7]);
    }
}
