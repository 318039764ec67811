//! Ordinary host memory: registered once through the registration cache, found again, let go with its memory; brought through fragments where it cannot be.
//!
//! # Safety
//! What the program registers itself it keeps until that is undone.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::Arc};

use wharf::{
    Buffer, BufferMut, Context, MemoryType, Worker,
    memory::AddressRange,
    transport::{accelerator::CopyEnd, cuda::CudaStream},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, Parked, accelerator, block_until, calls, context, control, pattern},
    program::CudaContext,
    support::{LIMIT, on_a_runtime, this_test},
};

const LEN: usize = 3_000_001;
const DEVICE: MemoryType = MemoryType::Cuda(0);

fn wharf(forbids: bool) -> (Context, Worker) {
    let builder = Context::builder().transports("self").expect("known");
    let builder = builder.accelerator(Arc::new(accelerator()));
    let builder = match forbids {
        true => builder.forbid_staging(),
        false => builder,
    };
    let context = builder.build().expect("a context");
    let worker = Worker::new(&context).expect("a worker");
    (context, worker)
}

fn end(bytes: &mut [u8], offset: usize) -> CopyEnd {
    CopyEnd::Host {
        address: bytes.as_mut_ptr().wrapping_add(offset),
        pinned: false,
    }
}

fn registered() -> u64 {
    calls("cuMemHostRegister_v2")
}

fn undone() -> u64 {
    calls("cuMemHostUnregister")
}

#[test]
fn it_is_registered_once_and_let_go_in_the_end() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let (mut bytes, mut back) = (pattern(1, LEN), vec![0; LEN]);
    let device = bench.allocate(MemoryType::Cuda(1), LEN);
    let mut round_trip = || {
        let (from, to) = (end(&mut bytes, 1), device.end(1));
        bench.copy(from, to, LEN - 1).expect("copies");
        let (from, to) = (device.end(1), end(&mut back, 1));
        bench.begin(from, to, LEN - 1, 1).expect("begins");
        parked.drain(&mut bench, 1);
        bench.sink.done.pop().expect("told").1.expect("copies");
        assert!(back[1..] == bytes[1..]);
        back.fill(0);
    };
    round_trip();
    let before = (registered(), undone());
    for _ in 0..10 {
        round_trip();
    }
    assert_eq!((registered(), undone()), before, "{}", control("trace"));
    drop((bytes, back));
    // They went away with a word, or the cache is gone.
    drop((parked, bench));
    block_until("the end", || undone() >= before.1 + 2);
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

#[test]
fn what_cannot_be_registered_comes_back() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let device = bench.allocate(DEVICE, LEN);
    let mut bytes = pattern(2, LEN);
    bench
        .copy(end(&mut bytes, 0), device.end(0), 10)
        .expect("copies");
    control("fault cuMemHostRegister_v2@1+=801");
    let mut others = pattern(3, LEN);
    let error = bench.copy(end(&mut others, 0), device.end(0), LEN);
    let error = error.expect_err("not registered");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    control("fault clear");
    assert!(bench.get(&device, 10) == bytes[..10], "nothing was copied");
}

#[test]
fn long_copies_of_ordinary_memory() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        let wanted = pattern(4, LEN);
        let memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        let memory = worker.copy(wanted.clone(), memory).await.expect("copied");
        assert_eq!(
            worker.metrics().staged.bytes,
            0,
            "one copy, of registered memory"
        );
        let back = vec![0; LEN];
        let place = AddressRange::new(back.as_ptr().expose_provenance() as u64, LEN as u64);
        let back = worker.copy(memory.freeze(), back).await.expect("copied");
        assert!(back == wanted);
        assert_eq!(worker.metrics().staged.bytes, 0);
        // It is the cache's business that it is registered still, and nobody's pinned memory.
        let known = wharf.memory_attributes(place.expect("a range"));
        assert_eq!(known.expect("known").memory_type, MemoryType::Host);
        let explained = worker.explain_copy(MemoryType::Host, DEVICE, LEN);
        assert!(!explained.is_staged, "{explained}");
        assert!(
            worker
                .explain_copy(MemoryType::Host, DEVICE, 1000)
                .is_staged
        );
        worker.shutdown(LIMIT).await.expect("shut down");
        drop(back);
    });
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

/// The cache is as the context's configuration has it.
#[test]
fn without_a_cache_each_copy_registers_for_itself() {
    if !is_child() {
        return child_with(this_test!(), &[("WHARF_RCACHE_ENABLE", "n")]);
    }
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        let bytes = Buffer::from(pattern(6, LEN));
        let memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        let mut memory = worker.copy(bytes.clone(), memory).await.expect("copied");
        let before = registered();
        for _ in 0..3 {
            memory = worker.copy(bytes.clone(), memory).await.expect("copied");
        }
        assert_eq!(registered() - before, 3, "{}", control("trace"));
        worker.shutdown(LIMIT).await.expect("shut down");
    });
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

/// The driver takes none of it: the bytes come through fragments, or fail where they may not stop.
#[test]
fn without_registration_it_is_staged() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    for forbids in [false, true] {
        on_a_runtime(async {
            let (wharf, worker) = wharf(forbids);
            let memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
            // The engine is open, and has its own memory registered.
            let first = wharf.allocate_on(MemoryType::HostPinned, 8).await;
            let copied = worker.copy(first.expect("memory").freeze(), memory).await;
            let memory = copied.expect("copied");
            control("fault cuMemHostRegister_v2@1+=801");
            let wanted = pattern(5, LEN);
            let copied = worker.copy(wanted.clone(), memory).await;
            if forbids {
                let error = copied.expect_err("it would stop").into_parts().0;
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            } else {
                let memory = copied.expect("copied");
                assert_eq!(worker.metrics().staged.bytes, LEN as u64);
                let back = worker.copy(memory.freeze(), vec![0; LEN]).await;
                assert!(back.expect("copied") == wanted);
                assert_eq!(worker.metrics().staged.bytes, 2 * LEN as u64);
            }
            control("fault clear");
            worker.shutdown(LIMIT).await.expect("shut down");
        });
    }
}

/// Memory that goes away while its registration is kept is not taken for what comes after it.
#[test]
fn other_memory_at_the_same_address() {
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        let mut memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        for round in 0..20 {
            let wanted = pattern(round, LEN);
            memory = worker.copy(wanted.clone(), memory).await.expect("copied");
            let source = memory.freeze();
            let back = worker.copy(source.clone(), vec![0; LEN]).await;
            assert!(back.expect("copied") == wanted, "round {round}");
            memory = source.try_into_mut().expect("nobody else has it");
        }
        worker.shutdown(LIMIT).await.expect("shut down");
    });
}

/// Memory that is gone while the driver keeps its registration, and the program's pinned memory where it was.
#[test]
fn pinned_memory_where_registered_memory_was() {
    struct Mapped(*mut libc::c_void);
    // SAFETY: an address.
    unsafe impl Send for Mapped {}
    // SAFETY: as above.
    unsafe impl Sync for Mapped {}
    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: mapped below, and nobody uses it any more.
            assert_eq!(unsafe { libc::munmap(self.0, LEN) }, 0);
        }
    }
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        // SAFETY: new memory.
        let place = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0)
        };
        assert_ne!(place, libc::MAP_FAILED);
        let at = place.expose_provenance() as u64;
        // SAFETY: zeroed, and there until its owner goes.
        let source = unsafe { Buffer::foreign(&wharf, at, LEN, Mapped(place)) };
        let memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        let source = source.expect("the host's");
        control("fault cuMemHostUnregister@1+=801");
        worker.copy(source, memory).await.expect("copied");
        assert_eq!(worker.metrics().staged.bytes, 0, "it is registered");
        let program = CudaContext::primary(0);
        let guard = program.enter().expect("current");
        const PINNED: usize = 64 << 10;
        let mut held = Vec::new();
        let there = (0..1000).find_map(|_| {
            let memory = guard.allocate_pinned(PINNED).expect("memory");
            let place = memory.address();
            held.push(memory);
            (at..at + LEN as u64).contains(&place).then_some(place)
        });
        let place = there.expect("the kernel has given it to nobody");
        let range = AddressRange::new(place, PINNED as u64).expect("a range");
        let known = wharf.memory_attributes(range).expect("known");
        assert_eq!(known.memory_type, MemoryType::HostPinned);
    });
}

/// Pieces of one buffer that share pages, at once.
#[test]
fn pieces_that_share_pages() {
    on_a_runtime(async {
        const PIECE: usize = (1 << 20) + 100;
        let (wharf, worker) = wharf(false);
        let wanted = pattern(6, 8 * PIECE);
        let source = Buffer::from(wanted.clone());
        let mut copies = Vec::new();
        for at in 0..8 {
            let memory = wharf.allocate_on(DEVICE, PIECE).await.expect("memory");
            let piece = source.slice(at * PIECE..(at + 1) * PIECE);
            copies.push(worker.copy(piece, memory).post());
        }
        for (at, copy) in copies.into_iter().enumerate() {
            let memory = copy.await.expect("copied");
            let back = worker.copy(memory.freeze(), vec![0; PIECE]).await;
            assert!(
                back.expect("copied") == wanted[at * PIECE..][..PIECE],
                "piece {at}"
            );
        }
        worker.shutdown(LIMIT).await.expect("shut down");
    });
}

/// What the program has registered itself: all of it is used as it is, of a part the bytes are staged.
#[test]
fn memory_that_the_program_has_registered() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        let driver = context(0);
        let memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        let mut memory = worker.copy(vec![0; 10], memory).await.expect("copied");
        let mut staged = worker.metrics().staged.bytes;
        for (part, stops) in [(LEN, 0), (LEN / 2, LEN as u64)] {
            let wanted = pattern(part as u64, LEN);
            let mine = {
                let guard = driver.enter().expect("current");
                let bytes = NonNull::from(&wanted[..]).cast::<u8>();
                guard.register_host(bytes, part).expect("registered")
            };
            let address = wanted.as_ptr();
            // SAFETY: kept until the copy is over.
            let source = unsafe { Buffer::from_raw(address, LEN, ()) };
            memory = worker.copy(source, memory).await.expect("copied");
            let more = worker.metrics().staged.bytes - staged;
            assert_eq!(more, stops, "{part} bytes registered");
            drop(mine);
            let source = memory.freeze();
            let back = worker.copy(source.clone(), vec![0; LEN]).await;
            assert!(back.expect("copied") == wanted);
            memory = source.try_into_mut().expect("nobody else has it");
            staged = worker.metrics().staged.bytes;
        }
        worker.shutdown(LIMIT).await.expect("shut down");
    });
    assert_eq!(control("misused"), "0", "{}", control("misuses"));
}

/// A stream of the program's that comes after such a copy.
#[test]
fn a_stream_comes_after_it() {
    on_a_runtime(async {
        let (wharf, worker) = wharf(false);
        let driver = context(0);
        let (target, stream) = {
            let guard = driver.enter().expect("current");
            let target = guard.allocate_pinned(LEN).expect("memory");
            (target, guard.stream().expect("a stream"))
        };
        let at = target.at();
        // SAFETY: kept by its owner; read when the stream is done.
        let target = unsafe { BufferMut::foreign(&wharf, at, LEN, target) }.expect("found");
        let raw = std::ptr::with_exposed_provenance_mut(stream.raw() as usize);
        // SAFETY: it lives until the worker has ended.
        let place = unsafe { CudaStream::from_raw(raw, 0) };
        let mut memory = wharf.allocate_on(DEVICE, LEN).await.expect("memory");
        for round in 10..15 {
            let wanted = pattern(round, LEN);
            let copy = worker
                .copy(wanted.clone(), memory)
                .then_on(place)
                .queued()
                .await;
            let from = {
                let copy = copy.expect("queued");
                let device = copy.await.expect("copied");
                let from = device.device_range().expect("a device's").start();
                memory = device;
                from
            };
            {
                let guard = driver.enter().expect("current");
                stream.copy(&guard, at, from, LEN).expect("queued");
            }
            worker.reached(place).await.expect("reached");
            assert!(
                target.as_slice().expect("the host's") == wanted,
                "round {round}"
            );
        }
        worker.shutdown(LIMIT).await.expect("shut down");
        drop((target, stream, memory));
    });
}
