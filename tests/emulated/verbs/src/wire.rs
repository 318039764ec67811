//! The wire between processes: those that name one folder (`EMULATED_VERBS_FOLDER`) have devices on one network.
//!
//! ```text
//! FOLDER/SLOT.lock     locked by the process that has the slot, as long as it lives; never removed
//! FOLDER/SLOT.socket   where it takes connections; what a killed one leaves refuses them
//! ```
//! The slot is the upper byte of its queue pairs' numbers. One thread (`station`) does all that is on the wire, from the first open device to the last, and sleeps
//! when there is nothing to do. A process asks by a connection of its own to the other's socket; answers come back by it. Who dies closes all its
//! connections, and the kernel tells: requests that were under way end then.
//!
//! The lock on the state is held for what is computed, and for sends and receives that do not block; never for anything that waits.
//!
//! A forked child has none of it (`children`); one that opens devices has a slot of its own.
//!
//! # Safety
//! Signals' sets are filled by the calls; a thread is joined once.

use std::{
    collections::VecDeque,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    ptr,
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    children,
    station::Station,
    world::{JOURNAL, WORLD, ring},
};

/// Whom something is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum To {
    /// The process in this slot, by a connection of this side's.
    Process(u32),
    /// Whoever asked by this connection.
    Connection(u64),
}

/// What the thread is told.
pub(crate) struct Wire {
    pub(crate) slot: u32,
    /// The last number of a queue pair that was given.
    pub(crate) next: u16,
    pub(crate) outbox: VecDeque<(To, Vec<u8>)>,
    /// The process that has the thread: a child of it has not.
    process: u32,
    wake: RawFd,
    pub(crate) stop: bool,
    /// Contexts that are open.
    users: usize,
    thread: ManuallyDrop<JoinHandle<()>>,
}

impl Wire {
    pub(crate) fn post(&mut self, to: To, frame: Vec<u8>) {
        if self.is_here() && !self.stop {
            self.outbox.push_back((to, frame));
            ring(self.wake);
        }
    }

    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Who opens and who closes, one after the other.
static DOOR: Mutex<()> = Mutex::new(());

/// Joins the network of the folder that is named, for one context more. Without one there is nothing to join.
///
/// # Errors
/// From the folder and the socket in it; all slots are taken.
pub(crate) fn enter() -> io::Result<()> {
    let Some(folder) = std::env::var_os("EMULATED_VERBS_FOLDER") else {
        return Ok(());
    };
    let _door = DOOR.lock();
    if let Some(wire) = &mut WORLD.lock().wire
        && wire.is_here()
    {
        wire.users += 1;
        return Ok(());
    }
    children::close_there();
    let station = Station::new(Path::new(&folder))?;
    let (slot, wake) = (station.slot, station.wake.0.as_raw_fd());
    // A process that has the slot of one that died has other numbers than it had.
    let seed = std::process::id().wrapping_mul(0x9e37_79b1) ^ since_the_epoch().subsec_nanos();
    let mut world = WORLD.lock();
    let thread = without_signals(|| {
        std::thread::Builder::new()
            .name("emulated wire".to_owned())
            .spawn(move || station.run())
    })?;
    // What a parent had is not this process's.
    world.hungry.clear();
    world.wire = Some(Wire {
        slot,
        next: (seed >> 16) as u16,
        outbox: VecDeque::new(),
        process: std::process::id(),
        wake,
        stop: false,
        users: 1,
        thread: ManuallyDrop::new(thread),
    });
    Ok(())
}

/// A context was closed. With the last one the thread ends.
pub(crate) fn leave() {
    let _door = DOOR.lock();
    let mut world = WORLD.lock();
    let Some(wire) = world.wire.as_mut().filter(|wire| wire.is_here()) else {
        return;
    };
    wire.users -= 1;
    if wire.users > 0 {
        return;
    }
    wire.stop = true;
    ring(wire.wake);
    // SAFETY: nobody takes it again, as the wire is gone when the door opens.
    let thread = unsafe { ManuallyDrop::take(&mut wire.thread) };
    drop(world);
    if thread.join().is_err() {
        JOURNAL.misuse("the wire's thread panicked".to_owned());
    }
    let mut world = WORLD.lock();
    world.wire = None;
    world.hungry.clear();
}

fn since_the_epoch() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Starts a thread that takes none of the program's signals.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: sets that are filled or written by the calls, which change this thread's mask alone.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}
