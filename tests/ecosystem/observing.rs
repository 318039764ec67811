//! What can be seen of a worker: counters, a trace file, spans and events.

use std::time::Duration;

use wharf::{Context, Progress, Tag, Worker};

use crate::{
    support::until,
    {metrics_to_prometheus, on_one_thread, support::Logs, tokio_console, trace_file},
};

/// With a single one in the process, `tracing` asks the subscriber of whichever thread comes to a place first, and other tests have none.
fn not_alone() -> tracing::Dispatch {
    tracing::Dispatch::new(tracing_subscriber::registry())
}

/// The value of a line of Prometheus' text format.
fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    let value = line.and_then(|rest| rest.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("{series} in:\n{page}"));
    value
        .parse()
        .unwrap_or_else(|_| panic!("{series} is {value:?}"))
}

#[test]
fn prometheus_scrapes_counters() {
    on_one_thread(async {
        let page = metrics_to_prometheus::run()
            .await
            .expect("an example that works");
        let sent = "{transport=\"shm\",way=\"sent\"}";
        assert!(
            value(&page, &format!("wharf_messages_total{sent}")) >= 10.0,
            "{page}"
        );
        assert!(
            value(&page, &format!("wharf_message_bytes_total{sent}")) >= 10_000.0,
            "{page}"
        );
        assert_eq!(value(&page, "wharf_connections{transport=\"shm\"}"), 1.0);
        assert_eq!(value(&page, "wharf_connects_total"), 1.0);
        assert!(value(&page, "wharf_connect_seconds_total") > 0.0);
        for series in [
            "wharf_refused_total{whose=\"source\",limit=\"unexpected_bytes\"}",
            "wharf_refused_total{whose=\"worker\",limit=\"connections\"}",
            "wharf_connections_refused_total{by=\"limit\"}",
        ] {
            assert_eq!(value(&page, series), 0.0);
        }
        let line = page
            .lines()
            .find(|line| line.contains("registrar=\"mlock\"") && line.contains("event=\"hit\""));
        assert!(line.is_some_and(|line| line.ends_with(" 2")), "{page}");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let number = line.rsplit(' ').next().map(str::parse::<f64>);
            assert!(matches!(number, Some(Ok(_))), "{line}");
        }
        let types = page
            .lines()
            .filter(|line| line.starts_with("# TYPE "))
            .count();
        let help = page
            .lines()
            .filter(|line| line.starts_with("# HELP "))
            .count();
        assert_eq!(types, help);
    });
}

#[test]
fn a_trace_file_is_written() {
    let _other = not_alone();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let events = trace_file::run(&file).expect("an example that works");
    let text = std::fs::read_to_string(&file).expect("a trace");
    for name in [
        "\"connect\"",
        "\"accept\"",
        "\"message\"",
        "\"worker\"",
        "rendezvous",
    ] {
        assert!(text.contains(name), "{name} among {events} events:\n{text}");
    }
}

#[test]
fn tokio_console_makes_its_traffic() {
    on_one_thread(async {
        let said = tokio_console::run(Duration::ZERO)
            .await
            .expect("an example that works");
        assert!(said.starts_with("2 rounds"), "{said}");
    });
}

/// Every message and byte is counted once at each end, whichever way it goes.
#[test]
fn traffic_is_counted() {
    for transport in ["shm", "tcp", "shm,cma"] {
        on_one_thread(async move {
            let builder = Context::builder().transports(transport).expect("known");
            let context = builder.build().expect("a context");
            let [here, there] = [(); 2].map(|()| Worker::new(&context).expect("a worker"));
            let endpoint = {
                let address = there.address().expect("an address");
                here.connect(&address).await.expect("connected")
            };
            let before = (here.metrics(), there.metrics());
            const LENGTHS: [usize; 5] = [0, 8, 3000, 100_000, 3 << 20];
            for length in LENGTHS {
                let send = endpoint.tag_send(Tag(1), vec![7; length]);
                let receive = there.tag_recv(Tag(1), vec![0; length]);
                let (sent, got) = tokio::join!(send, receive);
                sent.expect("sent");
                got.expect("received");
            }
            endpoint.flush().await.expect("flushed");
            let after = (here.metrics(), there.metrics());
            let name = transport.split(',').next().expect("one");
            let totals = |metrics: &wharf::WorkerMetrics| {
                let mut all = metrics.transports.iter();
                all.find(|one| one.transport == name)
                    .cloned()
                    .expect("a transport")
            };
            let sent = totals(&after.0).sent.bytes - totals(&before.0).sent.bytes;
            let received = totals(&after.1).received.bytes - totals(&before.1).received.bytes;
            assert_eq!(sent, received, "{transport}");
            let copied = |metrics: &wharf::WorkerMetrics| metrics.mapped.bytes + metrics.cma.bytes;
            let copied = copied(&after.0) + copied(&after.1);
            let total: usize = LENGTHS.iter().sum();
            // Headers are not counted, fields of the protocol are.
            assert!(
                sent + copied >= total as u64,
                "{transport}: {sent} + {copied}"
            );
            assert!(
                sent + copied < total as u64 + 4096,
                "{transport}: {sent} + {copied}"
            );
            if transport.contains("cma") && endpoint.transports().contains(&"cma") {
                assert_eq!(copied, 3 << 20, "the long one without a message");
            }
            let counts = (totals(&after.0).sent.count, totals(&after.1).received.count);
            assert!(counts.0 > LENGTHS.len() as u64 && counts.1 > LENGTHS.len() as u64);
            assert_eq!((after.0.connects, after.0.connects_failed), (1, 0));
            assert_eq!(totals(&after.0).connections, 1);
            // What a connection that is gone has sent is not forgotten.
            endpoint.close().await.expect("closed");
            let last = totals(&here.metrics());
            assert_eq!(last.connections, 0);
            assert!(last.sent.bytes >= totals(&after.0).sent.bytes);
            assert!(here.connect("127.0.0.1:1").await.is_err());
            assert_eq!(here.metrics().connects_failed, 1);
        });
    }
}

/// A wait that sleeps is counted as such, and so is its wake-up; one that finds its message at once is not.
#[test]
fn waits_are_counted() {
    on_one_thread(async {
        let builder = Context::builder().transports("shm").expect("known");
        let context = builder
            .progress(Progress::EventDriven)
            .build()
            .expect("a context");
        let [here, there] = [(); 2].map(|()| Worker::new(&context).expect("a worker"));
        let address = there.address().expect("an address");
        let endpoint = here.connect(&address).await.expect("connected");
        let before = there.metrics();
        let waiter = there.clone();
        let waiting = tokio::spawn(async move { waiter.tag_recv(Tag(1), vec![0; 8]).await });
        until("sleep", || there.metrics().parked > before.parked).await;
        endpoint.tag_send(Tag(1), vec![0; 8]).await.expect("sent");
        waiting.await.expect("a task").expect("received");
        let after = there.metrics();
        assert!(after.parked > before.parked, "{after:?}");
        assert!(after.wakes > before.wakes, "{after:?}");
        assert!(after.doorbells > before.doorbells, "{after:?}");
        assert!(after.arms > before.arms, "{after:?}");
        assert_eq!(after.found_spinning, 0, "{after:?}");
    });
}

/// Operations are told of only where they are asked for by their target.
#[test]
fn operations_are_traced_when_asked_for() {
    on_one_thread(async {
        let _other = not_alone();
        let logs = Logs::of_this_thread();
        let context = Context::builder().build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        let address = worker.address().expect("an address");
        let endpoint = worker.connect(&address).await.expect("connected");
        endpoint.tag_send(Tag(1), vec![0; 8]).await.expect("sent");
        let receive = worker.tag_recv(Tag(1), vec![0; 8]);
        receive.await.expect("received");
        let lines = logs.lines();
        let said = |words: &[&str]| {
            let has = |line: &&String| words.iter().all(|word| line.contains(word));
            assert!(
                lines.iter().any(|line| has(&line)),
                "{words:?} in {lines:#?}"
            );
        };
        said(&["TRACE", "wharf::operation", "tag send", "length=8", "eager"]);
        said(&["DEBUG", "wharf::protocol", "eager="]);
        said(&["DEBUG", "endpoint{", "connected"]);
    });
}
