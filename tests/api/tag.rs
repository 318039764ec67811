//! Tagged messages.

use std::time::Duration;

use futures::future::join_all;
use wharf::{Context, ErrorKind, Mask, MemoryType, Operation, Progress, Tag};

use crate::{
    fixture::{Pair, SIZES, Way, a_while, pattern, run, run_on_threads, same},
    support::{at_rest, until},
};

scenarios! { everywhere, and under TLS on threads:
    /// A future that is polled after its end, which is a mistake, does nothing again.
    async fn polled_twice(way: Way) {
        let pair = way.pair().await;
        let here = &pair.here.endpoint;
        let mut send = std::pin::pin!(here.tag_send(5, "once"));
        (&mut send).await.expect("sent");
        assert_eq!((&mut send).await.expect_err("over").kind(), ErrorKind::InvalidArgument);
        here.tag_send(5, "next").await.expect("sent");
        assert_eq!(pair.there.receive(5, 10).await, b"once");
        assert_eq!(pair.there.receive(5, 10).await, b"next");
    }

    /// What was polled and is posted then goes on, and is not done again.
    async fn posted_after_a_poll(way: Way) {
        let pair = way.pair().await;
        let (here, there) = (&pair.here.endpoint, &pair.there);
        let mut receive = there.worker.tag_recv(5, vec![0; 10]);
        assert!(futures::poll!(&mut receive).is_pending(), "nothing was sent");
        let receive = receive.post();
        // Matched by a receive alone: it waits.
        let long = pattern(100_000, 3);
        let mut send = here.tag_send(6, long).sync();
        assert!(futures::poll!(&mut send).is_pending(), "nobody receives it");
        let send = send.post().expect("it goes on");
        here.tag_send(5, "once").await.expect("sent");
        assert_eq!(receive.await.expect("a message").len, 4);
        same(&there.receive(6, 100_000).await, long, 100_000);
        send.await.expect("sent");
        here.tag_send(6, "next").await.expect("sent");
        assert_eq!(there.receive(6, 10).await, b"next");
        // One that is over is over.
        let mut over = here.tag_send(7, "once");
        (&mut over).await.expect("sent");
        let refused = over.post().expect_err("it was sent");
        assert_eq!(refused.error().kind(), ErrorKind::InvalidArgument);
        here.tag_send(7, "next").await.expect("sent");
        assert_eq!(there.receive(7, 10).await, b"once");
        assert_eq!(there.receive(7, 10).await, b"next");
    }

    /// The receive is there first.
    async fn expected(way: Way) {
        let pair = way.pair().await;
        for (index, size) in SIZES.into_iter().enumerate() {
            let (received, ()) = tokio::join!(
                pair.there.receive(index as u64, size),
                pair.here.send(index as u64, pattern(size, index)),
            );
            same(&received, pattern(size, index), size);
        }
    }

    /// Posted receives, in another order than the messages; buffers longer than the messages.
    async fn posted_out_of_order(way: Way) {
        let pair = way.pair().await;
        let mut receives = Vec::new();
        for (index, size) in SIZES.into_iter().enumerate().rev() {
            let receive = pair.there.worker.tag_recv(index as u64, vec![0; size + 9]).post();
            receives.push((index, size, receive));
        }
        let sends = pair.here.send_in_order(SIZES.into_iter().enumerate().map(|(index, size)| (index as u64, pattern(size, index))));
        let receives = join_all(receives.into_iter().map(|(index, size, receive)| async move {
            let received = receive.await.expect("a message");
            assert_eq!(received.tag, Tag(index as u64));
            assert_eq!(received.buffer.len(), size + 9);
            same(&received.buffer[..received.len], pattern(size, index), size);
        }));
        tokio::join!(sends, receives);
    }

    /// The messages are there first, and are received in another order.
    async fn unexpected(way: Way) {
        let pair = way.pair().await;
        let sends = pair.here.send_in_order(SIZES.into_iter().enumerate().map(|(index, size)| (index as u64, pattern(size, index))));
        let receives = async {
            // The last was sent last, and messages keep their order: all are here when it is.
            let last = SIZES.len() as u64 - 1;
            until("the last", || pair.there.worker.tag_probe(last, Mask::ALL).is_some()).await;
            for (index, size) in SIZES.into_iter().enumerate().rev() {
                let info = pair.there.worker.tag_probe(index as u64, Mask::ALL).expect("it is here");
                assert_eq!((info.len, info.tag, info.from), (size, Tag(index as u64), pair.there.endpoint.id()));
                same(&pair.there.receive(index as u64, size + 3).await, pattern(size, index), size);
            }
        };
        tokio::join!(sends, receives);
    }

    /// Memory that wharf allocated, at both ends, used again and again.
    async fn own_memory(way: Way) {
        let pair = way.pair().await;
        for size in [1, 4097, 64 << 10, (256 << 10) + 1, (8 << 20) + 5] {
            let mut source = pair.here.context.allocate(size).await.expect("memory");
            source.copy_from_slice(pattern(size, 5));
            let source = source.freeze();
            let mut target = pair.there.context.allocate(size + 1).await.expect("memory");
            for _ in 0..4 {
                target.fill(0);
                let (received, ()) = tokio::join!(
                    pair.there.worker.tag_recv(5, target),
                    pair.here.send(5, source.clone()),
                );
                let received = received.expect("a message");
                target = received.buffer;
                same(&target[..received.len], pattern(size, 5), size);
            }
        }
    }

    /// A receive that takes any tag gets the messages in the order they were sent, whatever their sizes.
    async fn wildcards_keep_order(way: Way) {
        let pair = way.pair().await;
        let sizes: Vec<usize> = (0..300).map(|index| [3, 70_000, 48, 0, 5000, 49, 140_000, 9000][index % 8] + index % 3).collect();
        let messages = sizes.iter().enumerate().map(|(index, size)| ((index as u64) << 8 | 7, pattern(*size, index)));
        let sends = pair.here.send_in_order(messages);
        let receives = async {
            for (index, size) in sizes.iter().enumerate() {
                // Half of them by another mask that takes all of these.
                let (tag, mask) = if index % 2 == 0 { (0, Mask::NONE) } else { (7, Mask(0xff)) };
                let received = pair.there.worker.tag_recv(tag, vec![0; 150_000]).mask(mask).await.expect("a message");
                assert_eq!(received.tag, Tag((index as u64) << 8 | 7), "order");
                same(&received.buffer[..received.len], pattern(*size, index), index);
            }
        };
        tokio::join!(sends, receives);
    }

    /// Posted receives match in the order they were posted, wildcards among them.
    async fn posted_keep_order(way: Way) {
        let pair = way.pair().await;
        let post = |tag: u64, mask| pair.there.worker.tag_recv(tag, vec![0; 200_000]).mask(mask).post();
        let first = post(0, Mask::NONE);
        let second = post(4, Mask::ALL);
        let third = post(0, Mask::NONE);
        let fourth = post(4, Mask(4));
        let sends = pair.here.send_in_order([
            (4, pattern(10, 0)),
            (5, pattern(150_000, 1)),
            (4, pattern(150_000, 2)),
            (12, pattern(20, 3)),
        ]);
        let ((first, second, third, fourth), ()) =
            tokio::join!(async { tokio::join!(first, second, third, fourth) }, sends);
        let expected = [(first, 4, 10, 0), (third, 5, 150_000, 1), (second, 4, 150_000, 2), (fourth, 12, 20, 3)];
        for (received, tag, size, seed) in expected {
            let received = received.expect("a message");
            assert_eq!(received.tag, Tag(tag));
            same(&received.buffer[..received.len], pattern(size, seed), tag);
        }
    }

    /// Posted receives whose messages are here when they are polled, so often that their worker's lock has an owner: of one tag in the order in
    /// which they were posted, beside such that take any, and awaited in any order. One that was dropped takes none.
    async fn posted_round_after_round(way: Way) {
        let pair = way.pair().await;
        let worker = &pair.there.worker;
        for round in 0..120 {
            let post = |tag: u64, mask| worker.tag_recv(tag, vec![0; 60]).mask(mask).post();
            drop(post(1, Mask::ALL));
            let last = match round % 3 {
                0 => (0, Mask::NONE),
                1 => (1, Mask(0xff)),
                _ => (1, Mask::ALL),
            };
            let mut receives = vec![post(1, Mask::ALL), post(2, Mask::ALL), post(1, Mask::ALL), post(last.0, last.1)];
            // Longer than a cell now and then, and never longer than the buffer.
            let length = |index: usize| (round + 17 * index) % 61;
            for (index, tag) in [1_u64, 2, 1, 1].into_iter().enumerate() {
                pair.here.endpoint.tag_send(tag, pattern(length(index), index)).await.expect("sent");
            }
            while let Some(index) = receives.len().checked_sub(1) {
                let index = if round % 2 == 0 { 0 } else { index };
                let received = receives.remove(index).await.expect("a message");
                let index = if round % 2 == 0 { 3 - receives.len() } else { index };
                assert_eq!((received.tag, received.from), (Tag([1, 2, 1, 1][index]), pair.there.endpoint.id()));
                assert_eq!(received.buffer.len(), 60);
                same(&received.buffer[..received.len], pattern(length(index), index), round);
            }
        }
    }

    /// A synchronous send ends when its message was matched, not before.
    async fn synchronous(way: Way) {
        let pair = way.pair().await;
        for size in [0, 5, 48, 49, 5000, 9000, 40_000, 200_000, (1 << 20) + 3] {
            let mut send = pair.here.endpoint.tag_send(1, pattern(size, 9)).sync().post().expect("room");
            tokio::select! {
                biased;
                result = &mut send => panic!("{size} bytes: ended unmatched with {result:?}"),
                () = a_while() => {}
            }
            assert_eq!(pair.there.worker.tag_probe(1, Mask::ALL).map(|info| info.len), Some(size));
            let (received, result) = tokio::join!(pair.there.receive(1, size), send);
            result.expect("sent");
            same(&received, pattern(size, 9), size);

            let receive = pair.there.worker.tag_recv(1, vec![0; size]).post();
            pair.here.endpoint.tag_send(1, pattern(size, 10)).sync().await.expect("matched");
            same(&receive.await.expect("a message").buffer, pattern(size, 10), size);
        }
    }

    /// A receive that is too short fails and gives its buffer back; the next message is whole.
    async fn truncation(way: Way) {
        let pair = way.pair().await;
        for size in [1, 8, 49, 5000, 9000, 50_000, 200_000, (1 << 20) + 3] {
            for expected in [true, false] {
                let sends = pair.here.send_in_order([(3, pattern(size, 1)), (3, pattern(size, 2))]);
                let receives = async {
                    if !expected {
                        while pair.there.worker.tag_probe(3, Mask::ALL).is_none() {
                            tokio::task::yield_now().await;
                        }
                    }
                    let short = pair.there.worker.tag_recv(3, vec![0; size - 1]);
                    let (error, buffer) = if size % 2 == 0 { short.post().await } else { short.await }.expect_err("too short").into_parts();
                    assert_eq!(error.kind(), ErrorKind::Truncated, "{size}: {error}");
                    assert_eq!(buffer.map(|buffer| buffer.len()), Some(size - 1), "{size}");
                    same(&pair.there.receive(3, size).await, pattern(size, 2), size);
                };
                tokio::join!(sends, receives);
            }
        }
    }

    /// A claimed message that is dropped goes back to its place; one that is received does not stay.
    async fn matched(way: Way) {
        let pair = way.pair().await;
        for size in [0, 20, 5000, 9000, 100_000, 300_000] {
            let sends = pair.here.send_in_order([(1, pattern(size, 1)), (2, pattern(size, 2)), (1, pattern(size, 3))]);
            let receives = async {
                let worker = &pair.there.worker;
                let first = worker.tag_matched(1).await.expect("a message");
                assert_eq!((first.info().len, first.info().tag), (size, Tag(1)));
                assert_eq!(first.info().from, pair.there.endpoint.id());
                drop(first);
                let first = worker.tag_matched(0).mask(Mask::NONE).await.expect("a message");
                assert_eq!(first.info().tag, Tag(1), "back in front of the second");
                let second = worker.tag_matched(0).mask(Mask::NONE).await.expect("a message");
                assert_eq!(second.info().tag, Tag(2));
                drop(second);
                let received = first.recv(vec![0; size]).await.expect("a message");
                same(&received.buffer[..received.len], pattern(size, 1), size);
                while worker.tag_probe(1, Mask::ALL).is_none() {
                    tokio::task::yield_now().await;
                }
                let third = worker.tag_take(1, Mask::ALL).expect("it is here");
                assert!(worker.tag_take(1, Mask::ALL).is_none());
                drop(third);
                same(&pair.there.receive(2, size).await, pattern(size, 2), size);
                same(&pair.there.receive(1, size).await, pattern(size, 3), size);
                assert!(worker.tag_probe(0, Mask::NONE).is_none());
            };
            tokio::join!(sends, receives);
        }
    }

    /// A claim that waits for its message.
    async fn matched_before_it_came(way: Way) {
        let pair = way.pair().await;
        for size in [0, 20, 5000, 9000, 100_000, 300_000] {
            let claim = async {
                let matched = pair.there.worker.tag_matched(6).await.expect("a message");
                assert_eq!(matched.info().len, size);
                matched
            };
            let (matched, ()) = tokio::join!(
                async { claim.await.recv(vec![0; size]).await },
                async {
                    a_while().await;
                    pair.here.send(6, pattern(size, 6)).await;
                },
            );
            same(&matched.expect("a message").buffer, pattern(size, 6), size);
        }
    }

    /// More unexpected messages than the eager window holds; all arrive, in order.
    async fn beyond_the_window(way: Way) {
        let pair = way.pair().await;
        const COUNT: usize = 10_000;
        let sends = pair.here.send_in_order((0..COUNT).map(|index| (8, pattern(100 + index % 60, index))));
        let receives = async {
            // Nothing is received until as much as may has arrived.
            a_while().await;
            for index in 0..COUNT {
                same(&pair.there.receive(8, 160).await, pattern(100 + index % 60, index), index);
            }
        };
        tokio::join!(sends, receives);
    }

    /// Both ends flood each other, with more than rings and windows hold, and nothing but events wakes them.
    async fn flood_both_ways(way: Way) {
        let context = way.builder().progress(Progress::EventDriven).build().expect("a context");
        let pair = Pair::of(&context, way).await;
        const COUNT: usize = 1500;
        let sizes = [0, 30, 4000, 60, 20_000, 49, 90_000, 1];
        let flood = |from: &crate::fixture::Side, tag: u64| {
            let from = from.clone();
            async move {
                from.send_in_order((0..COUNT).map(|index| (tag, pattern(sizes[index % sizes.len()], index)))).await;
            }
        };
        let drain = |to: &crate::fixture::Side, tag: u64| {
            let to = to.clone();
            async move {
                for index in 0..COUNT {
                    same(&to.receive(tag, 90_000).await, pattern(sizes[index % sizes.len()], index), index);
                }
            }
        };
        let all = [
            tokio::spawn(flood(&pair.here, 1)),
            tokio::spawn(drain(&pair.there, 1)),
            tokio::spawn(flood(&pair.there, 2)),
            tokio::spawn(drain(&pair.here, 2)),
        ];
        for task in all {
            task.await.expect("to its end");
        }
    }

    /// Messages go to and fro under every policy.
    async fn policies(way: Way) {
        for progress in [
            Progress::Adaptive,
            Progress::Spin(Duration::from_micros(30)),
            Progress::Spin(Duration::ZERO),
            Progress::Busy,
            Progress::EventDriven,
            Progress::Thread,
        ] {
            let context: Context = way.builder().progress(progress).build().expect("a context");
            let pair = Pair::of(&context, way).await;
            let echo = pair.there.clone();
            let echo = tokio::spawn(async move {
                for _ in 0..40 {
                    let bytes = echo.receive(1, 300_000).await;
                    echo.send(2, bytes).await;
                }
            });
            for round in 0..40 {
                let size = [8, 600, 9000, 70_000, 300_000][round % 5];
                let ((), back) = tokio::join!(
                    pair.here.send(1, pattern(size, round)),
                    pair.here.receive(2, 300_000),
                );
                same(&back, pattern(size, round), format_args!("{progress:?}, {size}"));
                if round % 8 == 7 {
                    // Everybody sleeps, who ever does.
                    let all = || [&pair.here, &pair.there].map(|side| side.worker.metrics());
                    at_rest("sleep", Duration::from_millis(2), all).await;
                }
            }
            echo.await.expect("to its end");
        }
    }

    /// The rendezvous threshold that was asked for: every size arrives on either side of it.
    async fn threshold_of_ones_own(way: Way) {
        for threshold in [0, 1, 100, 6000, usize::MAX] {
            let context = way.builder().rendezvous_threshold(threshold).build().expect("a context");
            let pair = Pair::of(&context, way).await;
            for size in [0, 1, 48, 99, 100, 101, 5999, 6000, 6001, 100_000] {
                let (received, ()) = tokio::join!(pair.there.receive(1, size), pair.here.send(1, pattern(size, 2)));
                same(&received, pattern(size, 2), size);
            }
        }
    }

    /// Answers go to whom `from` names.
    async fn answers(way: Way) {
        let pair = way.pair().await;
        pair.here.send(1, &b"question"[..]).await;
        let question = pair.there.worker.tag_recv(1, vec![0; 20]).await.expect("a message");
        let back = pair.there.worker.endpoint(question.from).expect("it is open");
        assert_eq!(back.id(), pair.there.endpoint.id());
        back.tag_send_copy(2, b"answer").await.expect("sent");
        drop(back);
        assert_eq!(pair.here.receive(2, 10).await, b"answer");
        // The clone that was dropped was not the last: the connection stands.
        pair.here.send(3, &b"again"[..]).await;
        assert_eq!(pair.there.receive(3, 10).await, b"again");
    }
}

scenarios! { everywhere:
    /// A synchronous send that met a receive without room for it was matched, and says so.
    async fn synchronous_and_truncated(way: Way) {
        let pair = way.pair().await;
        for size in [1, 49, 5000, 50_000, 200_000, (1 << 20) + 3] {
            for expected in [true, false] {
                let post = || pair.there.worker.tag_recv(1, vec![0; size - 1]).post();
                let receive = expected.then(post);
                let send = pair.here.endpoint.tag_send(1, pattern(size, 1)).sync().post().expect("room");
                while !expected && pair.there.worker.tag_probe(1, Mask::ALL).is_none() {
                    tokio::task::yield_now().await;
                }
                let (sent, received) = tokio::join!(send, receive.unwrap_or_else(post));
                sent.expect("matched");
                let (error, buffer) = received.expect_err("too short").into_parts();
                assert_eq!((error.kind(), buffer.map(|buffer| buffer.len())), (ErrorKind::Truncated, Some(size - 1)));
                assert!(pair.there.worker.tag_probe(1, Mask::ALL).is_none(), "it is gone");
            }
        }
    }

    /// From and to memory that begins anywhere.
    async fn odd_places(way: Way) {
        let pair = way.pair().await;
        for size in [1, 48, 5000, 9000, 200_000, (1 << 20) + 3] {
            for shift in [1, 3, 7, 13] {
                let odd = |length: usize| {
                    let mut memory = vec![0_u64; (shift + length).div_ceil(8)];
                    let address = memory.as_mut_ptr().cast::<u8>().wrapping_add(shift);
                    #[allow(unsafe_code)]
                    // SAFETY: the vector owns so many bytes behind the shift, rides along, and is used by nobody else.
                    unsafe {
                        wharf::BufferMut::from_raw(address, length, memory)
                    }
                };
                let mut source = odd(size);
                source.as_mut_slice().expect("host memory").copy_from_slice(pattern(size, shift));
                let (received, ()) = tokio::join!(
                    pair.there.worker.tag_recv(1, odd(size + 1)),
                    pair.here.send(1, source.freeze()),
                );
                let received = received.expect("a message");
                same(&received.buffer.as_slice().expect("host memory")[..size], pattern(size, shift), size);
            }
        }
    }

    /// Many tasks send over one endpoint and receive at one worker; each tag keeps its order.
    async fn by_many_tasks(way: Way) {
        let pair = way.pair().await;
        let size = |index: usize| [8, 5000, 0, 49, 70_000, 9000][index % 6];
        let mut tasks = Vec::new();
        for task in 0..16_usize {
            let (from, to) = if task % 2 == 0 { (&pair.here, &pair.there) } else { (&pair.there, &pair.here) };
            let (from, to) = (from.clone(), to.clone());
            tasks.push(tokio::spawn(async move {
                for index in 0..60 {
                    from.send(task as u64, pattern(size(index + task), 100 * task + index)).await;
                }
            }));
            tasks.push(tokio::spawn(async move {
                for index in 0..60 {
                    same(&to.receive(task as u64, 70_000).await, pattern(size(index + task), 100 * task + index), index);
                }
            }));
        }
        for task in tasks {
            task.await.expect("to its end");
        }
    }
}

/// The fd of a worker, for a loop that is not Tokio's: quiet while nothing happens, readable when a message is here for `progress`.
/// Of several long messages under way at once the parts take turns, so that all end at once: what their ways take is measured all the same.
#[test]
fn ways_of_messages_that_end_together_are_measured() {
    const LENGTH: usize = 1 << 20;
    const ROUNDS: usize = 60;
    run(async {
        let pair = Way::Shm.pair().await;
        let sends = async {
            for _ in 0..ROUNDS {
                let send = |tag| pair.here.endpoint.tag_send(tag, pattern(LENGTH, 0)).post();
                let sends: Vec<_> = (0..4_u64).map(|tag| send(tag).expect("room")).collect();
                for sent in join_all(sends).await {
                    sent.expect("sent");
                }
            }
        };
        let receives = async {
            let mut buffers = vec![vec![0; LENGTH]; 4];
            for _ in 0..ROUNDS {
                let post = |(tag, buffer)| pair.there.worker.tag_recv(tag, buffer).post();
                let receives: Vec<_> = (0..4_u64).zip(buffers.drain(..)).map(post).collect();
                for received in join_all(receives).await {
                    buffers.push(received.expect("a message").buffer);
                }
            }
        };
        tokio::join!(sends, receives);
        let host = MemoryType::Host;
        let said = pair
            .there
            .endpoint
            .explain(Operation::TagSend, host, host, LENGTH);
        let said = format!("{said:?}");
        assert!(said.contains("measured: "), "{said}");
    });
}

#[test]
fn worker_fd() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    for way in [Way::Shm, Way::ShmWithoutCma, Way::ShmWithoutPidfd, Way::Tcp] {
        run(async move {
            let context = way.builder().progress(Progress::EventDriven).build();
            let pair = Pair::of(&context.expect("a context"), way).await;
            let is_readable = |timeout: PollTimeout| {
                let mut fds = [PollFd::new(pair.there.worker.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, timeout).expect("polled") > 0
            };
            for round in 0..20 {
                a_while().await;
                // What is left of the round before ends; a fd that is readable for ever is stopped by the watchdog.
                while is_readable(PollTimeout::ZERO) {
                    a_while().await;
                }
                // The worker's own task has gone to sleep.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(!is_readable(PollTimeout::ZERO), "{way:?}: nothing happened");
                // From here on nothing of the runtime's runs until the message is found.
                let size = [8, 500, 5000][round % 3];
                let mut send = std::pin::pin!(pair.here.endpoint.tag_send(1, pattern(size, round)));
                let sent = futures::poll!(send.as_mut());
                while pair.there.worker.tag_probe(1, Mask::ALL).is_none() {
                    assert!(
                        is_readable(PollTimeout::from(60_000_u16)),
                        "{way:?}: slept through a message"
                    );
                    pair.there.worker.progress();
                }
                same(
                    &pair.there.receive(1, size).await,
                    pattern(size, round),
                    size,
                );
                match sent {
                    std::task::Poll::Ready(sent) => sent.expect("sent"),
                    std::task::Poll::Pending => send.await.expect("sent"),
                }
            }
        });
    }
}

/// Many that could leave at once, of a length of which a sender tries both ways: what comes is what was sent, in order, and those that no receive waits for
/// need none, whichever way they go.
async fn many_of_one_length(way: Way) {
    const LENGTH: usize = 40 << 10;
    const COUNT: usize = 800;
    let pair = way.pair().await;
    let sent = async {
        let mut posted = std::collections::VecDeque::new();
        for number in 0..COUNT {
            if posted.len() == 16 {
                let first: wharf::Op<()> = posted.pop_front().expect("posted");
                first.await.expect("sent");
            }
            let send = pair
                .here
                .endpoint
                .tag_send(number as u64, pattern(LENGTH, number % 50));
            posted.push_back(send.post().expect("posted"));
        }
        join_all(posted)
            .await
            .into_iter()
            .for_each(|sent| sent.expect("sent"));
    };
    let received = async {
        let mut posted = std::collections::VecDeque::new();
        for number in 0..COUNT + 16 {
            if number < COUNT {
                posted.push_back(
                    pair.there
                        .worker
                        .tag_recv(number as u64, vec![0; LENGTH])
                        .post(),
                );
            }
            // Some are late.
            let late = if number % 200 > 180 { 0 } else { 16 };
            while posted.len() > late {
                let expected = number + 1 - posted.len();
                let first = posted
                    .pop_front()
                    .expect("posted")
                    .await
                    .expect("a message");
                same(
                    &first.buffer,
                    pattern(LENGTH, first.tag.0 as usize % 50),
                    format!("{expected}: {}", first.tag),
                );
            }
        }
        for first in posted {
            let first = first.await.expect("a message");
            same(
                &first.buffer,
                pattern(LENGTH, first.tag.0 as usize % 50),
                first.tag,
            );
        }
    };
    tokio::join!(sent, received);
    let copies = pair.here.worker.metrics().cma.count + pair.there.worker.metrics().cma.count;
    assert_eq!(
        copies > 0,
        way.transports().contains(&"cma"),
        "{copies} copies by the kernel"
    );
    // Without a receive, in the middle of a trial or not.
    for round in 0..100 {
        for number in 0..5 {
            pair.here
                .endpoint
                .tag_send(number, pattern(LENGTH, round))
                .await
                .expect("sent");
        }
        for number in (0..5).rev() {
            let received = pair.there.receive(number, LENGTH).await;
            same(
                &received,
                pattern(LENGTH, round),
                format!("{round}, {number}"),
            );
        }
    }
}

#[test]
fn many_of_one_length_over_shm() {
    run(many_of_one_length(Way::Shm));
}

#[test]
fn many_of_one_length_over_shm_on_threads() {
    run_on_threads(many_of_one_length(Way::Shm));
}

#[test]
fn many_of_one_length_over_shm_without_cma() {
    run(many_of_one_length(Way::ShmWithoutCma));
}
