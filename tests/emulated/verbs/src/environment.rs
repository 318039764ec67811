//! What the environment says, for programs that know nothing of the emulator: settings, a fault plan, and a file for the journal.
//!
//! # Safety
//! `atexit` keeps a function without captures, which is there as long as the library.

use std::{env, fmt::Write as _, fs, sync::Once};

use crate::world::{FAULTS, JOURNAL, WORLD};

const JOURNAL_FILE: &str = "EMULATED_VERBS_JOURNAL";

/// Reads it, once.
pub(crate) fn read() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let says = |name| env::var_os(name).is_some_and(|value| value == "1");
        let mut world = WORLD.lock();
        world.dmabuf |= says("EMULATED_VERBS_DMABUF");
        world.late |= says("EMULATED_VERBS_LATE");
        world.lost |= says("EMULATED_VERBS_LOST");
        world.old |= says("EMULATED_VERBS_OLD");
        if let Ok(plan) = env::var("EMULATED_VERBS_FAULTS")
            && let Err(error) = FAULTS.add(&plan)
        {
            eprintln!("emulated verbs: EMULATED_VERBS_FAULTS: {error}");
        }
        if env::var_os(JOURNAL_FILE).is_some() {
            // SAFETY: see the head of the file.
            unsafe { libc::atexit(write_journal) };
        }
    });
}

/// Lines `count NAME NUMBER`, `misuse WHAT`, and `live NUMBER`: objects that were not destroyed.
extern "C" fn write_journal() {
    let Some(path) = env::var_os(JOURNAL_FILE) else {
        return;
    };
    let mut text = format!("live {}\n", WORLD.lock().live() + crate::cm::live());
    for line in JOURNAL.counts().lines() {
        let _ = writeln!(text, "count {line}");
    }
    for line in JOURNAL.misuses().lines() {
        let _ = writeln!(text, "misuse {line}");
    }
    if let Err(error) = fs::write(&path, text) {
        eprintln!("emulated verbs: {}: {error}", path.display());
    }
}
