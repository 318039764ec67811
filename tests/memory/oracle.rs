//! The coherence oracle: with a monitor, no transfer of a random program may see a byte that is not the program's; without one, and
//! caching all the same, some must.
//!
//! # Safety
//! [`Liar`] breaks the promise of [`MemoryMonitor`] on purpose, in a process of its own whose device only reads.
#![allow(unsafe_code)]

use std::{fs, sync::Arc};

use wharf::memory::{
    AddressRange, EventClasses, MemoryMonitor, MonitorKind, Timing, Validity, monitor,
};

use crate::{
    prepare::prepare,
    script::Script,
    support::{Child, child, this_test},
};

/// Threads, and steps of each.
const RUNS: [(u64, u64); 4] = if cfg!(debug_assertions) {
    [(1, 1200), (2, 800), (4, 400), (8, 200)]
} else {
    [(1, 5000), (2, 3200), (4, 1600), (8, 800)]
};

/// Claims to see everything, and tells nothing.
#[derive(Debug)]
struct Liar;

// SAFETY: a lie: see the chapter above.
unsafe impl MemoryMonitor for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        EventClasses::all()
    }

    fn watch(&self, _: AddressRange) -> wharf::Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}

/// In the child: plays all runs, tells how each went.
fn play(monitor: &Arc<dyn MemoryMonitor>, device_writes: bool, tell: impl Fn(String)) {
    for (index, (threads, steps)) in RUNS.into_iter().enumerate() {
        let script = Script {
            seed: 0x5eed + index as u64,
            threads,
            steps,
            device_writes,
        };
        let outcome = script.run(monitor.clone());
        tell(format!("{threads} threads: {outcome}"));
        if device_writes {
            assert_eq!(outcome.stale, 0, "{script:?}: {outcome}");
            assert_eq!(outcome.refused, 0, "{script:?}: {outcome}");
        }
    }
    tell("done".to_owned());
}

/// Plays in a child, with variables. What it told.
fn in_a_child(test: &str, part: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut child = Child::start(test, part, variables);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut lines = Vec::new();
    loop {
        let line = runtime.block_on(child.hear());
        eprintln!("{part}: {line}");
        let done = line.starts_with("done");
        lines.push(line);
        if done {
            break;
        }
    }
    child.finish();
    lines
}

fn with(kind: MonitorKind, preload: Option<&str>, tell: impl Fn(String)) {
    let maps = fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
    if let Some(library) = preload {
        assert!(maps.contains(library), "{library} is not installed");
    }
    prepare(kind).expect("what the monitor needs");
    play(&monitor(kind).expect("a monitor"), true, tell);
}

#[test]
#[ignore = "needs userfaultfd and io_uring: a container may refuse them"]
fn userfaultfd_and_glibc() {
    if let Some(parent) = child("glibc") {
        return with(MonitorKind::Uffd, None, |line| parent.say(line));
    }
    in_a_child(this_test!(), "glibc", &[]);
}

/// Gives every page back at once.
#[test]
#[ignore = "needs userfaultfd, io_uring, and Debian's package libjemalloc2"]
fn userfaultfd_and_jemalloc() {
    let library = "libjemalloc.so.2";
    if let Some(parent) = child("jemalloc") {
        return with(MonitorKind::Uffd, Some(library), |line| parent.say(line));
    }
    let variables = [
        ("LD_PRELOAD", library),
        ("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"),
    ];
    in_a_child(this_test!(), "jemalloc", &variables);
}

/// Gives pages back at once.
#[test]
#[ignore = "needs userfaultfd, io_uring, and Debian's package libmimalloc2.0"]
fn userfaultfd_and_mimalloc() {
    let library = "libmimalloc.so.2";
    if let Some(parent) = child("mimalloc") {
        return with(MonitorKind::Uffd, Some(library), |line| parent.say(line));
    }
    let variables = [
        ("LD_PRELOAD", library),
        ("MIMALLOC_RESET_DELAY", "0"),
        ("MIMALLOC_DECOMMIT_DELAY", "0"),
        ("MIMALLOC_PAGE_RESET", "1"),
    ];
    in_a_child(this_test!(), "mimalloc", &variables);
}

/// Patched functions of libc, which tell before the change.
#[test]
#[ignore = "needs the feature mem-hooks, and io_uring"]
fn hooks_and_glibc() {
    if let Some(parent) = child("hooks") {
        return with(MonitorKind::Hooks, None, |line| parent.say(line));
    }
    in_a_child(this_test!(), "hooks", &[]);
}

#[test]
#[ignore = "needs the feature mem-hooks, io_uring, and Debian's package libjemalloc2"]
fn hooks_and_jemalloc() {
    let library = "libjemalloc.so.2";
    if let Some(parent) = child("hooks-jemalloc") {
        return with(MonitorKind::Hooks, Some(library), |line| parent.say(line));
    }
    let variables = [
        ("LD_PRELOAD", library),
        ("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0"),
    ];
    in_a_child(this_test!(), "hooks-jemalloc", &variables);
}

/// The oracle sees what it is there to see.
#[test]
#[ignore = "needs io_uring: a container may refuse it"]
fn without_events_the_device_sees_old_bytes() {
    if let Some(parent) = child("liar") {
        let liar: Arc<dyn MemoryMonitor> = Arc::new(Liar);
        return play(&liar, false, |line| parent.say(line));
    }
    let lines = in_a_child(this_test!(), "liar", &[]);
    let (_done, runs) = lines.split_last().expect("a last line");
    assert_eq!(runs.len(), RUNS.len());
    for run in runs {
        assert!(!run.contains(" 0 stale"), "nothing was found: {run}");
    }
}
