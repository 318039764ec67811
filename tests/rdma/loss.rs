//! A cable that loses and delays packets: the device sends them again, and every byte is right.

use std::{collections::VecDeque, time::Instant};

use wharf::{Access, Descriptor, Tag};

use crate::{
    common::{First, Path, Second, bytes, expect_bytes, play},
    machine::{BadCable, needs_machine},
    support::{LIMIT, watchdog},
};

const MESSAGES: u64 = 10_000;
const DESCRIPTOR: u64 = 1 << 40;
/// Of each put and get.
const PIECE: usize = 400_000;
const PIECES: u64 = 5;

fn length(number: u64) -> usize {
    match number % 100 {
        0 if number.is_multiple_of(1_000) => 70_000,
        0..10 => 1_000 + number as usize % 50,
        rest => rest as usize,
    }
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn of_one_percent() {
    needs_machine!();
    play!(Path::RcVerbs)
}

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    let descriptor = first.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");
    let bad = BadCable::new("loss 1% delay 1ms");
    let start = Instant::now();
    let mut under_way = VecDeque::new();
    for number in 0..MESSAGES {
        let send = endpoint.tag_send(Tag(number), bytes(number, length(number)));
        under_way.push_back(send.post().expect("room for a few"));
        if under_way.len() == 64 {
            let oldest = under_way.pop_front().expect("64");
            oldest.await.expect("a send");
        }
    }
    for send in under_way {
        send.await.expect("a send");
    }
    eprintln!("{MESSAGES} messages: {:?}", start.elapsed());
    for seed in 0..PIECES {
        let put = endpoint.put(bytes(seed, PIECE), remote.slice(..PIECE));
        watchdog(LIMIT, put).await.expect("a put");
        for (start, seed) in [(0, seed), (PIECE, 77)] {
            let place = remote.slice(start..start + PIECE);
            let get = watchdog(LIMIT, endpoint.get(place, vec![0; PIECE])).await;
            expect_bytes(seed, &get.expect("a get"));
        }
    }
    eprintln!("with puts and gets: {:?}", start.elapsed());
    drop(bad);
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

async fn second(second: Second) {
    let memory = [vec![0; PIECE], bytes(77, PIECE)].concat();
    let access = Access::READ | Access::WRITE;
    let region = second.context.expose(memory, access).await;
    let region = region.expect("a region");
    let descriptor = region.descriptor().expect("a descriptor").to_bytes();
    let send = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
    send.await.expect("a send");
    // One clock for all: each is a thread, and those are dear here.
    let all = async {
        for number in 0..MESSAGES {
            let room = vec![0; length(number)];
            let received = second.worker.tag_recv(Tag(number), room).await;
            let received = received.expect("a message");
            assert_eq!(received.len, length(number));
            expect_bytes(number, &received.buffer);
        }
    };
    watchdog(2 * LIMIT, all).await;
    watchdog(2 * LIMIT, second.endpoint.closed()).await;
    let mut seen = vec![0; 2 * PIECE];
    region.read_at(0, &mut seen).expect("in the region");
    expect_bytes(PIECES - 1, &seen[..PIECE]);
    expect_bytes(77, &seen[PIECE..]);
}
