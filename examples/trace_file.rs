//! What a worker does, as a timeline: a file that Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open.
//!
//! `cargo run --release --example trace_file -- FILE` (without FILE: `target/wharf-trace.json`).
//!
//! The spans are wharf's own (`worker`, `connect`, `accept`, `register`) and one of the program's around its messages; events are connections, choices of protocols,
//! and, at level TRACE of the target `wharf::operation`, each operation.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    path::{Path, PathBuf},
};

use tracing::Instrument;
use tracing_chrome::{ChromeLayerBuilder, TraceStyle};
use tracing_subscriber::{EnvFilter, prelude::*};
use wharf::{Context, Tag, Worker};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let file = std::env::args().nth(1).map(PathBuf::from);
    let file = file.unwrap_or_else(|| "target/wharf-trace.json".into());
    let events = run(&file)?;
    println!(
        "{events} events in {}: open it at https://ui.perfetto.dev",
        file.display()
    );
    Ok(())
}

/// Writes the trace of some traffic; how many events it has.
pub(crate) fn run(file: &Path) -> Outcome<usize> {
    // `Threaded`: a span is where its code runs, on the thread's line. `Async` would draw each from its making to its end.
    let (layer, guard) = ChromeLayerBuilder::new()
        .file(file)
        .include_args(true)
        .trace_style(TraceStyle::Threaded)
        .build();
    let filter = EnvFilter::new("info,wharf=debug,wharf::operation=trace");
    let subscriber = tracing_subscriber::registry().with(filter).with(layer);
    // A program sets it for all its threads (`init`); here it is this one's, on which the runtime lives.
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(traffic())
    })?;
    drop(guard); // Writes the rest.
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(file)?)?;
    Ok(events.as_array().map_or(0, Vec::len))
}

/// Two workers: short messages, and one that is long enough to be announced.
async fn traffic() -> Outcome<()> {
    let context = Context::builder().transports("shm,cma,tcp")?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    let endpoint = here.connect(&there.address()?).await?;
    for (tag, length) in [(1, 8), (2, 4096), (3, 4 << 20)] {
        let span = tracing::info_span!("message", length);
        async {
            let send = endpoint.tag_send(Tag(tag), vec![1; length]);
            let receive = there.tag_recv(Tag(tag), vec![0; length]);
            let (sent, received) = tokio::join!(send, receive);
            sent?;
            received.map(drop).map_err(wharf::Error::from)
        }
        .instrument(span)
        .await?;
    }
    endpoint.close().await?;
    Ok(())
}
