//! Windows that are nearly full: what there is room for goes on, at once and for ever.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{AmId, AmInbox, Buffer, ByteStream, Endpoint, Op};

use crate::fixture::{Pair, Side, Way, a_while, pattern, run, run_on_threads, same};

const LONG: u64 = 1;
const SHORT: u64 = 2;
/// Of a stream.
const STREAM_WINDOW: usize = 512 << 10;

/// Long messages that go unasked and that nobody receives, a million bytes of them: nearly a whole window.
async fn unreceived(pair: &Pair, way: Way) -> (Vec<Op<()>>, usize) {
    let length = if way == Way::Tcp { 200_000 } else { 8_000 };
    let mut posted = Vec::new();
    for index in 0..1_000_000 / length {
        let send = pair.here.endpoint.tag_send(LONG, pattern(length, index));
        posted.push(send.post().expect("room"));
    }
    a_while().await;
    (posted, length)
}

/// A message that leaves at once: its sender does not wait for a receive, of which there is none yet.
async fn leaves_at_once(endpoint: &Endpoint, tag: u64, bytes: impl Into<Buffer>, index: usize) {
    let send = endpoint.tag_send(tag, bytes);
    match tokio::time::timeout(Duration::from_secs(20), send).await {
        Ok(sent) => sent.expect("sent"),
        Err(_) => panic!("the short message {index} waits for its receive"),
    }
}

/// Active messages of this id fill its window of bytes, those of the other its window of messages.
const BYTES: AmId = AmId(6);
const MESSAGES: AmId = AmId(7);
/// Of the second. No less than what a peer has of any id.
const CAPACITY: usize = 16;
/// The length of the first, and how many leave room for a hundred short ones, and for no more of them.
const ACTIVE: usize = 8000;
const FILLING: usize = 64;

/// Every window of a connection but for a little: what waits in each, and has not been asked for.
struct Filled {
    /// Tagged messages, and their length.
    long: Vec<Op<()>>,
    length: usize,
    /// Active ones, of both ids.
    bytes: AmInbox,
    messages: AmInbox,
    /// What was sent into each, and taken out of it.
    sent: [usize; 2],
    taken: [usize; 2],
    here: ByteStream,
    there: ByteStream,
    written: usize,
    read: usize,
}

impl Filled {
    async fn new(pair: &Pair, way: Way) -> Self {
        let open = |id, capacity| {
            pair.there
                .worker
                .active_messages(id)
                .capacity(capacity)
                .open()
        };
        let (bytes, messages) = (open(BYTES, 1000), open(MESSAGES, CAPACITY));
        let here = pair.here.endpoint.stream().await.expect("opened");
        let there = pair.there.endpoint.accept_stream().await.expect("accepted");
        let (long, length) = unreceived(pair, way).await;
        let mut filled = Self {
            long,
            length,
            bytes: bytes.expect("an inbox"),
            messages: messages.expect("an inbox"),
            sent: [0; 2],
            taken: [0; 2],
            here,
            there,
            written: 0,
            read: 0,
        };
        for _ in 0..FILLING {
            filled.active(&pair.here, 0, ACTIVE).await;
        }
        for _ in 0..CAPACITY - 1 {
            filled.active(&pair.here, 1, 8).await;
        }
        filled.write(STREAM_WINDOW - 64).await;
        filled
    }

    /// An active message into one of the inboxes, which leaves at once.
    async fn active(&mut self, here: &Side, inbox: usize, length: usize) {
        let seed = self.sent[inbox];
        self.sent[inbox] += 1;
        let send = here
            .endpoint
            .am_send([BYTES, MESSAGES][inbox], "", pattern(length, seed));
        match tokio::time::timeout(Duration::from_secs(20), send).await {
            Ok(sent) => sent.expect("sent"),
            Err(_) => panic!("the active message {seed} waits for room that is there"),
        }
    }

    async fn take(&mut self, inbox: usize, length: usize) {
        let message = match inbox {
            0 => self.bytes.recv().await,
            _ => self.messages.recv().await,
        };
        let seed = self.taken[inbox];
        self.taken[inbox] += 1;
        let bytes = message
            .expect("a message")
            .bytes()
            .await
            .expect("its bytes");
        same(&bytes, pattern(length, seed), seed);
    }

    /// Bytes into the stream, for which there is room.
    async fn write(&mut self, length: usize) {
        let write = self
            .here
            .write_all(&pattern(8 << 20, 0)[self.written..self.written + length]);
        match tokio::time::timeout(Duration::from_secs(20), write).await {
            Ok(done) => done.expect("written"),
            Err(_) => panic!("a write waits with {} unread", self.written - self.read),
        }
        self.written += length;
    }

    async fn read(&mut self, length: usize) {
        let mut bytes = vec![0; length];
        self.there.read_exact(&mut bytes).await.expect("read");
        same(
            &bytes,
            &pattern(8 << 20, 0)[self.read..self.read + length],
            self.read,
        );
        self.read += length;
    }
}

/// So many short messages, each beside its receive. What both ends sent for that, and how many sends did not leave in their first look.
async fn beside_their_receives(pair: &Pair, count: usize) -> [u64; 3] {
    let now = || {
        let [here, there] = [&pair.here, &pair.there].map(|side| side.worker.metrics());
        let [forth, back] = [&here, &there].map(|metrics| {
            metrics
                .transports
                .iter()
                .map(|one| one.sent.count)
                .sum::<u64>()
        });
        [forth, back, here.operations]
    };
    let before = now();
    for index in 0..count {
        let sent = leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, index), index);
        let ((), received) = tokio::join!(sent, pair.there.receive(SHORT, 8));
        same(&received, pattern(8, index), index);
    }
    let after = now();
    [0, 1, 2].map(|which| after[which] - before[which])
}

scenarios! { everywhere:
    /// Thousands of short messages pass long ones that nobody receives: each leaves before there is a receive for it, or beside it.
    async fn short_messages_pass_unreceived_long_ones(way: Way) {
        let pair = way.pair().await;
        let (long, length) = unreceived(&pair, way).await;
        for index in 0..2000_usize {
            let bytes = index.to_le_bytes();
            leaves_at_once(&pair.here.endpoint, SHORT, bytes.to_vec(), index).await;
            assert_eq!(pair.there.receive(SHORT, 8).await, bytes);
        }
        for index in 0..2000_usize {
            let bytes = index.to_le_bytes();
            let sent = leaves_at_once(&pair.here.endpoint, SHORT, bytes.to_vec(), index);
            let ((), received) = tokio::join!(sent, pair.there.receive(SHORT, 8));
            assert_eq!(received, bytes);
        }
        // Some of them wait for their receives as well.
        for round in 0..20 {
            for index in 0..200 {
                leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, index), round).await;
            }
            for index in 0..200 {
                same(&pair.there.receive(SHORT, 8).await, pattern(8, index), index);
            }
        }
        for (index, send) in long.into_iter().enumerate() {
            same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            send.await.expect("sent");
        }
        pair.here.endpoint.flush().await.expect("flushed");
    }

    /// With the windows of tags and of active messages nearly full, each message that is taken makes room for one more.
    async fn what_is_taken_makes_room(way: Way) {
        const ID: AmId = AmId(5);
        const CAPACITY: usize = 64;
        let pair = way.pair().await;
        let mut inbox = pair.there.worker.active_messages(ID).capacity(CAPACITY).open().expect("an inbox");
        let (long, length) = unreceived(&pair, way).await;
        let send = async |index: usize| {
            let send = pair.here.endpoint.am_send(ID, "", index.to_le_bytes().to_vec());
            match tokio::time::timeout(Duration::from_secs(20), send).await {
                Ok(sent) => sent.expect("sent"),
                Err(_) => panic!("the active message {index} waits for room that is there"),
            }
        };
        let mut sent = 0;
        while sent < CAPACITY {
            send(sent).await;
            sent += 1;
        }
        let late = pair.here.endpoint.am_send(ID, "", "late").deadline(Duration::from_millis(20)).await;
        assert!(late.is_err(), "the inbox is full");
        let mut taken = 0;
        for round in 0..300 {
            // A few are taken, and as many find room.
            let count = [1, 3, 2, 7][round % 4];
            for _ in 0..count {
                let message = inbox.recv().await.expect("a message");
                assert_eq!(message.data(), Some(&usize::to_le_bytes(taken)[..]));
                taken += 1;
            }
            for _ in 0..count {
                send(sent).await;
                sent += 1;
            }
            leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, round), round).await;
            same(&pair.there.receive(SHORT, 8).await, pattern(8, round), round);
        }
        while taken < sent {
            let message = inbox.recv().await.expect("a message");
            assert_eq!(message.data(), Some(&usize::to_le_bytes(taken)[..]));
            taken += 1;
        }
        for (index, send) in long.into_iter().enumerate() {
            same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            send.await.expect("sent");
        }
    }

    /// A write never waits while less than the window of a stream is unread: each piece that is read makes room for another.
    async fn what_is_read_makes_room(way: Way) {
        let pair = way.pair().await;
        let mut here = pair.here.endpoint.stream().await.expect("opened");
        let mut there = pair.there.endpoint.accept_stream().await.expect("accepted");
        let bytes = pattern(4 << 20, 0);
        let mut written = 0;
        while let Ok(count) = tokio::time::timeout(Duration::from_millis(100), here.write(&bytes[written..])).await {
            written += count.expect("written");
        }
        assert!(written >= STREAM_WINDOW, "{written} were taken");
        // As much stays unread from here on as there is room for.
        let mut read = 0;
        for round in 0..400 {
            let count = [1, 1000, 100, 16_000][round % 4];
            let mut piece = vec![0; count];
            there.read_exact(&mut piece).await.expect("read");
            same(&piece, &bytes[read..read + count], round);
            read += count;
            let write = here.write_all(&bytes[written..written + count]);
            match tokio::time::timeout(Duration::from_secs(20), write).await {
                Ok(done) => done.expect("written"),
                Err(_) => panic!("write {round} waits with {} unread", written - read),
            }
            written += count;
        }
        here.shutdown().await.expect("shut down");
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).await.expect("read to the end");
        same(&rest, &bytes[read..written], "the rest");
    }

    /// With all windows of a connection nearly full at the same time short messages of each kind leave at once, whether their receives are posted or
    /// are not yet; what finds no room waits, and goes when room is given back.
    async fn with_every_window_nearly_full(way: Way) {
        let pair = way.pair().await;
        let mut filled = Filled::new(&pair, way).await;
        for round in 0..100 {
            // Each of them in turn and, beside each other, before and after what takes it.
            leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, round), round).await;
            filled.active(&pair.here, 1, 8).await;
            filled.active(&pair.here, 0, 8).await;
            filled.write(48).await;
            // The receive is posted later.
            same(&pair.there.receive(SHORT, 8).await, pattern(8, round), round);
            filled.take(1, 8).await;
            filled.read(48).await;
            let sent = leaves_at_once(&pair.here.endpoint, SHORT, pattern(48, round), round);
            let both = async {
                filled.active(&pair.here, 1, 8).await;
                filled.take(1, 8).await;
                filled.write(64).await;
                filled.read(64).await;
            };
            let ((), received, ()) = tokio::join!(sent, pair.there.receive(SHORT, 48), both);
            same(&received, pattern(48, round), round);
        }

        // One more of each than there is room for.
        let mut tagged = pair.here.endpoint.tag_send(LONG, pattern(filled.length, filled.long.len())).post().expect("room");
        let mut active = pair.here.endpoint.am_send(BYTES, "", pattern(ACTIVE, filled.sent[0])).post().expect("room");
        let mut another = pair.here.endpoint.am_send(MESSAGES, "", pattern(8, filled.sent[1])).post().expect("room");
        let mut other = pair.here.endpoint.am_send(MESSAGES, "", pattern(8, filled.sent[1] + 1)).post().expect("room");
        let (length, bytes) = (filled.length, pattern(8 << 20, 0));
        let rest = filled.written + 100_000;
        let writes = async {
            filled.here.write_all(&bytes[filled.written..rest]).await.expect("written");
            filled.here.shutdown().await.expect("shut down");
        };
        let mut writes = Box::pin(writes);
        let early = tokio::time::timeout(Duration::from_millis(50), async {
            tokio::select! {
                _ = &mut tagged => "a tagged message",
                _ = &mut active => "an active message",
                _ = &mut other => "an active message of the other id",
                () = &mut writes => "a write",
            }
        });
        assert_eq!(early.await.ok(), None, "there was room for it");
        // The one for which there was a place.
        (&mut another).await.expect("sent");
        for round in 0..100 {
            leaves_at_once(&pair.here.endpoint, SHORT, pattern(8, round), round).await;
            same(&pair.there.receive(SHORT, 8).await, pattern(8, round), round);
        }

        // What waits is taken: room comes back, and with it those that wait.
        let long = std::mem::take(&mut filled.long);
        let (waiting, taken) = ([filled.sent[0] + 1, filled.sent[1] + 2], filled.taken);
        let receive = async {
            for index in 0..=long.len() {
                same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            }
        };
        let take = async |inbox: &mut AmInbox, taken: usize, waiting: usize, length: fn(usize) -> usize| {
            for seed in taken..waiting {
                let message = inbox.recv().await.expect("a message");
                same(&message.bytes().await.expect("its bytes"), pattern(length(seed), seed), seed);
            }
        };
        let lengths = |seed| if (FILLING..FILLING + 100).contains(&seed) { 8 } else { ACTIVE };
        let bytes_taken = take(&mut filled.bytes, taken[0], waiting[0], lengths);
        let messages_taken = take(&mut filled.messages, taken[1], waiting[1], |_| 8);
        let mut read = Vec::new();
        let reads = filled.there.read_to_end(&mut read);
        let ((), (), (), reads, (), tagged, active, other) =
            tokio::join!(receive, bytes_taken, messages_taken, reads, writes, tagged, active, other);
        reads.expect("read to the end");
        same(&read, &bytes[filled.read..rest], "the rest of the stream");
        tagged.expect("received");
        active.expect("sent");
        other.expect("sent");
        for send in long {
            send.await.expect("sent");
        }
        pair.here.endpoint.flush().await.expect("flushed");
    }
}

scenarios! { between workers:
    /// Beside long messages that nobody receives a short one costs as many messages as without them, one each; and the room that it took comes back by no
    /// less than 4 KiB. But for a few.
    async fn short_messages_need_no_more_exchanges(way: Way) {
        const COUNT: usize = 3000;
        /// Of window, for 8 bytes.
        const COST: usize = 8 + 64;
        let [forth, back, _] = beside_their_receives(&way.pair().await, COUNT).await;
        // Of another connection: of this one's window a part is owed.
        let pair = way.pair().await;
        let (long, length) = unreceived(&pair, way).await;
        let [forth_beside, back_beside, operations] = beside_their_receives(&pair, COUNT).await;
        let seen = format!("{forth} forth and {back} back without, {forth_beside} and {back_beside} beside unreceived ones, {operations} in the table");
        eprintln!("{way:?}: {seen}");
        let returns = (COUNT * COST).div_ceil(4 << 10) as u64;
        assert_eq!(forth, COUNT as u64, "{seen}");
        // Where room is given back while this end's worker is kept from its processor, a few are announced; with the fault each was.
        assert!(forth_beside <= COUNT as u64 * 11 / 10, "{seen}");
        assert!(back_beside <= returns + COUNT as u64 / 10, "{seen}");
        for (index, send) in long.into_iter().enumerate() {
            same(&pair.there.receive(LONG, length).await, pattern(length, index), index);
            send.await.expect("sent");
        }
    }
}
