//! `wharf perf`.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
};

use serde_json::{Value, json};
use wharf::{Context, Progress, Tag, Worker};

use crate::support::{block_until, emulated, end_of, on_a_runtime as run};

/// The tests that have a peer, and what they share.
const WITH_PEER: [&str; 16] = [
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "am_lat",
    "am_bw",
    "put_lat",
    "put_bw",
    "get",
    "stream_lat",
    "stream_bw",
    "add",
    "fadd",
    "swap",
    "cswap",
    "signal_lat",
];

fn command(args: &[&str]) -> Command {
    let mut all = vec!["perf"];
    all.extend(args);
    super::run::command(&all, &[])
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Ended {
    is_ok: bool,
    out: String,
    errors: String,
}

impl Ended {
    fn rows(&self) -> Vec<Value> {
        assert!(self.is_ok, "{}", self.errors);
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a JSON object a line"))
            .collect()
    }

    #[track_caller]
    fn fails_with(&self, words: &[&str]) {
        assert!(!self.is_ok, "{}", self.out);
        for word in words {
            assert!(
                self.errors.contains(word),
                "no {word:?} in {:?}",
                self.errors
            );
        }
    }
}

/// Runs it to its end, with a watchdog.
fn perf(args: &[&str]) -> Ended {
    ended(start(command(args)))
}

fn start(mut command: Command) -> Running {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Running(child.expect("the program"))
}

fn ended(mut running: Running) -> Ended {
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).expect("text");
            text
        })
    };
    let out = running.0.stdout.take().map(|pipe| read(Box::new(pipe)));
    let errors = running.0.stderr.take().map(|pipe| read(Box::new(pipe)));
    let status = end_of(&mut running.0, "the end of wharf perf");
    let text = |pipe: Option<thread::JoinHandle<String>>| {
        pipe.map(|text| text.join().expect("read"))
            .unwrap_or_default()
    };
    Ended {
        is_ok: status.success(),
        out: text(out),
        errors: text(errors),
    }
}

/// A server, and where it listens.
fn server() -> (Running, String) {
    let mut child = command(&["--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(Running)
        .expect("the program");
    let mut lines = BufReader::new(child.0.stdout.take().expect("piped"));
    let address = address(&mut lines);
    (child, address)
}

fn address(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on ");
    address.expect("an address").to_owned()
}

/// Processes whose parent this is.
fn children_of(parent: u32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name may hold anything; what follows its bracket is the state and the parent.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        if rest.split_whitespace().nth(1) == Some(&parent.to_string()) {
            found.extend(
                entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<i32>().ok()),
            );
        }
    }
    found
}

/// Waits until an end is in the middle of its measurement: to come there costs it a tenth of this.
fn is_measuring(end: &Running) {
    let pid = end.0.id() as i32;
    block_until("the measurement", || processor_time(pid) >= 20);
}

/// What a process has had of the processors, in the kernel's ticks of 10 ms.
fn processor_time(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let rest = stat.rsplit(')').next().unwrap_or_default();
    // `utime` and `stime` are the 14th and the 15th field; the state after the name is the third.
    let times = rest.split_whitespace().skip(11).take(2);
    times
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("it is there");
}

#[test]
fn every_test_over_every_transport() {
    let rows = perf(&[
        "--local",
        "--all",
        "-n",
        "30",
        "-d",
        "0.05",
        "--validate",
        "-f",
        "json",
    ])
    .rows();
    let found: BTreeSet<(&str, &str)> = rows
        .iter()
        .filter_map(|row| Some((row["test"].as_str()?, row["transport"].as_str()?)))
        .collect();
    for transport in ["self", "shm", "tcp"] {
        for test in WITH_PEER {
            assert!(
                found.contains(&(test, transport)),
                "{test} over {transport}"
            );
        }
    }
    for test in ["parked_lat", "idle"] {
        assert!(found.contains(&(test, "shm")) && found.contains(&(test, "tcp")));
    }
    assert!(found.contains(&("reg_cold", "none")) && found.contains(&("reg_cached", "none")));
    for row in &rows {
        let name = row["test"].as_str().expect("a name");
        assert_eq!(row["validated"], true, "{row}");
        if row["transport"] != "none" {
            let used = row["in_use"].as_array().expect("a list");
            assert!(used.contains(&row["transport"]), "{row}");
        }
        if name == "idle" {
            assert!(row["wakeups_per_second"].as_f64().is_some(), "{row}");
            continue;
        }
        if WITH_PEER.contains(&name) {
            assert_eq!(row["iterations"], 30, "{row}");
        }
        let times = &row["latency_us"];
        let time = |which: &str| times[which].as_f64().expect("a time");
        assert!(time("p50") > 0.0 && time("average") > 0.0 && time("overall") > 0.0);
        let order = ["p50", "p90", "p99", "p99.9", "max"].map(time);
        assert!(order.is_sorted(), "{row}");
    }
}

#[test]
fn sizes_and_means() {
    let rows = perf(&[
        "--local",
        "tag_lat",
        "put_bw",
        "-x",
        "shm",
        "-s",
        "0:64K:64",
        "-d",
        "0.01",
        "--validate",
        "-f",
        "json",
    ])
    .rows();
    let sizes = |test: &str| -> Vec<u64> {
        let rows = rows.iter().filter(|row| row["test"] == test);
        rows.filter_map(|row| row["size"].as_u64()).collect()
    };
    assert_eq!(sizes("tag_lat"), [0, 1, 64, 4096]);
    // A put has a byte at least.
    assert_eq!(sizes("put_bw"), [1, 64, 4096]);
    for row in rows.iter().filter(|row| row["size"] != 0) {
        let size = row["size"].as_f64().expect("a size");
        let overall = row["latency_us"]["overall"].as_f64().expect("a time");
        let rate = row["rate_per_second"]["overall"].as_f64().expect("a rate");
        let bandwidth = row["bandwidth_mb_per_second"]["overall"]
            .as_f64()
            .expect("one");
        assert!((rate * overall / 1e6 - 1.0).abs() < 1e-6, "{row}");
        assert!(
            (bandwidth * 1_048_576.0 / size - rate).abs() < rate * 1e-6,
            "{row}"
        );
    }
}

#[test]
fn csv_has_the_columns_of_ucx_perftest() {
    let ended = perf(&[
        "--local", "tag_lat", "fadd", "idle", "-x", "shm", "-n", "20", "-d", "0.02", "-f", "csv",
    ]);
    assert!(ended.is_ok, "{}", ended.errors);
    assert!(ended.out.contains(
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"
    ));
    let mut reader = csv::Reader::from_reader(ended.out.as_bytes());
    let header = reader.headers().expect("a header").clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.expect("a row")).collect();
    let field = |row: usize, name: &str| {
        let at = header.iter().position(|column| column == name);
        rows[row][at.expect("a column")].to_owned()
    };
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (field(0, "test"), field(1, "test")),
        ("tag_lat".into(), "fadd".into())
    );
    assert_eq!(field(0, "iterations"), "20");
    assert!(field(0, "overall_lat").parse::<f64>().expect("a number") > 0.0);
    assert!(field(2, "wakeups_per_second").parse::<f64>().is_ok());
}

#[test]
fn text_is_for_people_and_nothing_else_is_printed() {
    let ended = perf(&[
        "--local", "tag_lat", "tag_bw", "-x", "tcp", "-n", "20", "-s", "8,64",
    ]);
    assert!(ended.is_ok, "{}", ended.errors);
    // That the machine was busy with something else is told there, too.
    let others: Vec<&str> = ended
        .errors
        .lines()
        .filter(|line| !line.starts_with("warning: the machine was busy: "))
        .collect();
    assert!(
        others.is_empty(),
        "a progress bar, and no terminal: {others:?}"
    );
    for word in [
        "latency (usec)",
        "overhead (usec)",
        "bandwidth (MB/s)",
        "message rate (msg/s)",
        "50.0%ile",
    ] {
        assert!(ended.out.contains(word), "{word}");
    }
    assert_eq!(
        ended
            .out
            .lines()
            .filter(|line| line.contains("  tag_"))
            .count(),
        4
    );
}

/// Whether tags are balanced and text holds no bare `<` or `&`: enough for what is written here.
fn assert_well_formed(text: &str) {
    let mut open = Vec::new();
    let mut rest = text.trim();
    while let Some(at) = rest.find('<') {
        for entity in rest[..at].split('&').skip(1) {
            let end = entity.find(';').expect("an entity ends");
            assert!(["amp", "lt", "gt", "quot", "apos", "#39"].contains(&&entity[..end]));
        }
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.trim()), "closed");
        } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "not closed: {open:?}");
}

#[test]
fn a_plot_has_a_line_for_each_transport_and_the_floor() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.svg");
    let name = file.to_str().expect("text");
    let rows = perf(&[
        "--local",
        "tag_lat",
        "tag_bw",
        "-x",
        "self,shm,tcp",
        "-s",
        "8:4K:8",
        "-n",
        "20",
        "--plot",
        name,
        "-f",
        "json",
    ])
    .rows();
    let last = rows.last().expect("rows");
    let floor = &last["floor"];
    assert!(floor["cache_line_us"].as_f64().expect("a time") > 0.0);
    for error in ["cache_line_error", "memcpy_error"] {
        assert!(floor[error].as_f64().expect("a share") >= 0.0, "{floor}");
    }
    let conditions = &last["conditions"];
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(conditions["host"], host.trim());
    assert!(conditions["load"].as_f64().expect("a load") >= 0.0);
    let date = conditions["date"].as_str().expect("a date").to_owned();
    assert!(date.starts_with("20") && date.ends_with(" UTC"), "{date}");
    assert_eq!(
        floor["memcpy_mb_per_second"]
            .as_array()
            .expect("a list")
            .len(),
        4
    );
    let svg = fs::read_to_string(&file).expect("a file");
    assert!(svg.starts_with("<svg"));
    assert_well_formed(&svg);
    // The text of an element stands on a line of its own.
    let said = |text: &str| svg.lines().filter(|line| line.trim() == text).count();
    // Two panels: one of times, one of bandwidths.
    for name in ["self", "shm", "tcp"] {
        assert_eq!(said(name), 2, "{name}");
    }
    assert_eq!((said("floor: cache line"), said("floor: memcpy")), (1, 1));
    let head = format!("{}, {date}, load ", host.trim());
    let says = |text: &str| svg.lines().any(|line| line.trim().starts_with(text));
    assert!(says(&head), "{head}");
    assert!(says("floor: cache line ") && svg.contains(" usec, its median "));
    let colours = ["#1F77B4", "#D62728", "#2CA02C"];
    for colour in colours {
        let lines = svg
            .lines()
            .filter(|line| line.contains("<polyline") && line.contains(colour));
        let drawn = lines.filter(|line| line.matches(',').count() >= 4).count();
        assert_eq!(drawn, 2, "{colour}: a line of four points in each panel");
    }
}

fn write(folder: &Path, text: &str) -> String {
    let file = folder.join("batch");
    fs::write(&file, text).expect("written");
    file.to_str().expect("text").to_owned()
}

#[test]
fn a_batch_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(
        folder.path(),
        "# what is measured\ntag_lat -s 16\n\n  get -x tcp -s 64 -n 7   # another transport\nput_bw -p event\n",
    );
    let rows = perf(&[
        "--local", "--batch", &file, "-x", "shm", "-n", "20", "-f", "json",
    ])
    .rows();
    let seen: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!([
                row["test"],
                row["transport"],
                row["size"],
                row["iterations"],
                row["progress"]
            ])
        })
        .collect();
    let wanted = [
        json!(["tag_lat", "shm", 16, 20, "adaptive"]),
        json!(["get", "tcp", 64, 7, "adaptive"]),
        json!(["put_bw", "shm", 8, 20, "event"]),
    ];
    assert_eq!(seen, wanted);

    let file = write(folder.path(), "tag_lat\ntag_lat -s many\n");
    perf(&["--local", "--batch", &file]).fails_with(&["line 2", "many"]);
    let file = write(folder.path(), "tag_lat\nfly\n");
    perf(&["--local", "--batch", &file]).fails_with(&["line 2", "fly"]);
    let file = write(folder.path(), "# nothing\n");
    perf(&["--local", "--batch", &file]).fails_with(&["nothing to measure"]);
    perf(&["--local", "--batch", "/nonexistent/file"]).fails_with(&["/nonexistent/file"]);
}

#[test]
fn against_a_server_with_threads_and_tasks() {
    let (_server, address) = server();
    let run = |more: &[&str]| {
        let mut args = vec![address.as_str(), "-n", "50", "--validate", "-f", "json"];
        args.extend(more);
        start(command(&args))
    };
    // At the same time.
    let one = run(&["tag_lat", "am_lat", "-x", "tcp"]);
    let other = run(&["tag_bw", "put_bw", "-T", "2", "--tasks", "3", "-p", "event"]);
    let (one, other) = (ended(one).rows(), ended(other).rows());
    assert_eq!((one.len(), other.len()), (2, 2));
    for row in &other {
        assert_eq!((&row["threads"], &row["tasks"]), (&json!(2), &json!(3)));
        assert_eq!(row["iterations"], 2 * 3 * 50, "{row}");
    }
    // And again.
    assert_eq!(ended(run(&["get", "stream_bw"])).rows().len(), 2);
}

#[test]
fn each_way_to_wait() {
    for progress in ["adaptive", "event", "spin:50us", "thread"] {
        let rows = perf(&[
            "--local", "tag_lat", "-x", "shm", "-n", "50", "-p", progress, "-f", "json",
        ])
        .rows();
        assert!(
            rows[0]["progress"]
                .as_str()
                .expect("a name")
                .starts_with(progress)
        );
    }
    // Two processors at least: with one, each end spins for as long as the other one waits for it.
    let rows = perf(&[
        "--local", "tag_lat", "-x", "tcp", "-n", "50", "-p", "busy", "-f", "json",
    ])
    .rows();
    assert_eq!(rows[0]["progress"], "busy");
}

#[test]
fn a_peer_that_is_killed_is_an_error() {
    for (test, transport) in [("tag_lat", "shm"), ("put_lat", "shm"), ("tag_bw", "tcp")] {
        let (mut server, address) = server();
        let client = start(command(&[&address, test, "-x", transport, "-d", "600"]));
        is_measuring(&client);
        server.0.kill().expect("killed");
        ended(client).fails_with(&["error: "]);
    }
}

#[test]
fn a_client_that_is_killed_leaves_nothing_at_its_server() {
    let (server, address) = server();
    let tasks = format!("/proc/{}/task", server.0.id());
    let threads = || fs::read_dir(&tasks).expect("it runs").count();
    // It has said that it listens, and measures nothing.
    let before = threads();
    assert!(perf(&[&address, "tag_lat", "-x", "shm", "-n", "5"]).is_ok);
    block_until("the threads of the first end", || threads() <= before);
    for (test, transport) in [
        ("tag_lat", "shm"),
        ("put_lat", "shm"),
        ("put_lat", "tcp"),
        ("tag_bw", "tcp"),
    ] {
        let mut client = start(command(&[&address, test, "-x", transport, "-d", "600"]));
        block_until("it measures", || threads() > before);
        is_measuring(&client);
        client.0.kill().expect("killed");
        block_until("its threads end", || threads() <= before);
    }
    assert!(perf(&[&address, "tag_lat", "-n", "5"]).is_ok);
}

#[test]
fn a_local_peer_that_is_killed_or_stands_still_is_an_error() {
    for (signal, word) in [
        (nix::sys::signal::Signal::SIGKILL, "SIGKILL"),
        (nix::sys::signal::Signal::SIGSTOP, "nothing moved for 1 s"),
    ] {
        let client = start(command(&[
            "--local",
            "tag_lat",
            "-x",
            "tcp",
            "-d",
            "600",
            "--timeout",
            "1",
        ]));
        let parent = client.0.id();
        let mut peer = 0;
        block_until("a peer", || {
            peer = children_of(parent).first().copied().unwrap_or(0);
            peer != 0
        });
        // Into the middle of the measurement: to get ready takes a tenth of this.
        block_until("it measures", || processor_time(peer) >= 50);
        kill(peer, signal);
        let ended = ended(client);
        assert!(!ended.is_ok);
        let says =
            ended.errors.contains(word) || word == "SIGKILL" && ended.errors.contains("peer");
        assert!(says, "{}", ended.errors);
        block_until("the peer is gone", || {
            !Path::new(&format!("/proc/{peer}")).exists()
        });
    }
}

#[test]
fn a_local_peer_ends_with_its_parent() {
    let mut client = start(command(&["--local", "tag_lat", "-x", "shm", "-d", "600"]));
    let parent = client.0.id();
    let mut peer = 0;
    block_until("a peer", || {
        peer = children_of(parent).first().copied().unwrap_or(0);
        peer != 0
    });
    client.0.kill().expect("killed");
    client.0.wait().expect("gone");
    block_until("the peer is gone", || {
        // A zombie, where nobody waits for orphans, has ended too.
        fs::read_to_string(format!("/proc/{peer}/stat")).map_or(true, |stat| {
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim().starts_with('Z'))
        })
    });
}

const CONTROL: Tag = Tag(0x7770_6572_6600_0000);

fn worker() -> Worker {
    let context = Context::builder().progress(Progress::EventDriven).build();
    Worker::new(&context.expect("a context")).expect("a worker")
}

#[test]
fn a_server_of_another_version_is_refused() {
    for (answer, words) in [
        (
            &br#"{"wharf_perf":99,"say":"ready"}"#[..],
            &["version 99"][..],
        ),
        (&b"\xff\xfe"[..], &["does not speak the language"][..]),
        (&b"{}"[..], &["does not speak the language"][..]),
        (
            &br#"{"wharf_perf":1,"say":"refused","why":"no"}"#[..],
            &["refuses: no"][..],
        ),
        (&br#"{"wharf_perf":1}"#[..], &["refuses"][..]),
    ] {
        run(async {
            let worker = worker();
            let listener = worker.listen("127.0.0.1:0").await.expect("listens");
            let address = listener.local_addr().to_string();
            let client = start(command(&[&address, "tag_lat"]));
            let endpoint = listener
                .accept()
                .await
                .expect("a peer")
                .await
                .expect("connected");
            let asked = worker
                .tag_recv(CONTROL, vec![0; 65536])
                .await
                .expect("a request");
            let asked: Value = serde_json::from_slice(&asked.buffer[..asked.len]).expect("JSON");
            assert_eq!(asked["wharf_perf"], 1);
            endpoint.tag_send(CONTROL, answer).await.expect("sent");
            let ended = tokio::task::spawn_blocking(move || ended(client))
                .await
                .expect("ended");
            ended.fails_with(words);
        });
    }
}

#[test]
fn a_client_of_another_version_or_with_a_bad_request_is_refused() {
    let (_server, address) = server();
    run(async {
        let worker = worker();
        let endpoint = worker.connect(address.as_str()).await.expect("connected");
        let ask = async |text: &[u8]| -> Value {
            endpoint
                .tag_send(CONTROL, text.to_vec())
                .await
                .expect("sent");
            let answer = worker
                .tag_recv(CONTROL, vec![0; 65536])
                .await
                .expect("an answer");
            serde_json::from_slice(&answer.buffer[..answer.len]).expect("JSON")
        };
        for (request, word) in [
            (&br#"{"wharf_perf":2,"say":"measure"}"#[..], "version 2"),
            (&b"no"[..], "language"),
            (&br#"{"wharf_perf":1,"say":"fly"}"#[..], "fly"),
            (&br#"{"wharf_perf":1,"say":"measure"}"#[..], "test"),
            (
                &br#"{"wharf_perf":1,"say":"measure","test":"fly"}"#[..],
                "fly",
            ),
        ] {
            let answer = ask(request).await;
            assert_eq!(answer["say"], "refused", "{answer}");
            assert!(
                answer["why"].as_str().expect("why").contains(word),
                "{answer}"
            );
        }
    });
    // It serves others as before.
    assert!(perf(&[&address, "tag_lat", "-n", "5"]).is_ok);
}

#[test]
fn bad_arguments() {
    for (args, words) in [
        (&[][..], &["--local"][..]),
        (&["--local"], &["which test?", "tag_lat"]),
        (&["--local", "tag_lot"], &["did you mean \"tag_lat\"?"]),
        (
            &["--local", "tag_lat", "-x", "smh"],
            &["no transport \"smh\""],
        ),
        (
            &["--local", "tag_lat", "-m", "vram"],
            &["no memory type \"vram\""],
        ),
        (
            &["--local", "tag_lat", "-m", "host,host,host"],
            &["two ends"],
        ),
        (&["--local", "tag_lat", "-s", "8x"], &["8x"]),
        (&["--local", "tag_lat", "-s", "64:8"], &["backwards"]),
        (&["--local", "fadd", "-s", "16"], &["4 or 8 bytes"]),
        (&["--local", "put_lat", "-s", "4"], &["8 bytes"]),
        (&["--local", "get", "-s", "0"], &["a byte at least"]),
        (
            &["--local", "tag_bw", "-s", "64G", "-W", "1000"],
            &["more than"],
        ),
        (&["--local", "tag_lat", "-n", "0"], &["--iterations"]),
        (&["--local", "tag_lat", "-d", "-1"], &["-1"]),
        (
            &["--local", "tag_lat", "-p", "fast"],
            &["adaptive, spin:TIME, busy"],
        ),
        (&["--local", "parked_lat", "-p", "busy"], &["never does"]),
        (&["--local", "parked_lat", "-x", "self"], &["two processes"]),
        (
            &["--local", "put_lat", "-m", "cuda"],
            &["looks at the bytes"],
        ),
        (&["--local", "127.0.0.1:1", "tag_lat"], &["two peers"]),
        (&["127.0.0.1:1", "tag_lat"], &["onnection refused"]),
        (&["--local", "tag_lat", "-c", "99999"], &["CPU 99999"]),
        (
            &["--local", "tag_lat", "--plot", "/nonexistent/x.svg"],
            &["/nonexistent/x.svg"],
        ),
        (&["--listen", "127.0.0.1:x"], &["127.0.0.1:x"]),
    ] {
        perf(args).fails_with(words);
    }
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let mut command = command(&["--local", "tag_lat", "-m", "cuda", "-n", "5"]);
    command.env("WHARF_LIBCUDA", "/nonexistent/libcuda.so");
    ended(start(command)).fails_with(&["cuda"]);
}

#[test]
fn emulated_device_memory_at_either_end_is_called_emulated() {
    for memory in ["cuda,host", "host,cuda", "cuda"] {
        let mut command = command(&[
            "--local",
            "tag_lat",
            "tag_bw",
            "am_lat",
            "put_bw",
            "get",
            "-x",
            "shm",
            "-s",
            "64,32K",
            "-m",
            memory,
            "-n",
            "10",
            "--validate",
            "-f",
            "json",
        ]);
        command.env("WHARF_LIBCUDA", emulated::cuda());
        let rows = ended(start(command)).rows();
        assert_eq!(rows.len(), 10);
        for row in &rows {
            let text = row["memory"].to_string();
            let number = if memory == "cuda" { 2 } else { 1 };
            assert_eq!(text.matches("cuda:0 (emulated)").count(), number, "{text}");
        }
    }
}
