#![allow(unsafe_code)]
//! T7 every byte of copies of all sizes; T18 nothing is left; T19 two runtimes on one device.
//!
//! # Safety
//! A forked child calls wharf once and ends without a clean-up; its parent has one other thread, which holds no lock of wharf's then.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tokio::time::timeout;
use wharf::{Context, ErrorKind, MemoryType, Progress, Worker, transport::Accelerator};

use crate::{
    device::{self, Current, DEVICE, MIB, filled, guarded, pattern, random, read, runtime},
    suite::{Case, Verdict},
    support::{Parent, block_at_rest, open_fds},
};

/// T7. To the device, on it, and back, at odd places; what is beside stays.
pub(crate) fn every_byte(case: &mut Case) -> Verdict {
    const POISON: u8 = 0xA7;
    let mut sizes = vec![1, 7, 8, 63, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1];
    if !case.emulated {
        sizes.push(1 << 30);
    }
    let mut state = 7;
    let mut jobs: Vec<(usize, usize)> = sizes
        .iter()
        .flat_map(|size| [0, 1, 13].map(|offset| (*size, offset)))
        .filter(|(size, offset)| *size <= 2 * MIB || *offset == 1)
        .collect();
    for at in (1..jobs.len()).rev() {
        jobs.swap(at, random(&mut state) as usize % (at + 1));
    }
    runtime().block_on(async {
        let context = device::context(Progress::Adaptive);
        let worker = Worker::new(&context).expect("a worker");
        for (size, offset) in jobs {
            for host in [MemoryType::Host, MemoryType::HostPinned] {
                let bytes = pattern(size as u64, size);
                let source = filled(&context, &worker, host, bytes.clone())
                    .await
                    .freeze();
                let poisoned = vec![POISON; size + offset + 9];
                let first = filled(&context, &worker, DEVICE, poisoned.clone()).await;
                let first = guarded(worker.copy(source, first).at(offset))
                    .await
                    .expect("to the device");
                let second = filled(&context, &worker, DEVICE, poisoned.clone()).await;
                let middle = first.freeze().slice(offset..offset + size);
                let second = guarded(worker.copy(middle, second).at(offset))
                    .await
                    .expect("on the device");
                let back = read(&worker, second).await;
                let (before, rest) = back.split_at(offset);
                let (middle, behind) = rest.split_at(size);
                assert!(middle == bytes, "{size} bytes at {offset} from {host}");
                let untouched = before.iter().chain(behind).all(|byte| *byte == POISON);
                assert!(untouched, "beside {size} bytes at {offset}");
            }
        }
        // Nothing to copy.
        let memory = filled(&context, &worker, DEVICE, vec![1; 8]).await;
        let memory = guarded(worker.copy(Vec::new(), memory))
            .await
            .expect("no bytes");
        assert_eq!(read(&worker, memory).await, [1; 8]);
    });
    Verdict::Ran
}

/// T18. Operations by the thousand, some dropped in flight; a fork.
pub(crate) fn nothing_is_left(case: &mut Case) -> Verdict {
    let rounds = case.pick(100_000, 3_000);
    let current = Current::enter();
    let round = |count: usize| {
        runtime().block_on(async {
            let context = device::context(Progress::Adaptive);
            let worker = Worker::new(&context).expect("a worker");
            let source = filled(
                &context,
                &worker,
                MemoryType::HostPinned,
                pattern(1, 40_000),
            )
            .await
            .freeze();
            let mut target = Some(filled(&context, &worker, DEVICE, vec![0; 40_000]).await);
            for at in 0..count {
                let len = 1 + at % 40_000;
                let to = match target.take() {
                    Some(to) => to,
                    None => context.allocate_on(DEVICE, 40_000).await.expect("memory"),
                };
                let mut copy = Box::pin(worker.copy(source.slice(..len), to));
                if at % 100 == 99 {
                    // Begun, and given up: the memory goes when the device is done with it.
                    let _ = futures::poll!(&mut copy);
                    continue;
                }
                target = Some(guarded(copy).await.expect("copied"));
            }
            drop((source, target));
            worker
                .shutdown(Duration::from_secs(20))
                .await
                .expect("at rest");
        });
    };
    // What stays for good, such as contexts, streams and fragments, comes with the first.
    round(300);
    let start = Instant::now();
    let (fds, used) = at_rest(&current);
    round(rounds);
    let after = at_rest(&current);
    case.figure("operations", rounds as f64, "operations");
    case.figure("time", start.elapsed().as_secs_f64(), "s");
    case.figure(
        "descriptors more",
        after.0 as f64 - fds as f64,
        "descriptors",
    );
    case.figure("device memory more", after.1 as f64 - used as f64, "B");
    assert!(after.0 <= fds + 4, "{fds} descriptors, then {}", after.0);
    assert!(
        after.1 <= used + 8 * MIB,
        "{used} bytes of the device, then {}",
        after.1
    );

    let mut child = case.child("T18 forks", &[]);
    let said = runtime().block_on(child.hear());
    child.finish();
    assert_eq!(said, "forked", "what a child made by fork is told");
    Verdict::Ran
}

/// Descriptors of this process and bytes of the device in use, once neither has changed for a while: memory of dropped operations, and what a worker
/// that was dropped had of the device, go on another thread.
fn at_rest(current: &Current) -> (usize, usize) {
    let look = || (open_fds(), current.used());
    block_at_rest("what is in use", Duration::from_millis(200), look)
}

/// A second process, which uses the device and then forks.
pub(crate) fn forks(parent: Parent) {
    let domain = device::accelerator().domain();
    drop(domain.allocate(DEVICE, 64).expect("memory"));
    // SAFETY: see the module.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let code = match domain.allocate(DEVICE, 64) {
            Err(error) if error.kind() == ErrorKind::Forked => 0,
            Err(_) => 1,
            Ok(_) => 2,
        };
        // SAFETY: it does not return.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let said = match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => "forked".to_owned(),
        Some(1) => "another error".to_owned(),
        Some(2) => "memory".to_owned(),
        _ => format!("it ended with status {status:#x}"),
    };
    parent.say(said);
}

/// Copies of random sizes, 64 in flight, for so long; the bytes.
async fn load(context: Context, seed: u64, time: Duration) -> u64 {
    const MOST: usize = 256 << 10;
    let worker = Worker::new(&context).expect("a worker");
    let bytes = pattern(seed, MOST);
    let source = filled(&context, &worker, MemoryType::HostPinned, bytes.clone())
        .await
        .freeze();
    let mut spare = Vec::new();
    for _ in 0..64 {
        spare.push(filled(&context, &worker, DEVICE, vec![0; MOST]).await);
    }
    let (mut flying, mut state, mut done) = (VecDeque::new(), seed, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        while let Some(target) = spare.pop() {
            let len = 1 + random(&mut state) as usize % MOST;
            flying.push_back((len, worker.copy(source.slice(..len), target).post()));
        }
        if let Some((len, copy)) = flying.pop_front() {
            // The whole load has a limit; a guard of its own takes longer than a copy.
            spare.push(copy.await.expect("copied"));
            done += len as u64;
        }
    }
    for (len, copy) in flying {
        let target = copy.await.expect("copied");
        let back = read(&worker, target).await;
        assert!(back[..len] == bytes[..len], "the last of each is there");
    }
    done
}

/// T19. Each on a thread with a runtime and a worker of its own.
pub(crate) fn two_runtimes(case: &mut Case) -> Verdict {
    let seconds = std::env::var("WHARFTEST_SOAK")
        .ok()
        .and_then(|text| text.parse().ok());
    let usual = case.pick(Duration::from_secs(60), Duration::from_millis(300));
    let time = seconds.map_or(usual, Duration::from_secs);
    let rate = |bytes: u64| bytes as f64 / time.as_secs_f64() / 1e9;
    let run = |seed: u64| {
        let limit = time + Duration::from_secs(300);
        let work = async move {
            let load = load(device::context(Progress::Adaptive), seed, time);
            timeout(limit, load).await.expect("watchdog: the load ends")
        };
        std::thread::spawn(move || runtime().block_on(work))
    };
    let one = run(3).join().expect("no panic");
    let two = [run(4), run(5)].map(|thread| thread.join().expect("no panic"));
    case.figure("one runtime", rate(one), "GB/s");
    case.figure("two runtimes", rate(two[0] + two[1]), "GB/s");
    case.figure(
        "two to one",
        (two[0] + two[1]) as f64 / one.max(1) as f64,
        "ratio",
    );
    Verdict::Ran
}
