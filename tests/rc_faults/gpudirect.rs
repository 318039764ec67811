//! Device memory at either end that network devices read and write themselves, for messages, puts and gets: memory of the emulated CUDA driver,
//! whose dma-bufs the emulated devices take. What these write there comes late, wherever the driver says that it may.
//!
//! # Safety
//! The program's own memory is freed by the owner of the buffer that it is made, and nobody else has it.
#![allow(unsafe_code)]

use std::sync::Arc;

use wharf::{Buffer, MemoryType, Operation, Tag};

use crate::{
    bench::{control, run},
    dma_buf::{BOTH, Bed, CUDA, LENGTHS, bytes, counts},
    own,
    support::{emulated, until},
};

const HOST: MemoryType = MemoryType::Host;
/// The pairs of memories of which a device has some.
const PAIRS: [(MemoryType, MemoryType); 3] = [(HOST, CUDA), (CUDA, HOST), (CUDA, CUDA)];

fn flushes() -> usize {
    let calls = emulated::control("counts");
    let mut calls = calls.lines();
    let count = calls.find_map(|line| line.strip_prefix("cuFlushGPUDirectRDMAWrites "));
    count.map_or(0, |count| count.trim().parse().expect("a count"))
}

fn registrations() -> usize {
    let count = control("count ibv_reg_dmabuf_mr");
    count.parse().expect("a count")
}

impl Bed {
    /// A message, a put and a get of a length between two types of memory; every byte is looked at. What the network devices and the driver did of it.
    async fn all_verbs(&self, from: MemoryType, to: MemoryType, length: usize) -> Moved {
        let (old, new) = (bytes(length, 1), bytes(length, 2));
        let source = self.filled(from, &new).await.freeze();
        let place = self.filled(to, &old).await;
        let target = self.filled(to, &old).await;
        let region = self.two.context.expose(target, BOTH).await;
        let region = region.expect("exposed");
        let remote = self
            .two
            .here
            .import(&region.descriptor().expect("its range"));
        let remote = remote.expect("the peer's");
        let there = self.filled(from, &new).await;
        let far = self.two.context.expose(there, BOTH).await.expect("exposed");
        let far_remote = self.two.here.import(&far.descriptor().expect("its range"));
        let far_remote = far_remote.expect("the peer's");
        let room = self.filled(to, &old).await;

        let (before, staged) = (counts(), self.staged());
        let receive = self.two.workers[1].tag_recv(Tag(7), place);
        let send = self.two.here.tag_send(Tag(7), source.clone());
        let (sent, received) = tokio::join!(send, receive);
        sent.expect("sent");
        let put = self.two.here.put(source, remote).await;
        put.expect("put");
        let got = self.two.here.get(far_remote, room).await;
        let got = got.expect("got");
        let (after, staged) = (counts(), self.staged() - staged);

        let received = received.expect("received");
        assert_eq!(received.len, length);
        let found = self.look(received.buffer.freeze()).await;
        assert!(found == new, "{from} to {to}, {length} bytes: a message");
        let found = self.look(region.unexpose().await.freeze()).await;
        assert!(found == new, "{from} to {to}, {length} bytes: a put");
        let found = self.look(got.freeze()).await;
        assert!(found == new, "{from} to {to}, {length} bytes: a get");
        Moved {
            writes: after.0 - before.0,
            reads: after.1 - before.1,
            staged,
        }
    }

    /// Bytes that stopped in fragments.
    fn staged(&self) -> u64 {
        let workers = self.two.workers.iter();
        workers.map(|worker| worker.metrics().staged.bytes).sum()
    }
}

#[derive(Debug)]
struct Moved {
    writes: usize,
    reads: usize,
    staged: u64,
}

/// A message is read by its receiver, a put written and a get read: by devices, and no byte stops. But for a short message of the host's, which comes unasked.
async fn direct(bed: &Bed) {
    for (from, to) in PAIRS {
        for length in LENGTHS {
            let moved = bed.all_verbs(from, to, length).await;
            let unasked = usize::from(from == HOST && length <= 8192);
            assert!(
                moved.writes >= 1 && moved.reads >= 2 - unasked,
                "{from} to {to}, {length} bytes: {moved:?}"
            );
            assert!(
                moved.staged <= (unasked * length) as u64,
                "{from} to {to}, {length} bytes: {moved:?}"
            );
        }
    }
    assert_eq!(control("behind"), "0");
}

#[test]
fn network_devices_move_device_memory_at_either_end() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        direct(&bed).await;
        assert_eq!(flushes(), 0, "the driver says that it is ordered");
        for (operation, from, to, way) in [
            (
                Operation::TagSend,
                CUDA,
                CUDA,
                "rendezvous, the receiver's devices read the sender's memory",
            ),
            (
                Operation::TagSend,
                HOST,
                CUDA,
                "rendezvous, the receiver's devices read the sender's memory",
            ),
            (
                Operation::TagSend,
                CUDA,
                HOST,
                "rendezvous, the receiver's devices read the sender's memory",
            ),
            (Operation::Put, CUDA, CUDA, "the initiator's devices"),
            (Operation::Put, CUDA, HOST, "the initiator's devices"),
            (Operation::Get, CUDA, CUDA, "the initiator's devices"),
            (Operation::Get, HOST, CUDA, "the initiator's devices"),
        ] {
            let explained = bed.two.here.explain(operation, from, to, 1 << 20);
            assert!(explained.chosen.starts_with(way), "{explained}");
            assert!(!explained.is_staged, "{explained}");
        }
        bed.end().await;
    });
}

/// What is written into memory here is flushed by the driver, what is written there read back.
#[test]
fn writes_that_come_late_are_flushed() {
    alone!();
    run(async {
        let bed = Bed::new(true, false).await;
        control("late 1");
        direct(&bed).await;
        assert!(flushes() >= 2 * LENGTHS.len(), "{} flushes", flushes());
        bed.end().await;
    });
}

/// Of a driver without such a call: read back here too.
#[test]
fn what_no_driver_flushes_is_read_back() {
    alone!();
    run(async {
        let bed = Bed::new(true, false).await;
        emulated::control("set flush 0");
        control("late 1");
        direct(&bed).await;
        assert_eq!(flushes(), 0);
        bed.end().await;
    });
}

/// A flush that fails leaves nothing half done: the bytes come once more, by messages.
#[test]
fn a_flush_that_fails_loses_nothing() {
    alone!();
    run(async {
        let bed = Bed::new(true, false).await;
        control("late 1");
        // CUDA_ERROR_UNKNOWN, each time.
        emulated::control("fault cuFlushGPUDirectRDMAWrites@1+=999");
        for (from, to) in [(HOST, CUDA), (CUDA, CUDA)] {
            let moved = bed.all_verbs(from, to, 3_000_000).await;
            // The message and the get.
            assert!(moved.staged >= 6_000_000, "{from} to {to}: {moved:?}");
        }
        emulated::control("fault clear");
        control("late 0");
        bed.end().await;
    });
}

/// A driver that exports no dma-bufs, and a kernel that knows its memory by the address: it is registered so, and what is written is flushed.
#[test]
fn memory_that_the_kernel_knows_is_registered_by_its_address() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        emulated::control("set dmabuf 0");
        control("peermem 1");
        control("late 1");
        direct(&bed).await;
        assert!(flushes() >= 2 * LENGTHS.len(), "{} flushes", flushes());
        bed.end().await;
    });
}

/// A device that does not take the memory is asked once, and then not needed.
#[test]
fn memory_that_a_device_refuses_is_staged() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        // They take dma-bufs: that was asked.
        let explained = bed.two.here.explain(Operation::Put, CUDA, HOST, 1 << 20);
        assert!(!explained.is_staged, "{explained}");
        // EREMOTEIO, as where the two do not reach each other on the bus.
        control("fault ibv_reg_dmabuf_mr@1+=121");
        for (from, to) in PAIRS {
            for length in LENGTHS {
                let moved = bed.all_verbs(from, to, length).await;
                assert!(
                    moved.staged > 0,
                    "{from} to {to}, {length} bytes: {moved:?}"
                );
            }
        }
        let explained = bed.two.here.explain(Operation::Put, CUDA, HOST, 1 << 20);
        let why = explained.rejected.iter();
        let why =
            why.filter(|(way, why)| way == "network devices" && why.contains("ibv_reg_dmabuf_mr"));
        assert_eq!(why.count(), 1, "{explained}");
        control("clear");
        bed.end().await;
    });
}

/// Where nothing may stop, devices carry it; where they cannot, it is an error.
#[test]
fn nothing_stops_where_that_is_forbidden() {
    alone!();
    run(async {
        control("dmabuf 1");
        let context = wharf::Context::builder().transports("rc_verbs,cuda");
        let context = context.and_then(|builder| builder.forbid_staging().build());
        emulated::control("set ordering 100");
        let bed = Bed::in_context(context.expect("a context")).await;
        for (from, to) in PAIRS {
            let moved = bed.all_verbs(from, to, 70_000).await;
            assert_eq!(moved.staged, 0);
        }
        bed.end().await;
    });
}

/// Memory of the program's is registered whole, once, whatever part of it is sent; and anew when it is another's.
#[test]
fn an_allocation_is_registered_once() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        let content = bytes(3_000_000, 5);
        let memory = bed.filled(CUDA, &content).await.freeze();
        let address = memory.device_range().expect("on the device").start();
        // As a program has it: known by its address alone.
        let owner = Arc::new(memory);
        let explained = bed.two.here.explain(Operation::Put, CUDA, HOST, 1 << 20);
        assert!(!explained.is_staged, "{explained}");
        let before = registrations();
        for (offset, length) in [(0, 3_000_000), (100, 5000), (1_234_567, 700_001)] {
            let part = address + offset as u64;
            let owner = Arc::clone(&owner);
            // SAFETY: the owner keeps it, and nobody writes it.
            let part = unsafe { Buffer::foreign(&bed.two.context, part, length, owner) };
            let send = bed.two.here.tag_send(Tag(1), part.expect("found"));
            let receive = bed.two.workers[1].tag_recv(Tag(1), vec![0; length]);
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            assert!(received.expect("received").buffer == content[offset..offset + length]);
        }
        // With each of the two devices.
        assert!(
            registrations() - before <= 2,
            "{before} before, {}",
            registrations()
        );
        drop(owner);
        bed.end().await;
    });
}

/// The program frees memory and allocates other at the same address: nobody tells, but it has another number.
#[test]
fn other_memory_at_the_same_address_is_registered_anew() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        emulated::control("set reuse 1");
        let mut seen = Vec::new();
        for round in 0..3 {
            let content = bytes(3 << 20, round);
            let memory = own::allocate(&bed.two.context, CUDA, content.len());
            let memory = bed.copied(&content, memory).await.freeze();
            let before = registrations();
            for _ in 0..2 {
                let send = bed.two.here.tag_send(Tag(1), memory.clone());
                let receive = bed.two.workers[1].tag_recv(Tag(1), vec![0; 3 << 20]);
                let (sent, received) = tokio::join!(send, receive);
                sent.expect("sent");
                assert!(
                    received.expect("received").buffer == content,
                    "round {round}"
                );
            }
            let address = memory.device_range().expect("on the device").start();
            seen.push((address, registrations() - before));
        }
        assert!(
            seen.iter().all(|(address, _)| *address == seen[0].0),
            "{seen:x?}"
        );
        // Once with each device; the first found out that they take such memory.
        assert!(seen[1..].iter().all(|(_, made)| *made == 2), "{seen:?}");
        // The emulator lets go of what it would have given again.
        emulated::control("set reuse 0");
        drop(own::allocate(&bed.two.context, CUDA, 3 << 20));
        bed.end().await;
    });
}

/// What the program has freed is not kept from its device by a registration, once other memory is registered.
#[test]
fn memory_that_was_freed_is_registered_no_longer() {
    alone!();
    run(async {
        let bed = Bed::new(true, true).await;
        let registered = || {
            let left = control("left");
            let count = left.split(", ").find_map(|kind| kind.strip_prefix("mrs "));
            count.map_or(0, |count| count.parse().expect("a count"))
        };
        let room = bed.two.context.allocate(3 << 20).await;
        let (mut room, mut early) = (room.expect("memory"), 0_usize);
        for round in 0..12 {
            let content = bytes(3 << 20, round);
            let memory = own::allocate(&bed.two.context, CUDA, content.len());
            let memory = bed.copied(&content, memory).await.freeze();
            let send = bed.two.here.tag_send(Tag(1), memory);
            let receive = bed.two.workers[1].tag_recv(Tag(1), room);
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            room = received.expect("received").buffer;
            assert!(room[..] == content[..], "round {round}");
            if round == 3 {
                early = registered();
            }
        }
        until("they end", || registered() <= early).await;
        drop(room);
        bed.end().await;
    });
}
