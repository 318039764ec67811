//! T21: kernels of device channels: compiled by the driver, tried, and used between two ranks with a stream each.

use std::{sync::Arc, time::Instant};

use wharf::{
    Access, BufferMut, Progress, Worker,
    channel::{
        Communicator, DeviceChannel, MemoryChannel, PacketWidth, RegisteredMemory,
        bootstrap::{Bootstrap, MemoryBootstrap},
    },
};

use crate::{
    device::{self, Current, DEVICE, MIB, pattern, runtime},
    suite::{self, Case, Verdict},
    support::{LIMIT, watchdog},
};

/// Looks that take longer than any of this.
const LOOKS: u64 = 50_000_000;
const AREA: usize = 1 << 16;

/// One end.
struct Rank {
    communicator: Communicator,
    memory: RegisteredMemory,
    channel: DeviceChannel,
}

impl Rank {
    async fn new(
        bootstrap: Arc<dyn Bootstrap>,
        worker: Worker,
        length: usize,
        stream: u64,
    ) -> Self {
        let communicator = Communicator::new(bootstrap, &worker).await;
        let communicator = communicator.expect("a communicator");
        let own = communicator.rank();
        let room = worker.context().allocate_on(DEVICE, length).await;
        let bytes = pattern(own as u64, length);
        let filled: BufferMut = worker
            .copy(bytes, room.expect("memory"))
            .await
            .expect("filled");
        let memory = communicator.register(filled, Access::READ | Access::WRITE);
        let memory = memory.await.expect("registered");
        let channel = MemoryChannel::connect(&communicator, 1 - own, 1, &memory).await;
        let channel = channel.expect("a channel");
        let stream = device::handle(stream);
        let start = Instant::now();
        let channel = DeviceChannel::connect(&channel, &communicator, 2, stream, AREA).await;
        let made = start.elapsed();
        suite::say(&format!("T21: a device channel was made in {made:?}"));
        Self {
            communicator,
            memory,
            channel: channel.expect("a channel"),
        }
    }

    async fn content(&self, at: usize, length: usize) -> Vec<u8> {
        let worker = self.communicator.worker();
        self.memory
            .copy_out(worker, at, length)
            .await
            .expect("read")
    }
}

pub(crate) fn kernels(case: &mut Case) -> Verdict {
    let current = Current::enter();
    let streams = [current.stream(), current.stream()];
    let length = case.pick(256 * MIB, 4 * MIB);
    runtime().block_on(watchdog(LIMIT, async {
        let context = device::context(Progress::default());
        let group = MemoryBootstrap::group(2).expect("a group");
        let ends = group.into_iter().zip(streams).map(|(bootstrap, stream)| {
            let worker = Worker::new(&context).expect("a worker");
            Rank::new(Arc::new(bootstrap), worker, length, stream)
        });
        let ends = futures::future::join_all(ends).await;
        let [one, two] = &ends[..] else {
            panic!("two ranks");
        };
        if let Some(reason) = one.channel.reason() {
            case.without("kernels", reason);
            return;
        }
        case.note("how", one.channel.explain());
        let half = length / 2;
        // Every alignment and a few lengths, to where the content is known.
        for (at, bytes) in [(0, 1), (1, 4096), (3, 70_001), (16, 100_000), (7, 33)] {
            for from in [half, half + 1, half + 16] {
                drop(
                    one.channel
                        .put_with_signal(at, from, bytes)
                        .expect("enqueued"),
                );
                let wait = two.channel.wait(LOOKS).expect("enqueued");
                wait.await.expect("signalled");
                let (found, wanted) =
                    (two.content(at, bytes).await, one.content(from, bytes).await);
                assert!(found == wanted, "{bytes} bytes from {from} to {at}");
            }
        }
        let mut flag = 0;
        for width in [PacketWidth::Eight, PacketWidth::Sixteen] {
            for bytes in [1, 4, 7, 8, 9, 1000, 16_381] {
                flag += 1;
                let put = one.channel.put_packets(0, half + 5, bytes, width, flag);
                drop(put.expect("enqueued"));
                let got = two.channel.unpack_packets(0, 3, bytes, width, flag, LOOKS);
                got.expect("enqueued").await.expect("unpacked");
                let wanted = one.content(half + 5, bytes).await;
                assert!(
                    two.content(3, bytes).await == wanted,
                    "{bytes} bytes in packets"
                );
            }
        }
        let error = two.channel.wait(1000).expect("enqueued").await;
        let error = error.expect_err("nothing was signalled");
        assert_eq!(error.kind(), wharf::ErrorKind::DeadlineExceeded, "{error}");

        // A round trip of signals: both streams are filled first.
        let rounds = 50;
        let start = Instant::now();
        for _ in 0..rounds {
            drop(one.channel.signal().expect("enqueued"));
            drop(two.channel.wait(LOOKS).expect("enqueued"));
            drop(two.channel.signal().expect("enqueued"));
            drop(one.channel.wait(LOOKS).expect("enqueued"));
        }
        one.channel.signal().expect("enqueued").await.expect("done");
        let took = start.elapsed().as_nanos() as f64 / f64::from(rounds);
        case.figure("round trip of signals, launches and all", took, "ns");
        two.channel
            .wait(LOOKS)
            .expect("enqueued")
            .await
            .expect("signalled");
        for bytes in [1 << 10, MIB, half] {
            let rounds = case.pick(50, 2);
            let start = Instant::now();
            for _ in 1..rounds {
                drop(one.channel.put(0, half, bytes).expect("enqueued"));
            }
            let last = one.channel.put(0, half, bytes).expect("enqueued");
            last.await.expect("put");
            let rate = (bytes * rounds) as f64 / start.elapsed().as_secs_f64() / 1e9;
            case.figure(
                format!("put of {bytes} bytes within the device"),
                rate,
                "GB/s",
            );
        }
        let (found, wanted) = (two.content(0, half).await, one.content(half, half).await);
        assert!(found == wanted, "the long put");
    }));
    Verdict::Ran
}
