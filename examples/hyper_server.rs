//! HTTP over wharf: a hyper server and a hyper client, HTTP/1 and HTTP/2, over byte streams between two workers.
//!
//! `cargo run --release --example hyper_server` serves over shared memory and then over TCP, checks every answer, and prints one line for each.
//!
//! A [`ByteStream`] is `AsyncRead + AsyncWrite`, so hyper-util's `TokioIo` is all the glue there is. One connection carries many streams: the
//! client opens one for each HTTP connection that it wants.
#![allow(clippy::print_stdout)]

use std::{
    convert::Infallible,
    error::Error,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::try_join_all, stream};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::task::JoinSet;
use wharf::{ByteStream, Context, Endpoint, Listener, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The length of the body that is sent there and back.
const LARGE: usize = 8 << 20;
/// Requests under way at once.
const AT_ONCE: usize = 64;

#[tokio::main]
async fn main() -> Outcome<()> {
    for transport in ["shm", "tcp"] {
        println!("{}", run(transport).await?);
    }
    Ok(())
}

/// Serves on one worker and calls from another; what was done, for people.
pub(crate) async fn run(transport: &str) -> Outcome<String> {
    let context = Context::builder().transports(transport)?.build()?;
    let (server, client) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = server.listen("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let serving = tokio::spawn(serve(listener));

    let endpoint = client.connect(address).await?;
    let done = call(&endpoint).await?;
    endpoint.close().await?;
    serving.abort();
    client.shutdown(Duration::from_secs(5)).await?;
    server.shutdown(Duration::from_secs(5)).await?;
    Ok(format!("{transport:<4} {done}"))
}

// --- The server.

/// Serves whoever connects, until it is dropped.
pub(crate) async fn serve(listener: Listener) -> Outcome<()> {
    let mut clients = JoinSet::new();
    loop {
        let endpoint = listener.accept().await?.await?;
        clients.spawn(serve_streams(endpoint));
    }
}

/// Serves HTTP on every stream that the other end opens. Ends with the connection.
pub(crate) async fn serve_streams(endpoint: Endpoint) {
    let mut connections = JoinSet::new();
    while let Ok(stream) = endpoint.accept_stream().await {
        connections.spawn(async move {
            // HTTP/1 or HTTP/2, as its first bytes say.
            let builder = auto::Builder::new(TokioExecutor::new());
            // An error is a client that went in the middle of a request.
            let _ = builder
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
    }
    // What was begun is brought to its end, where the connection still allows it.
    connections.join_all().await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/hello") => (StatusCode::OK, full("hello over wharf")),
        // Goes back as it comes, without being collected.
        (&Method::POST, "/echo") => (StatusCode::OK, request.into_body().boxed_unsync()),
        (&Method::GET, "/endless") => (StatusCode::OK, endless()),
        _ => (StatusCode::NOT_FOUND, full("no such thing")),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    Ok(response)
}

fn full(text: &'static str) -> Body {
    Full::from(text)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body without an end: the reader sets the pace, since a stream that nobody reads takes no more.
fn endless() -> Body {
    let chunk = Bytes::from(vec![b'.'; 16 << 10]);
    StreamBody::new(stream::repeat(chunk).map(|chunk| Ok(Frame::data(chunk)))).boxed_unsync()
}

// --- The client.

/// Asks for everything by HTTP/1 and by HTTP/2, and checks the answers.
pub(crate) async fn call(endpoint: &Endpoint) -> Outcome<String> {
    let large: Bytes = (0..LARGE).map(|at| (at ^ (at >> 8)) as u8).collect();

    let mut sender = connect1(endpoint.stream().await?).await?;
    expect(
        sender.send_request(get("/hello")?).await?,
        b"hello over wharf",
    )
    .await?;
    // HTTP/1 takes one request at a time: ready when it is done with the one before.
    sender.ready().await?;
    let start = Instant::now();
    expect(
        sender.send_request(post("/echo", large.clone())?).await?,
        &large,
    )
    .await?;
    let echo1 = start.elapsed();
    sender.ready().await?;
    let missing = sender.send_request(get("/nothing")?).await?;
    if missing.status() != StatusCode::NOT_FOUND {
        return Err(format!("/nothing: {}", missing.status()).into());
    }
    // As many streams as there are requests at once.
    let start = Instant::now();
    try_join_all((0..AT_ONCE).map(|number| async move {
        let mut sender = connect1(endpoint.stream().await?).await?;
        let body = Bytes::from(format!("request {number} ").repeat(number * 50));
        expect(
            sender.send_request(post("/echo", body.clone())?).await?,
            &body,
        )
        .await
    }))
    .await?;
    let many1 = start.elapsed();

    // HTTP/2 takes many on one.
    let sender = connect2(endpoint.stream().await?).await?;
    expect(
        sender.clone().send_request(get("/hello")?).await?,
        b"hello over wharf",
    )
    .await?;
    let start = Instant::now();
    let request = post("/echo", large.clone())?;
    expect(sender.clone().send_request(request).await?, &large).await?;
    let echo2 = start.elapsed();
    let start = Instant::now();
    try_join_all((0..AT_ONCE).map(|number| {
        let mut sender = sender.clone();
        async move {
            let body = Bytes::from(format!("request {number} ").repeat(number * 50));
            expect(
                sender.send_request(post("/echo", body.clone())?).await?,
                &body,
            )
            .await
        }
    }))
    .await?;
    let many2 = start.elapsed();

    let speed = |took: Duration| LARGE as f64 / took.as_secs_f64() / 1e9;
    Ok(format!(
        "ok  HTTP/1: {LARGE} bytes echoed at {:.2} GB/s, {AT_ONCE} connections at once {many1:.1?};  \
         HTTP/2: {:.2} GB/s, {AT_ONCE} requests at once {many2:.1?}",
        speed(echo1),
        speed(echo2),
    ))
}

/// An HTTP/1 connection on a stream. The task ends with the sender.
pub(crate) async fn connect1(stream: ByteStream) -> Outcome<http1::SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// An HTTP/2 connection on a stream. The task ends with the last clone of the sender.
pub(crate) async fn connect2(stream: ByteStream) -> Outcome<http2::SendRequest<Full<Bytes>>> {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

pub(crate) fn get(path: &str) -> Outcome<Request<Full<Bytes>>> {
    Ok(Request::get(format!("http://wharf{path}")).body(Full::default())?)
}

pub(crate) fn post(path: &str, body: Bytes) -> Outcome<Request<Full<Bytes>>> {
    Ok(Request::post(format!("http://wharf{path}")).body(Full::new(body))?)
}

async fn expect(response: Response<Incoming>, wanted: &[u8]) -> Outcome<()> {
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if status != StatusCode::OK || body != wanted {
        return Err(format!(
            "{status} with {} bytes, not {} of ours",
            body.len(),
            wanted.len()
        )
        .into());
    }
    Ok(())
}
