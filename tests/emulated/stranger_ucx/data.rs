//! UCX's library between two processes whose memory is the emulated device's, every byte checked.

use super::{
    Ucx,
    ucp::{Endpoint, Worker},
};
use crate::{
    stranger_cuda::api::{Ctx, alloc, control},
    support::{Child, child, this_test},
};

/// Longest transfer.
const LEN: usize = 8 << 20;
const SIZES: [usize; 7] = [1, 8, 4095, 65536, 131_073, 1 << 20, LEN];

/// Tags: a transfer's is its number; these are beyond.
const TO_HOST: u64 = 100;
const DONE: u64 = 1000;

#[test]
#[ignore = "needs the package libucx-cu12: UCX_WHEEL"]
fn bytes_between_processes_by_ipc() {
    between_processes(this_test!(), "cuda_copy,cuda_ipc,sm,self");
}

#[test]
#[ignore = "needs the package libucx-cu12: UCX_WHEEL"]
fn bytes_between_processes_by_tcp() {
    between_processes(this_test!(), "cuda_copy,tcp,self");
}

fn between_processes(test: &str, transports: &str) {
    if let Some(mut parent) = child("target") {
        target(|line| parent.say(line));
        return runtime().block_on(async {
            parent.hear().await;
        });
    }
    if let Some(mut parent) = child("origin") {
        let [address, memory, key] = runtime().block_on(async {
            [
                parent.hear().await,
                parent.hear().await,
                parent.hear().await,
            ]
        });
        origin(
            &unhex(&address),
            memory.parse().expect("a number"),
            &unhex(&key),
        );
        parent.say("ended");
        return runtime().block_on(async {
            parent.hear().await;
        });
    }
    let ucx = Ucx::find();
    let path = ucx.library_path();
    let variables = [
        ("LD_LIBRARY_PATH", path.as_str()),
        ("UCX_TLS", transports),
        ("EMULATED_CUDA_DEVICES", "2"),
    ];
    let mut target = Child::start(test, "target", &variables);
    let mut origin = Child::start(test, "origin", &variables);
    runtime().block_on(async {
        for _ in 0..3 {
            origin.say(target.hear().await);
        }
        assert_eq!(target.hear().await, "ended");
        assert_eq!(origin.hear().await, "ended");
    });
    // Neither goes before the other is through.
    origin.say("go");
    target.say("go");
    origin.finish();
    target.finish();
}

/// Exposes device memory and receives.
fn target(mut say: impl FnMut(String)) {
    let _context = Ctx::new(0);
    let (exposed, received) = (alloc(LEN), alloc(LEN));
    let mut host = vec![0_u8; LEN];
    let worker = Worker::new();
    say(hex(&worker.address()));
    say(exposed.to_string());
    say(hex(&worker.expose(exposed, LEN)));
    for (number, len) in (0..).zip(SIZES) {
        worker.receive(received, len, number);
        compare(received, len, number);
        let at = host.as_mut_ptr().expose_provenance() as u64;
        worker.receive(at, len, TO_HOST + number);
        compare(at, len, TO_HOST + number);
    }
    let mut word = 0_u64;
    worker.receive((&raw mut word).expose_provenance() as u64, 8, DONE);
    // What the origin put last, seen by this side's driver.
    compare(exposed, LEN, 7 * SIZES.len() as u64);
    assert_eq!(control("misuses"), "");
    say("ended".to_owned());
}

/// Puts, gets and sends, from and to both kinds of memory.
fn origin(address: &[u8], memory: u64, key: &[u8]) {
    let _context = Ctx::new(1);
    let (device, back) = (alloc(LEN), alloc(LEN));
    let mut host = vec![0_u8; LEN];
    let host = host.as_mut_ptr().expose_provenance() as u64;
    let worker = Worker::new();
    let endpoint: Endpoint<'_> = worker.connect(address);
    let key = endpoint.key(key);
    for (number, len) in (0..).zip(SIZES) {
        // Host to device, back to the device here; device to device, back to the host.
        for (seed, from, to) in [(5 * number, host, back), (7 * (number + 1), device, host)] {
            control(&format!("fill {from} {len} {seed}"));
            endpoint.put(from, len, memory, &key);
            endpoint.get(to, len, memory, &key);
            compare(to, len, seed);
        }
        control(&format!("fill {device} {len} {number}"));
        endpoint.send(device, len, number);
        control(&format!("fill {device} {len} {}", TO_HOST + number));
        endpoint.send(device, len, TO_HOST + number);
    }
    endpoint.send(host, 8, DONE);
    drop(key);
    assert_eq!(control("misuses"), "");
}

fn compare(address: u64, len: usize, seed: u64) {
    assert_eq!(
        control(&format!("compare {address} {len} {seed}")),
        "same",
        "{len} bytes, {seed}"
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    let digits = |pair| std::str::from_utf8(pair).expect("one byte each");
    pairs
        .map(|pair| u8::from_str_radix(digits(pair), 16).expect("hexadecimal"))
        .collect()
}
