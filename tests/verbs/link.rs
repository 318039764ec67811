//! Two ends on the two devices, and the loop that waits for completions without polling.
//!
//! # Safety
//! Memory is words that only atomics touch, kept longer than the queues that use it: tests keep both until their end.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    driver::verbs::{
        Access, Capacity, Completion, CompletionChannel, CompletionQueue, Context, Gid, GidEntry,
        GlobalRoute, InitAttributes, MemoryRegion, Mtu, PathAttributes, ProtectionDomain,
        QueuePair, QueuePairOptions, ReceiveAttributes, ReceiveRequest, SendAttributes,
        SendRequest, SharedReceiveQueue, Verbs, choose_gid,
    },
    support::{emulated::in_machine, on_a_runtime},
};

/// Two devices that reach each other: of the virtual machine, or emulated.
pub(crate) fn devices() -> [&'static str; 2] {
    match in_machine() {
        true => ["rxe0", "rxe1"],
        false => ["emu0", "emu1"],
    }
}

/// The library with these devices.
pub(crate) fn verbs() -> &'static Verbs {
    let emulated = (!in_machine()).then(crate::support::emulated::verbs);
    Verbs::load(emulated.as_deref()).expect("libibverbs")
}

/// For a test that is ignored elsewhere.
macro_rules! needs_machine {
    () => {
        assert!(
            $crate::support::emulated::in_machine(),
            "no RDMA devices; run in tests/rdma-vm/rdma-vm"
        );
    };
}
pub(crate) use needs_machine;

/// Runs a test's future, with a watchdog.
#[track_caller]
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    on_a_runtime(future)
}

/// Waits for a descriptor to be readable.
pub(crate) fn watch(fd: &impl AsFd) -> AsyncFd<BorrowedFd<'_>> {
    // SAFETY: borrowed, so open and the same as long as this watches.
    let watched = unsafe { AsyncFd::register_with_interest(fd.as_fd(), Interest::READABLE) };
    watched.expect("a descriptor that can be watched")
}

/// Opens a device by name.
pub(crate) fn open(name: &str) -> Context {
    let devices = verbs().devices().expect("devices");
    let device = devices.iter().find(|device| device.name() == name);
    device.expect("that device").open().expect("opens")
}

/// One device with what every test wants of it.
pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    pub(crate) queue: CompletionQueue,
    pub(crate) gid: GidEntry,
    pub(crate) mtu: Mtu,
    /// Calls to poll.
    pub(crate) polls: AtomicUsize,
}

/// Where a queue pair is, for its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) gid: Gid,
    pub(crate) queue_pair: u32,
    pub(crate) mtu: Mtu,
}

/// How patient a queue pair is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) not_ready_retries: u8,
}

/// For ever, nearly.
pub(crate) const PATIENT: Patience = Patience {
    timeout: 18,
    retries: 7,
    not_ready_retries: 7,
};

/// Gives up after about 0.3 s.
pub(crate) const HASTY: Patience = Patience {
    timeout: 14,
    retries: 1,
    not_ready_retries: 1,
};

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

pub(crate) const CAPACITY: Capacity = Capacity {
    sends: 16,
    receives: 16,
    send_pieces: 2,
    receive_pieces: 2,
    inline_bytes: 64,
};

impl End {
    pub(crate) fn open(name: &str) -> Self {
        Self::of(open(name))
    }

    pub(crate) fn of(context: Context) -> Self {
        let domain = context.protection_domain().expect("a domain");
        let channel = context.completion_channel().expect("a channel");
        let queue = context
            .completion_queue(64, Some(&channel), 77, 0)
            .expect("a queue");
        let gids = context.gids().expect("GIDs");
        let gid = choose_gid(&gids, 1).expect("a GID");
        let port = context.port(1).expect("a port");
        Self {
            domain,
            channel,
            queue,
            gid,
            mtu: port.mtu.expect("an MTU"),
            polls: AtomicUsize::new(0),
            context,
        }
    }

    pub(crate) fn queue_pair(&self, shared: Option<&SharedReceiveQueue>) -> QueuePair {
        self.queue_pair_for(shared, ALL)
    }

    /// One by which the peer may do so much.
    fn queue_pair_for(&self, shared: Option<&SharedReceiveQueue>, access: Access) -> QueuePair {
        let options = QueuePairOptions {
            sends: &self.queue,
            receives: &self.queue,
            shared_receives: shared,
            capacity: CAPACITY,
            signal_all: false,
        };
        let queue_pair = self.domain.queue_pair(&options).expect("a queue pair");
        let init = InitAttributes {
            port: 1,
            partition_index: 0,
            access,
        };
        queue_pair.to_init(&init).expect("INIT");
        queue_pair
    }

    pub(crate) fn place(&self, queue_pair: &QueuePair) -> Place {
        Place {
            gid: self.gid.gid,
            queue_pair: queue_pair.number(),
            mtu: self.mtu,
        }
    }

    pub(crate) fn connect(&self, queue_pair: &QueuePair, to: Place, patience: Patience) {
        let receive = ReceiveAttributes {
            path: PathAttributes {
                port: 1,
                lid: 0,
                service_level: 0,
                source_bits: 0,
                global: Some(GlobalRoute {
                    gid: to.gid,
                    source_index: self.gid.index,
                    hop_limit: 64,
                    traffic_class: 0,
                    flow_label: 0,
                }),
            },
            mtu: self.mtu.min(to.mtu),
            queue_pair: to.queue_pair,
            first_packet: 7,
            reads: 4,
            not_ready_timer: 12,
        };
        queue_pair.to_receive(&receive).expect("RTR");
        let send = SendAttributes {
            first_packet: 7,
            timeout: patience.timeout,
            retries: patience.retries,
            not_ready_retries: patience.not_ready_retries,
            reads: 4,
        };
        queue_pair.to_send(&send).expect("RTS");
    }

    pub(crate) fn memory(&self, words: usize) -> Memory {
        Memory::new(&self.domain, words, ALL)
    }

    pub(crate) fn poll(&self, to: &mut Vec<Completion>) -> usize {
        let mut some = [Completion::default(); 8];
        self.polls.fetch_add(1, Ordering::Relaxed);
        let found = self.queue.poll(&mut some).expect("polls");
        to.extend_from_slice(&some[..found]);
        found
    }

    /// Waits for so many completions, asleep on the channel.
    pub(crate) async fn completions(&self, count: usize) -> Vec<Completion> {
        let fd = watch(&self.channel);
        let mut found = Vec::new();
        loop {
            self.channel
                .drain(|token| assert_eq!(token, 77))
                .expect("drains");
            while self.poll(&mut found) > 0 {}
            if found.len() >= count {
                return found;
            }
            self.queue.arm(false).expect("arms");
            if self.poll(&mut found) > 0 {
                continue;
            }
            let mut guard = fd.readable().await.expect("readable");
            // Only the channel's own word that it is empty may clear it.
            self.channel.drain(|_| ()).expect("drains");
            guard.clear_ready();
        }
    }

    /// Waits for one completion, which must be good.
    pub(crate) async fn success(&self) -> Completion {
        let all = self.completions(1).await;
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].error().is_none(), "{:?}", all[0].error());
        all[0]
    }
}

/// Two connected queue pairs.
pub(crate) struct Link {
    pub(crate) queue_pairs: [QueuePair; 2],
    pub(crate) ends: [End; 2],
}

impl Link {
    pub(crate) fn new(patience: Patience) -> Self {
        Self::between(devices().map(End::open), patience)
    }

    pub(crate) fn between(ends: [End; 2], patience: Patience) -> Self {
        Self::for_access(ends, patience, ALL)
    }

    /// Over which each end may do so much at the other.
    pub(crate) fn for_access(ends: [End; 2], patience: Patience, access: Access) -> Self {
        let queue_pairs = [0, 1].map(|end| ends[end].queue_pair_for(None, access));
        let this = Self { queue_pairs, ends };
        for (here, there) in [(0, 1), (1, 0)] {
            let place = this.ends[there].place(&this.queue_pairs[there]);
            this.ends[here].connect(&this.queue_pairs[here], place, patience);
        }
        this
    }

    /// Posts one request.
    pub(crate) fn post(&self, side: usize, request: SendRequest<'_>) {
        // SAFETY: tests keep memory until the end, and only touch it by atomics.
        unsafe { self.queue_pairs[side].post_send(&mut [request]) }.expect("posted");
    }

    pub(crate) fn receive(&self, side: usize, request: ReceiveRequest<'_>) {
        // SAFETY: as above.
        unsafe { self.queue_pairs[side].post_receive(&mut [request]) }.expect("posted");
    }
}

/// Registered words. The region ends before the words.
pub(crate) struct Memory {
    pub(crate) region: MemoryRegion,
    words: Box<[AtomicU64]>,
}

impl Memory {
    pub(crate) fn new(domain: &ProtectionDomain, words: usize, access: Access) -> Self {
        let words: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let address = words.as_ptr().expose_provenance();
        // SAFETY: only atomics touch them.
        let region = unsafe { domain.register(address, words.len() * 8, access) };
        Self {
            region: region.expect("registers"),
            words,
        }
    }

    pub(crate) fn set(&self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::SeqCst);
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::SeqCst)
    }

    /// Fills it all with numbers that depend on the place.
    pub(crate) fn pattern(&self, seed: u64) {
        for (index, word) in self.words.iter().enumerate() {
            word.store(mixed(seed, index), Ordering::SeqCst);
        }
    }

    /// That the first words are those of a pattern.
    #[track_caller]
    pub(crate) fn check(&self, seed: u64, words: usize) {
        for (index, word) in self.words[..words].iter().enumerate() {
            assert_eq!(
                word.load(Ordering::SeqCst),
                mixed(seed, index),
                "word {index}"
            );
        }
    }

    /// The words from one to another, as a piece.
    pub(crate) fn piece(&self, words: std::ops::Range<usize>) -> crate::driver::verbs::Sge {
        let piece = self.region.piece(words.start * 8..words.end * 8);
        piece.expect("within")
    }

    pub(crate) fn address(&self, index: usize) -> u64 {
        self.words[index].as_ptr().expose_provenance() as u64
    }
}

fn mixed(seed: u64, index: usize) -> u64 {
    (seed ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
