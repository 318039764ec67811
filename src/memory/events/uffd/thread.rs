//! The thread that reads the events: the only reader, and each event keeps a thread of the program waiting in its system call.
//!
//! So it may not unmap anything that is watched (it would wait for itself), nor wait for a thread that may be unmapping. It takes no lock and
//! uses no heap from its first event to its last, blocks all signals, and ends the process should it ever panic. It sleeps in `poll` when
//! nothing happens.
//!
//! ```text
//!   generation   even ──▶ odd ── read ── invalidate … ──▶ even
//!                                 │
//!   munmap ……… waits for its event ┘ returns
//! ```
//! The generation is odd before `read`, so whoever saw an unmap return and an even generation afterwards knows that it was applied.

use std::{
    io,
    os::fd::AsFd,
    process,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, JoinHandle},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigSet, SigmaskHow},
};

use crate::{
    memory::{AddressRange, Cause, invalidate},
    sys::{
        eventfd::EventFd,
        userfaultfd::{Event, Message, Userfaultfd},
    },
};

/// What the thread and the monitor share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Odd while events are read and applied.
    pub(super) generation: AtomicU64,
    /// Events that may have ended registrations.
    pub(super) ended: AtomicU64,
    stop: EventFd,
    ready: AtomicBool,
    stopped: AtomicBool,
}

/// A running reader.
#[derive(Debug)]
pub(super) struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts it, and returns when it is about to wait for its first event.
    /// Errors: No thread, no eventfd.
    pub(super) fn start(uffd: Arc<Userfaultfd>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            stop: EventFd::new()?,
            ready: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        // A new thread has the signal mask of the one that makes it.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = thread::Builder::new()
            .name("wharf-uffd".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let _end = EndOfProcess;
                read_events(&uffd, &theirs);
                // Not the last share: the monitor has its own, and waits for `stopped`.
                drop(uffd);
                theirs.stopped.store(true, SeqCst);
            });
        mask.thread_set_mask()?;
        let thread = thread?;
        while !shared.ready.load(SeqCst) {
            thread::yield_now();
        }
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes it read no more. Until the descriptor is closed nobody may unmap what is still registered.
    pub(super) fn stop(&self) {
        self.shared.stop.ring();
        while !self.shared.stopped.load(SeqCst) {
            thread::yield_now();
        }
    }

    /// Waits for its end. The descriptor has to be closed: the end of a thread frees memory.
    pub(super) fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked: that ends the process.
            let _ = thread.join();
        }
    }
}

fn read_events(uffd: &Userfaultfd, shared: &Shared) {
    let mut messages = [Message::default(); 16];
    let mut fds = [
        PollFd::new(uffd.as_fd(), PollFlags::POLLIN),
        PollFd::new(shared.stop.as_fd(), PollFlags::POLLIN),
    ];
    shared.ready.store(true, SeqCst);
    loop {
        // Fails with EINTR at most; then the read finds nothing.
        let _ = poll(&mut fds, PollTimeout::NONE);
        if fds[1].revents().is_some_and(|events| !events.is_empty()) {
            return;
        }
        shared.generation.fetch_add(1, SeqCst);
        // A failed read is one that found nothing.
        let count = uffd.read(&mut messages).unwrap_or(0);
        for message in &messages[..count] {
            apply(message.event(), uffd, shared);
        }
        shared.generation.fetch_add(1, SeqCst);
    }
}

fn apply(event: Event, uffd: &Userfaultfd, shared: &Shared) {
    let tell = |start: u64, end: u64, cause| {
        if let Ok(range) = AddressRange::new(start, end.saturating_sub(start)) {
            invalidate(range, cause);
        }
    };
    match event {
        Event::Unmap { start, end } => {
            shared.ended.fetch_add(1, Relaxed);
            tell(start, end, Cause::Unmapped);
        }
        Event::Remove { start, end } => tell(start, end, Cause::Discarded),
        Event::Remap { from, to, length } => {
            shared.ended.fetch_add(1, Relaxed);
            tell(from, from.saturating_add(length), Cause::Moved);
            tell(to, to.saturating_add(length), Cause::Moved);
        }
        // There are none, as nothing is ever protected; but a thread would wait for ever.
        Event::Fault(address) => {
            let page = address & !4095;
            let _ = uffd.allow_writes(page, 4096);
        }
        Event::Other(_) => {}
    }
}

/// Ends the process when a thread unwinds through it: without its reader every unmap of watched memory would wait for ever.
struct EndOfProcess;

impl Drop for EndOfProcess {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

/// Bytes; sinks are shallow.
const STACK: usize = 256 << 10;
