//! Messages, puts and gets of many sizes, with a look at every byte.

use wharf::{Access, Descriptor, Mask, Tag};

use crate::{
    common::{First, Second, bytes, expect_bytes, expect_bytes_from, on_every_path},
    paths::SHORTER,
    support::{LIMIT, watchdog},
};

/// Each side of every threshold that there may be.
const ALL: [usize; 44] = [
    0, 1, 7, 8, 9, 47, 48, 49, 63, 64, 65, 255, 256, 257, 1_000, 2_047, 4_095, 4_096, 4_097, 8_183,
    8_184, 8_185, 8_191, 8_192, 8_193, 12_345, 16_384, 32_767, 32_768, 32_769, 65_535, 65_536,
    65_537, 100_000, 131_071, 131_072, 131_073, 262_143, 262_144, 262_145, 524_289, 1_048_576,
    3_000_001, 16_777_216,
];
/// Without the longest where that would take minutes.
const SIZES: &[usize] = ALL.split_at(if SHORTER == 1 { 44 } else { 40 }).0;
const LARGEST: usize = SIZES[SIZES.len() - 1];

const TO_CHECK: u64 = 1 << 32;
const CHECKED: u64 = 2 << 32;
const DESCRIPTOR: u64 = 3 << 32;

on_every_path!();

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    let worker = &first.worker;

    // One after the other, there and back.
    for (seed, &length) in (0..).zip(SIZES) {
        endpoint
            .tag_send(Tag(seed), bytes(seed, length))
            .await
            .expect("a send");
        let back = first.receive(seed, length).await;
        assert_eq!(back.len(), length);
        expect_bytes(seed, &back);
    }
    // The same from and into memory that wharf allocated, twice, so that segments are shared.
    for (seed, &length) in (0..).zip(SIZES).chain((0..).zip(SIZES)) {
        let mut source = first.context.allocate(length).await.expect("memory");
        source.copy_from_slice(&bytes(seed, length));
        endpoint
            .tag_send(Tag(seed), source.freeze())
            .sync()
            .await
            .expect("a send");
        let target = first.context.allocate(length + 1).await.expect("memory");
        let back = watchdog(LIMIT, worker.tag_recv(Tag(seed), target)).await;
        let back = back.expect("a message");
        assert_eq!(back.len, length);
        expect_bytes(seed, &back.buffer[..length]);
    }
    // All at once.
    let receives: Vec<_> = (0..)
        .zip(SIZES)
        .map(|(seed, &length)| worker.tag_recv(Tag(seed), vec![0; length]).post())
        .collect();
    let sends: Vec<_> = (0..)
        .zip(SIZES)
        .map(|(seed, &length)| {
            let send = endpoint.tag_send(Tag(seed), bytes(seed, length)).post();
            send.expect("a place in the window")
        })
        .collect();
    for send in sends {
        watchdog(LIMIT, send).await.expect("a send");
    }
    for (seed, receive) in (0..).zip(receives) {
        let received = watchdog(LIMIT, receive).await.expect("a message");
        assert_eq!(received.len, SIZES[seed as usize]);
        expect_bytes(seed, &received.buffer[..received.len]);
    }
    endpoint
        .tag_send(Tag(TO_CHECK), Vec::new())
        .await
        .expect("a send");

    // Its memory: once of the heap, once of wharf.
    for _ in 0..2 {
        let descriptor = first.receive(DESCRIPTOR, 4096).await;
        let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
        let remote = endpoint.import(&descriptor).expect("its memory");
        assert_eq!(remote.len(), LARGEST + 100);
        for (seed, &length) in (1..).zip(SIZES) {
            let offset = 3 * seed as usize % 100;
            let place = remote.slice(offset..offset + length);
            let source = bytes(seed, length);
            if seed % 2 == 0 {
                let put = endpoint.put(source, place.clone());
                watchdog(LIMIT, put).await.expect("a put");
            } else {
                let put = endpoint.put(source, place.clone()).local();
                watchdog(LIMIT, put).await.expect("a put");
                watchdog(LIMIT, endpoint.flush()).await.expect("a flush");
            }
            let question = [seed, offset as u64, length as u64].map(u64::to_le_bytes);
            endpoint
                .tag_send(Tag(TO_CHECK), question.concat())
                .await
                .expect("a question");
            assert_eq!(first.receive(CHECKED, 8).await, b"right");
            let get = endpoint.get(place.clone(), vec![0; length]);
            expect_bytes(seed, &watchdog(LIMIT, get).await.expect("a get"));
            let own = first.context.allocate(length).await.expect("memory");
            let get = watchdog(LIMIT, endpoint.get(place, own)).await;
            expect_bytes(seed, &get.expect("a get"));
            // What lies around it is as it was.
            let get = endpoint.get(
                remote.slice(length + offset..),
                vec![0; 100 - offset + LARGEST - length],
            );
            if seed == 1 {
                let rest = watchdog(LIMIT, get).await.expect("a get");
                expect_bytes_from(99, length + offset, &rest);
            }
        }
        endpoint
            .tag_send(Tag(TO_CHECK), Vec::new())
            .await
            .expect("a send");
    }
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(second: Second) {
    let (worker, endpoint) = (&second.worker, &second.endpoint);
    // An echo, until told otherwise.
    let mut sends = Vec::new();
    loop {
        let matched = watchdog(LIMIT, worker.tag_matched(Tag(0)).mask(Mask(0)))
            .await
            .expect("a message");
        if matched.info().tag == Tag(TO_CHECK) {
            matched.recv(Vec::new()).await.expect("a message");
            break;
        }
        let length = matched.info().len;
        let received = matched.recv(vec![0; length]).await.expect("its bytes");
        assert_eq!(received.len, length);
        expect_bytes(received.tag.0, &received.buffer);
        sends.push(
            endpoint
                .tag_send(received.tag, received.buffer)
                .post()
                .expect("a place in the window"),
        );
    }
    for send in sends {
        watchdog(LIMIT, send).await.expect("an answer");
    }

    for own in [false, true] {
        let all = LARGEST + 100;
        let access = Access::READ | Access::WRITE;
        let region = if own {
            let mut memory = second.context.allocate(all).await.expect("memory");
            memory.copy_from_slice(&bytes(99, all));
            second.context.expose(memory, access).await
        } else {
            second.context.expose(bytes(99, all), access).await
        };
        let region = region.expect("a region");
        let descriptor = region.descriptor().expect("a descriptor").to_bytes();
        endpoint
            .tag_send(Tag(DESCRIPTOR), descriptor)
            .await
            .expect("a send");
        loop {
            let question = second.receive(TO_CHECK, 24).await;
            if question.is_empty() {
                break;
            }
            let mut numbers = question
                .chunks(8)
                .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")));
            let mut number = || numbers.next().expect("three numbers");
            let (seed, offset, length) = (number(), number() as usize, number() as usize);
            let mut seen = vec![0; length];
            region.read_at(offset, &mut seen).expect("in the region");
            expect_bytes(seed, &seen);
            let mut beyond = vec![0; 1];
            region.read_at(all - 1, &mut beyond).expect("in the region");
            expect_bytes_from(99, all - 1, &beyond);
            endpoint
                .tag_send(Tag(CHECKED), "right")
                .await
                .expect("an answer");
        }
        drop(watchdog(LIMIT, region.unexpose()).await);
    }
    watchdog(LIMIT, endpoint.closed()).await;
}
