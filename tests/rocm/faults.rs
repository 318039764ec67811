//! An error from each call of every function, one at a time: each ends in at most one clear error for what met it, everything that was begun is told
//! exactly once, nothing is left behind, and the next engine works.

use std::time::Duration;

use wharf::{
    MemoryType,
    transport::accelerator::{Accelerator, CopyEnd},
};

use crate::{
    alone::{child_with, is_child},
    error::ErrorKind,
    fixture::{Bench, DEVICE, Memory, OTHER, block_until, control, live},
    struck::{Run, Vendor, names},
    support::{block_at_rest, table, this_test},
};

struct Rocm;

impl Vendor for Rocm {
    const KINDS: &[MemoryType] = &[MemoryType::HostPinned, DEVICE, OTHER];
    const PAIRS: &[(usize, usize)] = &[(0, 1), (1, 0), (1, 2), (2, 0)];
    const COPIES: u64 = 3;
    const QUIET: &[&str] = &[
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
    const CODE: (&str, &str) = ("4096", "0x1000");

    fn of_memory(&self, run: &mut Run, accelerator: &dyn Accelerator, memory: &Memory) {
        let range = memory.0.range();
        if matches!(memory.0.memory_type(), MemoryType::Rocm(_)) {
            run.keep(accelerator.domain().export(range));
            run.keep(accelerator.export(range.start(), range.len()));
        }
    }

    /// Ordinary memory, there and back.
    fn more(&self, run: &mut Run, bench: &mut Bench, memory: &[Option<Memory>]) {
        let mut page = vec![1_u8; 8192];
        let host = CopyEnd::Host {
            address: page.as_mut_ptr(),
            pinned: false,
        };
        if let Some(near) = &memory[1] {
            for (token, (from, to)) in (1000..).zip([(host, near.end(0)), (near.end(0), host)]) {
                run.begin(bench, from, to, (4096, token));
                bench.engine.flush();
                run.settle(bench);
            }
        }
    }

    fn is_refused(text: &str) -> bool {
        text.contains("does not reach") || text.contains("not all devices")
    }
}

/// The functions that a run calls, and how often: not the handlers that were.
fn functions() -> Vec<(String, u64)> {
    let mut counts = names();
    counts.retain(|(name, _)| name != "handler");
    counts
}

/// What a failure leaves behind for good: memory that could not be freed.
fn leaks(name: &str) -> bool {
    ["free", "destroy", "deregister", "close_dmabuf", "unlock"]
        .iter()
        .any(|word| name.contains(word))
}

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
    let run = Rocm.everything();
    assert!(run.errors.is_empty(), "{:?}", run.errors);
    control("reset");
    Rocm.everything();
    let counts = functions();
    assert!(counts.len() > 12, "{counts:?}");
    let functions = table::functions("hsa").into_iter();
    let known: Vec<_> = functions.map(|function| function.name).collect();
    let mut before = vec![0; left().len()];
    for (name, count) in &counts {
        assert!(known.contains(name), "{name}");
        let struck = Rocm.strike(name, *count, || {
            block_until("the end of the former", || leaks(name) || left() <= before);
        });
        let told = struck || Rocm::is_quiet(name);
        assert!(told, "nobody told that {name} failed");
        if leaks(name) {
            before = block_at_rest("what is left", Duration::from_millis(50), left);
            eprintln!("{name}: left behind {before:?}");
        }
    }
    control("reset");
    let run = Rocm.everything();
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
    Rocm.everything();
    let count = functions()
        .into_iter()
        .find(|(name, _)| name == "hsa_amd_memory_async_copy");
    let count = count.expect("copies").1;
    control("reset");
    // A device that failed stays so: the last copy it is.
    control(&format!(
        "fault hsa_amd_memory_async_copy:0@{}=die:0",
        count / 2
    ));
    let run = Rocm.everything();
    assert!(!run.errors.is_empty());
    for error in &run.errors {
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::DeviceLost | ErrorKind::Io),
            "{error}"
        );
    }
}
