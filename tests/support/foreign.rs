//! Memory that the program allocated by its vendor's own functions, in use as buffers: kept by its owner, and never taken for what it was before.
//!
//! Used by `#[path = "../support/foreign.rs"] mod foreign_memory;`, in programs whose `fixture` names the vendor's memory and its emulator.
//!
//! # Safety
//! What buffers are made of is kept by their owners, or by the test until they are gone. The host's mapping is put where the emulator has freed
//! memory and keeps the addresses from itself, in a process that ends then.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use wharf::{
    Access, Buffer, BufferMut, Context, MemoryType, Tag, Worker,
    memory::{DlpackTensor, MonitorKind},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{DEVICE, DLPACK, OTHER, accelerator, own, own_pinned, pattern},
    support::{LIMIT, Owner, dlpack, on_a_runtime, this_test, until},
};

pub(crate) const LEN: usize = 300_000;

/// Two paths to a worker, and the devices.
pub(crate) fn with_devices() -> Context {
    let builder = Context::builder().transports("self,shm").expect("known");
    let builder = builder.accelerator(Arc::new(accelerator()));
    builder.build().expect("a context")
}

#[test]
fn every_operation_takes_it_and_its_owner_goes_with_it() {
    on_a_runtime(async {
        let wharf = with_devices();
        let dropped = Arc::new(AtomicUsize::new(0));
        let of = |at, owner| {
            // SAFETY: kept by its owner, and nobody else has it; it is zeroed.
            unsafe { BufferMut::foreign(&wharf, at, LEN, owner) }.expect("found")
        };
        let buffer = |device| {
            let memory = own(device, LEN);
            let at = memory.address();
            of(
                at,
                Box::new(Owner(memory, Arc::clone(&dropped)))
                    as Box<dyn std::any::Any + Send + Sync>,
            )
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
        // The host's, pinned, a device, another one, and back.
        let pinned = own_pinned(LEN);
        let mut source = of(
            pinned.address(),
            Box::new(Owner(pinned, Arc::clone(&dropped))),
        );
        assert_eq!(source.memory_type(), MemoryType::HostPinned);
        source
            .as_mut_slice()
            .expect("the host's")
            .copy_from_slice(&wanted);
        let source = worker.copy(source.freeze(), buffer(0)).await;
        let source = source.expect("copied").freeze();
        assert_eq!(source.memory_type(), DEVICE);
        let across = worker.copy(source.clone(), buffer(1)).await;
        let across = across.expect("copied").freeze();
        assert_eq!(across.memory_type(), OTHER);
        assert!(read(across).await == wanted, "three copies");

        for device in [0, 1] {
            let received = other.tag_recv(Tag(1), buffer(device));
            let (sent, received) =
                tokio::join!(endpoint.tag_send(Tag(1), source.clone()), received);
            sent.expect("sent");
            let target = received.expect("received").buffer;
            assert!(read(target.freeze()).await == wanted, "a message");

            let region = wharf.expose(buffer(device), Access::READ | Access::WRITE);
            let region = region.await.expect("exposed");
            let descriptor = region.descriptor().expect("a descriptor");
            let remote = endpoint.import(&descriptor).expect("imported");
            let put = endpoint.put(source.clone(), remote.clone()).await;
            put.expect("put");
            let got = endpoint.get(remote, buffer(0)).await;
            assert!(read(got.expect("got").freeze()).await == wanted, "put, get");
            drop(region.unexpose().await);
        }

        let flying = worker.copy(source.clone(), buffer(0)).post();
        drop((flying, source));
        worker.shutdown(LIMIT).await.expect("shut down");
        other.shutdown(LIMIT).await.expect("shut down");
        // Owners may take long to drop, and are dropped where nobody waits for it.
        until("the owners", || dropped.load(SeqCst) == 10).await;
    });
}

/// Freed on the device by its vendor's own function, and allocated on the host at the same address.
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
    assert_eq!(type_of(at, PAGES), DEVICE);
    assert_eq!(type_of(at + 100, 8), DEVICE);
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

#[test]
fn tensors_of_a_device() {
    static SHAPE: [i64; 2] = [100, 750];
    on_a_runtime(async {
        let wharf = with_devices();
        let dropped = Arc::new(AtomicUsize::new(0));
        let tensor = |number: i32| -> DlpackTensor {
            let owner = Owner(own(0, LEN), Arc::clone(&dropped));
            dlpack::tensor(owner.0.address(), &SHAPE, [DLPACK, number], owner)
        };
        let worker = Worker::new(&wharf).expect("a worker");
        // SAFETY: nobody else has it.
        let target = unsafe { tensor(0).into_buffer_mut(&wharf) }.expect("a buffer");
        assert_eq!((target.len(), target.memory_type()), (LEN, DEVICE));
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
