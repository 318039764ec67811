//! No monitor allocates while it tells of an event: it may run inside the allocator.
//!
//! # Safety
//! Memory that goes away was mapped by the test, and nothing else refers to it.
#![allow(unsafe_code)]

use std::{
    hint::black_box,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use wharf::memory::{
    AddressRange, Cause, MemorySink, MonitorKind, Timing, Validity, monitor, subscribe,
};

use crate::{
    allocator::{FORBIDDEN, calls, forbid},
    prepare::prepare,
    support::{Child, child, this_test},
};

const PAGE: usize = 4096;

/// Counts events in one range, and forbids the monitor's own thread to allocate from the first on.
#[derive(Default)]
struct Strict {
    start: AtomicU64,
    end: AtomicU64,
    count: AtomicUsize,
    own_thread: AtomicBool,
    /// Breaks the rule, to see that it is noticed.
    allocates: AtomicBool,
}

impl MemorySink for Strict {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        if self.own_thread.load(SeqCst) {
            forbid(true);
        }
        if range.start() < self.end.load(SeqCst) && self.start.load(SeqCst) < range.end() {
            self.count.fetch_add(1, SeqCst);
            if self.allocates.load(SeqCst) {
                drop(black_box(Box::new(1)));
            }
        }
    }
}

fn map(length: usize) -> *mut libc::c_void {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let memory = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory
}

/// In a process of its own.
fn run(kind: MonitorKind, break_the_rule: bool) {
    prepare(kind).expect("what the monitor needs");
    let monitor = monitor(kind).expect("a monitor");
    let sink = Arc::new(Strict::default());
    let own_thread = monitor.timing() == Timing::After;
    sink.own_thread.store(own_thread, SeqCst);
    sink.allocates.store(break_the_rule, SeqCst);
    let _subscription = subscribe(sink.clone()).expect("a place");
    let mut told = 0;
    let mut expect_event = |what: &str| {
        let start = Instant::now();
        while sink.count.load(SeqCst) == told || monitor.validate() == Validity::Pending {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "no event: {what}"
            );
            thread::yield_now();
        }
        told = sink.count.load(SeqCst);
    };
    let watch = |start: usize, length: usize| {
        sink.start.store(start as u64, SeqCst);
        sink.end.store((start + length) as u64, SeqCst);
        let range = AddressRange::new(start as u64, length as u64).expect("a range");
        monitor.watch(range).expect("watched");
    };

    // Calls made by the program, where the monitor sees those: nothing in this thread allocates on their way.
    if kind != MonitorKind::Alloc {
        for _ in 0..3 {
            let memory = map(2 * PAGE);
            watch(memory as usize, 2 * PAGE);
            let before = calls();
            // SAFETY: mapped above.
            unsafe {
                libc::madvise(memory, PAGE, libc::MADV_DONTNEED);
                libc::mremap(memory, 2 * PAGE, PAGE, 0);
                libc::munmap(memory, PAGE);
            }
            if calls() != before {
                FORBIDDEN.fetch_add(calls() - before, SeqCst);
            }
            expect_event("munmap");
        }
    }
    // Calls made by the allocator: it is not entered again from within.
    for _ in 0..3 {
        let block = black_box(vec![1_u8; 64 << 20]);
        watch(block.as_ptr() as usize, block.len());
        drop(block);
        expect_event("free");
    }
}

fn no_allocation(test: &str, kind: MonitorKind) {
    for (part, break_the_rule) in [("keeps", false), ("breaks", true)] {
        if let Some(parent) = child(part) {
            run(kind, break_the_rule);
            return parent.say(format_args!("allocated {}", FORBIDDEN.load(SeqCst)));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    for part in ["keeps", "breaks"] {
        let mut process = Child::start(test, part, &[]);
        let line = runtime.block_on(process.hear());
        process.finish();
        match part {
            "keeps" => assert_eq!(line, "allocated 0", "{kind}"),
            _ => assert_ne!(line, "allocated 0", "{kind}: the guard sees nothing"),
        }
    }
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn uffd() {
    no_allocation(this_test!(), MonitorKind::Uffd);
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn hooks() {
    no_allocation(this_test!(), MonitorKind::Hooks);
}

#[test]
fn alloc() {
    no_allocation(this_test!(), MonitorKind::Alloc);
}

#[test]
#[ignore = "needs UCX: libucm.so.0"]
fn imported() {
    no_allocation(this_test!(), MonitorKind::Imported);
}
