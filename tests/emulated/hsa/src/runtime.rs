#![allow(unsafe_code)]
//! The whole state of one process's runtime.
//!
//! Locks are taken in this order, and none is held while bytes move or the program's functions run: `memory` → `work`; `svm` alone.
//!
//! # Safety
//! `pthread_atfork` keeps a function without captures, which is there as long as the library; it stores one atomic.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
};

use parking_lot::{Condvar, Mutex};
use wharf_emulated_common::{faults::Faults, journal::Journal};

use crate::{
    abi::{Outcome, Status},
    copy::Work,
    event::Events,
    memory::Memory,
    settings,
    svm::Svm,
};

/// The runtime.
#[derive(Debug)]
pub(crate) struct Runtime {
    /// How often it was initialised and not shut down.
    count: AtomicI64,
    /// Everything that has an address.
    pub(crate) memory: Mutex<Memory>,
    /// Advice on memory of the host.
    pub(crate) svm: Mutex<Svm>,
    /// Copies and handlers that wait, and signals.
    pub(crate) work: Mutex<Work>,
    /// Something of `work`, or a signal's value, changed.
    pub(crate) changed: Condvar,
    /// Who is told of failures.
    pub(crate) events: Events,
    /// What was called.
    pub(crate) journal: Journal,
    /// What goes wrong.
    pub(crate) faults: Faults,
}

static FORKED: AtomicBool = AtomicBool::new(false);

impl Runtime {
    /// `hsa_init`.
    pub(crate) fn initialise(&self) -> Outcome {
        if FORKED.load(SeqCst) || !settings::KFD.on() {
            return Err(Status::OUT_OF_RESOURCES);
        }
        self.count.fetch_add(1, SeqCst);
        Ok(())
    }

    /// `hsa_shut_down`. At zero everything is invalid.
    pub(crate) fn shut_down(&self) -> Outcome {
        if self.count.load(SeqCst) <= 0 {
            return Err(Status::NOT_INITIALIZED);
        }
        if self.count.fetch_sub(1, SeqCst) == 1 {
            let gone = self.memory.lock().clear();
            drop(gone);
            self.work.lock().clear();
        }
        Ok(())
    }

    /// Whether calls may be made.
    pub(crate) fn check(&self) -> Outcome {
        if FORKED.load(SeqCst) || self.count.load(SeqCst) <= 0 {
            return Err(Status::NOT_INITIALIZED);
        }
        Ok(())
    }

    /// How often it was initialised and not shut down.
    pub(crate) fn count(&self) -> i64 {
        self.count.load(SeqCst)
    }
}

/// The runtime of this process.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    extern "C" fn in_child() {
        FORKED.store(true, SeqCst);
    }
    RUNTIME.get_or_init(|| {
        settings::load();
        // SAFETY: see the head of the file.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        let faults = Faults::new();
        if let Ok(plan) = std::env::var("EMULATED_HSA_FAULTS")
            && let Err(error) = faults.add(&plan)
        {
            eprintln!("emulated HSA runtime: EMULATED_HSA_FAULTS: {error}");
        }
        Runtime {
            count: AtomicI64::new(0),
            memory: Mutex::new(Memory::default()),
            svm: Mutex::new(Svm::default()),
            work: Mutex::new(Work::default()),
            changed: Condvar::new(),
            events: Events::default(),
            journal: Journal::new(),
            faults,
        }
    })
}

/// Ends the process with a message: what the caller did would crash the real runtime, or go well by luck.
pub(crate) fn die(why: &str) -> ! {
    eprintln!("emulated HSA runtime: {why}");
    std::process::abort();
}
