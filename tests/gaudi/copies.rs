//! Copies within a worker: every pair of memory, any length, any number at once.

use wharf::{ErrorKind, MemoryType, Progress, Worker};

use crate::{
    fixture::{pattern, run, run_on_threads, same},
    machine::{DEVICE, Machine, OTHER, Random, alone, bytes, filled},
};

const TYPES: [MemoryType; 4] = [MemoryType::Host, MemoryType::HostPinned, DEVICE, OTHER];
const SIZES: [usize; 7] = [1, 100, 4095, 4097, 65_537, (1 << 20) + 1, 5 << 20];

async fn every_pair(chip: u64, progress: Progress) {
    let machine = Machine::new(&[("chip", chip)]);
    let context = machine.builder().progress(progress);
    let context = context.build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    for from in TYPES {
        for to in TYPES {
            for size in SIZES {
                let wanted = pattern(size, size);
                let source = filled(&worker, &context, from, wanted).await;
                let target = filled(&worker, &context, to, &vec![0x11; size + 2]).await;
                let copied = worker.copy(source.freeze(), target).at(1).await;
                let copied = copied.expect("copied");
                assert_eq!(copied.memory_type(), to);
                let found = bytes(&worker, copied.freeze()).await;
                same(
                    &found[1..=size],
                    wanted,
                    format_args!("{size} bytes {from} to {to}"),
                );
                assert_eq!((found[0], found[size + 1]), (0x11, 0x11), "{from} to {to}");
            }
        }
    }
    drop((worker, context));
    tokio::task::spawn_blocking(move || machine.check_gone())
        .await
        .expect("nothing is left");
}

#[test]
fn every_pair_on_gaudi_2() {
    run(every_pair(2, Progress::Adaptive));
}

#[test]
fn every_pair_on_the_first_gaudi() {
    run(every_pair(1, Progress::EventDriven));
}

#[test]
fn every_pair_by_threads() {
    run_on_threads(every_pair(2, Progress::Busy));
}

/// Slots of two cards and of the host, and what is in them.
#[test]
fn ten_thousand_random_copies() {
    const SLOTS: usize = 24;
    const SLOT: usize = 16 << 10;
    const ROUNDS: usize = 1250;
    run_on_threads(async {
        let machine = Machine::new(&[("seed", 7), ("delay_us", 200)]);
        let (context, worker) = machine.worker();
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut slots = Vec::new();
        let mut wanted = Vec::new();
        for slot in 0..SLOTS {
            let content = pattern(SLOT, slot).to_vec();
            let memory = filled(&worker, &context, TYPES[slot % 4], &content).await;
            slots.push(Some(memory));
            wanted.push(content);
        }
        for _ in 0..ROUNDS {
            // Eight copies at a time, between slots of their own; the sources are put back afterwards.
            let mut free: Vec<usize> = (0..SLOTS).collect();
            let mut running = Vec::new();
            for _ in 0..8 {
                let from = free.swap_remove(random.below(free.len()));
                let to = free.swap_remove(random.below(free.len()));
                let length = random.below(SLOT) + 1;
                let at = random.below(SLOT - length + 1);
                let start = random.below(SLOT - length + 1);
                let source = slots[from].take().expect("there").freeze();
                let target = slots[to].take().expect("there");
                let part = source.slice(start..start + length);
                let copy = worker.copy(part, target).at(at).post();
                running.push((from, to, start, at, length, source, copy));
            }
            for (from, to, start, at, length, source, copy) in running {
                slots[to] = Some(copy.await.expect("copied"));
                let piece = wanted[from][start..start + length].to_vec();
                wanted[to][at..at + length].copy_from_slice(&piece);
                slots[from] = Some(alone(source).await);
            }
        }
        for (slot, memory) in slots.into_iter().enumerate() {
            let found = bytes(&worker, memory.expect("there").freeze()).await;
            same(&found, &wanted[slot], format_args!("slot {slot}"));
        }
        machine.check();
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_staged() {
    static CONSTANT: [u8; 3 << 20] = [0x5a; 3 << 20];
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        for size in [1, 5000, CONSTANT.len()] {
            let memory = context.allocate_on(DEVICE, size).await.expect("memory");
            let source = || bytes::Bytes::from_static(&CONSTANT[..size]);
            let before = worker.metrics().staged;
            let refused = worker.copy(source(), memory).forbid_staging().await;
            let (error, memory) = refused.expect_err("it would stop").into_parts();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("forbids"), "{error}");
            assert_eq!(worker.metrics().staged, before);
            let memory = memory.expect("back");
            let memory = worker.copy(source(), memory).await.expect("copied");
            let after = worker.metrics().staged;
            assert_eq!(after.count, before.count + 1);
            assert_eq!(after.bytes, before.bytes + size as u64);
            let found = bytes(&worker, memory.freeze()).await;
            assert!(found == CONSTANT[..size], "{size} bytes");
        }
        machine.check();
    });
}

#[test]
fn what_no_card_has_is_refused() {
    run(async {
        let machine = Machine::new(&[]);
        let (context, worker) = machine.worker();
        let error = context.allocate_on(MemoryType::Gaudi(9), 10).await;
        assert_eq!(error.expect_err("no card").kind(), ErrorKind::Unsupported);
        let error = context.allocate_on(MemoryType::Cuda(0), 10).await;
        assert_eq!(error.expect_err("another's").kind(), ErrorKind::Unsupported);
        let error = context.allocate_on(DEVICE, usize::MAX >> 2).await;
        assert_eq!(error.expect_err("too much").kind(), ErrorKind::Exhausted);
        let memory = filled(&worker, &context, DEVICE, &[7; 100]).await;
        assert_eq!(bytes(&worker, memory.freeze()).await, [7; 100]);
    });
}
