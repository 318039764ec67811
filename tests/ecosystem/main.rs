//! A real hyper client against the server of `examples/`, what happens when one side goes in the middle, and the other examples of what is put on top.
//! Those that need features are in `tests/services`.
//!
//! The examples are compiled in as they are; each checks what it does. `cargo test --test ecosystem`.

// Their `main` is not called, and not every test uses all that they have.
#[allow(dead_code)]
#[path = "../../examples/cancel_safely.rs"]
mod cancel_safely;
#[allow(dead_code)]
#[path = "../../examples/codec.rs"]
mod codec;
#[allow(dead_code)]
#[path = "../../examples/embed_in_server.rs"]
mod embed_in_server;
#[allow(dead_code)]
#[path = "../../examples/hyper_server.rs"]
mod hyper_server;
#[allow(dead_code)]
#[path = "../../examples/metrics_to_prometheus.rs"]
mod metrics_to_prometheus;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../../examples/tokio_console.rs"]
mod tokio_console;
#[allow(dead_code)]
#[path = "../../examples/tower_rpc.rs"]
mod tower_rpc;
#[allow(dead_code)]
#[path = "../../examples/trace_file.rs"]
mod trace_file;

mod abnormal;
mod examples;
mod observing;

use support::{on_a_runtime as on_one_thread, on_each_runtime};
use wharf::{Context, Endpoint, Listener, Worker};

fn worker(transport: &str) -> Worker {
    let builder = Context::builder().transports(transport).expect("known");
    Worker::new(&builder.build().expect("a context")).expect("a worker")
}

/// A worker that is connected to itself.
async fn to_oneself() -> Endpoint {
    let worker = worker("self");
    let address = worker.address().expect("an address");
    worker.connect(&address).await.expect("oneself")
}

/// A server's worker that listens, and a client's.
async fn ends(transport: &str) -> (Worker, Listener, Worker) {
    let server = worker(transport);
    let listener = server.listen("127.0.0.1:0").await.expect("a listener");
    (server, listener, worker(transport))
}
