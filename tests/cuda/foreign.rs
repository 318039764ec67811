//! Memory that the program allocated by the driver's own functions, as buffers, as far as CUDA is like no other: `support/foreign.rs` has the rest.
//!
//! # Safety
//! What buffers are made of is kept by their owners, or by the test until they are gone.
#![allow(unsafe_code)]

use std::{ptr::NonNull, sync::Arc};

use wharf::{
    Buffer, BufferMut, MemoryType, Worker, memory::ArrayInterface, transport::cuda::CudaStream,
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{calls, context, own, pattern},
    foreign_memory::{LEN, with_devices},
    support::{LIMIT, on_a_runtime, this_test},
};

#[test]
fn its_type_is_found_by_its_address() {
    let wharf = with_devices();
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
fn what_is_remembered_of_it_is_asked_for_once_more() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let wharf = with_devices();
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

#[test]
fn arrays_of_a_device() {
    on_a_runtime(async {
        let wharf = with_devices();
        let owner = own(0, LEN);
        let array = ArrayInterface {
            data: owner.at(),
            read_only: true,
            shape: vec![100, 750],
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
        let wharf = with_devices();
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
