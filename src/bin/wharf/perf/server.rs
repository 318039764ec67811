//! The peer: accepts control connections, and for each point the connections that it announces.
//!
//! Each control connection has a thread, and each end of a point another, with a runtime, a context and a worker of its own: as the point wants
//! them. A connection of a worker that nobody announced is a control connection.

#![allow(
    clippy::disallowed_types,
    reason = "the library's own locks are not public"
)]

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use wharf::{Context, Incoming, Progress, Worker, WorkerId};

use super::Outcome;
use super::args::pin;
use super::control::{self, Control};
use super::side::{Role, Side};
use super::spec::Spec;

/// Control connections at one time.
const MOST_CLIENTS: usize = 64;
/// How long an announced worker may take to connect.
const PATIENCE: Duration = Duration::from_secs(30);

type Expected = Arc<Mutex<HashMap<WorkerId, oneshot::Sender<Incoming>>>>;

/// Serves until it is killed; as a child, until its parent closes its standard input.
pub(super) fn run(address: &str, is_child: bool, cpu: Option<usize>) -> Outcome<()> {
    if is_child {
        thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(0);
        });
    }
    crate::runtime()?.block_on(listen(address, cpu))
}

async fn listen(address: &str, cpu: Option<usize>) -> Outcome<()> {
    let context = Context::builder().progress(Progress::EventDriven).build()?;
    let worker = Worker::new(&context)?;
    let listener = worker.listen(address).await?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", listener.local_addr())?;
    out.flush()?;
    let expected = Expected::default();
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let incoming = listener.accept().await?;
        let announced = incoming
            .peer()
            .and_then(|id| expected.lock().expect("no panic under it").remove(&id));
        match announced {
            Some(end) => {
                if let Err(late) = end.send(incoming) {
                    late.reject("this measurement is over").await;
                }
            }
            None if clients.load(Ordering::Relaxed) >= MOST_CLIENTS => {
                incoming.reject("too many clients measure here").await;
            }
            None => {
                let (expected, serving) = (expected.clone(), clients.clone());
                clients.fetch_add(1, Ordering::Relaxed);
                let thread = thread::Builder::new().spawn(move || {
                    let name = incoming.peer_name();
                    if let Err(error) = serve(incoming, &expected, cpu) {
                        eprintln!("{name}: {error}");
                    }
                    serving.fetch_sub(1, Ordering::Relaxed);
                });
                if let Err(error) = thread {
                    eprintln!("a client was sent away, as there is no thread for it: {error}");
                    clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Serves one client until it goes.
fn serve(incoming: Incoming, expected: &Expected, cpu: Option<usize>) -> Outcome<()> {
    crate::runtime()?.block_on(async {
        let context = Context::builder().progress(Progress::EventDriven).build()?;
        let worker = Worker::new(&context)?;
        let endpoint = incoming.accept_on(&worker).await?;
        let control = Control { worker, endpoint };
        loop {
            let request = tokio::select! {
                biased;
                request = control.receive() => request,
                _ = control.endpoint.closed() => return Ok(()),
            };
            let understood = request.and_then(|(word, body)| match word.as_str() {
                "measure" => control::read(&body),
                other => Err(format!("nobody understands \"{other}\"").into()),
            });
            let (spec, workers) = match understood {
                Ok(understood) => understood,
                Err(_) if control.is_gone() => return Ok(()),
                Err(error) => {
                    let why = error.to_string();
                    control.send("refused", json!({"why": why})).await?;
                    continue;
                }
            };
            serve_point(&control, &spec, workers, expected, cpu).await?;
        }
    })
}

async fn serve_point(
    control: &Control,
    spec: &Spec,
    workers: Vec<WorkerId>,
    expected: &Expected,
    cpu: Option<usize>,
) -> Outcome<()> {
    let number = workers.len();
    let (results, mut ended) = mpsc::channel(number);
    for id in &workers {
        let (end, arrival) = oneshot::channel();
        expected.lock().expect("no panic under it").insert(*id, end);
        let (spec, ours) = (spec.clone(), results.clone());
        let thread = thread::Builder::new().spawn(move || {
            let result = answer(spec, arrival, cpu);
            let _ = ours.blocking_send(result.err().map(|error| error.to_string()));
        });
        if let Err(error) = thread {
            let _ = results.try_send(Some(format!("no thread to measure: {error}")));
        }
    }
    let ready = json!({"host": host(), "memory": spec.memory[1].label()});
    let said = control.send("ready", ready).await;
    let mut errors = Vec::new();
    if said.is_ok() {
        let all = async {
            for _ in 0..number {
                if let Some(Some(error)) = ended.recv().await {
                    errors.push(error);
                    // The client gives up on the first.
                    break;
                }
            }
        };
        tokio::select! {
            () = all => {}
            _ = control.endpoint.closed() => {}
        }
    }
    expected
        .lock()
        .expect("no panic under it")
        .retain(|id, _| !workers.contains(id));
    said?;
    control.send("done", json!({"errors": errors})).await
}

/// One end of a point.
fn answer(spec: Spec, arrival: oneshot::Receiver<Incoming>, cpu: Option<usize>) -> Outcome<()> {
    pin(cpu)?;
    let runtime = crate::runtime()?;
    let task = runtime.spawn(async move {
        let context = Side::context(&spec)?;
        let worker = Worker::new(&context)?;
        let incoming = tokio::time::timeout(PATIENCE, arrival).await;
        let incoming = incoming.map_err(|_| "the client did not connect")??;
        let endpoint = incoming.accept_on(&worker).await?;
        let side = Side {
            role: Role::Answerer,
            spec,
            task: 0,
            context,
            worker,
            endpoint,
            beat: Arc::new(AtomicU64::new(0)),
        };
        super::client::measure(&side).await?;
        side.part().await;
        Ok(())
    });
    runtime.block_on(task)?
}

/// What tells this host, since it was started, from others.
pub(super) fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.unwrap_or_default().trim().to_owned()
}
