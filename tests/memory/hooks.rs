//! Patched libc functions: they do what they did, whoever runs in them, and a patch that another library made is respected.
//!
//! Each test is a process of its own, as patches are for life.
//!
//! # Safety
//! Calls that succeed change only memory that the test mapped. Functions found by name have the types of their manual pages.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_void},
    hint::black_box,
    process::Command,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use wharf::{
    ErrorKind,
    memory::{
        AddressRange, Cause, EventClasses, Imported, MemoryMonitor, MemorySink, MonitorKind,
        RegistrationCache, Subscription, Timing, Validity, disable_hooks, install_hooks, monitor,
        subscribe,
    },
};

use crate::{
    fakes::{READ, block_on, roomy},
    prepare::{load_ucx, ucx_watches_memory},
    support::{Child, FakeMonitor, FakeRegistrar, block_until, child, this_test},
};

const PAGE: usize = 4096;
const EVERYTHING: u64 = 1 << 40;

/// Runs `body` in a process of its own.
fn alone(test: &str, body: fn()) {
    alone_with(test, &[], 1, body);
}

/// The same with variables, so many times, each in a process of its own.
fn alone_with(test: &str, variables: &[(&str, &str)], times: usize, body: fn()) {
    if let Some(parent) = child("alone") {
        body();
        return parent.say("done");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    for _ in 0..times {
        let mut process = Child::start(test, "alone", variables);
        let line = runtime.block_on(process.hear());
        process.finish();
        assert_eq!(line, "done");
    }
}

fn install() {
    // SAFETY: nothing else changes code in the processes of these tests.
    unsafe { install_hooks() }.expect("glibc that can be patched");
}

/// Counts events that touch one range.
#[derive(Default)]
struct Counter {
    start: AtomicU64,
    end: AtomicU64,
    count: AtomicUsize,
    everything: AtomicBool,
}

impl Counter {
    fn subscribe() -> (Arc<Self>, Subscription) {
        let counter = Arc::new(Self::default());
        let subscription = subscribe(counter.clone()).expect("a place");
        (counter, subscription)
    }

    fn expect(&self, start: *mut c_void, length: usize) {
        self.start.store(start as u64, SeqCst);
        self.end.store((start as usize + length) as u64, SeqCst);
        self.count.store(0, SeqCst);
    }
}

impl MemorySink for Counter {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        if range.len() > EVERYTHING {
            self.everything.store(true, SeqCst);
        }
        if range.start() < self.end.load(SeqCst) && self.start.load(SeqCst) < range.end() {
            self.count.fetch_add(1, SeqCst);
        }
    }
}

fn map(length: usize) -> *mut c_void {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory.
    let memory = unsafe { libc::mmap(ptr::null_mut(), length, rights, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a string that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn entry(name: &CStr) -> *mut u8 {
    find(name).expect("a function of libc's").cast()
}

/// The first bytes of a function.
fn code(name: &CStr) -> [u8; 8] {
    // SAFETY: code that is mapped.
    unsafe { entry(name).cast::<[u8; 8]>().read_volatile() }
}

/// Writes over the entry of a function that no thread is in.
fn overwrite(name: &CStr, bytes: &[u8]) {
    let at = entry(name);
    let page = (at as usize & !(PAGE - 1)) as *mut c_void;
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: code of libc's, which stays executable.
    unsafe {
        assert_eq!(libc::mprotect(page, 2 * PAGE, all), 0);
        ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
        libc::mprotect(page, 2 * PAGE, libc::PROT_READ | libc::PROT_EXEC);
    }
}

/// Processes in which threads run in the functions while these are patched. More by hand: `HOOK_RUNS=5000`.
fn runs() -> usize {
    let default = if cfg!(debug_assertions) { 40 } else { 500 };
    std::env::var("HOOK_RUNS").map_or(default, |runs| runs.parse().expect("a number"))
}

/// Of these, as many by one child: a watchdog waits for each.
const BATCH: usize = 20;
const THREADS: usize = 8;

/// Calls everything that is patched, over and over.
fn hammer(stop: &AtomicBool, rounds: &AtomicU64) {
    while !stop.load(SeqCst) {
        rounds.fetch_add(1, SeqCst);
        let memory = map(4 * PAGE);
        // SAFETY: a mapping of our own; the others fail.
        unsafe {
            memory.cast::<u8>().write_volatile(1);
            assert_eq!(libc::madvise(memory, PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!(memory.cast::<u8>().read_volatile(), 0);
            let memory = libc::mremap(memory, 4 * PAGE, 16 * PAGE, libc::MREMAP_MAYMOVE);
            assert_ne!(memory, libc::MAP_FAILED);
            assert_eq!(libc::shmdt(memory), -1);
            assert_eq!(libc::shmat(-1, ptr::null(), 0) as isize, -1);
            assert_eq!(libc::munmap(memory, 16 * PAGE), 0);
        }
        drop(black_box(vec![1_u8; 200 << 10]));
    }
}

fn patch_under_load() {
    for run in 0..BATCH {
        // SAFETY: the child is this process as it is; it ends by `_exit`.
        let process = unsafe { libc::fork() };
        assert!(process >= 0);
        if process == 0 {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(60) };
            let stop = Arc::new(AtomicBool::new(false));
            let rounds = Arc::new([const { AtomicU64::new(0) }; THREADS]);
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (stop, rounds) = (stop.clone(), rounds.clone());
                    thread::spawn(move || hammer(&stop, &rounds[number]))
                })
                .collect();
            // At another moment each time.
            thread::sleep(Duration::from_micros(500 + 37 * (run as u64 % 20)));
            // SAFETY: nothing else changes code.
            let installed = unsafe { install_hooks() }.is_ok();
            // A whole round by each through what is patched: the first may have begun before.
            let before = rounds.each_ref().map(|round| round.load(SeqCst));
            block_until("two rounds of each", || {
                let pairs = rounds.iter().zip(before);
                pairs
                    .into_iter()
                    .all(|(now, before)| now.load(SeqCst) >= before + 2)
            });
            stop.store(true, SeqCst);
            let ended = threads.into_iter().all(|thread| thread.join().is_ok());
            // SAFETY: ends the child, without what its parent would do at its end.
            unsafe { libc::_exit(if installed && ended { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(process, &mut status, 0) };
        assert_eq!(status, 0, "run {run}");
    }
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn patching_while_threads_run() {
    alone_with(this_test!(), &[], runs().div_ceil(BATCH), patch_under_load);
}

fn patch_under_forks() {
    for run in 0..BATCH {
        // SAFETY: the child is this process as it is; it ends by `_exit`.
        let process = unsafe { libc::fork() };
        assert!(process >= 0);
        if process == 0 {
            let stop = Arc::new(AtomicBool::new(false));
            let theirs = stop.clone();
            let forks = thread::spawn(move || {
                while !theirs.load(SeqCst) {
                    // SAFETY: the child makes calls that are allowed there, and ends; the alarm ends one that hangs.
                    unsafe {
                        let child = libc::fork();
                        if child == 0 {
                            libc::alarm(10);
                            let memory = map(PAGE);
                            libc::madvise(memory, PAGE, libc::MADV_DONTNEED);
                            libc::_exit(libc::munmap(memory, PAGE));
                        }
                        let mut status = 0;
                        libc::waitpid(child, &mut status, 0);
                        assert_eq!(status, 0);
                    }
                }
            });
            // At another moment each time.
            thread::sleep(Duration::from_micros(1000 + 137 * run as u64));
            // SAFETY: nothing else changes code.
            let installed = unsafe { install_hooks() }.is_ok();
            stop.store(true, SeqCst);
            let ended = forks.join().is_ok();
            // SAFETY: ends the child, without what its parent would do at its end.
            unsafe { libc::_exit(if installed && ended { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(process, &mut status, 0) };
        assert_eq!(status, 0, "run {run}");
    }
}

/// A child has the code as it is at that moment, and no thread that would finish a patch.
#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn patching_while_a_thread_forks() {
    alone_with(this_test!(), &[], runs().div_ceil(BATCH), patch_under_forks);
}

/// What a call answered: the result, or 1 in place of an address; and `errno`.
type Answer = (&'static str, isize, i32);

/// Valid and invalid calls of every function.
fn answers() -> Vec<Answer> {
    let answers = std::cell::RefCell::new(Vec::new());
    let note = |name, call: &dyn Fn() -> isize| {
        // SAFETY: libc's errno of this thread. A call that succeeds must leave it.
        unsafe { *libc::__errno_location() = 77 };
        let result = call();
        // SAFETY: as above.
        let errno = unsafe { *libc::__errno_location() };
        answers.borrow_mut().push((name, result, errno));
    };
    let address = |memory: *mut c_void| match memory as isize {
        -1 => -1,
        _ => 1,
    };
    let odd = |memory: *mut c_void| memory.cast::<u8>().wrapping_add(1).cast::<c_void>();
    let at = |memory: *mut c_void, page: usize| {
        memory
            .cast::<u8>()
            .wrapping_add(page * PAGE)
            .cast::<c_void>()
    };
    let high = ptr::without_provenance_mut::<c_void>(usize::MAX & !(PAGE - 1));
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let null = ptr::null_mut();
    // Room of our own: what is mapped and unmapped lies within.
    let room = map(32 * PAGE);
    // SAFETY: calls that succeed change `room` alone, and the break, which nobody uses meanwhile.
    unsafe {
        note("mmap", &|| {
            address(libc::mmap(
                room,
                PAGE,
                rights,
                private | libc::MAP_FIXED,
                -1,
                0,
            ))
        });
        note("mmap offset", &|| {
            address(libc::mmap(null, PAGE, rights, private, -1, 12))
        });
        note("mmap empty", &|| {
            address(libc::mmap(null, 0, rights, private, -1, 0))
        });
        note("mmap huge", &|| {
            address(libc::mmap(null, usize::MAX / 2, rights, private, -1, 0))
        });
        note("mmap odd", &|| {
            address(libc::mmap(
                odd(room),
                PAGE,
                rights,
                private | libc::MAP_FIXED,
                -1,
                0,
            ))
        });
        note("mmap high", &|| {
            address(libc::mmap(
                high,
                2 * PAGE,
                rights,
                private | libc::MAP_FIXED,
                -1,
                0,
            ))
        });
        note("mmap file", &|| {
            address(libc::mmap(null, PAGE, rights, libc::MAP_PRIVATE, 9999, 0))
        });
        note("mmap taken", &|| {
            address(libc::mmap(
                room,
                PAGE,
                rights,
                private | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            ))
        });
        note("mmap kind", &|| {
            address(libc::mmap(null, PAGE, rights, libc::MAP_ANONYMOUS, -1, 0))
        });
        note("munmap", &|| libc::munmap(room, PAGE) as isize);
        note("munmap again", &|| libc::munmap(room, PAGE) as isize);
        note("munmap odd", &|| libc::munmap(odd(room), PAGE) as isize);
        note("munmap empty", &|| libc::munmap(room, 0) as isize);
        note("munmap high", &|| libc::munmap(high, usize::MAX) as isize);
        note("madvise", &|| {
            libc::madvise(at(room, 1), PAGE, libc::MADV_DONTNEED) as isize
        });
        note("madvise free", &|| {
            libc::madvise(at(room, 1), PAGE, libc::MADV_FREE) as isize
        });
        note("madvise remove", &|| {
            libc::madvise(at(room, 1), PAGE, libc::MADV_REMOVE) as isize
        });
        note("madvise locked", &|| {
            libc::madvise(at(room, 1), PAGE, 24) as isize
        });
        note("madvise advice", &|| {
            libc::madvise(at(room, 1), PAGE, 9999) as isize
        });
        note("madvise odd", &|| {
            libc::madvise(odd(room), PAGE, libc::MADV_DONTNEED) as isize
        });
        note("madvise hole", &|| {
            libc::madvise(room, 2 * PAGE, libc::MADV_DONTNEED) as isize
        });
        note("madvise empty", &|| {
            libc::madvise(room, 0, libc::MADV_DONTNEED) as isize
        });
        note("madvise high", &|| {
            libc::madvise(high, usize::MAX, libc::MADV_DONTNEED) as isize
        });
        note("mremap same", &|| {
            address(libc::mremap(at(room, 2), PAGE, PAGE, 0))
        });
        note("mremap no room", &|| {
            address(libc::mremap(at(room, 2), PAGE, 2 * PAGE, 0))
        });
        note("mremap shrink", &|| {
            address(libc::mremap(at(room, 2), 2 * PAGE, PAGE, 0))
        });
        note("mremap onto", &|| {
            address(libc::mremap(
                at(room, 4),
                PAGE,
                PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                at(room, 2),
            ))
        });
        note("mremap itself", &|| {
            address(libc::mremap(
                at(room, 8),
                2 * PAGE,
                2 * PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                at(room, 9),
            ))
        });
        note("mremap flags", &|| {
            address(libc::mremap(
                at(room, 8),
                PAGE,
                PAGE,
                libc::MREMAP_FIXED,
                at(room, 2),
            ))
        });
        note("mremap flag", &|| {
            address(libc::mremap(at(room, 8), PAGE, PAGE, 1 << 20))
        });
        note("mremap odd", &|| {
            address(libc::mremap(
                odd(room),
                PAGE,
                2 * PAGE,
                libc::MREMAP_MAYMOVE,
            ))
        });
        note("mremap empty", &|| {
            address(libc::mremap(at(room, 8), PAGE, 0, libc::MREMAP_MAYMOVE))
        });
        note("mremap hole", &|| {
            address(libc::mremap(room, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE))
        });
        note("mremap private copy", &|| {
            address(libc::mremap(at(room, 8), 0, PAGE, libc::MREMAP_MAYMOVE))
        });
        note("mremap keep", &|| {
            let moved = libc::mremap(
                at(room, 8),
                PAGE,
                PAGE,
                libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
                null,
            );
            if moved != libc::MAP_FAILED {
                libc::munmap(moved, PAGE);
            }
            address(moved)
        });
        note("mremap move", &|| {
            let moved = libc::mremap(at(room, 12), PAGE, 8 * PAGE, libc::MREMAP_MAYMOVE);
            if moved != libc::MAP_FAILED {
                libc::munmap(moved, 8 * PAGE);
            }
            address(moved)
        });
        let start = libc::sbrk(0);
        note("sbrk", &|| {
            isize::from(libc::sbrk(8 * PAGE as isize) == start)
        });
        note("sbrk down", &|| {
            libc::sbrk(-(4 * PAGE as isize)) as isize - start as isize
        });
        note("sbrk now", &|| libc::sbrk(0) as isize - start as isize);
        note("brk", &|| libc::brk(start) as isize);
        note("brk now", &|| libc::sbrk(0) as isize - start as isize);
        note("brk low", &|| {
            libc::brk(ptr::without_provenance_mut(PAGE)) as isize
        });
        note("brk high", &|| libc::brk(high) as isize);
        note("brk null", &|| libc::brk(null) as isize);
        note("sbrk huge", &|| libc::sbrk(isize::MAX) as isize);
        note("sbrk after", &|| libc::sbrk(0) as isize - start as isize);
        note("shmat number", &|| libc::shmat(-1, ptr::null(), 0) as isize);
        note("shmdt nothing", &|| libc::shmdt(room) as isize);
        note("shmdt odd", &|| libc::shmdt(odd(room)) as isize);
        let segment = libc::shmget(libc::IPC_PRIVATE, 2 * PAGE, 0o600);
        if segment >= 0 {
            note("shmat", &|| {
                let memory = libc::shmat(segment, ptr::null(), 0);
                libc::shmdt(memory) as isize
            });
            note("shmat taken", &|| {
                libc::shmat(segment, at(room, 16), 0) as isize
            });
            note("shmat odd", &|| {
                libc::shmat(segment, odd(room), libc::SHM_REMAP) as isize
            });
            note("shmat null", &|| {
                libc::shmat(segment, null, libc::SHM_REMAP) as isize
            });
            note("shmat over", &|| {
                let remap = libc::SHM_REMAP | libc::SHM_RND;
                let over = libc::shmat(segment, odd(at(room, 16)), remap);
                (over as isize).wrapping_sub(room as isize)
            });
            note("shmdt over", &|| libc::shmdt(at(room, 16)) as isize);
            libc::shmctl(segment, libc::IPC_RMID, null.cast());
        }
        if let Some(function) = find(c"process_madvise") {
            let advise: ProcessMadvise = std::mem::transmute(function);
            let this = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
            let part = [libc::iovec {
                iov_base: at(room, 20),
                iov_len: PAGE,
            }; 2];
            note("process_madvise", &|| {
                advise(this, part.as_ptr(), 2, libc::MADV_DONTNEED, 0)
            });
            note("process_madvise fd", &|| {
                advise(-1, part.as_ptr(), 2, libc::MADV_DONTNEED, 0)
            });
            note("process_madvise null", &|| {
                advise(this, ptr::null(), 1, libc::MADV_DONTNEED, 0)
            });
            note("process_madvise many", &|| {
                advise(this, part.as_ptr(), 1025, libc::MADV_DONTNEED, 0)
            });
            note("process_madvise flags", &|| {
                advise(this, part.as_ptr(), 2, libc::MADV_DONTNEED, 9)
            });
            libc::close(this);
        }
        libc::munmap(room, 32 * PAGE);
    }
    answers.into_inner()
}

type ProcessMadvise =
    unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_int, libc::c_uint) -> isize;

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn results_are_those_of_libc() {
    alone(this_test!(), || {
        let before = answers();
        assert!(before.len() > 40);
        assert!(
            before.contains(&("mmap offset", -1, libc::EINVAL)),
            "{before:?}"
        );
        assert!(
            before.contains(&("brk high", -1, libc::ENOMEM)),
            "{before:?}"
        );
        install();
        let (_counter, subscription) = Counter::subscribe();
        for (expected, found) in before.iter().zip(answers()) {
            assert_eq!(*expected, found, "patched");
        }
        drop(subscription);
        disable_hooks();
        assert_eq!(before, answers(), "disabled");
    });
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn what_no_other_table_has_is_told() {
    alone(this_test!(), || {
        install();
        let (counter, _subscription) = Counter::subscribe();
        let memory = map(4 * PAGE);
        let told = |what: &str, expected: usize| {
            assert_eq!(counter.count.swap(0, SeqCst), expected, "{what}");
        };
        // SAFETY: the test's own mapping.
        unsafe {
            counter.expect(memory, 4 * PAGE);
            libc::madvise(memory, PAGE, 24);
            told("MADV_DONTNEED_LOCKED", 1);
            libc::madvise(memory, PAGE, libc::MADV_WILLNEED);
            told("MADV_WILLNEED", 0);
            libc::munmap(memory.cast::<u8>().add(1).cast(), PAGE);
            told("a call that the kernel refuses", 0);
            if let Some(function) = find(c"process_madvise") {
                let advise: ProcessMadvise = std::mem::transmute(function);
                let this = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as c_int;
                let part = [libc::iovec {
                    iov_base: memory,
                    iov_len: PAGE,
                }; 3];
                advise(this, part.as_ptr(), 3, libc::MADV_DONTNEED, 0);
                told("process_madvise", 3);
                advise(this, ptr::without_provenance(8), 3, libc::MADV_DONTNEED, 0);
                told("process_madvise of nothing", 0);
                libc::close(this);
            }
            libc::munmap(memory, 4 * PAGE);
            told("munmap", 1);
        }
        assert!(!counter.everything.load(SeqCst));
    });
}

/// The kernel detaches what is left, wherever it begins.
#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn a_segment_that_lost_its_first_part() {
    alone(this_test!(), || {
        install();
        let (counter, _subscription) = Counter::subscribe();
        // SAFETY: a segment of the test's own, which goes with its attachment.
        unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, 4 * PAGE, 0o600);
            assert!(segment >= 0, "System V shared memory");
            let memory = libc::shmat(segment, ptr::null(), 0);
            libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut());
            assert_eq!(libc::munmap(memory, PAGE), 0);
            counter.expect(memory.cast::<u8>().add(2 * PAGE).cast(), PAGE);
            assert_eq!(libc::shmdt(memory), 0);
            let mut vector = 0_u8;
            let gone = libc::mincore(memory.cast::<u8>().add(2 * PAGE).cast(), PAGE, &mut vector);
            assert_eq!(gone, -1, "the kernel detached it");
        }
        assert_eq!(counter.count.load(SeqCst), 1);
        assert!(!counter.everything.load(SeqCst));
    });
}

/// The kernel takes whole huge pages, however few bytes the call names.
#[test]
#[ignore = "needs the feature mem-hooks, and huge pages: vm.nr_hugepages"]
fn huge_pages_are_told_of_whole() {
    const HUGE: usize = 2 << 20;
    alone(this_test!(), || {
        install();
        let (counter, _subscription) = Counter::subscribe();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let huge = flags | libc::MAP_HUGETLB | 21 << libc::MAP_HUGE_SHIFT;
        // SAFETY: mappings of the test's own.
        unsafe {
            let memory = libc::mmap(ptr::null_mut(), 2 * HUGE, rights, huge, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED, "two free huge pages");
            counter.expect(memory.cast::<u8>().add(HUGE - PAGE).cast(), PAGE);
            let over = libc::mmap(memory, PAGE, rights, huge | libc::MAP_FIXED, -1, 0);
            assert_eq!(over, memory);
            assert_eq!(counter.count.swap(0, SeqCst), 1, "mmap");
            let moved = libc::mremap(memory, PAGE, 2 * HUGE, libc::MREMAP_MAYMOVE);
            if moved != libc::MAP_FAILED && moved != memory {
                assert_eq!(counter.count.swap(0, SeqCst), 1, "mremap");
            }
        }
    });
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn disabled_and_never_taken_away() {
    alone(this_test!(), || {
        let original = code(c"munmap");
        install();
        install();
        let patched = code(c"munmap");
        assert_ne!(original, patched);
        let (counter, _subscription) = Counter::subscribe();
        let chosen = monitor(MonitorKind::Hooks).expect("installed");
        assert_eq!(chosen.validate(), Validity::Valid);
        assert!(chosen.classes().covers_foreign_memory());
        let range = AddressRange::new(PAGE as u64, 1).expect("a range");
        for _ in 0..200 {
            chosen.watch(range).expect("watched");
        }
        disable_hooks();
        assert!(counter.everything.load(SeqCst), "caches are emptied");
        let memory = map(PAGE);
        counter.expect(memory, PAGE);
        // SAFETY: mapped above.
        assert_eq!(unsafe { libc::munmap(memory, PAGE) }, 0);
        assert_eq!(counter.count.load(SeqCst), 0);
        assert_eq!(code(c"munmap"), patched);
        assert_eq!(chosen.validate(), Validity::Pending);
        assert_eq!(chosen.classes(), EventClasses::empty());
        assert!(chosen.watch(range).is_err());
        assert!(monitor(MonitorKind::Hooks).is_err());
        // SAFETY: nothing else changes code.
        assert!(unsafe { install_hooks() }.is_err());
    });
}

/// Not built in, they say so.
#[test]
#[cfg(not(feature = "mem-hooks"))]
fn left_out_they_are_refused() {
    // SAFETY: changes nothing.
    let error = unsafe { install_hooks() }.expect_err("not built in");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn another_patch_is_respected() {
    alone(this_test!(), || {
        let original = code(c"munmap");
        // mov r11, imm64; jmp r11. Nobody calls it here.
        overwrite(
            c"shmdt",
            &[0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 0x41, 0xff, 0xe3],
        );
        // SAFETY: nothing else changes code.
        let error = unsafe { install_hooks() }.expect_err("patched already");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(
            text.contains("shmdt") && text.contains("imported"),
            "{text}"
        );
        assert_eq!(code(c"munmap"), original, "all or nothing");
        assert!(monitor(MonitorKind::Hooks).is_err());
    });
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn overwritten_later() {
    alone(this_test!(), || {
        let original = code(c"shmdt");
        install();
        let (counter, _subscription) = Counter::subscribe();
        let chosen = monitor(MonitorKind::Hooks).expect("installed");
        overwrite(c"shmdt", &original);
        let range = AddressRange::new(PAGE as u64, 1).expect("a range");
        let error = chosen.watch(range).expect_err("noticed");
        assert!(error.to_string().contains("overwritten"), "{error}");
        assert!(counter.everything.load(SeqCst), "caches are emptied");
        assert_eq!(chosen.validate(), Validity::Pending);
        assert!(monitor(MonitorKind::Hooks).is_err());
    });
}

/// A hit does not come from a time at which the events still came.
#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn nothing_is_found_after_an_overwrite() {
    alone(this_test!(), || {
        let original = code(c"munmap");
        install();
        let chosen = monitor(MonitorKind::Hooks).expect("installed");
        let registrar = FakeRegistrar::new();
        let cache = RegistrationCache::new(registrar.clone(), chosen, roomy()).expect("a cache");
        let memory = map(PAGE);
        let range = AddressRange::new(memory as u64, PAGE as u64).expect("a range");
        let first = block_on(cache.get(range, READ)).expect("registered");
        assert!(first.is_cached());
        assert!(cache.lookup(range, READ).is_some());
        overwrite(c"munmap", &original);
        assert!(cache.lookup(range, READ).is_none());
        assert!(!first.is_current());
        let again = block_on(cache.get(range, READ)).expect("for itself");
        assert!(!again.is_cached());
        assert!(monitor(MonitorKind::Hooks).is_err());
    });
}

/// Of another library, loaded after the patch, by its own way into libc.
#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn a_library_loaded_later() {
    alone(this_test!(), || {
        install();
        // SAFETY: a system library, and two functions of C++: operator new and delete.
        let (new, delete) = unsafe {
            let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "libstdc++.so.6");
            let new = libc::dlsym(library, c"_Znwm".as_ptr());
            let delete = libc::dlsym(library, c"_ZdlPv".as_ptr());
            assert!(!new.is_null() && !delete.is_null());
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize) -> *mut c_void>(new),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(delete),
            )
        };
        let (counter, _subscription) = Counter::subscribe();
        // SAFETY: allocated and freed once.
        unsafe {
            let block = new(64 << 20);
            counter.expect(block, 64 << 20);
            delete(block);
        }
        assert_eq!(counter.count.load(SeqCst), 1);
    });
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn processes_started_from_a_patched_one() {
    alone(this_test!(), || {
        install();
        let (counter, _subscription) = Counter::subscribe();
        for _ in 0..3 {
            let output = Command::new("echo").arg("hello").output();
            assert_eq!(output.expect("a process").stdout, b"hello\n");
            let mut command = Command::new("true");
            // A closure makes it fork instead of posix_spawn.
            // SAFETY: unmaps what nobody uses, which is allowed there.
            unsafe {
                std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                    let memory = map(PAGE);
                    libc::munmap(memory, PAGE);
                    Ok(())
                });
            }
            assert!(command.status().expect("a process").success());
        }
        // A child that goes on tells of nothing, and its calls work.
        let memory = map(PAGE);
        counter.expect(memory, PAGE);
        // SAFETY: the child calls what may be called there, and ends by `_exit`.
        unsafe {
            let process = libc::fork();
            assert!(process >= 0);
            if process == 0 {
                let unmapped = libc::munmap(memory, PAGE) == 0;
                let silent = counter.count.load(SeqCst) == 0;
                libc::_exit(if unmapped && silent { 0 } else { 1 });
            }
            let mut status = 0;
            libc::waitpid(process, &mut status, 0);
            assert_eq!(status, 0);
            assert_eq!(libc::munmap(memory, PAGE), 0, "the parent still has it");
        }
        assert_eq!(counter.count.load(SeqCst), 1);
    });
}

/// Calls of the handler below.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn unmap_in_handler(_: c_int) {
    let memory = map(PAGE);
    // SAFETY: mapped above.
    unsafe { libc::munmap(memory, PAGE) };
    SIGNALS.fetch_add(1, SeqCst);
}

#[test]
#[cfg_attr(not(feature = "mem-hooks"), ignore = "needs the feature mem-hooks")]
fn signal_handlers_and_ends_of_threads() {
    alone(this_test!(), || {
        // SAFETY: the handler calls what may be called in one.
        unsafe {
            libc::signal(libc::SIGALRM, unmap_in_handler as *const () as usize);
            let interval = libc::timeval {
                tv_sec: 0,
                tv_usec: 200,
            };
            let timer = libc::itimerval {
                it_interval: interval,
                it_value: interval,
            };
            libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut());
        }
        install();
        let (counter, _subscription) = Counter::subscribe();
        let start = Instant::now();
        while SIGNALS.load(SeqCst) < 1000 {
            assert!(start.elapsed() < Duration::from_secs(60), "watchdog");
            let block = black_box(vec![1_u8; 1 << 20]);
            drop(block);
            // SAFETY: gives back what the heap does not need.
            unsafe { libc::malloc_trim(0) };
            // Its stack is unmapped when the next one ends: glibc keeps some.
            let thread = thread::Builder::new().stack_size(48 << 20);
            let local = thread
                .spawn(|| {
                    let local = 0_u8;
                    black_box(&raw const local) as usize
                })
                .expect("a thread")
                .join()
                .expect("its end");
            let page = ptr::without_provenance_mut(local & !(PAGE - 1));
            counter.expect(page, PAGE);
            let thread = thread::Builder::new().stack_size(48 << 20);
            thread
                .spawn(|| ())
                .expect("a thread")
                .join()
                .expect("its end");
        }
    });
}

/// With the real UCX, where it is installed.
#[test]
#[ignore = "needs UCX: libucm.so.0"]
fn ucx_in_the_process() {
    alone(this_test!(), || {
        let absent = Imported::available().expect_err("not loaded");
        assert_eq!(absent.kind(), ErrorKind::Unsupported);
        ucx_watches_memory().expect("UCX");
        let imported = monitor(MonitorKind::Imported).expect("UCX watches");
        assert!(imported.classes().covers_foreign_memory());
        assert_eq!(monitor(MonitorKind::Auto).expect("one").name(), "imported");
        let (counter, _subscription) = Counter::subscribe();
        let memory = map(2 * PAGE);
        counter.expect(memory, 2 * PAGE);
        // SAFETY: mapped above.
        unsafe { libc::munmap(memory, 2 * PAGE) };
        assert_eq!(counter.count.load(SeqCst), 1);
        if cfg!(feature = "mem-hooks") {
            // SAFETY: nothing else changes code now.
            let error = unsafe { install_hooks() }.expect_err("UCX was first");
            assert!(error.to_string().contains("imported"), "{error}");
        }
    });
}

#[test]
#[ignore = "needs UCX: libucm.so.0"]
fn ucx_that_watches_nothing() {
    alone_with(this_test!(), &[("UCX_MEM_EVENTS", "n")], 1, || {
        load_ucx().expect("UCX");
        let asleep = Imported::available().expect_err("it was told not to");
        assert_eq!(asleep.kind(), ErrorKind::Unsupported);
        assert!(asleep.to_string().contains("UCX"), "{asleep}");
        assert_ne!(monitor(MonitorKind::Auto).expect("one").name(), "imported");
    });
}

/// UCX overwrites what was patched before it without a word.
#[test]
#[ignore = "needs the feature mem-hooks, and UCX: libucm.so.0"]
fn ucx_after_the_hooks() {
    alone(this_test!(), || {
        install();
        let chosen = monitor(MonitorKind::Hooks).expect("installed");
        ucx_watches_memory().expect("UCX");
        let range = AddressRange::new(PAGE as u64, 1).expect("a range");
        let error = chosen.watch(range).expect_err("noticed");
        assert!(error.to_string().contains("overwritten"), "{error}");
        assert_eq!(monitor(MonitorKind::Auto).expect("one").name(), "imported");
    });
}

/// Not a test: prints what a hook costs. `cargo test --release --test memory --features mem-hooks -- --ignored --nocapture cost`
#[test]
#[ignore = "a measurement, of the feature mem-hooks"]
fn cost() {
    alone(this_test!(), || {
        // What the kernel refuses, and what it looks for in vain.
        let measure = |length: usize| {
            (0..40)
                .map(|_| {
                    let start = Instant::now();
                    for _ in 0..10_000 {
                        // SAFETY: nothing is mapped there.
                        unsafe { libc::munmap(ptr::without_provenance_mut(PAGE), length) };
                    }
                    start.elapsed().as_nanos() as f64 / 10_000.0
                })
                .fold(f64::MAX, f64::min)
        };
        let bare = [measure(0), measure(PAGE)];
        install();
        let hooked = [measure(0), measure(PAGE)];
        let (_counter, subscription) = Counter::subscribe();
        let told = measure(PAGE);
        drop(subscription);
        let memory = map(PAGE);
        let range = AddressRange::new(memory as u64, PAGE as u64).expect("a range");
        let hit = |monitor: Arc<dyn MemoryMonitor>| {
            let cache = RegistrationCache::new(FakeRegistrar::new(), monitor, roomy());
            let cache = cache.expect("a cache");
            drop(block_on(cache.get(range, READ)).expect("registered"));
            (0..40)
                .map(|_| {
                    let start = Instant::now();
                    for _ in 0..10_000 {
                        assert!(black_box(&cache).lookup(black_box(range), READ).is_some());
                    }
                    start.elapsed().as_nanos() as f64 / 10_000.0
                })
                .fold(f64::MAX, f64::min)
        };
        let trusted = hit(Arc::new(FakeMonitor::new(Timing::Before)));
        let asked = hit(monitor(MonitorKind::Hooks).expect("installed"));
        eprintln!("hit, ns: {trusted:.1}, with the entries looked at {asked:.1}");
        eprintln!(
            "munmap, ns: refused {:.1}, hooked {:.1}",
            bare[0], hooked[0]
        );
        eprintln!(
            "munmap of nothing, ns: {:.1}, hooked {:.1}, with a subscriber {told:.1}",
            bare[1], hooked[1]
        );
    });
}
