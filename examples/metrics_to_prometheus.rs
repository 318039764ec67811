//! The counters of a worker and its context, served in Prometheus' text format over HTTP.
//!
//! `cargo run --release --example metrics_to_prometheus` serves them on a port of its own, makes some traffic, scrapes itself, prints what came, and ends.
//! With an address (`-- 127.0.0.1:9464`) it goes on serving until Ctrl-C: `curl http://127.0.0.1:9464/metrics`.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    fmt::{Display, Write},
    io,
    net::SocketAddr,
};

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use http_body_util::{BodyExt, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use wharf::{Access, Context, Endpoint, Tag, Traffic, Worker, memory};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    match std::env::args().nth(1) {
        None => println!("{}", run().await?),
        Some(address) => {
            let listener = TcpListener::bind(address).await?;
            println!("http://{}/metrics", listener.local_addr()?);
            let worker = Worker::new(&Context::builder().build()?)?;
            tokio::select! {
                served = serve(listener, worker) => served?,
                stopped = tokio::signal::ctrl_c() => stopped?,
            }
        }
    }
    Ok(())
}

/// Serves, makes traffic, scrapes; what was scraped.
pub(crate) async fn run() -> Outcome<String> {
    let context = Context::builder().transports("self,shm,cma")?.build()?;
    let (worker, other) = (Worker::new(&context)?, Worker::new(&context)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(serve(listener, worker.clone()));

    let _connected = traffic(&worker, &other).await?;
    // A cache of the program's own is among those of the context.
    let cache = context.registration_cache(memory::MlockRegistrar::new())?;
    let buffer = context.allocate(4096).await?;
    let range = memory::AddressRange::of(&buffer);
    for _ in 0..3 {
        drop(cache.get_owned(range, range, Access::READ).await?);
    }
    let text = scrape(address).await?;
    cache.invalidate(range);
    serving.abort();
    Ok(text)
}

/// Ten messages to another worker.
async fn traffic(worker: &Worker, other: &Worker) -> Outcome<Endpoint> {
    let endpoint = worker.connect(&other.address()?).await?;
    for _ in 0..10 {
        endpoint.tag_send(Tag(1), vec![0; 1000]).await?;
        other.tag_recv(Tag(1), vec![0; 1000]).await?;
    }
    Ok(endpoint)
}

// --- The server.

/// `GET /metrics`.
async fn serve(listener: TcpListener, worker: Worker) -> io::Result<()> {
    let page = async |State(worker): State<Worker>| {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
        (kind, render(&worker)).into_response()
    };
    let router = Router::new()
        .route("/metrics", get(page))
        .with_state(worker);
    axum::serve(listener, router).await
}

/// A snapshot as Prometheus reads it.
pub(crate) fn render(worker: &Worker) -> String {
    let mut page = Page::default();
    let done = worker.metrics();

    let directions = |sent: fn(&Traffic) -> u64| {
        let transports = done.transports.iter();
        transports.flat_map(move |one| {
            let label = |way: &str| format!("{{transport=\"{}\",way=\"{way}\"}}", one.transport);
            [
                (label("sent"), sent(&one.sent)),
                (label("received"), sent(&one.received)),
            ]
        })
    };
    page.counter("wharf_messages_total", "Messages.", directions(|t| t.count));
    page.counter(
        "wharf_message_bytes_total",
        "Bytes of messages.",
        directions(|t| t.bytes),
    );
    let connections = done.transports.iter().map(|one| {
        (
            format!("{{transport=\"{}\"}}", one.transport),
            one.connections,
        )
    });
    page.gauge("wharf_connections", "Connections now.", connections);

    let copies = [
        ("mapped", done.mapped),
        ("cma", done.cma),
        ("one_sided", done.one_sided),
        ("device", done.device_copies),
    ];
    let by = |(by, traffic): (&str, Traffic)| (format!("{{by=\"{by}\"}}"), traffic);
    let counts = copies.map(by).map(|(by, traffic)| (by, traffic.count));
    let bytes = copies.map(by).map(|(by, traffic)| (by, traffic.bytes));
    page.counter("wharf_copies_total", "Copies without a message.", counts);
    page.counter("wharf_copied_bytes_total", "Bytes of them.", bytes);

    let waits = [
        ("at_once", done.found_at_once),
        ("spinning", done.found_spinning),
        ("parked", done.parked),
    ];
    let waits = waits.map(|(how, count)| (format!("{{how=\"{how}\"}}"), count));
    page.counter("wharf_waits_total", "Waits, by how they went.", waits);
    page.counter("wharf_wakes_total", "Tasks woken.", one(done.wakes));
    page.counter(
        "wharf_doorbells_total",
        "Rings of peers.",
        one(done.doorbells),
    );
    page.counter(
        "wharf_fd_wakeups_total",
        "Wake-ups by descriptors.",
        one(done.fd_wakeups),
    );
    page.counter(
        "wharf_operations_total",
        "Operations entered.",
        one(done.operations),
    );
    page.gauge(
        "wharf_in_flight",
        "Operations under way.",
        one(done.in_flight),
    );
    let seconds = done.connect_time.as_secs_f64();
    page.counter(
        "wharf_connects_total",
        "Connections dialled.",
        one(done.connects),
    );
    page.counter(
        "wharf_connect_seconds_total",
        "Time that they took.",
        one(seconds),
    );

    let refused = done.refused.iter().map(|(whose, limit, count)| {
        let labels = format!("{{whose=\"{whose}\",limit=\"{limit}\"}}");
        (labels, count)
    });
    page.counter("wharf_refused_total", "What each limit refused.", refused);
    let turned_down = [
        ("limit", done.refused_over_limit),
        ("check", done.refused_by_check),
        ("silence", done.refused_silent),
    ];
    let turned_down = turned_down.map(|(by, count)| (format!("{{by=\"{by}\"}}"), count));
    page.counter(
        "wharf_connections_refused_total",
        "Connections of peers turned down.",
        turned_down,
    );

    let memory = worker.context().metrics();
    let types = [
        ("hit", memory.memory_types.hits),
        ("asked", memory.memory_types.asked),
    ];
    let types = types.map(|(how, count)| (format!("{{how=\"{how}\"}}"), count));
    page.counter(
        "wharf_memory_type_lookups_total",
        "Questions whose memory it is.",
        types,
    );
    let caches = memory
        .registration_caches
        .iter()
        .enumerate()
        .flat_map(|(at, cache)| {
            let now = cache.statistics;
            [
                ("hit", now.hits),
                ("miss", now.misses),
                ("evicted", now.evictions),
            ]
            .map(|(event, count)| {
                let registrar = cache.registrar;
                (
                    format!("{{registrar=\"{registrar}\",cache=\"{at}\",event=\"{event}\"}}"),
                    count,
                )
            })
        });
    page.counter(
        "wharf_registration_cache_total",
        "What registration caches did.",
        caches,
    );
    page.0
}

/// A value without labels.
fn one<T: Display>(value: T) -> [(String, T); 1] {
    [(String::new(), value)]
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn counter(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, impl Display)>,
    ) {
        self.family(name, help, "counter", values);
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, impl Display)>,
    ) {
        self.family(name, help, "gauge", values);
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        values: impl IntoIterator<Item = (String, impl Display)>,
    ) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

// --- A scraper.

/// What Prometheus does: one request.
pub(crate) async fn scrape(address: SocketAddr) -> Outcome<String> {
    let socket = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let driving = tokio::spawn(connection);
    let request = Request::get("/metrics")
        .header("host", "localhost")
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    driving.abort();
    match status.is_success() {
        true => Ok(String::from_utf8(body.to_vec())?),
        false => Err(format!("the server answers {status}").into()),
    }
}
