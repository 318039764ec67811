//! What peers may make a worker hold.

use std::io;

use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{
    Access, ErrorKind, Held, Refusals, Tag, Worker,
    config::{Limits, Quota, Source},
};

use crate::{
    fixture::{Pair, Way, connect, run, run_on_threads},
    support::{LIMIT, again, is_alone, passes, this_test, until, watchdog},
};

#[test]
fn the_configuration_tells_them() {
    let limits = Limits::default().each_source(|quota| quota.connections(64));
    let context = Way::Own.builder().limits(limits).build();
    let entries = context.expect("a context").configuration();
    let entry = entries
        .iter()
        .find(|entry| entry.variable.name == "WHARF_LIMITS")
        .expect("an entry");
    assert_eq!(entry.source, Source::Builder);
    let text = entry.value.as_deref().expect("a value");
    assert!(text.contains("source.connections=64"), "{text}");
}

/// Two workers, of which the second holds no more than this.
async fn limited(way: Way, limits: Limits) -> Pair {
    let mut pair = Pair::of(&way.context(), way).await;
    let context = way.builder().limits(limits).build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    let (here, there) = connect(&pair.here.worker, &worker).await;
    pair.here.endpoint = here;
    pair.there.context = context;
    pair.there.worker = worker;
    pair.there.endpoint = there;
    pair
}

/// What nobody asked for is given back: all of it.
async fn holds_nothing(worker: &Worker) {
    until("the end of what is held", || {
        let held = worker.metrics().held;
        (held.unexpected_bytes, held.unexpected_messages) == (0, 0)
            && (held.unaccepted_streams, held.requests) == (0, 0)
    })
    .await;
}

/// Bytes of memory of this process that are in use.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = status.split(' ').nth(1).expect("resident pages");
    pages.parse::<u64>().expect("a number") * 4096
}

/// Requests beyond the limit are refused with the reason; those within it are served, and later ones.
#[test]
fn gets_that_are_not_read() {
    run(async {
        let limits = Limits::default().each_connection(|quota| quota.requests(4));
        let pair = limited(Way::Tcp, limits).await;
        let context = &pair.there.context;
        let region = context.expose(vec![7_u8; 4 << 20], Access::READ).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        let remote = pair.here.endpoint.import(&descriptor).expect("imported");
        let get = || pair.here.endpoint.get(remote.clone(), vec![0; 4 << 20]);
        let (mut served, mut refused) = (0, 0);
        for answer in join_all((0..40).map(|_| get())).await {
            match answer {
                Ok(_) => served += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(
            served >= 4 && refused > 0,
            "{served} served, {refused} refused"
        );
        let metrics = pair.there.worker.metrics();
        assert_eq!(metrics.held.refused, refused);
        assert_eq!(metrics.refused.connection.requests, refused);
        get().await.expect("room again");
        holds_nothing(&pair.there.worker).await;
    });
}

/// Connections in turn, each of which leaves as much as it may: it stays to be received, and counts for their source. Beyond its limit they are
/// turned away. In a process of its own, whose memory is looked at.
#[test]
fn what_connections_leave() {
    const LIMIT: u64 = 8 << 20;
    if !is_alone() {
        return passes(&mut again(this_test!()));
    }
    run(async {
        let limits = Limits::default().each_source(|quota| quota.unexpected_bytes(LIMIT));
        let pair = limited(Way::Tcp, limits).await;
        let there = &pair.there.worker;
        let before = resident();
        for _ in 0..60 {
            let here = Way::Tcp.worker();
            let (endpoint, accepted) = connect(&here, there).await;
            for _ in 0..120 {
                if endpoint.tag_send(Tag(7), vec![1; 8000]).await.is_err() {
                    break;
                }
            }
            let _ = endpoint.close().await;
            drop(accepted);
        }
        let held = there.metrics().held;
        assert!(held.unexpected_bytes <= LIMIT, "{held:?}");
        assert!(held.unexpected_bytes > LIMIT / 2, "{held:?}");
        assert!(held.refused > 0, "{held:?}");
        let refused = there.metrics().refused;
        assert_eq!(refused.source.unexpected_bytes, held.refused);
        assert_eq!(refused.total(), held.refused, "{refused:?}");
        // 57 MB were sent.
        let grown = resident().saturating_sub(before);
        assert!(grown < 40 << 20, "{grown} bytes more are resident");
        let mut received = 0;
        while there.metrics().held.unexpected_messages > 0 {
            let message = there.tag_recv(Tag(7), vec![0; 8000]).await;
            assert_eq!(message.expect("received").buffer, vec![1; 8000]);
            received += 1;
        }
        assert!(received > 500, "{received} received");
        holds_nothing(there).await;
    });
}

/// Streams that nobody accepts are held back long before they fill what accepted ones may; an accepted one goes on.
#[test]
fn streams_that_are_filled() {
    run(async {
        let pair = Pair::of(&Way::Tcp.context(), Way::Tcp).await;
        let (here, there) = (&pair.here.endpoint, &pair.there.endpoint);
        let mut streams = Vec::new();
        for _ in 0..128 {
            let mut stream = here.stream().await.expect("opened");
            let mut written = 0;
            while let Ok(count) = tokio::time::timeout(
                std::time::Duration::from_millis(20),
                stream.write(&[1; 64 << 10]),
            )
            .await
            {
                written += count.expect("written");
            }
            streams.push((stream, written));
        }
        let held = pair.there.worker.metrics().held;
        assert_eq!(held.unaccepted_streams, 128);
        assert!(held.unexpected_bytes <= 128 * (96 << 10), "{held:?}");
        assert!(held.unexpected_bytes >= 128 * (64 << 10), "{held:?}");
        for (stream, written) in &mut streams {
            let mut accepted = there.accept_stream().await.expect("accepted");
            let mut bytes = vec![0; *written];
            let (read, more) = tokio::join!(accepted.read_exact(&mut bytes), async {
                stream.write_all(&[2; 300 << 10]).await?;
                stream.shutdown().await
            });
            read.expect("what waited");
            more.expect("the whole window");
            assert!(bytes.iter().all(|byte| *byte == 1));
            let mut rest = Vec::new();
            accepted.read_to_end(&mut rest).await.expect("the rest");
            assert_eq!(rest, vec![2; 300 << 10]);
        }
        holds_nothing(&pair.there.worker).await;
        let Held { refused, .. } = pair.there.worker.metrics().held;
        assert_eq!(refused, 0, "they kept to the protocol");
    });
}

/// Sets one amount of a connection, a source or the worker to nothing.
fn without(whose: &str, amount: fn(Quota, u64) -> Quota) -> Limits {
    let none = |quota| amount(quota, 0);
    let limits = Limits::default();
    match whose {
        "connection" => limits.each_connection(none),
        "source" => limits.each_source(none),
        _ => limits.whole_worker(none),
    }
}

/// The counters that are not zero.
fn counted(refused: &Refusals) -> Vec<(&'static str, &'static str, u64)> {
    refused.iter().filter(|(_, _, count)| *count > 0).collect()
}

type Amount = (&'static str, fn(Quota, u64) -> Quota);

/// What is one too many is counted once, where the limit is that it met: of what, and whose.
#[test]
fn each_limit_has_a_counter() {
    const HELD: [Amount; 4] = [
        ("unexpected_bytes", Quota::unexpected_bytes),
        ("unexpected_messages", Quota::unexpected_messages),
        ("unaccepted_streams", Quota::unaccepted_streams),
        ("requests", Quota::requests),
    ];
    for whose in ["connection", "source", "worker"] {
        for (amount, set) in HELD {
            run(async {
                let pair = limited(Way::Tcp, without(whose, set)).await;
                let (here, there) = (&pair.here.endpoint, &pair.there);
                match amount {
                    "unaccepted_streams" => {
                        let mut stream = here.stream().await.expect("opened");
                        let refused = stream.read(&mut [0]).await.expect_err("refused");
                        assert_eq!(refused.kind(), io::ErrorKind::ConnectionReset);
                    }
                    "requests" => {
                        let region = there.context.expose(vec![7_u8; 64], Access::READ).await;
                        let region = region.expect("exposed");
                        let descriptor = region.descriptor().expect("a descriptor");
                        let remote = here.import(&descriptor).expect("imported");
                        let refused = here.get(remote, vec![0; 64]).await;
                        let refused = refused.expect_err("refused");
                        assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
                    }
                    _ => {
                        here.tag_send(Tag(7), vec![1; 64]).await.expect("sent");
                        let ended = watchdog(LIMIT, there.endpoint.closed()).await;
                        assert_eq!(ended.kind(), ErrorKind::Exhausted, "{ended}");
                    }
                }
                let metrics = there.worker.metrics();
                assert_eq!(counted(&metrics.refused), [(whose, amount, 1)]);
                assert_eq!((metrics.held.refused, metrics.refused_over_limit), (1, 0));
                assert_eq!(metrics.refused.total(), 1);
            });
        }
    }
    for whose in ["source", "worker"] {
        run(async {
            let limits = without(whose, Quota::connections);
            let context = Way::Tcp.builder().limits(limits).build();
            let there = Worker::new(&context.expect("a context")).expect("a worker");
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let here = Way::Tcp.worker();
            let (refused, _) = tokio::join!(here.connect(listener.local_addr()), async {
                listener.accept().await.expect("a request").accept().await
            });
            let refused = refused.expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
            let metrics = there.metrics();
            assert_eq!(counted(&metrics.refused), [(whose, "connections", 1)]);
            assert_eq!((metrics.held.refused, metrics.refused_over_limit), (0, 1));
        });
    }
}

scenarios! { between workers:
    /// A stream beyond the limit is refused, alone and with the reason; later ones find the place of those that were accepted.
    async fn streams_that_nobody_accepts(way: Way) {
        let limits = Limits::default().each_connection(|quota| quota.unaccepted_streams(2));
        let pair = limited(way, limits).await;
        let (here, there) = (&pair.here.endpoint, &pair.there.endpoint);
        let mut taken = Vec::new();
        for _ in 0..2 {
            let mut stream = here.stream().await.expect("opened");
            stream.write_all(b"taken").await.expect("written");
            taken.push(stream);
        }
        for _ in 0..200 {
            let mut refused = here.stream().await.expect("opened");
            let mut byte = [0];
            let error = refused.read(&mut byte).await.expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            let error = refused.write(&byte).await.expect_err("refused");
            let error = error.downcast::<wharf::Error>().expect("the reason");
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        }
        for mut here in taken {
            let mut stream = there.accept_stream().await.expect("accepted");
            let mut bytes = [0; 5];
            stream.read_exact(&mut bytes).await.expect("read");
            assert_eq!(&bytes, b"taken");
            stream.write_all(b"back").await.expect("written");
            here.read_exact(&mut bytes[..4]).await.expect("read");
        }
        let mut late = here.stream().await.expect("opened");
        late.write_all(b"later").await.expect("written");
        let mut stream = there.accept_stream().await.expect("accepted");
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).await.expect("read");
        assert_eq!(&bytes, b"later");
    }
}
