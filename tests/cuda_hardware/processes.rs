//! T11: two processes, one device: the driver's own handles, and wharf's puts and gets of every kind of memory.

use std::time::Instant;

use wharf::{Access, BufferMut, Context, Descriptor, Endpoint, Progress, RemoteRegion, Worker};

use crate::{
    addresses::pool_props,
    device::{
        self, Current, DEVICE, MIB, filled, guarded, hex, opaque, pattern, read, runtime, unhex,
    },
    suite::{self, Case, Verdict},
    support::{Child, Parent},
};

const LEGACY: usize = 64 * MIB;

pub(crate) fn two_processes(case: &mut Case) -> Verdict {
    legacy(case);
    by_wharf(case);
    Verdict::Ran
}

/// A second process: device memory, and what opening its own handle gives.
pub(crate) fn legacy_exporter(mut parent: Parent) {
    suite::subject().expect("as in the first process");
    let current = Current::enter();
    let raw = current.raw;
    let memory = current.alloc(LEGACY);
    raw.ok(raw.cuMemsetD8Async(memory, 0x11, LEGACY, 0));
    raw.ok(raw.cuCtxSynchronize());
    let mut handle = crate::addresses::no_handle();
    let code = raw.cuIpcGetMemHandle(&mut handle, memory);
    if code != 0 {
        parent.say(format_args!("refused: {}", raw.name(code)));
        return;
    }
    parent.say(hex(&handle.0));
    parent.say(raw.name(raw.cuIpcOpenMemHandle_v2(&mut 0, handle, 1)));
    runtime().block_on(async {
        assert_eq!(parent.hear().await, "written");
        let mut back = vec![0; LEGACY];
        raw.ok(raw.cuMemcpyDtoH_v2(device::address_mut(&mut back), memory, LEGACY));
        parent.say(back.iter().all(|byte| *byte == 0x22));
        back.clear();
        assert_eq!(parent.hear().await, "free");
        current.free(memory);
        parent.say("freed");
        parent.wait_for_death().await;
    });
}

fn legacy(case: &mut Case) {
    let current = Current::enter();
    let raw = current.raw;
    let runtime = runtime();
    let mut child = case.child("T11 legacy", &[]);
    let hear = |child: &mut Child| runtime.block_on(child.hear());
    let said = hear(&mut child);
    if let Some(why) = said.strip_prefix("refused: ") {
        return case.without("legacy handles", why);
    }
    let handle = opaque(&said);
    case.note("opening its own handle", hear(&mut child));
    let mut at = 0;
    let start = Instant::now();
    let code = raw.cuIpcOpenMemHandle_v2(&mut at, handle, 1);
    case.figure(
        "open a legacy handle",
        start.elapsed().as_nanos() as f64,
        "ns",
    );
    if code != 0 {
        child.kill();
        return case.without(
            "legacy handles",
            format_args!("opening says {}", raw.name(code)),
        );
    }
    let mut again = 0;
    let start = Instant::now();
    let second = raw.cuIpcOpenMemHandle_v2(&mut again, handle, 1);
    case.figure("open it again", start.elapsed().as_nanos() as f64, "ns");
    case.note(
        "opening it again",
        format_args!(
            "{}, {}",
            raw.name(second),
            if again == at {
                "the same place"
            } else {
                "another place"
            }
        ),
    );
    let mut back = vec![0; LEGACY];
    raw.ok(raw.cuMemcpyDtoH_v2(device::address_mut(&mut back), at, LEGACY));
    assert!(back.iter().all(|byte| *byte == 0x11), "the other's bytes");

    // Within one memory: as fast as copies of one's own, or nearly.
    let (own, other, stream) = (
        current.alloc(LEGACY),
        current.alloc(LEGACY),
        current.stream(),
    );
    let count = case.pick(200, 2);
    let rate = |from: u64| {
        current.copy(own, from, LEGACY, stream);
        current.wait(stream);
        let start = Instant::now();
        for _ in 0..count {
            current.copy(own, from, LEGACY, stream);
        }
        current.wait(stream);
        (LEGACY * count) as f64 / start.elapsed().as_secs_f64()
    };
    let (of_own, of_others) = (rate(other), rate(at));
    case.figure("driver: device to device", of_own / 1e9, "GB/s");
    case.figure("driver: from the other process", of_others / 1e9, "GB/s");
    case.figure(
        "driver: from the other process to device to device",
        of_others / of_own,
        "ratio",
    );
    current.free(own);
    current.free(other);

    raw.ok(raw.cuMemsetD8Async(at, 0x22, LEGACY, stream));
    current.wait(stream);
    child.say("written");
    assert_eq!(hear(&mut child), "true", "the other sees what was written");
    if second == 0 {
        raw.ok(raw.cuIpcCloseMemHandle(again));
    }
    child.say("free");
    assert_eq!(hear(&mut child), "freed");
    case.note(
        "opening what was freed",
        raw.name(raw.cuIpcOpenMemHandle_v2(&mut again, handle, 1)),
    );
    let start = Instant::now();
    case.note(
        "closing what was freed",
        raw.name(raw.cuIpcCloseMemHandle(at)),
    );
    case.figure(
        "close a legacy handle",
        start.elapsed().as_nanos() as f64,
        "ns",
    );
    child.kill();
    case.note(
        "opening a dead process's",
        raw.name(raw.cuIpcOpenMemHandle_v2(&mut again, handle, 1)),
    );
    raw.ok(raw.cuStreamDestroy_v2(stream));
}

/// The kinds of memory that a process has.
const KINDS: [&str; 5] = [
    "allocated by wharf",
    "mapped, one piece",
    "mapped, two pieces",
    "of a pool made to be shared",
    "of the default pool",
];

struct End {
    context: Context,
    worker: Worker,
    endpoint: Endpoint,
}

impl End {
    /// Memory of a kind with these bytes.
    async fn memory(&self, current: &Current, kind: &str, bytes: Vec<u8>) -> BufferMut {
        let (raw, len) = (current.raw, bytes.len());
        let block = current.granularity();
        assert_eq!(len % (2 * block), 0, "of whole pieces");
        let mut at = 0;
        match kind {
            "mapped, one piece" => at = current.mapped(len, 1, 1),
            "mapped, two pieces" => at = current.mapped(len / 2, 2, 1),
            "of a pool made to be shared" => {
                let mut pool = 0;
                raw.ok(raw.cuMemPoolCreate(&mut pool, &pool_props(1)));
                raw.ok(raw.cuMemAllocFromPoolAsync(&mut at, len, pool, 0));
                raw.ok(raw.cuCtxSynchronize());
            }
            "of the default pool" => {
                raw.ok(raw.cuMemAllocAsync(&mut at, len, 0));
                raw.ok(raw.cuCtxSynchronize());
            }
            _ => return filled(&self.context, &self.worker, DEVICE, bytes).await,
        }
        let memory = device::own(&self.context, at, len);
        guarded(self.worker.copy(bytes, memory))
            .await
            .expect("filled")
    }
}

/// A second process: exposes memory of each kind, then of each length.
pub(crate) fn exporter(mut parent: Parent) {
    suite::subject().expect("as in the first process");
    let current = Current::enter();
    runtime().block_on(async {
        let context = device::context(Progress::Adaptive);
        let worker = Worker::new(&context).expect("a worker");
        let address = parent.hear().await;
        let endpoint = guarded(worker.connect(address))
            .await
            .expect("a connection");
        let end = End {
            context,
            worker,
            endpoint,
        };
        let len = 2 * current.granularity();
        for (seed, kind) in (0..).zip(KINDS) {
            let memory = end.memory(&current, kind, pattern(seed, len)).await;
            let memory = exposed(&end, &mut parent, memory).await;
            parent.say(read(&end.worker, memory).await == pattern(seed + 100, len));
        }
        while let Ok(len) = parent.hear().await.parse() {
            let memory = filled(&end.context, &end.worker, DEVICE, pattern(1, len)).await;
            exposed(&end, &mut parent, memory).await;
        }
        assert!(end.endpoint.peer().is_some(), "connected still");
    });
}

/// Lets the other process have it until it says that it is done.
async fn exposed(end: &End, parent: &mut Parent, memory: BufferMut) -> BufferMut {
    let region = end
        .context
        .expose(memory, Access::READ | Access::WRITE)
        .await
        .expect("exposed");
    parent.say(hex(&region.descriptor().expect("a descriptor").to_bytes()));
    assert_eq!(parent.hear().await, "done");
    guarded(region.unexpose()).await
}

async fn imported(end: &End, child: &mut Child) -> RemoteRegion {
    let descriptor = Descriptor::from_bytes(&unhex(&child.hear().await)).expect("a descriptor");
    end.endpoint.import(&descriptor).expect("the peer's")
}

fn by_wharf(case: &mut Case) {
    let current = Current::enter();
    let len = 2 * current.granularity();
    drop(current);
    let mut child = case.child("T11 exporter", &[]);
    runtime().block_on(async {
        let context = device::context(Progress::Adaptive);
        let worker = Worker::new(&context).expect("a worker");
        let listener = worker.listen("127.0.0.1:0").await.expect("a listener");
        child.say(listener.local_addr());
        let incoming = guarded(listener.accept()).await.expect("a request");
        let endpoint = guarded(incoming.accept()).await.expect("a connection");
        case.note("transports", endpoint.transports().join(" "));
        let end = End {
            context,
            worker,
            endpoint,
        };
        for (seed, kind) in (0..).zip(KINDS) {
            let remote = imported(&end, &mut child).await;
            let memory = filled(&end.context, &end.worker, DEVICE, vec![0; len]).await;
            let start = Instant::now();
            let got = guarded(end.endpoint.get(remote.clone(), memory))
                .await
                .expect("got");
            case.figure(
                format!("{kind}: first get"),
                start.elapsed().as_nanos() as f64,
                "ns",
            );
            assert!(
                read(&end.worker, got).await == pattern(seed, len),
                "{kind}: got"
            );
            let memory = filled(&end.context, &end.worker, DEVICE, pattern(seed + 100, len)).await;
            guarded(end.endpoint.put(memory.freeze(), remote))
                .await
                .expect("put");
            child.say("done");
            assert_eq!(child.hear().await, "true", "{kind}: put");
        }
        let lengths = case.pick(
            &[8, 4096, 65536, MIB, 64 * MIB, 1024 * MIB][..],
            &[8, 4096, MIB],
        );
        for len in lengths {
            child.say(len);
            let remote = imported(&end, &mut child).await;
            rates(case, &end, &remote, *len).await;
            child.say("done");
        }
        child.say("end");
    });
    child.finish();
}

/// Puts and gets one after the other, beside copies within this process.
async fn rates(case: &mut Case, end: &End, remote: &RemoteRegion, len: usize) {
    let volume: usize = case.pick(16 << 30, 4 * MIB);
    let count = (volume / len).clamp(4, case.pick(2000, 20));
    let source = filled(&end.context, &end.worker, DEVICE, pattern(1, len))
        .await
        .freeze();
    let mut target = filled(&end.context, &end.worker, DEVICE, vec![0; len]).await;
    let mut bests = [f64::MAX; 3];
    // One guard for all of them: it starts a thread, which takes longer than a short copy.
    guarded(async {
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..count {
                let copied = end.worker.copy(source.clone(), std::mem::take(&mut target));
                target = copied.await.expect("copied");
            }
            let local = start.elapsed().as_secs_f64();
            let start = Instant::now();
            for _ in 0..count {
                let got = end
                    .endpoint
                    .get(remote.clone(), std::mem::take(&mut target));
                target = got.await.expect("got");
            }
            let get = start.elapsed().as_secs_f64();
            let start = Instant::now();
            for _ in 0..count {
                let put = end.endpoint.put(source.clone(), remote.clone());
                put.await.expect("put");
            }
            let put = start.elapsed().as_secs_f64();
            for (best, time) in bests.iter_mut().zip([local, get, put]) {
                *best = best.min(time);
            }
        }
    })
    .await;
    assert!(
        read(&end.worker, target).await == pattern(1, len),
        "{len} bytes"
    );
    let [local, get, put] = bests;
    for (name, time) in [("copy within a process", local), ("get", get), ("put", put)] {
        case.figure(format!("{name}, {len} B"), time / count as f64 * 1e9, "ns");
        case.figure(
            format!("{name}, {len} B: rate"),
            (len * count) as f64 / time / 1e9,
            "GB/s",
        );
    }
    case.figure(
        format!("get to a copy within a process, {len} B"),
        local / get,
        "ratio",
    );
    case.figure(
        format!("put to a copy within a process, {len} B"),
        local / put,
        "ratio",
    );
}
