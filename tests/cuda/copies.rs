//! Copies between every pair of memory, in any number and order, and their bytes.

use wharf::MemoryType;

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, Memory, control, device_end, pattern, pinned_end},
    support::this_test,
};

/// Brings bytes there.
fn put(bench: &mut Bench, memory: &Memory, offset: usize, bytes: &[u8]) {
    let mut pinned = bench.pinned(bytes.len());
    pinned.bytes_mut().copy_from_slice(bytes);
    bench
        .copy(pinned.end(0), memory.end(offset), bytes.len())
        .expect("copies");
}

/// Fetches bytes from there.
fn get(bench: &mut Bench, memory: &Memory, offset: usize, length: usize) -> Vec<u8> {
    let pinned = bench.pinned(length);
    bench
        .copy(memory.end(offset), pinned.end(0), length)
        .expect("copies");
    pinned.bytes().to_vec()
}

const KINDS: [MemoryType; 4] = [
    MemoryType::HostPinned,
    MemoryType::Cuda(0),
    MemoryType::Cuda(1),
    MemoryType::CudaManaged,
];

#[test]
fn every_pair_of_memory_and_every_size() {
    let mut bench = Bench::new();
    const LEN: usize = (1 << 20) + 1;
    let sources = KINDS.map(|kind| bench.allocate(kind, LEN + 64));
    let targets = KINDS.map(|kind| bench.allocate(kind, LEN + 64));
    let data = pattern(1, LEN + 64);
    for source in &sources {
        put_any(&mut bench, source, &data);
    }
    for (from, to, length, offset) in (0..4)
        .flat_map(|from| (0..4).map(move |to| (from, to)))
        .filter(|pair| *pair != (0, 0))
        .flat_map(|(from, to)| {
            [1, 7, 8, 63, 4095, 4096, 4097, LEN]
                .into_iter()
                .map(move |length| (from, to, length, length % 61))
        })
    {
        let around = pattern(length as u64, LEN + 64);
        put_any(&mut bench, &targets[to], &around);
        let (source, target) = (sources[from].end(offset), targets[to].end(3));
        bench.copy(source, target, length).expect("copies");
        let got = get_any(&mut bench, &targets[to], LEN + 64);
        assert!(got[3..3 + length] == data[offset..offset + length]);
        assert!(got[..3] == around[..3] && got[3 + length..] == around[3 + length..]);
    }
}

fn put_any(bench: &mut Bench, memory: &Memory, bytes: &[u8]) {
    if memory.0.memory_type() == MemoryType::HostPinned {
        // Nothing but this thread uses it now.
        let place = memory.0.range();
        let mut view = Bytes(place.start(), place.len() as usize);
        view.write(bytes);
    } else {
        put(bench, memory, 0, bytes);
    }
}

fn get_any(bench: &mut Bench, memory: &Memory, length: usize) -> Vec<u8> {
    if memory.0.memory_type().is_host_accessible() {
        memory.bytes()[..length].to_vec()
    } else {
        get(bench, memory, 0, length)
    }
}

/// Pinned memory, written while others only look.
struct Bytes(u64, usize);

impl Bytes {
    fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.1);
        #[allow(unsafe_code)]
        // SAFETY: memory of the test that called, which no copy uses now.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.0 as usize)
                .copy_from(bytes.as_ptr(), bytes.len());
        }
    }
}

#[test]
fn ten_thousand_random_copies() {
    if !is_child() {
        let seeds = [("1", "80", "1"), ("2", "200", "0")];
        for (seed, delay, peers) in seeds {
            let variables = [
                ("EMULATED_CUDA_SEED", seed),
                ("EMULATED_CUDA_DELAY_US", delay),
                ("EMULATED_CUDA_PEERS", peers),
                ("WHARFTEST_SEED", seed),
            ];
            child_with(this_test!(), &variables);
        }
        return;
    }
    const COPIES: usize = 5_000;
    const SLOT: usize = 8 << 10;
    const SLOTS: usize = 48;
    let seed = std::env::var("WHARFTEST_SEED").expect("given");
    let mut random = Random(seed.parse().expect("a number"));
    let mut bench = Bench::new();
    // Each kind is one allocation of slots, and a model of what is in them.
    let memory = KINDS.map(|kind| bench.allocate(kind, SLOTS * SLOT));
    let mut model = KINDS.map(|_| vec![0_u8; SLOTS * SLOT]);
    let bytes = pattern(99, SLOTS * SLOT);
    put_any(&mut bench, &memory[0], &bytes);
    model[0].copy_from_slice(&bytes);
    // What is under way: a slot that is written is nobody else's, one that is read is nobody's target.
    let mut readers = KINDS.map(|_| vec![0_u32; SLOTS]);
    let mut writing = KINDS.map(|_| vec![false; SLOTS]);
    let mut under_way: Vec<Option<Flight>> = Vec::new();
    let mut begun = 0;
    while begun < COPIES || under_way.iter().any(Option::is_some) {
        let batch = random.below(9);
        for _ in 0..batch {
            if begun == COPIES {
                break;
            }
            let (from, to) = (
                (random.below(4), random.below(SLOTS)),
                (random.below(4), random.below(SLOTS)),
            );
            let free = !writing[from.0][from.1] && !writing[to.0][to.1] && readers[to.0][to.1] == 0;
            if !free || from == to || (from.0 == 0 && to.0 == 0) {
                continue;
            }
            let length = 1 + random.below(SLOT - 1);
            let (skip, place) = (
                random.below(SLOT - length + 1),
                random.below(SLOT - length + 1),
            );
            let (source, target) = (from.1 * SLOT + skip, to.1 * SLOT + place);
            let token = under_way.len() as u64;
            let began = bench.begin(
                memory[from.0].end(source),
                memory[to.0].end(target),
                length,
                token,
            );
            match began {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            let bytes = model[from.0][source..source + length].to_vec();
            readers[from.0][from.1] += 1;
            writing[to.0][to.1] = true;
            under_way.push(Some(Flight {
                from,
                to,
                target,
                bytes,
            }));
            begun += 1;
        }
        bench.engine.flush();
        bench.engine.progress(1 + random.below(16), &mut bench.sink);
        for (token, result) in bench.sink.done.drain(..) {
            result.expect("copied");
            let flight = under_way[token as usize].take().expect("told once");
            readers[flight.from.0][flight.from.1] -= 1;
            writing[flight.to.0][flight.to.1] = false;
            let place = flight.target..flight.target + flight.bytes.len();
            // Host memory shows at once that it is there.
            if KINDS[flight.to.0].is_host_accessible() {
                assert!(memory[flight.to.0].bytes()[place.clone()] == flight.bytes);
            }
            model[flight.to.0][place].copy_from_slice(&flight.bytes);
        }
    }
    for (memory, model) in memory.iter().zip(&model) {
        assert!(
            get_any(&mut bench, memory, SLOTS * SLOT) == *model,
            "{memory:?}"
        );
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    drop(memory);
}

struct Flight {
    from: (usize, usize),
    to: (usize, usize),
    target: usize,
    bytes: Vec<u8>,
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}

#[test]
fn what_no_engine_makes_is_refused() {
    let mut bench = Bench::new();
    let attributes = bench.engine.attributes();
    assert!(attributes.fragment <= attributes.max_copy && !attributes.takes_pageable(4096));
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    let pageable = wharf::transport::accelerator::CopyEnd::Host {
        address: std::ptr::dangling_mut(),
        pinned: false,
    };
    let rocm = wharf::transport::accelerator::CopyEnd::Device {
        address: 4096,
        memory_type: MemoryType::Rocm(0),
    };
    for (from, to, length) in [
        (pinned.end(0), device.end(0), 0),
        (pinned.end(0), device.end(0), attributes.max_copy + 1),
        (pinned.end(0), pinned.end(32), 8),
        (device.end(0), rocm, 8),
        (pinned_end(0), device.end(0), 8),
        (device_end(u64::MAX - 3, 0), pinned.end(0), 8),
    ] {
        let error = bench.begin(from, to, length, 1).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    // No such device: told by the copy, as only the driver knows.
    let error = bench
        .copy(pinned.end(0), device_end(4096, 77), 8)
        .expect_err("none");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("cuda:77"), "{error}");
    // Ordinary memory is registered, if it is there.
    let error = bench.copy(pageable, device.end(0), 8);
    let error = error.expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    // The engine goes on.
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("copies");
}

#[test]
fn what_is_under_way_is_bounded() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 8), bench.pinned(8));
    bench
        .copy(pinned.end(0), device.end(0), 8)
        .expect("opens the device");
    control("hold");
    let most = bench.engine.attributes().max_in_flight;
    for token in 0..most {
        let (from, to) = (pinned.end(0), device.end(0));
        bench.begin(from, to, 8, token as u64).expect("accepted");
    }
    bench.engine.flush();
    let error = bench
        .begin(pinned.end(0), device.end(0), 8, 0)
        .expect_err("full");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(bench.engine.progress(16, &mut bench.sink), 0);
    control("release");
    bench.drain(most);
    assert!(
        bench
            .sink
            .done
            .iter()
            .map(|(token, _)| *token)
            .eq(0..most as u64)
    );
}
