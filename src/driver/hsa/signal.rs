//! Signals and copies.
//!
//! A signal is a 64-bit number that devices and the host change and wait for. A copy counts its completion signal down by one when it is done,
//! and makes it negative when it failed. So several copies may share a signal that begins with their number, and **"done" is "below 1", never
//! "equal to 0"**.
//!
//! How to learn of it, from the cheapest: [`Signal::load`], a call without a lock or a system call; a handler ([`Signal::notify`]), which one
//! thread of the runtime runs for the whole process, one after the other; [`Signal::wait`], which blocks a thread.
//!
//! # Safety
//! A signal is destroyed once, when nobody holds it: not its owner, and no handler that has yet to run. That no device will change it is the
//! promise of those who started copies. What a handler is given is an `Arc` that it gives back; one that never runs keeps it, so that a late
//! run can never meet freed memory.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::Arc,
    time::Duration,
};

use super::{Agent, Hsa, RawSignal, Status, memory::pointer_to, sys};
use crate::error::{Error, ErrorKind, Result};

/// A number that devices count down. Clones are the same signal; the last one destroys it.
#[derive(Clone)]
pub(crate) struct Signal(Arc<Inner>);

struct Inner {
    hsa: &'static Hsa,
    raw: RawSignal,
}

/// Something to do when a signal has fallen.
pub(crate) trait SignalCallback: Send + Sync + 'static {
    /// Runs on the one thread of the runtime that runs all handlers of the process, and holds the others up: wake somebody and return.
    fn run(&self, value: i64);
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyEnd {
    /// The first byte, as agents have it: of locked host memory [`LockedMemory::agent_address`](super::LockedMemory::agent_address).
    pub(crate) address: u64,
    /// Whose memory it is; or, for locked host memory, the device that the other end is of.
    pub(crate) agent: Agent,
}

impl Hsa {
    /// Makes a signal. Initialises the runtime.
    /// Errors: `Exhausted`.
    pub(crate) fn signal(&'static self, initial: i64) -> Result<Signal> {
        self.initialise()?;
        let mut raw = RawSignal(0);
        // SAFETY: writes one handle; anybody may wait for the signal.
        let status = unsafe { (self.api.hsa_signal_create)(initial, 0, ptr::null(), &raw mut raw) };
        status.check("hsa_signal_create")?;
        Ok(Signal(Arc::new(Inner { hsa: self, raw })))
    }

    /// Starts a copy. One of the two agents is a device; it makes the copy, that of `from` if both are. `done` is counted down by one when the bytes
    /// are there, and made negative when the copy failed.
    ///
    /// It begins when every signal of `after` is 0. **A signal that became negative is never 0 again: what waits for a copy that failed never
    /// begins.** Whoever chains copies looks after that; independent ones are in no order.
    /// Errors: `InvalidArgument`: no bytes, which the runtime would take and never report; more than [`Hsa::MAX_AFTER`] signals; `Exhausted`, and what else the
    /// runtime reports. Then `done` is not touched.
    ///
    /// # Safety
    /// Until `done` was counted down, both ends stay mapped and reachable by the agent that copies (locked memory locked, allocations allocated and access
    /// allowed), nobody writes the source or touches the target, and the signals live.
    pub(crate) unsafe fn copy(
        &self,
        to: CopyEnd,
        from: CopyEnd,
        len: usize,
        after: &[&Signal],
        done: &Signal,
    ) -> Result<()> {
        let after = Dependencies::new(len, after)?;
        self.usable()?;
        // SAFETY: the list has the length that is said, and is none when it is empty; the caller vouches for the rest.
        let status = unsafe {
            (self.api.hsa_amd_memory_async_copy)(
                pointer_to(to.address),
                to.agent.raw,
                pointer_to(from.address),
                from.agent.raw,
                len,
                after.count,
                after.list(),
                done.0.raw,
            )
        };
        status.check("hsa_amd_memory_async_copy")
    }

    /// For how many signals a copy can wait.
    pub(crate) const MAX_AFTER: usize = 8;
}

/// Handles of the signals that a copy waits for.
struct Dependencies {
    handles: [RawSignal; Hsa::MAX_AFTER],
    count: u32,
}

impl Dependencies {
    fn new(len: usize, after: &[&Signal]) -> Result<Self> {
        let wrong = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, why.to_owned()));
        if len == 0 {
            return wrong("no bytes to copy: the runtime would never report that");
        }
        if after.len() > Hsa::MAX_AFTER {
            return wrong("a copy waits for 8 signals at most");
        }
        let mut handles = [RawSignal(0); Hsa::MAX_AFTER];
        for (place, signal) in handles.iter_mut().zip(after) {
            *place = signal.0.raw;
        }
        Ok(Self {
            handles,
            count: after.len() as u32,
        })
    }

    /// The runtime refuses a list without entries.
    fn list(&self) -> *const RawSignal {
        if self.count == 0 {
            ptr::null()
        } else {
            self.handles.as_ptr()
        }
    }
}

impl Signal {
    /// Its value now. What a device wrote before it counted down is visible behind this. No lock, no system call.
    pub(crate) fn load(&self) -> i64 {
        // SAFETY: the signal lives.
        unsafe { (self.0.hsa.api.hsa_signal_load_scacquire)(self.0.raw) }
    }

    /// Sets its value: to use it once more, when nothing is under way that changes it.
    pub(crate) fn store(&self, value: i64) {
        // SAFETY: the signal lives.
        unsafe { (self.0.hsa.api.hsa_signal_store_screlease)(self.0.raw, value) }
    }

    /// As the calls take it, while this lives.
    pub(super) fn raw(&self) -> RawSignal {
        self.0.raw
    }

    /// Blocks this thread until the value is below `bound`, or about `limit` has passed; the value then. For threads that may block: never
    /// to be used where something else can be done.
    pub(crate) fn wait(&self, bound: i64, limit: Duration) -> i64 {
        let start = std::time::Instant::now();
        loop {
            // The hint is in ticks of a clock of the runtime's, which may return at any time: short ones, and this clock.
            // SAFETY: the signal lives.
            let value = unsafe {
                (self.0.hsa.api.hsa_signal_wait_scacquire)(
                    self.0.raw,
                    sys::CONDITION_LESS,
                    bound,
                    1_000_000,
                    sys::WAIT_BLOCKED,
                )
            };
            if value < bound || start.elapsed() >= limit {
                return value;
            }
        }
    }

    /// Has `callback` run once, when the value is below `bound`, or at once if it is. The signal lives until then. A few microseconds.
    ///
    /// It never runs when the value never falls: a device that failed does not count down.
    /// Errors: `Exhausted`; then it never runs.
    pub(crate) fn notify<C: SignalCallback>(&self, bound: i64, callback: Arc<C>) -> Result<()> {
        self.0.hsa.usable()?;
        let handler = Box::into_raw(Box::new(Handler {
            _signal: self.clone(),
            callback,
        }));
        // SAFETY: `trampoline` gets what it expects, alive until it ran; it says that it is not to be called again.
        let status = unsafe {
            (self.0.hsa.api.hsa_amd_signal_async_handler)(
                self.0.raw,
                sys::CONDITION_LESS,
                bound,
                trampoline::<C>,
                handler.cast::<c_void>(),
            )
        };
        if status != Status::SUCCESS {
            // SAFETY: made above, and refused by the runtime.
            drop(unsafe { Box::from_raw(handler) });
        }
        status.check("hsa_amd_signal_async_handler")
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "signal {:#x}", self.0.raw.0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.hsa.on_drop("hsa_signal_destroy", |api| {
            // SAFETY: made once, destroyed once, and nobody has it any more.
            unsafe { (api.hsa_signal_destroy)(self.raw) }
        });
    }
}

/// What a handler has: the callback, and the signal, which must not be destroyed before.
struct Handler<C> {
    /// Held until the callback has run.
    _signal: Signal,
    callback: Arc<C>,
}

/// # Safety
/// `data` is a boxed [`Handler`] of this type, given up by [`Signal::notify`]; called once.
unsafe extern "C" fn trampoline<C: SignalCallback>(value: i64, data: *mut c_void) -> bool {
    // SAFETY: as the caller vouches.
    let handler = unsafe { Box::from_raw(data.cast::<Handler<C>>()) };
    // A panic must not reach the runtime's frames; the drop of the callback may panic as well.
    if catch_unwind(AssertUnwindSafe(|| {
        handler.callback.run(value);
        drop(handler);
    }))
    .is_err()
    {
        tracing::error!(target: "wharf::rocm", "a signal's handler panicked");
    }
    false
}
