//! Who is let in: the program's own check, and limits on connections.

use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use wharf::{
    Admission, Endpoint, ErrorKind, IncomingInfo, Listener, Result, Tag, Via, Worker,
    config::Limits,
};

use crate::{
    fixture::{Way, run, run_on_threads},
    support::Looks,
};

scenarios! { between workers:
    /// Whom the check refuses hears why, and no listener's program hears of it. It is told what is known for sure.
    async fn the_check_decides(way: Way) {
        let seen: Arc<Mutex<Vec<IncomingInfo>>> = Arc::default();
        let (noted, open) = (seen.clone(), Arc::new(Mutex::new(false)));
        let gate = open.clone();
        let builder = way.builder().admit(move |peer| {
            noted.lock().push(peer.clone());
            match *gate.lock() {
                true => Admission::Accept,
                false => Admission::Refuse("not before nine".to_owned()),
            }
        });
        let there = Worker::new(&builder.build().expect("a context")).expect("a worker");
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = there.address().expect("an address");
        let here = way.worker();
        for by_address in [false, true] {
            let refused = match by_address {
                false => here.connect(listener.local_addr()).await,
                true => here.connect(&address).await,
            };
            let refused = refused.expect_err("before nine");
            assert_eq!(refused.kind(), ErrorKind::Rejected, "{refused}");
            assert!(refused.to_string().contains("not before nine"), "{refused}");
            let peer = seen.lock().pop().expect("it was asked");
            assert!(seen.lock().is_empty(), "once for each connection");
            assert_eq!((peer.is_by_address(), peer.worker()), (by_address, here.id()));
            assert!(!peer.knows_secret(), "there is none");
            match way.is_network() {
                true => {
                    assert_eq!((peer.via(), peer.peer_credentials()), (Via::Tcp, None));
                    assert!(peer.peer_addr().is_some());
                }
                false => {
                    assert_eq!(peer.via(), Via::Unix);
                    // Whoever has dialled an address has one.
                    assert_eq!(peer.peer_addr().is_none(), by_address);
                    let process = peer.peer_credentials().expect("the kernel knows");
                    assert_eq!(process.pid, std::process::id());
                    assert_eq!(process.uid, nix::unistd::geteuid().as_raw());
                }
            }
        }
        assert!(listener.accept().now_or_never().is_none(), "asked about who was refused");
        let metrics = there.metrics();
        assert_eq!((metrics.refused_by_check, metrics.accepted), (2, 0));
        *open.lock() = true;
        let dialled = here.connect(&address).await.expect("it is nine");
        dialled.tag_send(1, vec![1; 8]).await.expect("sent");
        there.tag_recv(Tag(1), vec![0; 8]).await.expect("a message");
        assert_eq!(there.metrics().accepted, 1);
        let (_dialled, incoming) = tokio::join!(here.connect(listener.local_addr()), async {
            let incoming = listener.accept().await.expect("a request");
            let info = incoming.info().expect("not answered yet").clone();
            incoming.accept().await.expect("accepted");
            info
        });
        assert!(!incoming.is_by_address());
    }

    /// As many connections as may be, of all sources or of one; the next is told so, and one that ends gives its place back.
    async fn limits_hold(way: Way) {
        let source = Limits::default().each_source(|quota| quota.connections(2));
        let worker = Limits::default().whole_worker(|quota| quota.connections(2));
        for (limits, of_one_source) in [(source, true), (worker, false)] {
            let context = way.builder().limits(limits).build().expect("a context");
            let there = Worker::new(&context).expect("a worker");
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let address = there.address().expect("an address");
            // A peer that comes to another address of this host over a network is another source.
            let unasked = !(of_one_source && way.is_network());
            let here = way.worker();
            // Dropped, the other end would close it.
            let (first, _first_there) = match unasked {
                true => (here.connect(&address).await, None),
                false => {
                    let (first, there) = meet(&here, &listener).await;
                    (first, Some(there))
                }
            };
            let first = first.expect("the first");
            first.tag_send(1, vec![1; 8]).await.expect("sent");
            there.tag_recv(Tag(1), vec![0; 8]).await.expect("a message");
            let (second, accepted) = meet(&here, &listener).await;
            let (second, accepted) = (second.expect("the second"), accepted.expect("the second"));
            let late = way.worker();
            let (refused, accepted_third) = meet(&late, &listener).await;
            assert_eq!(refused.expect_err("a third").kind(), ErrorKind::Exhausted);
            assert_eq!(accepted_third.expect_err("a third").kind(), ErrorKind::Exhausted);
            assert_eq!(there.metrics().refused_over_limit, 1);
            if unasked {
                let refused = late.connect(&address).await.expect_err("a third, unasked");
                assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
                assert!(refused.to_string().contains("limit"), "{refused}");
                // At each of its addresses.
                assert!(there.metrics().refused_over_limit > 1);
            }
            assert_eq!(there.metrics().accepted, 2);
            // One that this side dials takes no place.
            let out = way.worker();
            there.connect(&out.address().expect("an address")).await.expect("not limited");
            // The places come back, of who was asked for and of who was not.
            second.close().await.expect("closed");
            accepted.closed().await;
            let (again, kept) = meet(&late, &listener).await;
            let (again, kept) = (again.expect("a place came back"), kept.expect("a place came back"));
            first.close().await.expect("closed");
            let mut looks = Looks::new("a place");
            loop {
                // The other end may not have noticed yet.
                match meet(&late, &listener).await.0 {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}"),
                }
                looks.again().await;
            }
            drop((again, kept));
        }
    }
}

/// Both ends of a connection to a listener, as far as they came.
async fn meet(here: &Worker, listener: &Listener) -> (Result<Endpoint>, Result<Endpoint>) {
    let address = listener.local_addr();
    tokio::join!(here.connect(address), async {
        listener.accept().await.expect("a request").await
    })
}
