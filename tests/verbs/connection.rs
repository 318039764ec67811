//! Connections by IP address.

use std::net::SocketAddr;

use crate::{
    driver::{
        rdmacm::{Connect, Event, EventChannel, EventKind, RdmaCm},
        verbs::{ReceiveRequest, SendFlags, SendRequest, State, Verbs},
    },
    error::ErrorKind,
    link::{End, needs_machine, run, watch},
};

fn channel() -> EventChannel {
    let verbs = Verbs::load(None).expect("libibverbs");
    let cm = RdmaCm::load(None, verbs).expect("librdmacm");
    cm.event_channel().expect("a channel")
}

async fn next(channel: &EventChannel) -> Event {
    let fd = watch(channel);
    loop {
        if let Some(event) = channel.next().expect("an event") {
            return event;
        }
        let mut guard = fd.readable().await.expect("readable");
        match channel.next().expect("an event") {
            Some(event) => return event,
            None => guard.clear_ready(),
        }
    }
}

async fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = next(channel).await;
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

fn parameters(queue_pair: u32, data: &[u8]) -> Connect<'_> {
    Connect {
        queue_pair,
        data,
        reads_served: 4,
        reads_started: 4,
        retries: 1,
        not_ready_retries: 1,
        shared_receives: false,
    }
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn queue_pairs_are_connected_by_address() {
    needs_machine!();
    run(async {
        let (asks, listens) = (channel(), channel());
        let listener = listens.id().expect("an identifier");
        listener.bind(at("10.77.0.2:0")).expect("binds");
        listener.listen(4).expect("listens");
        let address = listener.local_address().expect("an address");
        assert_ne!(address.port(), 0);

        let near = asks.id().expect("an identifier");
        near.resolve_address(Some(at("10.77.0.1:0")), address, 5000)
            .expect("asks");
        expect(&asks, EventKind::ADDR_RESOLVED).await;
        assert_eq!(near.device().as_deref(), Some("rxe0"));
        near.resolve_route(5000).expect("asks");
        expect(&asks, EventKind::ROUTE_RESOLVED).await;

        let ends = [End::open("rxe0"), End::open("rxe1")];
        let pair = |end: &End| {
            let options = crate::driver::verbs::QueuePairOptions {
                sends: &end.queue,
                receives: &end.queue,
                shared_receives: None,
                capacity: crate::link::CAPACITY,
                signal_all: false,
            };
            end.domain.queue_pair(&options).expect("a queue pair")
        };
        let pairs = [pair(&ends[0]), pair(&ends[1])];
        near.prepare(&pairs[0], State::INIT).expect("INIT");
        let too_long = [0; 57];
        let error = near
            .connect(&parameters(1, &too_long))
            .expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let number = pairs[0].number();
        near.connect(&parameters(number, b"who is there"))
            .expect("asks");

        let event = expect(&listens, EventKind::CONNECT_REQUEST).await;
        assert!(event.data.starts_with(b"who is there"));
        let far = event.incoming.expect("the new end");
        assert_eq!(far.device().as_deref(), Some("rxe1"));
        assert_eq!(
            far.peer_address().map(|peer| peer.ip()),
            Some(at("10.77.0.1:0").ip())
        );
        for state in [State::INIT, State::RTR, State::RTS] {
            far.prepare(&pairs[1], state).expect("changes");
        }
        let memory = ends[1].memory(1);
        let piece = [memory.piece(0..1)];
        receive(&pairs[1], ReceiveRequest::new(4, &piece));
        far.accept(&parameters(pairs[1].number(), b"it is me"))
            .expect("accepts");

        let event = expect(&asks, EventKind::CONNECT_RESPONSE).await;
        assert!(event.data.starts_with(b"it is me"));
        for state in [State::RTR, State::RTS] {
            near.prepare(&pairs[0], state).expect("changes");
        }
        near.establish().expect("established");
        expect(&listens, EventKind::ESTABLISHED).await;

        let source = ends[0].memory(1);
        source.set(0, 11);
        let piece = [source.piece(0..1)];
        post(
            &pairs[0],
            &mut [SendRequest::send(1, &piece, SendFlags::SIGNALED)],
        );
        ends[1].success().await;
        assert_eq!(memory.get(0), 11);
        ends[0].success().await;

        far.disconnect().expect("ends");
        let event = expect(&asks, EventKind::DISCONNECTED).await;
        assert_eq!(
            event.error().expect("an error").kind(),
            ErrorKind::ConnectionReset
        );
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn a_request_may_be_turned_down_or_reach_nobody() {
    needs_machine!();
    run(async {
        let (asks, listens) = (channel(), channel());
        let listener = listens.id().expect("an identifier");
        listener.bind(at("10.77.0.2:0")).expect("binds");
        listener.listen(4).expect("listens");
        let address = listener.local_address().expect("an address");
        for (to, kind) in [
            (address, ErrorKind::Rejected),
            (at("10.77.0.2:9"), ErrorKind::ConnectionRefused),
        ] {
            let near = asks.id().expect("an identifier");
            near.resolve_address(Some(at("10.77.0.1:0")), to, 5000)
                .expect("asks");
            expect(&asks, EventKind::ADDR_RESOLVED).await;
            near.resolve_route(5000).expect("asks");
            expect(&asks, EventKind::ROUTE_RESOLVED).await;
            near.connect(&parameters(77, b"")).expect("asks");
            if to == address {
                let event = expect(&listens, EventKind::CONNECT_REQUEST).await;
                event
                    .incoming
                    .expect("the new end")
                    .reject(b"no room")
                    .expect("rejects");
            }
            let event = expect(&asks, EventKind::REJECTED).await;
            assert_eq!(event.error().expect("an error").kind(), kind, "{event:?}");
            if to == address {
                assert!(event.data.starts_with(b"no room"), "{event:?}");
            }
        }
    });
}

#[test]
#[ignore = "needs RDMA devices: tests/rdma-vm/rdma-vm"]
fn an_address_without_device_is_told() {
    needs_machine!();
    let id = channel().id().expect("an identifier");
    let error = id.bind(at("192.0.2.1:0")).expect_err("nobody has it");
    assert!(matches!(error.kind(), ErrorKind::Unreachable), "{error:?}");
    assert!(id.device().is_none());
}

#[allow(unsafe_code, reason = "memory stays until the test's end")]
fn post(queue_pair: &crate::driver::verbs::QueuePair, requests: &mut [SendRequest<'_>]) {
    // SAFETY: callers keep memory until their end, and only touch it by atomics.
    unsafe { queue_pair.post_send(requests) }.expect("posted");
}

#[allow(unsafe_code, reason = "memory stays until the test's end")]
fn receive(queue_pair: &crate::driver::verbs::QueuePair, request: ReceiveRequest<'_>) {
    // SAFETY: as above.
    unsafe { queue_pair.post_receive(&mut [request]) }.expect("posted");
}
