//! Memory that the program allocated by Synapse, as buffers: found by its address, or by what the program says where nobody can be asked.
//!
//! What it allocates by libhl-thunk is in a card that it has opened by itself, which wharf then cannot have: there is nothing to be done with it.
//!
//! # Safety
//! What buffers are made of is kept by their owners, or by the test until they are gone.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use wharf::{
    Access, Buffer, BufferMut, Context, ErrorKind, MemoryType, Tag, Worker,
    memory::{AddressRange, Cause, MemoryAttributes, invalidate},
};

use crate::{
    fixture::{pattern, run, same},
    machine::{DEVICE, bytes},
    stranger::{Stranger, alone, control, gaudi, live, number},
    support::{LIMIT, block_until, child, emulated, this_test, until},
};

const LEN: usize = 300_000;

fn context() -> Context {
    let builder = Context::builder().transports("self").expect("known");
    let builder = builder.accelerator(Arc::new(gaudi()));
    builder.build().expect("a context")
}

fn range(start: u64, length: usize) -> AddressRange {
    AddressRange::new(start, length as u64).expect("a range")
}

fn nothing_wrong() {
    assert_eq!(number("misused"), 0, "{}", control("misuses"));
}

/// Memory of the program's. Freed on drop, which is counted.
struct Owned {
    stranger: Arc<Stranger>,
    address: u64,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.stranger.free(self.address);
        self.dropped.fetch_add(1, SeqCst);
    }
}

/// Has every operation take memory of the program's, and looks at each byte.
async fn every_operation(context: &Context, worker: &Worker, allocate: impl Fn() -> BufferMut) {
    let wanted = pattern(LEN, 9);
    let address = worker.address().expect("an address");
    let endpoint = worker.connect(&address).await.expect("connected");
    let source = worker.copy(wanted.to_vec(), allocate()).await;
    let source = source.expect("copied").freeze();
    assert_eq!(source.memory_type(), DEVICE);
    same(&bytes(worker, source.clone()).await, wanted, "copied");
    let within = worker.copy(source.clone(), allocate()).await;
    same(
        &bytes(worker, within.expect("copied").freeze()).await,
        wanted,
        "within the card",
    );
    // Between the program's memory and wharf's.
    let room = context.allocate_on(DEVICE, LEN).await.expect("memory");
    let ours = worker.copy(source.clone(), room).await.expect("copied");
    let again = worker.copy(ours.freeze(), allocate()).await;
    same(
        &bytes(worker, again.expect("copied").freeze()).await,
        wanted,
        "by way of wharf's",
    );

    let received = worker.tag_recv(Tag(1), allocate());
    let (sent, received) = tokio::join!(endpoint.tag_send(Tag(1), source.clone()), received);
    sent.expect("sent");
    let target = received.expect("received").buffer;
    same(&bytes(worker, target.freeze()).await, wanted, "a message");

    let region = context
        .expose(allocate(), Access::READ | Access::WRITE)
        .await;
    let region = region.expect("exposed");
    let descriptor = region.descriptor().expect("a descriptor");
    let remote = endpoint.import(&descriptor).expect("imported");
    let put = endpoint.put(source, remote.clone()).await;
    put.expect("put");
    let got = endpoint.get(remote, allocate()).await.expect("got");
    same(
        &bytes(worker, got.freeze()).await,
        wanted,
        "a put and a get",
    );
    drop(region.unexpose().await);
}

#[test]
fn memory_of_a_known_pool() {
    if child("alone").is_none() {
        alone(this_test!(), &[]);
        // Older runtimes do not say where the pool is; then SCAL does.
        return alone(this_test!(), &[("EMULATED_SYNAPSE_POOL_KNOWN", "0")]);
    }
    let stranger = Arc::new(Stranger::with_card());
    let dropped = Arc::new(AtomicUsize::new(0));
    run(async {
        let wharf = context();
        let address = stranger.allocate(LEN as u64);
        for (at, length) in [(address, LEN), (address + 77, 1000)] {
            // SAFETY: freed below; it is only looked at.
            let buffer = unsafe { Buffer::foreign(&wharf, at, length, ()) }.expect("found");
            assert_eq!((buffer.memory_type(), buffer.len()), (DEVICE, length));
            assert!(buffer.as_slice().is_none());
        }
        stranger.free(address);
        // SAFETY: refused.
        let nobodys = unsafe { Buffer::foreign(&wharf, 0x1001_C006_0000_0000, 8, ()) };
        let error = nobodys.expect_err("in no pool, and not the host's");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");

        let allocate = || {
            let owner = Owned {
                stranger: Arc::clone(&stranger),
                address: stranger.allocate(LEN as u64),
                dropped: Arc::clone(&dropped),
            };
            // SAFETY: kept by its owner, and nobody else has it.
            unsafe { BufferMut::foreign(&wharf, owner.address, LEN, owner) }.expect("found")
        };
        let worker = Worker::new(&wharf).expect("a worker");
        every_operation(&wharf, &worker, allocate).await;
        worker.shutdown(LIMIT).await.expect("shut down");
        // Owners may take long to drop, and are dropped where nobody waits for it.
        until("the owners", || dropped.load(SeqCst) == 6).await;
    });
    block_until("all is given back", || live("allocations") == 0);
    nothing_wrong();
}

/// A pool of which neither Synapse nor SCAL says where it is, and the first Gaudi, whose addresses could be the host's.
#[test]
fn memory_that_nobody_can_be_asked_for() {
    if child("alone").is_none() {
        for chip in ["1", "2"] {
            let chip = [
                ("EMULATED_HLTHUNK_CHIP", chip),
                ("EMULATED_SYNAPSE_GENERATION", chip),
            ];
            let pool = ("EMULATED_SYNAPSE_POOL_KNOWN", "0");
            alone(this_test!(), &[chip[0], chip[1], pool]);
        }
        return;
    }
    let stranger = Arc::new(Stranger::with_card());
    emulated::control_of(&emulated::scal(), "failing 1");
    let is_first = std::env::var("EMULATED_HLTHUNK_CHIP").expect("given") == "1";
    let dropped = Arc::new(AtomicUsize::new(0));
    run(async {
        let wharf = context();
        let address = stranger.allocate(LEN as u64);
        let whole = range(address, LEN);
        // SAFETY: it is only looked at.
        let find = |at, length| unsafe { Buffer::foreign(&wharf, at, length, ()) };
        let refused = |at, length| {
            if is_first {
                // It could be the host's, and nobody says otherwise.
                let known = wharf.memory_attributes(range(at, length)).expect("known");
                return assert_eq!(known.memory_type, MemoryType::Host);
            }
            let error = find(at, length).expect_err("unknown");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains("notify_allocated"), "{text}");
        };
        refused(address, LEN);
        let said = MemoryAttributes::new(DEVICE, whole);
        wharf.notify_allocated(&said);
        for _ in 0..3 {
            for (at, length) in [(address, LEN), (address + 77, 1000)] {
                let buffer = find(at, length).expect("said");
                assert_eq!((buffer.memory_type(), buffer.len()), (DEVICE, length));
                let asked = wharf.refresh_memory_attributes(range(at, length));
                assert_eq!(asked.expect("said"), said);
            }
        }
        refused(address + 8, LEN);
        assert_eq!(
            find(address, LEN).expect("still said").memory_type(),
            DEVICE
        );
        wharf.notify_freed(range(address + 100, 1));
        refused(address, LEN);
        refused(address + 77, 1000);
        wharf.notify_allocated(&said);
        assert!(find(address, LEN).is_ok());
        invalidate(whole, Cause::Freed);
        refused(address, LEN);
        stranger.free(address);

        let allocate = || {
            let owner = Owned {
                stranger: Arc::clone(&stranger),
                address: stranger.allocate(LEN as u64),
                dropped: Arc::clone(&dropped),
            };
            let place = range(owner.address, LEN);
            wharf.notify_allocated(&MemoryAttributes::new(DEVICE, place));
            // SAFETY: kept by its owner, and nobody else has it.
            unsafe { BufferMut::foreign(&wharf, owner.address, LEN, owner) }.expect("said")
        };
        let worker = Worker::new(&wharf).expect("a worker");
        every_operation(&wharf, &worker, allocate).await;
        worker.shutdown(LIMIT).await.expect("shut down");
        until("the owners", || dropped.load(SeqCst) == 6).await;
    });
    nothing_wrong();
}
