//! The monitor by userfaultfd, as a program sees it.
//!
//! # Safety
//! All mappings that are changed were made by the test, and nothing else refers to them.
#![allow(unsafe_code)]

use std::{
    fs, hint, io,
    io::Write,
    process, ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use libc::c_void;
use wharf::{
    ErrorKind,
    memory::{
        AddressRange, Cause, EventClasses, MemoryMonitor, MemorySink, MonitorKind, Timing, Uffd,
        Validity, monitor, subscribe,
    },
};

use crate::support::{Child, LIMIT, Logs, block_at_rest, child, seccomp, this_test};

const PAGE: usize = 4096;
const NEW: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const ACCESS: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn open() -> Arc<dyn MemoryMonitor> {
    monitor(MonitorKind::Uffd).expect("userfaultfd")
}

fn map(size: usize) -> *mut u8 {
    // SAFETY: where the kernel likes.
    let got = unsafe { libc::mmap(ptr::null_mut(), size, ACCESS, NEW, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    got.cast()
}

/// Where nothing is.
fn map_at(place: *mut u8, size: usize) {
    let flags = NEW | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    let got = unsafe { libc::mmap(place.cast(), size, ACCESS, flags, -1, 0) };
    assert_eq!(got, place.cast(), "{}", io::Error::last_os_error());
}

/// Where the kernel maps nothing by itself: other tests' mappings do not come into its holes.
fn map_apart(size: usize) -> *mut u8 {
    static NEXT: AtomicU64 = AtomicU64::new(0x0800_0000_0000);
    let place = NEXT.fetch_add(1 << 30, SeqCst) as *mut u8;
    map_at(place, size);
    place
}

fn unmap(start: *mut u8, size: usize) {
    // SAFETY: the test's.
    assert_eq!(unsafe { libc::munmap(start.cast(), size) }, 0);
}

fn range(start: *mut u8, size: usize) -> AddressRange {
    AddressRange::new(start as u64, size as u64).expect("a range")
}

fn until_valid(monitor: &dyn MemoryMonitor) {
    let start = Instant::now();
    while monitor.validate() == Validity::Pending {
        assert!(start.elapsed() < LIMIT, "watchdog: pending for ever");
        thread::yield_now();
    }
}

/// Ends the process when the value is not dropped in time: a thread that waits for its event cannot be made to panic.
fn hang_dog() -> impl Drop {
    struct Dog(mpsc::Sender<()>);
    impl Drop for Dog {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (done, is_done) = mpsc::channel();
    let place = thread::current().name().unwrap_or_default().to_owned();
    thread::spawn(move || {
        if is_done.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {place} hangs");
            process::abort();
        }
    });
    Dog(done)
}

/// What a child says now and then when its part takes long.
const STILL_AT_IT: &str = "…";

/// Runs a part in a process of its own, and prints what it found.
fn in_child(test: &str, part: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let mut process = Child::start(test, part, &[]);
    let mut line = STILL_AT_IT.to_owned();
    while line == STILL_AT_IT {
        line = runtime.block_on(process.hear());
    }
    process.finish();
    eprintln!("{test}: {line}");
}

/// One cached registration: valid until its page changes.
#[derive(Default)]
struct Entry {
    page: AtomicU64,
    valid: AtomicBool,
    events: AtomicU64,
}

impl MemorySink for Entry {
    fn invalidate(&self, range: AddressRange, _: Cause) {
        let page = self.page.load(SeqCst);
        if range.start() <= page && page < range.end() {
            self.valid.store(false, SeqCst);
            self.events.fetch_add(1, SeqCst);
        }
    }
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn is_one_for_the_process() {
    let uffd = open();
    assert_eq!((uffd.name(), uffd.timing()), ("uffd", Timing::After));
    assert!(uffd.classes().covers_foreign_memory());
    assert!(uffd.classes().contains(EventClasses::DIRECT));
    assert!(!uffd.classes().contains(EventClasses::SYSV));
    let (one, two) = (Uffd::process(), Uffd::process());
    assert!(Arc::ptr_eq(&one.expect("there"), &two.expect("there")));
}

/// Two threads take turns: one registers a page and unmaps it, the other maps it again as soon as it can, and looks the old registration up.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn an_address_that_is_used_again_has_no_stale_entry() {
    // All of them where the test is optimised, as one step of CI has it.
    const REUSES: u32 = if cfg!(debug_assertions) {
        10_000
    } else {
        100_000
    };
    // A process of its own: nobody else takes the address.
    let Some(parent) = child("reuse") else {
        return in_child(this_test!(), "reuse");
    };
    let uffd = open();
    let entry = Arc::new(Entry::default());
    let _subscription = subscribe(entry.clone()).expect("a place");
    // A hole of one page between two others, into which nothing larger fits.
    let page = map(3 * PAGE).wrapping_add(PAGE);
    unmap(page, PAGE);
    let address = page as usize;
    entry.page.store(page as u64, SeqCst);
    let again = || {
        let at = address as *mut c_void;
        // SAFETY: where nothing is; fails if there is.
        unsafe { libc::mmap(at, PAGE, ACCESS, NEW | libc::MAP_FIXED_NOREPLACE, -1, 0) == at }
    };
    // Whose turn it is: of the one thread when even, of the other when odd.
    let turn = AtomicU32::new(0);
    let (found, stale) = (AtomicU32::new(0), AtomicU32::new(0));
    let take_turns = |first: u32| {
        for number in (first..REUSES).step_by(2) {
            while turn.load(SeqCst) != number {
                thread::yield_now();
            }
            while !again() {}
            let is_found = entry.valid.load(SeqCst);
            let is_valid = uffd.validate() == Validity::Valid;
            let is_stale = is_valid && entry.valid.load(SeqCst);
            found.fetch_add(is_found.into(), SeqCst);
            stale.fetch_add(is_stale.into(), SeqCst);
            uffd.watch(range(address as *mut u8, PAGE))
                .expect("anonymous");
            until_valid(&*uffd);
            entry.valid.store(true, SeqCst);
            turn.store(number + 1, SeqCst);
            unmap(address as *mut u8, PAGE);
            if number % 10_000 == 0 {
                parent.say(STILL_AT_IT);
            }
        }
    };
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| take_turns(1));
        take_turns(0);
    });
    let (found, stale) = (found.into_inner(), stale.into_inner());
    assert_eq!(stale, 0, "of {REUSES}");
    let time = start.elapsed();
    match found {
        0 => parent.say("not shown: the check was not needed once on this machine"),
        _ => parent.say(format_args!(
            "{REUSES} reuses in {time:?}: {found} found the old entry, {stale} after the check"
        )),
    }
}

/// Neither to the program, nor to the kernel that writes for it.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn no_fault_is_delivered() {
    let (uffd, _dog) = (open(), hang_dog());
    let memory = map(8 * PAGE);
    uffd.watch(range(memory, 8 * PAGE)).expect("anonymous");
    // SAFETY: ours; the first touch of each page is in a watched range.
    unsafe { ptr::write_bytes(memory, 7, 4 * PAGE) };
    // SAFETY: ours.
    let given_back = unsafe { libc::madvise(memory.cast(), 8 * PAGE, libc::MADV_DONTNEED) };
    assert_eq!(given_back, 0);
    let (back, mut out) = io::pipe().expect("a pipe");
    out.write_all(&[9; 2 * PAGE]).expect("room in a pipe");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&back);
    // SAFETY: two pages of ours.
    let got = unsafe { libc::read(fd, memory.add(PAGE).cast(), 2 * PAGE) };
    assert_eq!(got, 2 * PAGE as isize, "{}", io::Error::last_os_error());
    // SAFETY: ours, and written above, or zero since it was given back.
    let bytes = unsafe { std::slice::from_raw_parts(memory, 8 * PAGE) };
    assert!(bytes[PAGE..3 * PAGE].iter().all(|byte| *byte == 9));
    assert!(bytes[3 * PAGE..].iter().all(|byte| *byte == 0));
    unmap(memory, 8 * PAGE);
}

#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn whole_pages_are_watched_and_again_after_each_unmap() {
    let (uffd, _dog) = (open(), hang_dog());
    let entry = Arc::new(Entry::default());
    let _subscription = subscribe(entry.clone()).expect("a place");
    let page = map_apart(2 * PAGE);
    entry.page.store(page as u64, SeqCst);
    for turn in 1..=50 {
        // Ten bytes in the middle of the page; twice.
        for _ in 0..2 {
            uffd.watch(range(page.wrapping_add(100), 10))
                .expect("anonymous");
        }
        unmap(page, PAGE);
        until_valid(&*uffd);
        assert_eq!(entry.events.load(SeqCst), turn);
        map_at(page, PAGE);
    }
    unmap(page, 2 * PAGE);
}

/// Far below what a process may have of mappings, so that it can always allocate.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn separate_ranges_have_a_limit() {
    let Some(parent) = child("many") else {
        return in_child(this_test!(), "many");
    };
    let uffd = open();
    const RANGES: usize = 40_000;
    let memory = map(2 * RANGES * PAGE);
    let page = |index: usize| memory.wrapping_add(2 * index * PAGE);
    for index in 0..RANGES {
        uffd.watch(range(page(index), PAGE))
            .expect("what nobody uses makes room");
    }
    let mappings = fs::read_to_string("/proc/self/maps").expect("/proc");
    let (mappings, limit) = (
        mappings.lines().count(),
        fs::read_to_string("/proc/sys/vm/max_map_count").expect("/proc"),
    );
    let limit: usize = limit.trim().parse().expect("a number");
    assert!(mappings < limit / 2, "{mappings} mappings of {limit}");
    drop(vec![1_u8; 64 << 20]);
    parent.say(format_args!("{RANGES} ranges, {mappings} mappings"));
}

/// Needs no privilege, and no readable `/proc`.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn an_unprivileged_user_may_have_it() {
    const NOBODY: u32 = 65_534;
    let Some(parent) = child("nobody") else {
        return in_child(this_test!(), "nobody");
    };
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        // SAFETY: numbers only; of all threads, as libc sees to.
        let result = unsafe {
            libc::setgroups(0, ptr::null()) | libc::setgid(NOBODY) | libc::setuid(NOBODY)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }
    let uffd = monitor(MonitorKind::Uffd).expect("as with privileges");
    let memory = map(PAGE);
    uffd.watch(range(memory, PAGE)).expect("anonymous");
    unmap(memory, PAGE);
    until_valid(&*uffd);
    parent.say(format_args!("seen {:?}", uffd.classes()));
}

/// As in a container whose filter of system calls refuses both ways.
#[test]
fn a_refusal_falls_back_and_says_why() {
    let Some(parent) = child("refused") else {
        return in_child(this_test!(), "refused");
    };
    refuse_userfaultfd().expect("a filter of system calls");
    let logs = Logs::of_process();
    let error = monitor(MonitorKind::Uffd).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("/dev/userfaultfd"), "{error}");
    for _ in 0..3 {
        let auto = monitor(MonitorKind::Auto).expect("there always is one");
        assert_eq!(auto.name(), "none");
        assert!(!auto.classes().covers_foreign_memory());
    }
    logs.expect_one_warning(&["wharf::memory", "uffd", "Operation not permitted"]);
    parent.say(error);
}

/// Lets this thread, and those that it makes, have no userfaultfd from now on.
fn refuse_userfaultfd() -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let give = libc::BPF_RET | libc::BPF_K;
    // Of `struct seccomp_data`: the number at 0, the low half of the second argument at 24 (little-endian).
    let mut filter = [
        statement(load, 0),
        equal(libc::SYS_userfaultfd as u32, 3, 0),
        equal(libc::SYS_ioctl as u32, 0, 3),
        statement(load, 24),
        equal(0xaa00, 0, 1), // USERFAULTFD_IOC_NEW
        statement(give, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(give, libc::SECCOMP_RET_ALLOW),
    ];
    seccomp::install(&mut filter)
}

/// A child can rely on nothing, and its parent loses nothing.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn a_forked_child_is_told() {
    let Some(parent) = child("forks") else {
        return in_child(this_test!(), "forks");
    };
    let uffd = open();
    let entry = Arc::new(Entry::default());
    let _subscription = subscribe(entry.clone()).expect("a place");
    let memory = map(PAGE);
    entry.page.store(memory as u64, SeqCst);
    uffd.watch(range(memory, PAGE)).expect("anonymous");
    for by_fork in [true, false] {
        let pid = match by_fork {
            // SAFETY: libc's allocator works in the child; nothing else is used.
            true => unsafe { libc::fork() },
            // SAFETY: the child asks one question, which takes no lock.
            false => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as _ },
        };
        if pid == 0 {
            let mut fine = uffd.validate() == Validity::Pending;
            if by_fork {
                let kind = |result: wharf::Result<()>| result.map_err(|error| error.kind());
                fine &= kind(uffd.watch(range(memory, PAGE))) == Err(ErrorKind::Forked);
                fine &= kind(monitor(MonitorKind::Uffd).map(drop)) == Err(ErrorKind::Forked);
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if fine { 0 } else { 9 }) };
        }
        let mut status = -1;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "by fork: {by_fork}");
    }
    until_valid(&*uffd);
    assert_eq!(entry.events.load(SeqCst), 0);
    unmap(memory, PAGE);
    until_valid(&*uffd);
    assert_eq!(entry.events.load(SeqCst), 1);
    parent.say("both were told");
}

/// Nor can a child whose parent had made no monitor yet: what it made would see nothing.
#[test]
fn a_forked_child_makes_none() {
    let Some(parent) = child("forks early") else {
        return in_child(this_test!(), "forks early");
    };
    let subscription = subscribe(Arc::new(Entry::default())).expect("a place");
    // SAFETY: libc's allocator works in the child; nothing else is used.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let made = monitor(MonitorKind::Uffd).map(drop);
        let refused = made.is_err_and(|error| error.kind() == ErrorKind::Forked);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if refused { 0 } else { 9 }) };
    }
    let mut status = -1;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    drop(subscription);
    parent.say("refused");
}

/// The reader sleeps until there is an event.
#[test]
#[ignore = "needs userfaultfd: a container may refuse it"]
fn it_costs_nothing_while_nothing_happens() {
    let Some(parent) = child("idle") else {
        return in_child(this_test!(), "idle");
    };
    let uffd = open();
    until_valid(&*uffd);
    // How often the reader went to sleep, and whether it sleeps.
    let state = || {
        let mut tasks = fs::read_dir("/proc/self/task").expect("/proc").flatten();
        let read = |path: &std::path::Path, name| fs::read_to_string(path.join(name));
        let task = tasks
            .find(|task| read(&task.path(), "comm").is_ok_and(|name| name.trim() == "wharf-uffd"))
            .expect("the reader");
        let status = read(&task.path(), "status").expect("/proc");
        let field = |name| {
            let mut lines = status.lines();
            let found = lines.find_map(|line| line.strip_prefix(name));
            found.expect("a field of every thread").trim()
        };
        let count = field("voluntary_ctxt_switches:").parse::<u64>();
        let is_asleep = field("State:").starts_with('S');
        (count.expect("a number"), is_asleep)
    };
    let switches = || state().0;
    // Its first sleep may be yet to come, in the read itself and not on the way there.
    let start = Instant::now();
    let before = loop {
        let (count, is_asleep) = block_at_rest("its sleep", Duration::from_millis(50), state);
        if is_asleep {
            break count;
        }
        assert!(start.elapsed() < LIMIT, "watchdog: it never sleeps");
    };
    // The time is what is measured.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(switches(), before);
    let memory = map(PAGE);
    uffd.watch(range(memory, PAGE)).expect("anonymous");
    unmap(memory, PAGE);
    until_valid(&*uffd);
    assert!(switches() > before, "the count shows what it should");
    parent.say("no wake-up in 300 ms");
}

/// Figures, not limits: a page, and two threads that keep the cores busy.
#[test]
#[ignore = "a measurement"]
fn figures() {
    let (uffd, _dog) = (open(), hang_dog());
    let figures = |what: &str| {
        let mut times: [(&str, Vec<Duration>); 4] =
            ["unwatched munmap", "watch", "watched munmap", "validate"].map(|name| (name, vec![]));
        let mut timed = |index: usize, action: &mut dyn FnMut()| {
            let start = Instant::now();
            action();
            times[index].1.push(start.elapsed());
        };
        for _ in 0..1000 {
            let plain = map(PAGE);
            let watched = map(PAGE);
            // SAFETY: ours.
            unsafe { (plain.write(1), watched.write(1)) };
            timed(0, &mut || unmap(plain, PAGE));
            timed(1, &mut || {
                uffd.watch(range(watched, PAGE)).expect("anonymous")
            });
            timed(2, &mut || unmap(watched, PAGE));
            until_valid(&*uffd);
            timed(3, &mut || {
                hint::black_box(uffd.validate());
            });
        }
        for (name, times) in &mut times {
            times.sort_unstable();
            let at = |part: usize| times[times.len() * part / 1000];
            eprintln!(
                "{what}: {name}: p50 {:?}, p99 {:?}, p99.9 {:?}",
                at(500),
                at(990),
                at(999)
            );
        }
    };
    figures("quiet");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    hint::spin_loop();
                }
            });
        }
        figures("two busy threads");
        stop.store(true, SeqCst);
    });
}
