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

use wharf::{AmId, Buffer, BufferList, Context, Endpoint, ErrorKind, Mask, Op, Tag, Worker};

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
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
    let context = builder.build().expect("a context");
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

/// What so many operations take by themselves, with room to spare: far less than their bytes.
const LIMIT: usize = 32 << 20;

/// One after the other, because they count what all of the process allocates.
#[test]
fn lists_that_wait_for_room_take_no_copy() {
    for (transport, length) in [("tcp", 100_000), ("shm", 8_000)] {
        run(async {
            let (_here, there, [endpoint, _accepted]) = pair(transport).await;
            let (posted, taken) = fill(|| Ok(endpoint.tag_send(Tag(1), list(length)).post()?));
            let limit = LIMIT.min(posted.len() * length / 2);
            assert!(posted.len() >= 4000);
            assert!(
                taken < limit,
                "{transport}: {taken} bytes for {} lists",
                posted.len()
            );
            for send in posted {
                let received = there.tag_recv(Tag(1), Mask::ALL, vec![0; length]).await;
                let received = received.expect("received");
                assert!(received.len == length && received.buffer.iter().all(|byte| *byte == 7));
                send.await.expect("sent");
            }

            let mut inbox = there.active_messages(AmId(3)).open().expect("an inbox");
            let (posted, taken) =
                fill(|| Ok(endpoint.am_send(AmId(3), "", list(length)).post()?));
            assert!(posted.len() >= 4000);
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
