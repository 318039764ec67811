//! Small things there and back, many times: puts that each end sees in its own memory, and numbers that are fetched.

use std::time::Instant;

use wharf::{Access, Context, Descriptor, Endpoint, HostBufferMut, Region, Tag};

use crate::{
    common::{First, Second, on_every_path},
    paths::SHORTER,
    support::{LIMIT, watchdog},
};

/// All of them where the test is optimised, as one step of CI has it.
const ROUNDS: u64 = if cfg!(debug_assertions) { 500 } else { 2_000 } / SHORTER as u64;
const DESCRIPTOR: u64 = 1 << 40;
const PING: u64 = 2 << 40;
const END: u64 = 3 << 40;

on_every_path!();

async fn first(mut first: First) {
    let (child, endpoint) = first.second().await;
    let access = Access::READ | Access::WRITE;
    let own = first
        .context
        .expose(memory(&first.context, 64).await, access)
        .await;
    let own = own.expect("a region");
    let descriptor = own.descriptor().expect("a descriptor").to_bytes();
    let send = endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
    send.await.expect("a send");
    let descriptor = first.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("its memory");

    let alone = comes_alone(&endpoint);
    let start = Instant::now();
    let puts = async {
        for round in 1..=ROUNDS {
            let put = endpoint.put(round.to_le_bytes().to_vec(), remote.clone());
            put.local().await.expect("a put");
            until(&own, round, alone).await;
        }
    };
    watchdog(LIMIT, puts).await;
    report("puts there and back", start);

    let start = Instant::now();
    let tags = async {
        for _ in 0..ROUNDS {
            endpoint
                .tag_send(Tag(PING), vec![1; 8])
                .await
                .expect("a send");
            let back = first.worker.tag_recv(Tag(PING), vec![0; 8]);
            back.await.expect("a message");
        }
    };
    watchdog(LIMIT, tags).await;
    report("messages there and back", start);

    for by in ways(&endpoint) {
        let descriptor = first.receive(DESCRIPTOR, 4096).await;
        let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
        let word = endpoint.import(&descriptor).expect("its memory");
        let start = Instant::now();
        let adds = async {
            for round in 0..ROUNDS {
                assert_eq!(word.fetch_add(0, 1_u64).await.expect("a number"), round);
            }
        };
        watchdog(LIMIT, adds).await;
        report(&format!("numbers fetched, {by:?}"), start);
    }
    endpoint.tag_send(Tag(END), "").await.expect("a send");
    watchdog(LIMIT, endpoint.close()).await.expect("closed");
    child.finish();
    first.finish().await;
}

/// Whether devices write and count, without the process whose memory it is.
fn comes_alone(endpoint: &Endpoint) -> bool {
    endpoint.transports() == ["rc_verbs"]
}

/// Of wharf.
async fn memory(context: &Context, length: usize) -> HostBufferMut {
    context.allocate(length).await.expect("memory")
}

/// By which rights words are counted.
fn ways(endpoint: &Endpoint) -> Vec<Access> {
    let mut ways = vec![Access::READ | Access::WRITE];
    if comes_alone(endpoint) {
        ways.push(Access::DEVICE_ATOMIC);
    }
    ways
}

fn report(what: &str, start: Instant) {
    let each = start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64;
    eprintln!("{what}: {each:.1} us each");
}

/// Looks until the other end's put is here. Where this end has to take part in it, it does now and then; else it does nothing for it.
async fn until(region: &Region, round: u64, alone: bool) {
    for look in 1_u64.. {
        if region.load::<u64>(0).expect("a word") == round {
            return;
        }
        if !alone && look.is_multiple_of(256) {
            tokio::task::yield_now().await;
        }
    }
}

async fn second(second: Second) {
    let access = Access::READ | Access::WRITE;
    let own = second
        .context
        .expose(memory(&second.context, 64).await, access)
        .await;
    let own = own.expect("a region");
    let descriptor = own.descriptor().expect("a descriptor").to_bytes();
    let send = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
    send.await.expect("a send");
    let descriptor = second.receive(DESCRIPTOR, 4096).await;
    let descriptor = Descriptor::from_bytes(&descriptor).expect("a descriptor");
    let remote = second.endpoint.import(&descriptor).expect("its memory");
    let alone = comes_alone(&second.endpoint);
    let puts = async {
        for round in 1..=ROUNDS {
            until(&own, round, alone).await;
            let put = second
                .endpoint
                .put(round.to_le_bytes().to_vec(), remote.clone());
            put.local().await.expect("a put");
        }
    };
    watchdog(LIMIT, puts).await;

    let tags = async {
        for _ in 0..ROUNDS {
            let ping = second.worker.tag_recv(Tag(PING), vec![0; 8]);
            let ping = ping.await.expect("a message");
            let pong = second.endpoint.tag_send(Tag(PING), ping.buffer);
            pong.await.expect("a send");
        }
    };
    watchdog(LIMIT, tags).await;

    let mut words = Vec::new();
    for access in ways(&second.endpoint) {
        let word = second
            .context
            .expose(memory(&second.context, 8).await, access)
            .await;
        let word = word.expect("a region");
        let descriptor = word.descriptor().expect("a descriptor").to_bytes();
        let send = second.endpoint.tag_send(Tag(DESCRIPTOR), descriptor);
        send.await.expect("a send");
        words.push(word);
    }
    second.receive(END, 0).await;
    for word in words {
        let count = watchdog(LIMIT, word.unexpose()).await;
        assert_eq!(count.as_slice(), Some(&ROUNDS.to_ne_bytes()[..]));
    }
    watchdog(LIMIT, second.endpoint.closed()).await;
}
