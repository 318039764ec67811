//! Memory that was met: its number, and which devices reach it.
//!
//! The runtime gives allocations no number. So each gets one of ours when it is first met, which is never used again and goes with a callback of the
//! runtime's: it comes before memory is freed, by whomever in this process. The same callback tells the caches.
//!
//! ```text
//! inspect ─▶ met before? ──yes──▶ its entry
//!                 │ no
//!                 └▶ watch (fails when it is gone) ─▶ inspect again: the same? ─▶ entry ─▶ let all devices reach it, once
//! ```
//! Memory grows this by about 150 bytes an allocation that was met and not freed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::machine::{Machine, Reach};
use crate::{
    driver::hsa::{FreeWatch, FreedCallback, PointerInfo, PointerKind},
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, Cause, invalidate},
    types::MemoryType,
    util::lock::Mutex,
};

/// Numbers of allocations, never given twice in a process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// How often an allocation may change under our eyes.
const ATTEMPTS: usize = 8;

/// See the module.
#[derive(Default)]
pub(super) struct Known(Mutex<BTreeMap<u64, Entry>>);

/// An allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(super) range: AddressRange,
    /// Its number; 0 of another process's memory.
    pub(super) id: u64,
    /// `HostPinned` or a device's.
    pub(super) memory_type: MemoryType,
    /// Who reaches it.
    pub(super) reach: Reach,
    /// Whether the host does.
    pub(super) by_host: bool,
    /// Whether the devices were let to it.
    allowed: bool,
}

struct Entry {
    seen: Seen,
    /// Without one it is another process's.
    _watch: Option<FreeWatch>,
}

/// What the runtime calls.
struct Freed {
    known: Weak<Known>,
    id: u64,
    range: AddressRange,
}

impl FreedCallback for Freed {
    fn freed(&self) {
        if let Some(known) = self.known.upgrade() {
            known.forget(self.range.start(), self.id);
        }
        invalidate(self.range, Cause::Freed);
    }
}

impl Known {
    /// The allocation that all of a range lies in, if it was met. No call of the runtime.
    pub(super) fn find(&self, address: u64, length: usize) -> Option<Seen> {
        let table = self.0.lock();
        let (_, entry) = table.range(..=address).next_back()?;
        let end = address.checked_add(length as u64)?;
        (end <= entry.seen.range.end()).then_some(entry.seen)
    }

    /// The allocation of this process at an address; `None`: there is none. `allow`: all devices that can are let to it, once, which may take long.
    /// Errors: what the runtime said.
    pub(super) fn see(
        self: &Arc<Self>,
        machine: &Machine,
        address: u64,
        allow: bool,
    ) -> Result<Option<Seen>> {
        for _ in 0..ATTEMPTS {
            let info = machine.hsa.inspect(address)?;
            if info.kind != PointerKind::Allocated {
                return Ok(None);
            }
            let Some(memory_type) = type_of(machine, &info) else {
                return Ok(None);
            };
            let range = AddressRange::new(info.agent_base, info.len as u64)?;
            let seen = match self.entry(range.start()) {
                Some(seen) if seen.range == range && seen.memory_type == memory_type => seen,
                known => {
                    if let Some(other) = known {
                        self.forget(range.start(), other.id);
                    }
                    if !self.meet(machine, range, memory_type)?
                        || machine.hsa.inspect(address)? != info
                    {
                        continue;
                    }
                    match self.entry(range.start()) {
                        Some(seen) => seen,
                        None => continue,
                    }
                }
            };
            if !allow || seen.allowed {
                return Ok(Some(seen));
            }
            return Ok(Some(self.allow(machine, seen)));
        }
        let text = format!("the memory at {address:#x} is freed and allocated again and again");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Notes another process's memory, open here until [`Known::forget`] with number 0.
    pub(super) fn import(&self, range: AddressRange, device: u16, reach: Reach) {
        let seen = Seen {
            range,
            id: 0,
            memory_type: MemoryType::Rocm(device),
            reach,
            by_host: false,
            allowed: true,
        };
        let entry = Entry { seen, _watch: None };
        let former = self.0.lock().insert(range.start(), entry);
        drop(former);
    }

    /// Takes an entry out, if it still is the one with this number.
    pub(super) fn forget(&self, start: u64, id: u64) {
        let mut table = self.0.lock();
        let same = table.get(&start).is_some_and(|entry| entry.seen.id == id);
        let gone = same.then(|| table.remove(&start));
        drop(table);
        // Its watch may call the runtime.
        drop(gone);
    }

    fn entry(&self, start: u64) -> Option<Seen> {
        self.0.lock().get(&start).map(|entry| entry.seen)
    }

    /// Gives an allocation a number, and watches it. `false`: it is gone.
    fn meet(
        self: &Arc<Self>,
        machine: &Machine,
        range: AddressRange,
        memory_type: MemoryType,
    ) -> Result<bool> {
        let id = NUMBERS.fetch_add(1, Relaxed);
        let freed = Arc::new(Freed {
            known: Arc::downgrade(self),
            id,
            range,
        });
        let (reach, by_host) = match memory_type {
            MemoryType::Rocm(own) => (Reach::of([own]), machine.device(own)?.large_bar),
            _ => (Reach::default(), true),
        };
        let seen = Seen {
            range,
            id,
            memory_type,
            reach,
            by_host,
            allowed: false,
        };
        // The callback may come before this ends: it waits for the table, and then finds the entry.
        let mut table = self.0.lock();
        if table.contains_key(&range.start()) {
            return Ok(true); // Another thread was faster.
        }
        let watch = match machine.hsa.watch_free(range.start(), freed) {
            Ok(watch) => watch,
            Err(error) if error.kind() == ErrorKind::InvalidArgument => return Ok(false),
            Err(error) => return Err(error),
        };
        let entry = Entry {
            seen,
            _watch: Some(watch),
        };
        table.insert(range.start(), entry);
        Ok(true)
    }

    /// Lets all devices to it that can reach it. One that cannot is no error: its copies are refused.
    fn allow(&self, machine: &Machine, mut seen: Seen) -> Seen {
        let wanted = match seen.memory_type {
            MemoryType::Rocm(own) => machine.device(own).map_or(seen.reach, |own| own.reached_by),
            _ => machine.everybody(),
        };
        if wanted != seen.reach {
            let agents = machine.agents(wanted);
            match machine.hsa.allow_access(seen.range.start(), &agents) {
                Ok(()) => seen.reach = wanted,
                Err(error) => {
                    tracing::debug!(target: "wharf::rocm", "{} stays with its owner: {error}", seen.range);
                    return seen;
                }
            }
        }
        seen.allowed = true;
        let mut table = self.0.lock();
        if let Some(entry) = table.get_mut(&seen.range.start())
            && entry.seen.id == seen.id
        {
            entry.seen = seen;
        }
        seen
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({} allocations)", self.0.lock().len())
    }
}

/// Whose memory it is; `None`: nobody's that is known here.
pub(super) fn type_of(machine: &Machine, info: &PointerInfo) -> Option<MemoryType> {
    let owner = info.owner?;
    match machine.ordinal(owner) {
        Some(ordinal) => Some(MemoryType::Rocm(ordinal)),
        None => machine.is_host(owner).then_some(MemoryType::HostPinned),
    }
}
