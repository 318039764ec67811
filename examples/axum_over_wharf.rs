//! An axum router over wharf's byte streams, and hyper-util's client, which asks it over shared memory and then over TCP.
//!
//! `cargo run --release --features axum,hyper --example axum_over_wharf`
#![allow(clippy::print_stdout)]

use std::{error::Error, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Path},
    routing::get,
};
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::sync::oneshot;
use wharf::{Context, StreamAddr, StreamConnector, StreamListener, Worker};

/// Like any other, but that it can ask which of wharf's peers calls.
async fn greet(Path(name): Path<String>, ConnectInfo(caller): ConnectInfo<StreamAddr>) -> String {
    format!("hello {name}, by {caller}")
}

/// Serves on one worker and asks from another; the answer.
pub(crate) async fn run(transport: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let context = Context::builder().transports(transport)?.build()?;
    let (server, client) = (Worker::new(&context)?, Worker::new(&context)?);

    let listener = StreamListener::new(server.listen("127.0.0.1:0").await?);
    let address = listener.local_addr();
    let router = Router::new().route("/greet/{name}", get(greet));
    let service = router.into_make_service_with_connect_info::<StreamAddr>();
    let (stop, stopped) = oneshot::channel::<()>();
    let serves = axum::serve(listener, service).with_graceful_shutdown(stopped.map(drop));
    let serving = tokio::spawn(serves.into_future());

    let connector = StreamConnector::new(&client);
    let http: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
    let response = http.get(format!("http://{address}/greet/you").parse()?);
    let text = response.await?.into_body().collect().await?.to_bytes();

    drop((http, stop));
    serving.await??;
    client.shutdown(Duration::from_secs(5)).await?;
    server.shutdown(Duration::from_secs(5)).await?;
    Ok(String::from_utf8(text.into())?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    for transport in ["shm", "tcp"] {
        println!("{transport}: {}", run(transport).await?);
    }
    Ok(())
}
