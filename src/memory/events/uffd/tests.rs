//! What needs a monitor of its own, that can be closed. What a program sees is in `tests/memory/uffd.rs`.
//!
//! # Safety
//! All mappings that are changed were made by the test. Children that are forked make system calls only.
#![allow(unsafe_code)]

use std::{
    io, process, ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use super::Uffd;
use crate::{
    error::ErrorKind,
    memory::{AddressRange, Cause, EventClasses, MemoryMonitor, MemorySink, Validity, subscribe},
    util::lock::Mutex,
};

const PAGE: usize = 4096;

/// A monitor of the test's own.
fn open() -> Uffd {
    Uffd::open(true).expect("userfaultfd")
}

fn map(size: usize) -> *mut u8 {
    map_of(size, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

fn map_of(size: usize, flags: libc::c_int, fd: libc::c_int) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: where the kernel likes.
    let got = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, fd, 0) };
    assert_ne!(got, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    got.cast()
}

/// Where the kernel maps nothing by itself: other tests' mappings do not come into its holes. Nor have sanitizers anything there.
fn map_apart(size: usize) -> *mut u8 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5800_0000_0000);
    let place = NEXT.fetch_add(1 << 30, SeqCst) as *mut libc::c_void;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let got = unsafe { libc::mmap(place, size, access, flags, -1, 0) };
    assert_eq!(got, place, "{}", io::Error::last_os_error());
    got.cast()
}

fn unmap(start: *mut u8, size: usize) {
    // SAFETY: the test's.
    assert_eq!(unsafe { libc::munmap(start.cast(), size) }, 0);
}

fn range(start: *mut u8, size: usize) -> AddressRange {
    AddressRange::new(start as u64, size as u64).expect("a range")
}

/// Ends the process when the value is not dropped in time: a thread that waits for its event cannot be made to panic.
fn watchdog() -> impl Drop {
    struct Dog(mpsc::Sender<()>);
    impl Drop for Dog {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (done, is_done) = mpsc::channel();
    let place = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if is_done.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {place} hangs");
            process::abort();
        }
    });
    Dog(done)
}

/// Counts events of one page, and uses what it is told to.
#[derive(Default)]
struct Count {
    page: AtomicU64,
    events: AtomicU64,
    used: Mutex<Option<AddressRange>>,
}

impl MemorySink for Count {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        let page = self.page.load(SeqCst);
        if range.start() <= page && page < range.end() {
            self.events.fetch_add(1, SeqCst);
        }
    }

    fn uses(&self, range: AddressRange) -> bool {
        let used = self.used.lock();
        used.is_some_and(|used| used.overlaps(range))
    }
}

/// An event is applied once the generation is even after the unmap returned.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn an_even_generation_means_applied() {
    let (uffd, _dog) = (open(), watchdog());
    let count = Arc::new(Count::default());
    let _subscription = subscribe(count.clone()).expect("a place");
    let (mut late, mut last) = (0, uffd.generation());
    for turn in 1..=5000 {
        let page = map(PAGE);
        count.page.store(page as u64, SeqCst);
        count.events.store(0, SeqCst);
        uffd.watch(range(page, PAGE)).expect("anonymous memory");
        unmap(page, PAGE);
        late += u32::from(count.events.load(SeqCst) == 0);
        while uffd.generation() & 1 == 1 {
            thread::yield_now();
        }
        assert_ne!(count.events.load(SeqCst), 0, "turn {turn}");
        let now = uffd.generation();
        assert!(now >= last + 2, "two steps each");
        last = now;
    }
    eprintln!("{late} of 5000 events were not applied when their munmap returned");
}

/// Also when another process, made behind our back, holds the descriptor open.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn closing_with_a_child_alive_leaves_nobody_waiting() {
    for by_fork in [true, false] {
        let (uffd, _dog) = (open(), watchdog());
        let memory = map(4 * PAGE);
        uffd.watch(range(memory, 4 * PAGE)).expect("anonymous");
        let pid = match by_fork {
            // SAFETY: the child makes one system call.
            true => unsafe { libc::fork() },
            // SAFETY: the same; without the handlers of libc.
            false => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as _ },
        };
        if pid == 0 {
            // SAFETY: waits to be killed; the alarm is for when the parent dies.
            unsafe {
                libc::alarm(60);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(pid > 0);
        drop(uffd);
        unmap(memory, 4 * PAGE);
        let mut status = 0;
        // SAFETY: our child.
        let still_alive = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0;
        // SAFETY: our child, not waited for yet.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &mut status, 0);
        }
        assert!(still_alive, "it ended by itself");
    }
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn the_plain_mode_sees_the_same_of_anonymous_memory() {
    let uffd = Uffd::open(false).expect("userfaultfd");
    assert!(uffd.classes().covers_foreign_memory());
    assert!(uffd.classes().contains(EventClasses::DIRECT));
    let file = tempfile::tempfile().expect("a file");
    file.set_len(PAGE as u64).expect("room");
    let of_file = map_of(
        PAGE,
        libc::MAP_PRIVATE,
        std::os::fd::AsRawFd::as_raw_fd(&file),
    );
    let error = uffd.watch(range(of_file, PAGE)).expect_err("no such kind");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    unmap(of_file, PAGE);
    holes_are_errors(&uffd);
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn holes_are_refused() {
    holes_are_errors(&open());
}

fn holes_are_errors(uffd: &Uffd) {
    let memory = map_apart(3 * PAGE);
    unmap(memory.wrapping_add(PAGE), PAGE);
    let error = uffd.watch(range(memory, 3 * PAGE)).expect_err("a hole");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    uffd.watch(range(memory, PAGE)).expect("no hole there");
    unmap(memory, PAGE);
    unmap(memory.wrapping_add(2 * PAGE), PAGE);
    for (start, length) in [(0, 4096), (u64::MAX - 8192, 4096), (1 << 63, 1 << 40)] {
        let nowhere = AddressRange::new(start, length).expect("a range");
        let error = uffd.watch(nowhere).expect_err("nothing is mapped there");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }
    let last = AddressRange::new(u64::MAX - 10, 10).expect("a range");
    assert!(uffd.watch(last).is_err(), "its page has no end");
    uffd.unwatch(last);
    let nothing = AddressRange::new(5, 0).expect("a range");
    uffd.watch(nothing).expect("nothing to watch");
    uffd.unwatch(nothing);
}

/// How many events tell that a page is unmapped.
fn told_of(uffd: &Uffd, count: &Count, page: *mut u8) -> u64 {
    count.page.store(page as u64, SeqCst);
    count.events.store(0, SeqCst);
    unmap(page, PAGE);
    while uffd.validate() == Validity::Pending {
        thread::yield_now();
    }
    count.events.load(SeqCst)
}

/// What is kept and not used is forgotten for what comes, in turn: nobody takes it for what is watched, and what is in use stays.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn at_the_limit_room_is_made_of_what_nobody_uses() {
    let uffd = open().limited(8);
    let memory = map_apart(64 * PAGE);
    let page = |index: usize| memory.wrapping_add(index * PAGE);
    let watch = |index| uffd.watch(range(page(index), PAGE));
    let count = Arc::new(Count::default());
    let _subscription = subscribe(count.clone()).expect("a place");
    *count.used.lock() = Some(range(page(2), PAGE));
    for index in (0..16).step_by(2) {
        watch(index).expect("below the limit");
    }
    // Two of eight at a time.
    for (index, forgotten, watched) in [(16, 0, 8), (18, 4, 7), (22, 8, 7)] {
        count.page.store(page(forgotten) as u64, SeqCst);
        count.events.store(0, SeqCst);
        watch(index).expect("what nobody uses makes room");
        assert_eq!(count.events.load(SeqCst), 1, "{forgotten} is forgotten");
        assert_eq!(uffd.watched(), watched);
        if watched < 8 {
            watch(index + 2).expect("there is room");
        }
    }
    for (index, events) in [(4, 0), (2, 1), (16, 1)] {
        assert_eq!(told_of(&uffd, &count, page(index)), events, "page {index}");
    }
    unmap(page(0), 2 * PAGE);
    unmap(page(3), PAGE);
    unmap(page(5), 11 * PAGE);
    unmap(page(17), 47 * PAGE);
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn at_the_limit_room_is_made_of_what_is_gone_or_not_wanted() {
    let uffd = open().limited(4);
    let memory = map_apart(64 * PAGE);
    let user = Arc::new(Count::default());
    let _uses = subscribe(user.clone()).expect("a place");
    *user.used.lock() = Some(range(memory, 64 * PAGE));
    let page = |index: usize| memory.wrapping_add(index * PAGE);
    let watch = |index| uffd.watch(range(page(index), PAGE));
    for index in [0, 2, 4, 6] {
        watch(index).expect("below the limit");
    }
    assert_eq!(
        watch(8).expect_err("the fifth").kind(),
        ErrorKind::Exhausted
    );
    watch(2).expect("there already");
    watch(1).expect("joins two");
    assert_eq!(uffd.watched(), 3);
    watch(8).expect("again below");

    // Unmapped.
    assert_eq!(watch(10).expect_err("again").kind(), ErrorKind::Exhausted);
    unmap(page(8), PAGE);
    while uffd.validate() == Validity::Pending {
        thread::yield_now();
    }
    watch(10).expect("the one that is gone makes room");

    // Not wanted: a part of a run is not enough, nor a part of a page.
    uffd.unwatch(range(page(0), 2 * PAGE));
    uffd.unwatch(range(page(10), PAGE - 1));
    assert_eq!(watch(12).expect_err("again").kind(), ErrorKind::Exhausted);
    uffd.unwatch(range(page(2), PAGE));
    watch(12).expect("the run of three makes room");
    assert_eq!(uffd.watched(), 4);

    // What was taken out is not told of; what is wanted still is.
    let count = Arc::new(Count::default());
    let _subscription = subscribe(count.clone()).expect("a place");
    for (index, events) in [(1, 0), (10, 1), (12, 1)] {
        assert_eq!(told_of(&uffd, &count, page(index)), events, "page {index}");
    }
    unmap(page(13), 51 * PAGE);
}
