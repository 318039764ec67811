//! The reuse race: a thread unmaps, and before the event of that has been read another has mapped the same addresses, and transfers.
//!
//! # Safety
//! The addresses lie where neither the kernel nor an allocator puts anything by itself, and are never mapped over something. The two threads
//! have the page in turns. [`Unchecked`] leaves out what its monitor promises, in a process of its own whose device only reads. The calls to the
//! scheduler read what they are given, which lives meanwhile.
#![allow(unsafe_code)]

use std::{
    fs, hint, ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use wharf::{
    Access,
    memory::{
        AddressRange, EventClasses, MemoryMonitor, MonitorKind, RegistrationCache,
        RegistrationCacheOptions, Timing, Validity, monitor,
    },
};

use crate::{
    script::{Random, map_at},
    support::{Child, child, this_test},
    uring::UringRegistrar,
};

/// Where the page is.
const PLACE: usize = 0x1234_5600_0000;
const LENGTH: usize = 4096;
/// How often it changes hands.
const TURNS: u64 = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};
/// Turns between two signs of life, and where each may take some ten milliseconds.
const ROUND: u64 = 2000;
const SHORT_ROUND: u64 = 4;

/// A monitor whose question whether all has been told is not asked.
#[derive(Debug)]
struct Unchecked(Arc<dyn MemoryMonitor>);

// SAFETY: not what is promised: see the chapter above.
unsafe impl MemoryMonitor for Unchecked {
    fn name(&self) -> &'static str {
        "unchecked"
    }

    fn timing(&self) -> Timing {
        self.0.timing()
    }

    fn classes(&self) -> EventClasses {
        self.0.classes()
    }

    fn watch(&self, range: AddressRange) -> wharf::Result<()> {
        self.0.watch(range)
    }

    fn unwatch(&self, range: AddressRange) {
        self.0.unwatch(range);
    }

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}

/// Lets two threads have the page in turns from turn `first` on: how many transfers saw old bytes.
fn round(
    cache: &RegistrationCache<UringRegistrar>,
    device: &UringRegistrar,
    first: u64,
    turns: u64,
) -> u64 {
    let range = AddressRange::new(PLACE as u64, LENGTH as u64).expect("a range");
    // Whose turn it is to map.
    let turn = AtomicU64::new(first);
    let stale = AtomicU64::new(0);
    let play = |side: u64| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        for own in (first + side..first + turns).step_by(2) {
            while turn.load(SeqCst) != own {
                thread::yield_now();
            }
            // The other is about to unmap.
            while map_at(PLACE, LENGTH, false, libc::MAP_FIXED_NOREPLACE).is_err() {}
            let mut bytes = [0; 64];
            Random(own).fill(&mut bytes);
            // SAFETY: mapped above, and this thread's until the next turn.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), PLACE as *mut u8, bytes.len()) };
            let registration = runtime
                .block_on(cache.get(range, Access::READ))
                .expect("a registration");
            let seen = device
                .read(&registration, range.start(), bytes.len())
                .expect("a transfer");
            drop(registration);
            stale.fetch_add(u64::from(seen != bytes), SeqCst);
            turn.store(own + 1, SeqCst);
            // SAFETY: mapped above.
            let done = unsafe { libc::munmap(PLACE as *mut libc::c_void, LENGTH) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| play(1));
        play(0);
    });
    stale.into_inner()
}

/// In the child: [`TURNS`], or until old bytes were seen where that is `enough`, with a sign of life now and then.
fn play(monitor: Arc<dyn MemoryMonitor>, enough: bool, tell: impl Fn(String)) {
    let device = UringRegistrar::new(64);
    let cache = RegistrationCache::new(
        device.clone(),
        monitor,
        RegistrationCacheOptions::default().max_regions(32),
    )
    .expect("a cache");
    let (mut stale, mut done) = (0, 0);
    let round_of = if enough { SHORT_ROUND } else { ROUND };
    while done < TURNS && !(enough && stale > 0) {
        let next = round_of.min(TURNS - done);
        stale += round(&cache, &device, done, next);
        done += next;
        tell("on".to_owned());
    }
    tell(format!(
        "done: {stale} stale of {done}; {:?}",
        cache.statistics()
    ));
}

fn in_a_child(test: &str, part: &str) -> String {
    let mut child = Child::start(test, part, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    loop {
        let line = runtime.block_on(child.hear());
        if line.starts_with("done") {
            eprintln!("{part}: {line}");
            child.finish();
            return line;
        }
    }
}

fn userfaultfd() -> Arc<dyn MemoryMonitor> {
    monitor(MonitorKind::Uffd).expect("userfaultfd")
}

#[test]
#[ignore = "needs userfaultfd and io_uring: a container may refuse them"]
fn no_stale_hit() {
    if let Some(parent) = child("checked") {
        return play(userfaultfd(), false, |line| parent.say(line));
    }
    let line = in_a_child(this_test!(), "checked");
    assert!(line.contains(" 0 stale"), "{line}");
}

/// Has the thread that reads the events run only when a processor has nothing else to do, and keeps the one busy that it may run on: what it is
/// told of is then older than the other side's next map.
fn hold_back_the_reader() {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    let reader = tasks
        .map(|task| task.expect("a thread"))
        .find(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "wharf-uffd")
        })
        .expect("who reads the events");
    let reader = reader.file_name().into_string().expect("a number");
    let reader: i32 = reader.parse().expect("a number");
    // SAFETY: all zeros are a set without processors, and a policy's least priority.
    let (mut cpus, least): (libc::cpu_set_t, libc::sched_param) = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is written here, and of that size.
    let asked = unsafe { libc::sched_getaffinity(0, size, &mut cpus) };
    // SAFETY: the places asked for are within the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &cpus) };
    let last = (0..libc::CPU_SETSIZE as usize).rfind(allowed);
    let last = last.filter(|_| asked == 0).expect("a processor");
    // SAFETY: as above.
    unsafe { libc::CPU_ZERO(&mut cpus) };
    // SAFETY: as above.
    unsafe { libc::CPU_SET(last, &mut cpus) };
    let pin = move |thread| {
        // SAFETY: the set is read only, and of that size.
        let done = unsafe { libc::sched_setaffinity(thread, size, &cpus) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    pin(reader);
    // SAFETY: the parameters are read only.
    let done = unsafe { libc::sched_setscheduler(reader, libc::SCHED_IDLE, &least) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // It ends with the process.
    thread::spawn(move || {
        pin(0);
        loop {
            hint::spin_loop();
        }
    });
}

/// The race is one.
#[test]
#[ignore = "needs userfaultfd and io_uring: a container may refuse them"]
fn stale_hits_without_the_check() {
    if let Some(parent) = child("unchecked") {
        let monitor = userfaultfd();
        hold_back_the_reader();
        return play(Arc::new(Unchecked(monitor)), true, |line| parent.say(line));
    }
    let line = in_a_child(this_test!(), "unchecked");
    assert!(!line.contains(" 0 stale"), "nothing was provoked: {line}");
}
