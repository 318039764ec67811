//! What lists take while they wait for room: the user's own memory, and no copy of it.
//!
//! # Safety
//! The allocator that counts leaves everything to the system's.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    future::Future,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use wharf::{
    AmId, Buffer, BufferList, BufferListMut, BufferMut, Context, Endpoint, ErrorKind, Op, Tag,
    Worker,
};

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// How often.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// The most at once.
static LONGEST: AtomicUsize = AtomicUsize::new(0);

/// Tests count what all of the process does: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        LONGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

static BYTES: [u8; 60_000] = [7; 60_000];

/// Two pieces of this many bytes together, which take no memory of their own.
fn list(length: usize) -> Buffer {
    BufferList::from([
        Buffer::from(&BYTES[..length / 2]),
        Buffer::from(&BYTES[..length - length / 2]),
    ])
    .into()
}

async fn pair(transport: &str) -> (Worker, Worker, [Endpoint; 2]) {
    let builder = Context::builder()
        .transports(transport)
        .expect("a transport");
    let context = builder.ops_window(WINDOW).build().expect("a context");
    let here = Worker::new(&context).expect("a worker");
    let there = Worker::new(&context).expect("a worker");
    let listener = there.listen("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr();
    let (endpoint, accepted) = tokio::join!(here.connect(address), async {
        listener.accept().await?.accept().await
    });
    let ends = [endpoint.expect("connected"), accepted.expect("accepted")];
    (here, there, ends)
}

/// Posts until no more are taken, and says how much memory that took, beyond the window that the receiver may be made to hold.
fn fill(mut post: impl FnMut() -> wharf::Result<Op<()>>) -> (Vec<Op<()>>, usize) {
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut posted = Vec::new();
    loop {
        match post() {
            Ok(send) => posted.push(send),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    let taken = ALLOCATED.load(Ordering::Relaxed).saturating_sub(before);
    (posted, taken)
}

fn run(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), scenario)
            .await
            .expect("it hangs");
    });
}

/// Operations that may be posted at a time.
const WINDOW: usize = 1024;
/// What so many operations take by themselves, with room to spare: far less than their bytes.
const LIMIT: usize = WINDOW << 13;

/// A short active message that is copied allocates nothing.
#[test]
fn copied_messages_take_no_memory() {
    let _alone = ALONE.lock();
    run(async {
        let (_here, there, [endpoint, _accepted]) = pair("shm").await;
        let mut inbox = there.active_messages(AmId(3)).open().expect("an inbox");
        let (header, payload) = ([1_u8; 16], [2_u8; 200]);
        let mut least = usize::MAX;
        for _ in 0..50 {
            let before = CALLS.load(Ordering::Relaxed);
            let sent = endpoint.am_send_copy(AmId(3), &header, &payload).await;
            least = least.min(CALLS.load(Ordering::Relaxed) - before);
            sent.expect("sent");
            let message = inbox.recv().await.expect("a message");
            assert_eq!(
                (message.header(), message.data()),
                (&header[..], Some(&payload[..]))
            );
        }
        assert_eq!(least, 0);
    });
}

/// One after the other, because they count what all of the process allocates.
#[test]
fn lists_that_wait_for_room_take_no_copy() {
    let _alone = ALONE.lock();
    for (transport, length) in [("tcp", 100_000), ("shm", 8_000)] {
        run(async {
            let (_here, there, [endpoint, _accepted]) = pair(transport).await;
            let (posted, taken) = fill(|| Ok(endpoint.tag_send(Tag(1), list(length)).post()?));
            let limit = LIMIT.min(posted.len() * length / 2);
            assert!(posted.len() >= WINDOW);
            assert!(
                taken < limit,
                "{transport}: {taken} bytes for {} lists",
                posted.len()
            );
            for send in posted {
                let received = there.tag_recv(Tag(1), vec![0; length]).await;
                let received = received.expect("received");
                assert!(received.len == length && received.buffer.iter().all(|byte| *byte == 7));
                send.await.expect("sent");
            }

            let mut inbox = there.active_messages(AmId(3)).open().expect("an inbox");
            let (posted, taken) =
                fill(|| Ok(endpoint.am_send(AmId(3), "", list(length)).post()?));
            assert!(posted.len() >= WINDOW);
            let limit = LIMIT.min(posted.len() * length / 2);
            assert!(
                taken < limit,
                "{transport}: {taken} bytes for {} active ones",
                posted.len()
            );
            for send in posted {
                let message = inbox.recv().await.expect("a message");
                let bytes = message.bytes().await.expect("bytes");
                assert!(bytes.len() == length && bytes.iter().all(|byte| *byte == 7));
                send.await.expect("sent");
            }
        });
    }
}

/// A short message into a long list costs what it is long, also where it would be given a place before it is here.
#[test]
fn a_short_message_into_a_long_list_takes_no_copy_of_it() {
    const PIECE: usize = 16 << 20;
    let _alone = ALONE.lock();
    for transport in ["tcp", "shm"] {
        run(async {
            let (_here, there, [endpoint, _accepted]) = pair(transport).await;
            for length in [10, 5000, 60_000] {
                let pieces = [100, PIECE].map(|length| BufferMut::from(vec![0; length]));
                LONGEST.store(0, Ordering::Relaxed);
                let receive = there.tag_recv(Tag(1), BufferListMut::from(pieces)).post();
                endpoint
                    .tag_send(Tag(1), &BYTES[..length])
                    .await
                    .expect("sent");
                let received = receive.await.expect("received");
                let longest = LONGEST.load(Ordering::Relaxed);
                assert!(longest < PIECE, "{transport}: {longest} bytes at once");
                assert_eq!(received.len, length);
                let pieces = received.buffer.into_inner();
                let bytes = pieces
                    .iter()
                    .flat_map(|piece| piece.as_slice().expect("of the host"));
                assert!(bytes.take(length).all(|byte| *byte == 7));
            }
        });
    }
}
