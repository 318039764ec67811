//! Byte streams of all peers at one place.

use std::{collections::BTreeSet, future::Future, time::Duration};

use futures::{StreamExt, future::join_all};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use wharf::{ByteStream, Endpoint, ErrorKind, StreamListener, Worker, config::Limits};

use crate::{
    fixture::{Way, a_while, run, run_on_threads},
    stranger::{Key, Stranger, until_the_end},
};

async fn listens(way: Way) -> (Worker, StreamListener) {
    let worker = way.worker();
    let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
    (worker, StreamListener::new(listener))
}

/// A client that is connected while another task accepts.
async fn connected(way: Way, listener: &StreamListener) -> (Worker, Endpoint) {
    let client = way.worker();
    let endpoint = while_accepting(listener, client.connect(listener.local_addr())).await;
    (client, endpoint.expect("connected"))
}

/// Drives the listener, to which no stream may come, until something is done.
async fn while_accepting<T>(listener: &StreamListener, done: impl Future<Output = T>) -> T {
    tokio::select! {
        done = done => done,
        accepted = listener.accept() => panic!("{accepted:?}"),
    }
}

/// Opens a stream that says a number.
async fn say(endpoint: &Endpoint, number: u32) -> ByteStream {
    let mut stream = endpoint.stream().await.expect("opened");
    stream.write_u32(number).await.expect("written");
    stream.flush().await.expect("flushed");
    stream
}

async fn accepted(listener: &StreamListener) -> u32 {
    let (mut stream, _) = listener.accept().await.expect("a stream");
    stream.read_u32().await.expect("a number")
}

scenarios! { between workers:
    /// Several peers with several streams each: all are accepted, each peer's in its order, and it is said whose they are.
    async fn all_peers(way: Way) {
        let (_worker, listener) = listens(way).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connected(way, &listener).await);
        }
        let opens = join_all(clients.iter().map(async |(_, endpoint)| {
            let mut streams = Vec::new();
            for number in 0..5 {
                streams.push(say(endpoint, number).await);
            }
            streams
        }));
        let accepts = async {
            let mut next = [0; 3];
            for _ in 0..15 {
                let (mut stream, from) = listener.accept().await.expect("a stream");
                assert_eq!(from.worker(), stream.peer());
                assert_eq!(from.endpoint(), Some(stream.endpoint().id()));
                assert_eq!(from.peer_addr(), stream.peer_addr(), "{from}");
                assert!(from.peer_addr().is_some(), "it has dialled one: {from}");
                let process = from.peer_credentials().map(|peer| peer.pid);
                assert_eq!(process, (!way.is_network()).then(std::process::id), "{from}");
                let peer = clients.iter().position(|(client, _)| Some(client.id()) == from.worker());
                let next = &mut next[peer.expect("a client's")];
                assert_eq!(stream.read_u32().await.expect("a number"), *next);
                *next += 1;
                stream.write_u32(*next).await.expect("written");
            }
            assert_eq!(next, [5; 3]);
        };
        let (streams, ()) = tokio::join!(opens, accepts);
        for stream in streams.into_iter().flatten() {
            let (mut stream, mut expected) = (stream, 0);
            while let Ok(number) = stream.read_u32().await {
                expected += 1;
                assert!((1..=5).contains(&number));
            }
            assert_eq!(expected, 1, "an answer, and then the end");
        }
    }

    /// A busy peer does not keep another's stream waiting.
    async fn in_turns(way: Way) {
        let (_worker, listener) = listens(way).await;
        let busy = connected(way, &listener).await;
        let other = connected(way, &listener).await;
        let mut streams = Vec::new();
        for number in 0..50 {
            streams.push(say(&busy.1, number).await);
        }
        streams.push(say(&other.1, 1000).await);
        a_while().await;
        let mut before = 0;
        while accepted(&listener).await != 1000 {
            before += 1;
        }
        // Not more than could be there before it.
        assert!(before < 40, "{before} streams of the busy one came first");
    }

    /// Accepts that are dropped at any time lose nothing; several tasks accept, and each stream is one's.
    async fn dropped_accepts(way: Way) {
        let (_worker, listener) = listens(way).await;
        let address = listener.local_addr();
        let clients = join_all((0..3_u32).map(async |client| {
            let worker = way.worker();
            let endpoint = worker.connect(address).await.expect("connected");
            let mut streams = Vec::new();
            for number in 0..20 {
                streams.push(say(&endpoint, client * 100 + number).await);
                tokio::task::yield_now().await;
            }
            (worker, endpoint, streams)
        }));
        let accepters = join_all((1..4_u32).map(async |accepter| {
            let mut numbers = Vec::new();
            loop {
                let give_up = async {
                    for _ in 0..accepter {
                        tokio::task::yield_now().await;
                    }
                };
                let stop = tokio::select! {
                    biased;
                    accepted = listener.accept() => {
                        let (mut stream, _) = accepted.expect("a stream");
                        let number = stream.read_u32().await.expect("a number");
                        numbers.push(number);
                        number == u32::MAX
                    }
                    () = give_up => false,
                };
                if stop {
                    break numbers;
                }
            }
        }));
        let opened = async {
            let clients = clients.await;
            for _ in 0..3 {
                drop(say(&clients[0].1, u32::MAX).await);
            }
            clients
        };
        let (_clients, numbers) = tokio::join!(opened, accepters);
        let mut numbers: Vec<u32> = numbers.into_iter().flatten().filter(|number| *number != u32::MAX).collect();
        let mut late = BTreeSet::new();
        // What came beside the last words of the first client.
        while numbers.len() + late.len() < 60 {
            assert!(late.insert(accepted(&listener).await), "accepted twice");
        }
        numbers.extend(late);
        numbers.sort_unstable();
        let wanted: Vec<u32> = (0..3).flat_map(|client| (0..20).map(move |number| client * 100 + number)).collect();
        assert_eq!(numbers, wanted);
    }

    /// A peer that opens no stream is not accepted, and one that is turned away is no error.
    async fn peers_that_come_to_nothing(way: Way) {
        let mut limits = Limits::default();
        limits.worker.connections = 2;
        let context = way.builder().limits(limits).build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let listener = StreamListener::new(worker.listen("127.0.0.1:0").await.expect("a listener"));
        let address = listener.local_addr();
        let idle = connected(way, &listener).await;
        let second = connected(way, &listener).await;
        let third = way.worker();
        let error = while_accepting(&listener, third.connect(address)).await.expect_err("full");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        while_accepting(&listener, a_while()).await;
        let _stream = say(&second.1, 7).await;
        assert_eq!(accepted(&listener).await, 7);
        let _stream = say(&idle.1, 8).await;
        assert_eq!(accepted(&listener).await, 8);
    }

    /// Peers that give up anywhere in the middle are no error either.
    async fn peers_that_give_up(way: Way) {
        let (_worker, listener) = listens(way).await;
        let address = listener.local_addr();
        let client = way.worker();
        let mut micros = 50;
        loop {
            let dial = tokio::time::timeout(Duration::from_micros(micros), client.connect(address));
            if let Ok(dialled) = while_accepting(&listener, dial).await {
                let endpoint = dialled.expect("connected");
                let _stream = say(&endpoint, 7).await;
                assert_eq!(accepted(&listener).await, 7);
                break;
            }
            micros += micros / 4;
        }
    }

    /// With the worker it ends: who waits hears of it, and as a stream it is over.
    async fn ends_with_its_worker(way: Way) {
        for is_stream in [false, true] {
            let (worker, mut listener) = listens(way).await;
            let (_client, endpoint) = connected(way, &listener).await;
            let _stream = say(&endpoint, 1).await;
            assert_eq!(accepted(&listener).await, 1);
            let shuts = async {
                a_while().await;
                worker.shutdown(Duration::from_secs(5)).await.expect("shut down");
            };
            if is_stream {
                let (next, ()) = tokio::join!(listener.next(), shuts);
                assert!(next.is_none(), "{next:?}");
            } else {
                let (next, ()) = tokio::join!(listener.accept(), shuts);
                assert_eq!(next.expect_err("the end").kind(), ErrorKind::Closed);
            }
            assert_eq!(listener.accept().await.expect_err("the end").kind(), ErrorKind::Closed);
            assert!(listener.next().await.is_none());
        }
    }

    /// Dropped, it closes connections that nobody uses, and no other.
    async fn dropped(way: Way) {
        let (_worker, listener) = listens(way).await;
        let (_idle, idle) = connected(way, &listener).await;
        // Until a stream of it has come its handshake may be under way here still, and would be broken off.
        let opened = say(&idle, 3).await;
        assert_eq!(accepted(&listener).await, 3);
        drop(opened);
        let (_user, user) = connected(way, &listener).await;
        let mut here = say(&user, 1).await;
        let (mut there, _) = listener.accept().await.expect("a stream");
        drop(listener);
        assert_eq!(idle.closed().await.kind(), ErrorKind::ClosedByPeer);
        assert_eq!(there.read_u32().await.expect("a number"), 1);
        there.write_u32(2).await.expect("written");
        drop(there);
        assert_eq!(here.read_u32().await.expect("a number"), 2);
        assert_eq!(user.closed().await.kind(), ErrorKind::ClosedByPeer);
    }
}

/// Who says nothing, from the start or in the middle of the set-up, holds up nobody, though it has all the time that there is.
#[test]
fn silent_peers() {
    run(async {
        let context = Way::Tcp
            .builder()
            .handshake_timeout(Duration::from_secs(3600));
        let worker = Worker::new(&context.build().expect("a context")).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        let listener = StreamListener::new(listener);
        let address = listener.local_addr();
        let key = Key::new([0x42; 32]);
        let mut silent = Vec::new();
        for index in 0..8 {
            let mut stream = TcpStream::connect(address).await.expect("the listener");
            if index % 2 == 0 {
                // It is told that it is accepted, and leaves it there.
                let honest = Stranger::honest("tcp", &key);
                let verdict = while_accepting(&listener, honest.dial(&mut stream)).await;
                assert_eq!(verdict[6], b'A');
            }
            silent.push(stream);
            let (_client, endpoint) = connected(Way::Tcp, &listener).await;
            let _stream = say(&endpoint, index).await;
            assert_eq!(accepted(&listener).await, index);
        }
    });
}

/// There are not more at once than places, and who is silent in the set-up gives his to another.
#[test]
fn more_silent_peers_than_places() {
    run(async {
        let context = Way::Tcp
            .builder()
            .handshake_timeout(Duration::from_secs(3600));
        let worker = Worker::new(&context.build().expect("a context")).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        let listener = StreamListener::new(listener);
        let key = Key::new([0x42; 32]);
        let honest = Stranger::honest("tcp", &key);
        let mut silent = Vec::new();
        // All that one source may hold.
        for _ in 0..96 {
            let mut stream = TcpStream::connect(listener.local_addr())
                .await
                .expect("the listener");
            let verdict = while_accepting(&listener, honest.dial(&mut stream)).await;
            assert_eq!(verdict[6], b'A');
            silent.push(stream);
        }
        let client = Way::Tcp.worker();
        let endpoint = loop {
            let dial = client.connect(listener.local_addr());
            match while_accepting(&listener, dial).await {
                Ok(endpoint) => break endpoint,
                // On a machine that is busy elsewhere all of them may be so old that their source is sent away.
                Err(error) => eprintln!("{error}"),
            }
        };
        let _stream = say(&endpoint, 1).await;
        assert_eq!(accepted(&listener).await, 1);
        // One of them has heard why it had to go.
        let told = join_all(silent.iter_mut().map(|stream| {
            let end = until_the_end(stream);
            async {
                tokio::time::timeout(Duration::from_millis(50), end)
                    .await
                    .is_ok()
            }
        }));
        let gone = told.await.into_iter().filter(|gone| *gone).count();
        assert!((1..20).contains(&gone), "{gone} were sent away");
    });
}
