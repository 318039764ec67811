//! Services over byte streams, as they are: axum, tonic, a health service that others wrote, and clients of hyper and tonic that know wharf by its connector alone.
//!
//! The examples are compiled in. `cargo test --test services`.

// Their `main` is not called, and not every test uses all that they have.
#[allow(dead_code)]
#[path = "../../examples/axum_over_wharf.rs"]
mod axum_over_wharf;
#[allow(dead_code)]
#[path = "../../examples/grpc_latency.rs"]
mod grpc_latency;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../../examples/tonic_greeter.rs"]
mod tonic_greeter;

mod connector;
mod examples;
mod grpc;
mod health;
mod http;

use std::{future::Future, net::SocketAddr};

use support::on_each_runtime;
use wharf::{Context, StreamListener, Worker};

const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

/// Runs it on each transport and runtime.
fn everywhere<F: Future<Output = ()> + Send + 'static>(test: fn(&'static str) -> F) {
    for transport in TRANSPORTS {
        on_each_runtime(|| test(transport));
    }
}

fn worker(transport: &str) -> Worker {
    let builder = Context::builder().transports(transport).expect("known");
    Worker::new(&builder.build().expect("a context")).expect("a worker")
}

/// A server's worker, its listener, and where that listens.
async fn listens(transport: &str) -> (Worker, StreamListener, SocketAddr) {
    let server = worker(transport);
    let listener = server.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    (server, StreamListener::new(listener), address)
}
