//! Who is taken: names, addresses, certificates of both ends, and what needs no TLS.

use wharf::{Access, Context, ErrorKind, Tag, Tls, Worker};

use crate::{Authority, connect, mutual, on_a_runtime, worker};

#[test]
fn both_ends_show_who_they_are() {
    on_a_runtime(async {
        let authority = Authority::new();
        let [here, there] = ["localhost", "127.0.0.1"].map(|name| authority.issue(&[name]));
        let tls = |shown| Tls::new(authority.client(Some(shown)), authority.server(shown, true));
        let workers = [tls(&there), tls(&here)].map(|tls| worker(Some(&tls)));
        let ends = connect([&workers[0], &workers[1]], "localhost").await;
        let ends = ends.expect("connected");
        assert_eq!(ends.shown, 1);
        let seen = ends.dialled.peer_certificates().expect("a chain");
        assert_eq!(seen[..], here.chain[..]);
        let seen = ends.accepted.peer_certificates().expect("a chain");
        assert_eq!(seen[..], there.chain[..]);
        assert_eq!(ends.dialled.transports(), ["tcp"]);
        // And one that is asked for none shows none.
        let tls = Tls::new(authority.client(None), authority.server(&there, false));
        let workers = [(); 2].map(|()| worker(Some(&tls)));
        let ends = connect([&workers[0], &workers[1]], "127.0.0.1").await;
        let ends = ends.expect("connected");
        assert_eq!(ends.shown, 0);
        assert!(ends.accepted.peer_certificates().is_none());
    });
}

/// By a worker's address the name is the one that was given, else the IP address.
#[test]
fn workers_by_their_addresses() {
    on_a_runtime(async {
        let authority = Authority::new();
        let shown = authority.issue(&["worker.example"]);
        let tls = Tls::new(authority.client(None), authority.server(&shown, false));
        let there = worker(Some(&tls));
        let address = there.address().expect("an address");
        let named = tls.clone().worker_name("worker.example").expect("a name");
        let here = worker(Some(&named));
        let endpoint = here.connect(&address).await.expect("connected");
        endpoint.tag_send(1u64, "hello").await.expect("sent");
        let received = there.tag_recv(Tag(1), vec![0; 5]).await;
        assert_eq!(received.expect("a message").buffer, b"hello");

        let error = worker(Some(&tls)).connect(&address).await.map(drop);
        let error = error.expect_err("not its IP address");
        assert_eq!(error.kind(), ErrorKind::AuthenticationFailed, "{error}");
        let error = tls
            .worker_name("not a name")
            .map(drop)
            .expect_err("a space");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    });
}

/// Processes of one user on one host go by shared memory, which needs no encryption.
#[test]
fn shared_memory_stays() {
    on_a_runtime(async {
        let tls = mutual(&Authority::new());
        let workers = [(); 2].map(|()| {
            let builder = Context::builder().transports("shm,tcp").expect("known");
            let context = builder.tls(tls.clone()).build().expect("a context");
            Worker::new(&context).expect("a worker")
        });
        let ends = connect([&workers[0], &workers[1]], "localhost").await;
        let ends = ends.expect("connected");
        assert_eq!(ends.dialled.transports()[0], "shm");
        assert!(ends.dialled.peer_certificates().is_none());
        let address = workers[1].address().expect("an address");
        let again = workers[0].connect(&address).await.expect("connected");
        assert_eq!(again.transports()[0], "shm");
    });
}

#[test]
fn rdma_is_refused() {
    on_a_runtime(async {
        let tls = mutual(&Authority::new());
        let builder = Context::builder().transports("rc_verbs").expect("known");
        let error = builder.tls(tls.clone()).build().map(drop);
        let error = error.expect_err("nothing is left");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("no encryption"), "{error}");

        let context = Context::builder().tls(tls.clone()).build();
        let context = context.expect("a context");
        let left_out = context.unavailable().iter();
        let why = left_out.filter(|(name, _)| name == "rc_verbs").count();
        assert_eq!(why, 1, "{:?}", context.unavailable());
        let worker = worker(Some(&tls));
        let listened = worker.listen_rdma("127.0.0.1:0").await.map(drop);
        let dialled = worker.connect_rdma("127.0.0.1:1").await.map(drop);
        for error in [listened, dialled].map(|result| result.expect_err("no encryption")) {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("TLS"), "{error}");
        }
    });
}

/// Memory of a peer, and long messages both ways at once, with nobody polling but the two ends.
#[test]
fn long_transfers_both_ways() {
    on_a_runtime(async {
        let tls = mutual(&Authority::new());
        let workers = [(); 2].map(|()| worker(Some(&tls)));
        let ends = connect([&workers[0], &workers[1]], "localhost").await;
        let ends = ends.expect("connected");
        let long = crate::pattern(5 << 20);
        let (a, b, c, d) = tokio::join!(
            ends.dialled.tag_send(1u64, long.clone()),
            ends.accepted.tag_send(2u64, long.clone()),
            workers[1].tag_recv(Tag(1), vec![0; long.len()]),
            workers[0].tag_recv(Tag(2), vec![0; long.len()]),
        );
        a.and(b).expect("sent");
        for received in [c, d] {
            assert!(received.expect("received").buffer == long);
        }
        let context = workers[1].context();
        let region = context.expose(long.clone(), Access::READ).await;
        let descriptor = region.as_ref().expect("exposed").descriptor();
        let remote = ends.dialled.import(&descriptor.expect("a descriptor"));
        let got = ends.dialled.get(remote.expect("its"), vec![0; long.len()]);
        assert!(got.await.expect("got") == long);
    });
}
