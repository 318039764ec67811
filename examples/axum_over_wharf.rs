//! An axum router, served over wharf's byte streams.
//!
//! `cargo run --release --example axum_over_wharf` serves over shared memory and then over TCP, asks with a hyper client, and checks the answers.
//!
//! All that axum needs is its `Listener` trait: [`Streams`] below, every stream that any peer opens. The router knows nothing of wharf, except
//! that a handler may ask who calls (`ConnectInfo`).
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path, State, connect_info::Connected},
    http::{Request, StatusCode},
    routing::{get, post},
    serve::IncomingStream,
};
use futures::{StreamExt, future::try_join_all, stream, stream::BoxStream};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::oneshot;
use wharf::{ByteStream, Context, Endpoint, EndpointId, Listener, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Greetings asked for at once.
const AT_ONCE: usize = 100;

#[tokio::main]
async fn main() -> Outcome<()> {
    for transport in ["shm", "tcp"] {
        println!("{}", run(transport).await?);
    }
    Ok(())
}

/// Serves on one worker and asks from another; what was done, for people.
pub(crate) async fn run(transport: &str) -> Outcome<String> {
    let context = Context::builder().transports(transport)?.build()?;
    let (server, client) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = server.listen("127.0.0.1:0").await?;
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        axum::serve(Streams::of(listener), router())
            .with_graceful_shutdown(async { drop(stopped.await) })
            .await
    });

    let endpoint = client.connect(address).await?;
    let done = ask(&endpoint).await?;
    endpoint.close().await?;
    drop(stop);
    serving.await??;
    client.shutdown(Duration::from_secs(5)).await?;
    server.shutdown(Duration::from_secs(5)).await?;
    Ok(format!("{transport:<4} {done}"))
}

// --- What axum serves.

/// Who calls: the endpoint that the stream came by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller(EndpointId);

impl Connected<IncomingStream<'_, Streams>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Streams>) -> Self {
        *stream.remote_addr()
    }
}

/// The routes, as a service of axum.
pub(crate) fn router() -> axum::extract::connect_info::IntoMakeServiceWithConnectInfo<Router, Caller>
{
    let greeted = Arc::new(AtomicU64::new(0));
    Router::new()
        .route("/greet/{name}", get(greet))
        .route("/greeted", get(count))
        .route("/upload", post(upload))
        .route("/numbers/{count}", get(numbers))
        .route("/endless", get(endless))
        .with_state(greeted)
        .into_make_service_with_connect_info()
}

async fn greet(
    State(greeted): State<Arc<AtomicU64>>,
    ConnectInfo(Caller(caller)): ConnectInfo<Caller>,
    Path(name): Path<String>,
) -> String {
    greeted.fetch_add(1, Ordering::Relaxed);
    format!("hello {name}, by {caller:?}")
}

async fn count(State(greeted): State<Arc<AtomicU64>>) -> String {
    greeted.load(Ordering::Relaxed).to_string()
}

/// Adds up the bytes of a body as they come, however long it is.
async fn upload(body: Body) -> Result<String, (StatusCode, String)> {
    let mut chunks = body.into_data_stream();
    let (mut length, mut sum) = (0_u64, 0_u64);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        length += chunk.len() as u64;
        sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(format!("{length} {sum}"))
}

/// A body that is made while it is sent: a number a line, a thousand lines a chunk.
async fn numbers(Path(count): Path<u32>) -> Body {
    let chunks = (0..count).step_by(1000).map(move |start| {
        let lines = (start..count.min(start + 1000)).map(|number| format!("{number}\n"));
        Ok::<_, io::Error>(lines.collect::<String>())
    });
    Body::from_stream(stream::iter(chunks))
}

async fn endless() -> Body {
    Body::from_stream(stream::repeat_with(|| {
        Ok::<_, io::Error>(vec![0; 16 << 10])
    }))
}

/// Every stream that any peer opens, for `axum::serve`.
pub(crate) struct Streams {
    local: std::net::SocketAddr,
    incoming: BoxStream<'static, (ByteStream, Caller)>,
}

impl Streams {
    pub(crate) fn of(listener: Listener) -> Self {
        let local = listener.local_addr();
        let endpoints = listener.filter_map(|request| async { request.ok()?.await.ok() });
        let incoming = endpoints.flat_map_unordered(None, |endpoint| {
            Box::pin(stream::unfold(endpoint, |endpoint| async {
                // An error is the end of the connection.
                let stream = endpoint.accept_stream().await.ok()?;
                Some(((stream, Caller(endpoint.id())), endpoint))
            }))
        });
        Self {
            local,
            incoming: incoming.boxed(),
        }
    }
}

impl axum::serve::Listener for Streams {
    type Io = ByteStream;
    type Addr = Caller;

    async fn accept(&mut self) -> (ByteStream, Caller) {
        match self.incoming.next().await {
            Some(accepted) => accepted,
            // The listener has ended; `axum::serve` has no word for that.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Caller> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("peers connect to {}", self.local),
        ))
    }
}

// --- The client.

/// Uses every route, and checks the answers.
pub(crate) async fn ask(endpoint: &Endpoint) -> Outcome<String> {
    let sender = connect(endpoint).await?;
    let greetings = try_join_all((0..AT_ONCE).map(|number| {
        let mut sender = sender.clone();
        async move {
            text(
                &mut sender,
                &format!("/greet/caller-{number}"),
                Body::empty(),
            )
            .await
        }
    }))
    .await?;
    for (number, greeting) in greetings.iter().enumerate() {
        same(greeting, |found| {
            found.starts_with(&format!("hello caller-{number}, by "))
        })?;
    }
    let mut sender = sender.clone();
    let greeted = text(&mut sender, "/greeted", Body::empty()).await?;
    same(&greeted, |found| found == AT_ONCE.to_string())?;

    let bytes: Vec<u8> = (0..4_000_000_u32).map(|at| at as u8).collect();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    let wanted = format!("{} {sum}", bytes.len());
    let uploaded = text(&mut sender, "/upload", Body::from(bytes)).await?;
    same(&uploaded, |found| found == wanted)?;

    let numbers = text(&mut sender, "/numbers/20000", Body::empty()).await?;
    let wanted: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    same(&numbers, |found| found == wanted)?;
    Ok(format!(
        "ok  {AT_ONCE} greetings at once, 4000000 bytes uploaded, {} bytes of numbers",
        numbers.len()
    ))
}

/// An HTTP/2 connection on a stream of its own.
pub(crate) async fn connect(endpoint: &Endpoint) -> Outcome<http2::SendRequest<Body>> {
    let io = TokioIo::new(endpoint.stream().await?);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
    tokio::spawn(connection);
    Ok(sender)
}

pub(crate) fn request(path: &str, body: Body) -> Outcome<Request<Body>> {
    let method = if path == "/upload" { "POST" } else { "GET" };
    Ok(Request::builder()
        .method(method)
        .uri(format!("http://wharf{path}"))
        .body(body)?)
}

async fn text(sender: &mut http2::SendRequest<Body>, path: &str, body: Body) -> Outcome<String> {
    let response = sender.send_request(request(path, body)?).await?;
    let status = response.status();
    let text = response.into_body().collect().await?.to_bytes();
    if status != StatusCode::OK {
        return Err(format!("{path}: {status}").into());
    }
    Ok(String::from_utf8(text.into())?)
}

fn same(found: &str, is_right: impl FnOnce(&str) -> bool) -> Outcome<()> {
    if is_right(found) {
        return Ok(());
    }
    let start: String = found.chars().take(80).collect();
    Err(format!("not what was asked for: {} bytes, {start:?}", found.len()).into())
}
