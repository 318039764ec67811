//! Every bootstrap does the same, and what goes wrong is told to whom it concerns.

use std::{
    io::{Read, Write},
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use tokio::time::Instant;
use wharf::{
    Error, ErrorKind, Result,
    channel::bootstrap::{
        Bootstrap, BootstrapOptions, MAX_MESSAGE, MemoryBootstrap, TcpBootstrap, TcpRoot, UniqueId,
        UnixBootstrap,
    },
};

use crate::support::{self, Child, LIMIT, Looks, child, own_place, this_test, watchdog};

pub(crate) type Group = Vec<Arc<dyn Bootstrap>>;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    support::block_on(&runtime(), LIMIT, future)
}

fn shared<B: Bootstrap + 'static>(group: Vec<B>) -> Group {
    group
        .into_iter()
        .map(|rank| Arc::new(rank) as Arc<dyn Bootstrap>)
        .collect()
}

fn options() -> BootstrapOptions {
    BootstrapOptions::new().deadline(Duration::from_secs(20))
}

fn short(millis: u64) -> BootstrapOptions {
    BootstrapOptions::new().deadline(Duration::from_millis(millis))
}

fn unix_name(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

async fn memory(size: usize) -> Group {
    shared(MemoryBootstrap::group(size).expect("a group"))
}

async fn tcp_by_id(size: usize) -> Group {
    let root = TcpRoot::bind("127.0.0.1:0").await.expect("a root");
    let id = root.unique_id().clone();
    let options = options();
    let others = (1..size).map(|rank| TcpBootstrap::join(id.clone(), rank, size, &options));
    let (first, others) = tokio::join!(root.join(size, &options), try_join_all(others));
    let mut group = vec![first.expect("rank 0")];
    group.extend(others.expect("the others"));
    shared(group)
}

async fn tcp_by_port(size: usize) -> Group {
    let place = own_place().to_string();
    let options = options().secret("of the group");
    let ranks = (0..size).rev();
    let all = ranks.map(|rank| TcpBootstrap::join(place.as_str(), rank, size, &options));
    let mut group = try_join_all(all).await.expect("a group");
    group.reverse();
    shared(group)
}

async fn unix(size: usize) -> Group {
    let name = unix_name(&format!("group-{size}-{:?}", std::thread::current().id()));
    let options = options();
    let all = (0..size).map(|rank| UnixBootstrap::join(&name, rank, size, &options));
    shared(try_join_all(all).await.expect("a group"))
}

mod scenarios {
    use super::*;

    /// Messages by tag, to oneself too; gathered bytes in the order of ranks; barriers.
    pub(super) async fn exchange(group: Group) {
        let size = group.len();
        let each = group.iter().map(|rank| async move {
            let me = rank.rank();
            assert_eq!(rank.size(), size);
            for to in 0..size {
                for tag in [1, 2] {
                    let text = format!("{me} to {to} as {tag}");
                    rank.send(to, tag, text.into()).await?;
                }
            }
            for from in 0..size {
                for tag in [2, 1] {
                    let got = rank.receive(from, tag).await?;
                    assert_eq!(got, format!("{from} to {me} as {tag}"));
                }
            }
            for round in 0..20 {
                let all = rank
                    .all_gather(format!("{me} in {round}").into_bytes().repeat(me).into())
                    .await?;
                for (other, bytes) in all.iter().enumerate() {
                    assert_eq!(
                        *bytes,
                        format!("{other} in {round}").into_bytes().repeat(other)
                    );
                }
            }
            rank.barrier().await
        });
        try_join_all(each).await.expect("all of it");
    }

    /// Of one sender and tag in their order; the longest message; more than there is room for waits.
    pub(super) async fn order_and_room(group: Group) {
        let (from, to) = (&group[0], &group[2]);
        let long: Bytes = (0..MAX_MESSAGE).map(|at| (at % 251) as u8).collect();
        from.send(2, 1, long.clone()).await.expect("the longest");
        from.send(2, 1, long.clone()).await.expect("once more");
        // Both wait at the receiver: there is no room for a third.
        let soon = Instant::now() + Duration::from_millis(50);
        let full = from.send_until(2, 1, long.clone(), soon).await;
        let full = full.expect_err("no room");
        assert_eq!(full.kind(), ErrorKind::DeadlineExceeded, "{full}");
        assert!(full.to_string().contains("rank 2"), "{full}");
        // What fails so was not sent.
        let third = from.send(2, 1, "third".into());
        let reading = async {
            for _ in 0..2 {
                assert_eq!(to.receive(0, 1).await?, long);
            }
            assert_eq!(to.receive(0, 1).await?, "third");
            Ok::<_, Error>(())
        };
        tokio::try_join!(third, reading).expect("all of it");
        // A hundred short ones, received while they come.
        let sending = async {
            for at in 0..100_u8 {
                from.send(2, 9, vec![at; 1000].into()).await?;
            }
            Ok::<_, Error>(())
        };
        let reading = async {
            for at in 0..100_u8 {
                assert_eq!(to.receive(0, 9).await?, vec![at; 1000]);
            }
            Ok(())
        };
        tokio::try_join!(sending, reading).expect("all of it");
    }

    /// What is asked wrongly is refused, and nothing else happens.
    pub(super) async fn bad_arguments(group: Group) {
        let one = &group[1];
        let too_long = Bytes::from(vec![0; MAX_MESSAGE + 1]);
        for refused in [
            one.send(3, 0, Bytes::new()).await,
            one.receive(3, 0).await.map(drop),
            one.send(0, 0, too_long.clone()).await,
            one.all_gather(too_long).await.map(drop),
        ] {
            assert_eq!(
                refused.expect_err("refused").kind(),
                ErrorKind::InvalidArgument
            );
        }
        let all = group.iter().map(|rank| rank.barrier());
        try_join_all(all).await.expect("it still stands");
    }

    /// Dropping a receive that waits loses nothing.
    pub(super) async fn dropped_receives(group: Group) {
        let (from, to) = (&group[0], &group[1]);
        for round in 0..200_u32 {
            let sending = from.send(1, 5, round.to_le_bytes().to_vec().into());
            let mut receiving = Box::pin(to.receive(0, 5));
            let early = futures::poll!(&mut receiving);
            sending.await.expect("sent");
            let got = match early {
                std::task::Poll::Ready(got) => got,
                std::task::Poll::Pending => {
                    drop(receiving);
                    to.receive(0, 5).await
                }
            };
            assert_eq!(got.expect("received"), round.to_le_bytes().to_vec());
        }
    }

    /// One that does not come to a barrier is named to all that have, and to itself when it comes.
    pub(super) async fn absent(group: Group) {
        let soon = || Instant::now() + Duration::from_millis(200);
        let (one, two) = tokio::join!(group[0].barrier_until(soon()), group[2].barrier());
        for waiting in [one, two] {
            let error = waiting.expect_err("rank 1 is not there");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            assert!(
                error.to_string().contains("rank 1 of 3 did not come"),
                "{error}"
            );
        }
        let late = group[1].barrier().await.expect_err("it is over");
        assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
        // The next is one for all again.
        let all = group.iter().map(|rank| rank.barrier());
        try_join_all(all).await.expect("all are there");
    }

    /// One that leaves is named at once; what it had sent can still be received.
    pub(super) async fn left(mut group: Group) {
        group[2]
            .send(1, 4, "the last word".into())
            .await
            .expect("sent");
        drop(group.remove(2));
        assert_eq!(
            group[1].receive(2, 4).await.expect("received"),
            "the last word"
        );
        let clock = Clock::now();
        let (zero, one) = tokio::join!(group[0].barrier(), group[1].barrier());
        let receive = group[1].receive(2, 4).await.map(drop);
        let mut looks = Looks::new("the news");
        let send = loop {
            // Rank 0 tells it; until then the message goes nowhere.
            match group[1].send(2, 4, Bytes::new()).await {
                Ok(()) => looks.again().await,
                Err(error) => break Err(error),
            }
        };
        for told in [zero, one, receive, send] {
            let error = told.expect_err("rank 2 has left");
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(
                error.to_string().contains("rank 2 has left the group"),
                "{error}"
            );
        }
        // At once, and not at the deadline of 20 seconds and more.
        assert!(clock.elapsed() < Duration::from_secs(15));
    }

    /// So is rank 0, by which all are held together.
    pub(super) async fn rank_zero_left(mut group: Group) {
        let waiting = group.remove(1);
        let mut barrier = waiting.barrier();
        assert!(futures::poll!(&mut barrier).is_pending());
        // A message behind it: rank 0 has heard of the barrier.
        waiting.send(0, 4, Bytes::new()).await.expect("sent");
        group[0].receive(1, 4).await.expect("received");
        drop(group.remove(0));
        let error = barrier.await.expect_err("rank 0 left");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert!(error.to_string().contains("rank 0 has left"), "{error}");
    }

    /// A message whose deadline passes while its connection is made harms nobody.
    pub(super) async fn hasty_connections(group: Group) {
        for round in 0..40_u64 {
            let moment = Duration::from_micros(round * 40);
            let _ = group[1]
                .send_until(2, 1, Bytes::new(), Instant::now() + moment)
                .await;
        }
        group[1].send(2, 2, "in time".into()).await.expect("sent");
        let got = group[2].receive(1, 2).await.expect("received");
        assert_eq!(got, "in time");
        let all = group.iter().map(|rank| rank.barrier());
        try_join_all(all).await.expect("nobody was taken for dead");
    }

    /// More than all may bring together fails for all.
    pub(super) async fn too_much(group: Group) {
        // Eight calls of three times 4 MiB at once; how far one is ahead of the others differs.
        let all = join_all(group.iter().map(|rank| async move {
            let part = Bytes::from(vec![1; MAX_MESSAGE]);
            join_all((0..8).map(|_| rank.all_gather(part.clone()))).await
        }))
        .await;
        for rank in all {
            for ended in rank {
                match ended {
                    Ok(parts) => assert!(parts.iter().all(|part| part.len() == MAX_MESSAGE)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
                }
            }
        }
    }
}

/// Each scenario over each kind of group.
macro_rules! over {
    ($kind:ident: $($scenario:ident)*) => {
        mod $kind {
            $(
                #[test]
                fn $scenario() {
                    super::block_on(async {
                        super::scenarios::$scenario(super::$kind(3).await).await;
                    });
                }
            )*

            #[test]
            fn one_alone() {
                super::block_on(async {
                    let group = super::$kind(1).await;
                    group[0].barrier().await.expect("nobody to wait for");
                    let all = group[0].all_gather("me".into()).await.expect("gathered");
                    assert_eq!(all, ["me"]);
                });
            }
        }
    };
}

over!(memory: exchange order_and_room bad_arguments dropped_receives absent left rank_zero_left too_much);
over!(tcp_by_id: hasty_connections exchange order_and_room bad_arguments dropped_receives absent left rank_zero_left too_much);
over!(tcp_by_port: exchange left);
over!(unix: hasty_connections exchange order_and_room bad_arguments dropped_receives absent left rank_zero_left too_much);

/// A rank leaves and its runtime ends, while the other does not read: it is all there later.
#[test]
fn all_that_was_sent_before_leaving_arrives() {
    let tcp = own_place().to_string();
    let name = unix_name("leaves");
    async fn join(place: &str, rank: usize) -> Box<dyn Bootstrap> {
        match place.contains(':') {
            true => Box::new(
                TcpBootstrap::join(place, rank, 2, &options())
                    .await
                    .expect("joined"),
            ),
            false => Box::new(
                UnixBootstrap::join(place, rank, 2, &options())
                    .await
                    .expect("joined"),
            ),
        }
    }
    let alone = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    for place in [tcp, name] {
        let leaving = std::thread::spawn({
            let place = place.clone();
            move || {
                alone().block_on(watchdog(LIMIT, async {
                    let one = join(&place, 1).await;
                    for tag in [1, 2] {
                        let long = vec![tag as u8; MAX_MESSAGE];
                        one.send(0, tag, long.into()).await.expect("sent");
                    }
                    one.leave().await;
                    let error = one.barrier().await.expect_err("it has left");
                    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                }));
            }
        });
        alone().block_on(watchdog(LIMIT, async {
            let zero = join(&place, 0).await;
            // The whole runtime: nothing is read for longer than one that leaves without patience would wait.
            std::thread::sleep(Duration::from_millis(300));
            for tag in [1, 2] {
                let got = zero.receive(1, tag).await.expect("received");
                assert!(got == vec![tag as u8; MAX_MESSAGE]);
            }
            let error = zero.receive(1, 1).await.expect_err("it has left");
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }));
        leaving.join().expect("no panic");
    }
}

/// More connections that say nothing than rank 0 talks to at once: it gives them up long before the deadline of a rank that waits behind them.
#[test]
fn silent_strangers() {
    block_on(async {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a root");
        let id = root.unique_id().clone();
        let place = id.addresses()[0];
        let zero = tokio::spawn(async move { root.join(2, &short(8_000)).await });
        let mut silent = Vec::new();
        for _ in 0..300 {
            let connected = tokio::net::TcpStream::connect(place).await;
            silent.push(connected.expect("connected"));
        }
        let options = short(8_000);
        let one = TcpBootstrap::join(id, 1, 2, &options)
            .await
            .expect("rank 1");
        let zero = zero.await.expect("no panic").expect("rank 0");
        tokio::try_join!(zero.barrier(), one.barrier()).expect("a group");
        drop(silent);
    });
}

#[test]
fn forty_ranks() {
    block_on(async { scenarios::exchange(tcp_by_port(40).await).await });
}

/// Ranks that do not come are named to those that have, at the earliest deadline.
#[test]
fn missing_ranks() {
    block_on(async {
        let name = unix_name("missing");
        let (patient, hasty) = (options(), short(300));
        let (zero, two) = tokio::join!(
            UnixBootstrap::join(&name, 0, 4, &patient),
            UnixBootstrap::join(&name, 2, 4, &hasty),
        );
        for error in [zero.map(drop), two.map(drop)] {
            let error = error.expect_err("two are missing");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
            assert!(
                error
                    .to_string()
                    .contains("ranks 1, 3 of 4 did not come in time"),
                "{error}"
            );
        }
        // And rank 0, by its address.
        let place = own_place().to_string();
        let error = TcpBootstrap::join(place.as_str(), 1, 2, &short(200))
            .await
            .expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(error.to_string().contains(&place), "{error}");
        assert!(error.get_ref().is_some());
    });
}

/// One that goes away while the others come is missing; its number is free for another.
#[test]
fn vanished_while_joining() {
    block_on(async {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a root");
        let id = root.unique_id().clone();
        let options = options();
        let zero = tokio::spawn(async move { root.join(3, &self::options()).await });
        let first = TcpBootstrap::join(id.clone(), 1, 3, &options);
        tokio::time::timeout(Duration::from_millis(300), first)
            .await
            .expect_err("rank 2 is not there");
        // Its end has to be seen before the next comes, and rank 0 tells nobody that it was.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (one, two) = tokio::join!(
            TcpBootstrap::join(id.clone(), 1, 3, &options),
            TcpBootstrap::join(id, 2, 3, &options),
        );
        let zero = zero.await.expect("no panic").expect("rank 0");
        let (one, two) = (one.expect("rank 1"), two.expect("rank 2"));
        tokio::try_join!(zero.barrier(), one.barrier(), two.barrier()).expect("all are there");
    });
}

/// What contradicts itself ends the attempt for all, long before the deadline.
#[test]
fn contradictions() {
    block_on(async {
        type Claims = [(usize, usize); 3];
        let cases: [(Claims, &str); 3] = [
            ([(0, 4), (1, 4), (1, 4)], "two processes have the number 1"),
            (
                [(0, 4), (1, 4), (2, 5)],
                "rank 2 counts 5 ranks, rank 0 counts 4",
            ),
            (
                [(0, 4), (3, 4), (1, 3)],
                "rank 1 counts 3 ranks, rank 0 counts 4",
            ),
        ];
        for (claims, text) in cases {
            let name = unix_name(&format!("claims-{}-{}", claims[2].0, claims[2].1));
            let options = short(10_000);
            let all = claims
                .iter()
                .map(|(rank, size)| UnixBootstrap::join(&name, *rank, *size, &options));
            let clock = Clock::now();
            let mut told = 0;
            for joined in join_all(all).await {
                let error = joined.expect_err("a contradiction");
                if error.kind() == ErrorKind::Configuration {
                    assert!(error.to_string().contains(text), "{error}");
                    told += 1;
                } else {
                    // It came when rank 0 had given up.
                    assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::PeerDied | ErrorKind::DeadlineExceeded
                        ),
                        "{error}"
                    );
                }
            }
            assert!(told >= 2, "rank 0, and the one that contradicts");
            if told == 3 {
                assert!(clock.elapsed() < Duration::from_secs(9));
            }
        }
    });
}

/// Who comes to a group that stands is told so, and the group goes on.
#[test]
fn too_late() {
    block_on(async {
        let name = unix_name("late");
        let options = options();
        let (zero, one) = tokio::try_join!(
            UnixBootstrap::join(&name, 0, 2, &options),
            UnixBootstrap::join(&name, 1, 2, &options),
        )
        .expect("a group");
        let late = UnixBootstrap::join(&name, 1, 2, &options).await;
        let late = late.expect_err("the place is taken");
        assert_eq!(late.kind(), ErrorKind::Configuration, "{late}");
        assert!(late.to_string().contains("has a rank 1"), "{late}");
        // A second rank 0 finds the name taken.
        let second = UnixBootstrap::join(&name, 0, 2, &options).await;
        assert!(second.is_err());
        tokio::try_join!(zero.barrier(), one.barrier()).expect("undisturbed");
    });
}

/// Who does not know the secret is told so and changes nothing.
#[test]
fn wrong_secret() {
    block_on(async {
        let place = own_place().to_string();
        let right = options().secret("right");
        let zero = tokio::spawn({
            let (place, right) = (place.clone(), right.clone());
            async move { TcpBootstrap::join(place, 0, 2, &right).await }
        });
        for wrong in [options().secret("wrong"), options()] {
            let error = TcpBootstrap::join(place.as_str(), 1, 2, &wrong)
                .await
                .expect_err("a wrong secret");
            assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        }
        let one = TcpBootstrap::join(place.as_str(), 1, 2, &right)
            .await
            .expect("the right one");
        let zero = zero.await.expect("no panic").expect("rank 0");
        tokio::try_join!(zero.barrier(), one.barrier()).expect("undisturbed");

        // And the other way round: rank 0 has to prove it as well.
        let place = own_place().to_string();
        let zero = tokio::spawn({
            let place = place.clone();
            async move { TcpBootstrap::join(place, 0, 2, &short(500)).await }
        });
        let error = TcpBootstrap::join(place.as_str(), 1, 2, &right)
            .await
            .expect_err("rank 0 knows no secret");
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        let error = zero.await.expect("no panic").expect_err("nobody came");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    });
}

/// Bytes that are none of ours, at rank 0, at a rank's own listener, and from where rank 0 should be.
#[test]
fn foreign_bytes() {
    block_on(async {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a root");
        let id = root.unique_id().clone();
        let place = id.addresses()[0];
        let strangers: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
            &[0xff; 5000],
            b"WHARF\0C\x01\xff\xff\xff\xff",
            b"",
        ];
        let mut open = Vec::new();
        for bytes in strangers {
            let mut stream = std::net::TcpStream::connect(place).expect("connected");
            // It may be turned away in the middle.
            let _ = stream.write_all(bytes);
            open.push(stream);
        }
        let options = options();
        let (zero, one) = tokio::try_join!(
            root.join(2, &options),
            TcpBootstrap::join(id, 1, 2, &options)
        )
        .expect("undisturbed");
        for bytes in strangers {
            let mut stream = std::net::TcpStream::connect(place).expect("connected");
            let _ = stream.write_all(bytes);
            open.push(stream);
        }
        tokio::try_join!(zero.barrier(), one.barrier()).expect("undisturbed");

        // Something else listens.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let place = listener.local_addr().expect("its address").to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = TcpBootstrap::join(place.as_str(), 1, 2, &options)
            .await
            .expect_err("not a bootstrap");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");

        // A worker does.
        let context = wharf::Context::builder().build().expect("a context");
        let worker = wharf::Worker::new(&context).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        let place = listener.local_addr().to_string();
        let error = TcpBootstrap::join(place.as_str(), 1, 2, &options)
            .await
            .expect_err("not a bootstrap");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
    });
}

#[test]
fn unique_ids() {
    block_on(async {
        let root = TcpRoot::bind("0.0.0.0:0").await.expect("a root");
        let id = root.unique_id();
        assert!(!id.addresses().is_empty());
        assert!(id.addresses().iter().all(|at| !at.ip().is_unspecified()));
        let text = id.to_string();
        assert_eq!(text.len(), 256);
        assert_eq!(&text.parse::<UniqueId>().expect("the same"), id);
        // Its secret is not printed by the way.
        assert!(!format!("{id:?}").contains(&text[16..48]));
        let bytes = id.to_bytes();
        for at in 0..bytes.len() {
            let mut altered = bytes;
            altered[at] ^= 0x10;
            let error = UniqueId::from_bytes(&altered).expect_err("altered");
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Malformed | ErrorKind::VersionMismatch
                ),
                "{error}"
            );
        }
        for text in ["", "zz", &text[..255], &text[..254], &format!("{text}00")] {
            let error = text.parse::<UniqueId>().expect_err("not an id");
            assert_eq!(error.kind(), ErrorKind::Malformed);
        }
        let mine = TcpBootstrap::join(id.clone(), 0, 2, &options()).await;
        assert_eq!(
            mine.expect_err("rank 0 has the root").kind(),
            ErrorKind::InvalidArgument
        );
    });
}

#[test]
fn arguments_of_groups() {
    block_on(async {
        let options = options();
        let refused = [
            MemoryBootstrap::group(0).map(drop),
            UnixBootstrap::join("x", 2, 2, &options).await.map(drop),
            UnixBootstrap::join("", 0, 2, &options).await.map(drop),
            UnixBootstrap::join(&"x".repeat(81), 0, 2, &options)
                .await
                .map(drop),
            TcpBootstrap::join("127.0.0.1:1", 0, 0, &options)
                .await
                .map(drop),
            TcpBootstrap::join("nowhere", 0, 1, &options)
                .await
                .map(drop),
        ];
        for refused in refused {
            assert_eq!(
                refused.expect_err("refused").kind(),
                ErrorKind::InvalidArgument
            );
        }
    });
    let outside = MemoryBootstrap::group(2).expect_err("no runtime");
    assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
}

/// A rank in a process of its own: joins, says so, goes through one barrier, and then says how the second ends.
fn rank_in_a_child(part: &str) -> bool {
    let Some(mut parent) = child(part) else {
        return false;
    };
    let variable = |name: &str| std::env::var(name).expect("set by the parent");
    let number = |name: &str| variable(name).parse::<usize>().expect("a number");
    runtime().block_on(async {
        let joined: Result<TcpBootstrap> = TcpBootstrap::join(
            variable("WHARFTEST_PLACE"),
            number("WHARFTEST_RANK"),
            number("WHARFTEST_SIZE"),
            &BootstrapOptions::new().secret("of the children"),
        )
        .await;
        let bootstrap = joined.expect("joined");
        bootstrap.barrier().await.expect("all are there");
        parent.say("in");
        if bootstrap.rank() == number("WHARFTEST_STAYS") {
            parent.wait_for_death().await;
        }
        let ended = bootstrap.barrier().await;
        parent.say(match ended {
            Ok(()) => "through".to_owned(),
            Err(error) => format!("{:?} {error}", error.kind()),
        });
    });
    true
}

fn children(test: &str, place: &str, ranks: std::ops::Range<usize>, size: usize) -> Vec<Child> {
    // Rank 0 does not come to the second barrier, which would end well else.
    ranks
        .map(|rank| {
            Child::start(
                test,
                "rank",
                &[
                    ("WHARFTEST_PLACE", place),
                    ("WHARFTEST_RANK", &rank.to_string()),
                    ("WHARFTEST_SIZE", &size.to_string()),
                    ("WHARFTEST_STAYS", "0"),
                ],
            )
        })
        .collect()
}

/// kill -9 in a barrier: all others are told at once, by name.
#[test]
fn killed_in_a_barrier() {
    if rank_in_a_child("rank") {
        return;
    }
    let place = own_place().to_string();
    let mut ranks = children(this_test!(), &place, 1..4, 4);
    block_on(async {
        let options = BootstrapOptions::new().secret("of the children");
        let zero = TcpBootstrap::join(place, 0, 4, &options)
            .await
            .expect("joined");
        zero.barrier().await.expect("all are there");
        for rank in &mut ranks {
            assert_eq!(rank.hear().await, "in");
        }
        let clock = Clock::now();
        let mut killed = ranks.remove(1);
        killed.kill();
        // Rank 0 has not come to the barrier itself, and yet the others are told.
        for rank in &mut ranks {
            assert_eq!(rank.hear().await, "PeerDied rank 2 has died");
        }
        let error = zero.barrier().await.expect_err("rank 2 has died");
        assert_eq!(error.kind(), ErrorKind::PeerDied, "{error}");
        assert_eq!(error.to_string(), "rank 2 has died");
        // At once, and not at the deadline of 30 seconds.
        assert!(clock.elapsed() < Duration::from_secs(20));
    });
    ranks.into_iter().for_each(Child::finish);
}

/// Rank 0 is killed: so are all told.
#[test]
fn rank_zero_killed() {
    if rank_in_a_child("rank") {
        return;
    }
    let place = own_place().to_string();
    let mut ranks = children(this_test!(), &place, 0..3, 3);
    block_on(async {
        for rank in &mut ranks {
            assert_eq!(rank.hear().await, "in");
        }
        let clock = Clock::now();
        let mut killed = ranks.remove(0);
        killed.kill();
        for rank in &mut ranks {
            assert_eq!(rank.hear().await, "PeerDied rank 0 has died");
        }
        assert!(clock.elapsed() < Duration::from_secs(20));
    });
    ranks.into_iter().for_each(Child::finish);
}
