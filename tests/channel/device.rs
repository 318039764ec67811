//! Device channels, on the emulated driver. It knows the kernels by the digest of their text and does what they say: this shows how they are loaded, tried,
//! launched and ordered, and what becomes of that; the PTX itself is for an assembler and a device (`cuda_hardware`).
//!
//! # Safety
//! Streams are never destroyed, and channels end before the process.
#![allow(unsafe_code)]

use std::sync::Arc;

use wharf::{
    BufferMut, Context, ErrorKind, MemoryType, Worker,
    channel::{
        Communicator, DeviceChannel, DeviceChannelHandle, MemoryChannel, PacketWidth,
        RegisteredMemory,
        bootstrap::{BootstrapOptions, TcpBootstrap, TcpRoot, UniqueId},
    },
    transport::cuda::{CudaCopy, CudaStream},
};

use crate::{
    api,
    group::{BOTH, Carrier, channels, content, pattern, run},
    support::{Child, child, emulated, emulated::control, this_test},
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
        Self {
            ranks,
            memories,
            channels: [one.expect("a channel"), two.expect("a channel")],
        }
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
                    assert_eq!(channel.reason(), None);
                    let said = channel.explain();
                    assert!(said.contains("atomic additions"), "{said}");
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
            let pair = Pair::of(Carrier::Shm, kinds, [0, 0]).await;
            let reasons = pair.channels.each_ref().map(DeviceChannel::reason);
            let [Some(one), Some(two)] = reasons else {
                panic!("{reasons:?}");
            };
            assert!(one.contains(word), "{one}");
            assert!(two.contains(word), "{two}");
            everything(&pair).await;
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
            // The last of it is dropped on threads of their own.
            while control("live")
                .lines()
                .any(|line| line.starts_with("modules ") && line != "modules 0")
            {
                tokio::task::yield_now().await;
            }
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

fn options() -> BootstrapOptions {
    BootstrapOptions::new().deadline(std::time::Duration::from_secs(30))
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
        println!("{variables:?}");
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
