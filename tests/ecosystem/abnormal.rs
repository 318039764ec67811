//! One side goes in the middle: the other sees an error and never hangs, and what else goes over the connection is not touched.

use std::{error::Error, future::Future};

use http_body_util::{BodyExt, Full};
use hyper::{
    Response,
    body::{Bytes, Incoming},
    client::conn::{http1, http2},
};
use tokio::task::JoinHandle;
use wharf::Endpoint;

use crate::{
    ends, hyper_server, on_each_runtime, on_one_thread,
    support::{self, Child, this_test},
    worker,
};

const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// Runs it on each transport and runtime.
fn everywhere<F: Future<Output = ()> + Send + 'static>(test: fn(&'static str) -> F) {
    for transport in TRANSPORTS {
        on_each_runtime(|| test(transport));
    }
}

/// A client's connection to a server that runs as a task and gives back why it ended.
async fn connected(transport: &str) -> (Endpoint, JoinHandle<()>) {
    let (_server, listener, client) = ends(transport).await;
    let address = listener.local_addr();
    let (dialled, accepted) = tokio::join!(client.connect(address), async {
        listener.accept().await?.await
    });
    let serving = tokio::spawn(hyper_server::serve_streams(accepted.expect("accepted")));
    (dialled.expect("connected"), serving)
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn new(version: u8, endpoint: &Endpoint) -> Self {
        let stream = endpoint.stream().await.expect("a stream");
        match version {
            1 => Self::One(hyper_server::connect1(stream).await.expect("HTTP/1")),
            _ => Self::Two(hyper_server::connect2(stream).await.expect("HTTP/2")),
        }
    }

    async fn get(&mut self, path: &str) -> hyper::Result<Response<Incoming>> {
        let request = hyper_server::get(path).expect("a request");
        match self {
            Self::One(sender) => sender.send_request(request).await,
            Self::Two(sender) => sender.send_request(request).await,
        }
    }

    /// Asks for a body without end and reads the first of it.
    async fn begin(&mut self) -> Incoming {
        let mut body = self.get("/endless").await.expect("a head").into_body();
        for _ in 0..20 {
            let frame = body.frame().await.expect("no end").expect("no error");
            assert!(frame.is_data());
        }
        body
    }

    async fn greet(&mut self) {
        let response = self.get("/hello").await.expect("an answer");
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), "hello over wharf");
    }
}

/// Reads until the error that must come: what ends without one would be taken for whole.
async fn until_error<B>(body: &mut B) -> String
where
    B: hyper::body::Body<Data = Bytes> + Unpin,
    B::Error: Error,
{
    loop {
        match body.frame().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return chain(&error),
            None => panic!("a body that was cut off ended as if it were whole"),
        }
    }
}

/// An error with all that it comes from.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn client_drops_a_streaming_response() {
    everywhere(|transport| async move {
        let (endpoint, serving) = connected(transport).await;
        for version in [1, 2] {
            let mut other = Sender::new(version, &endpoint).await;
            let mut sender = Sender::new(version, &endpoint).await;
            let body = sender.begin().await;
            drop((body, sender));
            // Neither a stream that was open nor a new one is touched.
            other.greet().await;
            Sender::new(version, &endpoint).await.greet().await;
        }
        // Ends only when every stream's task has: the server has noticed that its readers went.
        endpoint.close().await.expect("closed");
        serving.await.expect("the server ends");
    });
}

#[test]
fn client_closes_in_a_streaming_response() {
    everywhere(|transport| async move {
        for version in [1, 2] {
            let (endpoint, serving) = connected(transport).await;
            let mut sender = Sender::new(version, &endpoint).await;
            let body = sender.begin().await;
            // The whole connection goes, with the response under way.
            let _ = endpoint.close().await;
            serving.await.expect("the server ends");
            drop(body);
        }
    });
}

#[test]
fn server_drops_in_the_middle_of_a_body() {
    everywhere(|transport| async move {
        for version in [1, 2] {
            let (endpoint, serving) = connected(transport).await;
            let mut sender = Sender::new(version, &endpoint).await;
            let mut body = sender.begin().await;
            serving.abort();
            let error = until_error(&mut body).await;
            assert!(
                error.contains("wharf") || error.contains("connection"),
                "{error}"
            );
            sender.get("/hello").await.expect_err("nobody answers");
        }
    });
}

#[test]
fn server_shuts_down_in_the_middle_of_a_body() {
    everywhere(|transport| async move {
        for version in [1, 2] {
            let (server, listener, client) = ends(transport).await;
            let address = listener.local_addr();
            let serving = tokio::spawn(hyper_server::serve(listener));
            let endpoint = client.connect(address).await.expect("connected");
            let mut sender = Sender::new(version, &endpoint).await;
            let mut body = sender.begin().await;
            // Readers that do not read may make it late; it ends either way.
            let reading = tokio::spawn(async move { until_error(&mut body).await });
            let _ = server.shutdown(std::time::Duration::from_secs(5)).await;
            let error = reading.await.expect("an error");
            assert!(!error.is_empty());
            endpoint.closed().await;
            let error = endpoint.stream().await.expect_err("closed");
            assert!(!error.to_string().is_empty());
            serving.abort();
        }
    });
}

/// The server's process is killed.
#[test]
fn server_is_killed_in_the_middle_of_a_body() {
    if let Some(mut parent) = support::child("hyper") {
        on_one_thread(async {
            let transport = parent.hear().await;
            let listener = worker(&transport).listen("127.0.0.1:0").await.expect("one");
            parent.say(listener.local_addr());
            hyper_server::serve(listener).await.expect("no end");
        });
        return;
    }
    for transport in TRANSPORTS {
        for version in [1, 2] {
            let mut child = Child::start(this_test!(), "hyper", &[]);
            on_one_thread(async {
                child.say(transport);
                let address = child.hear().await;
                let client = worker(transport);
                let endpoint = client.connect(address).await.expect("connected");
                let mut sender = Sender::new(version, &endpoint).await;
                let mut body = sender.begin().await;
                child.kill();
                until_error(&mut body).await;
                sender.get("/hello").await.expect_err("nobody answers");
                endpoint.closed().await;
            });
        }
    }
}
