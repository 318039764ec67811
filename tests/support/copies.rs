//! Copies of an engine that is driven by hand, between every pair of its vendor's memory, in any number and order, their bytes, and the wake-up of
//! who waits for them parked.
//!
//! Used by `#[path = "../support/copies.rs"] mod copies;`, in programs whose `fixture` names the vendor's memory and its emulator.

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{
        Bench, DEVICE, KINDS, OTHER, Parked, RANDOM, block_until, control, nothing_is_left, pattern,
    },
    support::this_test,
};

#[test]
fn every_pair_of_memory_and_every_size() {
    let mut bench = Bench::new();
    const LEN: usize = (1 << 20) + 1;
    let mut sources = KINDS.map(|kind| bench.allocate(kind, LEN + 64));
    let mut targets = KINDS.map(|kind| bench.allocate(kind, LEN + 64));
    let data = pattern(1, LEN + 64);
    for source in &mut sources {
        bench.put(source, &data);
    }
    let pairs = (0..KINDS.len()).flat_map(|from| (0..KINDS.len()).map(move |to| (from, to)));
    for (from, to) in pairs.filter(|pair| *pair != (0, 0)) {
        for length in [1, 7, 8, 63, 4095, 4096, 4097, LEN] {
            let offset = length % 61;
            let around = pattern(length as u64, LEN + 64);
            bench.put(&mut targets[to], &around);
            let (source, target) = (sources[from].end(offset), targets[to].end(3));
            bench.copy(source, target, length).expect("copies");
            let got = bench.get(&targets[to], LEN + 64);
            assert!(got[3..3 + length] == data[offset..offset + length]);
            assert!(got[..3] == around[..3] && got[3 + length..] == around[3 + length..]);
        }
    }
}

/// Ten thousand in all, with delays, in any order; the emulator as it is by default, and otherwise.
#[test]
fn ten_thousand_random_copies() {
    if !is_child() {
        for variables in RANDOM {
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
    let mut memory = KINDS.map(|kind| bench.allocate(kind, SLOTS * SLOT));
    let mut model = KINDS.map(|_| vec![0_u8; SLOTS * SLOT]);
    let bytes = pattern(99, SLOTS * SLOT);
    bench.put(&mut memory[0], &bytes);
    model[0].copy_from_slice(&bytes);
    // What is under way: a slot that is written is nobody else's, one that is read is nobody's target.
    let mut readers = KINDS.map(|_| vec![0_u32; SLOTS]);
    let mut writing = KINDS.map(|_| vec![false; SLOTS]);
    let mut under_way: Vec<Option<Flight>> = Vec::new();
    let mut begun = 0;
    while begun < COPIES || under_way.iter().any(Option::is_some) {
        for _ in 0..random.below(9) {
            if begun == COPIES {
                break;
            }
            let (from, to) = (
                (random.below(KINDS.len()), random.below(SLOTS)),
                (random.below(KINDS.len()), random.below(SLOTS)),
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
            let (source_end, target_end) = (memory[from.0].end(source), memory[to.0].end(target));
            match bench.begin(source_end, target_end, length, token) {
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
        assert!(bench.get(memory, SLOTS * SLOT) == *model, "{memory:?}");
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    drop((memory, bench));
    nothing_is_left();
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
fn what_is_under_way_is_bounded() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let (device, pinned) = (bench.allocate(DEVICE, 8), bench.pinned(8));
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
    let mut tokens: Vec<_> = bench.sink.done.iter().map(|(token, _)| *token).collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..most as u64));
}

#[test]
fn each_direction_wakes_by_itself() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (device, other, pinned) = (
        bench.allocate(DEVICE, 4096),
        bench.allocate(OTHER, 4096),
        bench.pinned(8192),
    );
    assert!(bench.engine.arm(), "nothing is under way");
    bench.engine.disarm();
    for (from, to) in [
        (pinned.end(0), device.end(0)),
        (pinned.end(0), other.end(0)),
        (device.end(0), other.end(0)),
        (other.end(0), pinned.end(4096)),
    ]
    .repeat(30)
    {
        bench.begin(from, to, 4096, 1).expect("begins");
        bench.engine.flush();
        parked.drain(&mut bench, 1);
    }
    // One device stands still, the other wakes.
    control("hold 0");
    bench
        .begin(pinned.end(0), device.end(0), 8, 2)
        .expect("begins");
    bench
        .begin(pinned.end(0), other.end(0), 8, 3)
        .expect("begins");
    parked.drain(&mut bench, 1);
    control("release");
    parked.drain(&mut bench, 1);
    // What has completed already is not waited for.
    bench
        .begin(pinned.end(0), device.end(0), 8, 4)
        .expect("begins");
    bench.engine.flush();
    block_until("the end of the copy", || !bench.engine.arm());
    bench.drain(1);
    for (_, result) in &bench.sink.done {
        assert!(result.is_ok());
    }
    assert!(bench.sink.lost.is_none());
    drop((device, other, pinned, bench));
    nothing_is_left();
}
