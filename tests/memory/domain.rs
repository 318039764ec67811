//! Experts for memory: what they allocate, say and export, by way of a context.
//!
//! # Safety
//! What is exported is mapped as long as the test runs, and touched within the mapping.
#![allow(unsafe_code)]

use std::{
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::Ordering::SeqCst,
};

use wharf::{
    Buffer, BufferMut, Context, ErrorKind, MemoryType,
    memory::{AddressRange, Advice, HostDomain, MemoryDomain},
};

use crate::expert::Expert;

const CUDA: MemoryType = MemoryType::Cuda(1);

fn context(expert: &std::sync::Arc<Expert>) -> Context {
    Context::builder()
        .memory_domain(expert.clone())
        .build()
        .expect("a context")
}

#[tokio::test]
async fn allocated_memory_is_known_until_it_is_freed() {
    let expert = Expert::new();
    let context = context(&expert);
    let buffer = context.allocate_on(CUDA, 10_000).await.expect("memory");
    assert_eq!((buffer.len(), buffer.memory_type()), (10_000, CUDA));
    assert!(buffer.as_slice().is_none());
    let range = buffer.device_range().expect("a device's");
    let known = context.memory_attributes(range).expect("known");
    assert_eq!((known.memory_type, known.allocation), (CUDA, range));
    assert!(known.dma_buf && known.id == range.start());
    assert_eq!(expert.asked.load(SeqCst), 0, "who allocated it has told");
    drop(buffer);
    assert_eq!(context.known_memory_attributes(range), None);
    let host = context.memory_attributes(range).expect("nobody's");
    assert_eq!(host.memory_type, MemoryType::Host);
}

#[tokio::test]
async fn parts_keep_the_whole() {
    let expert = Expert::new();
    let context = context(&expert);
    let mut unique = context.allocate_on(CUDA, 4096).await.expect("memory");
    assert!(unique.as_mut_slice().is_none());
    let whole = unique.device_range().expect("a device's");
    let frozen = unique.freeze();
    let part = frozen.slice(100..300);
    drop(frozen);
    let range = part.device_range().expect("a device's");
    assert_eq!((range.start(), range.len()), (whole.start() + 100, 200));
    assert!(part.as_slice().is_none() && part.memory_type() == CUDA);
    assert!(context.known_memory_attributes(whole).is_some());
    drop(part);
    assert_eq!(context.known_memory_attributes(whole), None);
}

#[tokio::test]
async fn what_cannot_be_allocated() {
    let expert = Expert::new();
    let context = context(&expert);
    let kind = async |memory_type, length| {
        let result = context.allocate_on(memory_type, length).await;
        result.expect_err("refused").kind()
    };
    assert_eq!(kind(MemoryType::Rocm(0), 8).await, ErrorKind::Unsupported);
    assert_eq!(kind(CUDA, 0).await, ErrorKind::InvalidArgument);
    assert_eq!(kind(CUDA, 1 << 40).await, ErrorKind::Exhausted);
    let host = context
        .allocate_on(MemoryType::Host, 8)
        .await
        .expect("memory");
    assert_eq!(host.as_slice(), Some(&[0; 8][..]));
    assert_eq!(host.device_range(), None);
}

#[tokio::test]
async fn exported_by_whoever_has_it() {
    let expert = Expert::new();
    let context = context(&expert);
    let buffer = context.allocate_on(CUDA, 4096).await.expect("memory");
    let part = buffer.freeze().slice(1000..2000);
    let range = part.device_range().expect("a device's");
    assert_eq!(context.export(range).expect("a dma-buf").offset, 1000);
    let bytes = vec![0_u8; 100];
    let host = AddressRange::of(&bytes);
    let error = context.export(host).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    context.advise(host, Advice::WillNeed).expect("host memory");
    let error = context.advise(range, Advice::WillNeed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// What the host's memory is refused for, without the kernel's part in it.
#[tokio::test]
async fn memory_of_the_host_that_is_not_exported() {
    let context = Context::builder().build().expect("a context");
    let others = vec![0_u8; 100];
    let memory = context.allocate(10_000).await.expect("memory");
    let all = AddressRange::of(&memory);
    let behind = AddressRange::new(all.end(), 1 << 20).expect("a range");
    for range in [AddressRange::of(&others), behind] {
        let error = context.export(range).expect_err("nobody's");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("Context::allocate"), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs a machine without /dev/udmabuf"]
async fn without_udmabuf_memory_of_the_host_is_no_dma_buf() {
    let context = Context::builder().build().expect("a context");
    let memory = context.allocate(10_000).await.expect("memory");
    let error = context
        .export(AddressRange::of(&memory))
        .expect_err("absent");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("udmabuf"), "{error}");
}

#[tokio::test]
#[ignore = "needs /dev/udmabuf: `tests/rdma-vm/rdma-vm --kernel 6.12` has it"]
async fn memory_of_the_host_as_a_dma_buf() {
    let context = Context::builder().build().expect("a context");
    let mut memory = context.allocate(10_000).await.expect("memory");
    for (place, byte) in memory.iter_mut().zip(0_u32..) {
        *place = (byte % 251) as u8;
    }
    let all = AddressRange::of(&memory);
    let part = AddressRange::new(all.start() + 4096 + 100, 4000).expect("a range");
    let exported = context.export(part).expect("a dma-buf");
    assert!(exported.ordered && exported.offset == 100);
    // Its pages are two: what follows the first byte asked for is in it to the end of its page.
    let map = |fd: &OwnedFd| {
        let flags = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, of the two pages that the buffer has.
        let at = unsafe { libc::mmap(ptr::null_mut(), 8192, flags.0, flags.1, fd.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        at.cast::<u8>()
    };
    let seen = map(&exported.fd);
    // SAFETY: within the mapping, which nobody unmaps.
    unsafe {
        for at in 0..4000 {
            assert_eq!(seen.add(100 + at).read(), ((4196 + at) % 251) as u8);
        }
        seen.add(100).write(255);
    }
    assert_eq!(memory[4196], 255, "the same pages");
    // It outlives the memory.
    drop(memory);
    // SAFETY: as before.
    assert_eq!(unsafe { seen.add(100).read() }, 255);
    // More than the kernel allows at once.
    let long = context.allocate(128 << 20).await.expect("memory");
    let error = context
        .export(AddressRange::of(&long))
        .expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn a_driver_that_fails_leaves_memory_unknown() {
    let expert = Expert::new();
    let context = context(&expert);
    let range = AddressRange::new(0x3100_0000_0000, 64).expect("a range");
    expert.fails.store(true, SeqCst);
    for _ in 0..2 {
        assert_eq!(
            context.memory_attributes(range).unwrap_err().kind(),
            ErrorKind::Io
        );
        assert_eq!(context.known_memory_attributes(range), None);
    }
    expert.fails.store(false, SeqCst);
    assert!(context.memory_attributes(range).is_ok());
}

#[test]
fn memory_of_a_domain_that_the_host_reaches() {
    let memory = HostDomain.allocate(MemoryType::Host, 5000).expect("memory");
    let mut buffer = BufferMut::from(memory);
    buffer.as_mut_slice().expect("host memory")[4999] = 7;
    assert_eq!(buffer.as_slice().map(|bytes| bytes[4999]), Some(7));
    let frozen: Buffer = buffer.freeze();
    assert_eq!(frozen.slice(4999..).as_slice(), Some(&[7][..]));
    assert_eq!(frozen.memory_type(), MemoryType::Host);
}

#[test]
fn types_answer_first() {
    let expert = Expert::new();
    let _context = context(&expert);
    for buffer in [Buffer::from(vec![1]), "text".into(), Buffer::new()] {
        assert_eq!(buffer.memory_type(), MemoryType::Host);
    }
    assert_eq!(expert.asked.load(SeqCst), 0);
}
