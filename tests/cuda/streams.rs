//! Copies of a worker in order with the program's own streams.
//!
//! # Safety
//! Streams outlive the workers, and memory that the program's own work touches is kept until its stream was waited for.
#![allow(unsafe_code)]

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
};

use wharf::{
    Buffer, BufferMut, Context, ErrorKind, MemoryType, Worker,
    transport::cuda::{CudaEvent, CudaStream},
};

use crate::{
    alone::{child_with, is_child},
    bench,
    fixture::{accelerator, block_until, calls, control, pattern},
    order::expected,
    program::{CudaContext, Stream},
    support::{Looks, this_test},
};

const LEN: usize = 64 << 10;

/// A worker, a stream of the program's on device 0, and a runtime of one thread.
struct Program {
    worker: Worker,
    context: Context,
    own: CudaContext,
    stream: Stream,
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Program) -> F) {
    bench::run(accelerator(), async |context, worker| {
        let own = crate::fixture::context(0);
        let stream = own.enter().expect("enters").stream().expect("a stream");
        test(Program {
            worker,
            context,
            own,
            stream,
        })
        .await;
    });
}

impl Program {
    fn handle(&self) -> CudaStream {
        handle(self.stream.raw())
    }

    async fn memory(&self, memory_type: MemoryType, bytes: &[u8]) -> BufferMut {
        let memory = self.context.allocate_on(memory_type, bytes.len()).await;
        let memory = memory.expect("memory");
        self.worker
            .copy(bytes.to_vec(), memory)
            .await
            .expect("filled")
    }

    /// Queues work that writes the pattern of `seed`, after so many microseconds.
    fn kernel(&self, micros: u64, memory: &Buffer, seed: u64) {
        let _guard = self.own.enter().expect("enters");
        let (raw, at) = (self.stream.raw(), address(memory));
        control(&format!("kernel {raw} {micros} fill {at} {LEN} {seed}"));
    }

    /// Queues work that reads device memory into pinned memory.
    fn reads(&self, from: u64, to: u64) {
        let guard = self.own.enter().expect("enters");
        self.stream.copy(&guard, to, from, LEN).expect("enqueued");
    }

    fn synchronize(&self) {
        let guard = self.own.enter().expect("enters");
        self.stream.synchronize(&guard).expect("the stream goes on");
    }
}

fn handle(raw: u64) -> CudaStream {
    // SAFETY: the tests' streams outlive their workers.
    unsafe { CudaStream::from_raw(std::ptr::with_exposed_provenance_mut(raw as usize), 0) }
}

/// Where memory that the host may not touch is.
fn address(buffer: &Buffer) -> u64 {
    buffer.device_range().expect("of a device").start()
}

/// One look at a future.
fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut cx = TaskContext::from_waker(Waker::noop());
    match pin!(future).poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Looks for a while: it does not come.
async fn waits<F: Future + Unpin>(future: &mut F) {
    let mut looks = Looks::new("its end");
    for _ in 0..25 {
        assert!(look(future).is_none(), "it does not wait");
        looks.again().await;
    }
}

#[test]
fn a_copy_begins_behind_a_kernel() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let source = program
            .memory(MemoryType::Cuda(0), &[0; LEN])
            .await
            .freeze();
        let event = program
            .own
            .enter()
            .expect("enters")
            .event()
            .expect("an event");
        let mut stale = 0;
        for seed in 1..40 {
            program.kernel(3000, &source, seed);
            if seed % 10 == 0 {
                // The control: without order the bytes are old ones, mostly.
                let found = worker
                    .copy(source.clone(), vec![0; LEN])
                    .await
                    .expect("copied");
                stale += u32::from(found != expected(seed, LEN));
            }
            let copy = worker.copy(source.clone(), vec![0; LEN]);
            let copy = if seed % 3 == 0 {
                let guard = program.own.enter().expect("enters");
                program.stream.record(&guard, &event).expect("records");
                let raw = std::ptr::with_exposed_provenance_mut(event.raw() as usize);
                // SAFETY: the event outlives the worker's use of it.
                copy.after(unsafe { CudaEvent::from_raw(raw, 0) })
            } else {
                copy.after(program.handle()).after(program.handle())
            };
            let found = copy.await.expect("copied");
            assert!(found == expected(seed, LEN), "stale bytes of {seed}");
        }
        assert!(stale > 0, "a kernel that is never late shows nothing");
    });
}

#[test]
fn a_stream_waits_for_a_copy_without_the_host() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let device = program
            .memory(MemoryType::Cuda(0), &[0; LEN])
            .await
            .freeze();
        let other = program
            .memory(MemoryType::Cuda(1), &[0; LEN])
            .await
            .freeze();
        let (mut target, mut far) = (device, other);
        for round in 1..20_u8 {
            let wanted = pattern(u64::from(round), LEN);
            let seen = program.memory(MemoryType::HostPinned, &[0; LEN]).await;
            let seen = seen.freeze();
            let source: Buffer = match round % 3 {
                0 => wanted.clone().into(),
                1 => program
                    .memory(MemoryType::HostPinned, &wanted)
                    .await
                    .freeze(),
                _ => {
                    let there = far.try_into_mut().expect("alone");
                    far = worker
                        .copy(wanted.clone(), there)
                        .await
                        .expect("filled")
                        .freeze();
                    far.clone()
                }
            };
            let (at, to) = (address(&target), seen.address() as u64);
            // Nothing goes on, and still the stream is told to wait.
            control("hold all");
            let room = target.try_into_mut().expect("alone");
            let copy = worker.copy(source, room).then_on(program.handle());
            let mut copy = copy.queued().await.expect("queued");
            assert!(look(&mut copy).is_none(), "nothing moves");
            program.reads(at, to);
            control("release all");
            program.synchronize();
            assert!(
                seen.as_slice() == Some(&wanted[..]),
                "stale bytes in round {round}"
            );
            target = copy.await.expect("copied").freeze();
        }
    });
}

#[test]
fn what_the_processor_ends_is_waited_for_by_the_host() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let wanted = pattern(3, LEN);
        let device = program.memory(MemoryType::Cuda(0), &wanted).await.freeze();
        control("hold all");
        let mut queued = worker
            .copy(device, vec![0; LEN])
            .then_on(program.handle())
            .queued();
        waits(&mut queued).await;
        control("release all");
        let copy = queued.await.expect("queued");
        assert!(copy.await.expect("copied") == wanted);
        // Between host memories there is nothing to wait for; behind a place there is.
        let none = worker
            .copy("abc", vec![0; 3])
            .then_on(program.handle())
            .queued();
        assert_eq!(none.await.expect("queued").await.expect("copied"), b"abc");
        control("hold all");
        let _guard = program.own.enter().expect("enters");
        control(&format!("kernel {} 1", program.stream.raw()));
        let mut copy = worker.copy("abc", vec![0; 3]).after(program.handle());
        waits(&mut copy).await;
        let mut reached = worker.reached(program.handle());
        waits(&mut reached).await;
        control("release all");
        reached.await.expect("reached");
        assert_eq!(copy.await.expect("copied"), b"abc");
    });
}

#[test]
fn no_stream_is_left_waiting() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let memory = async |context: &Context| {
            let memory = context.allocate_on(MemoryType::Cuda(0), LEN).await;
            memory.expect("memory")
        };
        drop(program.memory(MemoryType::Cuda(0), &[0; LEN]).await);
        // Dropped before and after it is queued.
        for polls in 0..2 {
            let target = memory(&program.context).await;
            control("hold all");
            let copy = worker
                .copy(pattern(1, LEN), target)
                .then_on(program.handle());
            let mut queued = copy.queued();
            for _ in 0..polls {
                drop(look(&mut queued));
            }
            drop(queued);
            control("release all");
            program.synchronize();
        }
        while worker.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        // A copy that fails, and one whose stream cannot be told.
        for fault in [
            "cuMemcpyHtoDAsync_v2@1=1",
            "cuStreamWaitEvent@1=1",
            "cuEventRecord@1=1",
        ] {
            control(&format!("fault {fault}"));
            let copy = worker.copy(pattern(1, LEN), memory(&program.context).await);
            let copy = copy.then_on(program.handle()).queued().await;
            let error = match copy {
                Err(error) => error,
                Ok(copy) => copy.await.expect_err(fault),
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{fault}: {error}");
            assert!(error.into_parts().1.is_some(), "{fault}");
            program.synchronize();
        }
        // Cancelled while it waits for a place: nothing has been touched.
        let (target, last) = (
            memory(&program.context).await,
            memory(&program.context).await,
        );
        control("hold all");
        {
            let _guard = program.own.enter().expect("enters");
            control(&format!("kernel {} 1", program.stream.raw()));
        }
        let copy = worker.copy(pattern(1, LEN), target);
        let mut copy = copy
            .after(program.handle())
            .then_on(program.handle())
            .post();
        waits(&mut copy).await;
        let error = copy.cancel().await.expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Canceled, "{error}");
        assert!(error.into_parts().1.is_some());
        // So is what waits when its worker ends.
        let left = worker.copy(pattern(1, LEN), last).after(program.handle());
        let left = left.then_on(program.handle()).post();
        control("release all");
        let Program {
            worker,
            context,
            own,
            stream,
        } = program;
        drop((worker, context));
        let _ = left.await;
        let guard = own.enter().expect("enters");
        block_until("the stream", || stream.is_idle(&guard).expect("an answer"));
    });
}

#[test]
fn streams_that_take_no_part() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        drop(program.memory(MemoryType::Cuda(0), &[0; 8]).await);
        control("fault cuStreamIsCapturing@1=906");
        let error = worker
            .reached(program.handle())
            .await
            .expect_err("captures");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("graph"), "{error}");
        let wrong = handle(0x1234_5678);
        let copy = worker.copy(vec![1; 8], vec![0; 8]).after(wrong).await;
        let (error, buffer) = copy.expect_err("no stream").into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert_eq!(buffer, Some(vec![0; 8]));
        // A context without the accelerator.
        let context = Context::builder().transports("self").expect("self");
        let context = context.build().expect("a context");
        let worker = Worker::new(&context).expect("a worker");
        for copy in [
            worker.copy("abc", vec![0; 3]).after(program.handle()),
            worker.copy("abc", vec![0; 3]).then_on(program.handle()),
        ] {
            let (error, buffer) = copy.await.expect_err("not in use").into_parts();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("cuda_copy"), "{error}");
            assert!(buffer.is_some());
        }
    });
}

#[test]
fn a_copy_without_streams_costs_no_more() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let mut memory = program.memory(MemoryType::Cuda(0), &[0; LEN]).await;
        let before = (calls("cuEventCreate"), calls("cuStreamWaitEvent"));
        for _ in 0..10 {
            memory = worker.copy(pattern(1, LEN), memory).await.expect("copied");
        }
        assert_eq!(before, (calls("cuEventCreate"), calls("cuStreamWaitEvent")));
        // One event and one wait for each stream that comes behind.
        let copy = worker
            .copy(pattern(1, LEN), memory)
            .then_on(program.handle());
        let _memory = copy.queued().await.expect("queued").await.expect("copied");
        assert_eq!(calls("cuStreamWaitEvent"), before.1 + 1);
    });
}

/// A semaphore signals behind what is in a stream: whoever passes finds what a kernel wrote, and nobody passes before.
#[test]
fn a_signal_comes_behind_a_kernel() {
    use wharf::channel::{Communicator, Semaphore, bootstrap::MemoryBootstrap};
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(async |program| {
        let worker = &program.worker;
        let group = MemoryBootstrap::group(1).expect("a group");
        let only = group.into_iter().next().expect("one rank");
        let only = Communicator::new(Arc::new(only), worker).await;
        let semaphore = Semaphore::pair(&only.expect("a communicator"), 0, 0).await;
        let semaphore = semaphore.expect("a pair");
        let memory = program.memory(MemoryType::Cuda(0), &[0; LEN]).await;
        let memory = memory.freeze();
        for seed in 1..10 {
            program.kernel(30_000, &memory, seed);
            let mut signal = Box::pin(semaphore.signal_after(program.handle()));
            assert!(look(&mut signal).is_none());
            assert_eq!(semaphore.pending(), 0, "the kernel still runs");
            let (signalled, passed) = tokio::join!(signal, semaphore.wait());
            signalled.expect("signalled");
            assert_eq!(passed.expect("passes"), seed);
            let found = worker.copy(memory.clone(), vec![0; LEN]).await;
            assert!(found.expect("copied") == expected(seed, LEN));
        }
        program.kernel(20_000, &memory, 50);
        let mut dropped = Box::pin(semaphore.signal_after(program.handle()));
        assert!(look(&mut dropped).is_none());
        drop(dropped);
        program.synchronize();
        assert_eq!(semaphore.pending(), 0, "dropped before, it does not signal");
    });
}

/// A lost device rings no bell. It is noticed by a look now and then, also of a worker that has nothing else to do.
#[test]
fn a_place_on_a_device_that_is_lost() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    run(|program| async move {
        let memory = program.memory(MemoryType::Cuda(0), &pattern(1, LEN)).await;
        let memory = memory.freeze();
        control("hold 0");
        program.kernel(10, &memory, 2);
        let mut reached = program.worker.reached(program.handle());
        waits(&mut reached).await;
        control("break 0 719");
        control("release 0");
        let error = reached.await.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        // What is asked for now fails too.
        let error = program.worker.reached(program.handle()).await;
        let error = error.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        // Nothing of the context can be given back.
        let _kept = std::mem::ManuallyDrop::new(program.stream);
    });
}
