//! Device channels, on the emulated driver, which runs the kernels from their text on a weak memory: how they are loaded, tried, launched and ordered, and
//! what becomes of that. What each order in the text is for shows `tests/emulated/ptx`; that a compiler takes it, and a device, `.ci/run` and `cuda_hardware`.
//!
//! # Safety
//! Streams are never destroyed, and channels end before the process.
#![allow(unsafe_code)]

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use wharf::{
    BufferMut, Context, ErrorKind, MemoryType, Worker,
    channel::{
        Communicator, DeviceChannel, DeviceChannelHandle, MemoryChannel, PacketWidth,
        RegisteredMemory,
        bootstrap::{
            Bootstrap, BootstrapOptions, MemoryBootstrap, TcpBootstrap, TcpRoot, UniqueId,
        },
    },
    transport::{
        Accelerator, Export,
        cuda::{CudaCopy, CudaStream},
    },
};

use crate::{
    api,
    group::{BOTH, Carrier, channels, content, pattern, run},
    support::{Child, at_rest, child, emulated, emulated::control, this_test},
};

const LENGTH: usize = 200_000;
const AREA: usize = 1 << 16;
/// More than any test takes.
const LOOKS: u64 = 20_000_000;

/// A stream of the program's, for good.
fn stream(device: u16) -> CudaStream {
    let (mut context, mut stream, mut popped) = (0, 0, 0);
    api::ok(api::cuInit(0));
    api::ok(api::cuDevicePrimaryCtxRetain(
        &mut context,
        i32::from(device),
    ));
    api::ok(api::cuCtxPushCurrent_v2(context));
    api::ok(api::cuStreamCreate(&mut stream, 1));
    api::ok(api::cuCtxPopCurrent_v2(&mut popped));
    let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: it is never destroyed, and its context is retained for good.
    unsafe { CudaStream::from_raw(stream, device) }
}

fn context(carrier: Carrier) -> Context {
    let library = CudaCopy::with_library(emulated::cuda());
    let builder = carrier.builder().accelerator(Arc::new(library));
    builder.build().expect("a context")
}

async fn memory(rank: &Communicator, kind: MemoryType, bytes: Vec<u8>) -> RegisteredMemory {
    let room = rank.worker().context().allocate_on(kind, bytes.len()).await;
    let filled = rank.worker().copy(bytes, room.expect("memory")).await;
    let filled: BufferMut = filled.expect("filled");
    rank.register(filled, BOTH).await.expect("registered")
}

/// Two ranks of this process with a device channel between them.
struct Pair {
    ranks: [Communicator; 2],
    memories: [RegisteredMemory; 2],
    channels: [DeviceChannel; 2],
}

impl Pair {
    async fn new(carrier: Carrier, devices: [u16; 2]) -> Self {
        Self::of(carrier, devices.map(MemoryType::Cuda), devices).await
    }

    async fn of(carrier: Carrier, kinds: [MemoryType; 2], devices: [u16; 2]) -> Self {
        Self::over(carrier, kinds, devices).await.0
    }

    /// With the memory channels that they are made of.
    async fn over(
        carrier: Carrier,
        kinds: [MemoryType; 2],
        devices: [u16; 2],
    ) -> (Self, [MemoryChannel; 2]) {
        let ranks = carrier.ranks_of(context(carrier)).await;
        let memories = [
            memory(&ranks[0], kinds[0], pattern(LENGTH, 1)).await,
            memory(&ranks[1], kinds[1], pattern(LENGTH, 2)).await,
        ];
        let pair = channels(&ranks, carrier.peers(), [&memories[0], &memories[1]]).await;
        let (one, two) = tokio::join!(
            DeviceChannel::connect(&pair[0], &ranks[0], 9, stream(devices[0]), AREA),
            DeviceChannel::connect(&pair[1], &ranks[1], 9, stream(devices[1]), AREA),
        );
        let made = Self {
            ranks,
            memories,
            channels: [one.expect("a channel"), two.expect("a channel")],
        };
        (made, pair)
    }

    async fn content(&self, rank: usize) -> Vec<u8> {
        content(&self.ranks[rank], &self.memories[rank]).await
    }
}

#[track_caller]
fn no_misuse() {
    assert_eq!(control("misuses"), "", "the driver was misused");
}

/// Bytes of every size and alignment, each way, with and without signals; then packets. Holds for the device and for the host.
async fn everything(pair: &Pair) {
    let [here, there] = &pair.channels;
    let mut expected = pair.content(1).await;
    let source = pair.content(0).await;
    for (round, length) in [0, 1, 7, 16, 64, 4096, 33_001, 80_000]
        .into_iter()
        .enumerate()
    {
        for (to, from) in [(0, 100_000), (round, 100_000 + round), (3, 100_016)] {
            let what = format!("{length} bytes from {from} to {to}");
            if round % 2 == 0 {
                drop(here.put_with_signal(to, from, length).expect(&what));
            } else {
                drop(here.put(to, from, length).expect(&what));
                drop(here.signal().expect(&what));
            }
            there.wait(LOOKS).expect("enqueued").await.expect(&what);
            expected[to..to + length].copy_from_slice(&source[from..from + length]);
            assert!(pair.content(1).await == expected, "{what}");
        }
    }
    let mut flag = 0;
    for width in [PacketWidth::Eight, PacketWidth::Sixteen] {
        for length in (0..20).chain([1000, 16_381]) {
            flag += 1;
            let (at, to, from) = (
                width.bytes() * (length % 3),
                5 + length,
                100_000 + length % 5,
            );
            let put = here.put_packets(at, from, length, width, flag);
            put.expect("enqueued").await.expect("put");
            let got = there.unpack_packets(at, to, length, width, flag, LOOKS);
            got.expect("enqueued").await.expect("unpacked");
            expected[to..to + length].copy_from_slice(&source[from..from + length]);
            let what = format!("{length} bytes in packets of {width:?}");
            assert!(pair.content(1).await == expected, "{what}");
        }
    }
    // Back, many signals before the first wait.
    for _ in 0..50 {
        drop(there.signal().expect("enqueued"));
    }
    for _ in 0..50 {
        here.wait(LOOKS)
            .expect("enqueued")
            .await
            .expect("signalled");
    }
    let error = here.wait(2000).expect("enqueued").await;
    let error = error.expect_err("no signal is left");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    let error = here.unpack_packets(0, 0, 64, PacketWidth::Eight, 9999, 2000);
    let error = error.expect("enqueued").await.expect_err("none were put");
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    // What was waited for in vain took nothing.
    let wait = here.wait(LOOKS).expect("enqueued");
    drop(there.signal().expect("enqueued"));
    wait.await.expect("signalled");
}

#[test]
fn put_signal_wait_and_packets() {
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        for devices in [[0, 0], [0, 1]] {
            run(async move {
                let pair = Pair::new(carrier, devices).await;
                for channel in &pair.channels {
                    let (reason, said) = (channel.reason(), channel.explain());
                    // What a peer over TCP says of where it lives may be a lie: its addresses are nobody's here.
                    let is_vouched_for = matches!(carrier, Carrier::Shm);
                    assert_eq!(reason.is_none(), is_vouched_for, "{reason:?}");
                    match is_vouched_for {
                        true => assert!(said.contains("atomic additions"), "{said}"),
                        false => assert!(said.contains("shared memory"), "{said}"),
                    }
                }
                everything(&pair).await;
                no_misuse();
            });
        }
    }
}

#[test]
fn a_peer_that_takes_no_atomics() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 1]).await;
            for channel in &pair.channels {
                let said = channel.explain();
                assert!(said.contains("no atomics"), "{said}");
                let handle = channel.device_handle().expect("of the device");
                assert_eq!(handle.flags & DeviceChannelHandle::ATOMICS, 0);
            }
            everything(&pair).await;
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[("EMULATED_CUDA_P2P_ATOMICS", "0")]).finish();
}

/// Without the driver's compiler both ends go from the host, and do not ask again.
#[test]
fn no_compiler() {
    if child("apart").is_some() {
        run(async {
            for _ in 0..2 {
                let pair = Pair::new(Carrier::Shm, [0, 0]).await;
                for channel in &pair.channels {
                    let reason = channel.reason().expect("no compiler");
                    assert!(reason.contains("JIT_COMPILER_NOT_FOUND"), "{reason}");
                    assert!(channel.explain().contains(reason));
                    assert_eq!(channel.device_handle(), None);
                }
                everything(&pair).await;
            }
            // Both ends may ask at the same time.
            let asked: u64 = control("count cuModuleLoadData").parse().expect("a number");
            assert!((1..=2).contains(&asked), "{asked} times");
            assert_eq!(control("count cuLaunchKernel"), "0");
        });
        return;
    }
    let fault = [("EMULATED_CUDA_FAULTS", "cuModuleLoadData@1+=221")];
    Child::start(this_test!(), "apart", &fault).finish();
}

/// Kernels that do something else than they should are not used.
#[test]
fn kernels_that_fail_their_trial() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 0]).await;
            let reason = pair.channels[0].reason().expect("refused");
            assert!(reason.contains("were tried"), "{reason}");
            everything(&pair).await;
        });
        return;
    }
    // The third launch, a signal, says that it went well and does nothing.
    let fault = [(
        "EMULATED_CUDA_FAULTS",
        "cuLaunchKernel@3=skip cuLaunchKernel@13=skip",
    )];
    Child::start(this_test!(), "apart", &fault).finish();
}

#[test]
fn memory_that_the_device_does_not_serve() {
    for (kinds, word) in [
        ([MemoryType::Host, MemoryType::Cuda(0)], "Host"),
        ([MemoryType::Cuda(1), MemoryType::Cuda(0)], "device 0"),
    ] {
        run(async move {
            let (pair, under) = Pair::over(Carrier::Shm, kinds, [0, 0]).await;
            let reasons = pair.channels.each_ref().map(DeviceChannel::reason);
            let [Some(one), Some(two)] = reasons else {
                panic!("{reasons:?}");
            };
            assert!(one.contains(word), "{one}");
            assert!(two.contains(word), "{two}");
            everything(&pair).await;
            // Its signals are its own, and not those of the memory channel.
            let [here, there] = &pair.channels;
            under[0].signal().await.expect("signalled");
            let vain = there.wait(1000).expect("enqueued").await;
            assert_eq!(
                vain.expect_err("another's").kind(),
                ErrorKind::DeadlineExceeded
            );
            here.signal().expect("enqueued").await.expect("signalled");
            there.wait(LOOKS).expect("enqueued").await.expect("its own");
        });
    }
}

#[test]
fn what_is_refused() {
    run(async {
        let pair = Pair::new(Carrier::Shm, [0, 0]).await;
        let here = &pair.channels[0];
        let kind = |result: wharf::Result<wharf::channel::Enqueued>| {
            result.map(drop).expect_err("refused").kind()
        };
        let (eight, sixteen) = (PacketWidth::Eight, PacketWidth::Sixteen);
        for bad in [
            here.put(LENGTH, 0, 1),
            here.put(0, LENGTH - 1, 2),
            here.put_with_signal(usize::MAX, 0, 2),
            here.put_packets(AREA, 0, 1, eight, 1),
            here.put_packets(0, LENGTH, 1, eight, 1),
            here.put_packets(0, 0, usize::MAX / 4, sixteen, 1),
            here.unpack_packets(AREA - 8, 0, 5, eight, 1, 1),
            here.unpack_packets(0, 0, LENGTH + 1, sixteen, 1, 1),
        ] {
            assert_eq!(kind(bad), ErrorKind::OutOfBounds);
        }
        for bad in [
            here.put_packets(0, 0, 1, eight, 0),
            here.put_packets(8, 0, 1, sixteen, 1),
            here.unpack_packets(4, 0, 1, eight, 1, 1),
            here.put_packets(0, 0, usize::MAX, eight, 1),
        ] {
            assert_eq!(kind(bad), ErrorKind::InvalidArgument);
        }
        let odd = DeviceChannel::connect(here.channel(), &pair.ranks[0], 4, stream(0), 8);
        assert_eq!(
            odd.await.expect_err("no multiple").kind(),
            ErrorKind::InvalidArgument
        );
        let handle = here.device_handle().expect("of the device");
        assert_eq!(handle.local_length, LENGTH as u64);
        assert_eq!(handle.packets_length, AREA as u64);
        assert_eq!(handle.flags, DeviceChannelHandle::ATOMICS);
        let other = pair.channels[1].device_handle().expect("of the device");
        assert_eq!(
            (handle.remote, handle.signals),
            (other.local, other.arrived)
        );
        assert_eq!(handle.remote_packets, other.packets);
        no_misuse();
    });
}

/// What is under way is bounded, and goes on when the channel is gone.
#[test]
fn the_window_and_the_end() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 1]).await;
            let source = pair.content(0).await;
            control("hold 0");
            let mut window = 0;
            let error = loop {
                match pair.channels[0].put(window, 100_000 + window, 1) {
                    Ok(enqueued) => drop(enqueued),
                    Err(error) => break error,
                }
                window += 1;
            };
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            assert_eq!(window, 256);
            let Pair {
                ranks,
                memories,
                channels,
            } = pair;
            let [one, two] = channels;
            drop(one);
            control("release 0");
            let target = loop {
                let target = content(&ranks[1], &memories[1]).await;
                if target[..window] == source[100_000..100_000 + window] {
                    break target;
                }
                tokio::task::yield_now().await;
            };
            assert!(target[window..] == pattern(LENGTH, 2)[window..]);
            drop(two);
            drop(memories);
            no_modules().await;
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// A device that is lost ends what is under way with an error, and what comes after.
#[test]
fn a_lost_device() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 1]).await;
            control("hold 0");
            let wait = pair.channels[0].wait(LOOKS).expect("enqueued");
            control("break 0 719");
            control("release 0");
            let error = wait.await.expect_err("lost");
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            let error = pair.channels[0].signal().map(drop).expect_err("lost");
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// A launch that the driver refuses is said at once, and leaves the channel in order.
#[test]
fn a_launch_that_fails() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 0]).await;
            control("fault cuLaunchKernel@1=2");
            let error = pair.channels[0].signal().map(drop).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            everything(&pair).await;
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// One rank of a group that is not as it should be: what it sends is altered, and last words that it is told may be lost.
struct Odd<B> {
    of: B,
    alter: Box<dyn Fn(Bytes) -> Bytes + Send + Sync>,
    is_deaf: bool,
}

impl<B> fmt::Debug for Odd<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Odd")
    }
}

#[async_trait]
impl<B: Bootstrap> Bootstrap for Odd<B> {
    fn rank(&self) -> usize {
        self.of.rank()
    }
    fn size(&self) -> usize {
        self.of.size()
    }
    fn deadline(&self) -> Duration {
        self.of.deadline()
    }
    async fn send_until(
        &self,
        to: usize,
        tag: u64,
        bytes: Bytes,
        deadline: Instant,
    ) -> wharf::Result<()> {
        self.of
            .send_until(to, tag, (self.alter)(bytes), deadline)
            .await
    }
    async fn receive_until(
        &self,
        from: usize,
        tag: u64,
        deadline: Instant,
    ) -> wharf::Result<Bytes> {
        let bytes = self.of.receive_until(from, tag, deadline).await?;
        if self.is_deaf && bytes.starts_with(b"WHSL") {
            std::future::pending().await
        }
        Ok(bytes)
    }
    async fn all_gather_until(&self, bytes: Bytes, deadline: Instant) -> wharf::Result<Vec<Bytes>> {
        self.of.all_gather_until(bytes, deadline).await
    }
}

/// Two ranks, the second behind a bootstrap of the test's, with memory on a device and a memory channel.
async fn beside(
    of: impl FnOnce(MemoryBootstrap) -> Arc<dyn Bootstrap>,
) -> ([Communicator; 2], [RegisteredMemory; 2], [MemoryChannel; 2]) {
    let context = context(Carrier::Shm);
    let group = MemoryBootstrap::group_with_deadline(2, Duration::from_secs(20));
    let [one, two]: [MemoryBootstrap; 2] = group.expect("a group").try_into().expect("two");
    let workers = [(); 2].map(|()| Worker::new(&context).expect("a worker"));
    let (one, two) = tokio::join!(
        Communicator::new(Arc::new(one), &workers[0]),
        Communicator::new(of(two), &workers[1]),
    );
    let ranks = [one.expect("a communicator"), two.expect("a communicator")];
    let kind = MemoryType::Cuda(0);
    let memories = [
        memory(&ranks[0], kind, pattern(LENGTH, 1)).await,
        memory(&ranks[1], kind, pattern(LENGTH, 2)).await,
    ];
    let channels = channels(&ranks, [1, 0], [&memories[0], &memories[1]]).await;
    (ranks, memories, channels)
}

/// Attempts that a rank gave up, alone, do not meet a later one of its peer's.
#[test]
fn an_attempt_that_was_given_up() {
    if child("apart").is_some() {
        run(async {
            let (ranks, memories, pair) = beside(|two| Arc::new(two)).await;
            for late in [0, 1, 0] {
                let early = 1 - late;
                let connect =
                    |rank| DeviceChannel::connect(&pair[rank], &ranks[rank], 9, stream(0), AREA);
                for _ in 0..2 {
                    let quiet = Duration::from_millis(200);
                    tokio::select! {
                        biased;
                        alone = connect(early) => panic!("{alone:?}, and nobody is there"),
                        _ = at_rest("what one does alone", quiet, || control("counts")) => {}
                    }
                }
                let (one, two) = tokio::join!(connect(0), connect(1));
                let pair = Pair {
                    ranks: ranks.clone(),
                    memories: memories.clone(),
                    channels: [one.expect("a channel"), two.expect("a channel")],
                };
                assert_eq!(pair.channels[late].reason(), None);
                let signal = pair.channels[late].signal().expect("enqueued");
                signal.await.expect("signalled");
                let wait = pair.channels[early].wait(100_000).expect("enqueued");
                wait.await.expect("this attempt's block");
                everything(&pair).await;
            }
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// A rank that gives up when its peer has already come through: what the peer's kernels write to is kept as long as the memory channel.
#[test]
fn an_attempt_that_has_succeeded_at_the_peer() {
    if child("apart").is_some() {
        run(async {
            let (ranks, memories, pair) = beside(|of| {
                let alter = Box::new(|bytes| bytes);
                let is_deaf = true;
                Arc::new(Odd { of, alter, is_deaf })
            })
            .await;
            let connect =
                |rank| DeviceChannel::connect(&pair[rank], &ranks[rank], 9, stream(0), AREA);
            let one = tokio::select! {
                one = connect(0) => one.expect("a channel"),
                two = connect(1) => panic!("{two:?} without a last word"),
            };
            assert_eq!(one.reason(), None);
            one.signal().expect("enqueued").await.expect("signalled");
            let put = one.put_with_signal(0, 0, LENGTH).expect("enqueued");
            put.await.expect("put");
            let put = one.put_packets(0, 0, 100, PacketWidth::Eight, 1);
            put.expect("enqueued").await.expect("put");
            assert_eq!(content(&ranks[1], &memories[1]).await, pattern(LENGTH, 1));
            no_misuse();
            drop((one, pair));
            no_modules().await;
            let [_, mut memory] = memories;
            while let Err(still) = memory.unregister().await {
                memory = still;
                tokio::task::yield_now().await;
            }
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

/// What is under way is let alone by who gives memory back, on a thread of its own: it has time to do it wrong.
async fn is_let_alone() {
    tokio::time::sleep(Duration::from_millis(300)).await;
    control("fault clear");
    no_misuse();
}

/// Channels end on threads of their own.
async fn no_modules() {
    while control("live")
        .lines()
        .any(|line| line.starts_with("modules ") && line != "modules 0")
    {
        tokio::task::yield_now().await;
    }
}

/// The end of a stream cannot be marked, or waited for: memory is kept for what is under way.
#[test]
fn an_end_that_cannot_be_seen() {
    // What fails, and whether it is found out in the end that all is over.
    let cases = [
        ("cuEventRecord@1+=2", true),
        ("cuEventCreate@1+=2", true),
        // As while the program captures a graph.
        ("cuStreamIsCapturing@1+=906", true),
        ("cuEventSynchronize@1+=2", false),
    ];
    if let Some(mut parent) = child("apart") {
        run(async move {
            let (fault, is_found_out) = cases[parent.hear().await.parse::<usize>().expect("one")];
            let Pair {
                ranks,
                memories: [memory, theirs],
                channels: [one, two],
            } = Pair::new(Carrier::Shm, [0, 1]).await;
            control("hold 0");
            drop(one.put(0, 0, LENGTH).expect("enqueued"));
            control(&format!("fault {fault}"));
            let before = control("count cuEventRecord");
            // Freeing does not wait by luck for what is under way.
            control("set free_waits 0");
            drop((one, memory));
            if fault.contains("Capturing") {
                assert_eq!(
                    control("count cuEventRecord"),
                    before,
                    "a part of the graph"
                );
            }
            is_let_alone().await;
            control("release 0");
            while content(&ranks[1], &theirs).await != pattern(LENGTH, 1) {
                tokio::task::yield_now().await;
            }
            drop((two, theirs));
            if is_found_out {
                no_modules().await;
            }
            no_misuse();
        });
        return;
    }
    for case in 0..cases.len() {
        let mut child = Child::start(this_test!(), "apart", &[]);
        child.say(case.to_string());
        child.finish();
    }
}

/// An operation that is in the stream, though its end could not be marked.
#[test]
fn an_operation_without_a_mark() {
    if child("apart").is_some() {
        run(async {
            let pair = Pair::new(Carrier::Shm, [0, 1]).await;
            for _ in 0..2 {
                control("hold 0");
                control("fault cuEventRecord@1=2");
                let error = pair.channels[0].wait(LOOKS).map(drop);
                assert_eq!(error.expect_err("no mark").kind(), ErrorKind::Exhausted);
                drop(pair.channels[1].signal().expect("enqueued"));
                control("release 0");
                everything(&pair).await;
            }
            control("hold 0");
            control("fault cuEventRecord@1+=2");
            let error = pair.channels[0].put(0, 0, LENGTH).map(drop);
            assert_eq!(error.expect_err("no mark").kind(), ErrorKind::Exhausted);
            let Pair {
                ranks: _ranks,
                memories: [memory, _theirs],
                channels: [one, _two],
            } = pair;
            control("set free_waits 0");
            drop((one, memory));
            is_let_alone().await;
            control("release 0");
            no_misuse();
        });
        return;
    }
    Child::start(this_test!(), "apart", &[]).finish();
}

fn options() -> BootstrapOptions {
    BootstrapOptions::new().deadline(Duration::from_secs(30))
}

/// One end, in a process of its own: ring and answer, then packets.
async fn talk(bootstrap: TcpBootstrap, device: u16, by_device: bool) {
    let worker = Worker::new(&context(Carrier::Shm)).expect("a worker");
    let rank = Communicator::new(Arc::new(bootstrap), &worker).await;
    let rank = rank.expect("a communicator");
    let (own, peer) = (rank.rank(), 1 - rank.rank());
    let memory = memory(&rank, MemoryType::Cuda(device), pattern(LENGTH, own)).await;
    let channel = MemoryChannel::connect(&rank, peer, 1, &memory).await;
    let channel = channel.expect("a channel");
    let channel = DeviceChannel::connect(&channel, &rank, 2, stream(device), AREA).await;
    let channel = channel.expect("a channel");
    assert_eq!(
        channel.reason().is_none(),
        by_device,
        "{}",
        channel.explain()
    );
    let half = LENGTH / 2;
    let mut expected = pattern(LENGTH, own);
    for round in 0..20 {
        let (at, length) = (round * 7, 20_000 + round);
        drop(
            channel
                .put_with_signal(half + at, at, length)
                .expect("enqueued"),
        );
        channel.wait(LOOKS).expect("enqueued").await.expect("put");
        let theirs = &pattern(LENGTH, peer)[at..at + length];
        expected[half + at..half + at + length].copy_from_slice(theirs);
        assert!(content(&rank, &memory).await == expected, "round {round}");
        rank.barrier().await.expect("both");
        let (flag, length) = (round as u32 + 1, 100 + round);
        let width = PacketWidth::Sixteen;
        drop(
            channel
                .put_packets(0, at, length, width, flag)
                .expect("enqueued"),
        );
        let got = channel.unpack_packets(0, half, length, width, flag, LOOKS);
        got.expect("enqueued").await.expect("unpacked");
        let theirs = &pattern(LENGTH, peer)[at..at + length];
        expected[half..half + length].copy_from_slice(theirs);
        assert!(content(&rank, &memory).await == expected, "round {round}");
        rank.barrier().await.expect("both");
    }
    rank.barrier().await.expect("both");
}

#[test]
fn between_processes() {
    if let Some(mut parent) = child("other") {
        run(async move {
            let id: UniqueId = parent.hear().await.parse().expect("an id");
            let bootstrap = TcpBootstrap::join(id, 1, 2, &options()).await;
            let by_device = std::env::var("EMULATED_CUDA_FAULTS").is_err();
            let device = u16::from(std::env::var("WHARFTEST_DEVICE").is_ok());
            talk(bootstrap.expect("a group"), device, by_device).await;
        });
        return;
    }
    for variables in [
        &[][..],
        &[("WHARFTEST_DEVICE", "1")],
        &[("EMULATED_CUDA_FAULTS", "cuModuleLoadData@1+=223")],
    ] {
        eprintln!("{variables:?}");
        run(async move {
            let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
            let id = root.unique_id().to_string();
            let mut child = Child::start(this_test!(), "other", variables);
            child.say(id);
            let bootstrap = root.join(2, &options()).await.expect("a group");
            let by_device = variables.iter().all(|(name, _)| !name.contains("FAULTS"));
            talk(bootstrap, 0, by_device).await;
            child.finish();
        });
    }
}

/// A message of a semaphore's ranks with another part going along, if one does.
fn with_along(offer: &Bytes, other: impl Fn(&[u8]) -> Vec<u8>) -> Bytes {
    const ALONG: u16 = 5;
    if !offer.starts_with(b"WHSO") {
        return offer.clone();
    }
    let mut fields = &offer[8..offer.len() - 4];
    let mut altered = offer[..8].to_vec();
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    while !fields.is_empty() {
        let (id, length) = (number(fields), usize::from(number(&fields[2..])));
        let body = match id {
            ALONG => other(&fields[4..4 + length]),
            _ => fields[4..4 + length].to_vec(),
        };
        altered.extend_from_slice(&id.to_le_bytes());
        altered.extend_from_slice(&(body.len() as u16).to_le_bytes());
        altered.extend_from_slice(&body);
        fields = &fields[4 + length..];
    }
    let length = altered.len() as u16 + 4;
    altered[6..8].copy_from_slice(&length.to_le_bytes());
    let sum = crc32fast::hash(&altered);
    altered.extend_from_slice(&sum.to_le_bytes());
    altered.into()
}

/// What a device channel's end says, with another way to its block.
fn with_block(message: &[u8], block: &[u8]) -> Vec<u8> {
    assert_eq!(message[0], 1, "it can");
    let mut at = 1;
    for _ in 0..2 {
        let length = u16::from_le_bytes([message[at], message[at + 1]]);
        at += 2 + usize::from(length);
    }
    let length = (block.len() as u16).to_le_bytes();
    [&message[..at], &length, block].concat()
}

/// One end, in a process of its own: both go from the host, and say so.
async fn crooked(bootstrap: impl Bootstrap + 'static, accelerator: Arc<CudaCopy>) {
    let context = Carrier::Shm.builder().accelerator(accelerator).build();
    let worker = Worker::new(&context.expect("a context")).expect("a worker");
    let rank = Communicator::new(Arc::new(bootstrap), &worker).await;
    let rank = rank.expect("a communicator");
    let memory = memory(&rank, MemoryType::Cuda(0), pattern(LENGTH, 1)).await;
    let channel = MemoryChannel::connect(&rank, 1 - rank.rank(), 1, &memory).await;
    let channel = channel.expect("a channel");
    let channel = DeviceChannel::connect(&channel, &rank, 2, stream(0), AREA).await;
    let channel = channel.expect("a channel");
    let reason = channel.reason().expect("from the host");
    assert!(reason.contains("not aligned"), "{reason}");
    let (signal, wait) = (channel.signal(), channel.wait(LOOKS));
    signal.expect("enqueued").await.expect("signalled");
    wait.expect("enqueued").await.expect("signalled");
    rank.barrier().await.expect("both");
    no_misuse();
}

/// A peer whose block of counters begins anywhere.
#[test]
fn a_block_that_is_not_aligned() {
    let accelerator = Arc::new(CudaCopy::with_library(emulated::cuda()));
    if let Some(mut parent) = child("other") {
        run(async move {
            // The counters, the packets, and a byte before them.
            let context = Carrier::Shm.builder().accelerator(accelerator.clone());
            let context = context.build().expect("a context");
            let room = context.allocate_on(MemoryType::Cuda(0), 512 + AREA + 1);
            let room = room.await.expect("memory");
            let range = room.device_range().expect("on the device");
            let export = accelerator.export(range.start() + 1, (512 + AREA) as u64);
            let Export::Descriptor(block) = export.expect("exported") else {
                panic!("no way to it");
            };
            let id: UniqueId = parent.hear().await.parse().expect("an id");
            let of = TcpBootstrap::join(id, 1, 2, &options()).await;
            // Offers of tag 2 carry what a device channel says; those before carry memory.
            let alter = move |bytes: Bytes| {
                with_along(&bytes, |along| match along.first() {
                    Some(1) => with_block(along, &block),
                    _ => along.to_vec(),
                })
            };
            let of = Odd {
                of: of.expect("a group"),
                alter: Box::new(alter),
                is_deaf: false,
            };
            crooked(of, accelerator).await;
        });
        return;
    }
    run(async move {
        let root = TcpRoot::bind("127.0.0.1:0").await.expect("a listener");
        let id = root.unique_id().to_string();
        let mut child = Child::start(this_test!(), "other", &[]);
        child.say(id);
        let bootstrap = root.join(2, &options()).await.expect("a group");
        crooked(bootstrap, accelerator).await;
        child.finish();
    });
}
