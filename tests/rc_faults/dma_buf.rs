//! Exposed device memory that network devices reach by themselves: memory of the emulated CUDA driver, whose dma-bufs the emulated devices take.

use wharf::{Access, BufferMut, ErrorKind, MemoryType, Operation, Region, RemoteRegion};

use crate::{
    bench::{Two, context, control, run},
    support::emulated,
};

const CUDA: MemoryType = MemoryType::Cuda(0);
const BOTH: Access = Access::READ.union(Access::WRITE);
/// One inline, one in the link's memory, one piece, several.
const LENGTHS: [usize; 4] = [1, 200, 70_000, 3_000_000];

/// Writes and reads of the network devices, and which copies the CUDA driver was asked for.
fn counts() -> (usize, usize, String) {
    let count = |what| control(what).parse().expect("a count");
    let calls = emulated::control("counts");
    let copies: Vec<&str> = calls
        .lines()
        .filter(|call| call.contains("cuMemcpy"))
        .collect();
    (
        count("count RDMA_WRITE"),
        count("count RDMA_READ"),
        copies.join(", "),
    )
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u8) ^ (at >> 8) as u8 ^ seed;
    (0..length).map(byte).collect()
}

struct Bed {
    two: Two,
}

impl Bed {
    /// Devices that take dma-bufs, or not, and whose writes are ordered for the owner, or not.
    async fn new(dma_bufs: bool, ordered: bool) -> Self {
        control(&format!("dmabuf {}", u8::from(dma_bufs)));
        let context = context("rc_verbs,cuda").expect("a context");
        let ordering = if ordered { 100 } else { 0 };
        emulated::control(&format!("set ordering {ordering}"));
        let two = Two::over_tcp(context).await.expect("connects");
        assert_eq!(two.here.transports(), ["rc_verbs"]);
        Self { two }
    }

    /// Device memory with these bytes, exposed.
    async fn exposed(&self, content: &[u8], access: Access) -> (Region, RemoteRegion) {
        let memory = self.two.context.allocate_on(CUDA, content.len()).await;
        let memory = self.two.workers[1].copy(content.to_vec(), memory.expect("memory"));
        let memory: BufferMut = memory.await.expect("copied");
        let region = self.two.context.expose(memory, access).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("its range");
        let remote = self.two.here.import(&descriptor).expect("the peer's");
        (region, remote)
    }

    /// What is in the memory of a region, which ends.
    async fn content(&self, region: Region) -> Vec<u8> {
        let memory = region.unexpose().await.freeze();
        let room = vec![0xee; memory.len()];
        self.two.workers[1]
            .copy(memory, room)
            .await
            .expect("copied")
    }

    /// Puts and gets of all lengths, with what they took of the network devices and of the driver.
    async fn puts_and_gets(&self, by_devices: bool) {
        for length in LENGTHS {
            let (old, new) = (bytes(length + 2, 1), bytes(length, 2));
            let (region, remote) = self.exposed(&old, BOTH).await;
            let before = counts();
            let got = self
                .two
                .here
                .get(remote.slice(1..=length), vec![0; length])
                .await;
            assert!(got.expect("got") == old[1..=length], "{length} bytes got");
            let put = self.two.here.put(new.clone(), remote.slice(1..));
            put.await.expect("put");
            let after = counts();
            if by_devices {
                assert!(
                    after.0 > before.0 && after.1 > before.1,
                    "{length} bytes: {after:?}"
                );
                assert_eq!(after.2, before.2, "the driver copies {length} bytes");
            } else {
                assert_eq!((after.0, after.1), (before.0, before.1), "{length} bytes");
            }
            let all = self.content(region).await;
            assert!(all[1..=length] == new, "{length} bytes put");
            assert_eq!((all[0], all[length + 1]), (old[0], old[length + 1]));
        }
    }

    async fn end(self) {
        self.two.end().await;
        assert_eq!(emulated::control("misuses"), "");
    }
}

#[test]
fn device_memory_is_written_and_read_by_network_devices() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        bed.puts_and_gets(true).await;
        for (operation, from, to) in [
            (Operation::Put, MemoryType::Host, CUDA),
            (Operation::Get, CUDA, MemoryType::Host),
        ] {
            let way = bed
                .two
                .here
                .explain(operation, from, to, 1 << 20)
                .to_string();
            let devices = "the initiator's devices, where the region was registered with the owner's: emu0 port 1, emu1 port 1; else staged";
            assert!(way.starts_with(devices), "{way}");
        }
        bed.end().await;
    });
}

#[test]
fn a_signal_comes_behind_its_put_into_device_memory() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        for length in LENGTHS {
            let (region, remote) = bed.exposed(&vec![0; length], BOTH).await;
            let counter = bed.two.workers[1].counter().await.expect("a counter");
            let far = bed
                .two
                .here
                .import(&counter.descriptor().expect("its range"));
            let far = far.expect("the peer's");
            let put = bed.two.here.put(bytes(length, 3), remote).signal(&far);
            let put = put.post().expect("posted");
            counter.wait(1).await.expect("raised");
            assert!(
                bed.content(region).await == bytes(length, 3),
                "{length} bytes"
            );
            put.await.expect("put");
        }
        bed.end().await;
    });
}

/// Where the device would not see what others write, they write nothing; they read.
#[test]
fn writes_that_the_device_would_not_see_go_by_its_engine() {
    alone!();
    run(async {
        let bed = Bed::new(true, false).await;
        bed.puts_and_gets(false).await;
        let (region, remote) = bed.exposed(&bytes(5000, 1), Access::READ).await;
        let before = counts();
        let got = bed.two.here.get(remote, vec![0; 5000]).await;
        assert!(got.expect("got") == bytes(5000, 1));
        let after = counts();
        assert_eq!((after.0, after.2), (before.0, before.2));
        assert!(after.1 > before.1, "read by a device");
        drop(region);
        bed.end().await;
    });
}

/// As soft-RoCE does.
#[test]
fn devices_that_take_no_dma_bufs_are_not_needed() {
    alone!();
    run(async {
        let bed = Bed::new(false, true).await;
        bed.puts_and_gets(false).await;
        bed.end().await;
    });
}

/// The registration ends before the memory is given back, and the dma-buf with it.
#[test]
fn device_memory_that_is_taken_back_is_touched_no_more() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        for length in LENGTHS {
            let (region, remote) = bed.exposed(&bytes(length, 1), BOTH).await;
            let memory = region.unexpose().await;
            let put = bed.two.here.put(bytes(length, 2), remote).await;
            assert_eq!(put.expect_err("gone").kind(), ErrorKind::StaleKey);
            let copied = bed.two.workers[1]
                .copy(memory.freeze(), vec![0; length])
                .await;
            assert!(
                copied.expect("copied") == bytes(length, 1),
                "{length} bytes"
            );
        }
        bed.end().await;
    });
}
