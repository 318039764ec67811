//! Two workers over TCP under TLS, each with a certificate that the other demands; then a new certificate, while the listener runs.
//!
//! ```sh
//! cargo run --release --features tls --example tls
//! ```
#![allow(clippy::print_stdout)] // a program for a terminal

// Made here, so that the example needs no files: an authority, and certificates by it. A program reads its own.
#[path = "../tests/tls/certificates.rs"]
pub(crate) mod certificates;

use wharf::{Context, Endpoint, Listener, Tag, Tls, Worker};

use certificates::Authority;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Both ends of a connection.
async fn connect(here: &Worker, listener: &Listener) -> Result<[Endpoint; 2], Failure> {
    let name = format!("localhost:{}", listener.local_addr().port());
    let accepting = async {
        let incoming = listener.accept().await?;
        let shown = incoming.peer_certificates().map_or(0, |chain| chain.len());
        println!("{} has shown {shown} certificate(s)", incoming.peer_name());
        incoming.accept().await
    };
    let (dialled, accepted) = tokio::try_join!(here.connect(name), accepting)?;
    Ok([dialled, accepted])
}

async fn exchange() -> Result<(), Failure> {
    let authority = Authority::new();
    let shown = authority.issue(&["localhost"]);
    let client = authority.client(Some(&shown));
    let tls = Tls::new(client, authority.server(&shown, true));
    // Without the list two workers of one process would go by shared memory.
    let context = Context::builder()
        .transports("tcp")?
        .tls(tls.clone())
        .build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = there.listen("127.0.0.1:0").await?;

    let first = connect(&here, &listener).await?;
    let renewed = authority.issue(&["localhost"]);
    tls.replace_server(authority.server(&renewed, true));
    let second = connect(&here, &listener).await?;
    for ([endpoint, _], chain) in [(&first, &shown.chain), (&second, &renewed.chain)] {
        let seen = endpoint.peer_certificates().ok_or("no certificate")?;
        assert_eq!(seen[..], chain[..]);
        endpoint.tag_send(1u64, "in private").await?;
        let received = there.tag_recv(Tag(1), vec![0; 10]).await?;
        assert_eq!(received.buffer, b"in private");
    }
    println!("two connections, each with the certificate of its time");
    Ok(())
}

pub(crate) fn main() -> Result<(), Failure> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(exchange())
}
