//! Being told: that memory is freed, that a device failed.
//!
//! The runtime keeps a list of callbacks with each allocation, and takes one off by address and function alone, whoever put it there. So each allocation
//! gets one callback of this room, which tells all who watch the allocation here (`watchers`).
//!
//! # Safety
//! What the runtime is given with a callback is the `&'static` runtime itself, or a number that is looked up: nothing that can have gone.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Hsa, RawAgent, Status,
    memory::pointer_to,
    sys,
    watchers::{Fault, FaultKind, FreedCallback, OnFault},
};
use crate::error::{Error, ErrorKind, Result};

/// Numbers of watches, never given twice.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// While it lives, somebody is told when an allocation is freed.
#[must_use = "nobody is told any more when it is dropped"]
pub(crate) struct FreeWatch {
    hsa: &'static Hsa,
    base: u64,
    number: u64,
}

impl Drop for FreeWatch {
    fn drop(&mut self) {
        let gone = {
            let mut table = self.hsa.freed.0.lock();
            let Some(watchers) = table.get_mut(&self.base) else {
                return;
            };
            let Some(place) = watchers
                .iter()
                .position(|(number, _)| *number == self.number)
            else {
                return;
            };
            let gone = watchers.swap_remove(place);
            if watchers.is_empty() {
                table.remove(&self.base);
                if self.hsa.usable().is_ok() {
                    // Under the lock, so that a watch that begins now comes after it. Refused when the memory is being freed: then the callback comes,
                    // and finds nobody.
                    // SAFETY: numbers and a function.
                    unsafe {
                        (self.hsa.api.hsa_amd_deregister_deallocation_callback)(
                            pointer_to(self.base),
                            on_free,
                        )
                    };
                }
            }
            gone
        };
        // The callback's drop is not ours.
        drop(gone);
    }
}

impl fmt::Debug for FreeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watch of {:#x}", self.base)
    }
}

impl Hsa {
    /// Has `callback` run when the allocation that begins at `base` is freed, by whomever in this process. A few microseconds. Memory of another process
    /// cannot be watched.
    /// Errors: `InvalidArgument`: no allocation of this process is there; `Forked`.
    pub(crate) fn watch_free(
        &'static self,
        base: u64,
        callback: Arc<dyn FreedCallback>,
    ) -> Result<FreeWatch> {
        self.usable()?;
        let mut table = self.freed.0.lock();
        if !table.contains_key(&base) {
            // SAFETY: a function and a pointer that is good for ever. The runtime runs it outside of its locks.
            let status = unsafe {
                (self.api.hsa_amd_register_deallocation_callback)(
                    pointer_to(base),
                    on_free,
                    ptr::from_ref(self).cast_mut().cast(),
                )
            };
            status.check("hsa_amd_register_deallocation_callback")?;
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        table.entry(base).or_default().push((number, callback));
        Ok(FreeWatch {
            hsa: self,
            base,
            number,
        })
    }
}

/// # Safety
/// `hsa` is what [`Hsa::watch_free`] gave.
unsafe extern "C" fn on_free(base: *mut c_void, hsa: *mut c_void) {
    // SAFETY: as the caller vouches; it is never freed.
    let hsa: &'static Hsa = unsafe { &*hsa.cast::<Hsa>() };
    let base = base.expose_provenance() as u64;
    let watchers = hsa.freed.0.lock().remove(&base).unwrap_or_default();
    for (_, callback) in watchers {
        guarded(|| {
            callback.freed();
            drop(callback);
        });
    }
}

/// A panic must not reach the runtime's frames.
fn guarded(run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!(target: "wharf::rocm", "a callback panicked");
    }
}

/// While it lives, somebody is told when a device fails.
#[must_use = "nobody is told any more when it is dropped"]
pub(crate) struct FaultWatch {
    hsa: &'static Hsa,
    number: u64,
}

impl Drop for FaultWatch {
    fn drop(&mut self) {
        let mut table = self.hsa.faults.0.lock();
        let place = table
            .watchers
            .iter()
            .position(|(number, _)| *number == self.number);
        let gone = place.map(|place| table.watchers.swap_remove(place));
        drop(table);
        drop(gone);
    }
}

impl fmt::Debug for FaultWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watch {} of faults", self.number)
    }
}

impl Hsa {
    /// Has `callback` run when a device fails, on a thread of the runtime. **It takes the place of the runtime's own answer to that, which ends the
    /// process**, for as long as somebody watches; without a watcher the process is ended as before. Initialises the runtime.
    /// Errors: `Unsupported`: the library cannot, or (up to ROCm 5) the program has a handler of its own already: then failures are not told here.
    pub(crate) fn watch_faults(
        &'static self,
        callback: impl Fn(&Fault) + Send + Sync + 'static,
    ) -> Result<FaultWatch> {
        self.initialise()?;
        let function = self.api.hsa_amd_register_system_event_handler;
        let register = self.optional(function, "hsa_amd_register_system_event_handler")?;
        let mut table = self.faults.0.lock();
        let status = *table.registered.get_or_insert_with(|| {
            // SAFETY: a function and a pointer that is good for ever. Only registered, nothing runs now.
            unsafe { register(on_event, ptr::from_ref(self).cast_mut().cast()) }
        });
        if status != Status::SUCCESS {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the program handles failures of devices itself (hsa_amd_register_system_event_handler: {status})"),
            )
            .with_source(status));
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        table.watchers.push((number, Arc::new(callback)));
        Ok(FaultWatch { hsa: self, number })
    }

    /// How a device failed first, if it did while somebody watched.
    pub(crate) fn fault_of(&self, agent: RawAgent) -> Option<Fault> {
        let table = self.faults.0.lock();
        table
            .seen
            .iter()
            .find(|fault| fault.agent == agent)
            .copied()
    }
}

/// # Safety
/// `event` is one of the runtime's, good for the call; `hsa` is what [`Hsa::watch_faults`] gave.
unsafe extern "C" fn on_event(event: *const sys::RawEvent, hsa: *mut c_void) -> Status {
    // SAFETY: as the caller vouches; it is never freed.
    let hsa: &'static Hsa = unsafe { &*hsa.cast::<Hsa>() };
    // SAFETY: every event begins with these two.
    let (event_type, agent) = unsafe { ((*event).event_type, (*event).agent) };
    let kind = match event_type {
        // SAFETY: events of this type have both fields.
        sys::EVENT_MEMORY_FAULT => unsafe {
            FaultKind::Memory {
                address: (*event).address,
                reasons: (*event).reason,
            }
        },
        sys::EVENT_HARDWARE_EXCEPTION => FaultKind::Hardware,
        // SAFETY: as above.
        sys::EVENT_MEMORY_ERROR => unsafe {
            FaultKind::InUse {
                address: (*event).address,
            }
        },
        other => FaultKind::Other(other),
    };
    let fault = Fault { agent, kind };
    let watchers: Vec<OnFault> = {
        let mut table = hsa.faults.0.lock();
        if table.watchers.is_empty() {
            return Status::ERROR;
        }
        // One for each device: no more than there are.
        if !table.seen.iter().any(|seen| seen.agent == agent) {
            table.seen.push(fault);
        }
        table
            .watchers
            .iter()
            .map(|(_, watcher)| Arc::clone(watcher))
            .collect()
    };
    tracing::error!(target: "wharf::rocm", "agent {:#x}: {}", agent.0, fault.error());
    for watcher in watchers {
        guarded(|| watcher(&fault));
    }
    Status::SUCCESS
}
