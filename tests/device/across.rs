//! Copies between devices of two accelerators: through a fragment of each, which only its own engine takes.

use std::{
    future::{Future, ready},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use wharf::{
    BufferList, BufferListMut, BufferMut, Context, Error, ErrorKind, Identity, MemoryType, Tag,
    Worker,
    memory::MemoryDomain,
    transport::{Accelerator, CopyEngine, Export, Import},
};

use crate::{
    common::{DEVICE, OTHER, SIZES, bytes, equal, filled},
    fixture::{Pair, Way, a_while, pattern, run},
    support::{
        accelerator::{FRAGMENT, FakeAccelerator, Plan},
        until,
    },
};

const FAR: MemoryType = MemoryType::Rocm(0);
const FARTHER: MemoryType = MemoryType::Rocm(1);

/// Two kinds of devices. The second likes fragments of another length.
struct Two {
    near: FakeAccelerator,
    far: FakeAccelerator,
    context: Context,
    worker: Worker,
}

impl Two {
    fn new(change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan::default();
        plan.attributes.fragment = FRAGMENT / 2 + 4096;
        change(&mut plan);
        let near = FakeAccelerator::new();
        let far = FakeAccelerator::of(plan, [FAR, FARTHER]);
        let builder = Way::Own.builder();
        let builder = builder.accelerator(Arc::new(near.clone()));
        let builder = builder.accelerator(Arc::new(far.clone()));
        let context = builder.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        Self {
            near,
            far,
            context,
            worker,
        }
    }

    async fn filled(&self, memory_type: MemoryType, bytes: &[u8]) -> BufferMut {
        filled(&self.worker, &self.context, memory_type, bytes).await
    }

    fn end(self) {
        drop((self.worker, self.context));
        self.near.check_freed();
        self.far.check_freed();
    }
}

#[test]
fn every_byte() {
    run(async {
        let two = Two::new(|_| {});
        for (from, to) in [
            (DEVICE, FAR),
            (FAR, DEVICE),
            (FARTHER, OTHER),
            (FAR, FARTHER),
        ] {
            for size in SIZES {
                let wanted = pattern(size, size);
                let source = two.filled(from, wanted).await;
                let target = two.filled(to, &vec![0x11; size + 2]).await;
                let copied = two.worker.copy(source.freeze(), target).at(1).await;
                let copied = copied.expect("copied");
                assert_eq!(copied.memory_type(), to);
                let found = bytes(&two.worker, copied.freeze()).await;
                equal(
                    &found[1..=size],
                    wanted,
                    format_args!("{size} bytes {from} to {to}"),
                );
                assert_eq!(
                    (found[0], found[size + 1]),
                    (0x11, 0x11),
                    "{size} bytes {from} to {to}"
                );
            }
        }
        two.end();
    });
}

#[test]
fn several_at_a_time() {
    run(async {
        let two = Two::new(|_| {});
        let size = 20 * FRAGMENT;
        let source = two.filled(DEVICE, pattern(size, 1)).await.freeze();
        let target = two.filled(FAR, &vec![0; size]).await;
        // The second stands still: the first goes on until the pipe is full, and no further.
        two.far.plan(|plan| plan.stuck = true);
        let before = two.near.copies();
        let copy = two.worker.copy(source, target).post();
        until("a full pipe", || two.near.copies() >= before + 4).await;
        for _ in 0..5 {
            a_while().await;
        }
        assert_eq!(two.near.copies(), before + 4);
        two.far.plan(|plan| plan.stuck = false);
        let target = copy.await.expect("copied");
        equal(
            &bytes(&two.worker, target.freeze()).await,
            pattern(size, 1),
            "all",
        );
        two.end();
    });
}

#[test]
fn many_share_the_fragments_of_both() {
    run(async {
        let two = Two::new(|_| {});
        let size = 5 * FRAGMENT + 3;
        let mut copies = Vec::new();
        for seed in 0..40 {
            let (from, to) = if seed % 2 == 0 {
                (DEVICE, FAR)
            } else {
                (FAR, OTHER)
            };
            let source = two.filled(from, pattern(size, seed)).await.freeze();
            let target = two.context.allocate_on(to, size).await.expect("memory");
            copies.push(two.worker.copy(source, target).post());
        }
        for (seed, copy) in copies.into_iter().enumerate() {
            let target = copy.await.expect("copied");
            equal(
                &bytes(&two.worker, target.freeze()).await,
                pattern(size, seed),
                seed,
            );
        }
        two.end();
    });
}

#[test]
fn lists_of_both() {
    run(async {
        let two = Two::new(|_| {});
        let wanted = pattern(3 * FRAGMENT, 1);
        let (head, rest) = wanted.split_at(1000);
        let (middle, tail) = rest.split_at(FRAGMENT + 7);
        let source = BufferList::from([
            head.to_vec().into(),
            two.filled(DEVICE, middle).await.freeze(),
            two.filled(FAR, tail).await.freeze(),
        ]);
        let target = BufferListMut::from([
            two.filled(FARTHER, &vec![0; 2 * FRAGMENT]).await,
            vec![0; FRAGMENT / 2].into(),
            two.filled(OTHER, &vec![0; FRAGMENT / 2]).await,
        ]);
        let target = two.worker.copy(source, target).await.expect("copied");
        let target = BufferMut::from(target).freeze();
        equal(&bytes(&two.worker, target).await, wanted, "the list");
        two.end();
    });
}

#[test]
fn errors_of_either_end_one_copy() {
    run(async {
        let two = Two::new(|_| {});
        let size = 6 * FRAGMENT;
        let source = two.filled(DEVICE, pattern(size, 1)).await.freeze();
        let mut target = two.filled(FAR, &vec![0; size]).await;
        for device in [&two.near, &two.far] {
            for nth in 1..6 {
                let first = device.copies();
                device.plan(|plan| plan.fail = vec![first + nth]);
                let error = two
                    .worker
                    .copy(source.clone(), target)
                    .await
                    .expect_err("failed");
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                target = error.into_parts().1.expect("back");
            }
            device.plan(|plan| plan.fail.clear());
        }
        target = two
            .worker
            .copy(source.clone(), target)
            .await
            .expect("as before");
        // One that does not open; one that is lost.
        let now = two.far.copies();
        two.far.plan(|plan| plan.lose = Some(now + 3));
        let error = two
            .worker
            .copy(source.clone(), target)
            .await
            .expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        drop(error);
        let near = two.context.allocate_on(OTHER, size).await.expect("memory");
        two.worker
            .copy(source, near)
            .await
            .expect("the other goes on");
        two.end();
        let two = Two::new(|plan| plan.fail_open = 1);
        let source = two.filled(DEVICE, &[1; 100]).await.freeze();
        let target = two.context.allocate_on(FAR, 100).await.expect("memory");
        let error = two
            .worker
            .copy(source.clone(), target)
            .await
            .expect_err("closed");
        assert!(error.to_string().contains("does not start"), "{error}");
        let target = error.into_parts().1.expect("back");
        two.worker.copy(source, target).await.expect("open");
        two.end();
    });
}

#[test]
fn dropped_and_forbidden() {
    run(async {
        let two = Two::new(|_| {});
        let size = 10 * FRAGMENT;
        for polls in 0..12 {
            let source = two.filled(FAR, pattern(size, 1)).await.freeze();
            let target = two.context.allocate_on(DEVICE, size).await.expect("memory");
            let mut copy = pin!(two.worker.copy(source, target));
            for _ in 0..polls {
                let polled = std::future::poll_fn(|cx| Poll::Ready(copy.as_mut().poll(cx))).await;
                if polled.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        until("the end of what was dropped", || {
            two.worker.in_flight() == 0
        })
        .await;
        let source = two.filled(FAR, &[1; 100]).await.freeze();
        let target = two.context.allocate_on(DEVICE, 100).await.expect("memory");
        let copy = two.worker.copy(source.clone(), target).forbid_staging();
        let (error, target) = copy.await.expect_err("forbidden").into_parts();
        drop(target);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains("this operation forbids"),
            "{error}"
        );
        // Within one accelerator nothing stops.
        let target = two.context.allocate_on(FARTHER, 100).await.expect("memory");
        let copied = two.worker.copy(source, target).forbid_staging().await;
        drop(copied.expect("copied"));
        two.end();
    });
}

/// One that exports, and opens nothing.
#[derive(Debug)]
struct Closed {
    name: &'static str,
    device: FakeAccelerator,
    exports: AtomicUsize,
    imports: AtomicUsize,
}

impl Closed {
    fn new(name: &'static str, device: FakeAccelerator) -> Arc<Self> {
        Arc::new(Self {
            name,
            device,
            exports: AtomicUsize::new(0),
            imports: AtomicUsize::new(0),
        })
    }

    fn asked(&self) -> [usize; 2] {
        [&self.exports, &self.imports].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Accelerator for Closed {
    fn name(&self) -> &'static str {
        self.name
    }
    fn probe(&self) -> wharf::Result<()> {
        Ok(())
    }
    fn domain(&self) -> Arc<dyn MemoryDomain> {
        self.device.domain()
    }
    fn serves(&self, memory_type: MemoryType) -> bool {
        self.device.serves(memory_type)
    }
    fn open(&self) -> wharf::Result<Box<dyn CopyEngine>> {
        self.device.open()
    }
    fn export(&self, _: u64, _: u64) -> wharf::Result<Export> {
        self.exports.fetch_add(1, Ordering::Relaxed);
        Ok(Export::Descriptor(self.name.into()))
    }
    fn import(&self, descriptor: &[u8], _: &Identity) -> Import {
        assert_eq!(descriptor, self.name.as_bytes(), "another's");
        self.imports.fetch_add(1, Ordering::Relaxed);
        let error = Error::new(ErrorKind::Unsupported, "it opens nothing");
        Box::pin(ready(Err(error)))
    }
}

/// What one accelerator cannot open says nothing of another's, and none is asked to open another's.
#[test]
fn a_way_that_is_closed_closes_no_other() {
    run(async {
        let near = Closed::new("near", FakeAccelerator::new());
        let far = Closed::new("far", FakeAccelerator::of(Plan::default(), [FAR, FARTHER]));
        let builder = Way::Shm.builder().accelerator(near.clone());
        let context = builder.accelerator(far.clone()).build().expect("a context");
        let Pair { here, there } = Pair::of(&context, Way::Shm).await;
        let wanted = pattern(3 * FRAGMENT, 5);
        for (from, to, tried) in [
            (DEVICE, FAR, [[0, 0], [0, 0]]),
            (FAR, DEVICE, [[0, 0], [0, 0]]),
            (DEVICE, OTHER, [[1, 1], [0, 0]]),
            // No more of that.
            (OTHER, DEVICE, [[1, 1], [0, 0]]),
            (FAR, FARTHER, [[1, 1], [1, 1]]),
            (FARTHER, FAR, [[1, 1], [1, 1]]),
        ] {
            let source = filled(&here.worker, &context, from, wanted).await;
            let target = context.allocate_on(to, wanted.len()).await.expect("memory");
            let both = tokio::join!(
                here.endpoint.tag_send(Tag(1), source.freeze()),
                there.worker.tag_recv(Tag(1), target),
            );
            both.0.expect("sent");
            let received = both.1.expect("received").buffer;
            let received = bytes(&there.worker, received.freeze()).await;
            equal(&received, wanted, format_args!("{from} to {to}"));
            assert_eq!([near.asked(), far.asked()], tried, "{from} to {to}");
        }
        drop((here, there, context));
        let (near, far) = (near.device.clone(), far.device.clone());
        let freed = move || [near, far].map(|device| device.check_freed());
        tokio::task::spawn_blocking(freed).await.expect("freed");
    });
}
