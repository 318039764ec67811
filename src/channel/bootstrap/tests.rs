//! What a peer may send, from within: frames that no rank of ours would.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt;
use proptest::prelude::*;
use tokio::{net::TcpListener, time::Instant};

use super::{
    Bootstrap, MAX_GATHER, MAX_MESSAGE, MemoryBootstrap, after,
    collector::Collector,
    frame::{Frame, Gone, decode_error, decode_verdict, encode_error, encode_verdict},
    hub::Member,
    rendezvous::{Me, follow, lead, peer_introduction},
    socket::{Acceptor, Address, Socket},
};
use crate::error::{Error, ErrorKind};

const WAIT: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));

fn frames() -> impl Strategy<Value = Frame> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from);
    prop_oneof![
        (any::<u64>(), bytes()).prop_map(|(tag, bytes)| Frame::Message { tag, bytes }),
        any::<u32>().prop_map(|bytes| Frame::Credit {
            bytes: bytes as usize
        }),
        (any::<u64>(), any::<u32>(), bytes()).prop_map(|(call, millis, bytes)| Frame::Part {
            call,
            millis,
            bytes
        }),
        (any::<u64>(), bytes()).prop_map(|(call, body)| Frame::Verdict { call, body }),
        (any::<u32>(), any::<bool>()).prop_map(|(rank, died)| Frame::Gone {
            rank: rank as usize,
            how: if died { Gone::Died } else { Gone::Left },
        }),
        Just(Frame::Goodbye),
    ]
}

proptest! {
    #[test]
    fn frames_come_back(frame in frames()) {
        let (head, body) = frame.clone().encode();
        let mut all = BytesMut::from(&head[4..]);
        all.extend_from_slice(&body);
        prop_assert_eq!(u32::from_le_bytes(*head.first_chunk().unwrap()) as usize, all.len());
        prop_assert_eq!(Frame::decode(&all.freeze()).unwrap(), frame);
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0..10_usize) {
        let bytes = Bytes::from(bytes);
        let _ = Frame::decode(&bytes);
        let _ = decode_verdict(&bytes, size);
        let _ = decode_error(&bytes);
        let _ = Address::decode(&bytes);
    }

    #[test]
    fn verdicts_come_back(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..9)) {
        let parts: Vec<Bytes> = parts.into_iter().map(Bytes::from).collect();
        let size = parts.len();
        let body = encode_verdict(&Ok(parts.clone()));
        prop_assert_eq!(decode_verdict(&body, size).unwrap(), parts);
        // Of a group of another size it is refused.
        prop_assert!(decode_verdict(&body, size + 1).is_err());
        prop_assert!(decode_verdict(&body.slice(..body.len() - 1), size).is_err());
    }

    #[test]
    fn addresses_come_back(ip in any::<[u8; 16]>(), port in any::<u16>(), name in prop::collection::vec(any::<u8>(), 0..100)) {
        for address in [
            Address::Tcp(SocketAddr::from((ip, port))),
            Address::Tcp(SocketAddr::from(([ip[0], ip[1], ip[2], ip[3]], port))),
            Address::Unix(name),
        ] {
            prop_assert_eq!(Address::decode(&address.encode()).unwrap(), address);
        }
    }
}

#[test]
fn long_messages_and_errors_are_bounded() {
    let mut bytes = BytesMut::new();
    bytes.put_u8(1);
    bytes.put_u64_le(1);
    bytes.resize(9 + MAX_MESSAGE + 1, 0);
    assert_eq!(
        Frame::decode(&bytes.freeze()).unwrap_err().kind(),
        ErrorKind::Malformed
    );
    let error = Error::new(ErrorKind::PeerDied, "é".repeat(4000));
    let told = decode_error(&encode_error(&error)).unwrap();
    assert_eq!(told.kind(), ErrorKind::PeerDied);
    assert_eq!(told.to_string(), "é".repeat(512));
}

/// The calls of ranks, in any order that they may come in.
#[test]
fn the_collector() {
    let later = after(Duration::from_secs(5));
    let part = |text: &'static str| Bytes::from_static(text.as_bytes());
    let mut collector = Collector::new(3);
    assert!(collector.part(2, 0, later, part("c")).unwrap().is_empty());
    // Its second call before the others' first.
    assert!(collector.part(2, 1, later, part("C")).unwrap().is_empty());
    assert!(collector.part(0, 0, later, part("a")).unwrap().is_empty());
    let verdicts = collector.part(1, 0, later, part("b")).unwrap();
    // Rank 0 comes last: it may end when it knows.
    let ranks: Vec<usize> = verdicts.iter().map(|verdict| verdict.rank).collect();
    assert_eq!(ranks, [2, 1, 0]);
    let parts = decode_verdict(&verdicts[0].body, 3).unwrap();
    assert_eq!(parts, ["a", "b", "c"]);
    // Out of order, and twice.
    for call in [0, 2] {
        let error = collector.part(0, call, later, part("x")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
    // Nothing is late yet; then all are.
    assert!(collector.tick(Instant::now()).is_empty());
    assert_eq!(collector.next_deadline(), Some(later));
    let verdicts = collector.tick(later);
    assert_eq!(verdicts.len(), 1);
    let error = decode_verdict(&verdicts[0].body, 3).unwrap_err();
    assert!(error.to_string().contains("ranks 0, 1 of 3"), "{error}");
    // Those that come later are told the same.
    let verdicts = collector.part(1, 1, later, part("B")).unwrap();
    assert_eq!((verdicts.len(), verdicts[0].rank), (1, 1));
    assert!(decode_verdict(&verdicts[0].body, 3).is_err());
    // One that dies with its part given ends the call all the same; one that leaves does not.
    collector.part(0, 1, later, part("A")).unwrap();
    collector.part(0, 2, later, part("A")).unwrap();
    collector.part(1, 2, later, part("B")).unwrap();
    assert!(collector.gone(1, Gone::Left).is_empty());
    let verdicts = collector.part(2, 2, later, part("C")).unwrap();
    assert_eq!(verdicts.len(), 3);
    // The next cannot end well any more.
    let verdicts = collector.part(0, 3, later, part("A")).unwrap();
    let error = decode_verdict(&verdicts[0].body, 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let mut collector = Collector::new(3);
    collector.part(0, 0, later, part("a")).unwrap();
    collector.part(1, 0, later, part("b")).unwrap();
    assert_eq!(collector.gone(1, Gone::Died).len(), 2);
}

/// One rank alone cannot make rank 0 keep more than its share.
#[test]
fn the_collector_is_bounded() {
    let later = after(Duration::from_secs(5));
    let mut collector = Collector::new(2);
    for call in 0..64 {
        assert!(collector.part(1, call, later, Bytes::new()).is_ok());
    }
    let error = collector.part(1, 64, later, Bytes::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    let mut collector = Collector::new(2);
    let long = Bytes::from(vec![0; MAX_MESSAGE]);
    let mut failed = 0;
    for call in 0..60 {
        for verdict in collector.part(1, call, later, long.clone()).unwrap() {
            let error = decode_verdict(&verdict.body, 2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Exhausted);
            failed += 1;
        }
    }
    assert_eq!(failed, 60 - MAX_GATHER / MAX_MESSAGE);
}

async fn acceptor() -> (Acceptor, Address) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let acceptor = Acceptor::Tcp(listener);
    let address = acceptor.address().expect("an address");
    (acceptor, address)
}

/// A group of two whose rank 1 is only a socket.
async fn with_a_raw_rank() -> (Member, super::rendezvous::Tasks, Socket) {
    let (acceptor, address) = acceptor().await;
    let me = Me::new(None).expect("random bytes");
    let joining = async {
        let socket = address.dial().await?;
        me.meet(&socket).await?;
        let mut block = vec![b'R'];
        for word in [1_u32, 2, 10_000] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        block.extend_from_slice(&address.encode());
        socket.write_block(&block).await?;
        socket.read_block(1000).await?;
        Ok(socket)
    };
    let root = lead(acceptor, Me::new(None).expect("random"), 2, WAIT);
    let ((hub, tasks), socket) = tokio::try_join!(root, joining).expect("a group");
    (Member(hub), tasks, socket)
}

fn written(frame: Frame) -> Vec<u8> {
    let (head, body) = frame.encode();
    [head, body].concat()
}

#[tokio::test]
async fn a_rank_that_does_not_keep_to_the_protocol_is_dropped() {
    let long = Bytes::from(vec![0; MAX_MESSAGE]);
    let message = |tag| {
        written(Frame::Message {
            tag,
            bytes: long.clone(),
        })
    };
    let verdict = (MAX_MESSAGE as u32 + 14).to_le_bytes();
    let cases: [(&str, Vec<u8>); 9] = [
        ("too long", u32::MAX.to_le_bytes().to_vec()),
        ("as long as only what rank 0 sends", verdict.to_vec()),
        ("empty", vec![0, 0, 0, 0]),
        ("of no kind", vec![1, 0, 0, 0, 99]),
        (
            "more than there is room for",
            [1, 2, 3].map(message).concat(),
        ),
        ("unearned credit", written(Frame::Credit { bytes: 1 })),
        (
            "a verdict from one that has none to give",
            written(Frame::Verdict {
                call: 0,
                body: Bytes::new(),
            }),
        ),
        (
            "a death that only rank 0 tells",
            written(Frame::Gone {
                rank: 0,
                how: Gone::Died,
            }),
        ),
        (
            "a call out of order",
            written(Frame::Part {
                call: 7,
                millis: 1,
                bytes: Bytes::new(),
            }),
        ),
    ];
    for (what, bytes) in cases {
        let (zero, _tasks, socket) = with_a_raw_rank().await;
        // It may be cut off in the middle.
        let _ = socket.write_all(&bytes).await;
        let error = zero.receive(1, 77).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::PeerDied, "{what}: {error}");
        assert!(error.to_string().contains("rank 1"), "{what}: {error}");
    }
    // And one that does.
    let (zero, _tasks, socket) = with_a_raw_rank().await;
    let frame = Frame::Message {
        tag: 77,
        bytes: "good".into(),
    };
    socket.write_all(&written(frame)).await.expect("written");
    assert_eq!(zero.receive(1, 77).await.expect("received"), "good");
}

/// More than the sockets hold is under way when a rank leaves, and something comes that it does not read: a socket that is simply closed then is reset.
#[tokio::test]
async fn what_one_that_leaves_had_sent_arrives() {
    let (zero, _tasks, socket) = with_a_raw_rank().await;
    if let Socket::Tcp(stream) = &socket {
        let small = socket2::SockRef::from(stream).set_recv_buffer_size(64 << 10);
        small.expect("a smaller buffer");
    }
    let message = |tag| Frame::Message {
        tag,
        bytes: vec![tag as u8; MAX_MESSAGE].into(),
    };
    let mut sent = Vec::new();
    for tag in [1, 2] {
        let bytes = vec![tag as u8; MAX_MESSAGE].into();
        zero.send(1, tag, bytes).await.expect("there is room");
        sent.extend(written(message(tag)));
    }
    sent.extend(written(Frame::Goodbye));
    drop(zero);
    let unread = Frame::Message {
        tag: 3,
        bytes: vec![0; 1000].into(),
    };
    socket.write_all(&written(unread)).await.expect("written");
    let got = within(socket.read_exact(sent.len())).await;
    assert!(got.expect("all of it") == sent);
    // Its direction ends, and nothing is broken.
    let end = within(socket.read_exact(1)).await.expect_err("the end");
    assert!(end.to_string().contains("closed the connection"), "{end}");
}

/// Fails instead of waiting for ever.
async fn within<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(WAIT.0, future).await;
    waited.expect("in time")
}

#[tokio::test]
async fn a_rank_zero_that_talks_nonsense_is_an_error() {
    let answers: [Vec<u8>; 5] = [
        vec![],
        vec![2],
        vec![0; 17],
        [vec![0; 17], vec![7, 4, 127, 0, 0, 1, 1, 1, 7, 99]].concat(),
        vec![1],
    ];
    for answer in answers {
        let (acceptor, address) = acceptor().await;
        let root = async {
            let socket = acceptor.accept().await;
            Me::new(None)?.greet(&socket).await?;
            socket.read_block(1000).await?;
            socket.write_block(&answer).await?;
            Ok::<_, Error>(socket)
        };
        let places = move || std::future::ready(Ok(vec![address.clone()])).boxed();
        let one = follow(places, Me::new(None).expect("random"), 1, 2, WAIT);
        let (root, one) = tokio::join!(root, one);
        let _root: Socket = root.expect("it answered");
        let error = one.map(drop).expect_err("nonsense");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
    }
}

/// Only rank 0 is believed what it says of others and of calls, and it has its connection; nor does a rank connect to itself.
#[test]
fn who_may_connect_to_a_rank() {
    let from = |rank: u32| {
        let mut block = vec![b'P'];
        block.extend_from_slice(&rank.to_le_bytes());
        block.extend_from_slice(&[7; 16]);
        peer_introduction(&block, [7; 16], 2, 4)
    };
    assert_eq!(from(1).ok(), Some(1));
    assert_eq!(from(3).ok(), Some(3));
    for rank in [0, 2] {
        let error = from(rank).expect_err("not by this way");
        assert_eq!(error.kind(), ErrorKind::Rejected);
    }
}

/// What another rank says of an error goes into errors and logs.
#[test]
fn an_error_from_elsewhere_is_one_line() {
    let told = Error::new(ErrorKind::Rejected, "rank 1's\n\u{1b}[2J \u{202e}");
    let error = decode_error(&encode_error(&told)).expect("an error");
    let text = error.to_string();
    assert!(text.contains("rank 1's\\n"), "{text}");
    assert!(!text.contains(['\n', '\u{1b}', '\u{202e}']), "{text}");
}

/// Calls that begin on several threads go to rank 0 in the order of their numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_may_begin_on_several_threads() {
    let group = Arc::new(MemoryBootstrap::group(2).expect("a group"));
    let calls = (0..4).map(|number| {
        let group = group.clone();
        tokio::spawn(async move {
            for _ in 0..2000 {
                group[number % 2].all_gather(Bytes::new()).await?;
            }
            Ok::<_, Error>(())
        })
    });
    for call in futures::future::join_all(calls).await {
        call.expect("no panic").expect("in order");
    }
}
