//! Remote calls as a `tower::Service` over active messages.
//!
//! `cargo run --release --example tower_rpc`. The server wraps any service of bytes; the client is one, so that tower's layers go around
//! both. `poll_ready` of the client is the admission of a message: the server gives credits as it takes calls, and takes one only when its
//! own service is ready. So a slow server holds its clients back instead of filling up. A call is one message each way, told apart by
//! a number in the header; long requests and answers are fetched straight into the memory of whoever wants them.
#![allow(clippy::print_stdout)]

use std::{
    collections::HashMap,
    error::Error,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{Sink, future::join_all};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tower::{Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use wharf::{AmId, AmInbox, AmSink, Context, Endpoint, Worker};

type Failure = Box<dyn Error + Send + Sync>;

const CALL: AmId = AmId(1);
const ANSWER: AmId = AmId(2);

/// Calls that the server has not taken, for each client.
const WAITING: usize = 16;

/// The calls under way, by their numbers.
type Calls = Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>>;

/// The client: a service whose calls are carried out by the peer.
struct Remote {
    sink: AmSink,
    calls: Calls,
    next: u64,
}

impl Remote {
    /// Takes the answers of `worker`, which has this one endpoint.
    fn new(worker: &Worker, endpoint: &Endpoint) -> wharf::Result<Self> {
        let calls = Calls::default();
        let mut answers = worker.active_messages(ANSWER).open()?;
        let (waiting, connection) = (calls.clone(), endpoint.clone());
        tokio::spawn(async move {
            loop {
                let answer = tokio::select! {
                    Some(answer) = answers.recv() => answer,
                    _ = connection.closed() => break,
                };
                let call = number(answer.header()).and_then(|call| waiting.lock().remove(&call));
                if let (Some(call), Ok(payload)) = (call, answer.bytes().await) {
                    // Nobody waits any more when the caller has gone.
                    let _ = call.send(payload);
                }
            }
            // Dropped, they end the calls that wait.
            waiting.lock().clear();
        });
        Ok(Self {
            sink: endpoint.am_sink(CALL),
            calls,
            next: 0,
        })
    }
}

impl Service<Bytes> for Remote {
    type Response = Bytes;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Bytes, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Failure>> {
        self.sink.poll_ready(cx).map_err(Failure::from)
    }

    fn call(&mut self, request: Bytes) -> Self::Future {
        self.next += 1;
        let number = self.next;
        let (answer, waits) = oneshot::channel();
        self.calls.lock().insert(number, answer);
        let header = number.to_le_bytes().to_vec();
        let sent = Pin::new(&mut self.sink).start_send((header.into(), request.into()));
        let calls = self.calls.clone();
        Box::pin(async move {
            if let Err(error) = sent {
                calls.lock().remove(&number);
                return Err(error.into());
            }
            waits.await.map_err(|_| "the connection ended".into())
        })
    }
}

fn number(header: &[u8]) -> Option<u64> {
    header.try_into().ok().map(u64::from_le_bytes)
}

/// The server: carries out calls by `service`, as many at a time as it is ready for.
async fn serve<S>(mut calls: AmInbox, mut service: S) -> Result<(), Failure>
where
    S: Service<Bytes, Response = Bytes, Error = Failure>,
    S::Future: Send + 'static,
{
    loop {
        // First: a call that cannot be carried out yet stays where it is, and its credit with it.
        service.ready().await?;
        let Some(call) = calls.recv().await else {
            return Ok(());
        };
        let Some(client) = call.endpoint() else {
            continue;
        };
        let header = call.header().to_vec();
        let answer = service.call(call.bytes().await?);
        tokio::spawn(async move {
            if let Ok(answer) = answer.await {
                // A client that has gone needs no answer.
                let _ = client.am_send(ANSWER, header, answer).await;
            }
        });
    }
}

/// Calls under way at the same time.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// What the server does: turns a request around, in a while that does not depend on its length.
async fn reverse(request: Bytes, gauge: Arc<Gauge>) -> Result<Bytes, Failure> {
    let now = gauge.now.fetch_add(1, Ordering::Relaxed) + 1;
    gauge.most.fetch_max(now, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(1)).await;
    gauge.now.fetch_sub(1, Ordering::Relaxed);
    Ok(request.iter().rev().copied().collect())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    for transport in ["shm", "tcp"] {
        run(transport).await?;
    }
    Ok(())
}

/// Calls of a server over one transport.
pub(crate) async fn run(transport: &str) -> Result<(), Failure> {
    const CALLS: usize = 400;
    const AT_ONCE: usize = 32;
    let context = Context::builder().transports(transport)?.build()?;
    let (here, there) = (Worker::new(&context)?, Worker::new(&context)?);
    // Before anybody connects: what comes earlier is refused.
    let calls = there.active_messages(CALL).capacity(WAITING).open()?;
    let listener = there.listen("127.0.0.1:0").await?;
    let (endpoint, _accepted) = tokio::try_join!(here.connect(listener.local_addr()), async {
        listener.accept().await?.accept().await
    })?;

    let gauge = Arc::new(Gauge::default());
    let counted = gauge.clone();
    let service = service_fn(move |request| reverse(request, counted.clone()));
    let service = ConcurrencyLimit::new(service, AT_ONCE);
    let server = tokio::spawn(serve(calls, service));

    let mut remote = Remote::new(&here, &endpoint)?;
    let first = remote.ready().await?.call(Bytes::from("desserts")).await?;
    println!(
        "{transport}: desserts is {} from behind",
        String::from_utf8_lossy(&first)
    );

    // As fast as the server admits them: some short, some long enough to be fetched.
    let begun = Instant::now();
    let mut calls = Vec::new();
    for index in 0..CALLS {
        let length = if index % 10 == 0 { 300_000 } else { 100 };
        let request = Bytes::from(vec![index as u8; length]);
        calls.push(remote.ready().await?.call(request));
    }
    let admitted = begun.elapsed();
    for (index, answer) in join_all(calls).await.into_iter().enumerate() {
        let answer = answer?;
        if answer.iter().any(|byte| *byte != index as u8) {
            return Err(format!("call {index} has a wrong answer").into());
        }
    }
    println!(
        "{transport}: {CALLS} calls, admitted over {admitted:.1?}, answered after {:.1?}, {} at a time at most",
        begun.elapsed(),
        gauge.most.load(Ordering::Relaxed)
    );
    if gauge.most.load(Ordering::Relaxed) > AT_ONCE {
        return Err("more calls at a time than the server was ready for".into());
    }

    there.shutdown(Duration::from_secs(5)).await?;
    server.await??;
    match remote.ready().await {
        Err(error) => println!("{transport}: the server has gone: {error}"),
        Ok(_) => return Err("a server that has gone admits calls".into()),
    }
    Ok(())
}
