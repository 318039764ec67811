//! Buffers that are registered once and leased.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use wharf::{
    Access, Buffer, BufferMut, Context, Error, ErrorKind, Result, Tag, Worker,
    memory::{
        AddressRange, BufferPool, Cause, MemorySink, MlockRegistrar, Registrar,
        RegistrarAttributes, subscribe,
    },
};

use crate::support::{LIMIT, watchdog};

#[derive(Clone, Debug, Default)]
struct Counting {
    now: Arc<AtomicUsize>,
    ever: Arc<AtomicUsize>,
    refuses: bool,
    alignment: Option<u64>,
}

impl Registrar for Counting {
    type Handle = u32;
    fn name(&self) -> &'static str {
        "counting"
    }
    fn attributes(&self) -> RegistrarAttributes {
        let attributes = RegistrarAttributes::default().max_length(1 << 20);
        attributes.alignment(self.alignment.unwrap_or(4096))
    }
    fn register(&self, range: AddressRange, _: Access) -> Result<u32> {
        assert!(range.start().is_multiple_of(4096) && range.len().is_multiple_of(4096));
        if self.refuses {
            return Err(Error::new(ErrorKind::Exhausted, "no more"));
        }
        self.now.fetch_add(1, SeqCst);
        self.ever.fetch_add(1, SeqCst);
        Ok(77)
    }
    fn deregister(&self, handle: u32, _: AddressRange) -> Result<()> {
        assert_eq!(handle, 77);
        self.now.fetch_sub(1, SeqCst);
        Ok(())
    }
}

fn pool(registrar: &Counting, buffers: usize) -> BufferPool<Counting> {
    BufferPool::new(registrar.clone(), Access::READ, 100, buffers).expect("a pool")
}

#[test]
fn leases_are_apart_and_come_back() {
    let registrar = Counting::default();
    let pool = pool(&registrar, 3);
    let mut leases: Vec<_> = std::iter::from_fn(|| pool.try_lease()).collect();
    assert_eq!(leases.len(), 3);
    for (number, lease) in leases.iter_mut().enumerate() {
        assert_eq!((lease.len(), *lease.handle()), (100, 77));
        lease.fill(number as u8 + 1);
    }
    for (number, lease) in leases.iter().enumerate() {
        assert!(lease.iter().all(|byte| *byte == number as u8 + 1));
        let address = AddressRange::of(lease).start();
        assert_eq!(address, pool.range().start() + lease.offset() as u64);
        assert_eq!(address % 64, 0);
    }
    assert_eq!(pool.stats().leased, 3);
    let mut unique: BufferMut = leases.pop().expect("three").into();
    assert_eq!(unique.as_mut_slice().expect("host memory").len(), 100);
    let shared: Buffer = unique.freeze();
    let part = shared.slice(..10);
    drop(shared);
    assert!(pool.try_lease().is_none(), "a part is in use");
    drop(part);
    assert!(pool.try_lease().is_some());
    drop(pool);
    assert_eq!(
        registrar.now.load(SeqCst),
        1,
        "leases keep the pool's memory"
    );
    drop(leases);
    assert_eq!(registrar.now.load(SeqCst), 0);
    assert_eq!(registrar.ever.load(SeqCst), 1, "registered once");
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_in_turn() {
    let pool = pool(&Counting::default(), 1);
    let held = pool.lease().await;
    let (mut first, mut second) = (Box::pin(pool.lease()), Box::pin(pool.lease()));
    let mut dropped = Box::pin(pool.lease());
    for waiting in [&mut dropped, &mut first, &mut second] {
        let soon = tokio::time::timeout(Duration::from_millis(1), waiting).await;
        assert!(soon.is_err(), "nothing is free");
    }
    assert_eq!(pool.stats().waiting, 3);
    drop(held);
    assert!(pool.try_lease().is_none(), "others were before");
    // It had been served: the next one is.
    drop(dropped);
    let lease = first.await;
    assert!(
        tokio::time::timeout(Duration::from_millis(1), &mut second)
            .await
            .is_err()
    );
    drop(lease);
    drop(second.await);
    let stats = pool.stats();
    assert_eq!(
        (stats.leased, stats.waiting, stats.waited, stats.leases),
        (0, 0, 2, 3)
    );
}

#[test]
fn many_tasks_share_few() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let pool = pool(&Counting::default(), 4);
    let most = Arc::new(AtomicUsize::new(0));
    runtime.block_on(watchdog(LIMIT, async {
        let tasks: Vec<_> = (0..64_usize)
            .map(|task| {
                let (pool, most) = (pool.clone(), most.clone());
                tokio::spawn(async move {
                    for round in 0..100 {
                        if (task + round) % 7 == 0 {
                            // Given up at its first wait.
                            let _ = tokio::time::timeout(Duration::ZERO, pool.lease()).await;
                        }
                        let mut lease = pool.lease().await;
                        most.fetch_max(pool.stats().leased, SeqCst);
                        lease.fill(task as u8);
                        tokio::task::yield_now().await;
                        assert!(lease.iter().all(|byte| *byte == task as u8));
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    }));
    assert!(most.load(SeqCst) <= 4);
    assert_eq!(pool.stats().leased, 0);
    assert_eq!(
        std::iter::from_fn(|| Some(pool.try_lease()?.offset()))
            .take(10)
            .count(),
        10
    );
}

/// An alignment that a process may have the addresses for. No other test has as many bytes.
const HUGE: u64 = 1 << 46;

/// Events of so many bytes.
#[derive(Default)]
struct HugeEvents(AtomicUsize);

impl MemorySink for HugeEvents {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        if range.len() == HUGE {
            self.0.fetch_add(1, SeqCst);
        }
    }
}

#[test]
fn impossible_pools() {
    let kind = |registrar: Counting, size, buffers| {
        let made = BufferPool::new(registrar, Access::READ, size, buffers);
        made.map(|_| ()).expect_err("refused").kind()
    };
    for (size, buffers) in [
        (0, 1),
        (1, 0),
        (usize::MAX, 1),
        (1 << 40, 1 << 40),
        (2 << 20, 1),
    ] {
        let registrar = Counting::default();
        assert_eq!(kind(registrar, size, buffers), ErrorKind::InvalidArgument);
    }
    let refuses = Counting {
        refuses: true,
        ..Counting::default()
    };
    assert_eq!(kind(refuses, 64, 1), ErrorKind::Exhausted);
    let strict = Counting {
        alignment: Some(HUGE),
        ..Counting::default()
    };
    let events = Arc::new(HugeEvents::default());
    let _subscription = subscribe(events.clone()).expect("a place");
    assert_eq!(kind(strict, 64, 1), ErrorKind::InvalidArgument);
    // Nothing was allocated: to free it would be an event for addresses of others as well, mapped by themselves or made up.
    assert_eq!(events.0.load(SeqCst), 0);
}

#[test]
fn leases_are_sent_and_received_into() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let pool = BufferPool::new(MlockRegistrar::new(), Access::READ, 4096, 2);
    let pool = pool.expect("two pages that are locked");
    runtime.block_on(watchdog(LIMIT, async {
        let context = Context::builder()
            .transports("self")
            .unwrap()
            .build()
            .unwrap();
        let worker = Worker::new(&context).unwrap();
        let endpoint = worker.connect(&worker.address().unwrap()).await.unwrap();
        let mut lease = pool.lease().await;
        lease[..5].copy_from_slice(b"hello");
        let text = Buffer::from(lease).slice(..5);
        endpoint.tag_send(Tag(1), text).await.unwrap();
        let room = BufferMut::from(pool.lease().await);
        let got = worker.tag_recv(Tag(1), room).await.unwrap();
        assert_eq!(&got.buffer.as_slice().unwrap()[..got.len], b"hello");
        drop(got);
        assert_eq!(pool.stats().leased, 0);
    }));
}
