//! What the threads of a process do, as the kernel tells.

use std::{collections::BTreeMap, fs, time::Duration};

use super::at_rest;

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) name: String,
    /// `S`: it sleeps; `R`: it runs, or would; `T`: it was stopped.
    pub(crate) state: char,
    /// How often it gave its processor up, or lost it.
    pub(crate) switches: u64,
    /// What it has had of the processors, in the kernel's ticks.
    pub(crate) ticks: u64,
}

/// The threads of a process by their ids.
pub(crate) fn threads(process: u32) -> BTreeMap<String, Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process is there");
    let threads = tasks.flatten().filter_map(|task| {
        // One that ends meanwhile is none.
        let read = |name: &str| fs::read_to_string(task.path().join(name)).ok();
        let (status, stat) = (read("status")?, read("stat")?);
        let switches = status.lines().filter_map(|line| {
            let (_, count) = line.split_once("ctxt_switches:")?;
            count.trim().parse::<u64>().ok()
        });
        let fields = stat.rsplit(") ").next()?;
        let ticks = fields.split(' ').skip(11).take(2);
        let thread = Thread {
            name: read("comm")?.trim().to_owned(),
            state: fields.chars().next()?,
            switches: switches.sum(),
            ticks: ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum(),
        };
        Some((task.file_name().to_string_lossy().into_owned(), thread))
    });
    threads.collect()
}

/// The threads of this process but the calling one.
pub(crate) fn other_threads() -> BTreeMap<String, Thread> {
    let mut threads = threads(std::process::id());
    threads.remove(&nix::unistd::gettid().to_string());
    threads
}

/// Whether all of them are in that state.
pub(crate) fn are_all(threads: &BTreeMap<String, Thread>, state: char) -> bool {
    threads.values().all(|thread| thread.state == state)
}

/// Waits until all threads of a process sleep, and have not woken for so long: it waits for something to come. What they are then.
pub(crate) async fn idle(process: u32, quiet: Duration) -> BTreeMap<String, Thread> {
    loop {
        let rest = at_rest("sleep", quiet, || threads(process)).await;
        // One that runs and is kept from it stands still as well.
        if are_all(&rest, 'S') {
            return rest;
        }
    }
}

/// Runs cases that mostly wait, each in a thread of its own; what they came to.
pub(crate) fn side_by_side<C: Send, T: Send>(
    cases: impl IntoIterator<Item = C>,
    run: impl Fn(C) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let running = cases.into_iter().map(|case| scope.spawn(move || run(case)));
        let running: Vec<_> = running.collect();
        let came_to = |case: std::thread::ScopedJoinHandle<'_, T>| {
            case.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(came_to).collect()
    })
}
