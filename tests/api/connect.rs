//! How connections come about, and how they do not.

use std::time::Duration;

use wharf::{Context, ErrorKind, Worker, WorkerAddress};

use crate::{
    fixture::{Pair, Side, Way, connect, pattern, run, run_on_threads, same},
    support::Looks,
};

fn pair_of(
    context: &Context,
    here: (Worker, wharf::Endpoint),
    there: (Worker, wharf::Endpoint),
) -> Pair {
    let side = |(worker, endpoint)| Side {
        context: context.clone(),
        worker,
        endpoint,
    };
    Pair {
        here: side(here),
        there: side(there),
    }
}

/// Messages of all kinds, both ways.
async fn works(pair: &Pair) {
    for size in [8, 5000, 200_000] {
        for (from, to) in [(&pair.here, &pair.there), (&pair.there, &pair.here)] {
            let (received, ()) =
                tokio::join!(to.receive(77, size), from.send(77, pattern(size, 7)));
            same(&received, pattern(size, 7), size);
        }
    }
}

scenarios! { everywhere, and without pidfd:
    /// An address goes through bytes and text, and no other bytes or text are one.
    async fn addresses(way: Way) {
        let address = way.worker().address().expect("an address");
        let bytes = address.to_bytes();
        assert_eq!(WorkerAddress::from_bytes(&bytes).expect("unaltered"), address);
        let text = address.to_string();
        assert_eq!(text.parse::<WorkerAddress>().expect("unaltered"), address);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x11;
            assert_eq!(WorkerAddress::from_bytes(&bad).expect_err("altered").kind(), ErrorKind::Malformed, "byte {at}");
            assert_eq!(WorkerAddress::from_bytes(&bytes[..at]).expect_err("cut").kind(), ErrorKind::Malformed);
        }
        for at in 0..text.len() {
            text[..at].parse::<WorkerAddress>().expect_err("cut");
        }
    }

    /// Several endpoints to oneself or between the same two workers are apart from each other.
    async fn several(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        if way == Way::Own {
            let address = here.address().expect("an address");
            let one = here.connect(&address).await.expect("oneself");
            let two = here.connect(&address).await.expect("oneself");
            assert_ne!(one.id(), two.id());
            one.close().await.expect("closed");
            two.tag_send(1, vec![1; 8]).await.expect("the other stands");
            return;
        }
        let one = connect(&here, &there).await;
        let two = connect(&here, &there).await;
        assert_eq!(one.0.peer(), Some(there.id()));
        assert_eq!(one.1.peer(), Some(here.id()));
        works(&pair_of(&context, (here.clone(), two.0), (there.clone(), two.1))).await;
        works(&pair_of(&context, (here, one.0), (there, one.1))).await;
    }
}

scenarios! { between workers, and without pidfd:
    /// By a worker's address, without a listener; the other end finds the connection when it dials in turn.
    async fn by_address(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let dialled = here.connect(&there.address().expect("an address")).await.expect("connected");
        assert_eq!(dialled.transports(), way.transports());
        let answered = there.connect(here.address().expect("an address")).await.expect("connected");
        works(&pair_of(&context, (here, dialled), (there, answered))).await;
    }

    /// A message of one who dialled by address names an endpoint to answer on, though nobody accepted.
    async fn by_address_and_back(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let dialled = here.connect(&there.address().expect("an address")).await.expect("connected");
        dialled.tag_send(1, vec![1; 8]).await.expect("sent");
        let received = there.tag_recv(1, vec![0; 8]).await.expect("a message");
        // An answer, and another: the connection outlasts what was taken to answer on.
        for tag in [2, 3] {
            let back = there.endpoint(received.from).expect("open");
            back.tag_send(tag, vec![2; 8]).await.expect("answered");
            drop(back);
            here.tag_recv(tag, vec![0; 8]).await.expect("an answer");
            dialled.tag_send(1, vec![1; 8]).await.expect("sent");
            there.tag_recv(1, vec![0; 8]).await.expect("a message");
        }
        let back = there.endpoint(received.from).expect("open");
        works(&pair_of(&context, (here, dialled), (there, back))).await;
    }

    /// Both dial at once: each gets one endpoint, and they are the ends of one connection.
    async fn both_at_once(way: Way) {
        let context = way.context();
        for _ in 0..12 {
            let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
            let (to_there, to_here) = (there.address().expect("an address"), here.address().expect("an address"));
            let dial = |worker: Worker, address: WorkerAddress| tokio::spawn(async move { worker.connect(&address).await });
            let (one, two) = (dial(here.clone(), to_there), dial(there.clone(), to_here));
            let one = one.await.expect("to its end").expect("connected");
            let two = two.await.expect("to its end").expect("connected");
            works(&pair_of(&context, (here, one), (there, two))).await;
        }
    }

    /// Accepted on a worker other than the one that listens.
    async fn accepted_elsewhere(way: Way) {
        let context = way.context();
        let [here, front, there] = std::array::from_fn(|_| Worker::new(&context).expect("a worker"));
        let listener = front.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let (dialled, accepted) = tokio::join!(here.connect(address), async {
            let incoming = listener.accept().await.expect("a request");
            assert_eq!(incoming.peer(), Some(here.id()));
            incoming.accept_on(&there).await
        });
        let (dialled, accepted) = (dialled.expect("connected"), accepted.expect("accepted"));
        assert_eq!(dialled.peer(), Some(there.id()));
        drop((listener, front));
        works(&pair_of(&context, (here, dialled), (there, accepted))).await;
    }

    async fn rejected(way: Way) {
        let (here, there) = (way.worker(), way.worker());
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let (result, ()) = tokio::join!(here.connect(address), async {
            listener.accept().await.expect("a request").reject("not on Sundays").await;
        });
        let error = result.expect_err("rejected");
        assert_eq!(error.kind(), ErrorKind::Rejected);
        assert!(error.to_string().contains("not on Sundays"), "{error}");
        let (result, ()) = tokio::join!(here.connect(address), async {
            drop(listener.accept().await.expect("a request"));
        });
        assert_eq!(result.expect_err("rejected").kind(), ErrorKind::Rejected);
        // And the next is taken.
        let (result, accepted) = tokio::join!(here.connect(address), async { listener.accept().await.expect("a request").await });
        result.expect("connected");
        accepted.expect("accepted");
    }

    async fn secrets(way: Way) {
        let context = |secret: Option<&str>| {
            let builder = way.builder();
            match secret {
                Some(secret) => builder.secret(secret).build(),
                None => builder.build(),
            }
            .expect("a context")
        };
        let right = context(Some("open sesame"));
        let there = Worker::new(&right).expect("a worker");
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        for wrong in [Some("open barley"), Some("open sesam"), None] {
            let here = Worker::new(&context(wrong)).expect("a worker");
            assert_eq!(here.connect(address).await.expect_err("wrong").kind(), ErrorKind::AuthenticationFailed, "{wrong:?}");
            let by_address = here.connect(&there.address().expect("an address")).await;
            assert_eq!(by_address.expect_err("wrong").kind(), ErrorKind::AuthenticationFailed, "{wrong:?}");
        }
        let here = Worker::new(&right).expect("a worker");
        let (dialled, accepted) = tokio::join!(here.connect(address), async { listener.accept().await.expect("a request").await });
        works(&pair_of(&right, (here.clone(), dialled.expect("connected")), (there, accepted.expect("accepted")))).await;

        // One who demands a proof does not talk to a listener that has none, and that one hears nothing of it.
        let open = Worker::new(&context(None)).expect("a worker");
        let listener = open.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        tokio::select! {
            result = here.connect(address) => {
                assert_eq!(result.expect_err("no proof").kind(), ErrorKind::AuthenticationFailed);
            }
            request = listener.accept() => panic!("{request:?}"),
        }
    }

    /// Nobody there, nobody who speaks the protocol, nobody who speaks at all.
    async fn nobody(way: Way) {
        let here = Worker::new(&way.builder().connect_timeout(Duration::from_millis(200)).build().expect("a context")).expect("a worker");
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("its address");
        assert_eq!(here.connect(address).await.expect_err("silence").kind(), ErrorKind::DeadlineExceeded);
        let another = async {
            use tokio::io::AsyncWriteExt;
            // The silent one of before is among them still.
            let mut held = Vec::new();
            loop {
                let (mut stream, _) = socket.accept().await.expect("a connection");
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                held.push(stream);
            }
        };
        let error = tokio::select! {
            result = here.connect(address) => result.expect_err("not a peer"),
            () = another => unreachable!("it serves on"),
        };
        assert!(matches!(error.kind(), ErrorKind::Malformed | ErrorKind::Protocol | ErrorKind::ConnectionReset | ErrorKind::DeadlineExceeded), "{error:?}");
        // Bound, so that it is nobody else's, and never listened at: of a socket that was, a process that is being started may have a copy still.
        let silent = tokio::net::TcpSocket::new_v4().expect("a socket");
        silent.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
        let address = silent.local_addr().expect("its address");
        assert_eq!(here.connect(address).await.expect_err("nobody").kind(), ErrorKind::ConnectionRefused);
        assert_eq!(here.connect("no port").await.expect_err("no address").kind(), ErrorKind::InvalidArgument);

        let there = way.worker();
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        drop(listener);
        assert!(here.connect(address).await.is_err());
        let gone = there.address().expect("an address");
        there.shutdown(Duration::from_secs(60)).await.expect("in order");
        drop(there);
        assert!(here.connect(&gone).await.is_err());
    }

    /// A connect that is given up leaves nothing in the way of the next.
    async fn given_up(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        for patience in [0, 1, 2, 5, 10] {
            let _ = tokio::time::timeout(Duration::from_millis(patience), here.connect(address)).await;
        }
        let mut dial = std::pin::pin!(here.connect(address));
        let dialled = loop {
            tokio::select! {
                dialled = &mut dial => break dialled.expect("connected"),
                incoming = listener.accept() => {
                    // Those that were given up fail, or are closed soon.
                    let incoming = incoming.expect("a request");
                    tokio::spawn(async move {
                        if let Ok(endpoint) = incoming.await {
                            endpoint.closed().await;
                        }
                    });
                }
            }
        };
        dialled.tag_send(5, vec![5; 8]).await.expect("sent");
        let received = there.tag_recv(5, vec![0; 8]).await.expect("a message");
        assert_eq!(received.buffer, vec![5; 8]);
    }
}

/// Ends that have no transport in common say so.
#[test]
fn nothing_in_common() {
    run(async {
        for (here, there) in [(Way::Shm, Way::Tcp), (Way::Tcp, Way::Shm)] {
            let (here, there) = (here.worker(), there.worker());
            let listener = there.listen("127.0.0.1:0").await.expect("a listener");
            let address = listener.local_addr();
            let accept = async {
                while let Ok(incoming) = listener.accept().await {
                    assert!(incoming.accept().await.is_err());
                }
            };
            let error = tokio::select! {
                result = here.connect(address) => result.expect_err("nothing in common"),
                () = accept => unreachable!("the listener lives"),
            };
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
            let error = here
                .connect(&there.address().expect("an address"))
                .await
                .expect_err("nothing in common");
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
        }
    });
}

/// With everything allowed, the best is taken: shared memory between processes of one host, by a listener and by an address.
#[test]
fn the_best_is_taken() {
    run(async {
        let context = Context::builder()
            .transports("all")
            .expect("known")
            .cma(true)
            .pidfd(true)
            .build()
            .expect("a context");
        let (here, there) = (
            Worker::new(&context).expect("a worker"),
            Worker::new(&context).expect("a worker"),
        );
        let (dialled, accepted) = connect(&here, &there).await;
        assert_eq!(dialled.transports(), ["shm", "cma"]);
        assert_eq!(accepted.transports(), ["shm", "cma"]);
        let dialled = here
            .connect(&there.address().expect("an address"))
            .await
            .expect("connected");
        assert_eq!(dialled.transports(), ["shm", "cma"]);
        let own = here
            .connect(&here.address().expect("an address"))
            .await
            .expect("oneself");
        assert_eq!(own.transports(), ["self"]);
    });
}

scenarios! { between workers, and without pidfd:
    /// Connected, used and closed again and again between the same workers, by a listener and by either address, closed from either side.
    async fn again_and_again(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let (to_here, to_there) = (here.address().expect("an address"), there.address().expect("an address"));
        for round in 0..24 {
            let (one, two) = match round % 3 {
                0 => tokio::join!(here.connect(address), async { listener.accept().await.expect("a request").await }),
                1 => (here.connect(&to_there).await, there.connect(&to_here).await),
                _ => {
                    let two = there.connect(&to_here).await;
                    (here.connect(&to_there).await, two)
                }
            };
            let pair = pair_of(&context, (here.clone(), one.expect("connected")), (there.clone(), two.expect("connected")));
            works(&pair).await;
            let (one, two) = (&pair.here.endpoint, &pair.there.endpoint);
            match round % 4 {
                0 => one.close().await.expect("closed"),
                1 => two.close().await.expect("closed"),
                2 => one.abort(),
                _ => {
                    let (one, two) = tokio::join!(one.close(), two.close());
                    one.and(two).expect("closed");
                }
            }
            one.closed().await;
            two.closed().await;
        }
    }

    /// A listener on all addresses of the host.
    async fn any_address(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let listener = there.listen("0.0.0.0:0").await.expect("a listener");
        assert!(listener.local_addr().ip().is_unspecified());
        let address = format!("127.0.0.1:{}", listener.local_addr().port());
        let (one, two) = tokio::join!(here.connect(address), async { listener.accept().await.expect("a request").await });
        works(&pair_of(&context, (here, one.expect("connected")), (there, two.expect("accepted")))).await;
    }

    /// A listener that goes: who waits hears of it, a request in hand can still be accepted, and its port is free again.
    async fn listener_goes(way: Way) {
        let context = way.context();
        let (here, there) = (Worker::new(&context).expect("a worker"), Worker::new(&context).expect("a worker"));
        let listener = there.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        there.listen(address.to_string()).await.expect_err("the port is taken");
        let first = tokio::spawn({
            let here = here.clone();
            async move { here.connect(address).await }
        });
        let in_hand = listener.accept().await.expect("a request");
        let waiting = tokio::spawn({
            let here = here.clone();
            async move { here.connect(address).await }
        });
        crate::fixture::a_while().await;
        drop(listener);
        let error = waiting.await.expect("to its end").expect_err("nobody listens");
        // Refused where it was on its way from the one socket to the other.
        let gone = [ErrorKind::Rejected, ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused];
        assert!(gone.contains(&error.kind()), "{error:?}");
        let accepted = in_hand.accept().await.expect("accepted");
        let dialled = first.await.expect("to its end").expect("connected");
        let pair = pair_of(&context, (here, dialled), (there, accepted));
        works(&pair).await;
        // Its tasks end in their own time.
        let mut looks = Looks::new("the place");
        while pair.there.worker.listen(address.to_string()).await.is_err() {
            looks.again().await;
        }
    }
}

scenarios! { between workers, and without pidfd:
    /// To oneself where `self` is left out: refused by address; by a listener the worker is a peer of itself, as any other.
    async fn to_oneself(way: Way) {
        let context = way.context();
        let worker = Worker::new(&context).expect("a worker");
        let error = worker.connect(&worker.address().expect("an address")).await.expect_err("no `self`");
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("self"), "{error}");
        let (dialled, accepted) = connect(&worker, &worker).await;
        assert_eq!(dialled.transports(), way.transports());
        let pair = pair_of(&context, (worker.clone(), dialled), (worker, accepted));
        works(&pair).await;
        pair.here.endpoint.close().await.expect("closed");
        pair.there.endpoint.closed().await;
    }
}

/// Between workers, on each carrier.
#[test]
#[ignore = "needs IPv6 on the loopback device"]
fn ipv6() {
    const WAYS: [Way; 4] = [Way::Shm, Way::ShmWithoutCma, Way::Tcp, Way::RcVerbs];
    for way in WAYS {
        run(async {
            let context = way.context();
            let (here, there) = (
                Worker::new(&context).expect("a worker"),
                Worker::new(&context).expect("a worker"),
            );
            let listener = there.listen("[::1]:0").await.expect("a listener");
            assert!(listener.local_addr().is_ipv6());
            let address = listener.local_addr().to_string();
            let (dialled, accepted) = tokio::join!(here.connect(address), async {
                listener.accept().await.expect("a request").await
            });
            works(&pair_of(
                &context,
                (here, dialled.expect("connected")),
                (there, accepted.expect("accepted")),
            ))
            .await;
        });
    }
}
