#![allow(unsafe_code)]
//! A card that is open in this process: its memory's tables, its submissions, its notifier; and its end.
//!
//! One lock guards the tables; no bytes move under it.
//!
//! # Safety
//! `eventfd` and `write` with a number that lives through the call; the descriptor that comes back belongs to nobody else.

use std::{
    collections::HashMap,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{Arc, atomic::AtomicU64, atomic::AtomicUsize, mpsc::Sender},
};

use parking_lot::{Condvar, Mutex};
use wharf_emulated_common::{backing::Backing, random::Random};

use crate::{
    abi::{Chip, DEVICE_RESET, Outcome},
    memory::Memory,
    settings,
    submit::{Fences, Job},
};

/// An opened card.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) card: usize,
    pub(crate) chip: Chip,
    pub(crate) backing: Arc<Backing>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) changed: Condvar,
    pub(crate) random: Mutex<Random>,
    /// Waits with a timeout that are under way, and how many there were at once.
    pub(crate) waiting: AtomicUsize,
    pub(crate) waiting_peak: AtomicUsize,
    /// Submissions that were held up by a full ring.
    pub(crate) held_up: AtomicU64,
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) memory: Memory,
    /// The kernel's command buffers: handle and size.
    pub(crate) buffers: HashMap<u64, u64>,
    pub(crate) next_buffer: u64,
    pub(crate) fences: Fences,
    pub(crate) queues: HashMap<u32, Sender<Job>>,
    /// dma-bufs: the address of the mapping, and the number of the export.
    pub(crate) exports: Vec<(u64, u64)>,
    notifier: Option<Notifier>,
    events: u64,
    /// It was reset: nothing but closing helps.
    pub(crate) down: bool,
}

#[derive(Debug)]
struct Notifier {
    /// The program's.
    number: RawFd,
    /// The same, held here.
    held: OwnedFd,
}

impl Session {
    pub(crate) fn new(card: usize, chip: Chip, backing: Arc<Backing>) -> Arc<Self> {
        Arc::new(Self {
            card,
            chip,
            tables: Mutex::new(Tables {
                memory: Memory::new(chip, backing.len()),
                buffers: HashMap::new(),
                next_buffer: crate::node::BUFFERS,
                fences: Fences::new(chip.ring()),
                queues: HashMap::new(),
                exports: Vec::new(),
                notifier: None,
                events: 0,
                down: false,
            }),
            backing,
            changed: Condvar::new(),
            random: Mutex::new(Random::new(settings::SEED.get())),
            waiting: AtomicUsize::new(0),
            waiting_peak: AtomicUsize::new(0),
            held_up: AtomicU64::new(0),
        })
    }

    /// The tables of a card that is in operation.
    pub(crate) fn tables(&self) -> Outcome<parking_lot::MutexGuard<'_, Tables>> {
        let tables = self.tables.lock();
        if tables.down {
            return Err(libc::EBUSY);
        }
        Ok(tables)
    }

    /// Resets the card: all that runs is aborted, the notifier speaks.
    pub(crate) fn reset(&self, events: u64) {
        let mut tables = self.tables.lock();
        tables.down = true;
        tables.fences.abort();
        tables.notify(events | DEVICE_RESET);
        self.changed.notify_all();
    }

    /// Aborts what runs, and nothing else.
    pub(crate) fn abort(&self) {
        self.tables.lock().fences.abort();
        self.changed.notify_all();
    }

    /// The last descriptor has gone.
    pub(crate) fn end(&self) {
        let mut tables = self.tables.lock();
        tables.down = true;
        tables.fences.abort();
        tables.queues.clear();
        tables.memory.peers.clear();
        tables.notifier = None;
        self.changed.notify_all();
    }

    pub(crate) fn notifier_create(&self) -> Outcome<RawFd> {
        let mut tables = self.tables()?;
        if tables.notifier.is_some() {
            return Err(libc::EINVAL);
        }
        // SAFETY: numbers only.
        let number = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if number < 0 {
            return Err(libc::EMFILE);
        }
        // SAFETY: numbers only.
        let held = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
        if held < 0 {
            // SAFETY: made above.
            unsafe { libc::close(number) };
            return Err(libc::EMFILE);
        }
        // SAFETY: made above.
        let held = unsafe { OwnedFd::from_raw_fd(held) };
        tables.notifier = Some(Notifier { number, held });
        Ok(number)
    }

    pub(crate) fn notifier_release(&self, number: RawFd) -> Outcome {
        let mut tables = self.tables.lock();
        if tables.notifier.as_ref().map(|known| known.number) != Some(number) {
            return Err(libc::EINVAL);
        }
        tables.notifier = None;
        // SAFETY: the caller gives it up, as the interface says.
        unsafe { libc::close(number) };
        Ok(())
    }

    /// What happened since the last time.
    pub(crate) fn take_events(&self) -> u64 {
        std::mem::take(&mut self.tables.lock().events)
    }
}

impl Tables {
    fn notify(&mut self, events: u64) {
        self.events |= events;
        if let Some(notifier) = &self.notifier {
            let one = 1_u64;
            // SAFETY: eight bytes that live through the call.
            unsafe { libc::write(notifier.held.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    pub(crate) const fn has_notifier(&self) -> bool {
        self.notifier.is_some()
    }
}
