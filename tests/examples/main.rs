//! The examples of device memory, compiled in as they are; each checks what it does. `cargo test --test examples`.
//!
//! A process has one driver, by a variable of its environment: each run is a process of its own. Without the variable it takes what the machine has; the
//! others are on the emulated driver.

#![allow(clippy::duplicate_mod, reason = "each example brings its own")]

// Their `main` is not called.
#[allow(dead_code)]
#[path = "../../examples/device_between_processes.rs"]
mod device_between_processes;
#[allow(dead_code)]
#[path = "../../examples/device_over_tcp.rs"]
mod device_over_tcp;
#[allow(dead_code)]
#[path = "../../examples/host_to_device.rs"]
mod host_to_device;
#[path = "../support/mod.rs"]
mod support;

use std::{
    io::Read,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use support::{LIMIT, emulated, this_test};

const PART: &str = "WHARFTEST_PART";
const FILE: &str = "WHARFTEST_FILE";
const ADDRESS: &str = "WHARFTEST_ADDRESS";

/// This program again, for one test in this part.
fn again(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(PART, part);
    command
}

/// The part of this process; `None` in the test itself.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// What the first process is given.
fn file() -> String {
    std::env::var(FILE).expect("given")
}

/// Ends a part as the example's `main` does: with an exit code, which is not that of a panic.
fn end(outcome: Result<(), Box<dyn std::error::Error + Send + Sync>>) -> ! {
    if let Err(error) = &outcome {
        eprintln!("{error}");
    }
    std::process::exit(if outcome.is_ok() { 0 } else { 9 });
}

/// Runs a part on the emulated driver, or without a variable, with more variables.
fn run(test: &str, part: &str, size: usize, driver: bool, more: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
    std::fs::write(&file, bytes).expect("written");
    let mut command = again(test, part);
    command
        .env_remove("WHARF_LIBCUDA")
        .env(FILE, &file)
        .envs(more.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if driver {
        command.env("WHARF_LIBCUDA", emulated::cuda());
    }
    let mut child = command.spawn().expect("a process");
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).map(|_| bytes)
        })
    };
    let out = read(Box::new(child.stdout.take().expect("piped")));
    let err = read(Box::new(child.stderr.take().expect("piped")));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("ours") {
            break status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("watchdog: {test} does not end");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let bytes = |thread: thread::JoinHandle<std::io::Result<Vec<u8>>>| {
        thread.join().expect("reads").expect("reads")
    };
    Output {
        status,
        stdout: bytes(out),
        stderr: bytes(err),
    }
}

/// That it went well and said all this.
#[track_caller]
fn good(output: &Output, said: &[&str]) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for words in said {
        assert!(text.contains(words), "{words:?} in:\n{text}");
    }
}

/// That it ended as a program that found what is wrong, and said this.
#[track_caller]
fn bad(output: &Output, said: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{text}\n{errors}");
    assert!(errors.contains(said), "{said:?} in:\n{errors}");
}

const EMULATED: [&str; 3] = [
    "device cuda:0: wharf emulated CUDA device 0",
    "*** EMULATED",
    "says nothing of a device's speed",
];

/// One byte; less than a fragment; many fragments, and a bit.
const SIZES: [usize; 3] = [1, 46_753, (9 << 20) + 13];

fn layer(name: &str) -> ! {
    let arguments = ["--layer", name, &file()].map(str::to_owned);
    end(host_to_device::run(&arguments))
}

#[test]
fn host_to_device_by_endpoint() {
    if part().is_some() {
        layer("endpoint");
    }
    for size in SIZES {
        let output = run(this_test!(), "all", size, true, &[]);
        good(&output, &EMULATED);
        good(
            &output,
            &[
                "put host to cuda:0",
                "get cuda:0 to cuda:1",
                "get cuda:1 to host",
            ],
        );
        good(&output, &["endpoint: SHA-256 ", "pinned fragments", " ok"]);
    }
}

#[test]
fn host_to_device_by_transport() {
    if part().is_some() {
        layer("transport");
    }
    for size in SIZES {
        let output = run(this_test!(), "all", size, true, &[]);
        good(&output, &EMULATED);
        good(
            &output,
            &[
                "copy host to cuda:0",
                "by the engine alone",
                "copy cuda:1 to host",
            ],
        );
        good(&output, &["transport: SHA-256 ", " ok"]);
    }
}

/// What a newcomer does, whatever the machine has.
#[test]
fn host_to_device_takes_what_is_there() {
    if let Some(part) = part() {
        layer(&part);
    }
    for part in ["endpoint", "transport"] {
        let output = run(this_test!(), part, 100_000, false, &[]);
        good(&output, &["device cuda:0: ", "SHA-256 "]);
    }
}

#[test]
fn host_to_device_on_a_single_device() {
    if let Some(part) = part() {
        layer(&part);
    }
    for part in ["endpoint", "transport"] {
        let one = [("EMULATED_CUDA_DEVICES", "1")];
        let output = run(this_test!(), part, 3 << 20, true, &one);
        good(&output, &["cuda:0 to cuda:0", "SHA-256 "]);
    }
}

/// A copy that a device forgets is noticed.
#[test]
fn host_to_device_tells_wrong_bytes() {
    if let Some(part) = part() {
        layer(&part);
    }
    // What the first layer's error says comes from the other end of its connection.
    let parts = [
        ("endpoint", "could not do its part"),
        ("transport", "cuMemcpyHtoDAsync_v2"),
    ];
    for (part, said) in parts {
        let forgets = [("EMULATED_CUDA_FAULTS", "cuMemcpyHtoDAsync_v2@3=skip")];
        let output = run(this_test!(), part, 9 << 20, true, &forgets);
        bad(&output, "SHA-256 ");
        let fails = [("EMULATED_CUDA_FAULTS", "cuMemcpyHtoDAsync_v2@3=700")];
        let output = run(this_test!(), part, 9 << 20, true, &fails);
        bad(&output, said);
    }
}

#[test]
fn host_to_device_refuses_what_it_cannot() {
    if let Some(part) = part() {
        end(host_to_device::run(&[part, file()]));
    }
    bad(&run(this_test!(), "--nonsense", 10, true, &[]), "usage: ");
    bad(&run(this_test!(), "--layer", 10, true, &[]), "usage: ");
}

#[test]
fn a_library_that_is_named_is_not_replaced() {
    if part().is_some() {
        layer("endpoint");
    }
    let library = [("WHARF_LIBCUDA", "/nowhere/libcuda.so.1")];
    bad(
        &run(this_test!(), "all", 10, false, &library),
        "/nowhere/libcuda.so.1",
    );
    bad(&run(this_test!(), "all", 0, true, &[]), "is empty");
}

/// Plays a part of an example with two processes, if this is one of them: each is this test again.
macro_rules! play {
    ($example:ident) => {{
        use $example::{TRANSPORTS, exchange};
        match part().as_deref() {
            Some("first") => {
                let second = |address: &str| {
                    let mut command = tokio::process::Command::from(again(this_test!(), "second"));
                    command.env(ADDRESS, address).stdout(Stdio::null());
                    Ok(command)
                };
                end(exchange::first(TRANSPORTS, Path::new(&file()), second))
            }
            Some(_) => {
                exchange::end_with_the_first("second");
                let address = std::env::var(ADDRESS).expect("given");
                end(exchange::second(TRANSPORTS, &address))
            }
            None => {}
        }
    }};
}

/// That both say which device it is, and that all digests agree.
fn two_processes(test: &str) {
    let digests = [
        "tag, in the other process: SHA-256 ",
        "get, back in this process: SHA-256 ",
        "put, in the other process: SHA-256 ",
    ];
    for size in SIZES {
        let output = run(test, "first", size, true, &[]);
        good(&output, &EMULATED);
        good(&output, &digests);
    }
    let one = [("EMULATED_CUDA_DEVICES", "1")];
    good(&run(test, "first", 100_000, true, &one), &digests);
    good(&run(test, "first", 100_000, false, &[]), &digests);
}

#[test]
fn device_between_processes() {
    play!(device_between_processes);
    two_processes(this_test!());
}

/// The memory of the other process is opened, not staged. Both write the file; the first, which gets, ends last.
#[test]
fn device_between_processes_opens_memory() {
    play!(device_between_processes);
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal");
    let variable = [("EMULATED_CUDA_JOURNAL", journal.to_str().expect("UTF-8"))];
    let said = ["one copy by the engine"];
    good(&run(this_test!(), "first", 1 << 20, true, &variable), &said);
    let text = std::fs::read_to_string(&journal).expect("a journal");
    assert!(text.contains("count cuIpcOpenMemHandle_v2 "), "{text}");
}

#[test]
fn device_over_tcp() {
    play!(device_over_tcp);
    two_processes(this_test!());
    let output = run(this_test!(), "first", 1 << 20, true, &[]);
    good(&output, &["staged through pinned fragments", "over tcp"]);
}

/// Bytes that a device of either process forgets are noticed.
#[test]
fn device_over_tcp_tells_wrong_bytes() {
    play!(device_over_tcp);
    for function in ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"] {
        let forgets = format!("{function}@1=skip");
        let forgets = [("EMULATED_CUDA_FAULTS", forgets.as_str())];
        let output = run(this_test!(), "first", 100_000, true, &forgets);
        bad(&output, "");
    }
}
