//! Memory that the program allocated by the driver's own functions, as buffers: found by its address, kept by its owner, never taken for what it was before.
//!
//! # Safety
//! What buffers are made of is kept by their owners, or by the test until they are gone. The host's mapping is put where the emulated driver has freed
//! memory and keeps the addresses from itself, in a process that ends then.
#![allow(unsafe_code)]

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use wharf::{
    Access, Buffer, BufferMut, Context, Mask, MemoryType, Tag, Worker,
    memory::{ArrayInterface, DlpackTensor, MonitorKind},
    transport::cuda::CudaStream,
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{accelerator, calls, context, pattern},
    program::Memory,
    support::{LIMIT, Owner, dlpack, on_a_runtime, this_test, until},
};

const LEN: usize = 300_000;

fn with_cuda() -> Context {
    let builder = Context::builder().transports("self,shm").expect("known");
    let builder = builder.accelerator(Arc::new(accelerator()));
    builder.build().expect("a context")
}

#[test]
fn its_type_is_found_by_its_address() {
    let wharf = with_cuda();
    let driver = context(1);
    let guard = driver.enter().expect("current");
    let device = Arc::new(guard.allocate(LEN).expect("memory"));
    let managed = Arc::new(guard.allocate_managed(LEN).expect("memory"));
    let pinned = Arc::new(guard.allocate_pinned(LEN).expect("memory"));
    let own = pattern(3, LEN);
    let bytes = NonNull::from(&own[..]).cast::<u8>();
    let registered = guard.register_host(bytes, LEN / 2).expect("registered");
    let host = bytes.as_ptr().expose_provenance() as u64;
    for (what, at, len, wanted) in [
        ("device memory", device.at(), LEN, MemoryType::Cuda(1)),
        ("a part", device.at() + 77, 1000, MemoryType::Cuda(1)),
        ("managed", managed.at(), LEN, MemoryType::CudaManaged),
        ("pinned", pinned.at() + 8, 64, MemoryType::HostPinned),
        ("registered", host, LEN / 2, MemoryType::HostPinned),
        ("partly registered", host, LEN, MemoryType::Host),
        ("not registered", host + LEN as u64 - 8, 8, MemoryType::Host),
    ] {
        // SAFETY: kept to the end of the test; all of it is zeroed or written.
        let buffer = unsafe { Buffer::foreign(&wharf, at, len, ()) }.expect(what);
        assert_eq!(buffer.memory_type(), wanted, "{what}");
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.as_slice().is_some(), wanted.is_host_accessible());
        if host <= at && at < host + LEN as u64 {
            assert_eq!(buffer.as_slice(), Some(&own[(at - host) as usize..][..len]));
        }
    }
    let refused = |at, len| {
        // SAFETY: refused.
        let made = unsafe { BufferMut::foreign(&wharf, at, len, ()) };
        made.expect_err("not all of it is there").kind()
    };
    // Memory is given in pieces of 512 bytes.
    assert_eq!(refused(device.at(), LEN + 1024), ErrorKind::InvalidArgument);
    assert_eq!(refused(0, 1), ErrorKind::InvalidArgument);
    assert_eq!(refused(u64::MAX - 3, 8), ErrorKind::InvalidArgument);
    // SAFETY: no bytes.
    let empty = unsafe { Buffer::foreign(&wharf, 0, 0, ()) }.expect("empty");
    assert!(empty.is_empty());
    drop((registered, guard));
}

#[test]
fn every_operation_takes_it_and_its_owner_goes_with_it() {
    on_a_runtime(async {
        let wharf = with_cuda();
        let driver = context(0);
        let dropped = Arc::new(AtomicUsize::new(0));
        let allocate = || {
            let guard = driver.enter().expect("current");
            let memory = guard.allocate(LEN).expect("memory");
            let at = memory.at();
            let owner = Owner(memory, Arc::clone(&dropped));
            // SAFETY: kept by its owner, and nobody else has it.
            unsafe { BufferMut::foreign(&wharf, at, LEN, owner) }.expect("found")
        };
        let worker = Worker::new(&wharf).expect("a worker");
        let other = Worker::new(&wharf).expect("a worker");
        let address = other.address().expect("an address");
        let endpoint = worker.connect(&address).await.expect("connected");
        let wanted = pattern(9, LEN);
        let source = worker.copy(wanted.clone(), allocate()).await;
        let source = source.expect("copied").freeze();
        assert_eq!(source.memory_type(), MemoryType::Cuda(0));
        let read = async |buffer: Buffer| {
            let copied = worker.copy(buffer, vec![0; LEN]).await;
            copied.expect("copied").to_vec()
        };

        let received = other.tag_recv(Tag(1), Mask::ALL, allocate());
        let (sent, received) = tokio::join!(endpoint.tag_send(Tag(1), source.clone()), received);
        sent.expect("sent");
        let target = received.expect("received").buffer;
        assert!(read(target.freeze()).await == wanted, "a message");

        let region = wharf.expose(allocate(), Access::READ | Access::WRITE).await;
        let region = region.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        let remote = endpoint.import(&descriptor).expect("imported");
        endpoint
            .put(source.clone(), remote.clone())
            .await
            .expect("put");
        let got = endpoint.get(remote.clone(), allocate()).await.expect("got");
        assert!(read(got.freeze()).await == wanted, "a put and a get");
        let memory = region.unexpose().await;
        drop(memory);

        let flying = worker.copy(source.clone(), allocate()).post();
        drop((flying, source));
        worker.shutdown(LIMIT).await.expect("shut down");
        other.shutdown(LIMIT).await.expect("shut down");
        // Owners may take long to drop, and are dropped where nobody waits for it.
        until("the owners", || dropped.load(SeqCst) == 5).await;
    });
}

#[test]
fn what_is_remembered_of_it_is_asked_for_once_more() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let wharf = with_cuda();
    let guard_of = context(0);
    let guard = guard_of.enter().expect("current");
    let memory = guard.allocate(LEN).expect("memory");
    // SAFETY: kept; all of it is zeroed.
    let buffer = || unsafe { Buffer::foreign(&wharf, memory.at(), LEN, ()) }.expect("found");
    drop(buffer());
    let before = (
        wharf.metrics().memory_types,
        calls("cuPointerGetAttributes"),
    );
    for _ in 0..10 {
        assert_eq!(buffer().memory_type(), MemoryType::Cuda(0));
    }
    let after = (
        wharf.metrics().memory_types,
        calls("cuPointerGetAttributes"),
    );
    assert_eq!(
        after.0.asked, before.0.asked,
        "nobody is asked what is known"
    );
    assert_eq!(after.0.hits, before.0.hits + 10);
    assert_eq!(after.1, before.1);
}

/// Freed on the device by the driver's own function, and allocated on the host at the same address.
#[test]
fn what_was_a_devices_is_the_hosts_with_each_monitor() {
    const KIND: &str = "WHARFTEST_MONITOR";
    if !is_child() {
        for kind in MonitorKind::ALL {
            child_with(this_test!(), &[(KIND, &kind.to_string())]);
        }
        return;
    }
    let kind: MonitorKind = std::env::var(KIND).expect("set").parse().expect("a kind");
    let builder = Context::builder().memory_monitor(kind);
    let wharf = match builder.accelerator(Arc::new(accelerator())).build() {
        Ok(wharf) => wharf,
        // What cannot be had here is told, not made up.
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    };
    const PAGES: usize = 1 << 20;
    let driver = context(0);
    let guard = driver.enter().expect("current");
    let memory = guard.allocate(PAGES).expect("memory");
    let at = memory.at();
    let type_of = |at, len| {
        // SAFETY: the test keeps what is there.
        let buffer = unsafe { Buffer::foreign(&wharf, at, len, ()) };
        buffer.expect("found").memory_type()
    };
    assert_eq!(type_of(at, PAGES), MemoryType::Cuda(0));
    assert_eq!(type_of(at + 100, 8), MemoryType::Cuda(0));
    drop(memory);
    let place = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: nobody's memory now; see the module.
    let mapped = unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(place, PAGES, rights, flags, -1, 0)
    };
    assert_eq!(mapped, place);
    let _ = mapped.expose_provenance();
    assert_eq!(type_of(at, PAGES), MemoryType::Host);
    assert_eq!(type_of(at + 100, 8), MemoryType::Host);
    // SAFETY: mapped above, and zeroed.
    let buffer = unsafe { Buffer::foreign(&wharf, at, PAGES, ()) }.expect("found");
    assert!(
        buffer
            .as_slice()
            .expect("the host's")
            .iter()
            .all(|byte| *byte == 0)
    );
}

static SHAPE: [i64; 2] = [100, 750];

fn tensor(device: [i32; 2], owner: Owner<Memory>) -> DlpackTensor {
    dlpack::tensor(owner.0.at(), &SHAPE, device, owner)
}

#[test]
fn tensors_of_a_device() {
    on_a_runtime(async {
        let wharf = with_cuda();
        let driver = context(0);
        let dropped = Arc::new(AtomicUsize::new(0));
        let owner = || {
            let guard = driver.enter().expect("current");
            Owner(guard.allocate(LEN).expect("memory"), Arc::clone(&dropped))
        };
        let worker = Worker::new(&wharf).expect("a worker");
        // SAFETY: nobody else has it.
        let target = unsafe { tensor([2, 0], owner()).into_buffer_mut(&wharf) };
        let target = target.expect("a buffer");
        assert_eq!(
            (target.len(), target.memory_type()),
            (LEN, MemoryType::Cuda(0))
        );
        let wanted = pattern(4, LEN);
        let target = worker.copy(wanted.clone(), target).await.expect("copied");
        let back = worker.copy(target.freeze(), vec![0; LEN]).await;
        assert!(back.expect("copied") == wanted);
        let other = tensor([2, 1], owner()).into_buffer(&wharf);
        let error = other.expect_err("of another device");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let without = Context::builder().transports("self").expect("known");
        let without = without.build().expect("a context");
        let unknown = tensor([2, 0], owner()).into_buffer(&without);
        let error = unknown.expect_err("no accelerator");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        worker.shutdown(LIMIT).await.expect("shut down");
        assert_eq!(dropped.load(SeqCst), 3, "each is given back once");

        let owner = owner();
        let array = ArrayInterface {
            data: owner.0.at(),
            read_only: true,
            shape: SHAPE.to_vec(),
            typestr: "<f4".to_owned(),
            strides: Some(vec![3000, 4]),
        };
        // SAFETY: kept by its owner.
        let buffer = unsafe { Buffer::from_array(&wharf, &array, owner) }.expect("a buffer");
        assert_eq!(
            (buffer.len(), buffer.memory_type()),
            (LEN, MemoryType::Cuda(0))
        );
        // SAFETY: refused.
        let refused = unsafe { BufferMut::from_array(&wharf, &array, ()) };
        assert_eq!(
            refused.expect_err("read-only").kind(),
            ErrorKind::AccessDenied
        );
    });
}

/// The order with a stream of the program's, whose work writes the memory that the program allocated.
#[test]
fn after_the_programs_own_work() {
    on_a_runtime(async {
        let wharf = with_cuda();
        let worker = Worker::new(&wharf).expect("a worker");
        let driver = context(0);
        let (memory, pinned, stream) = {
            let guard = driver.enter().expect("current");
            let memory = Arc::new(guard.allocate(LEN).expect("memory"));
            let pinned = guard.allocate_pinned(LEN).expect("memory");
            let stream = guard.stream().expect("a stream");
            (memory, pinned, stream)
        };
        // SAFETY: kept by its owner, and nobody else has it.
        let source = unsafe { BufferMut::foreign(&wharf, pinned.at(), LEN, pinned) };
        let mut source = source.expect("found");
        let wanted = pattern(5, LEN);
        source
            .as_mut_slice()
            .expect("the host's")
            .copy_from_slice(&wanted);
        {
            let guard = driver.enter().expect("current");
            let from = source.address() as u64;
            stream.copy(&guard, memory.at(), from, LEN).expect("queued");
        }
        // SAFETY: kept by its owner; what is still to be written is waited for.
        let written = unsafe { Buffer::foreign(&wharf, memory.at(), LEN, Arc::clone(&memory)) };
        let raw = std::ptr::with_exposed_provenance_mut(stream.raw() as usize);
        // SAFETY: it lives until the worker has ended.
        let place = unsafe { CudaStream::from_raw(raw, 0) };
        let copy = worker.copy(written.expect("found"), vec![0; LEN]);
        assert!(copy.after(place).await.expect("copied") == wanted);
        worker.shutdown(LIMIT).await.expect("shut down");
        drop((source, stream));
    });
}
