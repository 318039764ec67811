//! The examples of device memory and of channels, compiled in as they are; each checks what it does. `cargo test --test examples`.
//!
//! A process has one driver, by a variable of its environment: each run is a process of its own. Without the variable it takes what the machine has; the
//! others are on the emulated driver.

#![allow(clippy::duplicate_mod, reason = "each example brings its own")]

#[path = "../../examples/by_hand_shm.rs"]
mod by_hand_shm;
#[path = "../../examples/by_hand_tcp.rs"]
mod by_hand_tcp;
#[path = "../../examples/by_hand_verbs.rs"]
mod by_hand_verbs;
// Their `main` is not called.
#[allow(dead_code)]
#[path = "../../examples/device_between_processes.rs"]
mod device_between_processes;
#[allow(dead_code)]
#[path = "../../examples/device_over_rdma.rs"]
mod device_over_rdma;
#[allow(dead_code)]
#[path = "../../examples/device_over_tcp.rs"]
mod device_over_tcp;
#[allow(dead_code)]
#[path = "../../examples/gaudi_cards.rs"]
mod gaudi_cards;
#[allow(dead_code)]
#[path = "../../examples/hello.rs"]
mod hello;
#[allow(dead_code)]
#[path = "../../examples/host_to_device.rs"]
mod host_to_device;
#[allow(dead_code)]
#[path = "../../examples/perf_memory_channel.rs"]
mod perf_memory_channel;
#[allow(dead_code)]
#[path = "../../examples/ring_all_reduce.rs"]
mod ring_all_reduce;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../../examples/two_processes.rs"]
mod two_processes;

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use support::{emulated, end_of, this_test};

const PART: &str = "WHARFTEST_PART";
const FILE: &str = "WHARFTEST_FILE";
const ADDRESS: &str = "WHARFTEST_ADDRESS";
const DEVICE: &str = "WHARFTEST_DEVICE";

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
        .env_remove("WHARF_LIBHLTHUNK")
        .env_remove("WHARF_LIBHSA")
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
    let status = end_of(&mut child, test);
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
        // From a MiB on the file's bytes are registered, and the device reads them where they are.
        let way = match size > 1 << 20 {
            true => "one copy by the engine, host to cuda:0",
            false => "pinned fragments",
        };
        good(&output, &["endpoint: SHA-256 ", way, " ok"]);
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
    // After the first byte the endpoint brings all of it by one copy, the other layer by fragments.
    for (part, copy) in [("endpoint", 2), ("transport", 3)] {
        let forgets = format!("cuMemcpyHtoDAsync_v2@{copy}=skip");
        let forgets = [("EMULATED_CUDA_FAULTS", forgets.as_str())];
        let output = run(this_test!(), part, 9 << 20, true, &forgets);
        bad(&output, "SHA-256 ");
        let fails = format!("cuMemcpyHtoDAsync_v2@{copy}=700");
        let fails = [("EMULATED_CUDA_FAULTS", fails.as_str())];
        let output = run(this_test!(), part, 9 << 20, true, &fails);
        bad(&output, "cuMemcpyHtoDAsync_v2");
    }
}

#[test]
fn host_to_device_refuses_what_it_cannot() {
    if let Some(part) = part() {
        end(host_to_device::run(&[part, file()]));
    }
    bad(&run(this_test!(), "--nonsense", 10, true, &[]), "usage: ");
    bad(&run(this_test!(), "--layer", 10, true, &[]), "usage: ");
    bad(&run(this_test!(), "--memory", 10, true, &[]), "usage: ");
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
    ($example:ident) => {
        play!($example, false)
    };
    ($example:ident, $direct:literal) => {{
        use $example::{TRANSPORTS, accelerator, exchange};
        let device = match std::env::var(DEVICE) {
            Ok(name) if name == "gaudi" => accelerator::Vendor::Gaudi,
            Ok(name) if name == "rocm" => accelerator::Vendor::Rocm,
            _ => accelerator::Vendor::Cuda,
        };
        match part().as_deref() {
            Some("first") => {
                let second = |address: &str| {
                    let mut command = tokio::process::Command::from(again(this_test!(), "second"));
                    command.env(ADDRESS, address).stdout(Stdio::null());
                    Ok(command)
                };
                let over = exchange::Over {
                    device,
                    transports: TRANSPORTS,
                    direct: $direct,
                };
                end(exchange::first(over, Path::new(&file()), second))
            }
            Some(_) => {
                exchange::end_with_the_first("second");
                let address = std::env::var(ADDRESS).expect("given");
                end(exchange::second(device, TRANSPORTS, &address))
            }
            None => {}
        }
    }};
}

/// What an example's `main` is given.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The README's two processes. The second is told where the first listens; both end by themselves.
#[test]
fn hello_between_two_processes() {
    match part().as_deref() {
        Some("first") => end(runtime()
            .block_on(hello::listen("127.0.0.1:0"))
            .map_err(Into::into)),
        Some(_) => {
            let address = std::env::var(ADDRESS).expect("given");
            end(runtime()
                .block_on(hello::greet(&address))
                .map_err(Into::into))
        }
        None => {}
    }
    let mut first = again(this_test!(), "first")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut lines = BufReader::new(first.stdout.take().expect("piped"))
        .lines()
        .map(|line| line.expect("reads"));
    let address = lines
        .find_map(|line| Some(line.split_once("listening at ")?.1.to_owned()))
        .expect("the first process says where it listens");
    let second = again(this_test!(), "second")
        .env(ADDRESS, address)
        .stderr(Stdio::piped())
        .output()
        .expect("a process");
    if !second.status.success() {
        // It would wait for another peer.
        let _ = first.kill();
    }
    let status = end_of(&mut first, this_test!());
    good(&second, &[r#"b"hello, you" over ["shm""#]);
    assert!(status.success(), "{status}");
    let said: Vec<String> = lines.collect();
    assert!(
        said.iter()
            .any(|line| line.contains(r#"b"hello, there" over ["shm""#)),
        "{said:?}"
    );
}

/// A file between two processes, over shared memory and over TCP.
#[test]
fn two_processes_with_host_memory() {
    match part().as_deref() {
        Some("first") => {
            let command = |transport: &str, address: &str| {
                let mut command = tokio::process::Command::from(again(this_test!(), "second"));
                command.env(ADDRESS, format!("{transport} {address}"));
                Ok(command)
            };
            end(runtime().block_on(two_processes::first(file().into(), command)))
        }
        Some(_) => {
            let words = std::env::var(ADDRESS).expect("given");
            let (transport, address) = words.split_once(' ').expect("two words");
            end(runtime().block_on(two_processes::second(transport, address)))
        }
        None => {}
    }
    for size in SIZES {
        let output = run(this_test!(), "first", size, false, &[]);
        good(&output, &["shm", "tcp", "tag", "put", "get", " ok"]);
    }
}

#[test]
fn by_hand() {
    match part().as_deref() {
        Some("tcp") => end(by_hand_tcp::main()),
        Some("shm") => end(by_hand_shm::main()),
        Some(_) => end(by_hand_verbs::main()),
        None => {}
    }
    let library = emulated::verbs();
    let library = [("WHARF_LIBIBVERBS", library.to_str().expect("UTF-8"))];
    let came = |over: &str, by: &str| format!("{over} by hand: 1048576 bytes came back, by {by}");
    let by_tcp = run(this_test!(), "tcp", 1, false, &[]);
    good(&by_tcp, &[&came("tcp", "Messages")]);
    // The kernel's way is not everywhere; the example's other memory is mapped.
    let by_shm = run(this_test!(), "shm", 1, false, &[]);
    good(&by_shm, &[&came("shm", "Mapped")]);
    let by_verbs = run(this_test!(), "verbs", 1, false, &library);
    good(&by_verbs, &[&came("verbs", "NetworkDevices")]);
    // None of them is longer than what a page shows.
    for name in ["tcp", "shm", "verbs"] {
        let file = format!("{}/examples/by_hand_{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&file).expect("an example");
        assert!(
            text.lines().count() <= 60,
            "{file} has {}",
            text.lines().count()
        );
    }
}

/// Both ends in one process, on the emulated library of RDMA devices.
#[test]
fn device_over_rdma() {
    if part().is_some() {
        end(device_over_rdma::alone(&[file()]));
    }
    let library = emulated::verbs();
    let variable = [("WHARF_LIBIBVERBS", library.to_str().expect("UTF-8"))];
    for size in SIZES {
        let output = run(this_test!(), "all", size, true, &variable);
        good(&output, &["*** EMULATED", "SHA-256 "]);
    }
}

/// The same with nothing stopping in host memory: the emulated network devices read and write the memory of each vendor's emulated device, and what
/// they write comes late.
#[test]
fn device_over_rdma_direct() {
    if let Some(device) = part() {
        let arguments = ["--device", &device, "--direct", &file()];
        end(device_over_rdma::alone(&arguments.map(str::to_owned)));
    }
    let libraries = [emulated::verbs(), emulated::hsa(), emulated::hlthunk()];
    let [verbs, hsa, hlthunk] = libraries
        .each_ref()
        .map(|path| path.to_str().expect("UTF-8"));
    let variables = [
        ("WHARF_LIBIBVERBS", verbs),
        ("WHARF_LIBHSA", hsa),
        ("WHARF_LIBHLTHUNK", hlthunk),
        ("EMULATED_VERBS_DMABUF", "1"),
        ("EMULATED_VERBS_LATE", "1"),
    ];
    for device in ["cuda", "rocm", "gaudi"] {
        for size in SIZES {
            let output = run(this_test!(), device, size, true, &variables);
            good(&output, &DIRECT);
        }
    }
}

const DIRECT: [&str; 3] = [
    "rendezvous, the receiver's devices read",
    "the initiator's devices",
    "put, in the other process: SHA-256 ",
];

/// The same between two processes, whose emulated network devices are on one network.
#[test]
fn device_over_rdma_direct_between_processes() {
    play!(device_over_rdma, true);
    let libraries = [emulated::verbs(), emulated::hsa(), emulated::hlthunk()];
    let [verbs, hsa, hlthunk] = libraries
        .each_ref()
        .map(|path| path.to_str().expect("UTF-8"));
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("UTF-8");
    for device in ["cuda", "rocm", "gaudi"] {
        let variables = [
            (DEVICE, device),
            ("WHARF_LIBIBVERBS", verbs),
            ("WHARF_LIBHSA", hsa),
            ("WHARF_LIBHLTHUNK", hlthunk),
            ("EMULATED_VERBS_FOLDER", folder),
            ("EMULATED_VERBS_DMABUF", "1"),
            ("EMULATED_VERBS_LATE", "1"),
        ];
        for size in SIZES {
            let output = run(this_test!(), "first", size, true, &variables);
            good(&output, &DIRECT);
        }
    }
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

/// This test again, for a rank of a group.
fn rank(test: &'static str, part: &'static str) -> tokio::process::Command {
    let mut command = tokio::process::Command::from(again(test, part));
    command.stdout(Stdio::null());
    command
}

#[test]
fn ring_all_reduce_is_right() {
    use ring_all_reduce::{first, other, parse};
    let task = || {
        let words = std::env::var(ADDRESS).expect("given");
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        parse(&words).expect("a task").0
    };
    match part().as_deref() {
        Some("first") => end(first(&task(), |number| {
            let mut command = rank(this_test!(), "other");
            command.env(DEVICE, number.to_string());
            Ok(command)
        })),
        Some(_) => {
            let number = std::env::var(DEVICE).expect("given");
            end(other(&task(), number.parse().expect("a rank")))
        }
        None => {}
    }
    for (ranks, elements, transports) in [
        (1, 5, "self,shm"),
        (2, 1000, "self,shm"),
        (3, 1, "self,tcp"),
        (4, 100_003, "self,shm,cma,tcp"),
        (5, 0, "self,shm"),
    ] {
        let words = format!("--ranks {ranks} --elements {elements} --transports {transports}");
        let output = run(this_test!(), "first", 1, false, &[(ADDRESS, &words)]);
        good(
            &output,
            &[
                &format!("{ranks} ranks, {elements} elements"),
                "ok to the bit",
            ],
        );
    }
    assert!(parse(&["--ranks".into(), "0".into()]).is_err());
    assert!(parse(&["--nonsense".into(), "1".into()]).is_err());
}

#[test]
fn perf_memory_channel_on_host_and_devices() {
    use perf_memory_channel::{first, other, parse};
    let task = || {
        let words = std::env::var(ADDRESS).expect("given");
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        parse(&words).expect("a task").0
    };
    match part().as_deref() {
        Some("first") => end(first(&task(), |_| Ok(rank(this_test!(), "other")))),
        Some(_) => end(other(&task())),
        None => {}
    }
    let said = [
        "host put: bytes 1024, elapsed ",
        " ms/iter, BW ",
        "host get: bytes 65536, elapsed ",
        "host packets: bytes 262144, elapsed ",
        "host put one way: ",
    ];
    for device in ["cuda", "rocm"] {
        let words = format!("--device {device} --quick");
        let output = run(this_test!(), "first", 1, false, &[(ADDRESS, &words)]);
        good(&output, &said);
        good(&output, &[&format!("{device}:0 put: bytes 1024, elapsed ")]);
    }
    let words = "--transports tcp --host-only --quick";
    good(
        &run(this_test!(), "first", 1, false, &[(ADDRESS, words)]),
        &said,
    );
    assert!(parse(&["--nonsense".into()]).is_err());
}

/// A device's memory by the vendor's own calls.
#[track_caller]
fn own_memory(test: &str, device: &str, types: [&str; 2]) {
    if let Some(part) = part() {
        let arguments = ["--device", device, "--memory", &part, &file()].map(str::to_owned);
        end(host_to_device::run(&arguments));
    }
    for size in SIZES {
        let output = run(test, "program", size, false, &[]);
        let allocated = types.map(|name| format!("memory of {name}, allocated by the program"));
        let [first, second] = types;
        let ways = [
            format!("put host to {first}"),
            format!("get {first} to {second}"),
            format!("get {second} to host"),
        ];
        good(&output, &allocated.each_ref().map(String::as_str));
        good(&output, &ways.each_ref().map(String::as_str));
        good(&output, &["endpoint: SHA-256 ", " ok"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!errors.contains("was not freed"), "{errors}");
    }
    let output = run(test, "wharf", 1000, false, &[]);
    good(
        &output,
        &[&format!("memory of {}, allocated by wharf", types[0])],
    );
    bad(&run(test, "nobody", 10, false, &[]), "usage: ");
}

#[test]
fn host_to_device_with_the_programs_memory() {
    own_memory(this_test!(), "cuda", ["cuda:0", "cuda:1"]);
}

/// The same on the other vendor's emulated runtime.
mod rocm {
    use super::*;

    const SAID: [&str; 2] = ["device rocm:0: Emulated Instinct", "*** EMULATED"];

    fn variables(library: &str) -> [(&str, &str); 2] {
        [("WHARF_LIBHSA", library), (DEVICE, "rocm")]
    }

    #[test]
    fn host_to_device_by_both_layers() {
        if let Some(part) = part() {
            let arguments = ["--device", "rocm", "--layer", &part, &file()].map(str::to_owned);
            end(host_to_device::run(&arguments));
        }
        let library = emulated::hsa();
        let library = library.to_str().expect("UTF-8");
        for size in SIZES {
            for layer in ["endpoint", "transport"] {
                let output = run(this_test!(), layer, size, false, &variables(library));
                good(&output, &SAID);
                good(&output, &["rocm:0 to rocm:1", "SHA-256 ", " ok"]);
            }
        }
        // Nothing is there but what the tests have.
        good(&run(this_test!(), "endpoint", 10, false, &[]), &SAID);
    }

    #[test]
    fn host_to_device_with_the_programs_memory() {
        own_memory(this_test!(), "rocm", ["rocm:0", "rocm:1"]);
    }

    #[test]
    fn device_between_processes_opens_memory() {
        play!(device_between_processes);
        let library = emulated::hsa();
        let library = library.to_str().expect("UTF-8");
        for size in SIZES {
            let output = run(this_test!(), "first", size, false, &variables(library));
            good(&output, &SAID);
            // What is short is not worth it.
            let way = match size {
                1 => "staged",
                _ => "one copy by the engine",
            };
            good(&output, &[way, "SHA-256 "]);
        }
    }
}

/// The same on the emulated Gaudi cards, and what cards there are.
mod gaudi {
    use super::*;

    const SAID: [&str; 2] = [
        "device gaudi:0: emulated Gaudi 2 at 0000:33:00.0, module 7",
        "*** EMULATED",
    ];

    fn variables(library: &str) -> [(&str, &str); 2] {
        [("WHARF_LIBHLTHUNK", library), (DEVICE, "gaudi")]
    }

    #[test]
    fn host_to_device_by_both_layers() {
        if let Some(part) = part() {
            let arguments = ["--device", "gaudi", "--layer", &part, &file()].map(str::to_owned);
            end(host_to_device::run(&arguments));
        }
        let library = emulated::hlthunk();
        let library = library.to_str().expect("UTF-8");
        for size in SIZES {
            for layer in ["endpoint", "transport"] {
                let output = run(this_test!(), layer, size, false, &variables(library));
                good(&output, &SAID);
                good(&output, &["gaudi:0 to gaudi:1", "SHA-256 ", " ok"]);
            }
        }
        // Nothing is there but what the tests have.
        good(&run(this_test!(), "endpoint", 10, false, &[]), &SAID);
    }

    #[test]
    fn device_between_processes() {
        play!(device_between_processes);
        let library = emulated::hlthunk();
        let library = library.to_str().expect("UTF-8");
        for size in SIZES {
            let output = run(this_test!(), "first", size, false, &variables(library));
            good(&output, &SAID);
            good(&output, &["staged", "SHA-256 "]);
        }
    }

    /// A process has one card of Synapse's.
    #[test]
    fn host_to_device_with_the_programs_memory() {
        own_memory(this_test!(), "gaudi", ["gaudi:0", "gaudi:0"]);
    }

    #[test]
    fn cards() {
        if part().is_some() {
            end(gaudi_cards::run());
        }
        let paths = [
            "gaudi:0: Gaudi 2 ",
            "GAUDI_MAPPING_TABLE='[{\"index\":0,\"module_id\":7,\"bus_id\":\"0000:33:00.0\"},",
            "gaudi:0 to gaudi:1: SHA-256 ",
            "host to gaudi:0: one copy by the card's engine inwards",
            "gaudi:1 to host: one copy by the card's engine outwards",
            "gaudi:1 to gaudi:1: one copy",
            "gaudi:0 to gaudi:1: staged",
            "not one copy between the cards",
        ];
        let output = run(this_test!(), "all", 1, false, &[]);
        good(&output, &SAID);
        good(&output, &paths);
        // What it prints is a table; another orders the cards.
        let library = emulated::hlthunk();
        let library = library.to_str().expect("UTF-8");
        let table = r#"[{"index":1,"module_id":7,"bus_id":"0000:33:00.0"},{"index":0,"module_id":6,"bus_id":"0000:44:00.0"}]"#;
        let turned = [
            ("WHARF_LIBHLTHUNK", library),
            ("GAUDI_MAPPING_TABLE", table),
        ];
        let output = run(this_test!(), "all", 1, false, &turned);
        good(
            &output,
            &["device gaudi:0: emulated Gaudi 2 at 0000:44:00.0"],
        );
        let lies = [("WHARF_LIBHLTHUNK", library), ("GAUDI_MAPPING_TABLE", "[{")];
        bad(
            &run(this_test!(), "all", 1, false, &lies),
            "GAUDI_MAPPING_TABLE",
        );
    }
}
