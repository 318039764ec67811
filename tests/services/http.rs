//! An axum router that takes and gives much, and asks who calls.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path, State, connect_info::IntoMakeServiceWithConnectInfo},
    http::{Method, Request, StatusCode},
    routing::{get, post},
};
use futures::{StreamExt, future::try_join_all, stream};
use http_body_util::BodyExt;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use wharf::{Endpoint, StreamAddr};

use crate::{everywhere, listens, worker};

const AT_ONCE: usize = 100;

fn router() -> IntoMakeServiceWithConnectInfo<Router, StreamAddr> {
    Router::new()
        .route("/greet/{name}", get(greet))
        .route("/greeted", get(count))
        .route("/upload", post(upload))
        .route("/numbers/{count}", get(numbers))
        .with_state(Arc::new(AtomicU64::new(0)))
        .into_make_service_with_connect_info()
}

async fn greet(
    State(greeted): State<Arc<AtomicU64>>,
    ConnectInfo(caller): ConnectInfo<StreamAddr>,
    Path(name): Path<String>,
) -> String {
    greeted.fetch_add(1, Ordering::Relaxed);
    let worker = caller.worker().expect("it is there");
    format!("hello {name}, by {worker}")
}

async fn count(State(greeted): State<Arc<AtomicU64>>) -> String {
    greeted.load(Ordering::Relaxed).to_string()
}

/// Adds up the bytes of a body as they come.
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

/// A body that is made while it is sent.
async fn numbers(Path(count): Path<u32>) -> Body {
    let chunks = (0..count).step_by(1000).map(move |start| {
        let lines = (start..count.min(start + 1000)).map(|number| format!("{number}\n"));
        Ok::<_, io::Error>(lines.collect::<String>())
    });
    Body::from_stream(stream::iter(chunks))
}

type Sender = http2::SendRequest<Body>;

async fn connect(endpoint: &Endpoint) -> Sender {
    let io = TokioIo::new(endpoint.stream().await.expect("a stream"));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io)
        .await
        .expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn request(path: &str, body: Body) -> Request<Body> {
    let method = match path {
        "/upload" => Method::POST,
        _ => Method::GET,
    };
    let request = Request::builder().method(method);
    let request = request.uri(format!("http://wharf{path}"));
    request.body(body).expect("a request")
}

async fn text(sender: &Sender, path: &str, body: Body) -> hyper::Result<String> {
    let response = sender.clone().send_request(request(path, body)).await?;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let text = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(text.into()).expect("UTF-8"))
}

/// Uses every route, and checks the answers.
async fn ask(endpoint: &Endpoint, own: wharf::WorkerId) {
    let sender = connect(endpoint).await;
    let before: usize = text(&sender, "/greeted", Body::empty())
        .await
        .expect("an answer")
        .parse()
        .expect("a number");
    let paths = (0..AT_ONCE).map(|number| format!("/greet/caller-{number}"));
    let greetings = try_join_all(paths.map(async |path| text(&sender, &path, Body::empty()).await));
    let greetings: BTreeSet<String> = greetings.await.expect("answers").into_iter().collect();
    let wanted = (0..AT_ONCE).map(|number| format!("hello caller-{number}, by {own}"));
    assert_eq!(greetings, wanted.collect());
    let greeted = text(&sender, "/greeted", Body::empty()).await;
    assert_eq!(greeted.expect("an answer"), (before + AT_ONCE).to_string());

    let bytes: Vec<u8> = (0..4_000_000_u32).map(|at| at as u8).collect();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    let wanted = format!("{} {sum}", bytes.len());
    let uploaded = text(&sender, "/upload", Body::from(bytes)).await;
    assert_eq!(uploaded.expect("an answer"), wanted);

    let numbers = text(&sender, "/numbers/20000", Body::empty()).await;
    let wanted: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    assert!(numbers.expect("an answer") == wanted);
}

#[test]
fn axum_takes_and_gives() {
    everywhere(|transport| async move {
        let (_server, listener, address) = listens(transport).await;
        let local = listener.local_addr();
        let own = axum::serve::Listener::local_addr(&listener).expect("an address");
        assert_eq!((own.peer_addr(), own.endpoint()), (Some(local), None));
        let serving = tokio::spawn(axum::serve(listener, router()).into_future());
        let clients = [worker(transport), worker(transport)];
        for client in &clients {
            let endpoint = client.connect(address).await.expect("connected");
            ask(&endpoint, client.id()).await;
        }
        serving.abort();
    });
}

#[test]
fn client_goes_in_the_middle_of_an_upload() {
    everywhere(|transport| async move {
        let (_server, listener, address) = listens(transport).await;
        let serving = tokio::spawn(axum::serve(listener, router()).into_future());
        let client = worker(transport);
        let endpoint = client.connect(address).await.expect("connected");
        let mut sender = connect(&endpoint).await;
        let (sent, some_sent) = tokio::sync::oneshot::channel::<()>();
        let mut sent = Some(sent);
        let chunks = stream::iter(0..).map(move |number| {
            if number == 20 {
                drop(sent.take());
            }
            Ok::<_, io::Error>(vec![1; 16 << 10])
        });
        let upload = sender.send_request(request("/upload", Body::from_stream(chunks)));
        let upload = tokio::spawn(async move { drop(upload.await) });
        drop(some_sent.await);
        upload.abort();
        drop(sender);
        endpoint.close().await.expect("closed");
        // The server goes on for others.
        let endpoint = client.connect(address).await.expect("connected");
        ask(&endpoint, client.id()).await;
        serving.abort();
    });
}

/// A server whose listener has ended waits for the word to stop, and takes it.
#[test]
fn axum_stops_when_its_worker_has() {
    everywhere(|transport| async move {
        let (server, listener, _) = listens(transport).await;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serves = axum::serve(listener, router());
        let serves = serves.with_graceful_shutdown(async { drop(stopped.await) });
        let serving = tokio::spawn(serves.into_future());
        let limit = std::time::Duration::from_secs(5);
        server.shutdown(limit).await.expect("shut down");
        drop(stop);
        serving.await.expect("to its end").expect("no error");
    });
}
