//! Device ports, on the emulated driver: kernels of a program's own, run from their text on a weak memory, push triggers, flush and wait, and the proxy does what
//! they ask for over every carrier. What each order of the functions is for shows `tests/emulated/ptx`.
//!
//! # Safety
//! Streams are never destroyed, and ports end before the process.
#![allow(unsafe_code)]

use std::{ffi::CString, sync::Arc, time::Duration};

use wharf::{
    BufferMut, Context, ErrorKind, MemoryType, Operation, Worker,
    channel::{
        Communicator, DevicePort, MemoryChannel, PortChannel, ProxyService, RegisteredMemory,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
    transport::cuda::{CudaCopy, CudaStream},
};

use crate::{
    api,
    group::{BOTH, Carrier, channels, content, pattern, run},
    support::{Child, child, emulated, emulated::control, this_test, until},
};

const LENGTH: usize = WRONG + 64;
/// How much is put at a time: so much that between processes it goes straight from device to device.
const PART: usize = 40 << 10;
/// Where a rank's memory is put to, and where its kernel says what was wrong.
const INBOX: usize = PART;
const WRONG: usize = 2 * PART;
const ROUNDS: u64 = 6;
const THREADS: u32 = 64;

/// Kernels of a program. `talk` is both ends of a conversation: of each round all threads write a part, one puts it and signals, or waits; `ask` is many threads that
/// put a word each; `wrong` asks for what cannot be.
const KERNELS: &str = "
.func (.param .b64 ticket) put(.param .b64 port, .param .b64 remote, .param .b64 local, .param .b64 length, .param .b64 kind)
{
    .reg .b64 %v;
    .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f; .param .b64 g;
    ld.param.b64 %v, [port]; st.param.b64 [a], %v;
    ld.param.b64 %v, [remote]; st.param.b64 [b], %v;
    ld.param.b64 %v, [local]; st.param.b64 [c], %v;
    ld.param.b64 %v, [length]; st.param.b64 [d], %v;
    ld.param.b64 %v, [kind]; st.param.b64 [e], %v;
    mov.u64 %v, 100000000; st.param.b64 [f], %v;
    call.uni (g), wharf_port_put, (a, b, c, d, e, f);
    ld.param.b64 %v, [g]; st.param.b64 [ticket], %v;
    ret;
}
.func (.param .b32 status) flush(.param .b64 port, .param .b64 ticket)
{
    .reg .b64 %v; .reg .b32 %s;
    .param .b64 a; .param .b64 b; .param .b64 c; .param .b32 d;
    ld.param.b64 %v, [port]; st.param.b64 [a], %v;
    ld.param.b64 %v, [ticket]; st.param.b64 [b], %v;
    mov.u64 %v, 100000000; st.param.b64 [c], %v;
    call.uni (d), wharf_port_flush, (a, b, c);
    ld.param.b32 %s, [d]; st.param.b32 [status], %s;
    ret;
}
.visible .entry talk(.param .u64 port, .param .u64 local, .param .u64 role, .param .u64 rounds, .param .u64 part)
{
    .reg .b64 %part, %port, %local, %role, %rounds, %round, %turn, %mine, %theirs, %at, %value, %found, %v, %ticket, %wrong;
    .reg .b32 %thread, %status;
    .reg .pred %p, %first;
    ld.param.u64 %port, [port]; ld.param.u64 %local, [local];
    ld.param.u64 %role, [role]; ld.param.u64 %rounds, [rounds];
    mov.u32 %thread, %tid.x;
    setp.eq.u32 %first, %thread, 0;
    mul.wide.u32 %at, %thread, 8;
    add.u64 %mine, %local, %at;
    ld.param.u64 %part, [part];
    add.u64 %theirs, %mine, %part;
    add.u64 %wrong, %local, %part;
    add.u64 %wrong, %wrong, %part;
    mov.u64 %round, 0;
    // Each end writes in its turn: 0, 1, 2, ...
    mov.u64 %turn, 0;
L:  and.b64 %v, %turn, 1;
    setp.ne.u64 %p, %v, %role;
    @%p bra L_hears;
    mad.lo.u64 %value, %turn, 1000003, %at;
    st.global.u64 [%mine], %value;
    bar.sync 0;
    @!%first bra L_next;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f;
        st.param.b64 [a], %port; st.param.b64 [b], %part;
        mov.u64 %v, 0; st.param.b64 [c], %v;
        st.param.b64 [d], %part;
        mov.u64 %v, 7; st.param.b64 [e], %v;
        call.uni (f), put, (a, b, c, d, e);
        ld.param.b64 %ticket, [f];
    }
    {
        .param .b64 a; .param .b64 b; .param .b32 c;
        st.param.b64 [a], %port; st.param.b64 [b], %ticket;
        call.uni (c), flush, (a, b);
        ld.param.b32 %status, [c];
    }
    setp.ne.u32 %p, %status, 0;
    @%p bra L_bad;
    bra L_next;
L_hears:
    // Old bytes, which may stay in a cache.
    ld.global.u64 %found, [%theirs];
    @!%first bra L_heard;
    {
        .param .b64 a; .param .b64 b; .param .b32 c;
        st.param.b64 [a], %port; mov.u64 %v, 100000000; st.param.b64 [b], %v;
        call.uni (c), wharf_port_wait, (a, b);
        ld.param.b32 %status, [c];
    }
    setp.ne.u32 %p, %status, 0;
    @%p bra L_bad;
L_heard:
    bar.sync 0;
    ld.global.u64 %found, [%theirs];
    mad.lo.u64 %value, %turn, 1000003, %at;
    setp.ne.u64 %p, %found, %value;
    @%p bra L_bad;
L_next:
    add.u64 %turn, %turn, 1;
    shl.b64 %v, %rounds, 1;
    setp.lt.u64 %p, %turn, %v;
    @%p bra L;
    ret;
L_bad:
    add.u64 %v, %turn, 1;
    st.volatile.global.u64 [%wrong], %v;
    trap;
}
.visible .entry ask(.param .u64 port, .param .u64 local, .param .u64 statuses)
{
    .reg .b64 %port, %local, %at, %value, %v, %ticket, %statuses;
    .reg .b32 %thread, %threads, %block, %status;
    .reg .pred %p;
    ld.param.u64 %port, [port]; ld.param.u64 %local, [local]; ld.param.u64 %statuses, [statuses];
    mov.u32 %thread, %tid.x; mov.u32 %block, %ctaid.x; mov.u32 %threads, %ntid.x;
    mad.lo.u32 %thread, %block, %threads, %thread;
    mul.wide.u32 %at, %thread, 8;
    add.u64 %local, %local, %at;
    mul.lo.u64 %value, %at, 977;
    st.global.u64 [%local], %value;
    {
        .param .b64 a; .param .b64 b; .param .b64 c; .param .b64 d; .param .b64 e; .param .b64 f;
        st.param.b64 [a], %port; st.param.b64 [b], %at; st.param.b64 [c], %at;
        mov.u64 %v, 8; st.param.b64 [d], %v;
        mov.u64 %v, 5; st.param.b64 [e], %v;
        call.uni (f), put, (a, b, c, d, e);
        ld.param.b64 %ticket, [f];
    }
    {
        .param .b64 a; .param .b64 b; .param .b32 c;
        st.param.b64 [a], %port; st.param.b64 [b], %ticket;
        call.uni (c), flush, (a, b);
        ld.param.b32 %status, [c];
    }
    // How many of each outcome.
    mul.wide.u32 %v, %status, 4;
    add.u64 %statuses, %statuses, %v;
    red.relaxed.gpu.global.add.u32 [%statuses], 1;
    ret;
}";

/// A stream of the program's, for good, and its handle.
fn stream(device: u16) -> (u64, CudaStream) {
    let mut stream = 0;
    on(device, || api::ok(api::cuStreamCreate(&mut stream, 1)));
    let raw = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: it is never destroyed, and its context is retained for good.
    (stream, unsafe { CudaStream::from_raw(raw, device) })
}

/// With the primary context of a device, which is retained for good.
fn on(device: u16, work: impl FnOnce()) {
    let (mut context, mut popped) = (0, 0);
    api::ok(api::cuInit(0));
    api::ok(api::cuDevicePrimaryCtxRetain(
        &mut context,
        i32::from(device),
    ));
    api::ok(api::cuCtxPushCurrent_v2(context));
    work();
    api::ok(api::cuCtxPopCurrent_v2(&mut popped));
}

/// Launches one of the kernels.
fn launch(device: u16, stream: u64, name: &str, (blocks, threads): (u32, u32), arguments: &[u64]) {
    let text = [
        ".version 7.0\n.target sm_70\n.address_size 64\n",
        DevicePort::FUNCTIONS,
        KERNELS,
    ];
    let text = CString::new(text.concat()).expect("no zero");
    let name = CString::new(name).expect("no zero");
    on(device, || {
        let (mut module, mut function) = (0, 0);
        api::ok(api::cuModuleLoadData(&mut module, text.as_ptr()));
        api::ok(api::cuModuleGetFunction(
            &mut function,
            module,
            name.as_ptr(),
        ));
        let pointers = Vec::from_iter(
            arguments
                .iter()
                .map(|argument| std::ptr::from_ref(argument).cast_mut().cast()),
        );
        api::ok(api::cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            pointers.as_ptr(),
            std::ptr::null(),
        ));
    });
}

fn context(carrier: Carrier) -> Context {
    let library = CudaCopy::with_library(emulated::cuda());
    let builder = carrier.builder().accelerator(Arc::new(library));
    builder.build().expect("a context")
}

/// Registered memory, and where it begins.
async fn memory(rank: &Communicator, kind: MemoryType, bytes: Vec<u8>) -> (RegisteredMemory, u64) {
    let room = rank.worker().context().allocate_on(kind, bytes.len()).await;
    let filled = rank.worker().copy(bytes, room.expect("memory")).await;
    let filled: BufferMut = filled.expect("filled");
    let at = filled.device_range().map_or(0, |range| range.start());
    let memory = rank.register(filled, BOTH).await;
    (memory.expect("registered"), at)
}

/// A rank with a channel by a proxy, and a port for its kernels.
struct End {
    rank: Communicator,
    memory: RegisteredMemory,
    at: u64,
    device: u16,
    stream: (u64, CudaStream),
    channel: PortChannel,
    port: DevicePort,
    _proxy: ProxyService,
}

impl End {
    async fn new(
        rank: &Communicator,
        channel: &MemoryChannel,
        (memory, at): (RegisteredMemory, u64),
        device: u16,
    ) -> Self {
        let proxy = ProxyService::new().expect("a proxy");
        let (semaphore, remote) = (channel.semaphore().clone(), channel.remote().clone());
        let channel = proxy.channel(semaphore, remote, memory.clone());
        let stream = stream(device);
        let port = proxy.device_port(rank.worker().context(), stream.1).await;
        Self {
            rank: rank.clone(),
            memory,
            at,
            device,
            stream,
            channel: channel.expect("a channel"),
            port: port.expect("a port"),
            _proxy: proxy,
        }
    }

    /// Takes a part in the conversation.
    async fn talk(&self, role: u64) {
        let handle = self.channel.on_device_with_signals(&self.port).await;
        let handle = handle.expect("a handle");
        let arguments = [handle.address, self.at, role, ROUNDS, PART as u64];
        launch(self.device, self.stream.0, "talk", (1, THREADS), &arguments);
        self.port.expect();
    }

    async fn over(&self) {
        let reached = self.rank.worker().reached(self.stream.1).await;
        let wrong = content(&self.rank, &self.memory).await[WRONG..][..8].to_vec();
        assert_eq!(wrong, [0; 8], "a kernel found something wrong");
        reached.expect("over");
    }
}

#[track_caller]
fn no_misuse() {
    assert_eq!(control("misuses"), "", "the driver was misused");
}

/// What the kernel of the first end puts in a turn.
fn said(turn: u64) -> Vec<u8> {
    let words = (0..u64::from(THREADS)).map(|thread| turn * 1_000_003 + thread * 8);
    words.flat_map(u64::to_le_bytes).collect()
}

/// A kernel at one end, a program at the other, whose memory is of the host or of a device.
#[test]
fn a_kernel_and_a_host() {
    for carrier in [
        Carrier::Shm,
        Carrier::ShmWithoutCma,
        Carrier::Tcp,
        Carrier::RcVerbs,
    ] {
        for kind in [MemoryType::Host, MemoryType::Cuda(1)] {
            eprintln!("{carrier:?} {kind:?}");
            run(async move {
                let ranks = carrier.ranks_of(context(carrier)).await;
                let one = memory(&ranks[0], MemoryType::Cuda(0), vec![0; LENGTH]).await;
                let (two, _) = memory(&ranks[1], kind, vec![0; LENGTH]).await;
                let [here, there] = channels(&ranks, carrier.peers(), [&one.0, &two]).await;
                let end = End::new(&ranks[0], &here, one, 0).await;
                end.talk(0).await;
                for turn in (0..2 * ROUNDS).step_by(2) {
                    there.wait().await.expect("signalled");
                    let found = content(&ranks[1], &two).await;
                    assert_eq!(found[INBOX..][..said(0).len()], said(turn), "turn {turn}");
                    // The answer, by the host.
                    let answer = ranks[1]
                        .worker()
                        .copy(said(turn + 1), vec![0; said(0).len()]);
                    let answer: Vec<u8> = answer.await.expect("copied");
                    let part = there.remote().part(INBOX, answer.len()).expect("within");
                    let put = there.remote().endpoint().put(answer, part);
                    put.signal(there.semaphore().remote()).await.expect("put");
                }
                end.over().await;
                assert_eq!(end.port.done(), ROUNDS);
                end.port.check().expect("all went well");
                no_misuse();
            });
        }
    }
}

/// Kernels at both ends.
#[test]
fn two_kernels() {
    for carrier in [Carrier::Shm, Carrier::Tcp, Carrier::RcVerbs] {
        eprintln!("{carrier:?}");
        run(async move {
            let ranks = carrier.ranks_of(context(carrier)).await;
            let one = memory(&ranks[0], MemoryType::Cuda(0), vec![0; LENGTH]).await;
            let two = memory(&ranks[1], MemoryType::Cuda(1), vec![0; LENGTH]).await;
            let [here, there] = channels(&ranks, carrier.peers(), [&one.0, &two.0]).await;
            let ends = [
                End::new(&ranks[0], &here, one, 0).await,
                End::new(&ranks[1], &there, two, 1).await,
            ];
            ends[1].talk(1).await;
            ends[0].talk(0).await;
            tokio::join!(ends[0].over(), ends[1].over());
            no_misuse();
        });
    }
}

/// More triggers than the ring has slots, of many threads at a time.
#[test]
fn many_threads() {
    run(async {
        let carrier = Carrier::Shm;
        let ranks = carrier.ranks_of(context(carrier)).await;
        let one = memory(&ranks[0], MemoryType::Cuda(0), pattern(LENGTH, 1)).await;
        let (two, _) = memory(&ranks[1], MemoryType::Host, pattern(LENGTH, 2)).await;
        let statuses = memory(&ranks[0], MemoryType::Cuda(0), vec![0; 64]).await;
        let [here, _there] = channels(&ranks, carrier.peers(), [&one.0, &two]).await;
        let end = End::new(&ranks[0], &here, one, 0).await;
        let handle = end.channel.on_device(&end.port).await.expect("a handle");
        let arguments = [handle.address, end.at, statuses.1];
        let (blocks, threads) = (8, 192);
        launch(0, end.stream.0, "ask", (blocks, threads), &arguments);
        end.port.expect();
        let reached = end.rank.worker().reached(end.stream.1).await;
        reached.expect("over");
        let asked = u64::from(blocks * threads);
        assert_eq!(end.port.done(), asked);
        assert!(asked > 2 * 512);
        let found = content(&ranks[0], &statuses.0).await;
        assert_eq!(found[..4], (asked as u32).to_le_bytes());
        let words = (0..asked).flat_map(|word| (word * 8 * 977).to_le_bytes());
        let expected = Vec::from_iter(words);
        let found = content(&ranks[1], &two).await;
        assert!(found[..expected.len()] == expected);
        assert!(found[expected.len()..] == pattern(LENGTH, 2)[expected.len()..]);
        no_misuse();
    });
}

#[test]
fn what_is_wrong_is_told() {
    run(async {
        let carrier = Carrier::Shm;
        let ranks = carrier.ranks_of(context(carrier)).await;
        // The threads ask for twice as much as there is at the peer.
        let one = memory(&ranks[0], MemoryType::Cuda(0), pattern(1024, 1)).await;
        let (two, _) = memory(&ranks[1], MemoryType::Host, pattern(512, 2)).await;
        let statuses = memory(&ranks[0], MemoryType::Cuda(0), vec![0; 64]).await;
        let [here, _there] = channels(&ranks, carrier.peers(), [&one.0, &two]).await;
        let end = End::new(&ranks[0], &here, one, 0).await;
        let handle = end.channel.on_device(&end.port).await.expect("a handle");
        let arguments = [handle.address, end.at, statuses.1];
        launch(0, end.stream.0, "ask", (1, 128), &arguments);
        let reached = end.rank.worker().reached(end.stream.1).await;
        reached.expect("over");
        let found = content(&ranks[0], &statuses.0).await;
        let count = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| found[at + byte]));
        assert_eq!((count(0) + count(8), count(4)), (128, 0));
        assert!(count(8) >= 64, "{} were told", count(8));
        let error = end.port.check().expect_err("outside");
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        end.port.check().expect("told once");
        // It goes on after that, and the host's own triggers are of the same channel.
        end.channel.flush().await.expect("nothing left");
        launch(0, end.stream.0, "ask", (1, 64), &arguments);
        end.port.expect();
        let reached = end.rank.worker().reached(end.stream.1).await;
        reached.expect("over");
        end.port.check().expect("all went well");

        let other = ProxyService::new().expect("a proxy");
        let other = other
            .device_port(ranks[0].worker().context(), end.stream.1)
            .await;
        let other = other.expect("a port");
        let refused = end.channel.on_device(&other).await.expect_err("another's");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        for _ in 1..60 {
            end.channel.on_device(&end.port).await.expect("room");
        }
        let refused = end.channel.on_device(&end.port).await.expect_err("full");
        assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
        let proxy = ProxyService::new().expect("a proxy");
        let without = Carrier::Shm.builder().build().expect("a context");
        let refused = proxy.device_port(&without, end.stream.1).await;
        let refused = refused.expect_err("no CUDA");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        no_misuse();
    });
}

/// How many ranges of the driver's pinned memory there are.
fn pinned_ranges() -> String {
    let live = control("live");
    let line = live.lines().find(|line| line.starts_with("pinned "));
    line.expect("in the list").to_owned()
}

/// A port that is dropped while its kernel goes on: what the kernel asks for is done, and its memory is kept for so long.
#[test]
fn a_port_that_is_dropped() {
    if child("apart").is_some() {
        run(async {
            let carrier = Carrier::Shm;
            let ranks = carrier.ranks_of(context(carrier)).await;
            let one = memory(&ranks[0], MemoryType::Cuda(0), pattern(LENGTH, 1)).await;
            let (two, _) = memory(&ranks[1], MemoryType::Host, pattern(LENGTH, 2)).await;
            let statuses = memory(&ranks[0], MemoryType::Cuda(0), vec![0; 64]).await;
            let [here, _there] = channels(&ranks, carrier.peers(), [&one.0, &two]).await;
            let end = End::new(&ranks[0], &here, one, 0).await;
            let handle = end.channel.on_device(&end.port).await.expect("a handle");
            let pinned = pinned_ranges();
            control("hold 0");
            let arguments = [handle.address, end.at, statuses.1];
            launch(0, end.stream.0, "ask", (2, 64), &arguments);
            control("set free_waits 0");
            let (rank, stream, source) = (end.rank.clone(), end.stream.1, end.memory.clone());
            drop(end);
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(pinned_ranges(), pinned, "kept for the kernel");
            control("release 0");
            rank.worker().reached(stream).await.expect("over");
            let found = content(&rank, &statuses.0).await;
            assert_eq!(found[..4], 128_u32.to_le_bytes());
            let words = (0..128_u64).flat_map(|word| (word * 8 * 977).to_le_bytes());
            assert!(content(&ranks[1], &two).await[..1024] == Vec::from_iter(words));
            // Then it goes.
            until("the end of the ring", || pinned_ranges() != pinned).await;
            drop(source);
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// One end of a conversation of two processes' kernels.
async fn end_of(bootstrap: TcpBootstrap, device: u16) {
    let worker = Worker::new(&context(Carrier::Shm)).expect("a worker");
    let rank = Communicator::new(Arc::new(bootstrap), &worker).await;
    let rank = rank.expect("a communicator");
    let (own, peer) = (rank.rank(), 1 - rank.rank());
    let memory = memory(&rank, MemoryType::Cuda(device), vec![0; LENGTH]).await;
    let channel = MemoryChannel::connect(&rank, peer, 1, &memory.0).await;
    let channel = channel.expect("a channel");
    let here = MemoryType::Cuda(device);
    let there = channel.remote().memory_type();
    let explained = (channel.remote().endpoint()).explain(Operation::Put, here, there, PART);
    let explained = explained.to_string();
    let by_ipc = "opens the memory of the other";
    assert!(explained.contains(by_ipc), "{explained}");
    let end = End::new(&rank, &channel, memory, device).await;
    let staged = rank.worker().metrics().staged;
    end.talk(own as u64).await;
    rank.worker().reached(end.stream.1).await.expect("over");
    assert_eq!(rank.worker().metrics().staged, staged, "no way by the host");
    end.over().await;
    rank.barrier().await.expect("both");
    no_misuse();
}

#[test]
fn between_processes() {
    let options = BootstrapOptions::new().deadline(Duration::from_secs(30));
    if let Some(mut parent) = child("other") {
        run(async move {
            let id: UniqueId = parent.hear().await.parse().expect("an id");
            let bootstrap = TcpBootstrap::join(id, 1, 2, &options).await;
            end_of(bootstrap.expect("a group"), 1).await;
        });
        return;
    }
    run(async move {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
        let id = root.unique_id().to_string();
        let mut child = Child::start(this_test!(), "other", &[]);
        child.say(id);
        let bootstrap = root.join(2, &options).await.expect("a group");
        end_of(bootstrap, 0).await;
        child.finish();
    });
}
