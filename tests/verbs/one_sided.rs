//! Puts, gets, device atomics and long messages over `rc_verbs` on the emulated devices, which count how bytes travelled. Each test in a process
//! of its own: the fault plan and the counts are for the whole process.
//!
//! # Safety
//! Variables are set before the process has threads that read them otherwise than by the standard library, which locks.
#![allow(unsafe_code)]

use std::{future::Future, time::Duration};

use wharf::{Access, BufferMut, Context, Endpoint, ErrorKind, Region, RemoteRegion, Worker};

use crate::{
    emulated::{alone, control},
    support::{self, Child, child, emulated, this_test},
};

const BOTH: Access = Access::READ.union(Access::WRITE);
/// More than goes short, and in several pieces.
const LONG: usize = (2 << 20) + 77;
const SHORT: usize = 1000;

/// Two workers, connected.
struct Bed {
    context: Context,
    _here: Worker,
    there: Worker,
    to: Endpoint,
}

impl Bed {
    async fn new() -> Self {
        // SAFETY: this process has no other thread yet that reads the environment but by the standard library, which locks it.
        unsafe { std::env::set_var("WHARF_LIBIBVERBS", emulated::verbs()) };
        let builder = Context::builder().transports("rc_verbs").expect("known");
        let context = builder.build().expect("a context");
        let (here, there) = (
            Worker::new(&context).expect("a worker"),
            Worker::new(&context).expect("a worker"),
        );
        let to = here.connect(&there.address().expect("an address")).await;
        let to = to.expect("connected");
        assert_eq!(to.transports(), ["rc_verbs"]);
        Self {
            context,
            _here: here,
            there,
            to,
        }
    }

    async fn exposed(
        &self,
        memory: impl Into<BufferMut>,
        access: Access,
    ) -> (Region, RemoteRegion) {
        let region = self.context.expose(memory, access).await.expect("exposed");
        let descriptor = region.descriptor().expect("its range");
        let descriptor = wharf::Descriptor::from_bytes(&descriptor.to_bytes()).expect("whole");
        let remote = self.to.import(&descriptor).expect("the peer's");
        (region, remote)
    }

    async fn carry(&self, length: usize, seed: u8) {
        let data = bytes(length, seed);
        let send = self.to.tag_send(u64::from(seed), data.clone());
        let receive = self.there.tag_recv(u64::from(seed), vec![0; length]);
        let (sent, received) = tokio::join!(send, receive);
        sent.expect("sent");
        assert!(received.expect("received").buffer == data, "{length} bytes");
    }
}

/// Messages, writes, reads and atomics that were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    sends: usize,
    writes: usize,
    reads: usize,
    atomics: usize,
}

fn counts() -> Counts {
    let count = |kind: &str| {
        control(&format!("count {kind}"))
            .parse::<usize>()
            .expect("a count")
    };
    Counts {
        sends: count("SEND"),
        writes: count("RDMA_WRITE"),
        reads: count("RDMA_READ"),
        atomics: count("ATOMIC_FETCH_AND_ADD") + count("ATOMIC_CMP_AND_SWP"),
    }
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    support::pattern(u64::from(seed), length)
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("within");
    bytes
}

/// Runs a test with a watchdog, and looks that nothing was done that must not be.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let limit = Duration::from_secs(120);
        tokio::time::timeout(limit, test).await.expect("it hangs");
    });
    drop(runtime);
    assert_eq!(control("misuses"), "");
}

#[test]
fn puts_and_gets_go_by_rdma() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        for own in [false, true] {
            for (length, pieces) in [(1, 1), (SHORT, 1), (LONG, 5)] {
                let memory: BufferMut = match own {
                    true => bed
                        .context
                        .allocate(length + 2)
                        .await
                        .expect("memory")
                        .into(),
                    false => vec![0; length + 2].into(),
                };
                let (region, remote) = bed.exposed(memory, BOTH).await;
                let data = bytes(length, 3);
                let before = counts();
                bed.to
                    .put(data.clone(), remote.slice(1..))
                    .await
                    .expect("put");
                let all = content(&region);
                assert!(all[1..=length] == data, "{length} bytes put");
                assert_eq!((all[0], all[length + 1]), (0, 0));
                let got = bed.to.get(remote.slice(1..=length), vec![0; length]).await;
                assert!(got.expect("got") == data, "{length} bytes got");
                let after = counts();
                assert_eq!(after.writes - before.writes, pieces, "{length} bytes put");
                assert_eq!(after.reads - before.reads, pieces, "{length} bytes got");
                assert_eq!(after.sends, before.sends, "no messages");
            }
        }
    });
}

#[test]
fn a_signal_comes_behind_its_put() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        for length in [SHORT, LONG] {
            let (region, remote) = bed.exposed(vec![0; length], BOTH).await;
            let counter = bed.there.counter().await.expect("a counter");
            let far = bed.to.import(&counter.descriptor().expect("its range"));
            let put = bed.to.put(bytes(length, 3), remote);
            let put = put
                .signal(&far.expect("the peer's"))
                .post()
                .expect("posted");
            counter.wait(1).await.expect("raised");
            assert!(content(&region) == bytes(length, 3));
            put.await.expect("put");
            bed.to.flush().await.expect("flushed");
        }
    });
}

#[test]
fn long_messages_are_read_out_of_the_senders_memory() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        let before = counts();
        bed.carry(LONG, 1).await;
        bed.carry(LONG, 2).await;
        let after = counts();
        assert_eq!(after.reads - before.reads, 10);
        assert_eq!(after.writes, before.writes);
        assert!(after.sends - before.sends < 20, "{after:?}");
        // By active message.
        let mut inbox = bed.there.active_messages(7).open().expect("an inbox");
        let send = bed
            .to
            .am_send(7, b"header", bytes(LONG, 4))
            .post()
            .expect("posted");
        let message = inbox.recv().await.expect("a message");
        assert_eq!(message.header(), b"header");
        let received = message.receive(vec![0; LONG]).await.expect("received");
        assert!(received.buffer == bytes(LONG, 4));
        send.await.expect("sent");
        assert_eq!(counts().reads - after.reads, 5);
    });
}

#[test]
fn long_messages_are_written_into_the_receivers_memory() {
    alone!();
    // SAFETY: as in `Bed::new`.
    unsafe { std::env::set_var("UCX_RNDV_SCHEME", "put_zcopy") };
    run(async {
        let bed = Bed::new().await;
        let before = counts();
        bed.carry(LONG, 1).await;
        bed.carry(LONG, 2).await;
        let after = counts();
        assert_eq!(after.writes - before.writes, 10);
        assert_eq!(after.reads, before.reads);
    });
}

#[test]
fn long_messages_go_in_messages_when_that_is_asked_for() {
    alone!();
    // SAFETY: as in `Bed::new`.
    unsafe { std::env::set_var("WHARF_RNDV_SCHEME", "am") };
    run(async {
        let bed = Bed::new().await;
        let before = counts();
        bed.carry(LONG, 1).await;
        let after = counts();
        assert_eq!((after.writes, after.reads), (before.writes, before.reads));
    });
}

/// One refusal ends the rail that it went over, and the next the other; then all goes in messages, on the same connection.
#[test]
fn memory_that_is_taken_back_is_touched_no_more() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        for round in 0..3 {
            for (length, get) in [(SHORT, false), (SHORT, true), (LONG, false), (LONG, true)] {
                let (region, remote) = bed.exposed(vec![7; length], BOTH).await;
                let memory = region.unexpose().await;
                let error = match get {
                    true => {
                        let got = bed.to.get(remote, vec![0; length]).await;
                        got.expect_err("gone").into_parts().0
                    }
                    false => {
                        let put = bed.to.put(bytes(length, 1), remote).await;
                        put.expect_err("gone")
                    }
                };
                assert_eq!(error.kind(), ErrorKind::StaleKey, "{round}: {error}");
                assert!(memory.as_slice().expect("the host's") == vec![7; length]);
            }
            bed.carry(LONG, round).await;
            let (region, remote) = bed.exposed(vec![0; LONG], BOTH).await;
            bed.to.put(bytes(LONG, 2), remote).await.expect("put");
            assert!(content(&region) == bytes(LONG, 2));
        }
    });
}

/// What is under way on a rail that ends goes once more, in messages.
#[test]
fn a_refusal_does_not_harm_others() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        // In the virtual machine each takes some ten seconds.
        let rounds = if emulated::in_machine() { 1 } else { 3 };
        for round in 0..rounds {
            let (gone, stale) = bed.exposed(vec![0; SHORT], BOTH).await;
            drop(gone.unexpose().await);
            let (region, remote) = bed.exposed(vec![0; LONG], BOTH).await;
            let (source, from) = bed.exposed(bytes(LONG, 9), BOTH).await;
            let mut puts = vec![
                bed.to
                    .put(bytes(LONG, round), remote.clone())
                    .post()
                    .expect("posted"),
            ];
            let bad = bed.to.put(vec![1; SHORT], stale).post().expect("posted");
            puts.push(
                bed.to
                    .put(bytes(LONG, round), remote)
                    .post()
                    .expect("posted"),
            );
            let get = bed.to.get(from, vec![0; LONG]).post().expect("posted");
            let send = bed.to.tag_send(3, bytes(LONG, 8)).post().expect("posted");
            let receive = bed.there.tag_recv(3, vec![0; LONG]).await;
            assert!(receive.expect("received").buffer == bytes(LONG, 8));
            send.await.expect("sent");
            assert_eq!(bad.await.expect_err("gone").kind(), ErrorKind::StaleKey);
            for put in puts {
                put.await.expect("put");
            }
            assert!(get.await.expect("got") == bytes(LONG, 9));
            assert!(content(&region) == bytes(LONG, round));
            drop(source);
        }
    });
}

#[test]
fn a_limit_on_locked_memory_turns_transfers_into_messages() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        // Before it, so that it is reached by devices.
        let (region, remote) = bed.exposed(vec![0; LONG], BOTH).await;
        control("fault ibv_reg_mr_iova2@1+=12");
        let before = counts();
        bed.to.put(bytes(LONG, 9), remote).await.expect("put");
        assert!(content(&region) == bytes(LONG, 9));
        bed.carry(LONG, 8).await;
        // A region that devices do not reach is reached by messages.
        let (region, remote) = bed.exposed(vec![0; LONG], BOTH).await;
        bed.to
            .put(bytes(LONG, 5), remote.clone())
            .await
            .expect("put");
        assert!(content(&region) == bytes(LONG, 5));
        let got = bed.to.get(remote, vec![0; LONG]).await.expect("got");
        assert!(got == bytes(LONG, 5));
        let after = counts();
        assert_eq!((after.writes, after.reads), (before.writes, before.reads));
        let error = bed.context.expose(vec![0; 8], Access::DEVICE_ATOMIC).await;
        let error = error.expect_err("no device reaches it");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let cause = error.get_ref().expect("why").to_string();
        assert!(
            cause.contains("ulimit -l") || cause.contains("no memory"),
            "{cause}"
        );
    });
}

#[test]
fn atomics_of_devices() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        let (_region, words) = bed.exposed(vec![0_u8; 4096], Access::DEVICE_ATOMIC).await;
        // A multiple of 8, wherever the allocator put it.
        let at = (0..8)
            .find(|at| words.fetch_add(*at, 0_u64).post().is_ok())
            .expect("a word");
        let before = counts();
        assert_eq!(words.fetch_add(at, 5_u64).await.expect("added"), 0);
        words.add(at, 2_u64).await.expect("added");
        assert_eq!(words.compare_swap(at, 7_u64, 1).await.expect("swapped"), 7);
        assert_eq!(
            words.compare_swap(at, 7_u64, 3).await.expect("not swapped"),
            1
        );
        assert_eq!(counts().atomics - before.atomics, 4);
        let error = words.fetch_xor(at, 1_u64).await.expect_err("of no device");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        bed.to.flush().await.expect("flushed");
    });
}

#[test]
fn a_peer_that_goes_in_the_middle() {
    alone!();
    run(async {
        let bed = Bed::new().await;
        let (_region, remote) = bed.exposed(vec![0; LONG], BOTH).await;
        let mut posted = Vec::new();
        for seed in 0..8 {
            posted.push(
                bed.to
                    .put(bytes(LONG, seed), remote.clone())
                    .post()
                    .expect("posted"),
            );
        }
        let sends: Vec<_> = (0..8)
            .map(|seed| {
                bed.to
                    .tag_send(5, bytes(LONG, seed))
                    .post()
                    .expect("posted")
            })
            .collect();
        bed.there.shutdown(Duration::ZERO).await.ok();
        for put in posted {
            // Done before, or over with the connection.
            let _ = put.await;
        }
        for send in sends {
            send.await.expect_err("nobody received it");
        }
    });
}
