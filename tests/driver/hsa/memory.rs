//! Memory: what an address is, who reaches it, who is told that it is freed.
//!
//! # Safety
//! Copies are between memory that outlives them, or that the test means to break.
#![allow(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{calls, control, copy_now, cpu, end, get, gpu, hsa, live, lock, on_gpu, pattern, put};
use crate::{
    alone::{child_with, is_child},
    driver::hsa::{FreedCallback, Grain, PointerKind, Status},
    error::ErrorKind,
    support::this_test,
};

/// Whether the kernel, and so the host, reaches an address.
fn host_reaches(address: u64) -> bool {
    let (reads, writes) = nix::unistd::pipe().expect("a pipe");
    // SAFETY: the kernel checks the address.
    let written = unsafe {
        use std::os::fd::AsRawFd;
        libc::write(
            writes.as_raw_fd(),
            std::ptr::with_exposed_provenance(address as usize),
            1,
        )
    };
    drop(reads);
    written == 1
}

#[test]
fn addresses_are_told_apart() {
    let hsa = hsa();
    let kind = |at: u64| hsa.inspect(at).expect("an answer").kind;
    let memory = on_gpu(0, 10_000);
    let inside = hsa.inspect(memory.address() + 5_000).expect("an answer");
    assert_eq!(inside.kind, PointerKind::Allocated);
    assert_eq!((inside.agent_base, inside.len), (memory.address(), 10_000));
    assert_eq!(
        (inside.owner, inside.grain),
        (Some(gpu(0).raw()), Grain::Coarse)
    );
    assert_eq!(kind(memory.address() + 9_999), PointerKind::Allocated);
    assert_eq!(kind(memory.address() + 10_000), PointerKind::Unknown);
    assert!(
        !host_reaches(memory.address()),
        "device memory with a small BAR"
    );

    let host = cpu()
        .pool(Grain::Fine)
        .expect("a pool")
        .allocate(4096)
        .expect("memory");
    let info = hsa.inspect(host.address()).expect("an answer");
    assert_eq!(
        (info.kind, info.owner),
        (PointerKind::Allocated, Some(cpu().raw()))
    );
    assert_eq!(info.grain, Grain::Fine);
    assert!(host_reaches(host.address()));

    let mut bytes = vec![0_u8; 3 * 4096];
    let at = bytes.as_mut_ptr().expose_provenance() as u64;
    assert_eq!(kind(at), PointerKind::Unknown);
    let locked = lock(&mut bytes).expect("locks");
    assert_ne!(locked.agent_address(), at, "agents have it elsewhere");
    assert_eq!(locked.agent_address() & 4095, at & 4095);
    for address in [at + 100, locked.agent_address() + 100] {
        let info = hsa.inspect(address).expect("an answer");
        assert_eq!(info.kind, PointerKind::Locked);
        assert_eq!(
            (info.host_base, info.agent_base),
            (at, locked.agent_address())
        );
        assert_eq!((info.len, info.owner), (3 * 4096, Some(cpu().raw())));
    }
    assert!(!host_reaches(locked.agent_address()));
    let elsewhere = locked.agent_address();
    drop(locked);
    assert_eq!(
        (kind(at), kind(elsewhere)),
        (PointerKind::Unknown, PointerKind::Unknown)
    );

    let (freed, address) = (memory.address(), host.address());
    drop(memory);
    drop(host);
    assert_eq!(
        (kind(freed), kind(address), kind(0)),
        (
            PointerKind::Unknown,
            PointerKind::Unknown,
            PointerKind::Unknown
        )
    );
    assert!(!host_reaches(freed) && !host_reaches(address));
}

#[test]
fn a_runtime_that_knows_less_of_the_struct_is_understood() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let memory = on_gpu(1, 4096);
    let known = |size: u32| {
        control(&format!("set info_size {size}"));
        hsa().inspect(memory.address())
    };
    let whole = known(56).expect("an answer");
    assert_eq!(
        (whole.owner, whole.grain),
        (Some(gpu(1).raw()), Grain::Coarse)
    );
    let without_flags = known(48).expect("an answer");
    assert_eq!(
        (without_flags.owner, without_flags.grain),
        (Some(gpu(1).raw()), Grain::Unsaid)
    );
    let without_owner = known(40).expect("an answer");
    assert_eq!((without_owner.owner, without_owner.len), (None, 4096));
    assert_eq!(
        known(24).expect_err("too little").kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn a_large_bar_lets_the_host_in() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_BAR", "1")]);
    }
    assert!(gpu(0).has_large_bar().expect("an answer"));
    let memory = on_gpu(0, 100_000);
    let bytes = pattern(3, 100_000);
    // SAFETY: the host reaches all of the allocation, and no copy is under way.
    let window = unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(memory.address() as usize);
        std::slice::from_raw_parts_mut(start, memory.len())
    };
    window.copy_from_slice(&bytes);
    assert_eq!(get(gpu(0), memory.address(), bytes.len()), bytes);
    put(gpu(0), memory.address() + 1, &[0xEE; 7]);
    assert_eq!(
        window[..9],
        [bytes[0], 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, 0xEE, bytes[8]]
    );
}

#[test]
fn what_cannot_be_allocated_or_locked_is_refused() {
    let pool = gpu(0).pool(Grain::Coarse).expect("a pool");
    let status = |len| Status::of(&pool.allocate(len).expect_err("refused"));
    assert_eq!(status(0), Some(Status::ERROR_INVALID_ARGUMENT));
    assert_eq!(status(1 << 40), Some(Status::ERROR_INVALID_ALLOCATION));
    let nothing = lock(&mut []).expect_err("no bytes");
    assert_eq!(nothing.kind(), ErrorKind::InvalidArgument);
    // Addresses that are not mapped.
    let gone =
        std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(1 << 20)).expect("no null");
    // SAFETY: nothing is there, which the runtime finds out.
    let error = unsafe { hsa().lock(gone, 4096, &[]) }.expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    let memory = on_gpu(0, 4096);
    let none = memory.allow(&[]).expect_err("no agents");
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    // The host never reaches it with a small BAR.
    let never = memory.allow(&[cpu()]).expect_err("no way");
    assert_eq!(never.kind(), ErrorKind::InvalidArgument);
    let inside = hsa()
        .allow_access(memory.address() + 1, &[gpu(1)])
        .expect_err("no allocation");
    assert_eq!(inside.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn the_memory_of_a_device_is_finite() {
    if !is_child() {
        return child_with(this_test!(), &[("EMULATED_HSA_MEMORY", "1000000")]);
    }
    let pool = gpu(0).pool(Grain::Coarse).expect("a pool");
    let first = pool.allocate(700_000).expect("fits");
    let error = pool.allocate(700_000).expect_err("does not fit");
    assert_eq!(Status::of(&error), Some(Status::ERROR_OUT_OF_RESOURCES));
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    drop(first);
    let again = pool.allocate(700_000).expect("fits again");
    drop(again);
    assert_eq!((live("allocations"), live("bytes")), (0, 0));
}

#[test]
fn other_agents_reach_what_they_are_allowed_to() {
    let memory = on_gpu(0, 50_000);
    let target = on_gpu(1, 50_000);
    let bytes = pattern(9, 50_000);
    put(gpu(0), memory.address(), &bytes);
    memory.allow(&[gpu(1)]).expect("allowed");
    // Device 1 copies: it is the source's agent.
    let from = end(memory.address(), gpu(1));
    let done = copy_now(end(target.address(), gpu(1)), from, bytes.len());
    assert_eq!(done.expect("copies"), 0);
    assert_eq!(get(gpu(1), target.address(), bytes.len()), bytes);
    // Host memory of a pool, at its own address.
    let host = cpu()
        .pool(Grain::Coarse)
        .expect("a pool")
        .allocate(50_000)
        .expect("memory");
    host.allow(&[gpu(0), gpu(1)]).expect("allowed");
    let done = copy_now(
        end(host.address(), cpu()),
        end(target.address(), gpu(1)),
        bytes.len(),
    );
    assert_eq!(done.expect("copies"), 0);
    // SAFETY: the host reaches its own pools; the copy is done.
    let seen = unsafe {
        let start = std::ptr::with_exposed_provenance::<u8>(host.address() as usize);
        std::slice::from_raw_parts(start, host.len())
    };
    assert_eq!(seen, bytes);
}

struct Freed(AtomicU64);

impl FreedCallback for Freed {
    fn freed(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn watchers_are_told_once_that_memory_is_freed() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let freed = || Arc::new(Freed(AtomicU64::new(0)));
    let count = |freed: &Freed| freed.0.load(Ordering::SeqCst);
    let (first, second, third) = (freed(), freed(), freed());
    let memory = on_gpu(0, 4096);
    let base = memory.address();
    let watch = |freed: &Arc<Freed>| {
        hsa()
            .watch_free(base, Arc::clone(freed) as _)
            .expect("watches")
    };
    let (one, two, three) = (watch(&first), watch(&second), watch(&third));
    assert_eq!(
        calls("hsa_amd_register_deallocation_callback"),
        1,
        "one for all"
    );
    // One that looks away does not take the others with it.
    drop(two);
    assert_eq!(live("notifiers"), 1);
    drop(memory);
    assert_eq!((count(&first), count(&second), count(&third)), (1, 0, 1));
    drop((one, three));
    assert_eq!((count(&first), live("notifiers")), (1, 0));
    assert_eq!(Arc::strong_count(&first), 1, "nothing is kept");
    // The last one that looks away ends it.
    let memory = on_gpu(0, 4096);
    let watch = hsa()
        .watch_free(memory.address(), Arc::clone(&first) as _)
        .expect("watches");
    drop(watch);
    assert_eq!(
        (
            live("notifiers"),
            calls("hsa_amd_deregister_deallocation_callback")
        ),
        (0, 1)
    );
    drop(memory);
    assert_eq!(count(&first), 1);
    // What is no allocation cannot be watched.
    let error = hsa()
        .watch_free(base, Arc::clone(&first) as _)
        .expect_err("was freed");
    assert_eq!(Status::of(&error), Some(Status::ERROR_INVALID_ALLOCATION));
    assert_eq!(Arc::strong_count(&first), 1);
}

/// One that looks at the memory while it is told.
struct Looks(u64, AtomicU64);

impl FreedCallback for Looks {
    fn freed(&self) {
        // It is no allocation any more, and its addresses are nobody else's yet.
        let kind = hsa().inspect(self.0).expect("an answer").kind;
        let again = on_gpu(0, 4096);
        self.1.store(
            1 + u64::from(kind == PointerKind::Unknown && again.address() != self.0),
            Ordering::SeqCst,
        );
    }
}

#[test]
fn watchers_are_told_before_the_memory_is_gone() {
    let memory = on_gpu(0, 4096);
    let looks = Arc::new(Looks(memory.address(), AtomicU64::new(0)));
    let _watch = hsa()
        .watch_free(memory.address(), Arc::clone(&looks) as _)
        .expect("watches");
    drop(memory);
    assert_eq!(looks.1.load(Ordering::SeqCst), 2);
}

#[test]
fn threads_watch_and_free_at_once() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    const ROUNDS: u64 = 200;
    let freed = Arc::new(Freed(AtomicU64::new(0)));
    for _ in 0..ROUNDS {
        let memory = on_gpu(0, 4096);
        let base = memory.address();
        let kept = hsa()
            .watch_free(base, Arc::clone(&freed) as _)
            .expect("watches");
        std::thread::scope(|scope| {
            scope.spawn(|| drop(memory));
            // May come before or after; either way it neither crashes nor stays.
            scope.spawn(|| drop(hsa().watch_free(base, Arc::new(Freed(AtomicU64::new(0))) as _)));
        });
        drop(kept);
    }
    assert_eq!(freed.0.load(Ordering::SeqCst), ROUNDS);
    assert_eq!((live("notifiers"), live("allocations")), (0, 0));
}

#[test]
fn memory_that_is_let_go_under_a_copy_is_a_misuse() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let (memory, other) = (on_gpu(0, 4096), on_gpu(0, 4096));
    let mut bytes = vec![0_u8; 4096];
    let locked = lock(&mut bytes).expect("locks");
    control("hold 0");
    let done = hsa().signal(1).expect("a signal");
    let from = end(locked.agent_address(), gpu(0));
    // SAFETY: wrong on purpose; it never begins, as the process ends before.
    unsafe { hsa().copy(end(memory.address(), gpu(0)), from, 4096, &[], &done) }.expect("is taken");
    drop(other);
    assert_eq!(control("misused"), "0");
    drop(locked);
    assert_eq!(control("misused"), "1");
    drop(memory);
    assert_eq!(control("misused"), "2");
    drop(done);
    assert_eq!(control("misused"), "3", "{}", control("misuses"));
    std::process::exit(0);
}
