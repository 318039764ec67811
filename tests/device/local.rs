//! Copies within the process.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use wharf::{
    Access, BufferList, BufferListMut, BufferMut, ErrorKind, MemoryType, Progress, ReceiveBuffer,
    Tag, Worker,
};

use crate::{
    common::{DEVICE, Ends, OTHER, SIZES, bytes, context, context_with, equal, filled},
    fixture::{Way, a_while, pattern, run, run_on_threads},
    support::{
        LIMIT,
        accelerator::{FRAGMENT, FakeAccelerator, Plan},
        until,
    },
};

const TYPES: [MemoryType; 4] = [MemoryType::Host, MemoryType::HostPinned, DEVICE, OTHER];

fn worker(device: &FakeAccelerator) -> (wharf::Context, Worker) {
    let context = context(Way::Own, device);
    let worker = Worker::new(&context).expect("a worker");
    (context, worker)
}

/// Every byte, between every two memories.
async fn every_pair(device: &FakeAccelerator, progress: Progress) {
    let context = context_with(Way::Own, device, progress);
    let worker = Worker::new(&context).expect("a worker");
    for from in TYPES {
        for to in TYPES {
            for size in SIZES {
                let wanted = pattern(size, size);
                let source = filled(&worker, &context, from, wanted).await;
                let target = filled(&worker, &context, to, &vec![0x11; size + 2]).await;
                let copied = worker
                    .copy(source.freeze(), target)
                    .at(1)
                    .await
                    .expect("copied");
                assert_eq!(copied.memory_type(), to);
                let found = bytes(&worker, copied.freeze()).await;
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
    }
    drop((worker, context));
    device.check_freed();
    assert_eq!(device.opened(), 1);
}

#[test]
fn between_any_two_memories() {
    run(async { every_pair(&FakeAccelerator::new(), Progress::Adaptive).await });
}

#[test]
fn event_driven() {
    run(async { every_pair(&FakeAccelerator::new(), Progress::EventDriven).await });
}

#[test]
fn busy_on_threads() {
    run_on_threads(async { every_pair(&FakeAccelerator::new(), Progress::Busy).await });
}

#[test]
fn by_a_thread_of_its_own() {
    run_on_threads(async { every_pair(&FakeAccelerator::new(), Progress::Thread).await });
}

#[test]
fn an_engine_that_takes_pageable_memory() {
    let mut plan = Plan::default();
    plan.attributes.pageable_from = Some(0);
    plan.attributes.max_copy = 5000;
    plan.no_pinned = false;
    run(async { every_pair(&FakeAccelerator::with(plan), Progress::Adaptive).await });
}

#[test]
fn an_engine_that_takes_one_copy_at_a_time() {
    let mut plan = Plan::default();
    plan.attributes.max_in_flight = 1;
    plan.late = 5;
    run(async { every_pair(&FakeAccelerator::with(plan), Progress::Adaptive).await });
}

#[test]
fn lists() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let wanted = pattern(3 * FRAGMENT, 1);
        let (head, rest) = wanted.split_at(1000);
        let (middle, tail) = rest.split_at(FRAGMENT + 7);
        let source = BufferList::from([
            head.to_vec().into(),
            filled(&worker, &context, DEVICE, middle).await.freeze(),
            filled(&worker, &context, OTHER, tail).await.freeze(),
        ]);
        let target = BufferListMut::from([
            filled(&worker, &context, OTHER, &vec![0; 2 * FRAGMENT]).await,
            vec![0; FRAGMENT / 2].into(),
            filled(&worker, &context, DEVICE, &vec![0; FRAGMENT / 2]).await,
        ]);
        let target = worker.copy(source, target).await.expect("copied");
        let target = BufferMut::from(target).freeze();
        equal(&bytes(&worker, target).await, wanted, "the list");
        device.check();
    });
}

#[test]
fn what_cannot_be_copied_comes_back() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let target = filled(&worker, &context, DEVICE, &[0; 10]).await;
        let error = worker
            .copy(vec![0; 8], target)
            .at(3)
            .await
            .expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        let (_, target) = error.into_parts();
        assert_eq!(target.expect("back").memory_type(), DEVICE);
        let nothing = worker
            .copy(wharf::Buffer::new(), vec![7; 3])
            .await
            .expect("nothing");
        assert_eq!(nothing, [7; 3]);
        device.check();
    });
}

#[test]
fn opening_that_fails_is_told_and_tried_again() {
    run(async {
        let device = FakeAccelerator::new();
        device.plan(|plan| plan.fail_open = 1);
        let (context, worker) = worker(&device);
        let memory = context.allocate_on(DEVICE, 100).await.expect("memory");
        let error = worker.copy(vec![1; 100], memory).await.expect_err("closed");
        assert!(error.to_string().contains("does not start"), "{error}");
        let (_, memory) = error.into_parts();
        let memory = worker
            .copy(vec![1; 100], memory.expect("back"))
            .await
            .expect("open");
        assert_eq!(bytes(&worker, memory.freeze()).await, [1; 100]);
        device.check();
    });
}

#[test]
fn an_engine_that_opens_too_late_is_brought_to_rest() {
    run(async {
        for stops in [true, false] {
            let device = FakeAccelerator::new();
            device.plan(|plan| plan.stuck_open = true);
            let (context, worker) = worker(&device);
            let memory = context.allocate_on(DEVICE, 100).await.expect("memory");
            let begun =
                tokio::time::timeout(Duration::from_millis(20), worker.copy(vec![1; 100], memory));
            assert!(begun.await.is_err(), "it waits for the engine");
            if stops {
                worker.shutdown(LIMIT).await.expect("shut down");
            } else {
                drop(worker);
            }
            drop(context);
            device.plan(|plan| plan.stuck_open = false);
            until("the engine", || device.opened() == 1).await;
            device.check_freed();
        }
    });
}

#[test]
fn without_pinned_memory_only_what_needs_it_fails() {
    run(async {
        let device = FakeAccelerator::new();
        device.plan(|plan| plan.no_pinned = true);
        let (context, worker) = worker(&device);
        let here = context.allocate_on(DEVICE, 100).await.expect("memory");
        let there = context.allocate_on(OTHER, 100).await.expect("memory");
        let there = worker
            .copy(here.freeze(), there)
            .await
            .expect("by the engine alone");
        let error = worker
            .copy(there.freeze(), vec![0; 100])
            .await
            .expect_err("no fragment");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        device.check();
    });
}

#[test]
fn an_error_of_the_engine_ends_one_copy() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let size = 20 * FRAGMENT;
        let mut target = filled(&worker, &context, DEVICE, &vec![0; size]).await;
        for nth in 1..25 {
            let first = device.copies();
            device.plan(|plan| plan.fail = vec![first + nth]);
            match worker.copy(pattern(size, nth), target).await {
                Ok(back) => {
                    assert!(nth > 20, "the {nth}th copy failed");
                    target = back;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    target = error.into_parts().1.expect("back");
                }
            }
        }
        device.plan(|plan| plan.fail.clear());
        let target = worker
            .copy(pattern(size, 99), target)
            .await
            .expect("as before");
        equal(
            &bytes(&worker, target.freeze()).await,
            pattern(size, 99),
            "after errors",
        );
        drop((worker, context));
        device.check_freed();
    });
}

#[test]
fn a_lost_device_ends_what_uses_it_and_nothing_else() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let size = 30 * FRAGMENT;
        let memory = filled(&worker, &context, DEVICE, &vec![0; size]).await;
        let more = filled(&worker, &context, DEVICE, &vec![0; size]).await;
        let now = device.copies();
        device.plan(|plan| plan.lose = Some(now + 7));
        let both = (
            worker.copy(vec![1; size], memory),
            worker.copy(vec![2; size], more),
        );
        let both = tokio::join!(both.0, both.1);
        for result in [both.0, both.1] {
            let error = result.expect_err("lost");
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            let (_, memory) = error.into_parts();
            let error = worker
                .copy(vec![1; 10], memory.expect("back"))
                .await
                .expect_err("lost");
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        }
        assert_eq!(
            worker
                .copy(vec![1; 10], vec![0; 10])
                .await
                .expect("host memory"),
            [1; 10]
        );
        drop((worker, context));
        device.check_freed();
    });
}

#[test]
fn dropped_copies_run_to_their_end() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let size = 30 * FRAGMENT;
        for polls in 0..20 {
            let target = filled(&worker, &context, DEVICE, &vec![0; size]).await;
            let mut copy = pin!(worker.copy(pattern(size, polls), target));
            for _ in 0..polls {
                let polled = std::future::poll_fn(|cx| Poll::Ready(copy.as_mut().poll(cx))).await;
                if polled.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // All memory but the fragments goes when the device is done with it.
        until("the end of what was dropped", || device.allocated() <= 1).await;
        assert_eq!(worker.in_flight(), 0);
        drop((worker, context));
        device.check_freed();
    });
}

#[test]
fn a_cancelled_copy_gives_its_buffer_back_when_the_device_is_done() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let size = 30 * FRAGMENT;
        let target = filled(&worker, &context, DEVICE, &vec![0; size]).await;
        device.plan(|plan| plan.stuck = true);
        let copy = worker.copy(pattern(size, 1), target).post();
        a_while().await;
        let mut cancel = pin!(copy.cancel());
        let soon = tokio::time::timeout(Duration::from_millis(20), cancel.as_mut()).await;
        assert!(soon.is_err(), "the engine still uses the buffer");
        device.plan(|plan| plan.stuck = false);
        let error = cancel.await.expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Canceled, "{error}");
        assert!(error.into_parts().1.is_some());
        let target = filled(&worker, &context, DEVICE, &vec![0; size]).await;
        device.plan(|plan| plan.stuck = true);
        let late = worker
            .copy(pattern(size, 1), target)
            .deadline(Duration::from_millis(10));
        assert_eq!(
            late.await.expect_err("late").kind(),
            ErrorKind::DeadlineExceeded
        );
        device.plan(|plan| plan.stuck = false);
        drop((worker, context));
        device.check_freed();
    });
}

#[test]
fn a_worker_ends_under_its_copies() {
    for shut_down in [true, false] {
        let device = FakeAccelerator::new();
        run(async {
            let (context, worker) = worker(&device);
            let size = 30 * FRAGMENT;
            let target = filled(&worker, &context, DEVICE, &vec![0; size]).await;
            let copy = worker.copy(pattern(size, 1), target).post();
            if shut_down {
                worker
                    .shutdown(Duration::from_secs(9))
                    .await
                    .expect("shut down");
                let error = copy.await.expect_err("ended");
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                let error = worker
                    .copy(vec![0; 1], vec![0; 1])
                    .await
                    .expect_err("ended");
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            }
        });
        device.check_freed();
    }
}

#[test]
fn many_at_once_share_the_fragments() {
    run_on_threads(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let size = 5 * FRAGMENT + 3;
        let mut copies = Vec::new();
        for seed in 0..100 {
            let target = context.allocate_on(DEVICE, size).await.expect("memory");
            copies.push(worker.copy(pattern(size, seed), target).post());
        }
        for (seed, copy) in copies.into_iter().enumerate() {
            let target = copy.await.expect("copied");
            equal(
                &bytes(&worker, target.freeze()).await,
                pattern(size, seed),
                seed,
            );
        }
        drop((worker, context));
        device.check_freed();
    });
}

#[test]
fn memory_that_was_sent_is_received_into() {
    run(async {
        let device = FakeAccelerator::new();
        let (context, worker) = worker(&device);
        let memory = filled(&worker, &context, DEVICE, &[7; 50]).await.freeze();
        let shared = memory.clone();
        let memory = memory.try_into_mut().expect_err("shared");
        let part = memory.slice(..10).try_into_mut().expect_err("a part");
        drop((memory, part));
        let memory = shared.try_into_mut().expect("alone");
        let memory = worker.copy(vec![8; 50], memory).await.expect("copied");
        assert_eq!(bytes(&worker, memory.freeze()).await, [8; 50]);
        assert_eq!(
            Vec::restore(
                wharf::Buffer::from(vec![1, 2])
                    .try_into_mut()
                    .expect("alone")
            ),
            [1, 2]
        );
        wharf::Buffer::from("static")
            .try_into_mut()
            .expect_err("not the heap's");
    });
}

#[test]
fn within_a_worker_nothing_stops_in_host_memory() {
    run(async {
        let device = FakeAccelerator::new();
        let ends = Ends::with(Way::Own, device.clone()).await;
        let (side, endpoint) = (&ends.here, &ends.here.endpoint);
        let mut inbox = side.worker.active_messages(5).open().expect("an inbox");
        for size in [1, 100, FRAGMENT + 1, 3 << 20] {
            let wanted = pattern(size, size);
            let source = filled(&side.worker, &side.context, DEVICE, wanted)
                .await
                .freeze();
            let far = filled(&side.worker, &side.context, OTHER, &vec![0; size + 1]).await;
            let region = side.context.expose(far, Access::READ | Access::WRITE).await;
            let region = region.expect("exposed");
            let far = endpoint.import(&region.descriptor().expect("a descriptor"));
            let far = far.expect("one's own").slice(1..);
            // As many requests as the engine needs for one copy.
            let pieces = size.div_ceil(Plan::default().attributes.max_copy);
            let count = |before: usize, what: &str| {
                assert_eq!(device.copies() - before, pieces, "{what} of {size} bytes");
            };
            let before = device.copies();
            endpoint
                .put(source.clone(), far.clone())
                .await
                .expect("put");
            count(before, "a put");
            let target = side
                .context
                .allocate_on(DEVICE, size)
                .await
                .expect("memory");
            let before = device.copies();
            let target = endpoint.get(far, target).await.expect("got");
            count(before, "a get");
            equal(&bytes(&side.worker, target.freeze()).await, wanted, "got");
            let target = side.context.allocate_on(OTHER, size).await.expect("memory");
            let before = device.copies();
            let (sent, received) = tokio::join!(
                endpoint.tag_send(Tag(9), source.clone()),
                side.worker.tag_recv(Tag(9), target),
            );
            sent.expect("sent");
            count(before, "a message");
            let received = received.expect("received").buffer;
            equal(
                &bytes(&side.worker, received.freeze()).await,
                wanted,
                "received",
            );
            let target = side
                .context
                .allocate_on(DEVICE, size)
                .await
                .expect("memory");
            let before = device.copies();
            let send = endpoint.am_send(5, "", source).forbid_staging();
            let receive = async {
                let message = inbox.recv().await.expect("a message");
                message.receive(target).forbid_staging().await
            };
            let (sent, received) = tokio::join!(send, receive);
            sent.expect("sent");
            count(before, "an active message");
            let received = received.expect("received").buffer;
            equal(
                &bytes(&side.worker, received.freeze()).await,
                wanted,
                "fetched",
            );
            drop(region);
        }
        // Of several places.
        let wanted = pattern(FRAGMENT, 5);
        let (head, tail) = wanted.split_at(1000);
        let list = BufferList::from([
            filled(&side.worker, &side.context, DEVICE, head)
                .await
                .freeze(),
            filled(&side.worker, &side.context, OTHER, tail)
                .await
                .freeze(),
        ]);
        let target = side
            .context
            .allocate_on(OTHER, FRAGMENT)
            .await
            .expect("memory");
        let before = device.copies();
        let (sent, received) = tokio::join!(
            endpoint.tag_send(Tag(9), list),
            side.worker.tag_recv(Tag(9), target),
        );
        sent.expect("sent");
        assert_eq!(device.copies() - before, 2);
        let received = received.expect("received").buffer;
        equal(
            &bytes(&side.worker, received.freeze()).await,
            wanted,
            "a list",
        );
        drop(inbox);
        ends.end().await;
    });
}
