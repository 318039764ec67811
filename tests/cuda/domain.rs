//! Whose memory is at an address, and what the domain does with it.
//!
//! # Safety
//! Memory that is registered outlives its registration; the streams that free pool memory are waited for.
#![allow(unsafe_code)]

use std::{os::fd::AsRawFd as _, ptr::NonNull, sync::Arc};

use wharf::{
    Context, MemoryType,
    memory::{AddressRange, Advice, DomainCapabilities},
    transport::accelerator::{Accelerator as _, Export},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, accelerator, block_until, calls, context, control, live, raw},
    kinds::{Pooled, Virtual},
    support::this_test,
};

fn range(start: u64, length: u64) -> AddressRange {
    AddressRange::new(start, length).expect("a range")
}

#[test]
fn nothing_is_initialised_before_it_is_needed() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let accelerator = accelerator();
    let domain = accelerator.domain();
    assert!(!domain.is_loaded(), "not even the library is");
    let local = 0_u64;
    let own = range(&raw const local as u64, 8);
    assert_eq!(domain.detect(own).expect("no error"), None);
    assert!(accelerator.serves(MemoryType::Cuda(3)) && accelerator.serves(MemoryType::CudaManaged));
    assert!(!accelerator.serves(MemoryType::Host) && !accelerator.serves(MemoryType::Rocm(0)));
    accelerator.probe().expect("a driver");
    assert!(!domain.is_loaded());
    assert_eq!(domain.detect(own).expect("no error"), None);
    let can = |memory_type| {
        let attributes = domain.attributes();
        attributes.can(DomainCapabilities::ALLOCATE, memory_type)
    };
    assert!(can(MemoryType::Cuda(7)), "not known yet");
    assert_eq!(calls("cuInit"), 0);

    let context = Context::builder()
        .memory_domain(accelerator.domain())
        .build()
        .expect("a context");
    assert_eq!(calls("cuInit"), 0);
    // The first memory.
    let memory = domain.allocate(MemoryType::Cuda(1), 100).expect("memory");
    assert_eq!(calls("cuInit"), 1);
    assert!(domain.is_loaded());
    assert!(can(MemoryType::Cuda(1)) && !can(MemoryType::Cuda(2)));
    let known = context.memory_attributes(memory.range()).expect("known");
    assert_eq!(known.memory_type, MemoryType::Cuda(1));
    assert_eq!(known.allocation, memory.range());
    assert_eq!((known.id, known.dma_buf), (memory.id(), true));
    let error = domain
        .allocate(MemoryType::Cuda(9), 1)
        .expect_err("no such device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error = domain
        .allocate(MemoryType::Rocm(0), 1)
        .expect_err("another's");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn a_runtime_that_the_program_loads_is_noticed() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let accelerator = accelerator();
    let context = Context::builder()
        .memory_domain(accelerator.domain())
        .build()
        .expect("a context");
    let host = vec![0_u8; 64];
    let found = context
        .memory_attributes(AddressRange::of(&host))
        .expect("known");
    assert_eq!(found.memory_type, MemoryType::Host);
    // Not by wharf, which is told nothing.
    let own = crate::fixture::context(0);
    let memory = own.enter().expect("enters").allocate(64).expect("memory");
    let place = range(memory.at(), 64);
    let found = context.memory_attributes(place).expect("known");
    assert_eq!(found.memory_type, MemoryType::Cuda(0));
    let found = context
        .memory_attributes(AddressRange::of(&host))
        .expect("known");
    assert_eq!(found.memory_type, MemoryType::Host);
}

#[test]
fn each_kind_of_memory_is_told() {
    let accelerator = accelerator();
    let domain = accelerator.domain();
    let own = context(1);
    let guard = own.enter().expect("enters");
    let detect = |at: u64, length: u64| domain.detect(range(at, length)).expect("an answer");
    let told = |at: u64, length: u64| {
        let found = detect(at, length)?;
        let whole = (found.allocation.start(), found.allocation.len());
        Some((found.memory_type, whole, found.dma_buf))
    };

    // Plain host memory, mapped or not, and static.
    let plain = vec![0_u8; 3 << 12];
    let (start, length) = (plain.as_ptr() as u64, plain.len() as u64);
    assert_eq!(told(start, length), None);
    assert_eq!(told(&raw const *"text" as *const u8 as u64, 4), None);
    assert_eq!(told(4096, 1), None);

    // Device memory: from its first byte to its last, and not beyond.
    let device = guard.allocate(10_000).expect("memory");
    let at = device.at();
    for (offset, length) in [(0, 10_000), (5_000, 1), (9_999, 1), (1, 20_000)] {
        let told = told(at + offset, length);
        assert_eq!(told, Some((MemoryType::Cuda(1), (at, 10_000), true)));
    }
    assert_eq!(told(at + 10_000, 1), None, "one past the end");
    // Small allocations share a block of the driver's and are two all the same.
    let other = guard.allocate(10_000).expect("memory");
    let id = |at| detect(at, 1).expect("known").id;
    assert_ne!(id(at), id(other.at()));
    drop(device);
    assert_eq!(told(at, 1), None, "freed");

    // Managed, wherever it is.
    let managed = guard.allocate_managed(1 << 20).expect("memory");
    let at = managed.at();
    let whole = (at, 1 << 20);
    assert_eq!(
        told(at + 77, 8),
        Some((MemoryType::CudaManaged, whole, false))
    );

    // Pinned: the driver's, and the program's with what is registered of it.
    let pinned = guard.allocate_pinned(8192).expect("memory");
    let at = pinned.at();
    let whole = (at, 8192);
    assert_eq!(
        told(at + 1, 8),
        Some((MemoryType::HostPinned, whole, false))
    );
    let middle = NonNull::new((start + 4096) as *mut u8).expect("not null");
    let registration = guard.register_host(middle, 4096).expect("registers");
    let whole = (start + 4096, 4096);
    let inside = Some((MemoryType::HostPinned, whole, false));
    assert_eq!(told(start + 4096, 4096), inside);
    assert_eq!(told(start + 5000, 10), inside);
    for (offset, length) in [
        (0, 100),
        (4000, 200),
        (8000, 1000),
        (4096, 4097),
        (0, 3 << 12),
    ] {
        assert_eq!(told(start + offset, length), None, "{offset} {length}");
    }
    // A context has it as host memory, in whole and in part.
    let asking = Context::builder()
        .memory_domain(accelerator.domain())
        .build()
        .expect("a context");
    let found = asking
        .memory_attributes(range(start, length))
        .expect("known");
    assert_eq!(found.memory_type, MemoryType::Host);
    drop(registration);
    assert_eq!(told(start + 4096, 4096), None);

    // Virtual memory of one piece.
    let virtually = Virtual::new(raw(), 1, 100);
    let at = virtually.at;
    let whole = (at, virtually.len as u64);
    assert_eq!(told(at + 5, 5), Some((MemoryType::Cuda(1), whole, true)));
    drop(virtually);
    assert_eq!(told(at, 1), None);

    // Of a pool.
    let pooled = Pooled::new(raw(), 1, 1 << 16);
    let at = pooled.at;
    let whole = (at, 1 << 16);
    assert_eq!(told(at + 9, 1), Some((MemoryType::Cuda(1), whole, false)));
}

#[test]
fn what_is_allocated_is_zeroed_and_freed_elsewhere() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_POISON", "1")]);
    }
    let bench = Bench::new();
    // Holds the contexts from here on.
    drop(bench.pinned(1));
    drop(bench.allocate(MemoryType::Cuda(1), 1));
    block_until("freeing", || {
        live("bytes") == 0 && live("registered") == words()
    });
    for memory_type in [
        MemoryType::Cuda(1),
        MemoryType::CudaManaged,
        MemoryType::HostPinned,
    ] {
        for length in [1, 4096, 100_000] {
            let memory = bench.allocate(memory_type, length);
            assert_eq!(memory.0.range().len(), length as u64);
            assert_eq!(memory.0.memory_type(), memory_type);
            assert_ne!(memory.0.id(), 0);
            let found = bench.domain.detect(memory.0.range()).expect("an answer");
            let found = found.expect("known");
            assert_eq!((found.memory_type, found.id), (memory_type, memory.0.id()));
            assert_eq!(found.allocation, memory.0.range());
            if memory_type.is_host_accessible() {
                assert!(memory.bytes().iter().all(|byte| *byte == 0));
            } else {
                let zeroes = format!("{:016x}", fnv(&vec![0; length]));
                assert_eq!(
                    control(&format!("digest {} {length}", memory.address())),
                    zeroes
                );
            }
            let place = memory.0.range();
            drop(memory);
            block_until("freeing", || {
                bench.domain.detect(place).expect("an answer").is_none()
            });
        }
        let error = bench.domain.allocate(memory_type, usize::MAX >> 1);
        let error = error.expect_err("more than there is");
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Exhausted | ErrorKind::InvalidArgument
            ),
            "{error}"
        );
    }
    block_until("freeing", || {
        live("bytes") == 0 && live("registered") == words()
    });
    assert_eq!(live("streams"), 0);
    drop(bench);
    block_until("the end", || {
        live("contexts") == 0 && live("registered") == 0
    });
}

/// Registered pages that an engine without devices has.
fn words() -> u64 {
    0
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn memory_that_is_being_freed_can_be_had_again() {
    if !is_child() {
        let memory = (64_u64 << 20).to_string();
        return child_with(this_test!(), &[("EMULATED_CUDA_MEMORY", memory.as_str())]);
    }
    let bench = Bench::new();
    for _ in 0..20 {
        // More than half of what there is: the one before has to be gone.
        let memory = bench.allocate(MemoryType::Cuda(0), 40 << 20);
        let error = bench.domain.allocate(MemoryType::Cuda(0), 40 << 20);
        assert_eq!(error.expect_err("no room").kind(), ErrorKind::Exhausted);
        drop(memory);
    }
}

#[test]
fn pinned_memory_survives_its_context() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let bench = Bench::new();
    let mut pinned = bench.pinned(8192);
    let device = bench.allocate(MemoryType::Cuda(0), 64);
    reset(0);
    // The host goes on with it.
    pinned.bytes_mut().fill(7);
    assert!(pinned.bytes().iter().all(|byte| *byte == 7));
    drop((pinned, device));
    // And there is a new context.
    let again = bench.allocate(MemoryType::Cuda(0), 64);
    let found = bench.domain.detect(again.0.range()).expect("an answer");
    assert!(found.is_some());
}

/// The program resets a device.
pub(crate) fn reset(ordinal: i32) {
    let library = crate::fixture::library();
    // SAFETY: the function has this signature, and the library stays loaded.
    unsafe {
        let library = libloading::Library::new(library).expect("is loaded");
        let reset = library
            .get::<unsafe extern "C" fn(i32) -> u32>("cuDevicePrimaryCtxReset_v2")
            .expect("exported");
        assert_eq!(reset(ordinal), 0);
    }
}

#[test]
fn exports_tell_where_the_range_lies() {
    let bench = Bench::new();
    let memory = bench.allocate(MemoryType::Cuda(1), 1 << 20);
    let part = range(memory.address() + 5000, 100);
    let exported = bench.domain.export(part).expect("exports");
    assert_eq!(exported.offset, 5000 % 4096);
    assert!(exported.fd.as_raw_fd() >= 0);
    let own = context(0);
    let _guard = own.enter().expect("enters");
    let virtually = Virtual::new(raw(), 0, 4096);
    bench
        .domain
        .export(range(virtually.at, 4096))
        .expect("exports what is of no context");
    let managed = bench.allocate(MemoryType::CudaManaged, 4096);
    let host = vec![0_u8; 4096];
    for place in [managed.0.range(), AddressRange::of(&host)] {
        let error = bench.domain.export(place).map(drop).expect_err("has none");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn what_a_context_allocates_can_be_exported_or_not() {
    let bench = Bench::new();
    let context = Context::builder()
        .memory_domain(bench.accelerator.domain())
        .build()
        .expect("a context");
    for (memory_type, exports) in [
        (MemoryType::Cuda(0), true),
        (MemoryType::HostPinned, false),
        (MemoryType::CudaManaged, false),
    ] {
        let mut buffer = context
            .allocate_on(memory_type, 4096)
            .await
            .expect("memory");
        let host = range(buffer.address() as u64, 4096);
        let place = buffer.device_range().unwrap_or(host);
        let told = context.known_memory_attributes(place).expect("told");
        let found = context.refresh_memory_attributes(place).expect("known");
        assert_eq!((told.memory_type, told.dma_buf), (memory_type, exports));
        assert_eq!(told, found);
    }
}

#[test]
fn a_device_without_dma_bufs_says_so() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_CUDA_DMABUF", "0")]);
    }
    let bench = Bench::new();
    let memory = bench.allocate(MemoryType::Cuda(0), 4096);
    let found = bench.domain.detect(memory.0.range()).expect("an answer");
    assert!(!found.expect("known").dma_buf);
    let error = bench.domain.export(memory.0.range()).map(drop);
    assert_eq!(error.expect_err("has none").kind(), ErrorKind::Unsupported);
}

#[test]
fn advice_moves_managed_memory_alone() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let bench = Bench::new();
    let (managed, device) = (
        bench.allocate(MemoryType::CudaManaged, 1 << 16),
        bench.allocate(MemoryType::Cuda(0), 1 << 16),
    );
    for (memory, advice, moved) in [
        (&managed, Advice::Normal, 0),
        (&managed, Advice::WillNeed, 1),
    ] {
        bench
            .domain
            .advise(memory.0.range(), advice)
            .expect("takes advice");
        assert_eq!(calls("cuMemPrefetchAsync"), moved);
    }
    let error = bench.domain.advise(device.0.range(), Advice::WillNeed);
    assert_eq!(error.expect_err("stays").kind(), ErrorKind::Unsupported);
    let host = vec![0_u8; 8];
    let error = bench
        .domain
        .advise(AddressRange::of(&host), Advice::WillNeed);
    assert_eq!(
        error.expect_err("the host's").kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_missing_driver_is_told() {
    let accelerator = wharf::transport::cuda::CudaCopy::with_library("/nowhere/libcuda.so.1");
    let error = accelerator.probe().expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("/nowhere/libcuda.so.1"),
        "{error}"
    );
    assert!(accelerator.open().is_err());
    let domain = accelerator.domain();
    assert!(!domain.is_loaded());
    assert_eq!(
        domain
            .allocate(MemoryType::Cuda(0), 1)
            .expect_err("none")
            .kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn questions_may_come_from_anywhere() {
    let bench = Bench::new();
    let memory = Arc::new(bench.allocate(MemoryType::Cuda(0), 1 << 20));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (domain, memory) = (&bench.domain, &memory);
            scope.spawn(move || {
                for step in 0..500 {
                    let at = memory.address() + (thread * 500 + step) * 64;
                    let found = domain.detect(range(at, 64)).expect("an answer");
                    assert_eq!(found.map(|found| found.id), Some(memory.0.id()));
                }
            });
        }
    });
    let _ = raw();
}

#[test]
fn memory_of_other_processes_can_be_left_out() {
    let accelerator = accelerator().ipc(false);
    let memory = Bench::new().allocate(MemoryType::Cuda(0), 100_000);
    let exported = accelerator
        .export(memory.address(), 100_000)
        .expect("an answer");
    let Export::Impossible(why) = exported else {
        panic!("{exported:?}");
    };
    assert!(why.contains("left out"), "{why}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    // Neither is looked at, so they may be anything.
    let nobody = wharf::Identity {
        boot: [0; 16],
        net_namespace: 0,
        pid_namespace: 0,
        user_namespace: 0,
        user: 0,
        pid: 0,
    };
    let imported = runtime.block_on(accelerator.import(&[], &nobody));
    let error = imported.expect_err("left out");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
