//! TLS over TCP, with certificates that are made for each test: who is taken, who is refused and what both ends hear of it, what the way between them sees
//! and what happens when it changes something. All verbs over TLS are in `tests/api`, the transport's scenarios in `transport/conformance/`.

#[path = "../support/mod.rs"]
mod support;

// Its `main` is called by a test.
#[path = "../../examples/tls.rs"]
mod example;
mod names;
mod refused;
mod rotation;
mod way;

use std::{net::SocketAddr, time::Duration};

use wharf::{Context, Endpoint, Error, Incoming, Result, Tls, Worker};

use example::certificates::Authority;
use support::on_a_runtime;

/// A worker that goes by TCP alone.
fn worker(tls: Option<&Tls>) -> Worker {
    let builder = Context::builder().transports("tcp").expect("known");
    let builder = builder.handshake_timeout(Duration::from_secs(2));
    let builder = match tls {
        Some(tls) => builder.tls(tls.clone()),
        None => builder,
    };
    let context = builder.build().expect("a context");
    Worker::new(&context).expect("a worker")
}

/// For both directions, by one authority: names that everybody here has, and a certificate of everybody demanded.
fn mutual(authority: &Authority) -> Tls {
    let shown = authority.issue(&["localhost", "127.0.0.1"]);
    Tls::new(
        authority.client(Some(&shown)),
        authority.server(&shown, true),
    )
}

/// Both ends of a connection.
struct Ends {
    dialled: Endpoint,
    accepted: Endpoint,
    /// What the request knew of its peer.
    shown: usize,
}

/// Connects, by way of `through` where that is not the listener's own address.
async fn connect(workers: [&Worker; 2], host: &str) -> Result<Ends> {
    let listener = workers[1].listen("127.0.0.1:0").await?;
    let address = format!("{host}:{}", listener.local_addr().port());
    let accepting = async {
        let incoming = listener.accept().await?;
        let shown = chain(&incoming);
        Ok::<_, Error>((incoming.accept().await?, shown))
    };
    tokio::pin!(accepting);
    let dialling = workers[0].connect(address);
    tokio::pin!(dialling);
    // Who is refused never comes to the listener.
    let (dialled, accepted) = tokio::select! {
        dialled = &mut dialling => (dialled?, accepting.await),
        accepted = &mut accepting => (dialling.await?, accepted),
    };
    let (accepted, shown) = accepted?;
    Ok(Ends {
        dialled,
        accepted,
        shown,
    })
}

fn chain(incoming: &Incoming) -> usize {
    incoming.peer_certificates().map_or(0, |chain| chain.len())
}

/// A listener that nobody is to reach, with its address.
async fn listening(worker: &Worker) -> (wharf::Listener, SocketAddr) {
    let listener = worker.listen("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr();
    (listener, address)
}

/// Bytes that are different at every place.
fn pattern(length: usize) -> Vec<u8> {
    support::pattern(0, length)
}

#[test]
fn the_example_runs() {
    example::main().expect("it runs");
}
