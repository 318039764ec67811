//! The example of a transport of one's own, compiled in as it is: it does what every transport must, and carries what wharf does.
//! `cargo test --test own_transport`.

#[allow(dead_code, reason = "its `main` is not called")]
#[path = "../../examples/own_transport/main.rs"]
mod own_transport;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use own_transport::packets::Packets;
use support::{LIMIT, watchdog};
use wharf::transport::conformance::{Subject, unix_channel};

fn packets() -> Subject {
    Subject::new(|| Arc::new(Packets), unix_channel)
}

wharf::conformance!(over_packets, packets());

#[test]
fn the_example_runs() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let run = watchdog(LIMIT, own_transport::run());
    runtime.block_on(run).expect("an example that works");
}
