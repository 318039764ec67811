//! Active messages.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, SinkExt, StreamExt, future::join_all, stream};
use parking_lot::Mutex;
use wharf::{AmId, AmInbox, Buffer, Endpoint, ErrorKind};

use crate::{
    fixture::{Pair, SIZES, Side, Way, a_while, connect, pattern, run, run_on_threads, same},
    support::Looks,
};

const ID: AmId = AmId(7);
const HEADERS: [usize; 7] = [0, 1, 40, 48, 64, 65, Endpoint::AM_MAX_HEADER];
/// Announced on every path.
const LONG: usize = 300_000;

fn inbox(side: &Side, capacity: usize) -> AmInbox {
    side.worker
        .active_messages(ID)
        .capacity(capacity)
        .open()
        .expect("an inbox")
}

fn numbered(number: usize) -> Vec<u8> {
    (number as u64).to_le_bytes().to_vec()
}

fn number(header: &[u8]) -> usize {
    u64::from_le_bytes(header.try_into().expect("a number")) as usize
}

/// What a look has seen.
fn looked<T>(seen: Option<T>) -> T {
    seen.expect("a message")
}

/// Sends to an id until the peer's refusal is here.
async fn until_refused(endpoint: &Endpoint, id: AmId) {
    let mut looks = Looks::new("the refusal");
    loop {
        match endpoint.am_send(id, "", "x").await {
            Ok(()) => looks.again().await,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
                assert!(error.to_string().contains("id"), "{error}");
                return;
            }
        }
    }
}

/// All that was sent before was looked at over there, and the answers are here: a flush does not wait for short messages.
async fn until_answered(pair: &Pair) {
    tokio::join!(pair.here.send(1, "tag"), pair.there.receive(1, 3));
    tokio::join!(pair.there.send(2, "tag"), pair.here.receive(2, 3));
}

/// Sends to an id until the peer's news of a new inbox is here.
async fn until_accepted(endpoint: &Endpoint, id: AmId, header: &'static str) {
    let mut looks = Looks::new("the news");
    loop {
        match endpoint.am_send(id, header, "").await {
            Ok(()) => return,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
                looks.again().await;
            }
        }
    }
}

scenarios! { everywhere, and under TLS on threads:
    /// Bytes that are only lent for the call or the first poll.
    async fn copies(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 256);
        for (index, size) in SIZES.into_iter().enumerate() {
            for (nth, header) in HEADERS.into_iter().enumerate() {
                let (head, body) = (pattern(header, index + 50), pattern(size, index));
                let send = async {
                    let (mut head, mut body) = (head.to_vec(), body.to_vec());
                    match nth % 2 {
                        0 => pair.here.endpoint.am_send_copy(ID, &head, &body).await.expect("sent"),
                        _ => {
                            let sent = pair.here.endpoint.am_send_copy(ID, &head, &body).post().expect("posted");
                            head.fill(0);
                            body.fill(0);
                            sent.await.expect("sent");
                        }
                    }
                };
                let receive = async {
                    let message = inbox.recv().await.expect("a message");
                    same(message.header(), head, header);
                    same(&message.bytes().await.expect("bytes"), body, size);
                };
                tokio::join!(send, receive);
            }
        }
        let too_long = vec![0; Endpoint::AM_MAX_HEADER + 1];
        let error = pair.here.endpoint.am_send_copy(ID, &too_long, b"").await.expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = pair.here.endpoint.am_send_copy(ID, &too_long, b"").post().expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    /// Every size of payload and header, received in each of the ways.
    async fn sizes(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 256);
        for (index, size) in SIZES.into_iter().enumerate() {
            for (nth, header) in HEADERS.into_iter().enumerate() {
                let (head, body) = (pattern(header, index + 50), pattern(size, index));
                let send = async {
                    pair.here.endpoint.am_send(ID, head, body).await.expect("sent");
                };
                let receive = async {
                    let message = inbox.recv().await.expect("a message");
                    assert_eq!((message.id(), message.len(), message.from()), (ID, size, pair.there.endpoint.id()));
                    same(message.header(), head, header);
                    assert_eq!(message.data().is_none(), message.is_announced());
                    if let Some(data) = message.data() {
                        same(data, body, size);
                    }
                    if nth % 2 == 0 {
                        same(&message.bytes().await.expect("bytes"), body, size);
                    } else {
                        let received = message.receive(vec![0xee; size + 3]).await.expect("received");
                        assert_eq!(received.len, size);
                        same(&received.buffer[..size], body, size);
                        assert_eq!(received.buffer[size..], [0xee; 3]);
                    }
                };
                tokio::join!(send, receive);
            }
        }
    }

    /// A receive that was over in its first poll, and is posted then.
    async fn posted_when_it_is_over(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let (sent, message) = tokio::join!(pair.here.endpoint.am_send(ID, "", "here"), inbox.recv());
        sent.expect("sent");
        let mut receive = message.expect("a message").receive(vec![0; 4]);
        assert_eq!((&mut receive).await.expect("received").buffer, b"here");
        let error = receive.post().await.expect_err("over");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }

    /// Order is kept among eager and announced ones, with few credits.
    async fn order(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 5);
        let size = |index: usize| [3, 70_000, 48, 0, 5000, 49, 140_000, 9000][index % 8] + index % 3;
        let sends = async {
            let mut posted = Vec::new();
            for index in 0..300 {
                posted.push(pair.here.endpoint.am_send(ID, numbered(index), pattern(size(index), index)).post().expect("room"));
            }
            for send in posted {
                send.await.expect("sent");
            }
        };
        let receives = async {
            for index in 0..300 {
                let message = inbox.next().await.expect("a message");
                assert_eq!(number(message.header()), index);
                same(&message.bytes().await.expect("bytes"), pattern(size(index), index), index);
            }
        };
        tokio::join!(sends, receives);
    }

    /// Nobody takes messages: the sender is held back by credits, tags go on, and nothing is lost.
    async fn credits_hold_back(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 20);
        let posted: Vec<_> = (0..100)
            .map(|index| pair.here.endpoint.am_send(ID, numbered(index), "x").post().expect("room"))
            .collect();
        tokio::join!(pair.here.send(1, "tag"), pair.there.receive(1, 3));
        a_while().await;
        let late = pair.here.endpoint.am_send(ID, "", "late").deadline(Duration::from_millis(20)).await;
        assert_eq!(late.expect_err("no credit").kind(), ErrorKind::DeadlineExceeded);
        for index in 0..20 {
            assert_eq!(number(inbox.try_recv().expect("it waits").header()), index);
        }
        for index in 20..100 {
            assert_eq!(number(inbox.recv().await.expect("a message").header()), index);
        }
        for send in posted {
            send.await.expect("sent");
        }
        a_while().await;
        assert!(inbox.try_recv().is_none(), "one was withdrawn");
    }

    /// Short messages wait for room and are never announced for want of it: a callback that keeps nothing gets all of them, whatever else of the
    /// connection nobody takes.
    async fn short_ones_come_whole(way: Way) {
        const OTHER: AmId = AmId(8);
        const MESSAGES: usize = 3000;
        let size = |index: usize| [4000, 3, 3999, 48, 0, 2500][index % 6];
        let pair = way.pair().await;
        let here = &pair.here.endpoint;
        let tags: Vec<_> = (0..400).map(|index| here.tag_send(1, pattern(4000, index)).post().expect("room")).collect();
        let mut other = pair.there.worker.active_messages(OTHER).capacity(1000).open().expect("an inbox");
        let untaken: Vec<_> = (0..400).map(|index| here.am_send(OTHER, numbered(index), pattern(4000, index)).post().expect("room")).collect();
        let all = Arc::new(tokio::sync::Notify::new());
        let handler = {
            let (all, mut next) = (all.clone(), 0);
            pair.there.worker.active_messages(ID).capacity(2000).on_message(move |message| {
                assert_eq!(number(&message.header().to_vec()), next);
                same(&message.data().expect("short").to_vec(), pattern(size(next), next), next);
                next += 1;
                if next == MESSAGES {
                    all.notify_one();
                }
            }).expect("a callback")
        };
        let posted: Vec<_> = (0..MESSAGES / 2).map(|index| here.am_send(ID, numbered(index), pattern(size(index), index)).post().expect("room")).collect();
        for index in MESSAGES / 2..MESSAGES {
            here.am_send(ID, numbered(index), pattern(size(index), index)).await.expect("sent");
        }
        for send in posted {
            send.await.expect("sent");
        }
        all.notified().await;
        for index in 0..untaken.len() {
            let message = other.recv().await.expect("a message");
            assert_eq!(number(message.header()), index);
            same(message.data().expect("short"), pattern(4000, index), index);
        }
        for (index, send) in tags.into_iter().enumerate() {
            same(&pair.there.receive(1, 4000).await, pattern(4000, index), index);
            send.await.expect("sent");
        }
        for send in untaken {
            send.await.expect("sent");
        }
        drop(handler);
    }

    /// What waits for room can be cancelled, and what comes behind it goes on.
    async fn waiting_for_room_is_cancelled(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 2000);
        for round in 0..3 {
            let mut posted: Vec<_> = (0..400)
                .map(|index| pair.here.endpoint.am_send(ID, numbered(index), pattern(4000, index)).post().expect("room"))
                .collect();
            a_while().await;
            let late = pair.here.endpoint.am_send(ID, "", "late").deadline(Duration::from_millis(20)).await;
            assert_eq!(late.expect_err("no room").kind(), ErrorKind::DeadlineExceeded, "{round}");
            for index in [399, 300, 200] {
                let error = posted.remove(index).cancel().await.expect_err("cancelled");
                assert_eq!(error.kind(), ErrorKind::Canceled);
            }
            for index in (0..399).filter(|index| ![200, 300].contains(index)) {
                let message = inbox.recv().await.expect("a message");
                assert_eq!(number(message.header()), index);
                same(message.data().expect("short"), pattern(4000, index), index);
            }
            for send in posted {
                send.await.expect("sent");
            }
        }
        a_while().await;
        assert!(inbox.try_recv().is_none(), "some were withdrawn");
    }

    /// What waits for a credit can be cancelled; so can what is announced and not taken.
    async fn cancel(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let mut posted: Vec<_> = (0..40)
            .map(|index| {
                let size = if index == 3 { LONG } else { 1 };
                pair.here.endpoint.am_send(ID, numbered(index), pattern(size, 0)).post().expect("room")
            })
            .collect();
        a_while().await;
        for index in [30, 3] {
            let error = posted.remove(index).cancel().await.expect_err("cancelled");
            assert_eq!(error.kind(), ErrorKind::Canceled);
            assert_eq!(error.operation(), Some(wharf::Operation::AmSend));
        }
        for index in (0..40).filter(|index| ![3, 30].contains(index)) {
            assert_eq!(number(inbox.recv().await.expect("a message").header()), index);
        }
        for send in posted {
            send.await.expect("sent");
        }
    }

    /// An id that nobody receives is refused, nothing else is touched, and opening it makes it good.
    async fn nobody_receives(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        until_refused(endpoint, ID).await;
        until_answered(&pair).await;
        let lost = endpoint.flush().await.expect_err("messages were lost");
        assert_eq!(lost.kind(), ErrorKind::Rejected);
        endpoint.flush().await.expect("it is told once");
        let posted = endpoint.am_send(ID, "", "x").post().expect_err("refused");
        assert_eq!(posted.kind(), ErrorKind::Rejected);
        let announced = endpoint.am_send(AmId(8), "", pattern(LONG, 0)).await.expect_err("refused");
        assert_eq!(announced.kind(), ErrorKind::Rejected);
        tokio::join!(pair.here.send(1, "tag"), pair.there.receive(1, 3));
        // More ids than are remembered one by one.
        for id in 100..200 {
            until_refused(endpoint, AmId(id)).await;
        }
        until_answered(&pair).await;
        let _ = endpoint.flush().await;
        for id in [AmId(7), AmId(8), AmId(100), AmId(199)] {
            let mut inbox = pair.there.worker.active_messages(id).open().expect("an inbox");
            until_accepted(endpoint, id, "hello").await;
            assert_eq!(inbox.recv().await.expect("a message").header(), b"hello");
            for index in 0..50 {
                endpoint.am_send(id, numbered(index), "").await.expect("sent");
            }
            for index in 0..50 {
                assert_eq!(number(inbox.recv().await.expect("a message").header()), index);
            }
        }
        endpoint.flush().await.expect("nothing was lost");
    }

    /// An inbox that goes away refuses what waits in it; the next one works.
    async fn inbox_dropped(way: Way) {
        let pair = way.pair().await;
        let endpoint = &pair.here.endpoint;
        for round in 0..3 {
            let mut first = inbox(&pair.there, 16);
            until_accepted(endpoint, ID, "first").await;
            let eager = endpoint.am_send(ID, "", "eager").post().expect("room");
            let announced = endpoint.am_send(ID, "", pattern(LONG, 0)).post().expect("room");
            let waiting: Vec<_> = (0..30).map(|_| endpoint.am_send(ID, "", pattern(LONG, 0)).post().expect("room")).collect();
            assert_eq!(first.recv().await.expect("a message").header(), b"first");
            a_while().await;
            drop(first);
            eager.await.expect("it had gone");
            for send in std::iter::once(announced).chain(waiting) {
                assert_eq!(send.await.expect_err("refused").kind(), ErrorKind::Rejected, "in round {round}");
            }
            until_refused(endpoint, ID).await;
            assert_eq!(endpoint.flush().await.expect_err("one was lost").kind(), ErrorKind::Rejected);
        }
        let mut last = inbox(&pair.there, 64);
        until_accepted(endpoint, ID, "last").await;
        assert_eq!(last.recv().await.expect("a message").header(), b"last");
        let posted: Vec<_> = (0..200).map(|index| endpoint.am_send(ID, numbered(index), "").post().expect("room")).collect();
        for index in 0..200 {
            assert_eq!(number(last.recv().await.expect("a message").header()), index);
        }
        for send in posted {
            send.await.expect("sent");
        }
    }

    /// The receiver decides: it rejects with a reason, drops, or has no room.
    async fn rejected(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let send = || pair.here.endpoint.am_send(ID, "head", pattern(LONG, 0)).post().expect("room");
        let sends = [send(), send(), send(), send(), send()];
        inbox.recv().await.expect("a message").reject("no place for it, and a reason that is longer than fits");
        drop(inbox.recv().await.expect("a message"));
        let short = inbox.recv().await.expect("a message").receive(vec![1; 10]).await.expect_err("too short");
        assert_eq!(short.kind(), ErrorKind::Truncated);
        assert_eq!(short.into_parts().1, Some(vec![1; 10]), "the buffer comes back");
        drop(inbox.recv().await.expect("a message").receive(vec![0; LONG]));
        let last = inbox.recv().await.expect("a message");
        assert!(last.is_announced());
        assert_eq!((last.header(), last.len()), (&b"head"[..], LONG));
        let post = last.receive(vec![0; LONG]).post();
        let [first, second, third, fourth, fifth] = sends;
        let error = first.await.expect_err("rejected");
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains("no place for it"), "{error}");
        for send in [second, third, fourth] {
            assert_eq!(send.await.expect_err("rejected").kind(), ErrorKind::Rejected);
        }
        let (received, sent) = tokio::join!(post, fifth);
        sent.expect("sent");
        same(&received.expect("received").buffer, pattern(LONG, 0), "the last");
        // An eager one has arrived, whatever its receiver says.
        pair.here.endpoint.am_send(ID, "", "x").await.expect("sent");
        inbox.recv().await.expect("a message").reject("too late");
        // Whoever does not wait hears of it at the flush.
        let _ = pair.here.endpoint.flush().await;
        drop(send());
        drop(inbox.recv().await.expect("a message"));
        assert_eq!(pair.here.endpoint.flush().await.expect_err("rejected").kind(), ErrorKind::Rejected);
    }

    /// Answers go by the endpoint of the message, by a stream and by a callback.
    async fn answers(way: Way) {
        let pair = way.pair().await;
        let mut questions = inbox(&pair.there, 16);
        let mut answers = pair.here.worker.active_messages(AmId(9)).open().expect("an inbox");
        let server = async {
            for _ in 0..50 {
                let question = questions.recv().await.expect("a question");
                let endpoint = question.endpoint().expect("it is open");
                let header = question.header().to_vec();
                let payload = question.bytes().await.expect("bytes");
                endpoint.am_send(9, header, payload).await.expect("answered");
            }
        };
        let client = async {
            for index in 0..50 {
                let size = [10, 100, 10_000, LONG][index % 4];
                let send = pair.here.endpoint.am_send(ID, numbered(index), pattern(size, index)).post().expect("room");
                let answer = answers.recv().await.expect("an answer");
                assert_eq!(number(answer.header()), index);
                same(&answer.bytes().await.expect("bytes"), pattern(size, index), index);
                send.await.expect("sent");
            }
        };
        tokio::join!(server, client);
    }

    /// A callback gets each message once and in order, answers, and survives its own panics.
    async fn callback(way: Way) {
        let pair = way.pair().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let seen = seen.clone();
            pair.there.worker.active_messages(ID).capacity(32).on_message(move |message| {
                let index = number(&message.header().to_vec());
                seen.lock().push(index);
                assert!(index % 10 != 7, "a panic that the test wants");
                if message.is_announced() {
                    message.reject("eager ones only");
                } else {
                    let endpoint = message.endpoint().expect("open");
                    let _answer = endpoint.am_send(9, numbered(index), message.data().expect("eager").to_vec()).post().expect("room");
                }
            }).expect("a callback")
        };
        assert_eq!(handler.id(), ID);
        let mut answers = pair.here.worker.active_messages(9).open().expect("an inbox");
        for index in 0..200 {
            let size = if index == 44 { LONG } else { index };
            let sent = pair.here.endpoint.am_send(ID, numbered(index), pattern(size, index)).await;
            if index == 44 {
                assert_eq!(sent.expect_err("rejected").kind(), ErrorKind::Rejected);
            } else {
                sent.expect("sent");
            }
            if index % 10 != 7 && index != 44 {
                let answer = answers.recv().await.expect("an answer");
                assert_eq!(number(answer.header()), index);
                same(answer.data().expect("eager"), pattern(size, index), index);
            }
        }
        assert_eq!(*seen.lock(), (0..200).collect::<Vec<_>>());
        drop(handler);
        until_refused(&pair.here.endpoint, ID).await;
    }

    /// A look at messages where they arrived, some of which are kept: all are whole and in order.
    async fn in_place(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let size = |index: usize| [0, 8, 40, 41, 100, 4096, 8000, LONG][index % 8];
        let sends = async {
            for index in 0..320 {
                pair.here.endpoint.am_send(ID, numbered(index), pattern(size(index), index)).await.expect("sent");
            }
        };
        let looks = async {
            for index in 0..320 {
                let kept = inbox.recv_with(|message| {
                    assert_eq!((message.id(), message.len()), (ID, size(index)));
                    assert_eq!(message.header().read(0).map(u64::from_le_bytes), Some(index as u64));
                    let Some(data) = message.data() else {
                        return Some(message.keep());
                    };
                    same(&data.to_vec(), pattern(size(index), index), index);
                    let mut front = [0; 5];
                    let length = data.copy_to(&mut front);
                    same(&front[..length], pattern(size(index).min(5), index), index);
                    assert_eq!(data.read::<1>(data.len()), None);
                    assert!(data.get(1..data.len() + 1).is_none());
                    (index % 3 == 0).then(|| message.keep())
                });
                if let Some(kept) = looked(kept.await) {
                    assert_eq!(number(kept.header()), index);
                    same(&kept.bytes().await.expect("bytes"), pattern(size(index), index), index);
                }
            }
        };
        tokio::join!(sends, looks);
        assert!(inbox.try_recv_with(|_| ()).is_none());
    }

    /// A look that panics takes its message along and nothing else; an announced one that nobody keeps is rejected.
    async fn looks_that_end_badly(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        for (index, size) in [3, 40, 4096, 8000, 3, 4096].into_iter().cycle().take(600).enumerate() {
            pair.here.endpoint.am_send(ID, numbered(index), pattern(size, index)).await.expect("sent");
            let look = inbox.recv_with(|message| {
                let index = number(&message.header().to_vec());
                assert!(index % 50 != 7, "a panic that the test wants");
                index
            });
            match AssertUnwindSafe(look).catch_unwind().await {
                Ok(seen) => assert_eq!(seen, Some(index)),
                Err(_) => assert_eq!(index % 50, 7),
            }
        }
        for panics in [false, true] {
            let send = pair.here.endpoint.am_send(ID, "", pattern(LONG, 0));
            let look = inbox.recv_with(|message| {
                assert!(message.is_announced() && message.data().is_none());
                assert!(!panics, "a panic that the test wants");
            });
            let (sent, seen) = tokio::join!(send, AssertUnwindSafe(look).catch_unwind());
            assert_eq!(sent.expect_err("rejected").kind(), ErrorKind::Rejected);
            assert_eq!(seen.is_err(), panics);
        }
    }

    /// A look may use the worker, which goes on taking what comes: the message stays as it is meanwhile.
    async fn a_look_uses_its_worker(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 4096);
        let mut other = pair.there.worker.active_messages(8).open().expect("an inbox");
        let mut answers = pair.here.worker.active_messages(9).open().expect("an inbox");
        let sends: Vec<_> = (0..2000).map(|index| {
            pair.here.endpoint.am_send(ID, numbered(index), pattern(4000, index)).post().expect("room")
        }).collect();
        let other_one = pair.here.endpoint.am_send(8, "", "other").post().expect("room");
        for index in 0..2000 {
            let answer = inbox.recv_with(|message| {
                assert_eq!(number(&message.header().to_vec()), index);
                assert!(!message.is_announced(), "{index}");
                if index % 100 != 0 {
                    return None;
                }
                for _ in 0..500 {
                    pair.here.worker.progress();
                    pair.there.worker.progress();
                }
                same(&message.data().expect("short").to_vec(), pattern(4000, index), index);
                let endpoint = message.endpoint().expect("open");
                Some(endpoint.am_send(9, numbered(index), "").post().expect("room"))
            });
            if let Some(answer) = looked(answer.await) {
                assert_eq!(number(answers.recv().await.expect("an answer").header()), index);
                answer.await.expect("sent");
            }
        }
        for send in sends {
            send.await.expect("sent");
        }
        other_one.await.expect("sent");
        assert_eq!(looked(other.recv_with(|message| message.len()).await), 5);
    }

    /// A sink is fed by a stream, and says what it could not bring.
    async fn sink(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 10);
        let mut sink = pair.here.endpoint.am_sink(ID);
        let size = |index: usize| [8, 50, 9_000, 70_000][index % 4];
        let feed = async {
            let items = (0..200).map(|index| Ok(Buffer::from(pattern(size(index), index))));
            sink.send_all(&mut stream::iter(items)).await.expect("sent");
            sink.send((Buffer::from("head"), Buffer::from("body"))).await.expect("sent");
        };
        let drain = async {
            for index in 0..200 {
                let message = inbox.recv().await.expect("a message");
                assert_eq!(message.header(), b"");
                same(&message.bytes().await.expect("bytes"), pattern(size(index), index), index);
            }
            let message = inbox.recv().await.expect("a message");
            assert_eq!((message.header(), message.data()), (&b"head"[..], Some(&b"body"[..])));
        };
        tokio::join!(feed, drain);
        let rejected = async {
            sink.send(Buffer::from(pattern(LONG, 0))).await.expect_err("rejected")
        };
        let (error, ()) = tokio::join!(rejected, async { inbox.recv().await.expect("a message").reject("no") });
        assert_eq!(error.kind(), ErrorKind::Rejected);
        drop(inbox);
        until_refused(&pair.here.endpoint, ID).await;
        assert_eq!(sink.send(Buffer::from("x")).await.expect_err("refused").kind(), ErrorKind::Rejected);
    }

    /// What makes no sense is refused where it is said.
    async fn bad_arguments(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let again = pair.there.worker.active_messages(ID).open().expect_err("it is open");
        assert_eq!(again.kind(), ErrorKind::InvalidArgument);
        let again = pair.there.worker.active_messages(ID).on_message(|_| ()).expect_err("it is open");
        assert_eq!(again.kind(), ErrorKind::InvalidArgument);
        for capacity in [0, usize::MAX] {
            let none = pair.there.worker.active_messages(8).capacity(capacity).open().expect_err("no capacity");
            assert_eq!(none.kind(), ErrorKind::InvalidArgument);
        }
        let long = vec![0; Endpoint::AM_MAX_HEADER + 1];
        let error = pair.here.endpoint.am_send(ID, long.clone(), "x").await.expect_err("a long header");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = pair.here.endpoint.am_send(ID, long.clone(), vec![7; 5]).post().expect_err("a long header");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = pair.here.endpoint.am_sink(ID).send((long.into(), Buffer::new())).await.expect_err("a long header");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        pair.here.endpoint.am_send(ID, "ok", "").await.expect("sent");
        assert_eq!(inbox.recv().await.expect("a message").header(), b"ok");
    }

    /// A message without a payload comes at once, however many tagged ones are under way.
    async fn nothing_to_fetch(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        // Past the window of tagged messages.
        let filling: Vec<_> = (0..1500).map(|_| pair.here.endpoint.tag_send(1, pattern(4000, 0)).post().expect("room")).collect();
        pair.here.endpoint.am_send(ID, "head", "").await.expect("sent");
        let message = inbox.recv().await.expect("a message");
        assert_eq!((message.header(), message.data()), (&b"head"[..], Some(&b""[..])));
        for _ in &filling {
            pair.there.worker.tag_recv(1, vec![0; 4000]).await.expect("a message");
        }
        for send in filling {
            send.await.expect("sent");
        }
    }

    /// Shut down, the worker ends its streams.
    async fn shutdown(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let waits = async { assert!(inbox.recv().await.is_none()) };
        let ends = async {
            a_while().await;
            pair.there.worker.shutdown(Duration::from_secs(10)).await.expect("a quiet end");
        };
        tokio::join!(waits, ends);
        assert!(inbox.next().await.is_none());
        assert_eq!(pair.there.worker.active_messages(8).open().expect_err("shut down").kind(), ErrorKind::Closed);
        let sent = pair.here.endpoint.am_send(ID, "", "x").await.expect_err("closed");
        assert!(matches!(sent.kind(), ErrorKind::Closed | ErrorKind::ClosedByPeer), "{sent}");
    }
}

scenarios! { between workers:
    /// A connection ends: what waits fails, what was announced is gone, what was eager stays.
    async fn connection_ends(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 16);
        let endpoint = &pair.here.endpoint;
        let in_hand = endpoint.am_send(ID, "in hand", pattern(LONG, 0)).post().expect("room");
        let message = inbox.recv().await.expect("a message");
        let eager = endpoint.am_send(ID, "eager", "here").post().expect("room");
        let announced = endpoint.am_send(ID, "announced", pattern(LONG, 0)).post().expect("room");
        let waiting: Vec<_> = (0..30).map(|_| endpoint.am_send(ID, "", pattern(LONG, 0)).post().expect("room")).collect();
        a_while().await;
        endpoint.abort();
        eager.await.expect("it had gone");
        for send in waiting.into_iter().chain([announced, in_hand]) {
            assert_eq!(send.await.expect_err("it has ended").kind(), ErrorKind::Closed);
        }
        pair.there.endpoint.closed().await;
        assert!(message.endpoint().is_none());
        let error = message.bytes().await.expect_err("its sender is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let eager = inbox.recv().await.expect("the eager one");
        assert_eq!((eager.header(), eager.data()), (&b"eager"[..], Some(&b"here"[..])));
        assert!(inbox.try_recv().is_none(), "the announced ones are gone");
        let error = pair.there.endpoint.am_send(ID, "", "answer").await.expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::AbortedByPeer, "{error}");
    }

    /// A connection ends while a message of it is looked at: its bytes stay until the look is over.
    async fn connection_ends_in_a_look(way: Way) {
        for size in [8, 4000] {
            let pair = way.pair().await;
            let mut inbox = inbox(&pair.there, 16);
            pair.here.endpoint.am_send(ID, numbered(size), pattern(size, 1)).await.expect("sent");
            let look = inbox.recv_with(|message| {
                pair.here.endpoint.abort();
                pair.there.endpoint.abort();
                for _ in 0..500 {
                    pair.here.worker.progress();
                    pair.there.worker.progress();
                }
                assert!(message.endpoint().is_none());
                assert_eq!(number(&message.header().to_vec()), size);
                same(&message.data().expect("eager").to_vec(), pattern(size, 1), 1);
            });
            looked(look.await);
            pair.there.endpoint.closed().await;
            assert!(inbox.try_recv_with(|_| ()).is_none());
        }
    }

    /// Many endpoints fill one inbox; each keeps its order and its own credits.
    async fn many_senders(way: Way) {
        let context = way.context();
        let there = wharf::Worker::new(&context).expect("a worker");
        let mut inbox = there.active_messages(ID).capacity(8).open().expect("an inbox");
        let mut sides = Vec::new();
        for _ in 0..4 {
            let here = wharf::Worker::new(&context).expect("a worker");
            let (endpoint, accepted) = connect(&here, &there).await;
            sides.push((here, endpoint, accepted));
        }
        let sends = join_all(sides.iter().map(|(_, endpoint, _)| async move {
            for index in 0..200 {
                let size = [5, 5, 10_000, 200_000][index % 4];
                endpoint.am_send(ID, numbered(index), pattern(size, index)).await.expect("sent");
            }
        }));
        let receives = async {
            let mut next = std::collections::HashMap::new();
            for _ in 0..800 {
                let message = inbox.recv().await.expect("a message");
                let expected = next.entry(message.from()).or_insert(0);
                let index = number(message.header());
                assert_eq!(index, *expected);
                *expected += 1;
                same(&message.bytes().await.expect("bytes"), pattern([5, 5, 10_000, 200_000][index % 4], index), index);
            }
            assert_eq!(next.len(), 4);
        };
        tokio::join!(sends, receives);
    }

    /// One that takes its time holds nobody back for good: its sender fills what there is, and goes on when it is over.
    async fn a_long_look(way: Way) {
        let Pair { here, there } = way.pair().await;
        let mut inbox = inbox(&there, 256);
        let (sender, mut messages) = tokio::sync::mpsc::unbounded_channel();
        let handler = there.worker.active_messages(8).capacity(4000).on_message(move |message| {
            sender.send(message.keep()).expect("heard");
        }).expect("a callback");
        let (begun, waits) = std::sync::mpsc::channel();
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        // Looked at on another thread, for longer than the ring has cells for.
        let looks = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(inbox.recv_with(|message| {
                begun.send(()).expect("heard");
                ended.recv().expect("told");
                number(&message.data().expect("eager").to_vec())
            }))
        });
        here.endpoint.am_send(ID, "", numbered(77)).await.expect("sent");
        while waits.try_recv().is_err() {
            tokio::task::yield_now().await;
        }
        let sends = async {
            for index in 0..3000 {
                here.endpoint.am_send(8, "", numbered(index)).await.expect("sent");
            }
        };
        let receives = async {
            for index in 0..3000 {
                if index == 900 {
                    ends.send(()).expect("heard");
                }
                let message = messages.recv().await.expect("a message");
                assert_eq!(number(message.data().expect("eager")), index);
            }
        };
        tokio::join!(sends, receives);
        assert_eq!(looks.await.expect("no panic"), Some(77));
        drop(handler);
    }

    /// A callback may hold its own worker; dropping the guard lets both go.
    async fn callback_holds_its_worker(way: Way) {
        let Pair { here, there } = way.pair().await;
        let held = there.clone();
        let handler = there.worker.active_messages(ID).on_message(move |_| {
            let side: &Side = &held;
            side.worker.progress();
        }).expect("a callback");
        here.endpoint.am_send(ID, "", "x").await.expect("sent");
        drop(there);
        a_while().await;
        drop(handler);
        assert_eq!(here.endpoint.closed().await.kind(), ErrorKind::ClosedByPeer);
    }
}

scenarios! { everywhere:
    /// Dropped before it resolves, a look has taken no message.
    async fn a_look_is_cancel_safe(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 256);
        for index in 0..50 {
            let look = inbox.recv_with(|_| panic!("it is dropped"));
            assert!(look.now_or_never().is_none());
            pair.here.endpoint.am_send(ID, numbered(index), "").await.expect("sent");
            let seen = inbox.recv_with(|message| number(&message.header().to_vec())).await;
            assert_eq!(seen, Some(index));
        }
    }

    /// Messages are kept for as long as their receiver likes, and taken or released in any order; those that come later do not touch them.
    async fn kept(way: Way) {
        let pair = way.pair().await;
        let mut inbox = inbox(&pair.there, 64);
        let size = |index: usize| [0, 8, 30, 49, 5000, 8192, 60_000, LONG][index % 8];
        let send = |index: usize| pair.here.endpoint.am_send(ID, numbered(index), pattern(size(index), index)).post().expect("room");
        let sends: Vec<_> = (0..64).map(send).collect();
        let mut kept = Vec::new();
        for index in 0..64 {
            let message = inbox.recv().await.expect("a message");
            assert_eq!(number(message.header()), index);
            kept.push(message);
        }
        for index in 64..400 {
            let (sent, message) = tokio::join!(pair.here.endpoint.am_send(ID, numbered(index), pattern(index * 9, index)), inbox.recv());
            sent.expect("sent");
            same(&message.expect("a message").bytes().await.expect("bytes"), pattern(index * 9, index), index);
        }
        let is_rejected = |index: usize| index % 16 == 7;
        while !kept.is_empty() {
            let message = kept.swap_remove(kept.len() * 7 / 11);
            let index = number(message.header());
            match message.data() {
                Some(data) => same(data, pattern(size(index), index), index),
                None if is_rejected(index) => message.reject("after a long time"),
                None => same(&message.bytes().await.expect("bytes"), pattern(size(index), index), index),
            }
        }
        for (index, send) in sends.into_iter().enumerate() {
            if is_rejected(index) {
                assert_eq!(send.await.expect_err("rejected").kind(), ErrorKind::Rejected);
            } else {
                send.await.expect("sent");
            }
        }
    }
}
