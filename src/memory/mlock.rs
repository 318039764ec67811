//! Pages that stay in memory: the registrar that needs no device.

use std::{collections::BTreeMap, io};

use nix::sys::resource::{Resource, getrlimit};

use super::{AddressRange, Registrar, RegistrarAttributes};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    sys::pages,
    types::Access,
    util::lock::Mutex,
};

/// Registers memory by keeping its pages in memory (`mlock(2)`): what a device would need them to be, with no device there.
///
/// The system does not count how often a page is locked: one `munlock` undoes any number of `mlock`. So this counts, and a page that several
/// registrations hold stays locked until the last of them ends. It counts for itself only: the program, or another of these, that unlocks a page
/// unlocks it. Memory that is unmapped and mapped again under a registration is not locked any more, and a child made by `fork` has no locks.
#[derive(Debug, Default)]
pub struct MlockRegistrar {
    /// For each address where the count changes, how many registrations hold the pages from there on. Held during the system calls, so that
    /// they come in the order of the counts.
    counts: Mutex<BTreeMap<u64, usize>>,
}

impl MlockRegistrar {
    /// One that holds nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            counts: Mutex::new(BTreeMap::new()),
        }
    }
}

impl Registrar for MlockRegistrar {
    /// The pages that are held.
    type Handle = AddressRange;

    fn name(&self) -> &'static str {
        "mlock"
    }

    fn attributes(&self) -> RegistrarAttributes {
        // A locked page has to be there: 4 KiB take about a microsecond.
        RegistrarAttributes::default().alignment(pages::page_size() as u64)
    }

    /// # Errors
    /// `Exhausted`: `RLIMIT_MEMLOCK` allows no more, or there is no memory. `InvalidArgument`: not all of it is mapped.
    /// `PermissionDenied`: this process may lock nothing.
    fn register(&self, range: AddressRange, _: Access) -> Result<AddressRange> {
        let range = range.align_to(pages::page_size() as u64)?;
        if range.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "no bytes to lock")
                .during(Operation::Memory));
        }
        let mut counts = self.counts.lock();
        if let Err(error) = pages::lock(range.start(), range.len()) {
            // Some of it may be locked now.
            let _ = unlock_unheld(&counts, range);
            return Err(refusal(range, error));
        }
        split(&mut counts, range.start());
        split(&mut counts, range.end());
        for (_, count) in counts.range_mut(range.start()..range.end()) {
            *count += 1;
        }
        Ok(range)
    }

    /// # Errors
    /// What `munlock` said of pages that nobody holds any more: `InvalidArgument` for pages that are not mapped.
    fn deregister(&self, range: AddressRange, _: AddressRange) -> Result<()> {
        let mut counts = self.counts.lock();
        split(&mut counts, range.start());
        split(&mut counts, range.end());
        for (_, count) in counts.range_mut(range.start()..range.end()) {
            *count = count.saturating_sub(1);
        }
        let result = unlock_unheld(&counts, range);
        join(&mut counts, range);
        result
    }
}

/// Locks pages that are unmapped without being unlocked before.
pub(super) fn lock(range: AddressRange) -> Result<()> {
    pages::lock(range.start(), range.len()).map_err(|error| refusal(range, error))
}

/// Makes the count change at `address`, to what it is.
fn split(counts: &mut BTreeMap<u64, usize>, address: u64) {
    let count = count_at(counts, address);
    counts.entry(address).or_insert(count);
}

fn count_at(counts: &BTreeMap<u64, usize>, address: u64) -> usize {
    let before = counts.range(..=address).next_back();
    before.map_or(0, |(_, count)| *count)
}

/// Takes out the places in and at the ends of `range` where nothing changes.
fn join(counts: &mut BTreeMap<u64, usize>, range: AddressRange) {
    let places: Vec<u64> = counts
        .range(range.start()..=range.end())
        .map(|(address, _)| *address)
        .collect();
    for address in places {
        let before = counts.range(..address).next_back();
        let before = before.map_or(0, |(_, count)| *count);
        if counts.get(&address) == Some(&before) {
            counts.remove(&address);
        }
    }
}

/// Unlocks the pages of `range` that nobody holds; all of them, whatever happens.
fn unlock_unheld(counts: &BTreeMap<u64, usize>, range: AddressRange) -> Result<()> {
    let mut result = Ok(());
    let mut start = range.start();
    while start < range.end() {
        let next = counts.range(start + 1..range.end()).next();
        let end = next.map_or_else(|| range.end(), |(address, _)| *address);
        if count_at(counts, start) == 0
            && let Err(error) = pages::unlock(start, end - start)
            && result.is_ok()
        {
            result = Err(refusal(range, error));
        }
        start = end;
    }
    result
}

/// `mlock` says `ENOMEM` both over the limit and for memory that is not mapped.
#[cold]
fn refusal(range: AddressRange, error: io::Error) -> Error {
    let (kind, why) = match error.raw_os_error() {
        Some(libc::ENOMEM) if over_limit(range) => {
            (ErrorKind::Exhausted, "RLIMIT_MEMLOCK is reached")
        }
        Some(libc::ENOMEM) => (ErrorKind::InvalidArgument, "not all of it is mapped"),
        Some(libc::EAGAIN) => (ErrorKind::Exhausted, "some pages could not be had"),
        Some(libc::EPERM) => (ErrorKind::PermissionDenied, "RLIMIT_MEMLOCK is 0"),
        Some(libc::EINVAL) => (ErrorKind::InvalidArgument, "impossible addresses"),
        _ => (ErrorKind::Io, "the system refused"),
    };
    Error::new(kind, format!("locking {range}: {why}"))
        .with_source(error)
        .during(Operation::Memory)
}

/// Whether the limit alone explains a refusal: what is locked by this process and the range exceed it. A process with `CAP_IPC_LOCK` has none.
fn over_limit(range: AddressRange) -> bool {
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_MEMLOCK) else {
        return false;
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).map(str::to_owned)
    };
    // Bit 14 of the effective capabilities (capability.h).
    let capable = field("CapEff:")
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .is_some_and(|mask| mask >> 14 & 1 == 1);
    let locked = field("VmLck:")
        .and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        .saturating_mul(1024);
    !capable && locked.saturating_add(range.len()) > soft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pages::Anonymous;

    /// Bytes of `range` that lie in locked mappings. Not by their `Locked:`: that is a proportional share, and another test's child made by
    /// `fork` shares these pages for a moment, which halves it.
    fn locked(range: AddressRange) -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("a mounted /proc");
        let mut within = 0;
        let mut sum = 0;
        for line in text.lines() {
            if let Some((from, to)) = line.split(' ').next().and_then(|word| word.split_once('-'))
                && let (Ok(from), Ok(to)) =
                    (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
            {
                within = to.min(range.end()).saturating_sub(from.max(range.start()));
            } else if let Some(flags) = line.strip_prefix("VmFlags:")
                && flags.split_whitespace().any(|flag| flag == "lo")
            {
                sum += within;
            }
        }
        sum
    }

    fn mapping() -> (Anonymous, AddressRange) {
        let memory = Anonymous::new(8 * 4096).expect("memory");
        let range = AddressRange::of_mapping(memory.as_ptr(), memory.len());
        (memory, range)
    }

    #[test]
    fn overlapping_registrations_are_counted() {
        let (_memory, all) = mapping();
        let registrar = MlockRegistrar::new();
        let register = |offset, length| {
            let range = all.part(offset, length);
            registrar.register(range, Access::READ).expect("locked")
        };
        let left = register(0, 4 * 4096);
        let middle = register(2 * 4096 + 5, 4 * 4096 - 10);
        assert_eq!(locked(all), 6 * 4096);
        registrar.deregister(left, left).expect("unlocked");
        assert_eq!(locked(all), 4 * 4096, "the middle is held");
        let again = register(2 * 4096, 4096);
        registrar.deregister(middle, middle).expect("unlocked");
        assert_eq!(locked(all), 4096);
        registrar.deregister(again, again).expect("unlocked");
        assert_eq!(locked(all), 0);
        assert!(registrar.counts.lock().is_empty());
    }

    #[test]
    fn what_is_not_mapped() {
        // Where the kernel maps nothing by itself: nobody else's memory comes into its place.
        let memory = Anonymous::apart(8 * 4096).expect("memory");
        let all = AddressRange::of_mapping(memory.as_ptr(), memory.len());
        let registrar = MlockRegistrar::new();
        let held = registrar.register(all, Access::READ).expect("locked");
        drop(memory);
        for range in [
            all,
            AddressRange::new(0x57c0_0000_0000, 4096).expect("a range"),
        ] {
            let error = registrar.register(range, Access::READ).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        }
        // The pages are gone, and their locks; the count is given back all the same.
        let _ = registrar.deregister(held, held);
        assert!(registrar.counts.lock().is_empty());
        let none = AddressRange::new(4096, 0).expect("a range");
        assert!(registrar.register(none, Access::READ).is_err());
        let last = AddressRange::new(u64::MAX - 10, 10).expect("a range");
        assert!(registrar.register(last, Access::READ).is_err());
    }
}
