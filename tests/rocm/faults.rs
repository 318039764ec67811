//! An error from each call of every function, one at a time: each ends in at most one clear error for what met it, everything that was begun is told
//! exactly once, nothing is left behind, and the next engine works.

use std::{collections::BTreeSet, time::Duration};

use wharf::{
    MemoryType,
    transport::accelerator::{Accelerator as _, CopyEnd},
};

use crate::{
    alone::{child_with, is_child},
    error::{Error, ErrorKind, Result},
    fixture::{Bench, Memory, Parked, Sink, accelerator, block_until, control, live},
    support::{Looks, block_at_rest, table, this_test},
};

/// One of everything: what failed.
#[derive(Default)]
struct Run {
    errors: Vec<Error>,
    lost: Option<Error>,
}

impl Run {
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }
}

fn everything() -> Run {
    let mut run = Run::default();
    let accelerator = accelerator();
    let domain = accelerator.domain();
    let mut allocate = |memory_type| {
        let made = domain.allocate(memory_type, 4096).map(Memory);
        run.keep(made)
    };
    let memory = [
        allocate(MemoryType::HostPinned),
        allocate(MemoryType::Rocm(0)),
        allocate(MemoryType::Rocm(1)),
    ];
    for memory in memory.iter().flatten() {
        let range = memory.0.range();
        run.keep(domain.detect(range));
        if matches!(memory.0.memory_type(), MemoryType::Rocm(_)) {
            run.keep(domain.export(range));
            run.keep(accelerator.export(range.start(), range.len()));
        }
    }
    if let Some(engine) = run.keep(accelerator.open()) {
        let mut bench = Bench {
            accelerator,
            domain,
            engine,
            sink: Sink::default(),
        };
        engine_of(&mut bench, &memory, &mut run);
        run.lost = bench.sink.lost.take();
    }
    run
}

fn engine_of(bench: &mut Bench, memory: &[Option<Memory>; 3], run: &mut Run) {
    let mut parked = Parked::new(bench);
    let mut begun = BTreeSet::new();
    let mut token = 0;
    let [pinned, near, far] = memory;
    let pairs = [(pinned, near), (near, pinned), (near, far), (far, pinned)];
    for (from, to) in pairs.repeat(2) {
        let (Some(from), Some(to)) = (from, to) else {
            continue;
        };
        for _ in 0..3 {
            token += 1;
            let began = bench.begin(from.end(0), to.end(2048), 2048, token);
            if run.keep(began).is_some() {
                begun.insert(token);
            }
        }
        bench.engine.flush();
        if !begun.is_empty() && token % 2 == 0 && bench.engine.arm() {
            // Parks once; the rest is polled.
            parked.park(bench);
        }
        settle(bench, &mut begun, run);
    }
    // Ordinary memory, there and back.
    let mut page = vec![1_u8; 8192];
    let host = CopyEnd::Host {
        address: page.as_mut_ptr(),
        pinned: false,
    };
    if let Some(near) = near {
        for (from, to) in [(host, near.end(0)), (near.end(0), host)] {
            token += 1;
            if run.keep(bench.begin(from, to, 4096, token)).is_some() {
                begun.insert(token);
            }
            bench.engine.flush();
            settle(bench, &mut begun, run);
        }
    }
    // With copies under way to the end.
    if let (Some(from), Some(to)) = (pinned, near) {
        for token in 2000..2003 {
            if run
                .keep(bench.begin(from.end(0), to.end(0), 64, token))
                .is_some()
            {
                begun.insert(token);
            }
        }
    }
    bench.engine.quiesce();
    settle(bench, &mut begun, run);
}

/// Polls until all that was begun was told, each once.
fn settle(bench: &mut Bench, begun: &mut BTreeSet<u64>, run: &mut Run) {
    let mut looks = Looks::new("the end of what was begun");
    while !begun.is_empty() {
        bench.engine.progress(16, &mut bench.sink);
        for (token, result) in bench.sink.done.drain(..) {
            assert!(begun.remove(&token), "{token} was told twice");
            if let Err(error) = result {
                assert_eq!(error.transport(), Some("rocm_copy"), "{error}");
                run.errors.push(error);
            }
        }
        looks.block();
    }
}

/// Calls that a run makes, by name.
fn names() -> Vec<(String, u64)> {
    let counts = control("counts");
    let line = |line: &str| {
        let (name, count) = line.split_once([' ', '='])?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    let counts = counts.lines().filter_map(line);
    counts.filter(|(name, _)| name != "handler").collect()
}

/// The functions of which errors are only told to the log, or have a way round.
fn is_quiet(name: &str) -> bool {
    const QUIET: [&str; 11] = [
        "free",
        "destroy",
        "deregister",
        "close_dmabuf",
        "hsa_amd_signal_async_handler",
        "hsa_system_get_info",
        // Such memory is staged.
        "hsa_amd_memory_lock",
        "hsa_amd_memory_unlock",
        // A device that could not be opened at first is opened by the first copy.
        "hsa_signal_create",
        "hsa_signal_load",
        "hsa_signal_store",
    ];
    QUIET.iter().any(|quiet| name.contains(quiet))
}

/// What a failure leaves behind for good: memory that could not be freed.
fn leaks(name: &str) -> bool {
    ["free", "destroy", "deregister", "close_dmabuf", "unlock"]
        .iter()
        .any(|word| name.contains(word))
}

/// How many calls of one function are struck, one after the other.
const MOST: u64 = 12;

fn left() -> Vec<u64> {
    let all = [
        "allocations",
        "locked",
        "notifiers",
        "signals",
        "copies",
        "handlers",
    ];
    all.map(live).to_vec()
}

#[test]
fn each_call_of_every_function_may_fail() {
    if !is_child() {
        return child_with(this_test!(), &[]);
    }
    let run = everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    control("reset");
    everything();
    let counts = names();
    assert!(counts.len() > 12, "{counts:?}");
    let functions = table::functions("hsa").into_iter();
    let known: Vec<_> = functions.map(|function| function.name).collect();
    let mut before = vec![0; left().len()];
    for (name, count) in &counts {
        assert!(known.contains(name), "{name}");
        let mut told = is_quiet(name);
        for nth in 1..=(*count).min(MOST) {
            block_until("the end of the former", || leaks(name) || left() <= before);
            control("reset");
            control(&format!("fault {name}@{nth}=4096"));
            let run = everything();
            told |= !run.errors.is_empty();
            assert!(run.lost.is_none(), "{name}@{nth}: lost by {:?}", run.lost);
            // One cause: the call itself, and whatever was refused because what it was to make is not there.
            for error in &run.errors {
                let text = format!("{error:?}");
                let refused = error.kind() == ErrorKind::Unsupported
                    && (text.contains("does not reach") || text.contains("not all devices"));
                let own = text.contains(name) && text.contains("0x1000");
                assert!(own || refused, "{name}@{nth}: {text}");
                assert_ne!(error.kind(), ErrorKind::DeviceLost, "{name}@{nth}: {text}");
            }
            assert!(run.errors.len() <= 8, "{name}@{nth}: {:?}", run.errors);
        }
        assert!(told, "nobody told that {name} failed");
        if leaks(name) {
            before = block_at_rest("what is left", Duration::from_millis(50), left);
            println!("{name}: left behind {before:?}");
        }
    }
    control("reset");
    let run = everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    assert_eq!(control("misuses"), "");
}

#[test]
fn the_device_may_die_at_each_copy() {
    if !is_child() {
        for reports in ["0", "1"] {
            child_with(this_test!(), &[("EMULATED_HSA_FAULT_REPORTS", reports)]);
        }
        return;
    }
    control("reset");
    everything();
    let count = names()
        .into_iter()
        .find(|(name, _)| name == "hsa_amd_memory_async_copy");
    let count = count.expect("copies").1;
    control("reset");
    // A device that failed stays so: the last copy it is.
    control(&format!(
        "fault hsa_amd_memory_async_copy:0@{}=die:0",
        count / 2
    ));
    let run = everything();
    assert!(!run.errors.is_empty());
    for error in &run.errors {
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::DeviceLost | ErrorKind::Io),
            "{error}"
        );
    }
}
