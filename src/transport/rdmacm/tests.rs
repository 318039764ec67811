//! Channels between the two devices of the virtual machine (`tests/rdma-vm`), and none elsewhere.

use std::{net::SocketAddr, time::Duration};

use tokio::time::timeout;

use super::*;
use crate::{
    driver::{
        rdmacm::{Connect, EventKind, Id, Libraries},
        verbs::{State, Verbs},
    },
    error::ErrorKind,
    transport::channel::Channel,
    util::testing,
};

use events::Events;
use pair::Pair;

/// As they are found.
static FOUND: Libraries = Libraries {
    verbs: None,
    cm: None,
};

const SOON: Duration = Duration::from_secs(20);

/// Runs a test that needs devices.
fn run(test: &str, future: impl Future<Output = ()>) {
    assert!(
        std::env::var_os("RDMA_VM").is_some(),
        "{test}: no RDMA devices; run in tests/rdma-vm/rdma-vm"
    );
    testing::run(future);
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

async fn listening() -> Listening {
    let listening = Listening::bind(&FOUND, at("10.77.0.1:0"), None)
        .await
        .expect("listens");
    assert_ne!(listening.local_addr().port(), 0);
    listening
}

async fn channels() -> (Channel, Channel) {
    let listening = listening().await;
    let (asks, serves) = tokio::join!(dial(&FOUND, listening.local_addr(), SOON, None), async {
        listening.accept().await.expect("asked").answer().await
    });
    (asks.expect("dials"), serves.expect("answers"))
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + seed) as u8).collect()
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn messages_cross_in_both_directions_at_once() {
    run("messages_cross_in_both_directions_at_once", async {
        let (mut near, mut far) = channels().await;
        assert!(!near.passes_fds() && !near.is_tcp());
        let lengths = [0, 1, 4091, 4092, 4093, Channel::MAX_MESSAGE, 5, 40_000];
        let talk = async |channel: &mut Channel| {
            for (seed, length) in lengths.into_iter().enumerate() {
                channel
                    .send(&pattern(length, seed), &[])
                    .await
                    .expect("sends");
            }
            for (seed, length) in lengths.into_iter().enumerate() {
                let (message, fds) = channel.receive().await.expect("receives");
                assert!(
                    message == pattern(length, seed) && fds.is_empty(),
                    "{length}"
                );
            }
        };
        tokio::join!(talk(&mut near), talk(&mut far));
        // Many small ones, each answered.
        for round in 0..100_u32 {
            near.send(&round.to_le_bytes(), &[]).await.expect("sends");
            let (question, _) = far.receive().await.expect("receives");
            far.send(&question, &[]).await.expect("sends");
            assert_eq!(
                near.receive().await.expect("receives").0,
                round.to_le_bytes()
            );
        }
        assert_eq!(
            far.take_tcp().expect_err("none").kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(
            far.take_unix().expect_err("none").kind(),
            ErrorKind::Unsupported
        );
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn what_was_sent_arrives_before_the_end() {
    run("what_was_sent_arrives_before_the_end", async {
        for which in 0..2 {
            let (near, far) = channels().await;
            let (mut goes, mut stays) = if which == 0 { (near, far) } else { (far, near) };
            let last = pattern(Channel::MAX_MESSAGE, which);
            goes.send(&last, &[]).await.expect("sends");
            drop(goes);
            assert_eq!(stays.receive().await.expect("receives").0, last);
            let error = stays.receive().await.expect_err("the end");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            assert!(
                error.peer().is_some_and(|peer| peer.contains("10.77.0.")),
                "{error}"
            );
        }
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_socket_that_was_taken_tells_the_end() {
    run("a_socket_that_was_taken_tells_the_end", async {
        let (mut near, mut far) = channels().await;
        near.send(b"all", &[]).await.expect("sends");
        assert_eq!(far.receive().await.expect("receives").0, b"all");
        let socket = near.take_stream().expect("takes");
        let socket = std::os::unix::net::UnixStream::from(socket);
        let socket = tokio::net::UnixStream::from_std(socket).expect("a socket");
        drop(far);
        socket.readable().await.expect("readable");
        let mut bytes = [0];
        assert_eq!(socket.try_read(&mut bytes).expect("reads"), 0);
        assert_eq!(
            near.take_stream().expect_err("gone").kind(),
            ErrorKind::Closed
        );
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn what_cannot_be_dialled_is_told() {
    run("what_cannot_be_dialled_is_told", async {
        for (to, kind) in [
            ("10.77.0.1:9", ErrorKind::ConnectionRefused),
            ("192.0.2.1:9", ErrorKind::Unreachable),
            ("127.0.0.1:9", ErrorKind::Unreachable),
        ] {
            let error = dial(&FOUND, at(to), SOON, None).await.expect_err("nobody");
            assert_eq!(error.kind(), kind, "{to}: {error:?}");
        }
        // Nobody has the address: found by nobody's answering.
        let error = dial(&FOUND, at("10.77.0.77:9"), Duration::from_millis(300), None).await;
        let error = error.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn what_cannot_be_listened_on_is_told() {
    run("what_cannot_be_listened_on_is_told", async {
        let error = Listening::bind(&FOUND, at("192.0.2.1:0"), None)
            .await
            .expect_err("nobody's");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        let first = listening().await;
        let error = Listening::bind(&FOUND, first.local_addr(), None)
            .await
            .expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("Address already in use"), "{text}");
        let address = first.local_addr();
        drop(first);
        // The end is on another thread.
        for _ in 0..200 {
            if Listening::bind(&FOUND, address, None).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the port is not free again");
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_dial_that_is_dropped_disturbs_nobody() {
    run("a_dial_that_is_dropped_disturbs_nobody", async {
        let listening = listening().await;
        for millis in [0, 1, 2, 5, 10, 20] {
            let dials = dial(&FOUND, listening.local_addr(), SOON, None);
            let _ = timeout(Duration::from_millis(millis), dials).await;
        }
        let serve = async {
            loop {
                let asked = listening.accept().await.expect("asked");
                if let Ok(mut channel) = asked.answer().await
                    && channel.send(b"hello", &[]).await.is_ok()
                {
                    // Until the other side is done.
                    let _ = channel.receive().await;
                }
            }
        };
        let dials = async {
            let mut channel = dial(&FOUND, listening.local_addr(), SOON, None)
                .await
                .expect("dials");
            assert_eq!(channel.receive().await.expect("receives").0, b"hello");
        };
        tokio::select! { () = serve => {}, () = dials => {} }
    });
}

/// An identifier of one that is no wharf, which asks or is asked.
fn raw() -> (Id, Events, &'static Verbs) {
    let (cm, verbs) = manager::manager(&FOUND).expect("the libraries");
    let channel = cm.event_channel().expect("a channel");
    let id = channel.id().expect("an identifier");
    (id, Events::new(channel).expect("events"), verbs)
}

fn parameters(queue_pair: u32, data: &[u8]) -> Connect<'_> {
    Connect {
        queue_pair,
        data,
        reads_served: 0,
        reads_started: 0,
        retries: 7,
        not_ready_retries: 7,
        shared_receives: false,
    }
}

async fn resolved(to: SocketAddr) -> (Id, Events, &'static Verbs) {
    let (id, events, verbs) = raw();
    id.resolve_address(None, to, 5000).expect("asks");
    events
        .expect(EventKind::ADDR_RESOLVED)
        .await
        .expect("found");
    id.resolve_route(5000).expect("asks");
    events
        .expect(EventKind::ROUTE_RESOLVED)
        .await
        .expect("found");
    (id, events, verbs)
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_foreign_request_is_turned_down_with_a_reason() {
    run("a_foreign_request_is_turned_down_with_a_reason", async {
        let listening = listening().await;
        for data in [&b""[..], b"hello, is this the database?", &[0xff; 56]] {
            let (id, events, _) = resolved(listening.local_addr()).await;
            id.connect(&parameters(77, data)).expect("asks");
            let refused = listening.accept().await.expect("asked").answer().await;
            let error = refused.expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
            let error = events.expect(EventKind::CONNECT_RESPONSE).await;
            let error = error.expect_err("turned down");
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error:?}");
            assert!(error.to_string().contains("no wharf"), "{error}");
        }
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_foreign_listener_is_told() {
    run("a_foreign_listener_is_told", async {
        let (listener, events, verbs) = raw();
        listener.bind(at("10.77.0.1:0")).expect("binds");
        listener.listen(4).expect("listens");
        let address = listener.local_address().expect("an address");
        let foreign = async {
            let event = events.next().await.expect("an event");
            let id = event.incoming.expect("asked");
            let (mut pair, _) = Pair::open(verbs, &id.device().expect("a device")).expect("opens");
            id.prepare(pair.queue_pair(), State::INIT).expect("INIT");
            pair.receive_all().expect("receives");
            id.prepare(pair.queue_pair(), State::RTR).expect("RTR");
            id.prepare(pair.queue_pair(), State::RTS).expect("RTS");
            let number = pair.queue_pair().number();
            id.accept(&parameters(number, b"220 ready"))
                .expect("accepts");
            (pair, id)
        };
        let (dialled, _kept) = tokio::join!(dial(&FOUND, address, SOON, None), foreign);
        let error = dialled.expect_err("foreign");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
        assert!(error.to_string().contains("no wharf"), "{error}");
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn foreign_bytes_end_a_channel_with_an_error() {
    run("foreign_bytes_end_a_channel_with_an_error", async {
        // Headers that are none, and one that gives back more places than there are.
        for header in [[0, 0, 1, 0], [0xff, 0xff, 0, 0]] {
            let listening = listening().await;
            let (id, events, verbs) = resolved(listening.local_addr()).await;
            let (mut pair, _) = Pair::open(verbs, &id.device().expect("a device")).expect("opens");
            id.prepare(pair.queue_pair(), State::INIT).expect("INIT");
            pair.receive_all().expect("receives");
            let number = pair.queue_pair().number();
            let hello = greeting::Greeting::OWN.encode();
            id.connect(&parameters(number, &hello)).expect("asks");
            let ask = async {
                events
                    .expect(EventKind::CONNECT_RESPONSE)
                    .await
                    .expect("accepted");
                id.prepare(pair.queue_pair(), State::RTR).expect("RTR");
                id.prepare(pair.queue_pair(), State::RTS).expect("RTS");
                id.establish().expect("stands");
                let slot = Pair::send_slots()[0];
                pair.send(slot, header, 9).expect("sends");
            };
            let serve = async { listening.accept().await.expect("asked").answer().await };
            let (channel, ()) = tokio::join!(serve, ask);
            let error = channel
                .expect("stands")
                .receive()
                .await
                .expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error:?}");
        }
    });
}

#[test]
#[ignore = "needs a machine without RDMA devices"]
fn without_devices_it_says_so() {
    testing::run(async {
        let listens = Listening::bind(&FOUND, at("127.0.0.1:0"), None)
            .await
            .map(drop);
        let dials = dial(&FOUND, at("127.0.0.1:9"), SOON, None).await.map(drop);
        for result in [listens, dials] {
            let error = result.expect_err("no device");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            let start = "connections by RDMA address are not available: ";
            assert!(text.starts_with(start), "{text}");
        }
    });
}
