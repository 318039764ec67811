//! Every verb, with device memory at either end or both, over every path.

use std::{future::Future, time::Duration};

use wharf::{
    Access, BufferList, BufferListMut, BufferMut, ErrorKind, MemoryType, Progress, Region,
    RemoteRegion, Tag,
};

use crate::{
    common::{DEVICE, Ends, OTHER, SIZES, bytes, context_with, equal, filled},
    fixture::{Pair, Side, Way, pattern, run, run_on_threads},
    support::{
        accelerator::{FRAGMENT, FakeAccelerator},
        at_rest,
    },
};

const BOTH: Access = Access::READ.union(Access::WRITE);

/// Types of the two ends, a device's at one of them at least.
const PAIRS: [(MemoryType, MemoryType); 4] = [
    (MemoryType::Host, DEVICE),
    (DEVICE, MemoryType::Host),
    (DEVICE, OTHER),
    (MemoryType::HostPinned, DEVICE),
];

/// Memory of `there`, exposed, and as `here` sees it.
async fn exposed(ends: &Ends, buffer: BufferMut) -> (Region, RemoteRegion) {
    let region = ends
        .there
        .context
        .expose(buffer, BOTH)
        .await
        .expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    assert_eq!(descriptor.memory_type(), region.memory_type());
    let descriptor = wharf::Descriptor::from_bytes(&descriptor.to_bytes()).expect("unaltered");
    let remote = ends.here.endpoint.import(&descriptor).expect("the peer's");
    (region, remote)
}

async fn memory(side: &Side, memory_type: MemoryType, bytes: &[u8]) -> BufferMut {
    filled(&side.worker, &side.context, memory_type, bytes).await
}

async fn content(side: &Side, buffer: BufferMut) -> Vec<u8> {
    bytes(&side.worker, buffer.freeze()).await
}

scenarios! {
    everywhere:

    async fn tagged(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let what = format!("{size} bytes {from} to {to}");
                let wanted = pattern(size, seed);
                let source = memory(&ends.here, from, wanted).await.freeze();
                for early in [true, false] {
                    let target = memory(&ends.there, to, &vec![0x33; size + 5]).await;
                    let receive = || ends.there.worker.tag_recv(Tag(7), target);
                    let received = if early {
                        let receive = receive().post();
                        ends.here.endpoint.tag_send(Tag(7), source.clone()).await.expect("sent");
                        receive.await.expect("received")
                    } else {
                        let send = ends.here.endpoint.tag_send(Tag(7), source.clone()).post().expect("room");
                        ends.arrives(7).await;
                        let received = receive().await.expect("received");
                        send.await.expect("sent");
                        received
                    };
                    assert_eq!((received.len, received.tag), (size, Tag(7)));
                    let found = content(&ends.there, received.buffer).await;
                    equal(&found[..size], wanted, &what);
                    assert_eq!(found[size..], [0x33; 5], "{what}");
                }
            }
        }
        ends.end().await;
    }

    async fn in_order_with_short_ones(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            let mut sends = Vec::new();
            for seed in 0..30 {
                let size = [3, 3 * FRAGMENT / 2, 0, 9000][seed % 4];
                let wanted = pattern(size, seed);
                let on_device = seed % 3 > 0 && size > 0;
                let source = match on_device {
                    true => memory(&ends.here, from, wanted).await.freeze(),
                    false => wanted.to_vec().into(),
                };
                sends.push(ends.here.endpoint.tag_send(Tag(1), source).post().expect("room"));
            }
            for seed in 0..30 {
                let size = [3, 3 * FRAGMENT / 2, 0, 9000][seed % 4];
                let target = memory(&ends.there, to, &vec![0; 2 * FRAGMENT]).await;
                let received = ends.there.worker.tag_recv(Tag(1), target).await.expect("received");
                assert_eq!(received.len, size, "message {seed}");
                let found = content(&ends.there, received.buffer).await;
                equal(&found[..size], pattern(size, seed), seed);
            }
            for send in sends {
                send.await.expect("sent");
            }
        }
        ends.end().await;
    }

    async fn synchronous_and_truncated(way: Way) {
        let ends = Ends::new(way).await;
        for size in [100, 3 * FRAGMENT] {
            let source = memory(&ends.here, DEVICE, pattern(size, 1)).await.freeze();
            let target = memory(&ends.there, OTHER, &vec![0; size]).await;
            let both = tokio::join!(
                ends.here.endpoint.tag_send(Tag(1), source.clone()).sync(),
                ends.there.worker.tag_recv(Tag(1), target),
            );
            both.0.expect("matched");
            let target = both.1.expect("received").buffer;
            for host in [true, false] {
                let source = if host { pattern(size, 1).to_vec().into() } else { source.clone() };
                let send = ends.here.endpoint.tag_send(Tag(1), source).post().expect("room");
                let short = memory(&ends.there, DEVICE, &[0; 99]).await;
                let error = ends.there.worker.tag_recv(Tag(1), short).await.expect_err("too short");
                assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
                assert_eq!(error.into_parts().1.expect("back").len(), 99);
                send.await.expect("over");
            }
            equal(&content(&ends.there, target).await, pattern(size, 1), size);
        }
        ends.end().await;
    }

    async fn claimed(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            for size in [40, 8000, 3 * FRAGMENT] {
                let source = memory(&ends.here, from, pattern(size, 9)).await.freeze();
                let send = ends.here.endpoint.tag_send(Tag(4), source).post().expect("room");
                let matched = ends.there.worker.tag_matched(Tag(4)).await.expect("here");
                assert_eq!(matched.info().len, size);
                let target = memory(&ends.there, to, &vec![0; size]).await;
                let received = matched.recv(target).await.expect("received");
                send.await.expect("sent");
                equal(&content(&ends.there, received.buffer).await, pattern(size, 9), size);
            }
        }
        ends.end().await;
    }

    async fn put(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let what = format!("{size} bytes {from} to {to}");
                let source = memory(&ends.here, from, pattern(size, seed)).await.freeze();
                let target = memory(&ends.there, to, &vec![0x44; size + 2]).await;
                let (region, remote) = exposed(&ends, target).await;
                ends.here.endpoint.put(source.clone(), remote.slice(1..)).await.expect("put");
                let found = content(&ends.there, region.unexpose().await).await;
                equal(&found[1..=size], pattern(size, seed), &what);
                assert_eq!((found[0], found[size + 1]), (0x44, 0x44), "{what}");
                // When the source may be reused, the bytes are on their way.
                let target = memory(&ends.there, to, &vec![0x44; size]).await;
                let (region, remote) = exposed(&ends, target).await;
                ends.here.endpoint.put(source, remote.clone()).local().await.expect("put");
                ends.here.endpoint.flush().await.expect("flushed");
                equal(&content(&ends.there, region.unexpose().await).await, pattern(size, seed), &what);
                let error = ends.here.endpoint.put(vec![0; size], remote).await.expect_err("gone");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
            }
        }
        ends.end().await;
    }

    async fn get(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let what = format!("{size} bytes {from} to {to}");
                let target = memory(&ends.here, to, &vec![0; size]).await;
                let source = memory(&ends.there, from, pattern(size + 2, seed)).await;
                let (region, remote) = exposed(&ends, source).await;
                let got = ends.here.endpoint.get(remote.slice(1..=size), target).await.expect("got");
                equal(&content(&ends.here, got).await, &pattern(size + 2, seed)[1..=size], &what);
                let source = region.unexpose().await;
                equal(&content(&ends.there, source).await, pattern(size + 2, seed), &what);
                let target = memory(&ends.here, to, &vec![0; size]).await;
                let error = ends.here.endpoint.get(remote.slice(1..=size), target).await.expect_err("gone");
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{error}");
                assert_eq!(error.into_parts().1.expect("back").memory_type(), to);
            }
        }
        ends.end().await;
    }

    async fn signalled(way: Way) {
        let ends = Ends::new(way).await;
        for (from, to) in PAIRS {
            for size in [10, 3 * FRAGMENT] {
                let counter = ends.there.worker.counter().await.expect("a counter");
                let descriptor = counter.descriptor().expect("a descriptor");
                let remote_counter = ends.here.endpoint.import(&descriptor).expect("the peer's");
                let target = memory(&ends.there, to, &vec![0; size]).await;
                let (region, remote) = exposed(&ends, target).await;
                let source = memory(&ends.here, from, pattern(size, 3)).await.freeze();
                let put = ends.here.endpoint.put(source, remote).signal_by(&remote_counter, 3);
                let (put, seen) = tokio::join!(put, counter.wait(3));
                put.expect("put");
                seen.expect("raised");
                equal(&content(&ends.there, region.unexpose().await).await, pattern(size, 3), size);
            }
        }
        ends.end().await;
    }

    async fn active_messages(way: Way) {
        let ends = Ends::new(way).await;
        let mut inbox = ends.there.worker.active_messages(3).open().expect("an inbox");
        for (from, to) in PAIRS {
            for (seed, size) in SIZES.into_iter().enumerate() {
                let what = format!("{size} bytes {from} to {to}");
                let source = memory(&ends.here, from, pattern(size, seed)).await.freeze();
                let send = ends.here.endpoint.am_send(3, "the header", source).post().expect("room");
                let message = inbox.recv().await.expect("a message");
                assert_eq!((message.header(), message.len()), (&b"the header"[..], size), "{what}");
                let target = memory(&ends.there, to, &vec![0x55; size + 1]).await;
                let received = message.receive(target).await.expect("received");
                assert_eq!(received.len, size);
                let found = content(&ends.there, received.buffer).await;
                equal(&found[..size], pattern(size, seed), &what);
                assert_eq!(found[size], 0x55, "{what}");
                send.await.expect("sent");
            }
        }
        let source = memory(&ends.here, DEVICE, &[1; 9000]).await.freeze();
        let send = ends.here.endpoint.am_send(3, "", source).post().expect("room");
        inbox.recv().await.expect("a message").reject("no room");
        assert_eq!(send.await.expect_err("rejected").kind(), ErrorKind::Rejected);
        ends.end().await;
    }

    async fn lists(way: Way) {
        let ends = Ends::new(way).await;
        let wanted = pattern(4 * FRAGMENT, 2);
        let (head, rest) = wanted.split_at(1000);
        let (middle, tail) = rest.split_at(2 * FRAGMENT + 7);
        let source = BufferList::from([
            head.to_vec().into(),
            memory(&ends.here, DEVICE, middle).await.freeze(),
            memory(&ends.here, OTHER, &tail[..5]).await.freeze(),
            tail[5..].to_vec().into(),
        ]);
        let target = async || {
            BufferListMut::from([
                memory(&ends.there, OTHER, &vec![0; FRAGMENT]).await,
                vec![0; FRAGMENT / 2].into(),
                memory(&ends.there, DEVICE, &vec![0; 3 * FRAGMENT]).await,
            ])
        };
        let received = tokio::join!(
            ends.here.endpoint.tag_send(Tag(1), source.clone()),
            ends.there.worker.tag_recv(Tag(1), target().await),
        );
        received.0.expect("sent");
        let received = BufferMut::from(received.1.expect("received").buffer);
        equal(&content(&ends.there, received).await[..4 * FRAGMENT], wanted, "list to list");
        let received = tokio::join!(
            ends.here.endpoint.tag_send(Tag(1), source.clone()),
            ends.there.worker.tag_recv(Tag(1), vec![0; 4 * FRAGMENT]),
        );
        equal(&received.1.expect("received").buffer, wanted, "list to host");
        for to in [MemoryType::Host, DEVICE] {
            let (region, remote) = exposed(&ends, memory(&ends.there, to, &vec![0; 5 * FRAGMENT]).await).await;
            ends.here.endpoint.put(source.clone(), remote.slice(9..)).await.expect("put");
            let host = BufferList::from([wanted[..8].to_vec(), wanted[8..20].to_vec()]);
            let piece = 9 + 4 * FRAGMENT;
            ends.here.endpoint.put(host, remote.slice(piece..)).await.expect("put");
            let got = ends.here.endpoint.get(remote.slice(9..piece + 20), target_here(&ends).await).await.expect("got");
            let got = content(&ends.here, got.into()).await;
            equal(&got[..4 * FRAGMENT], wanted, "list to region");
            equal(&got[4 * FRAGMENT..], &wanted[..20], "host list to region");
            drop(region);
        }
        drop(source);
        ends.end().await;
    }

    async fn atomics_are_refused(way: Way) {
        let ends = Ends::new(way).await;
        let (region, remote) = exposed(&ends, memory(&ends.there, DEVICE, &[0; 64]).await).await;
        let error = remote.fetch_add(0, 1_u64).await.expect_err("no way");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = ends.here.endpoint.put(vec![1; 8], remote.clone()).signal(&remote).await.expect_err("no way");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        ends.here.endpoint.put(vec![1; 8], remote).await.expect("as before");
        drop(region);
        ends.end().await;
    }

    async fn nothing(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, &[1; 9]).await.freeze().slice(3..3);
        let (region, remote) = exposed(&ends, memory(&ends.there, OTHER, &[2; 9]).await).await;
        ends.here.endpoint.put(source.clone(), remote.slice(4..)).await.expect("put");
        ends.here.endpoint.put("", remote.slice(4..)).await.expect("put");
        assert_eq!(ends.here.endpoint.get(remote.slice(2..2), vec![]).await.expect("got"), [0; 0]);
        for target in [memory(&ends.there, DEVICE, &[0; 3]).await, vec![0; 3].into()] {
            let both = tokio::join!(
                ends.here.endpoint.tag_send(Tag(1), source.clone()),
                ends.there.worker.tag_recv(Tag(1), target),
            );
            both.0.expect("sent");
            assert_eq!(both.1.expect("received").len, 0);
        }
        assert_eq!(content(&ends.there, region.unexpose().await).await, [2; 9]);
        drop(source);
        ends.end().await;
    }

    async fn sixteen_megabytes(way: Way) {
        let ends = Ends::new(way).await;
        let wanted = [pattern(8 << 20, 1), pattern(8 << 20, 2)].concat();
        for (from, to) in [(DEVICE, OTHER), (MemoryType::Host, DEVICE), (DEVICE, MemoryType::Host)] {
            let source = memory(&ends.here, from, &wanted).await.freeze();
            let target = memory(&ends.there, to, &vec![0; wanted.len()]).await;
            let both = tokio::join!(
                ends.here.endpoint.tag_send(Tag(1), source.clone()),
                ends.there.worker.tag_recv(Tag(1), target),
            );
            both.0.expect("sent");
            let target = both.1.expect("received").buffer;
            let (region, remote) = exposed(&ends, target).await;
            let back = memory(&ends.here, from, &vec![0; wanted.len()]).await;
            let back = ends.here.endpoint.get(remote.clone(), back).await.expect("got");
            equal(&content(&ends.here, back).await, &wanted, format_args!("{from} to {to} and back"));
            ends.here.endpoint.put(source.slice(1..), remote).await.expect("put");
            let found = content(&ends.there, region.unexpose().await).await;
            equal(&found[..wanted.len() - 1], &wanted[1..], format_args!("{from} put to {to}"));
        }
        ends.end().await;
    }
}

async fn target_here(ends: &Ends) -> BufferListMut {
    BufferListMut::from([
        memory(&ends.here, OTHER, &vec![0; FRAGMENT]).await,
        vec![0; FRAGMENT / 2].into(),
        memory(&ends.here, DEVICE, &vec![0; 5 * FRAGMENT / 2 + 20]).await,
    ])
}

scenarios! {
    everywhere:

    async fn streams(way: Way) {
        let ends = Ends::new(way).await;
        let mut out = ends.here.endpoint.stream().await.expect("a stream");
        let mut incoming = ends.there.endpoint.accept_stream().await.expect("a stream");
        let mut wanted = Vec::new();
        let mut pieces: Vec<wharf::Buffer> = Vec::new();
        for (seed, size) in SIZES.into_iter().enumerate() {
            pieces.push(memory(&ends.here, DEVICE, pattern(size, seed)).await.freeze());
            pieces.push(pattern(size.min(5000), seed + 50).to_vec().into());
            wanted.extend_from_slice(pattern(size, seed));
            wanted.extend_from_slice(pattern(size.min(5000), seed + 50));
        }
        pieces.push(memory(&ends.here, OTHER, &[1; 5]).await.freeze().slice(2..2));
        let write = async {
            for piece in pieces {
                out.write_buffer(piece).await.expect("written");
            }
            tokio::io::AsyncWriteExt::shutdown(&mut out).await.expect("ended");
        };
        let read = async {
            let mut found = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut incoming, &mut found).await.expect("read");
            found
        };
        let ((), found) = tokio::join!(write, read);
        equal(&found, &wanted, "the stream");
        drop((out, incoming));
        ends.end().await;
    }

    async fn a_stream_that_is_given_up(way: Way) {
        let ends = Ends::new(way).await;
        for reader in [true, false] {
            let mut out = ends.here.endpoint.stream().await.expect("a stream");
            let incoming = ends.there.endpoint.accept_stream().await.expect("a stream");
            let source = memory(&ends.here, DEVICE, &vec![0; 2 << 20]).await.freeze();
            let mut write = Box::pin(out.write_buffer(source));
            let early = std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx))).await;
            assert!(early.is_pending());
            if reader {
                drop(incoming);
                let error = write.await.expect_err("nobody reads");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                drop(out);
            } else {
                drop(write);
                out.reset();
                drop(incoming);
            }
        }
        ends.end().await;
    }
}

/// Whoever drives the workers.
async fn driven(way: Way, progress: Progress) {
    let device = FakeAccelerator::new();
    let context = context_with(way, &device, progress);
    let Pair { here, there } = Pair::of(&context, way).await;
    let ends = Ends {
        here,
        there,
        device,
    };
    for size in [1, 20 * FRAGMENT + 1] {
        let source = memory(&ends.here, DEVICE, pattern(size, 1)).await.freeze();
        let target = memory(&ends.there, OTHER, &vec![0; size]).await;
        let (sent, received) = tokio::join!(
            ends.here.endpoint.tag_send(Tag(1), source.clone()),
            ends.there.worker.tag_recv(Tag(1), target),
        );
        sent.expect("sent");
        let received = received.expect("received").buffer;
        equal(
            &content(&ends.there, received).await,
            pattern(size, 1),
            size,
        );
        // Posted, while nobody polls.
        let target = memory(&ends.there, OTHER, &vec![0; size]).await;
        let (region, remote) = exposed(&ends, target).await;
        let put = ends.here.endpoint.put(source, remote).post().expect("room");
        let moved = || {
            let metrics = ends.here.worker.metrics();
            (metrics.transports, metrics.one_sided, metrics.device_copies)
        };
        at_rest("what goes by itself", Duration::from_millis(5), moved).await;
        put.await.expect("put");
        equal(
            &content(&ends.there, region.unexpose().await).await,
            pattern(size, 1),
            size,
        );
    }
    drop(context);
    ends.end().await;
}

#[test]
fn event_driven() {
    for way in [Way::Own, Way::Shm, Way::Tcp] {
        run(driven(way, Progress::EventDriven));
    }
}

#[test]
fn busy() {
    for way in [Way::Own, Way::Shm, Way::Tcp] {
        run(driven(way, Progress::Busy));
    }
}

#[test]
fn threads_of_their_own() {
    for way in [Way::Own, Way::Shm, Way::Tcp] {
        run_on_threads(driven(way, Progress::Thread));
    }
}
