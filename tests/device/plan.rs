//! What is explained of a transfer is what is done: each verb, between each two kinds of memory, in each class of length, over each path. What was done is read from
//! the workers' counters.

use std::{fmt, sync::Arc, time::Duration};

use tokio::io::AsyncReadExt;
use wharf::{
    Access, Buffer, BufferMut, Context, ErrorKind, MemoryType, Mover, Operation, Party,
    RemoteRegion, Tag, When, Worker,
    transport::{cuda::CudaCopy, gaudi::GaudiCopy, rocm::RocmCopy},
};

use crate::{
    common::{DEVICE, OTHER, bytes, equal, filled},
    fixture::{Pair, Side, Way, pattern, run},
    support::{
        LIMIT,
        accelerator::{FRAGMENT, FakeAccelerator, Plan},
        emulated,
        moved::{Before, taken},
    },
};

const BOTH: Access = Access::READ.union(Access::WRITE);

/// Short, in one piece, longer than a link copies at once, shared by both ends of a copy, joined by an owner, and long.
const LENGTHS: [usize; 8] = [
    8,
    1000,
    9000,
    50_000,
    100_000,
    200_000,
    300_000,
    (3 << 20) + 5,
];

/// Memory at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The program's own.
    Own,
    /// Allocated by wharf, so that a peer can map it.
    Shared,
    Of(MemoryType),
}

impl Kind {
    fn memory_type(self) -> MemoryType {
        match self {
            Self::Own | Self::Shared => MemoryType::Host,
            Self::Of(memory_type) => memory_type,
        }
    }

    fn on_device(self) -> bool {
        !self.memory_type().is_host_accessible()
    }

    async fn filled(self, (context, worker): (&Context, &Worker), content: &[u8]) -> BufferMut {
        match self {
            Self::Own => content.to_vec().into(),
            Self::Shared => {
                let mut memory = context.allocate(content.len()).await.expect("memory");
                memory.copy_from_slice(content);
                memory.into()
            }
            Self::Of(memory_type) => filled(worker, context, memory_type, content).await,
        }
    }

    async fn at(self, side: &Side, content: &[u8]) -> BufferMut {
        self.filled((&side.context, &side.worker), content).await
    }
}

/// One transfer that is made again and again.
struct Case<'a> {
    source: &'a Side,
    target: &'a Side,
    way: Way,
    operation: Operation,
    from: Kind,
    to: Kind,
    length: usize,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            way,
            operation,
            from,
            to,
            length,
            ..
        } = self;
        write!(
            f,
            "{operation} of {length} bytes from {from:?} to {to:?} over {way:?}"
        )
    }
}

/// Transfers before the one that counts: memory is met, registered and mapped by then.
const BEFORE: usize = 4;
/// And at most until they are.
const PATIENCE: usize = 300;

impl Case<'_> {
    /// Whether a condition is met by then.
    fn holds(&self, when: When) -> bool {
        let devices = self.from.on_device() || self.to.on_device();
        let region = match self.operation {
            Operation::Put => self.to,
            _ => self.from,
        };
        match when {
            When::Shared => region == Kind::Shared,
            When::OwnedAndShared => self.from == Kind::Shared,
            When::Met | When::Owned => true,
            // The fake devices tell nobody else where their memory is.
            When::Registered => !devices,
            When::Opened | When::Reached => false,
            when => panic!("{self}: {when:?} with engines that are open"),
        }
    }

    async fn check(&self) {
        let (out, into) = (self.from.on_device(), self.to.on_device());
        let content = pattern(self.length, self.length);
        let source = self.from.at(self.source, content).await.freeze();
        let mut target = Some(self.to.at(self.target, &vec![0x11; self.length]).await);
        let region = match self.operation {
            Operation::Put => {
                let room = target.take().expect("room");
                Some((self.target, room))
            }
            Operation::Get => {
                let content = self.from.at(self.source, content).await;
                Some((self.source, content))
            }
            _ => None,
        };
        let mut remote = None;
        let mut held = None;
        if let Some((owner, memory)) = region {
            let region = owner.context.expose(memory, BOTH).await.expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor");
            let initiator = match self.operation {
                Operation::Put => self.source,
                _ => self.target,
            };
            let imported = initiator.endpoint.import(&descriptor);
            remote = Some(imported.expect("the peer's"));
            held = Some(region);
        }
        for round in 0.. {
            let peer = (self.way != Way::Own).then_some(&self.target.worker);
            let (from, to) = (self.from.memory_type(), self.to.memory_type());
            let asked = match self.operation {
                Operation::Get => self.target,
                _ => self.source,
            };
            let explained = asked
                .endpoint
                .explain(self.operation, from, to, self.length);
            let before = Before::of(&self.source.worker, peer).await;
            target = self.transfer(&source, target, remote.as_ref()).await;
            let moved = before.end().await;
            if round < BEFORE {
                continue;
            }
            let plan = taken(&explained, |when| self.holds(when));
            if plan.mover == Mover::Mapped && !moved.is_mapped() && round < PATIENCE {
                // The peer's memory comes over a socket.
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let what = format_args!("{self}\n{explained}\n");
            moved.check(&plan, self.length, (out, into), what);
            if plan.mover == Mover::Messages && self.is_message() {
                moved.check_agreed(self);
            }
            let receives = match self.operation {
                Operation::TagSend => Operation::TagRecv,
                Operation::AmSend => Operation::AmRecv,
                _ => break,
            };
            // Who receives knows as much of host memory, and more of devices.
            let explained = self
                .target
                .endpoint
                .explain(receives, from, to, self.length);
            let other = taken(&explained, |when| self.holds(when));
            assert_eq!(other, plan, "{self}: {explained}");
            break;
        }
        if let Some(found) = target {
            let found = bytes(&self.target.worker, found.freeze()).await;
            equal(&found[..self.length], content, self);
        }
        drop(held);
    }

    fn is_message(&self) -> bool {
        matches!(self.operation, Operation::TagSend | Operation::AmSend)
    }

    /// Makes it once.
    async fn transfer(
        &self,
        source: &Buffer,
        target: Option<BufferMut>,
        remote: Option<&RemoteRegion>,
    ) -> Option<BufferMut> {
        let (here, there) = (&self.source.endpoint, &self.target.worker);
        let source = source.clone();
        match self.operation {
            Operation::TagSend => {
                let receive = there.tag_recv(Tag(5), target.expect("room"));
                let receive = receive.post();
                here.tag_send(Tag(5), source).await.expect("sent");
                Some(receive.await.expect("received").buffer)
            }
            Operation::AmSend => {
                let mut inbox = there.active_messages(3).open().expect("an inbox");
                let receive = async {
                    let message = inbox.recv().await.expect("a message");
                    let received = message.receive(target.expect("room")).await;
                    received.expect("received").buffer
                };
                let send = here.am_send(3, "", source);
                let (sent, received) = tokio::join!(send, receive);
                sent.expect("sent");
                Some(received)
            }
            Operation::Put => {
                let put = here.put(source, remote.expect("a region").clone());
                put.await.expect("put");
                None
            }
            Operation::Get => {
                let endpoint = &self.target.endpoint;
                let get = endpoint.get(remote.expect("a region").clone(), target.expect("room"));
                Some(get.await.expect("got"))
            }
            Operation::Stream => {
                let mut target = target.expect("room");
                let mut out = here.stream().await.expect("opened");
                let mut into = self
                    .target
                    .endpoint
                    .accept_stream()
                    .await
                    .expect("accepted");
                let room = target.as_mut_slice().expect("of the host");
                let read = into.read_exact(room);
                let (written, read) = tokio::join!(out.write_buffer(source), read);
                written.expect("written");
                read.expect("read");
                Some(target)
            }
            other => panic!("{other} is no transfer"),
        }
    }
}

const VERBS: [Operation; 5] = [
    Operation::TagSend,
    Operation::AmSend,
    Operation::Put,
    Operation::Get,
    Operation::Stream,
];

/// Each verb between these kinds of memory, each on a connection of its own: of long messages the way is measured, and the other tried after some.
async fn each(way: Way, context: &Context, pairs: &[(Kind, Kind)], lengths: &[usize]) {
    for operation in VERBS {
        for (from, to) in pairs.iter().copied() {
            if operation == Operation::Stream && to != Kind::Own {
                continue;
            }
            let Pair { here, there } = Pair::of(context, way).await;
            for side in [&here, &there] {
                // What an engine does is known once it is open.
                for kind in [from, to].into_iter().filter(|kind| kind.on_device()) {
                    drop(kind.at(side, &[1; 8]).await);
                }
            }
            for length in lengths.iter().copied() {
                let case = Case {
                    source: &here,
                    target: &there,
                    way,
                    operation,
                    from,
                    to,
                    length,
                };
                case.check().await;
            }
            drop((here.endpoint, there.endpoint));
            for worker in [here.worker, there.worker] {
                worker.shutdown(LIMIT).await.expect("shut down");
            }
        }
    }
}

const HOST: [(Kind, Kind); 4] = [
    (Kind::Own, Kind::Own),
    (Kind::Shared, Kind::Own),
    (Kind::Own, Kind::Shared),
    (Kind::Shared, Kind::Shared),
];

// Who runs the tasks has no part in the choice.
scenarios! {
    on each carrier:

    async fn host_memory(way: Way) {
        // Short messages have no choice of a scheme's.
        let skipped = if std::env::var_os("WHARF_RNDV_SCHEME").is_some() { 2 } else { 0 };
        each(way, &way.context(), &HOST, &LENGTHS[skipped..]).await;
    }

    async fn device_memory(way: Way) {
        let accelerator = FakeAccelerator::new();
        accelerator.plan(|plan| plan.late = 20);
        let context = crate::common::context(way, &accelerator);
        let device = Kind::Of(DEVICE);
        let pairs = [
            (Kind::Own, device),
            (Kind::Shared, device),
            (device, Kind::Own),
            (device, Kind::Shared),
            (device, device),
            (device, Kind::Of(OTHER)),
            (device, Kind::Of(MemoryType::HostPinned)),
            (Kind::Of(MemoryType::HostPinned), device),
        ];
        let lengths = [8, 9000, FRAGMENT + 1, 300_000, (1 << 20) + 5];
        each(way, &context, &pairs, &lengths).await;
        accelerator.check();
    }

    async fn device_memory_of_an_engine_that_takes_any(way: Way) {
        let mut plan = Plan::default();
        plan.attributes.pageable_from = Some(0);
        plan.late = 20;
        let accelerator = FakeAccelerator::with(plan);
        let context = crate::common::context(way, &accelerator);
        let device = Kind::Of(DEVICE);
        let pairs = [(Kind::Own, device), (device, Kind::Own), (device, Kind::Of(OTHER))];
        let lengths = [8, 9000, FRAGMENT + 1, 300_000, (1 << 20) + 5];
        each(way, &context, &pairs, &lengths).await;
        accelerator.check();
    }

    /// Atomic operations on words, and signals to counters, which are always of wharf's memory.
    async fn words(way: Way) {
        let pair = way.pair().await;
        let host = MemoryType::Host;
        let counter = pair.there.worker.counter().await.expect("a counter");
        let mut of_words = vec![(Operation::Signal, true, counter.descriptor().expect("its"), None)];
        for kind in [Kind::Own, Kind::Shared] {
            let memory = kind.at(&pair.there, &[0; 8]).await;
            let region = pair.there.context.expose(memory, BOTH).await.expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor");
            of_words.push((Operation::Atomic, kind == Kind::Shared, descriptor, Some(region)));
        }
        for (operation, is_shared, descriptor, _region) in &of_words {
            let here = &pair.here.endpoint;
            let remote = here.import(descriptor).expect("the peer's");
            for round in 0.. {
                let explained = here.explain(*operation, host, host, 8);
                let peer = (way != Way::Own).then_some(&pair.there.worker);
                let before = Before::of(&pair.here.worker, peer).await;
                match operation {
                    Operation::Signal => here.signal(&remote, 1).await.expect("raised"),
                    _ => drop(remote.fetch_add(0, 1_u64).await.expect("added")),
                }
                let moved = before.end().await;
                let plan = taken(&explained, |when| *is_shared && when == When::Shared);
                if plan.mover == Mover::Mapped && moved.is_told() && round < PATIENCE {
                    // The peer's memory comes over a socket.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                moved.check_word(&plan, format_args!("{operation} {is_shared} over {way:?}\n{explained}"));
                if round >= BEFORE {
                    break;
                }
            }
        }
    }

    /// A choice of the user's is one that is explained.
    async fn chosen_by_the_user(way: Way) {
        for threshold in [100, usize::MAX] {
            let builder = way.builder().rendezvous_threshold(threshold);
            let context = builder.build().expect("a context");
            let lengths = [50, 1000, 20_000, 100_000, 400_000, 700_000, (1 << 20) + 5];
            each(way, &context, &HOST[..2], &lengths).await;
        }
    }
}

/// The same under each choice of how long messages go, in processes of their own. What TLS carries is TCP's choice.
#[test]
fn each_rendezvous_scheme() {
    for scheme in ["get_zcopy", "put_zcopy", "am"] {
        let this = std::env::current_exe().expect("this program");
        let mut child = std::process::Command::new(this);
        child.args(["plan::host_memory::", "--skip", "tls", "--test-threads=4"]);
        child.env("WHARF_RNDV_SCHEME", scheme);
        // Each test ends itself when something does not come.
        let output = child.output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scheme}: {said}\n{errors}");
        assert!(!said.contains("running 0 tests"), "{said}");
    }
}

/// Longer than what is ever measured.
#[test]
fn very_long_messages() {
    const LENGTH: usize = (65 << 20) + 3;
    for way in [Way::Shm, Way::ShmWithoutCma] {
        run(async move {
            let pair = way.pair().await;
            let content = pattern(1 << 20, 1).repeat(LENGTH.div_ceil(1 << 20));
            for (kind, shared) in [(Kind::Own, false), (Kind::Shared, true)] {
                let source = kind.at(&pair.here, &content[..LENGTH]).await.freeze();
                let mut target: BufferMut = vec![0; LENGTH].into();
                for _ in 0..3 {
                    let host = MemoryType::Host;
                    let endpoint = &pair.here.endpoint;
                    let explained = endpoint.explain(Operation::TagSend, host, host, LENGTH);
                    let before = Before::of(&pair.here.worker, Some(&pair.there.worker)).await;
                    let receive = pair.there.worker.tag_recv(Tag(1), target);
                    let send = endpoint.tag_send(Tag(1), source.clone());
                    let (sent, received) = tokio::join!(send, receive);
                    sent.expect("sent");
                    target = received.expect("received").buffer;
                    let moved = before.end().await;
                    let seen = taken(&explained, |when| shared && when == When::Shared);
                    if target.as_slice() != Some(&content[..LENGTH]) {
                        panic!("other bytes over {way:?}");
                    }
                    // What wharf allocated is given to the peer from the second time on.
                    let known = taken(&explained, |_| false);
                    let plan = match moved.is_mapped() {
                        true => seen,
                        false => known,
                    };
                    moved.check(&plan, LENGTH, (false, false), way.transports()[0]);
                    target.as_mut_slice().expect("of the host").fill(0);
                }
            }
        });
    }
}

/// Copies within the process.
async fn copies(context: &Context, worker: &Worker, pairs: &[(Kind, Kind)], lengths: &[usize]) {
    for (from, to) in pairs.iter().copied() {
        for length in lengths.iter().copied() {
            let place = (context, worker);
            let content = pattern(length, length);
            let source = from.filled(place, content).await.freeze();
            let target = to.filled(place, &vec![0x11; length]).await;
            let (out, into) = (from.memory_type(), to.memory_type());
            let explained = worker.explain_copy(out, into, length);
            let what = format!("a copy of {length} bytes from {from:?} to {to:?}: {explained}");
            // No driver here lets one card reach another.
            let plan = taken(&explained, |when| match when {
                When::Reached => false,
                when => panic!("{what}: {when:?}"),
            });
            let before = Before::of(worker, None).await;
            let copied = worker.copy(source, target).await.expect("copied");
            let moved = before.end().await;
            moved.check(&plan, length, (from.on_device(), to.on_device()), &what);
            if explained.plans.len() == 1 {
                assert_eq!(explained.is_staged, plan.is_staged, "{what}");
            }
            equal(&bytes(worker, copied.freeze()).await, content, &what);
        }
    }
}

/// All kinds of memory with devices of these types.
fn all(types: &[MemoryType]) -> Vec<(Kind, Kind)> {
    let mut kinds = vec![Kind::Own, Kind::Shared, Kind::Of(MemoryType::HostPinned)];
    kinds.extend(types.iter().map(|memory_type| Kind::Of(*memory_type)));
    let pairs = kinds
        .iter()
        .flat_map(|from| kinds.iter().map(|to| (*from, *to)));
    pairs.collect()
}

/// Copies, and what a worker sends, puts and gets to itself, on a context with these devices.
async fn of_devices(context: Context, types: &[MemoryType]) {
    let worker = Worker::new(&context).expect("a worker");
    // Engines are open.
    for memory_type in types {
        drop(filled(&worker, &context, *memory_type, &[1; 100]).await);
    }
    let lengths = [8, 5000, (1 << 20) + 1, (5 << 20) + 3];
    copies(&context, &worker, &all(types), &lengths).await;
    let devices: Vec<_> = types
        .iter()
        .map(|memory_type| Kind::Of(*memory_type))
        .collect();
    let mut pairs = Vec::new();
    for device in &devices {
        pairs.extend([(Kind::Own, *device), (*device, Kind::Own)]);
        pairs.extend(devices.iter().map(|other| (*device, *other)));
    }
    each(Way::Own, &context, &pairs, &[8, 5000, (1 << 20) + 1]).await;
}

fn with(accelerator: impl wharf::transport::Accelerator + 'static) -> Context {
    let builder = Way::Own.builder().accelerator(Arc::new(accelerator));
    builder.build().expect("a context")
}

#[test]
fn emulated_cuda() {
    run(async {
        let context = with(CudaCopy::with_library(emulated::cuda()));
        of_devices(context, &[DEVICE, OTHER]).await;
    });
}

#[test]
fn emulated_rocm() {
    run(async {
        let context = with(RocmCopy::with_library(emulated::hsa()));
        of_devices(context, &[MemoryType::Rocm(0), MemoryType::Rocm(1)]).await;
    });
}

#[test]
fn emulated_gaudi() {
    run(async {
        let context = with(GaudiCopy::with_library(emulated::hlthunk()));
        of_devices(context, &[MemoryType::Gaudi(0), MemoryType::Gaudi(1)]).await;
    });
}

/// With two accelerators host memory is pinned for none in particular, and no engine reaches both.
#[test]
fn two_accelerators() {
    run(async {
        let mut plan = Plan::default();
        plan.attributes.pageable_from = Some(0);
        let far = [MemoryType::Rocm(0), MemoryType::Rocm(1)];
        let builder = Way::Own
            .builder()
            .accelerator(Arc::new(FakeAccelerator::new()));
        let builder = builder.accelerator(Arc::new(FakeAccelerator::of(plan, far)));
        let context = builder.build().expect("a context");
        of_devices(context, &[DEVICE, far[0]]).await;
    });
}

/// What is explained under `forbid_staging()` is what is let, of each verb and copy.
#[test]
fn forbidden_is_what_would_stop() {
    run(async {
        for pageable in [false, true] {
            let mut plan = Plan::default();
            plan.attributes.pageable_from = pageable.then_some(0);
            let builder = Way::Own.builder().forbid_staging();
            let builder = builder.accelerator(Arc::new(FakeAccelerator::with(plan)));
            let context = builder.build().expect("a context");
            let Pair { here, .. } = Pair::of(&context, Way::Own).await;
            let pinned = MemoryType::HostPinned;
            let memory = async |memory_type| {
                context
                    .allocate_on(memory_type, 5000)
                    .await
                    .expect("memory")
            };
            // Opens the engine.
            drop(
                here.worker
                    .copy(memory(pinned).await.freeze(), memory(DEVICE).await)
                    .await,
            );
            let types = [MemoryType::Host, pinned, DEVICE, OTHER];
            for (from, to) in types.iter().flat_map(|from| types.map(|to| (*from, to))) {
                let said = here.worker.explain_copy(from, to, 5000);
                let copied = here
                    .worker
                    .copy(memory(from).await.freeze(), memory(to).await)
                    .await;
                let what = format!("{from} to {to}, {pageable}: {said}");
                assert_eq!(copied.is_ok(), said.is_possible, "{what}");
                if let Err(error) = copied {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(said.plans.is_empty() && said.is_staged, "{what}");
                }
                for operation in [Operation::TagSend, Operation::Put, Operation::Get] {
                    let said = here.endpoint.explain(operation, from, to, 5000);
                    let done = once(&here, operation, (memory(from).await, memory(to).await)).await;
                    let what = format!("{operation} {from} to {to}, {pageable}: {said}");
                    assert_eq!(done.is_ok(), said.is_possible, "{what}, {done:?}");
                    assert!(said.plans.iter().all(|plan| !plan.is_staged), "{what}");
                }
            }
            assert_eq!(here.worker.metrics().staged.count, 0);
        }
    });
}

/// One operation to oneself.
async fn once(
    side: &Side,
    operation: Operation,
    (from, to): (BufferMut, BufferMut),
) -> Result<(), wharf::Error> {
    match operation {
        Operation::TagSend => {
            let send = side.endpoint.tag_send(Tag(9), from.freeze()).post();
            let send = send.map_err(|error| error.into_parts().0)?;
            let received = side.worker.tag_recv(Tag(9), to).await;
            let sent = send.await;
            received.map_err(|error| error.into_parts().0)?;
            sent
        }
        Operation::Put | Operation::Get => {
            let (exposed, local) = match operation {
                Operation::Put => (to, from),
                _ => (from, to),
            };
            let region = side.context.expose(exposed, BOTH).await?;
            let remote = side.endpoint.import(&region.descriptor()?)?;
            match operation {
                Operation::Put => side.endpoint.put(local.freeze(), remote).await,
                _ => {
                    let got = side.endpoint.get(remote, local).await;
                    got.map(drop).map_err(|error| error.into_parts().0)
                }
            }
        }
        other => panic!("{other}"),
    }
}

/// Plans are said in words, and what is not known before an engine is open is a condition.
#[test]
fn before_an_engine_is_open() {
    run(async {
        for pageable in [false, true] {
            let mut plan = Plan::default();
            plan.attributes.pageable_from = pageable.then_some(0);
            let context = with(FakeAccelerator::with(plan));
            let worker = Worker::new(&context).expect("a worker");
            let said = worker.explain_copy(MemoryType::Host, DEVICE, 100);
            let when: Vec<_> = said.plans.iter().map(|plan| plan.when).collect();
            assert_eq!(when, [Some(When::Pageable), None], "{said}");
            let movers = said
                .plans
                .iter()
                .map(|plan| (plan.mover, plan.by, plan.copies));
            let movers: Vec<_> = movers.collect();
            let (engine, both) = (Mover::Engine, Party::Both);
            assert_eq!(movers, [(engine, both, 1), (engine, both, 2)], "{said}");
            drop(filled(&worker, &context, DEVICE, &[0; 8]).await);
            let said = worker.explain_copy(MemoryType::Host, DEVICE, 100);
            assert_eq!(said.plans.len(), 1, "{said}");
            assert_eq!(said.is_staged, !pageable, "{said}");
        }
    });
}
