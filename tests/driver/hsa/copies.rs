//! Signals and copies: to the byte, in order where it was asked for, parked without a call.
//!
//! # Safety
//! Copies are between memory that outlives them; functions of the library are called with the signatures of the header.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{calls, control, copy_now, end, get, gpu, hsa, live, lock, on_gpu, pattern, put, wait};
use crate::{
    alone::{child_with, is_child},
    driver::hsa::{Agent, Hsa, LockedMemory, Signal, SignalCallback},
    error::ErrorKind,
    support::{LIMIT, block_at_rest, block_until, this_test},
};

#[test]
fn handles_may_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Agent>();
    crosses::<Signal>();
    crosses::<LockedMemory>();
    crosses::<crate::driver::hsa::Allocation>();
    crosses::<crate::driver::hsa::FreeWatch>();
    crosses::<crate::driver::hsa::FaultWatch>();
}

#[test]
fn bytes_go_in_all_directions() {
    for len in [1, 7, 8, 63, 4095, 4096, 4097, 100_000, (1 << 20) + 1] {
        let bytes = pattern(len as u64, len);
        let (first, second) = (on_gpu(0, len + 64), on_gpu(0, len + 64));
        put(gpu(0), first.address() + 3, &bytes);
        let to = end(second.address() + 5, gpu(0));
        let done = copy_now(to, end(first.address() + 3, gpu(0)), len);
        assert_eq!(done.expect("copies"), 0);
        assert_eq!(get(gpu(0), second.address() + 5, len), bytes, "{len} bytes");
        // To the neighbour, whose memory this one may reach.
        let other = on_gpu(1, len + 64);
        other.allow(&[gpu(0)]).expect("allowed");
        let done = copy_now(end(other.address(), gpu(1)), to, len);
        assert_eq!(done.expect("copies"), 0);
        assert_eq!(get(gpu(1), other.address(), len), bytes, "{len} bytes");
        // Between two places of the host.
        let (mut from, mut into) = (bytes.clone(), vec![0; len]);
        let locks = (
            lock(&mut from).expect("locks"),
            lock(&mut into).expect("locks"),
        );
        let ends = [&locks.1, &locks.0].map(|locked| end(locked.agent_address(), gpu(0)));
        assert_eq!(copy_now(ends[0], ends[1], len).expect("copies"), 0);
        drop(locks);
        assert_eq!(into, bytes);
    }
}

#[test]
fn no_bytes_are_refused_and_would_never_be_reported() {
    let memory = on_gpu(0, 4096);
    let place = end(memory.address(), gpu(0));
    let done = hsa().signal(1).expect("a signal");
    // SAFETY: nothing is copied.
    let error = unsafe { hsa().copy(place, place, 0, &[], &done) }.expect_err("no bytes");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let many = [&done; Hsa::MAX_AFTER + 1];
    // SAFETY: nothing is copied.
    let error = unsafe { hsa().copy(place, place, 1, &many, &done) }.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_signal_counts_several_copies() {
    const COUNT: usize = 20;
    let (from, to) = (on_gpu(0, 4096), on_gpu(0, COUNT * 4096));
    let bytes = pattern(1, 4096);
    put(gpu(0), from.address(), &bytes);
    let done = hsa().signal(COUNT as i64).expect("a signal");
    for index in 0..COUNT as u64 {
        let place = end(to.address() + index * 4096, gpu(0));
        // SAFETY: each has its own target; all live until the wait is over.
        unsafe { hsa().copy(place, end(from.address(), gpu(0)), 4096, &[], &done) }
            .expect("copies");
    }
    assert_eq!(wait(&done), 0);
    for index in 0..COUNT as u64 {
        assert_eq!(get(gpu(0), to.address() + index * 4096, 4096), bytes);
    }
    done.store(3);
    assert_eq!(done.load(), 3);
}

#[test]
fn copies_wait_for_signals_and_for_nothing_else() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let memory = on_gpu(0, 3 * 4096);
    let place = |index: u64| end(memory.address() + index * 4096, gpu(0));
    let bytes = pattern(5, 4096);
    put(gpu(0), memory.address(), &bytes);
    let signals: Vec<Signal> = (0..3).map(|_| hsa().signal(1).expect("a signal")).collect();
    let gate = hsa().signal(1).expect("a signal");
    // Each takes what the one before it wrote; the first waits for the host.
    // SAFETY: the memory and the signals live until all is done; the chain orders the accesses.
    unsafe {
        hsa()
            .copy(place(2), place(1), 4096, &[&signals[0]], &signals[1])
            .expect("copies");
        hsa()
            .copy(place(1), place(0), 4096, &[&gate], &signals[0])
            .expect("copies");
    }
    // One behind them, that waits for nobody, overtakes.
    let free = on_gpu(0, 4096);
    assert_eq!(
        copy_now(end(free.address(), gpu(0)), place(0), 4096).expect("copies"),
        0
    );
    assert_eq!((signals[0].load(), signals[1].load()), (1, 1));
    assert_eq!(live("copies"), 2);
    gate.store(0);
    assert_eq!(wait(&signals[1]), 0);
    assert_eq!(get(gpu(0), memory.address() + 2 * 4096, 4096), bytes);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn without_an_order_copies_overtake_each_other() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_DELAY_US", "0")]);
    }
    const COUNT: u64 = 16;
    let memory = on_gpu(0, 4096);
    let mut seen = BTreeMap::new();
    control("hold 0");
    let signals: Vec<Signal> = (0..COUNT)
        .map(|_| hsa().signal(1).expect("a signal"))
        .collect();
    for (index, signal) in signals.iter().enumerate() {
        let at = memory.address() + index as u64 * 16;
        // SAFETY: each has its own bytes, and the memory lives until all is done.
        unsafe { hsa().copy(end(at, gpu(0)), end(at + 8, gpu(0)), 8, &[], signal) }
            .expect("copies");
    }
    for turn in 0..COUNT {
        assert_eq!(live("copies"), (COUNT - turn) as i64);
        control("step 0 1");
        let fresh = || {
            let done = (0..COUNT)
                .find(|index| signals[*index as usize].load() == 0 && !seen.contains_key(index));
            done.map(|index| (index, turn))
        };
        let mut found = None;
        block_until("a copy's end", || {
            found = fresh();
            found.is_some() && live("copies") == (COUNT - turn - 1) as i64
        });
        seen.extend(found);
    }
    assert!(seen.iter().any(|(index, turn)| index != turn), "{seen:?}");
}

/// Counts its runs, and what it saw last.
#[derive(Default)]
struct Rings {
    runs: AtomicU64,
    value: AtomicI64,
}

impl SignalCallback for Rings {
    fn run(&self, value: i64) {
        self.value.store(value, Ordering::SeqCst);
        self.runs.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn who_waits_makes_no_call() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    const COUNT: i64 = 10;
    let memory = on_gpu(0, 8192);
    let (to, from) = (
        end(memory.address(), gpu(0)),
        end(memory.address() + 4096, gpu(0)),
    );
    control("hold 0");
    let done = hsa().signal(COUNT).expect("a signal");
    for _ in 0..COUNT {
        // SAFETY: the memory lives until all is done; what is written does not matter.
        unsafe { hsa().copy(to, from, 4096, &[], &done) }.expect("copies");
    }
    let rings = Arc::new(Rings::default());
    done.notify(1, Arc::clone(&rings)).expect("watches");
    control("forget");
    control("step 0 9");
    block_until("nine copies", || live("copies") == 1);
    let runs = || rings.runs.load(Ordering::SeqCst);
    let early = block_at_rest("the handler", Duration::from_millis(20), runs);
    assert_eq!(early, 0, "only when all are done");
    control("release 0");
    block_until("the handler", || rings.runs.load(Ordering::SeqCst) == 1);
    assert_eq!(rings.value.load(Ordering::SeqCst), 0);
    assert_eq!(
        (control("calls"), calls("handler")),
        ("1".to_owned(), 1),
        "{}",
        control("counts")
    );
    block_until("the handler's end", || {
        live("handlers") == 0 && Arc::strong_count(&rings) == 1
    });
    // A signal that has fallen already calls at once, and once.
    done.notify(1, Arc::clone(&rings)).expect("watches");
    block_until("the handler", || rings.runs.load(Ordering::SeqCst) == 2);
    assert_eq!(calls("hsa_signal_load_scacquire"), 0);
}

#[test]
fn a_signal_lives_as_long_as_its_handler_waits() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let rings = Arc::new(Rings::default());
    let signal = hsa().signal(1).expect("a signal");
    let other = signal.clone();
    signal.notify(1, Arc::clone(&rings)).expect("watches");
    drop(signal);
    assert_eq!(live("signals"), 1);
    other.store(0);
    drop(other);
    block_until("the handler", || rings.runs.load(Ordering::SeqCst) == 1);
    block_until("its end", || live("signals") == 0);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

struct Panics;

impl SignalCallback for Panics {
    fn run(&self, _value: i64) {
        // Quietly: nothing that failed stands in the output.
        std::panic::resume_unwind(Box::new("means to"));
    }
}

#[test]
fn a_handler_that_panics_does_no_harm() {
    let rings = Arc::new(Rings::default());
    let signal = hsa().signal(0).expect("a signal");
    signal.notify(1, Arc::new(Panics)).expect("watches");
    signal.notify(1, Arc::clone(&rings)).expect("watches");
    block_until("the other handler", || {
        rings.runs.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn waiting_ends_with_the_time_or_the_value() {
    let signal = hsa().signal(5).expect("a signal");
    assert_eq!(signal.wait(1, Duration::from_millis(5)), 5);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(signal.wait(1, LIMIT), -2));
        signal.store(-2);
    });
}

#[test]
fn ten_thousand_random_copies() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_DELAY_US", "20")]);
    }
    const LEN: usize = 1 << 16;
    const CHAINS: usize = 8;
    // Device 0, device 0, device 1 (which device 0 reaches), locked host memory: each with its twin, which the host keeps by itself.
    let memory = [on_gpu(0, LEN), on_gpu(0, LEN), on_gpu(1, LEN)];
    memory[2].allow(&[gpu(0)]).expect("allowed");
    let mut host = vec![0_u8; LEN];
    let locked = lock(&mut host).expect("locks");
    let mut starts: Vec<u64> = memory.iter().map(|memory| memory.address()).collect();
    starts.push(locked.agent_address());
    let mut twins: Vec<Vec<u8>> = (0..4).map(|index| pattern(index, LEN)).collect();
    for (start, twin) in starts.iter().zip(&twins) {
        put_anywhere(*start, twin);
    }
    let mut state = 0x1234_5678_u64;
    let mut random = |most: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let mut copies = 0;
    while copies < 10_000 {
        // A batch of chains: copies of a chain follow each other, chains have slices of their own.
        let slice = LEN / CHAINS;
        let mut last: Vec<Signal> = Vec::new();
        for chain in 0..CHAINS {
            let mut before: Option<Signal> = None;
            for _ in 0..6 {
                let (a, b) = (random(4), random(4));
                let len = 1 + random(slice / 2 - 1);
                let (to, from) = (
                    chain * slice + random(slice / 2 - len + 1),
                    chain * slice + slice / 2 + random(slice / 2 - len + 1),
                );
                // Either half is the source.
                let (to, from) = if random(2) == 0 {
                    (to, from)
                } else {
                    (from, to)
                };
                let done = hsa().signal(1).expect("a signal");
                let after: Vec<&Signal> = before.iter().collect();
                let ends = (
                    end(starts[a] + to as u64, gpu(0)),
                    end(starts[b] + from as u64, gpu(0)),
                );
                // SAFETY: all lives until the end of the batch; chains are ordered and do not meet.
                unsafe { hsa().copy(ends.0, ends.1, len, &after, &done) }.expect("copies");
                let bytes = twins[b][from..from + len].to_vec();
                twins[a][to..to + len].copy_from_slice(&bytes);
                last.extend(before.replace(done));
                copies += 1;
            }
            last.extend(before);
        }
        for signal in &last {
            assert_eq!(wait(signal), 0);
        }
    }
    for (start, twin) in starts.iter().zip(&twins) {
        assert!(get(gpu(0), *start, LEN) == *twin, "bytes differ");
    }
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
    drop((memory, locked));
    assert_eq!(
        (live("allocations"), live("locked"), live("signals")),
        (0, 0, 0)
    );
}

fn put_anywhere(address: u64, bytes: &[u8]) {
    put(gpu(0), address, bytes);
}
