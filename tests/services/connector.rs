//! The connector, under hyper-util's client and tonic's channel.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::ConnectInfo, routing::get};
use futures::future::{join_all, poll_fn};
use http_body_util::BodyExt;
use hyper::Uri;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::task::JoinHandle;
use tower::{Service, ServiceExt};
use wharf::{Context, ErrorKind, StreamAddr, StreamConnector, StreamListener, Worker};

use crate::{everywhere, listens, support::until, worker};

type Http = Client<StreamConnector, Body>;

fn client(connector: StreamConnector) -> Http {
    Client::builder(TokioExecutor::new()).build(connector)
}

/// A server that says its name, and which connection it was asked over.
fn serves(listener: StreamListener, name: &'static str) -> JoinHandle<()> {
    let says = async move |ConnectInfo(caller): ConnectInfo<StreamAddr>| {
        format!("{name} {:?}", caller.endpoint().expect("a peer"))
    };
    let router = Router::new().route("/", get(says));
    let service = router.into_make_service_with_connect_info::<StreamAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.expect("no error") })
}

async fn ask(http: &Http, uri: &str) -> Result<String, hyper_util::client::legacy::Error> {
    let response = http.get(uri.parse().expect("a URI")).await?;
    let body = response.into_body().collect().await.expect("a body");
    Ok(String::from_utf8(body.to_bytes().into()).expect("UTF-8"))
}

/// Many requests at once to two servers by name: each comes to its own, over one connection, dialled once.
#[test]
fn each_to_its_own() {
    everywhere(|transport| async move {
        let (one, listener, one_at) = listens(transport).await;
        let first = serves(listener, "one");
        let (two, listener, two_at) = listens(transport).await;
        let second = serves(listener, "two");
        let here = worker(transport);
        let http = client(StreamConnector::new(&here));
        let uris = [
            (format!("http://{one_at}/"), "one "),
            (format!("http://localhost:{}/", two_at.port()), "two "),
        ];
        let answers = join_all((0..40).map(async |number| {
            let (uri, name) = &uris[number % 2];
            let answer = ask(&http, uri).await.expect("an answer");
            assert!(answer.starts_with(name), "{answer}");
            answer
        }));
        let answers: BTreeSet<String> = answers.await.into_iter().collect();
        assert_eq!(
            answers.len(),
            2,
            "more connections than servers: {answers:?}"
        );
        assert_eq!(here.metrics().connects, 2);
        drop(http);
        for server in [one, two] {
            // Nothing keeps the connections but their streams.
            until("the connections are gone", || {
                server.metrics().held.connections == 0
            })
            .await;
        }
        first.abort();
        second.abort();
    });
}

/// A server that is gone is an error; one that is there again at the same address answers the next request.
#[test]
fn a_server_that_comes_again() {
    everywhere(|transport| async move {
        let (server, listener, address) = listens(transport).await;
        let serving = serves(listener, "first");
        let here = worker(transport);
        let http = client(StreamConnector::to(&here, address));
        let answer = ask(&http, "http://whoever/").await.expect("an answer");
        assert!(answer.starts_with("first "), "{answer}");
        let limit = Duration::from_secs(5);
        server.shutdown(limit).await.expect("shut down");
        serving.abort();
        let _ = serving.await;
        ask(&http, "http://whoever/").await.expect_err("nobody");

        let server = worker(transport);
        let listener = loop {
            // The socket's tasks end in their own time.
            match server.listen(address).await {
                Ok(listener) => break StreamListener::new(listener),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let serving = serves(listener, "second");
        let answer = ask(&http, "http://whoever/").await.expect("an answer");
        assert!(answer.starts_with("second "), "{answer}");
        serving.abort();
    });
}

/// The connection has ended and nobody has asked for it since: the next stream is on a new one.
#[test]
fn an_ended_connection_is_replaced() {
    everywhere(|transport| async move {
        let (_server, listener, address) = listens(transport).await;
        let here = worker(transport);
        let mut connector = StreamConnector::to(&here, address);
        let uri = Uri::from_static("http://whoever/");
        let (first, accepted) = tokio::join!(connector.call(uri.clone()), listener.accept());
        let first = first.expect("a stream").into_inner();
        let (there, _) = accepted.expect("a stream");
        there.endpoint().close().await.expect("closed");
        first.endpoint().closed().await;
        // The stream is kept, and the endpoint that has ended with it.
        let (second, accepted) = tokio::join!(connector.call(uri), listener.accept());
        let second = second.expect("a stream").into_inner();
        assert_ne!(second.endpoint(), first.endpoint());
        assert_ne!(accepted.expect("a stream").0.endpoint(), there.endpoint());
    });
}

/// On one connection alone, and not beyond its end.
#[test]
fn over_one_connection() {
    everywhere(|transport| async move {
        let (_server, listener, address) = listens(transport).await;
        let here = worker(transport);
        let serving = serves(listener, "it");
        let endpoint = here.connect(address).await.expect("connected");
        let http = client(StreamConnector::over(endpoint.clone()));
        ask(&http, "http://whoever/").await.expect("an answer");
        ask(&http, "http://another/").await.expect("an answer");
        assert_eq!(here.metrics().connects, 1);
        endpoint.close().await.expect("closed");
        ask(&http, "http://whoever/").await.expect_err("closed");
        serving.abort();
    });
}

/// All who wait for a connection hear why there is none, from one try to dial.
#[test]
fn one_dials_for_all() {
    everywhere(|transport| async move {
        let asked = Arc::new(AtomicUsize::new(0));
        let (counts, turns_away) = (asked.clone(), worker(transport));
        let listener = turns_away.listen("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr();
        let refuses = tokio::spawn(async move {
            while let Ok(incoming) = listener.accept().await {
                // Until all have asked.
                tokio::time::sleep(Duration::from_millis(50)).await;
                counts.fetch_add(1, Ordering::Relaxed);
                incoming.reject("not today").await;
            }
        });
        let here = worker(transport);
        let connector = StreamConnector::new(&here);
        let uri: Uri = format!("http://{address}/").parse().expect("a URI");
        let errors = join_all((0..10).map(|_| connector.clone().oneshot(uri.clone()))).await;
        for error in errors {
            let error = error.map(drop).expect_err("turned away");
            assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);

        // Who asks and goes leaves nothing behind that others would wait for.
        let mut connector = connector;
        poll_fn(|cx| connector.poll_ready(cx)).await.expect("ready");
        let mut call = connector.call(uri.clone());
        assert!(futures::poll!(&mut call).is_pending());
        drop(call);
        let error = connector.oneshot(uri).await.map(drop);
        assert_eq!(error.expect_err("turned away").kind(), ErrorKind::Rejected);
        assert!(asked.load(Ordering::Relaxed) >= 2);
        refuses.abort();
    });
}

/// Clients hold it and what it gives them in tasks of theirs.
#[test]
fn crosses_threads() {
    fn demand<T: Send + Sync + Unpin + Clone + 'static>() {}
    demand::<StreamConnector>();
    fn is_sent<T: Send + Unpin + 'static>() {}
    is_sent::<<StreamConnector as Service<Uri>>::Future>();
    is_sent::<<StreamConnector as Service<Uri>>::Response>();
}

/// By a worker's address there is no listener to come to, but the connector leads there.
#[test]
fn by_the_address_of_a_worker() {
    everywhere(|transport| async move {
        let context = Context::builder().transports(transport).expect("known");
        let there = Worker::new(&context.build().expect("a context")).expect("a worker");
        let here = worker(transport);
        let mut connector = StreamConnector::to(&here, there.address().expect("an address"));
        let stream = connector.call(Uri::from_static("http://whoever/")).await;
        let stream = stream.expect("a stream").into_inner();
        assert_eq!(stream.peer(), Some(there.id()));
        let error = StreamConnector::new(&here).call(Uri::from_static("/nowhere"));
        let error = error.await.map(drop).expect_err("no host");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    });
}
