//! Memory of another process: by handles and by dma-bufs; exporters that free, or are killed.

use std::{fs::File, os::fd::AsFd, os::fd::AsRawFd};

use super::{control, copy_now, end, get, gpu, hsa, live, on_gpu, pattern, put};
use crate::{
    alone::{child_with, is_child},
    driver::hsa::{IpcHandle, PointerKind, Status},
    error::ErrorKind,
    support::{self, Child, this_test},
};

const LEN: usize = 300_001;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle_of(text: &str) -> IpcHandle {
    let mut bytes = [0; 32];
    for (place, index) in bytes.iter_mut().zip(0..) {
        *place = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("a byte");
    }
    let handle = IpcHandle::from_bytes(&bytes);
    assert_eq!(handle.to_bytes(), bytes);
    handle
}

/// The exporter: a device's memory with a pattern, its handle and dma-buf; does what it is told.
async fn exporter(mut parent: support::Parent) {
    let memory = on_gpu(1, LEN);
    put(gpu(1), memory.address(), &pattern(42, LEN));
    let handle = hsa().export_handle(memory.address(), LEN).expect("exports");
    let buffer = hsa()
        .export_dma_buf(memory.address() + 5000, 4096)
        .expect("exports");
    parent.say(format!(
        "{} {} {}",
        to_hex(&handle.to_bytes()),
        buffer.as_fd().as_raw_fd(),
        buffer.offset()
    ));
    let mut memory = Some(memory);
    loop {
        match parent.hear().await.as_str() {
            "free" => {
                drop(memory.take());
                parent.say("freed");
            }
            "look" => {
                let at = memory.as_ref().expect("not freed").address();
                parent.say(to_hex(&get(gpu(1), at, 64)));
            }
            "end" => return,
            _ => parent.wait_for_death().await,
        }
    }
}

#[test]
fn two_processes_share_by_handle() {
    if let Some(parent) = support::child("exporter") {
        return block_on(exporter(parent));
    }
    block_on(by_handle(&[]));
}

#[test]
fn two_processes_share_by_handle_without_the_right_to_trace() {
    if let Some(parent) = support::child("exporter") {
        return block_on(exporter(parent));
    }
    // For all tests of this process: one way is as good as the other for them.
    control("set fetch 2");
    block_on(by_handle(&[("EMULATED_HSA_FETCH", "2")]));
    control("set fetch 0");
}

async fn by_handle(variables: &[(&str, &str)]) {
    let test = std::thread::current().name().expect("a test").to_owned();
    let mut child = Child::start(&test, "exporter", variables);
    let told = child.hear().await;
    let handle = handle_of(told.split(' ').next().expect("a handle"));
    // Another length is refused, and so is nonsense.
    for (handle, len) in [
        (handle, LEN - 4097),
        (handle, 0),
        (IpcHandle::default(), LEN),
        (IpcHandle([7; 8]), LEN),
    ] {
        let error = hsa().attach(&handle, len, &[]).expect_err("refused");
        assert_eq!(
            Status::of(&error),
            Some(Status::ERROR_INVALID_ARGUMENT),
            "{error}"
        );
    }
    let attached = hsa().attach(&handle, LEN, &[gpu(1)]).expect("attaches");
    let again = hsa().attach(&handle, LEN, &[]).expect("attaches twice");
    assert_ne!(attached.address(), again.address());
    let info = hsa().inspect(attached.address() + 77).expect("an answer");
    assert_eq!(
        (info.kind, info.agent_base, info.len),
        (PointerKind::Ipc, attached.address(), LEN)
    );
    assert_eq!(info.owner, Some(gpu(1).raw()));
    // It cannot be watched or freed here.
    struct Nobody;
    impl crate::driver::hsa::FreedCallback for Nobody {
        fn freed(&self) {}
    }
    let error = hsa().watch_free(attached.address(), std::sync::Arc::new(Nobody));
    assert_eq!(
        error.expect_err("another's").kind(),
        ErrorKind::InvalidArgument
    );
    // Both directions, at any place.
    assert_eq!(get(gpu(1), attached.address(), LEN), pattern(42, LEN));
    put(gpu(1), again.address() + 10, b"written by another process");
    child.say("look");
    let mut expected = pattern(42, 64);
    expected[10..36].copy_from_slice(b"written by another process");
    assert_eq!(child.hear().await, to_hex(&expected));
    drop(again);
    // The exporter is killed: what is attached stays, what was not attached is refused.
    child.kill();
    assert_eq!(get(gpu(1), attached.address(), 64), expected);
    let error = hsa()
        .attach(&handle, LEN, &[])
        .expect_err("nobody is there");
    assert_eq!(
        Status::of(&error),
        Some(Status::ERROR_INVALID_ARGUMENT),
        "{error}"
    );
}

#[test]
fn a_handle_ends_with_the_memory() {
    if let Some(parent) = support::child("exporter") {
        return block_on(exporter(parent));
    }
    block_on(async {
        let mut child = Child::start(this_test!(), "exporter", &[]);
        let told = child.hear().await;
        let handle = handle_of(told.split(' ').next().expect("a handle"));
        child.say("free");
        assert_eq!(child.hear().await, "freed");
        let error = hsa().attach(&handle, LEN, &[]).expect_err("was freed");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        child.say("end");
        child.finish();
    });
}

#[test]
fn two_processes_share_by_dma_buf() {
    if let Some(parent) = support::child("exporter") {
        return block_on(exporter(parent));
    }
    block_on(async {
        let mut child = Child::start(this_test!(), "exporter", &[]);
        let told = child.hear().await;
        let mut words = told.split(' ').skip(1);
        let fd: i32 = words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a descriptor");
        let offset: u64 = words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("an offset");
        // Passed by whatever way: here the process's own.
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/fd/{fd}", child.pid()))
            .expect("the child's descriptor");
        let mapped = hsa().map_dma_buf(file.as_fd(), &[gpu(1)]).expect("maps");
        drop(file);
        assert!(
            offset >= 4096 + 5000,
            "it begins before the memory: {offset}"
        );
        let info = hsa().inspect(mapped.address()).expect("an answer");
        assert_eq!((info.kind, info.len), (PointerKind::Graphics, mapped.len()));
        let seen = get(gpu(1), mapped.address() + offset, 4096);
        assert_eq!(seen, pattern(42, LEN)[5000..9096]);
        assert_ne!(
            get(gpu(1), mapped.address(), 4096),
            seen,
            "the offset matters"
        );
        // The dma-buf keeps the memory, whoever dies.
        child.kill();
        put(gpu(1), mapped.address() + offset, &[3; 9]);
        assert_eq!(get(gpu(1), mapped.address() + offset, 9), [3; 9]);
    });
}

#[test]
fn only_exact_allocations_get_a_handle() {
    let memory = on_gpu(0, LEN);
    for (base, len) in [
        (memory.address() + 4096, LEN - 4096),
        (memory.address(), LEN - 1),
        (memory.address(), LEN + 8192),
        (memory.address() + (1 << 32), LEN),
        (4096, 4096),
    ] {
        let error = hsa().export_handle(base, len).expect_err("not exact");
        assert_eq!(Status::of(&error), Some(Status::ERROR_INVALID_ARGUMENT));
    }
    let handle = hsa().export_handle(memory.address(), LEN).expect("exact");
    // Its own process may attach it too, at another address.
    let attached = hsa().attach(&handle, LEN, &[gpu(0)]).expect("attaches");
    assert_ne!(attached.address(), memory.address());
    put(gpu(0), memory.address(), &[1, 2, 3]);
    assert_eq!(get(gpu(0), attached.address(), 3), [1, 2, 3]);
}

#[test]
fn dma_bufs_are_of_devices_and_leave_nothing() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let memory = on_gpu(0, 3 * 4096);
    let at = memory.address();
    let before = support::open_fds();
    for (offset, len) in [(0, 3 * 4096), (1, 1), (8191, 4097)] {
        let buffer = hsa().export_dma_buf(at + offset, len).expect("exports");
        assert_eq!(
            buffer.offset(),
            3 * 4096 + offset,
            "pages before it, and the place in it"
        );
        assert_eq!(live("dmabufs"), 1);
    }
    let own = hsa()
        .export_dma_buf(at, 4096)
        .expect("exports")
        .into_fd()
        .expect("a descriptor");
    assert_eq!((live("dmabufs"), support::open_fds()), (0, before + 1));
    drop(own);
    for (address, len, status) in [
        (at, 3 * 4096 + 1, Status::ERROR_INVALID_ALLOCATION),
        (at + 3 * 4096, 1, Status::ERROR_INVALID_ALLOCATION),
        (at, 0, Status::ERROR_INVALID_ARGUMENT),
        (4096, 4096, Status::ERROR_INVALID_ALLOCATION),
    ] {
        let error = hsa().export_dma_buf(address, len).expect_err("refused");
        assert_eq!(Status::of(&error), Some(status));
    }
    let pool = super::cpu()
        .pool(crate::driver::hsa::Grain::Fine)
        .expect("a pool");
    let host = pool.allocate(4096).expect("memory");
    let error = hsa()
        .export_dma_buf(host.address(), 4096)
        .expect_err("the host's");
    assert_eq!(Status::of(&error), Some(Status::ERROR_INVALID_AGENT));
    // What is no dma-buf of the device is not mapped.
    let file = tempfile::tempfile().expect("a file");
    assert_eq!(
        hsa()
            .map_dma_buf(file.as_fd(), &[gpu(0)])
            .expect_err("a file")
            .kind(),
        ErrorKind::Io
    );
    let buffer = hsa().export_dma_buf(at, 4096).expect("exports");
    let none = hsa()
        .map_dma_buf(buffer.as_fd(), &[])
        .expect_err("for nobody");
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    let mapped = hsa().map_dma_buf(buffer.as_fd(), &[gpu(0)]).expect("maps");
    let offset = buffer.offset();
    drop(buffer);
    let from = end(mapped.address() + offset, gpu(0));
    assert_eq!(
        copy_now(end(at + 4096, gpu(0)), from, 4096).expect("copies"),
        0
    );
    drop((mapped, memory, host, file));
    assert_eq!(
        (live("mapped"), live("dmabufs"), live("allocations")),
        (0, 0, 0)
    );
    assert_eq!(support::open_fds(), before - 1, "{}", control("live"));
}
