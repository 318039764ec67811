//! What goes wrong in the middle: an engine's error, a lost device, a dropped future, a connection that ends. One clear error for the one who asked; the
//! rest goes on, and memory stays until the device is done with it.

use std::{future::Future, task::Poll, time::Duration};

use wharf::{Access, Buffer, BufferMut, Error, ErrorKind, Mask, MemoryType, Tag};

use crate::{
    common::{DEVICE, Ends, OTHER, assert_aborted, bytes, equal, filled},
    fixture::{Side, Way, a_while, pattern, run, run_on_threads},
    support::accelerator::{FRAGMENT, FakeAccelerator, Plan},
};

const SIZE: usize = 9 * FRAGMENT + 5;

async fn memory(side: &Side, memory_type: MemoryType, bytes: &[u8]) -> BufferMut {
    filled(&side.worker, &side.context, memory_type, bytes).await
}

/// One transfer of each kind out of `source` of here, into memory of there. Whether both ends say that it was done, or why not.
async fn transfer(ends: &Ends, verb: usize, source: Buffer) -> Result<(), Vec<Error>> {
    let size = source.len();
    let limit = tokio::time::timeout(crate::support::LIMIT / 2, async {
        match verb {
            0 => {
                let target = ends
                    .there
                    .context
                    .allocate_on(OTHER, size)
                    .await
                    .expect("memory");
                let (sent, received) = tokio::join!(
                    ends.here.endpoint.tag_send(Tag(3), source),
                    ends.there.worker.tag_recv(Tag(3), target),
                );
                let received = received.map(drop).map_err(|error| error.into_parts().0);
                [sent, received]
            }
            1 => {
                let (sent, received) = tokio::join!(
                    ends.here.endpoint.tag_send(Tag(3), source),
                    ends.there.worker.tag_recv(Tag(3), vec![0; size]),
                );
                let received = received.map(drop).map_err(|error| error.into_parts().0);
                [sent, received]
            }
            _ => {
                let to = if verb == 3 { MemoryType::Host } else { OTHER };
                let target = ends
                    .there
                    .context
                    .allocate_on(to, size)
                    .await
                    .expect("memory");
                let access = Access::READ | Access::WRITE;
                let region = ends
                    .there
                    .context
                    .expose(target, access)
                    .await
                    .expect("exposed");
                let descriptor = region.descriptor().expect("a descriptor");
                let remote = ends.here.endpoint.import(&descriptor).expect("the peer's");
                let put = ends.here.endpoint.put(source, remote.clone()).await;
                let target = ends
                    .here
                    .context
                    .allocate_on(DEVICE, size)
                    .await
                    .expect("memory");
                let get = ends.here.endpoint.get(remote, target).await;
                let get = get.map(drop).map_err(|error| error.into_parts().0);
                [put, get]
            }
        }
    });
    let results = limit.await.expect("it ends");
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

const VERBS: usize = 4;

/// A device that copies no more than a fragment at a time, also where nothing stops in one.
fn in_pieces() -> FakeAccelerator {
    let mut plan = Plan::default();
    plan.attributes.max_copy = FRAGMENT;
    FakeAccelerator::with(plan)
}

scenarios! {
    everywhere, and without pidfd:

    async fn an_error_at_the_nth_copy(way: Way) {
        let ends = Ends::with(way, in_pieces()).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        for verb in 0..VERBS {
            let mut failed = 0;
            for nth in 1..30 {
                let first = ends.device.copies();
                ends.device.plan(|plan| plan.fail = vec![first + nth]);
                match transfer(&ends, verb, source.clone()).await {
                    Ok(()) => break,
                    Err(errors) => {
                        failed += 1;
                        for error in errors {
                            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        }
                    }
                }
            }
            // Within a worker the engine does each of the two by one copy.
            let least = if way == Way::Own && verb == 2 { 2 } else { 10 };
            assert!(failed >= least, "{failed} failures of verb {verb}");
            ends.device.plan(|plan| plan.fail.clear());
            transfer(&ends, verb, source.clone()).await.expect("as before");
        }
        drop(source);
        ends.end().await;
    }

    async fn a_lost_device(way: Way) {
        for verb in 0..VERBS {
            let ends = Ends::with(way, in_pieces()).await;
            let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
            // The other end's engine is open as well.
            drop(memory(&ends.there, DEVICE, &[0]).await);
            let now = ends.device.copies();
            let nth = if way == Way::Own && verb == 2 { 1 } else { 3 };
            ends.device.plan(|plan| plan.lose = Some(now + nth));
            let errors = transfer(&ends, verb, source.clone()).await.expect_err("lost");
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
            }
            let errors = transfer(&ends, verb, source.clone()).await.expect_err("lost");
            assert_eq!(errors[0].kind(), ErrorKind::DeviceLost, "{}", errors[0]);
            // Host memory goes on.
            ends.here.send(1, "still here").await;
            assert_eq!(ends.there.receive(1, 100).await, b"still here");
            drop(source);
            let _ = ends.here.endpoint.flush().await;
            ends.end().await;
        }
    }

    async fn dropped_futures(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        for polls in [0, 1, 2, 3, 5, 8, 13, 21] {
            for verb in 0..VERBS {
                let mut transfer = Box::pin(transfer(&ends, verb, source.clone()));
                for _ in 0..polls {
                    let polled = std::future::poll_fn(|cx| Poll::Ready(transfer.as_mut().poll(cx))).await;
                    if polled.is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                drop(transfer);
                // A message whose receive was dropped is in its place: whole, wherever its bytes are.
                while ends.here.worker.in_flight() > 0 || ends.there.worker.in_flight() > 0 {
                    match ends.there.worker.tag_take(Tag(3), Mask::ALL) {
                        Some(matched) => {
                            let received = matched.recv(vec![0; SIZE]).await.expect("whole");
                            equal(&received.buffer, pattern(SIZE, 1), "put back");
                        }
                        None => tokio::task::yield_now().await,
                    }
                }
                while let Some(matched) = ends.there.worker.tag_take(Tag(3), Mask::ALL) {
                    let target = memory(&ends.there, OTHER, &vec![0; SIZE]).await;
                    let received = matched.recv(target).await.expect("whole");
                    let found = bytes(&ends.there.worker, received.buffer.freeze()).await;
                    equal(&found, pattern(SIZE, 1), "put back");
                }
            }
        }
        let _ = ends.here.endpoint.flush().await;
        drop(source);
        ends.end().await;
    }

    async fn cancelled(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        // Nobody receives it.
        let send = ends.here.endpoint.tag_send(Tag(9), source.clone()).post().expect("room");
        a_while().await;
        assert_eq!(send.cancel().await.expect_err("cancelled").kind(), ErrorKind::Canceled);
        assert!(ends.there.worker.tag_probe(Tag(9), Mask::ALL).is_none());
        // Nothing is sent.
        let target = memory(&ends.there, DEVICE, &[0; 9]).await;
        let receive = ends.there.worker.tag_recv(Tag(9), target).post();
        let error = receive.cancel().await.expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Canceled, "{error}");
        assert_eq!(error.into_parts().1.expect("back").memory_type(), DEVICE);
        // In the middle.
        let target = ends.there.context.allocate_on(OTHER, SIZE).await.expect("memory");
        let region = ends.there.context.expose(target, Access::WRITE).await.expect("exposed");
        let remote = ends.here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
        ends.device.plan(|plan| plan.stuck = true);
        let put = ends.here.endpoint.put(source.clone(), remote.clone()).post().expect("room");
        let late = ends.here.endpoint.put(source.clone(), remote).deadline(Duration::from_millis(10)).await;
        assert_eq!(late.expect_err("late").kind(), ErrorKind::DeadlineExceeded);
        ends.device.plan(|plan| plan.stuck = false);
        match put.cancel().await {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Canceled, "{error}"),
        }
        drop(source);
        let _ = ends.here.endpoint.flush().await;
        drop(region);
        ends.end().await;
    }

    async fn taken_back(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        for put in [true, false] {
            let target = memory(&ends.there, OTHER, &vec![0; SIZE]).await;
            let access = Access::READ | Access::WRITE;
            let region = ends.there.context.expose(target, access).await.expect("exposed");
            let remote = ends.here.endpoint.import(&region.descriptor().expect("a descriptor")).expect("the peer's");
            ends.device.plan(|plan| plan.stuck = true);
            let under_way: BoxResult<'_> = if put {
                let put = ends.here.endpoint.put(source.clone(), remote).post().expect("room");
                Box::pin(put)
            } else {
                let get = ends.here.endpoint.get(remote, vec![0; SIZE]).post().expect("room");
                Box::pin(async { get.await.map(drop).map_err(|error| error.into_parts().0) })
            };
            a_while().await;
            ends.there.worker.progress();
            let back = tokio::spawn(region.unexpose());
            a_while().await;
            ends.device.plan(|plan| plan.stuck = false);
            assert_eq!(back.await.expect("back").len(), SIZE);
            match under_way.await {
                Ok(()) => {}
                Err(error) => assert!(matches!(error.kind(), ErrorKind::StaleKey | ErrorKind::Canceled), "{error}"),
            }
        }
        drop(source);
        let _ = ends.here.endpoint.flush().await;
        ends.end().await;
    }

    async fn many_share_the_fragments(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        let back = memory(&ends.there, OTHER, pattern(SIZE, 2)).await.freeze();
        // Both ways at once.
        for tag in 0..40 {
            sends.push(ends.here.endpoint.tag_send(Tag(tag), source.clone()).post().expect("room"));
            sends.push(ends.there.endpoint.tag_send(Tag(100 + tag), back.clone()).post().expect("room"));
        }
        for tag in (0..40).rev() {
            let target = ends.there.context.allocate_on(OTHER, SIZE).await.expect("memory");
            receives.push((1, ends.there.worker.tag_recv(Tag(tag), target).post()));
            let target = ends.here.context.allocate_on(DEVICE, SIZE).await.expect("memory");
            receives.push((2, ends.here.worker.tag_recv(Tag(100 + tag), target).post()));
        }
        for send in sends {
            send.await.expect("sent");
        }
        for (seed, receive) in receives {
            let received = receive.await.expect("received");
            let found = bytes(&ends.here.worker, received.buffer.freeze()).await;
            equal(&found, pattern(SIZE, seed), seed);
        }
        drop((source, back));
        ends.end().await;
    }
}

type BoxResult<'a> = std::pin::Pin<Box<dyn Future<Output = wharf::Result<()>> + Send + 'a>>;

scenarios! {
    between workers, and without pidfd:

    /// The connection ends while copies are stuck: the operations end, their memory stays until the device is done with it.
    async fn an_aborted_connection(way: Way) {
        for verb in 0..VERBS {
            let device = FakeAccelerator::new();
            let ends = Ends::with(way, device.clone()).await;
            let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
            drop(memory(&ends.there, DEVICE, &[0]).await);
            let now = device.copies();
            let abort = async {
                while device.copies() < now + 3 {
                    tokio::task::yield_now().await;
                }
                device.plan(|plan| plan.stuck = true);
                ends.here.endpoint.abort();
                a_while().await;
                device.plan(|plan| plan.stuck = false);
            };
            let (result, ()) = tokio::join!(transfer(&ends, verb, source.clone()), abort);
            for error in result.err().unwrap_or_default() {
                assert_aborted(way, &error);
            }
            // What is left of it is here only.
            drop(source);
            let found = memory(&ends.here, DEVICE, pattern(SIZE, 7)).await.freeze();
            equal(&bytes(&ends.here.worker, found).await, pattern(SIZE, 7), "after it");
            let Ends { here, there, .. } = ends;
            drop((here, there));
            tokio::task::spawn_blocking(move || device.check_freed()).await.expect("freed");
        }
    }

    /// Bytes of streams that nobody reads yet hold no pinned memory up which others need: what the reader wants first passes them.
    async fn streams_that_are_not_read_stop_nobody(way: Way) {
        const LONG: usize = 2 << 20;
        let ends = Ends::new(way).await;
        let mut streams = Vec::new();
        for _ in 0..3 {
            let (here, there) = tokio::join!(
                ends.here.endpoint.stream(),
                ends.there.endpoint.accept_stream(),
            );
            streams.push((here.expect("opened"), there.expect("accepted")));
        }
        let mut readers = Vec::new();
        let mut writes = Vec::new();
        for (index, (here, there)) in streams.iter_mut().enumerate() {
            let first = memory(&ends.here, DEVICE, pattern(LONG, index)).await.freeze();
            let second = memory(&ends.here, DEVICE, pattern(LONG, index + 10)).await.freeze();
            // All of it is written, whether or not the future is dropped.
            assert!(futures::poll!(std::pin::pin!(here.write_buffer(first))).is_pending());
            assert!(futures::poll!(std::pin::pin!(here.write_buffer(second))).is_pending());
            writes.push(here);
            readers.push(there);
        }
        a_while().await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        transfer(&ends, 0, source).await.expect("goes on");
        for (index, (reader, writer)) in readers.iter_mut().zip(&mut writes).enumerate() {
            let read = async {
                for seed in [index, index + 10] {
                    let mut found = vec![0; LONG];
                    tokio::io::AsyncReadExt::read_exact(reader, &mut found).await.expect("read");
                    equal(&found, pattern(LONG, seed), "what was written");
                }
            };
            let (flushed, ()) = tokio::join!(tokio::io::AsyncWriteExt::flush(writer), read);
            flushed.expect("flushed");
        }
        drop((writes, readers));
        drop(streams);
        ends.end().await;
    }

    /// A device's buffer that is written while the one before it is lent to the reader has its turn when that was read.
    async fn a_buffer_behind_one_that_is_lent(way: Way) {
        const LONG: usize = 1 << 20;
        let ends = Ends::new(way).await;
        let (here, there) = tokio::join!(
            ends.here.endpoint.stream(),
            ends.there.endpoint.accept_stream(),
        );
        let (mut here, mut there) = (here.expect("opened"), there.expect("accepted"));
        let mut host = ends.here.context.allocate(LONG).await.expect("memory");
        host.copy_from_slice(pattern(LONG, 1));
        let host = host.freeze();
        let device = memory(&ends.here, DEVICE, pattern(LONG, 2)).await.freeze();
        for _ in 0..3 {
            // All of it is written, whether or not the future is dropped.
            assert!(futures::poll!(std::pin::pin!(here.write_buffer(host.clone()))).is_pending());
            assert!(futures::poll!(std::pin::pin!(here.write_buffer(device.clone()))).is_pending());
            a_while().await;
            let read = async {
                for seed in [1, 2] {
                    let mut found = vec![0; LONG];
                    tokio::io::AsyncReadExt::read_exact(&mut there, &mut found).await.expect("read");
                    equal(&found, pattern(LONG, seed), "what was written");
                }
            };
            let (flushed, ()) = tokio::join!(tokio::io::AsyncWriteExt::flush(&mut here), read);
            flushed.expect("flushed");
        }
        drop((here, there, host, device));
        ends.end().await;
    }

    /// A peer that has stopped reading keeps others waiting no longer than for a fragment.
    async fn a_peer_that_does_not_receive_stops_nobody(way: Way) {
        let ends = Ends::new(way).await;
        let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await.freeze();
        let waiting: Vec<_> = (0..50)
            .map(|_| ends.here.endpoint.tag_send(Tag(77), source.clone()).post().expect("room"))
            .collect();
        transfer(&ends, 0, source.clone()).await.expect("goes on");
        for send in waiting {
            assert_eq!(send.cancel().await.expect_err("cancelled").kind(), ErrorKind::Canceled);
        }
        drop(source);
        ends.end().await;
    }
}

/// The connection ends while the driver prepares memory for the peer: the memory stays until that call has returned.
#[test]
fn memory_outlives_its_export() {
    for get in [true, false] {
        run(async move {
            let device = FakeAccelerator::new();
            let ends = Ends::with(Way::Shm, device.clone()).await;
            let source = memory(&ends.here, DEVICE, pattern(SIZE, 1)).await;
            let target = ends.there.context.allocate_on(OTHER, SIZE).await;
            let target = target.expect("memory");
            let asked = device.exports();
            device.plan(|plan| plan.stuck_export = true);
            let abort = async {
                while device.exports() == asked {
                    tokio::task::yield_now().await;
                }
                ends.here.endpoint.abort();
            };
            if get {
                let region = ends.here.context.expose(source, Access::READ).await;
                let region = region.expect("exposed");
                let descriptor = region.descriptor().expect("a descriptor");
                let remote = ends.there.endpoint.import(&descriptor);
                let get = ends.there.endpoint.get(remote.expect("the peer's"), target);
                let (got, ()) = tokio::join!(get, abort);
                got.expect_err("the connection ended");
            } else {
                let (sent, received, ()) = tokio::join!(
                    ends.here.endpoint.tag_send(Tag(3), source.freeze()),
                    ends.there.worker.tag_recv(Tag(3), target),
                    abort,
                );
                sent.expect_err("the connection ended");
                received.expect_err("the connection ended");
            }
            a_while().await;
            device.check();
            device.plan(|plan| plan.stuck_export = false);
            let Ends { here, there, .. } = ends;
            drop((here, there));
            let freed = tokio::task::spawn_blocking(move || device.check_freed());
            freed.await.expect("freed");
        });
    }
}
