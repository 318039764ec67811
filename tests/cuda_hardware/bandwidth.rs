//! T8: bytes a second, by a loop of the driver's own calls and by wharf, side by side.

use std::{collections::VecDeque, time::Instant};

use futures::future::join;
use tokio::sync::Barrier;
use wharf::{BufferMut, Context, Fetched, MemoryType, Op, Progress, Worker};

use crate::{
    device::{self, Current, DEVICE, MIB, guarded, runtime},
    suite::{Case, Verdict},
};

/// Copies under way at once, in both loops.
const FLYING: usize = 4;
/// Rounds of which the best counts.
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    from: MemoryType,
    to: MemoryType,
}

const WAYS: [Way; 5] = [
    Way {
        name: "host to device",
        from: MemoryType::HostPinned,
        to: DEVICE,
    },
    Way {
        name: "device to host",
        from: DEVICE,
        to: MemoryType::HostPinned,
    },
    Way {
        name: "device to device",
        from: DEVICE,
        to: DEVICE,
    },
    Way {
        name: "pageable to device",
        from: MemoryType::Host,
        to: DEVICE,
    },
    Way {
        name: "device to pageable",
        from: DEVICE,
        to: MemoryType::Host,
    },
];

/// Bytes a second of the driver's calls: all queued, one wait. Of the same kinds of memory as wharf's.
fn raw(current: &Current, way: Way, len: usize, count: usize) -> f64 {
    let make = |of| match of {
        DEVICE => current.alloc(len),
        MemoryType::Host => {
            let at = device::pages(len, false);
            device::bytes(at, len).fill(1);
            at
        }
        _ => current.pinned(len),
    };
    let free = |of, at| match of {
        DEVICE => current.free(at),
        MemoryType::Host => device::unmap(at, len),
        _ => current.free_pinned(at),
    };
    let (from, stream) = (make(way.from), current.stream());
    let to: Vec<u64> = (0..FLYING).map(|_| make(way.to)).collect();
    for to in &to {
        current.copy(*to, from, len, stream);
    }
    current.wait(stream);
    let start = Instant::now();
    for at in 0..count {
        current.copy(to[at % FLYING], from, len, stream);
    }
    current.wait(stream);
    let time = start.elapsed();
    free(way.from, from);
    to.into_iter().for_each(|to| free(way.to, to));
    current.raw.ok(current.raw.cuStreamDestroy_v2(stream));
    (len * count) as f64 / time.as_secs_f64()
}

/// The same by wharf, from when all that measure at once are ready.
async fn wharf(
    (context, worker): (&Context, &Worker),
    way: Way,
    len: usize,
    count: usize,
    ready: &Barrier,
) -> f64 {
    let make = |of| async move { context.allocate_on(of, len).await.expect("memory") };
    let from = make(way.from).await.freeze();
    let mut spare = Vec::new();
    for _ in 0..FLYING {
        let to = guarded(worker.copy(from.clone(), make(way.to).await)).await;
        spare.push(to.expect("copied"));
    }
    guarded(ready.wait()).await;
    let copies = async {
        let start = Instant::now();
        let mut flying: VecDeque<Op<Fetched<BufferMut>>> = VecDeque::new();
        for _ in 0..count {
            let to = match spare.pop() {
                Some(to) => to,
                None => {
                    let first = flying.pop_front().expect("as many as at the start");
                    first.await.expect("copied")
                }
            };
            flying.push_back(worker.copy(from.clone(), to).post());
        }
        for copy in flying {
            copy.await.expect("copied");
        }
        start.elapsed()
    };
    // One guard for all: it starts a thread, which takes longer than a short copy.
    (len * count) as f64 / guarded(copies).await.as_secs_f64()
}

pub(crate) fn bandwidth(case: &mut Case) -> Verdict {
    let lengths: &[usize] = case.pick(
        &[4096, 65536, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB],
        &[4096, 65536, MIB],
    );
    let (volume, most) = case.pick((8 << 30, 2000), (4 * MIB, 8));
    let current = Current::enter();
    let runtime = runtime();
    let context = device::context(Progress::Busy);
    let worker = runtime.block_on(async { Worker::new(&context).expect("a worker") });
    let by = (&context, &worker);
    for way in WAYS {
        for len in lengths {
            let count = (volume / len).clamp(FLYING, most);
            let (mut by_driver, mut by_wharf) = (0.0_f64, 0.0_f64);
            for _ in 0..ROUNDS {
                by_driver = by_driver.max(raw(&current, way, *len, count));
                let rate = runtime.block_on(wharf(by, way, *len, count, &Barrier::new(1)));
                by_wharf = by_wharf.max(rate);
            }
            record(
                case,
                &format!("{}, {} KiB", way.name, len >> 10),
                by_driver,
                by_wharf,
            );
        }
    }

    // Both directions at once.
    let len = case.pick(64 * MIB, MIB);
    let count = (volume / len).clamp(FLYING, most);
    let [there, back] = [WAYS[0], WAYS[1]];
    let (mut by_driver, mut by_wharf) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        by_driver = by_driver.max(both(&current, len, count));
        let ready = Barrier::new(2);
        let (there, back) = runtime.block_on(join(
            wharf(by, there, len, count, &ready),
            wharf(by, back, len, count, &ready),
        ));
        by_wharf = by_wharf.max(there + back);
    }
    record(
        case,
        &format!("both directions, {} KiB", len >> 10),
        by_driver,
        by_wharf,
    );
    case.note("torch", "not compared: the driver's own loop is the bound");
    case.note(
        "the clock",
        "the host's, from the first call to the last completion",
    );
    Verdict::Ran
}

/// Two streams, one in each direction.
fn both(current: &Current, len: usize, count: usize) -> f64 {
    let streams = [current.stream(), current.stream()];
    let (host, memory) = (
        [current.pinned(len), current.pinned(len)],
        [current.alloc(len), current.alloc(len)],
    );
    let start = Instant::now();
    for _ in 0..count {
        current.copy(memory[0], host[0], len, streams[0]);
        current.copy(host[1], memory[1], len, streams[1]);
    }
    streams.into_iter().for_each(|stream| current.wait(stream));
    let rate = (2 * len * count) as f64 / start.elapsed().as_secs_f64();
    host.into_iter().for_each(|at| current.free_pinned(at));
    memory.into_iter().for_each(|at| current.free(at));
    for stream in streams {
        current.raw.ok(current.raw.cuStreamDestroy_v2(stream));
    }
    rate
}

fn record(case: &mut Case, what: &str, by_driver: f64, by_wharf: f64) {
    case.figure(format!("{what}: driver"), by_driver / 1e9, "GB/s");
    case.figure(format!("{what}: wharf"), by_wharf / 1e9, "GB/s");
    case.figure(
        format!("{what}: wharf to driver"),
        by_wharf / by_driver,
        "ratio",
    );
}
