//! Memory that the program allocated by HSA's own functions, as buffers: found by its address, kept by its owner, never taken for what it was before.
//!
//! # Safety
//! What buffers are made of is kept by their owners, or by the test until they are gone. The host's mapping is put where the emulated runtime has freed
//! memory and keeps the addresses from itself, in a process that ends then.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use wharf::{
    Access, Buffer, BufferMut, Context, Mask, MemoryType, Tag, Worker,
    memory::{DlpackTensor, MonitorKind},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{accelerator, calls, control, own, pattern},
    program::{self, Allocation},
    support::{LIMIT, Owner, dlpack, on_a_runtime, this_test, until},
};

const LEN: usize = 300_000;
/// The runtime gives memory in multiples of this.
const PAGE: usize = 4096;

fn with_rocm() -> Context {
    let builder = Context::builder().transports("self,shm").expect("known");
    let builder = builder.accelerator(Arc::new(accelerator()));
    builder.build().expect("a context")
}

#[test]
fn its_type_is_found_by_its_address() {
    let wharf = with_rocm();
    let (first, second) = (own(0, LEN), own(1, LEN));
    let pinned = program::on_host(LEN);
    let mut page = vec![7; LEN];
    let locked = program::lock(&mut page);
    let host = page.as_ptr().expose_provenance() as u64;
    for (what, at, len, wanted) in [
        ("a device's", first.address(), LEN, MemoryType::Rocm(0)),
        ("another's", second.address(), LEN, MemoryType::Rocm(1)),
        ("a part", second.address() + 77, 1000, MemoryType::Rocm(1)),
        (
            "the host's pool",
            pinned.address(),
            LEN,
            MemoryType::HostPinned,
        ),
        (
            "a part of that",
            pinned.address() + 8,
            64,
            MemoryType::HostPinned,
        ),
        ("locked, where the host has it", host, LEN, MemoryType::Host),
    ] {
        // SAFETY: kept to the end of the test; all of it is zeroed or written.
        let buffer = unsafe { Buffer::foreign(&wharf, at, len, ()) }.expect(what);
        assert_eq!(buffer.memory_type(), wanted, "{what}");
        assert_eq!(buffer.len(), len);
        assert_eq!(buffer.as_slice().is_some(), wanted.is_host_accessible());
        if at == host {
            assert_eq!(buffer.as_slice(), Some(&page[..]));
        }
    }
    let refused = |at, len| {
        // SAFETY: refused.
        let made = unsafe { BufferMut::foreign(&wharf, at, len, ()) };
        made.expect_err("not all of it is there").kind()
    };
    let argument = ErrorKind::InvalidArgument;
    assert_eq!(refused(first.address(), LEN + PAGE), argument);
    assert_eq!(refused(first.address() + 8, LEN + PAGE), argument);
    // Where devices have what was locked nobody else has anything.
    assert_eq!(refused(locked.agent_address, 64), ErrorKind::Unsupported);
    drop(locked);
}

#[test]
fn every_operation_takes_it_and_its_owner_goes_with_it() {
    on_a_runtime(async {
        let wharf = with_rocm();
        let dropped = Arc::new(AtomicUsize::new(0));
        let buffer = |memory: Allocation| {
            let at = memory.address();
            let owner = Owner(memory, Arc::clone(&dropped));
            // SAFETY: kept by its owner, and nobody else has it; it is zeroed.
            unsafe { BufferMut::foreign(&wharf, at, LEN, owner) }.expect("found")
        };
        let worker = Worker::new(&wharf).expect("a worker");
        let other = Worker::new(&wharf).expect("a worker");
        let address = other.address().expect("an address");
        let endpoint = worker.connect(&address).await.expect("connected");
        let wanted = pattern(9, LEN);
        let read = async |buffer: Buffer| {
            let copied = worker.copy(buffer, vec![0; LEN]).await;
            copied.expect("copied").to_vec()
        };
        // The host's pool, a device, another one, and back.
        let mut source = buffer(program::on_host(LEN));
        assert_eq!(source.memory_type(), MemoryType::HostPinned);
        source
            .as_mut_slice()
            .expect("the host's")
            .copy_from_slice(&wanted);
        let source = worker.copy(source.freeze(), buffer(own(0, LEN))).await;
        let source = source.expect("copied").freeze();
        assert_eq!(source.memory_type(), MemoryType::Rocm(0));
        let across = worker.copy(source.clone(), buffer(own(1, LEN))).await;
        let across = across.expect("copied").freeze();
        assert_eq!(across.memory_type(), MemoryType::Rocm(1));
        assert!(read(across).await == wanted, "three copies");

        let received = other.tag_recv(Tag(1), Mask::ALL, buffer(own(1, LEN)));
        let (sent, received) = tokio::join!(endpoint.tag_send(Tag(1), source.clone()), received);
        sent.expect("sent");
        let target = received.expect("received").buffer;
        assert!(read(target.freeze()).await == wanted, "a message");

        let region = wharf.expose(buffer(own(1, LEN)), Access::READ | Access::WRITE);
        let region = region.await.expect("exposed");
        let descriptor = region.descriptor().expect("a descriptor");
        let remote = endpoint.import(&descriptor).expect("imported");
        let put = endpoint.put(source.clone(), remote.clone()).await;
        put.expect("put");
        let got = endpoint.get(remote, buffer(own(0, LEN))).await;
        assert!(read(got.expect("got").freeze()).await == wanted, "put, get");
        drop(region.unexpose().await);

        let flying = worker.copy(source.clone(), buffer(own(0, LEN))).post();
        drop((flying, source));
        worker.shutdown(LIMIT).await.expect("shut down");
        other.shutdown(LIMIT).await.expect("shut down");
        // Owners may take long to drop, and are dropped where nobody waits for it.
        until("the owners", || dropped.load(SeqCst) == 7).await;
    });
}

#[test]
fn what_is_remembered_of_it_is_looked_up() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let wharf = with_rocm();
    let memory = own(0, LEN);
    let buffer = || {
        // SAFETY: kept; all of it is zeroed.
        unsafe { Buffer::foreign(&wharf, memory.address(), LEN, ()) }.expect("found")
    };
    drop(buffer());
    let before = wharf.metrics().memory_types;
    control("forget");
    for _ in 0..10 {
        assert_eq!(buffer().memory_type(), MemoryType::Rocm(0));
    }
    let after = wharf.metrics().memory_types;
    assert_eq!((after.asked, after.hits), (before.asked, before.hits + 10));
    assert_eq!(calls("hsa_amd_pointer_info"), 0);
}

/// Freed by HSA's own function, and allocated there again on another device.
#[test]
fn what_was_one_devices_is_anothers() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_REUSE", "1")]);
    }
    let wharf = with_rocm();
    let type_of = |memory: &Allocation| {
        // SAFETY: kept; all of it is zeroed.
        let buffer = unsafe { Buffer::foreign(&wharf, memory.address(), LEN, ()) };
        buffer.expect("found").memory_type()
    };
    let mut again = 0;
    let mut last = 0;
    for turn in 0..20 {
        let memory = own(turn % 2, LEN);
        again += u32::from(memory.address() == last);
        last = memory.address();
        assert_eq!(type_of(&memory), MemoryType::Rocm(turn % 2));
    }
    assert!(again > 10, "the addresses are used again: {again}");
}

/// Freed by HSA's own function, and allocated on the host at the same address.
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
    let memory = own(0, PAGES);
    let at = memory.address();
    let type_of = |at, len| {
        // SAFETY: the test keeps what is there.
        let buffer = unsafe { Buffer::foreign(&wharf, at, len, ()) };
        buffer.expect("found").memory_type()
    };
    assert_eq!(type_of(at, PAGES), MemoryType::Rocm(0));
    assert_eq!(type_of(at + 100, 8), MemoryType::Rocm(0));
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
    let bytes = buffer.as_slice().expect("the host's");
    assert!(bytes.iter().all(|byte| *byte == 0));
}

static SHAPE: [i64; 2] = [100, 750];

#[test]
fn tensors_of_a_device() {
    on_a_runtime(async {
        let wharf = with_rocm();
        let dropped = Arc::new(AtomicUsize::new(0));
        // 10: `kDLROCM`.
        let tensor = |number: i32| -> DlpackTensor {
            let owner = Owner(own(0, LEN), Arc::clone(&dropped));
            dlpack::tensor(owner.0.address(), &SHAPE, [10, number], owner)
        };
        let worker = Worker::new(&wharf).expect("a worker");
        // SAFETY: nobody else has it.
        let target = unsafe { tensor(0).into_buffer_mut(&wharf) }.expect("a buffer");
        assert_eq!(target.len(), LEN);
        assert_eq!(target.memory_type(), MemoryType::Rocm(0));
        let wanted = pattern(4, LEN);
        let target = worker.copy(wanted.clone(), target).await.expect("copied");
        let back = worker.copy(target.freeze(), vec![0; LEN]).await;
        assert!(back.expect("copied") == wanted);
        let error = tensor(1).into_buffer(&wharf).expect_err("another device");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let without = Context::builder().transports("self").expect("known");
        let without = without.build().expect("a context");
        let error = tensor(0).into_buffer(&without);
        let error = error.expect_err("no accelerator");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        worker.shutdown(LIMIT).await.expect("shut down");
        assert_eq!(dropped.load(SeqCst), 3, "each is given back once");
    });
}
