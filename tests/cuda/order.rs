//! Transfers in order with the program's own streams.
//!
//! # Safety
//! Streams and events outlive the engine's use of them.
#![allow(unsafe_code)]

use wharf::{
    MemoryType,
    transport::{
        SendError,
        accelerator::{DevicePlace, DeviceStream},
        cuda::{CudaEvent, CudaStream},
    },
};

use crate::{
    alone::{child_with, is_child},
    error::{Error, ErrorKind, Result},
    fixture::{Bench, Parked, block_until, context, control},
    program::{CudaContext, Stream},
    support::this_test,
};

/// A stream as a program has it.
fn handle(raw: u64, device: u16) -> CudaStream {
    // SAFETY: the tests' streams outlive their benches' use of them.
    unsafe { CudaStream::from_raw(std::ptr::with_exposed_provenance_mut(raw as usize), device) }
}

fn after(bench: &mut Bench, place: impl Into<DevicePlace>, token: u64) -> Result<()> {
    match bench.engine.after(place.into(), token) {
        Ok(()) => Ok(()),
        Err(SendError::Full) => Err(Error::new(ErrorKind::WouldBlock, "full")),
        Err(SendError::Failed(error)) => Err(error),
    }
}

/// Queues a "kernel" in a stream: after `micros` it writes the pattern of `seed`.
fn kernel(own: &CudaContext, raw: u64, micros: u64, at: u64, length: u64, seed: u64) {
    let _guard = own.enter().expect("enters");
    control(&format!("kernel {raw} {micros} fill {at} {length} {seed}"));
}

#[test]
fn what_a_kernel_writes_is_copied_after_it() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    const LEN: usize = 4096;
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let own = context(1);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    let event = own.enter().expect("enters").event().expect("an event");
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(1), LEN), bench.pinned(LEN));
    let at = device.address();
    let mut stale = 0;
    for seed in 1..60_u64 {
        let raw = match seed % 3 {
            0 => 0,
            _ => stream.raw(),
        };
        kernel(&own, raw, 3000, at, LEN as u64, seed);
        let place: DevicePlace = if seed % 3 == 2 {
            let guard = own.enter().expect("enters");
            stream.record(&guard, &event).expect("records");
            // SAFETY: the event outlives the engine's use of it.
            unsafe {
                CudaEvent::from_raw(
                    std::ptr::with_exposed_provenance_mut(event.raw() as usize),
                    1,
                )
            }
            .into()
        } else {
            handle(raw, 1).into()
        };
        // The control: without order the bytes are old ones, mostly.
        if seed % 10 == 0 {
            bench
                .copy(device.end(0), pinned.end(0), LEN)
                .expect("copies");
            stale += u32::from(pinned.bytes()[..16] != expected(seed, 16)[..]);
        }
        after(&mut bench, place, 5).expect("waits");
        if seed % 2 == 0 {
            parked.drain(&mut bench, 1);
        } else {
            bench.drain(1);
        }
        assert!(matches!(bench.sink.done.pop(), Some((5, Ok(())))));
        bench
            .copy(device.end(0), pinned.end(0), LEN)
            .expect("copies");
        assert!(
            pinned.bytes() == expected(seed, LEN),
            "stale bytes of {seed}"
        );
    }
    assert!(stale > 0, "a kernel that is never late shows nothing");
}

/// The emulator's pattern.
pub(crate) fn expected(seed: u64, length: usize) -> Vec<u8> {
    let byte =
        |index: u64| (seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..length as u64).map(byte).collect()
}

#[test]
fn a_stream_that_waits_holds_up_no_copies() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let own = context(0);
    let guard = own.enter().expect("enters");
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    let word = guard.allocate_pinned(8).expect("memory");
    let streams: Vec<Stream> = (0..5).map(|_| guard.stream().expect("a stream")).collect();
    // Each of them waits for what the host has yet to write.
    for stream in &streams {
        stream.wait_value(&guard, word.at(), 1).expect("waits");
    }
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("opens the device");
    for (token, stream) in streams.iter().enumerate() {
        after(&mut bench, handle(stream.raw(), 0), token as u64).expect("waits");
    }
    for _ in 0..20 {
        bench
            .copy(pinned.end(0), device.end(0), 64)
            .expect("goes on");
        bench
            .copy(device.end(0), pinned.end(0), 64)
            .expect("goes on");
    }
    let open = std::ptr::with_exposed_provenance_mut::<u64>(word.at() as usize);
    // SAFETY: eight aligned bytes that are accessed atomically alone.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(open) }
        .store(1, std::sync::atomic::Ordering::SeqCst);
    bench.drain(5);
    let mut told: Vec<_> = bench
        .sink
        .done
        .drain(..)
        .map(|(token, result)| result.map(|()| token).expect("reached"))
        .collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2, 3, 4]);
}

/// Whatever is blocked, places that are reached are told, of streams and of an event: whoever unblocks the others may wait for one of them.
#[test]
fn places_that_are_never_reached_hold_up_no_others() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let mut parked = Parked::new(&mut bench);
    let own = context(0);
    let guard = own.enter().expect("enters");
    let (device, pinned) = (bench.allocate(MemoryType::Cuda(0), 64), bench.pinned(64));
    let word = guard.allocate_pinned(8).expect("memory");
    let stream = || guard.stream().expect("a stream");
    let (blocked, free) = (stream(), stream());
    blocked.wait_value(&guard, word.at(), 1).expect("waits");
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("opens the device");
    // More than copies may be under way, of which none is refused for that.
    const PLACES: u64 = 1500;
    for token in 0..PLACES {
        after(&mut bench, handle(blocked.raw(), 0), token).expect("waits");
    }
    for token in (PLACES..).take(9) {
        kernel(&own, free.raw(), 3000, device.address(), 64, token);
        after(&mut bench, handle(free.raw(), 0), token).expect("waits");
        if token % 2 == 0 {
            parked.drain(&mut bench, 1);
        } else {
            bench.drain(1);
        }
        let told = bench.sink.done.pop();
        assert!(
            matches!(&told, Some((at, Ok(()))) if *at == token),
            "{told:?}"
        );
    }
    let event = guard.event().expect("an event");
    free.record(&guard, &event).expect("records");
    let raw = std::ptr::with_exposed_provenance_mut(event.raw() as usize);
    // SAFETY: the event outlives the engine's use of it.
    let event = unsafe { CudaEvent::from_raw(raw, 0) };
    after(&mut bench, event, PLACES).expect("has room");
    bench.drain(1);
    assert!(matches!(bench.sink.done.pop(), Some((PLACES, Ok(())))));
    bench
        .copy(pinned.end(0), device.end(0), 64)
        .expect("goes on");
    let open = std::ptr::with_exposed_provenance_mut::<u64>(word.at() as usize);
    // SAFETY: eight aligned bytes that are accessed atomically alone.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(open) }
        .store(1, std::sync::atomic::Ordering::SeqCst);
    parked.drain(&mut bench, PLACES as usize);
    assert!(bench.sink.done.drain(..).all(|(_, result)| result.is_ok()));
}

#[test]
fn a_place_on_a_device_that_is_not_open_yet() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let own = context(1);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    let device = bench.allocate(MemoryType::Cuda(1), 64);
    for seed in 0..6 {
        kernel(&own, stream.raw(), 2000, device.address(), 64, seed);
        after(&mut bench, handle(stream.raw(), 1), seed).expect("waits");
    }
    bench.drain(6);
    assert!(bench.sink.done.drain(..).all(|(_, result)| result.is_ok()));
    assert_eq!(
        control(&format!("compare {} 64 5", device.address())),
        "same"
    );
}

#[test]
fn a_stream_waits_for_copies_and_for_nobody_else() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    const LEN: usize = 4096;
    let mut bench = Bench::new();
    let own = context(0);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    let (device, target) = (bench.allocate(MemoryType::Cuda(0), LEN), bench.pinned(LEN));
    let mut source = bench.pinned(LEN);
    bench
        .begin(source.end(0), device.end(0), 64, 1)
        .expect("begins");
    // Before its device is open, and after: nothing of it, all of it.
    match bench.engine.then(handle(stream.raw(), 0).into(), &[1]) {
        Ok(()) | Err(SendError::Full) => {}
        Err(SendError::Failed(error)) => panic!("{error}"),
    }
    bench.engine.flush();
    bench.drain(1);
    for round in 1..=40_u8 {
        let raw = if round % 2 == 0 { stream.raw() } else { 0 };
        source.bytes_mut().fill(round);
        control("hold 0");
        bench
            .begin(source.end(0), device.end(0), LEN, 7)
            .expect("begins");
        let then = bench.engine.then(handle(raw, 0).into(), &[7, 99]);
        assert!(then.is_ok(), "round {round}");
        // The program's own work behind: it reads what the copy brings.
        let guard = own.enter().expect("enters");
        let (to, from) = (target.address(), device.address());
        let adopted = Stream::adopt(&own, raw);
        adopted.copy(&guard, to, from, LEN).expect("enqueued");
        control("release 0");
        adopted.synchronize(&guard).expect("goes on");
        assert!(target.bytes().iter().all(|byte| *byte == round));
        drop(guard);
        bench.drain(1);
    }
    // Of an engine that is gone it waits for nothing that does not end.
    control("hold 0");
    bench
        .begin(source.end(0), device.end(0), LEN, 7)
        .expect("begins");
    let then = bench.engine.then(handle(stream.raw(), 0).into(), &[7]);
    assert!(then.is_ok());
    control("release 0");
    drop(bench);
    let guard = own.enter().expect("enters");
    block_until("the stream", || stream.is_idle(&guard).expect("an answer"));
}

#[test]
fn streams_that_take_no_part_are_refused() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let mut bench = Bench::new();
    let own = context(0);
    let stream = own.enter().expect("enters").stream().expect("a stream");
    // One that captures a graph, or would be drawn into another's capture.
    control("fault cuStreamIsCapturing@1=906");
    let error = bench.engine.then(handle(stream.raw(), 0).into(), &[1]);
    assert!(
        matches!(&error, Err(SendError::Failed(error)) if error.kind() == ErrorKind::InvalidArgument),
        "{error:?}"
    );
    control("fault cuStreamIsCapturing@1=906");
    let error = after(&mut bench, handle(stream.raw(), 0), 1).expect_err("captures");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("graph"), "{error}");
    // No stream at all; another thread's default stream; a device that nobody uses; no such device.
    for (raw, device) in [(0x1234_5678, 0), (2, 0), (0, 1), (0, 9)] {
        let error = after(&mut bench, handle(raw, device), 1).expect_err("none");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    assert_eq!(bench.engine.progress(1, &mut bench.sink), 0);
    let place = DeviceStream::from(handle(stream.raw(), 0));
    assert_eq!(place.accelerator(), "cuda_copy");
}
