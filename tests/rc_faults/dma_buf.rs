//! Exposed device memory that network devices reach by themselves: memory of the emulated CUDA driver, whose dma-bufs the emulated devices take.

use wharf::{
    Access, Buffer, BufferMut, Context, ErrorKind, MemoryType, Operation, Region, RemoteRegion,
    Worker,
};

use crate::{
    bench::{Two, context, control, run},
    support::{LIMIT, emulated, pattern},
};

pub(crate) const CUDA: MemoryType = MemoryType::Cuda(0);
pub(crate) const BOTH: Access = Access::READ.union(Access::WRITE);
/// One inline, one in the link's memory, one piece, several.
pub(crate) const LENGTHS: [usize; 4] = [1, 200, 70_000, 3_000_000];

/// Writes and reads of the network devices, and which copies the CUDA driver was asked for.
pub(crate) fn counts() -> (usize, usize, String) {
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

pub(crate) fn bytes(length: usize, seed: u8) -> Vec<u8> {
    pattern(u64::from(seed), length)
}

pub(crate) struct Bed {
    pub(crate) two: Two,
    /// Has a context of its own, which forbids nothing.
    filler: Worker,
}

impl Bed {
    /// Devices that take dma-bufs, or not, and whose writes are ordered for the owner, or not.
    pub(crate) async fn new(dma_bufs: bool, ordered: bool) -> Self {
        control(&format!("dmabuf {}", u8::from(dma_bufs)));
        let context = context("rc_verbs,cuda").expect("a context");
        let ordering = if ordered { 100 } else { 0 };
        emulated::control(&format!("set ordering {ordering}"));
        Self::in_context(context).await
    }

    pub(crate) async fn in_context(context: Context) -> Self {
        let two = Two::over_tcp(context).await.expect("connects");
        assert_eq!(two.here.transports(), ["rc_verbs"]);
        let other = Context::builder().transports("self,cuda");
        let other = other
            .and_then(|builder| builder.build())
            .expect("a context");
        let filler = Worker::new(&other).expect("a worker");
        Self { two, filler }
    }

    /// Device memory with these bytes, exposed.
    pub(crate) async fn exposed(&self, content: &[u8], access: Access) -> (Region, RemoteRegion) {
        let memory = self.filled(CUDA, content).await;
        let region = self.two.context.expose(memory, access).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("its range");
        let remote = self.two.here.import(&descriptor).expect("the peer's");
        (region, remote)
    }

    /// What is in the memory of a region, which ends.
    pub(crate) async fn content(&self, region: Region) -> Vec<u8> {
        self.look(region.unexpose().await.freeze()).await
    }

    /// Memory of this type with these bytes.
    pub(crate) async fn filled(&self, memory_type: MemoryType, content: &[u8]) -> BufferMut {
        let memory = self.two.context.allocate_on(memory_type, content.len());
        self.copied(content, memory.await.expect("memory")).await
    }

    /// The memory with these bytes in it.
    pub(crate) async fn copied(&self, content: &[u8], memory: BufferMut) -> BufferMut {
        let copied = self.filler.copy(content.to_vec(), memory);
        copied.await.expect("copied")
    }

    /// The bytes of a buffer, wherever they are.
    pub(crate) async fn look(&self, memory: Buffer) -> Vec<u8> {
        let room = vec![0xee; memory.len()];
        self.filler.copy(memory, room).await.expect("copied")
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

    pub(crate) async fn end(self) {
        let over = self.filler.shutdown(LIMIT).await;
        over.expect("in time");
        drop(self.filler);
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

/// Where the device sees what others write only once they have read it back, they do.
#[test]
fn writes_that_the_device_would_not_see_are_read_back() {
    alone!();
    run(async {
        let bed = Bed::new(true, false).await;
        control("late 1");
        let before = counts();
        bed.puts_and_gets(true).await;
        let reads = counts().1 - before.1;
        assert!(reads >= 2 * LENGTHS.len(), "{reads} reads of puts and gets");
        // Such as are over here at once are read back all the same.
        let (region, remote) = bed.exposed(&bytes(100, 1), BOTH).await;
        let puts = (0..16).map(|_| bed.two.here.put(bytes(100, 2), remote.clone()).local());
        let puts: Vec<_> = puts.map(|put| put.post().expect("posted")).collect();
        bed.two.here.flush().await.expect("flushed");
        for put in puts {
            put.await.expect("put");
        }
        assert!(bed.content(region).await == bytes(100, 2));
        assert_eq!(control("behind"), "0");
        // What may not be read cannot be read back: the device's engine writes it.
        let (region, remote) = bed.exposed(&bytes(5000, 1), Access::WRITE).await;
        let before = counts();
        let put = bed.two.here.put(bytes(5000, 2), remote).await;
        put.expect("put");
        assert_eq!((counts().0, counts().1), (before.0, before.1));
        assert!(bed.content(region).await == bytes(5000, 2));
        bed.end().await;
    });
}

/// What the test before would say of a put that nobody reads back.
#[test]
fn writes_that_nobody_reads_back_are_not_seen() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        control("late 1");
        let (region, remote) = bed.exposed(&bytes(5000, 1), BOTH).await;
        let put = bed.two.here.put(bytes(5000, 2), remote).await;
        put.expect("put");
        let found = bed.content(region).await;
        assert!(found[..2500] == bytes(5000, 2)[..2500]);
        assert!(found[2500..] == bytes(5000, 1)[2500..], "it came by itself");
        control("late 0");
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
