//! Devices, contexts, memory and streams, on the emulated driver through the real loader.
//!
//! Tests that count calls, or break something, run in a process of their own.
//!
//! # Safety
//! Copies are between allocations that outlive the stream's synchronisation, or that the test means to break.
#![allow(unsafe_code)]

use std::{
    path::Path,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    alone::{child_with, is_child},
    driver::cuda::{
        Attribute, ContextGuard, CudaContext, DeviceAllocation, DevicePtr, Event, HostCallback,
        IpcHandle, PinnedAllocation, PointerKind, RawPool, Status, Stream, Waiting,
    },
    emulated::{calls, context, control, cuda, library, raw},
    error::{ErrorKind, Result},
    kinds::{Pooled, Virtual},
    support::{Child, LIMIT, block_until, pattern, table, this_test, watchdog},
};

/// Puts bytes into pinned memory.
fn fill(pinned: &PinnedAllocation, bytes: &[u8]) {
    // SAFETY: within the allocation, as the callers see to, which no stream uses now.
    unsafe {
        pinned
            .as_ptr()
            .as_ptr()
            .copy_from(bytes.as_ptr(), bytes.len())
    };
}

/// What is in the first `len` bytes of pinned memory.
fn content(pinned: &PinnedAllocation, len: usize) -> Vec<u8> {
    // SAFETY: within the allocation, as the callers see to, which no stream uses now.
    unsafe { std::slice::from_raw_parts(pinned.as_ptr().as_ptr(), len) }.to_vec()
}

/// Copies and waits.
fn copy_now(
    guard: &ContextGuard<'_>,
    target: DevicePtr,
    source: DevicePtr,
    len: usize,
) -> Result<()> {
    let stream = guard.stream(false)?;
    // SAFETY: the callers' allocations outlive this call.
    unsafe { stream.copy(guard, target, source, len) }?;
    stream.synchronize(guard)
}

#[test]
fn handles_may_cross_threads_but_a_guard_may_not() {
    fn crosses<T: Send + Sync>() {}
    crosses::<CudaContext>();
    crosses::<DeviceAllocation>();
    crosses::<PinnedAllocation>();
    crosses::<Stream>();
    crosses::<Event>();
    // Two implementations would be ambiguous: it compiles because a guard is not `Send`.
    trait Stays<A> {
        fn stays() {}
    }
    impl<T: ?Sized> Stays<()> for T {}
    impl<T: ?Sized + Send> Stays<u8> for T {}
    <ContextGuard<'static> as Stays<_>>::stays();
}

#[test]
fn loading_initialises_nothing() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let cuda = cuda();
    assert!(!cuda.is_initialised());
    let local = 0_u64;
    let info = cuda
        .inspect(DevicePtr::of_host(&raw const local))
        .expect("no error");
    assert_eq!(info.kind, PointerKind::Unknown);
    assert_eq!(cuda.buffer_id(DevicePtr(4096)).expect("no error"), None);
    assert_eq!(calls("cuInit"), 0);
    cuda.devices().expect("devices");
    cuda.devices().expect("devices");
    assert!(cuda.is_initialised());
    assert_eq!(calls("cuInit"), 1);
    assert_eq!(calls("cuDevicePrimaryCtxRetain"), 0);
    let absent: Vec<_> = table::functions("cuda")
        .into_iter()
        .filter(|function| !raw().has(&function.name))
        .collect();
    assert!(absent.is_empty(), "the emulated driver lacks {absent:?}");
}

#[test]
fn devices_say_who_they_are() {
    let devices = cuda().devices().expect("devices");
    assert_eq!(devices.len(), 2);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(usize::from(device.ordinal()), ordinal);
        assert!(!device.name().expect("a name").is_empty());
        assert!(device.has(Attribute::StreamMemoryOps64).expect("an answer"));
        let pci = device.pci_bus_id().expect("an address");
        // Its place by numbers: domain, bus and device.
        let [domain, bus, slot] = [50, 33, 34].map(|attribute| {
            let mut value = 0;
            raw().ok(raw().cuDeviceGetAttribute(
                &mut value,
                attribute,
                i32::from(device.ordinal()),
            ));
            value
        });
        assert_eq!(pci, format!("{domain:04x}:{bus:02x}:{slot:02x}.0"));
    }
    let uuids: Vec<_> = devices
        .iter()
        .map(|device| device.uuid().expect("one"))
        .collect();
    assert_ne!(uuids[0], uuids[1]);
    assert_eq!(uuids[0].to_string().len(), "GPU-".len() + 36);
    assert!(devices[0].can_access(&devices[1]).expect("an answer"));
    let error = cuda().device(99).expect_err("no such device");
    assert_eq!(Status::of(&error), Some(Status::INVALID_DEVICE));
}

#[test]
fn a_primary_context_is_held_once_and_let_go() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let device = cuda().device(0).expect("a device");
    assert!(!device.is_active().expect("an answer"));
    assert!(
        device.active_context().expect("no error").is_none(),
        "asking makes none"
    );
    let context = device.primary_context().expect("a context");
    let again = device
        .active_context()
        .expect("no error")
        .expect("is active now");
    assert_eq!(context.id(), again.id());
    assert_eq!(calls("cuDevicePrimaryCtxRetain"), 1);
    let memory = context
        .enter()
        .expect("enters")
        .allocate(64)
        .expect("memory");
    drop((context, again));
    assert!(
        device.is_active().expect("an answer"),
        "the memory keeps it"
    );
    drop(memory);
    assert!(!device.is_active().expect("an answer"));
    assert_eq!(calls("cuDevicePrimaryCtxRelease_v2"), 1);
    // Threads that ask at once share one.
    let contexts: Vec<_> = std::thread::scope(|scope| {
        let ask = || device.primary_context().expect("a context");
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert!(contexts.windows(2).all(|pair| pair[0].id() == pair[1].id()));
    drop(contexts);
    assert!(!device.is_active().expect("an answer"));
    assert_eq!(
        calls("cuDevicePrimaryCtxRelease_v2"),
        calls("cuDevicePrimaryCtxRetain")
    );
}

#[test]
fn guards_nest() {
    let (first, second) = (context(0), context(1));
    let device_of = |guard: &ContextGuard<'_>| {
        let memory = guard.allocate(1).expect("memory");
        cuda().inspect(memory.ptr()).expect("an answer").device
    };
    let outer = first.enter().expect("enters");
    {
        let inner = second.enter().expect("enters");
        assert_eq!(device_of(&inner), Some(1));
    }
    assert_eq!(device_of(&outer), Some(0));
    // Neither streams nor events of another context are taken.
    let inner = second.enter().expect("enters");
    let (stream, event) = (
        inner.stream(true).expect("a stream"),
        inner.event(Waiting::Spin).expect("an event"),
    );
    drop(inner);
    for error in [
        stream.is_idle(&outer).expect_err("is of another context"),
        stream
            .record(&outer, &event)
            .expect_err("is of another context"),
        event.is_done(&outer).expect_err("is of another context"),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn addresses_are_told_apart() {
    let context = context(0);
    let guard = context.enter().expect("enters");
    let cuda = cuda();
    let kind = |at: DevicePtr| cuda.inspect(at).expect("an answer").kind;

    let memory = guard.allocate(10_000).expect("memory");
    let inside = memory.ptr() + 5_000;
    let info = cuda.inspect(inside).expect("an answer");
    assert_eq!((info.kind, info.device), (PointerKind::Device, Some(0)));
    assert_eq!(info.context, Some(context.raw()));
    assert_eq!(info.range, Some((memory.ptr(), 10_000)));
    assert!(info.legacy_ipc && info.pool.is_none());
    assert_eq!(
        guard.address_range(inside).expect("known"),
        (memory.ptr(), 10_000)
    );
    assert_eq!(
        cuda.buffer_id(inside).expect("an answer"),
        Some(info.buffer_id)
    );
    cuda.set_sync_memops(memory.ptr()).expect("is set");
    let at = memory.ptr();
    drop(memory);
    assert_eq!(kind(at), PointerKind::Unknown);
    assert_eq!(cuda.buffer_id(at).expect("an answer"), None);
    let error = guard.address_range(at).expect_err("is freed");
    assert!(error.to_string().contains(&at.to_string()), "{error}");

    let pinned = guard.allocate_pinned(4096).expect("memory");
    assert!(content(&pinned, 4096).iter().all(|byte| *byte == 0));
    assert_eq!(
        kind(DevicePtr::of_host(pinned.as_ptr().as_ptr()) + 4095),
        PointerKind::HostPinned
    );
    let managed = guard.allocate_managed(4096).expect("memory");
    assert_eq!(kind(managed.ptr() + 1), PointerKind::Managed);
    let virtually = Virtual::new(raw(), 0, 100);
    let at = DevicePtr(virtually.at);
    assert_eq!(kind(at), PointerKind::DeviceVirtual);
    drop(virtually);
    assert_eq!(kind(at), PointerKind::Unknown);
    let plain = [0_u8; 64];
    assert_eq!(
        kind(DevicePtr::of_host(&raw const plain)),
        PointerKind::Unknown
    );
}

#[test]
fn pools_are_told_and_shared() {
    use std::os::fd::AsFd as _;
    let context = context(1);
    let guard = context.enter().expect("enters");
    let stream = guard.stream(false).expect("a stream");
    let memory = Pooled::new(raw(), 1, 1 << 16);
    let at = DevicePtr(memory.at);
    let info = cuda().inspect(at).expect("an answer");
    assert_eq!((info.kind, info.device), (PointerKind::DevicePool, Some(1)));
    assert!(!info.legacy_ipc);
    let fd = cuda()
        .export_pool_fd(RawPool(memory.pool as usize))
        .expect("a descriptor");
    let imported = guard.import_pool(fd.as_fd()).expect("imports");
    let pointer = cuda().export_pool_pointer(at).expect("exports");
    let there = imported.open(&guard, &pointer).expect("imports");
    // SAFETY: allocations of this test, which wait for the stream.
    unsafe { stream.fill(&guard, at, 0x5a, 256) }.expect("enqueued");
    stream.synchronize(&guard).expect("done");
    let back = guard.allocate_pinned(256).expect("memory");
    copy_now(&guard, back.device_ptr(), there.ptr(), 256).expect("copies");
    assert_eq!(content(&back, 256), [0x5a; 256]);
}

#[test]
fn host_memory_is_registered_once() {
    let context = context(0);
    let guard = context.enter().expect("enters");
    let mut memory = vec![1_u8; 3 << 12];
    let start = NonNull::from(memory.as_mut_slice()).cast::<u8>();
    // SAFETY: `memory` outlives the registrations.
    let first = unsafe { guard.register_host(start, memory.len(), true) }.expect("registers");
    let kind = |at: NonNull<u8>| {
        cuda()
            .inspect(DevicePtr::of_host(at.as_ptr()))
            .expect("an answer")
            .kind
    };
    assert_eq!(kind(start), PointerKind::HostPinned);
    // SAFETY: as above; within `memory`.
    let second = unsafe { guard.register_host(start.add(100), 100, true) }.expect("no error");
    drop(second);
    assert_eq!(
        kind(start),
        PointerKind::HostPinned,
        "the first still owns it"
    );
    drop(first);
    assert_eq!(kind(start), PointerKind::Unknown);
    // SAFETY: nothing is registered of no bytes.
    let error = unsafe { guard.register_host(start, 0, true) }.expect_err("no bytes");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn copies_arrive_in_the_order_of_their_stream() {
    const LEN: usize = 1 << 20;
    let (near, far) = (context(0), context(1));
    let data = pattern(3, LEN);
    let guard = near.enter().expect("enters");
    let (source, target) = (
        guard.allocate_pinned(LEN).expect("memory"),
        guard.allocate_pinned(LEN).expect("memory"),
    );
    let (a, b) = (
        guard.allocate(LEN).expect("memory"),
        guard.allocate(LEN).expect("memory"),
    );
    let c = far.enter().expect("enters").allocate(LEN).expect("memory");
    fill(&source, &data);
    let (up, down) = (
        guard.stream(false).expect("a stream"),
        guard.stream(true).expect("a stream"),
    );
    let (copied, all) = (
        guard.event(Waiting::Spin).expect("an event"),
        guard.event(Waiting::Sleep).expect("an event"),
    );
    assert!(
        copied.is_done(&guard).expect("an answer"),
        "one never recorded is reached"
    );
    // SAFETY: all live until `all` was waited for.
    unsafe {
        up.copy(&guard, a.ptr(), source.device_ptr(), LEN)
            .expect("enqueued");
        up.copy(&guard, b.ptr(), a.ptr(), LEN).expect("enqueued");
        up.copy(&guard, c.ptr(), b.ptr(), LEN).expect("enqueued");
        up.record(&guard, &copied).expect("enqueued");
        // Without this the copy would overtake.
        down.wait(&guard, &copied).expect("enqueued");
        down.copy(&guard, target.device_ptr(), c.ptr(), LEN)
            .expect("enqueued");
    }
    down.record(&guard, &all).expect("enqueued");
    all.wait(&guard).expect("done");
    assert!(all.is_done(&guard).expect("an answer") && up.is_idle(&guard).expect("an answer"));
    assert!(content(&target, LEN) == data, "other bytes came back");
}

#[test]
fn a_word_tells_without_a_call() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_DELAY_US", "2000")]);
    }
    const LEN: usize = 1 << 16;
    let context = context(0);
    let guard = context.enter().expect("enters");
    let word = guard.allocate_pinned(8).expect("memory");
    let (source, target) = (
        guard.allocate_pinned(LEN).expect("memory"),
        guard.allocate_pinned(LEN).expect("memory"),
    );
    let memory = guard.allocate(LEN).expect("memory");
    let stream = guard.stream(false).expect("a stream");
    // SAFETY: 8 bytes of pinned memory, accessed by atomics alone.
    let seen = unsafe { AtomicU64::from_ptr(word.as_ptr().as_ptr().cast()) };
    for number in 1..=20 {
        fill(&source, &pattern(number, LEN));
        // SAFETY: all live until the word has come.
        unsafe {
            stream
                .copy(&guard, memory.ptr(), source.device_ptr(), LEN)
                .expect("enqueued");
            stream
                .copy(&guard, target.device_ptr(), memory.ptr(), LEN)
                .expect("enqueued");
            stream
                .write_value(&guard, word.device_ptr(), number)
                .expect("enqueued");
        }
        let before = calls("cuStreamQuery") + calls("cuEventQuery");
        block_until("the word", || seen.load(Ordering::Acquire) == number);
        assert!(
            content(&target, LEN) == pattern(number, LEN),
            "the word came before the bytes"
        );
        assert_eq!(calls("cuStreamQuery") + calls("cuEventQuery"), before);
    }
    // SAFETY: a misaligned word is refused.
    let error =
        unsafe { stream.write_value(&guard, word.device_ptr() + 4, 1) }.expect_err("misaligned");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[derive(Default)]
struct Called {
    ran: AtomicBool,
    panics: bool,
}

impl HostCallback for Called {
    fn run(&self) {
        self.ran.store(true, Ordering::Release);
        if self.panics {
            // Quietly: nothing that failed stands in the output.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

#[test]
fn a_host_function_runs_once_and_gives_back_what_it_had() {
    let context = context(0);
    let guard = context.enter().expect("enters");
    let stream = guard.stream(false).expect("a stream");
    for panics in [false, true, false] {
        let called = Arc::new(Called {
            panics,
            ..Called::default()
        });
        stream
            .notify(&guard, Arc::clone(&called))
            .expect("enqueued");
        block_until("the host function", || {
            called.ran.load(Ordering::Acquire) && Arc::strong_count(&called) == 1
        });
    }
    stream.synchronize(&guard).expect("the stream goes on");
}

#[test]
fn a_stream_of_the_programs_is_adopted() {
    let context = context(1);
    let guard = context.enter().expect("enters");
    let own = guard.stream(false).expect("a stream");
    // SAFETY: the stream outlives what is adopted.
    let adopted = unsafe { cuda().adopt_stream(own.raw()) }.expect("adopts");
    assert_eq!(adopted.context().id(), context.id());
    assert_eq!(adopted.context().device().ordinal(), 1);
    adopted.synchronize(&guard).expect("the same context");
    drop(adopted);
    assert!(own.is_idle(&guard).expect("was not destroyed"));
}

#[test]
fn a_dma_buf_tells_where_the_memory_lies() {
    let context = context(0);
    let guard = context.enter().expect("enters");
    let memory = guard.allocate(1 << 20).expect("memory");
    // Behind memory of another test's it begins within a page.
    let begin = memory.ptr().0 % 4096;
    for (from, length) in [(0, 1 << 20), (5000, 100)] {
        let found = guard
            .export_dma_buf(memory.ptr() + from, length as usize, false)
            .expect("exports");
        let offset = (begin + from) % 4096;
        let pages = (offset + length).next_multiple_of(4096);
        assert_eq!((found.offset, found.len), (offset, pages));
    }
    let pinned = guard.allocate_pinned(4096).expect("memory");
    assert!(
        guard
            .export_dma_buf(pinned.device_ptr(), 4096, false)
            .is_err()
    );
}

#[test]
fn memory_is_shared_by_descriptor() {
    use std::os::fd::AsFd as _;
    let (context, other) = (context(0), context(1));
    let guard = context.enter().expect("enters");
    let memory = Virtual::new(raw(), 0, 1 << 20);
    let at = DevicePtr(memory.at);
    let fd = cuda()
        .export_virtual_fd(at, || Ok(()))
        .expect("a descriptor");
    let stream = guard.stream(false).expect("a stream");
    // SAFETY: an allocation of this test, which waits for the stream.
    unsafe { stream.fill(&guard, at, 0xa7, 4096) }.expect("enqueued");
    stream.synchronize(&guard).expect("done");
    drop(stream);
    let guard = other.enter().expect("enters");
    let imported = guard
        .import_virtual(fd.as_fd(), memory.len)
        .expect("imports");
    assert_ne!(imported.ptr(), at);
    // The memory lives as long as somebody has it mapped.
    drop(memory);
    let back = guard.allocate_pinned(4096).expect("memory");
    copy_now(&guard, back.device_ptr(), imported.ptr(), 4096).expect("copies");
    assert!(content(&back, 4096).iter().all(|byte| *byte == 0xa7));
    // What is no memory is refused, and the process goes on.
    let file = std::fs::File::open("/dev/null").expect("there");
    assert!(guard.import_virtual(file.as_fd(), 2 << 20).is_err());
}

#[tokio::test]
async fn memory_is_shared_by_handle() {
    const LEN: usize = 1 << 16;
    let path = library();
    let variable = ("WHARF_LIBCUDA", path.to_str().expect("UTF-8"));
    if let Some(mut parent) = crate::support::child("exporter") {
        assert_eq!(Path::new(variable.1), library());
        let context = context(0);
        let guard = context.enter().expect("enters");
        let memory = guard.allocate(LEN).expect("memory");
        let source = guard.allocate_pinned(LEN).expect("memory");
        fill(&source, &pattern(1, LEN));
        copy_now(&guard, memory.ptr(), source.device_ptr(), LEN).expect("copies");
        let (handle, offset) = guard.ipc_export(memory.ptr() + 100).expect("exports");
        assert_eq!(offset, 100);
        let error = guard.ipc_open(&handle).expect_err("its own");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        drop(guard);
        let hex: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
        parent.say(hex);
        assert_eq!(parent.hear().await, "written");
        let guard = context.enter().expect("enters");
        copy_now(&guard, source.device_ptr(), memory.ptr(), LEN).expect("copies");
        assert!(
            content(&source, LEN) == pattern(2, LEN),
            "the importer's bytes are not here"
        );
        return;
    }
    let mut child = Child::start(this_test!(), "exporter", &[variable]);
    let line = watchdog(LIMIT, child.hear()).await;
    let mut handle = IpcHandle([0; 64]);
    for (byte, at) in handle.0.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&line[at..at + 2], 16).expect("hex");
    }
    {
        let context = context(0);
        let guard = context.enter().expect("enters");
        let mapping = guard.ipc_open(&handle).expect("opens");
        let pinned = guard.allocate_pinned(LEN).expect("memory");
        copy_now(&guard, pinned.device_ptr(), mapping.ptr(), LEN).expect("copies");
        assert!(
            content(&pinned, LEN) == pattern(1, LEN),
            "the exporter's bytes are not here"
        );
        fill(&pinned, &pattern(2, LEN));
        copy_now(&guard, mapping.ptr(), pinned.device_ptr(), LEN).expect("copies");
        drop(mapping);
        let error = guard.ipc_open(&IpcHandle([7; 64])).expect_err("no handle");
        assert_ne!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    child.say("written");
    child.finish();
}

#[test]
fn running_out_is_told() {
    let context = context(0);
    let guard = context.enter().expect("enters");
    let (_, total) = memory_info();
    let error = guard.allocate(total + 1).expect_err("more than there is");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(
        error
            .to_string()
            .contains(&format!("{} bytes on cuda:0", total + 1)),
        "{error}"
    );
    assert_eq!(
        guard.allocate(0).expect_err("no bytes").kind(),
        ErrorKind::InvalidArgument
    );
    guard.allocate(64).expect("the rest goes on");
}

#[test]
fn a_lost_context_ends_everything_with_one_kind_of_error() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (context, other) = (context(0), context(1));
    let guard = context.enter().expect("enters");
    let stream = guard.stream(false).expect("a stream");
    let event = guard.event(Waiting::Spin).expect("an event");
    let (memory, pinned) = (
        guard.allocate(64).expect("memory"),
        guard.allocate_pinned(64).expect("memory"),
    );
    // SAFETY: both live until the end of the test.
    let broken =
        |stream: &Stream| unsafe { stream.copy(&guard, memory.ptr(), pinned.device_ptr(), 64) };
    control("fault cuMemcpyAsync@1=late:700");
    broken(&stream).expect("enqueued");
    let called = Arc::new(Called::default());
    let notified = stream.notify(&guard, Arc::clone(&called));
    let error = stream
        .synchronize(&guard)
        .expect_err("the copy met a bad address");
    assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    assert_eq!(Status::of(&error), Some(Status::ILLEGAL_ADDRESS));
    for error in [
        broken(&stream).expect_err("lost"),
        stream.is_idle(&guard).expect_err("lost"),
        stream.record(&guard, &event).expect_err("lost"),
        guard.allocate(64).expect_err("lost"),
    ] {
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
    }
    assert!(
        !called.ran.load(Ordering::Acquire),
        "a host function on a lost context"
    );
    // What was taken is kept, so that a late run could not meet freed memory.
    assert_eq!(
        Arc::strong_count(&called),
        1 + usize::from(notified.is_ok())
    );
    // One that is refused gives back at once.
    let refused = Arc::new(Called::default());
    stream
        .notify(&guard, Arc::clone(&refused))
        .expect_err("lost");
    assert_eq!(Arc::strong_count(&refused), 1);
    // The other device goes on, and drops do not panic.
    other.enter().expect("enters").allocate(64).expect("memory");
    drop((memory, pinned, event));
}

/// Waits for a stream on the way out, by whichever error that is; again if waiting was what failed.
struct Settled<'a>(&'a Stream, &'a ContextGuard<'a>);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        if self.0.synchronize(self.1).is_err() {
            let _ = self.0.synchronize(self.1);
        }
    }
}

/// Bytes of the current context's device: free, and all.
fn memory_info() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    raw().ok(raw().cuMemGetInfo_v2(&mut free, &mut total));
    (free, total)
}

/// One call of everything that can fail; the first error ends it. Of what is shared the memory is the program's.
fn everything(context: &CudaContext, shared: &Virtual, piece: &Pooled) -> Result<()> {
    use std::os::fd::AsFd as _;
    let cuda = context.cuda();
    let device = context.device();
    device.name()?;
    device.pci_bus_id()?;
    device.uuid()?;
    device.is_active()?;
    let guard = context.enter()?;
    let memory = guard.allocate(4096)?;
    let pinned = guard.allocate_pinned(4096)?;
    let managed = guard.allocate_managed(4096)?;
    let mut host = vec![0_u8; 4096];
    let start = NonNull::from(host.as_mut_slice()).cast();
    // SAFETY: `host` is dropped after the registration.
    let registration = unsafe { guard.register_host(start, 4096, true) }?;
    cuda.inspect(memory.ptr())?;
    cuda.buffer_id(memory.ptr())?;
    cuda.set_sync_memops(memory.ptr())?;
    cuda.preferred_location(managed.ptr(), 4096)?;
    guard.set_sync_memops()?;
    guard.address_range(memory.ptr())?;
    guard.export_dma_buf(memory.ptr(), 4096, false)?;
    guard.ipc_export(memory.ptr())?;
    let (stream, urgent) = (guard.stream(false)?, guard.stream(true)?);
    let (spin, sleep) = (guard.event(Waiting::Spin)?, guard.event(Waiting::Sleep)?);
    let _settled = (Settled(&stream, &guard), Settled(&urgent, &guard));
    stream.is_capturing(&guard)?;
    // SAFETY: all live until the streams were waited for.
    unsafe {
        stream.copy(&guard, memory.ptr(), pinned.device_ptr(), 4096)?;
        stream.fill(&guard, memory.ptr(), 1, 4096)?;
        stream.write_value(&guard, pinned.device_ptr(), 1)?;
    }
    stream.record(&guard, &spin)?;
    urgent.wait(&guard, &spin)?;
    urgent.record(&guard, &sleep)?;
    urgent.notify(&guard, Arc::new(Called::default()))?;
    sleep.wait(&guard)?;
    sleep.is_done(&guard)?;
    stream.is_idle(&guard)?;
    urgent.synchronize(&guard)?;
    let fd = cuda.export_virtual_fd(DevicePtr(shared.at), || Ok(()))?;
    drop(guard.import_virtual(fd.as_fd(), shared.len)?);
    let fd = cuda.export_pool_fd(RawPool(piece.pool as usize))?;
    let pointer = cuda.export_pool_pointer(DevicePtr(piece.at))?;
    drop(guard.import_pool(fd.as_fd())?.open(&guard, &pointer)?);
    drop(registration);
    Ok(())
}

#[test]
fn every_function_that_fails_is_one_clear_error() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let context = context(0);
    let _guard = context.enter().expect("enters");
    let (shared, piece) = (Virtual::new(raw(), 0, 4096), Pooled::new(raw(), 0, 4096));
    let everything = || everything(&context, &shared, &piece);
    everything().expect("without a fault");
    let free = || memory_info().0;
    let before = free();
    let mut seen = Vec::new();
    for table::Function { name: function, .. } in table::functions("cuda") {
        control("reset");
        control(&format!("fault {function}@1=999"));
        let result = everything();
        if calls(&function) == 0 {
            continue; // Used elsewhere: by loading, initialising, adopting.
        }
        seen.push(function.clone());
        match result {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{function}: {error}");
                assert!(
                    error.to_string().starts_with(&format!("{function}: ")),
                    "{function}: {error}"
                );
            }
            // Those whose failure is only told, as of a drop, or that have another way.
            Ok(()) => assert!(
                [
                    "Free",
                    "Destroy",
                    "Pop",
                    "Release",
                    "Unmap",
                    "Unregister",
                    "Attribute"
                ]
                .iter()
                .any(|part| function.contains(part)),
                "{function} failed and nobody said so"
            ),
        }
    }
    assert!(seen.len() > 40, "{seen:?}");
    control("reset");
    everything().expect("after all the faults");
    // What faults of freeing left behind is all that may be gone.
    assert!(
        before - free() < 64 << 20,
        "{} bytes are gone",
        before - free()
    );
}

#[test]
fn an_old_driver_says_what_it_lacks() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_VERSION", "11020")]);
    }
    assert_eq!(cuda().version().to_string(), "11.2");
    let context = context(0);
    let guard = context.enter().expect("enters");
    let (stream, pinned) = (
        guard.stream(false).expect("a stream"),
        guard.allocate_pinned(8).expect("memory"),
    );
    // SAFETY: nothing is enqueued.
    let error =
        unsafe { stream.write_value(&guard, pinned.device_ptr(), 1) }.expect_err("came later");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .ends_with("(CUDA 11.2) has no cuStreamWriteValue64_v2, which CUDA 11.7 brought"),
        "{error}"
    );
    // What an address is, it says without the attributes that came later; who a device and a context is too.
    let memory = guard.allocate(64).expect("memory");
    let info = cuda().inspect(memory.ptr()).expect("an answer");
    assert_eq!((info.kind, info.device), (PointerKind::Device, Some(0)));
    assert_eq!(info.range, Some((memory.ptr(), 64)));
    context.device().uuid().expect("by the older function");
    assert_eq!(context.id().0, context.raw().0 as u64);
}
