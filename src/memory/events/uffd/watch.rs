//! The monitor: what is watched, and whether all that is known is up to date.
//!
//! # Safety
//! The promise of [`MemoryMonitor`] holds by three steps of the kernel (`fs/userfaultfd.c`): it counts a change as pending before the change
//! can be seen by any thread; it takes it off the count only after the reader's `read` has begun to return it; and while any is counted,
//! `UFFDIO_WRITEPROTECT` fails with `EAGAIN`. So when the strict check passes, every change that had returned was read; and as the reader's
//! generation is odd from before the read until all is applied, an even generation after the check says that it was applied.
#![allow(unsafe_code)]

use std::{
    fs, io,
    mem::ManuallyDrop,
    os::fd::AsRawFd,
    sync::{
        Arc, OnceLock,
        atomic::Ordering::{Relaxed, SeqCst},
    },
};

use nix::unistd::{SysconfVar, sysconf};

use super::{fork::ClosedInChild, intervals::Intervals, page::Page, thread::Reader};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, Cause, EventClasses, MemoryMonitor, Timing, Validity,
        events::{dispatch, self_test},
    },
    sys::{
        fork,
        mappings::Mappings,
        userfaultfd::{Features, Userfaultfd},
    },
    util::lock::Mutex,
};

/// Watches by userfaultfd. There is one in a process: [`Uffd::process`].
#[derive(Debug)]
pub struct Uffd {
    uffd: ManuallyDrop<Arc<Userfaultfd>>,
    reader: ManuallyDrop<Reader>,
    in_child: ManuallyDrop<ClosedInChild>,
    page: ManuallyDrop<Page>,
    /// Only with `WP_ASYNC`, under which the kernel would accept what it cannot tell of.
    mappings: Option<Mappings>,
    table: Mutex<Table>,
    page_size: u64,
    limit: usize,
    classes: EventClasses,
}

/// Only [`MemoryMonitor::watch`] and [`MemoryMonitor::unwatch`] use it, never the reader.
#[derive(Debug, Default)]
struct Table {
    /// What the kernel was asked to tell of, less what was found gone.
    registered: Intervals,
    /// What somebody is interested in.
    wanted: Intervals,
    /// [`Shared::ended`](super::thread::Shared) when the table was last swept.
    swept: u64,
    /// Something was unwatched since it was last found that all that is registered is wanted.
    released: bool,
    /// Where to look next for what nobody uses.
    hand: u64,
}

impl Uffd {
    /// The one of this process. It is made by the first call and lasts as long as the process; a refusal lasts as well.
    ///
    /// # Errors
    /// `Unsupported` or `PermissionDenied`: the kernel, or a filter of system calls, does not let it be, or it did not see what it should;
    /// the message says what. `Exhausted`: no descriptor, no thread. `Forked`: in a child.
    pub fn process() -> Result<Arc<Self>> {
        static PROCESS: OnceLock<Result<Arc<Uffd>>> = OnceLock::new();
        // Before it is made: a child would find that it sees nothing, and another thread of the parent may have been making it.
        fork::check(Operation::Memory)?;
        match PROCESS.get_or_init(|| Self::open(true).map(Arc::new)) {
            Ok(this) => Ok(Arc::clone(this)),
            Err(error) => Err(error.clone()),
        }
    }

    /// One more. `any_mapping`: private mappings of files too, where the kernel can.
    pub(super) fn open(any_mapping: bool) -> Result<Self> {
        let failed = |what: &'static str| move |error| refused(what, error);
        let offered = Userfaultfd::probe().map_err(failed("no userfaultfd"))?;
        let missing = NEEDED.difference(offered);
        if !missing.is_empty() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the kernel's userfaultfd lacks {missing:?} (Linux 5.18 has all that is needed)"
                ),
            )
            .during(Operation::Memory));
        }
        let mappings = match any_mapping && offered.contains(Features::WP_ASYNC) {
            true => Mappings::open().ok(),
            false => None,
        };
        let mut features = NEEDED | (offered & Features::WP_HUGETLBFS_SHMEM);
        features.set(Features::WP_ASYNC, mappings.is_some());
        let uffd = Arc::new(Userfaultfd::open(features).map_err(failed("no userfaultfd"))?);
        let page_size = sysconf(SysconfVar::PAGE_SIZE)
            .ok()
            .flatten()
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(4096);
        let page = Page::map(page_size).map_err(failed("no page for the strict check"))?;
        uffd.register(page.address(), page_size)
            .map_err(failed("the kernel watches no page"))?;
        let in_child = ClosedInChild::new(uffd.as_raw_fd())?;
        let reader =
            Reader::start(Arc::clone(&uffd)).map_err(failed("no thread to read events"))?;
        let mut this = Self {
            uffd: ManuallyDrop::new(uffd),
            reader: ManuallyDrop::new(reader),
            in_child: ManuallyDrop::new(in_child),
            page: ManuallyDrop::new(page),
            mappings,
            table: Mutex::default(),
            page_size,
            limit: limit(),
            classes: EventClasses::empty(),
        };
        let seen = self_test::run(&this, TESTED)?;
        if !seen.contains(TESTED) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("userfaultfd did not tell of {:?}", TESTED.difference(seen)),
            )
            .during(Operation::Memory));
        }
        // The break goes down by the same way through the kernel as `munmap`; trying it would race with the allocator.
        this.classes = seen | EventClasses::BREAK;
        Ok(this)
    }

    /// An error when part of `pages` is not mapped, or is of a kind whose changes the kernel does not tell of.
    fn check_kind(&self, pages: AddressRange) -> Result<()> {
        let Some(mappings) = &self.mappings else {
            // In the plain mode the kernel refuses these kinds itself, and tells of a hole only when all is one.
            return match has_hole(pages) {
                true => Err(hole(pages)),
                false => Ok(()),
            };
        };
        let mut address = pages.start();
        while address < pages.end() {
            let mapping = mappings.at(address).map_err(|error| {
                Error::io("asking what is mapped", error).during(Operation::Memory)
            })?;
            match mapping {
                None => return Err(hole(pages)),
                Some(mapping) if mapping.is_sysv => {
                    return Err(unsupported(pages, "it is System V shared memory"));
                }
                Some(mapping) => address = mapping.end,
            }
        }
        Ok(())
    }

    /// Makes place in the table, if anything ended since the last time, is not wanted any more, or is not in use.
    fn make_place(&self, table: &mut Table) {
        // What was unmapped. A sweep asks the kernel once or twice for each run: only when enough of them can have ended.
        let ended = self.reader.shared().ended.load(Relaxed);
        if ended.wrapping_sub(table.swept) >= (self.limit as u64 / 64).max(1) {
            table.swept = ended;
            let gone: Vec<_> = table
                .registered
                .iter()
                .filter(|run| {
                    !self.is_registered(run.start())
                        && !self.is_registered(run.end() - self.page_size)
                })
                .collect();
            for run in gone {
                table.registered.remove(run);
                table.wanted.remove(run);
            }
        }
        if table.registered.len() >= self.limit && table.released {
            self.take_out_unwanted(table);
        }
        if table.registered.len() >= self.limit {
            self.take_out_idle(table);
        }
    }

    fn take_out_unwanted(&self, table: &mut Table) {
        let at_once = (self.limit / 8).max(1);
        let idle: Vec<_> = table
            .registered
            .iter()
            .filter(|run| !table.wanted.overlaps(*run))
            .take(at_once)
            .collect();
        table.released = idle.len() == at_once;
        for run in idle {
            self.take_out(table, run);
        }
    }

    /// Has those who listen forget what they keep of runs that nobody uses now: of a quarter of the table at a time, in turn. First they forget, then
    /// the run is taken out: what they find afterwards is watched. Who makes an entry of it meanwhile asks for it to be watched before or after this, under
    /// the table's lock: before, the entry is there to be forgotten too; after, the run is registered anew.
    fn take_out_idle(&self, table: &mut Table) {
        let hand = table.hand;
        let ahead = table.registered.iter().filter(|run| run.start() >= hand);
        let behind = table.registered.iter().filter(|run| run.start() < hand);
        let at_once = (self.limit / 4).max(1);
        let runs: Vec<_> = ahead.chain(behind).take(at_once).collect();
        for run in runs {
            table.hand = run.end();
            if !dispatch::is_in_use(run) {
                dispatch::invalidate(run, Cause::Unwatched);
                self.take_out(table, run);
                table.wanted.remove(run);
            }
        }
    }

    fn take_out(&self, table: &mut Table, run: AddressRange) {
        // An error means that nothing is mapped there.
        let _ = self.uffd.unregister(run.start(), run.len());
        table.registered.remove(run);
    }

    /// Whether the page at `address` is registered, for all that can be said now.
    fn is_registered(&self, address: u64) -> bool {
        match self.uffd.allow_writes(address, self.page_size) {
            Ok(()) => true,
            Err(error) => error.raw_os_error() != Some(libc::ENOENT),
        }
    }

    /// How often events were read, twice; odd while they are applied.
    #[cfg(test)]
    pub(super) fn generation(&self) -> u64 {
        self.reader.shared().generation.load(SeqCst)
    }

    /// How many separate ranges are registered.
    #[cfg(test)]
    pub(super) fn watched(&self) -> usize {
        self.table.lock().registered.len()
    }

    /// With another limit of separate ranges.
    #[cfg(test)]
    pub(super) fn limited(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

// SAFETY: see the head of the file; the classes are those that the self-test saw.
unsafe impl MemoryMonitor for Uffd {
    fn name(&self) -> &'static str {
        "uffd"
    }

    fn timing(&self) -> Timing {
        Timing::After
    }

    fn classes(&self) -> EventClasses {
        self.classes
    }

    fn watch(&self, range: AddressRange) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        fork::check(Operation::Memory)?;
        let pages = range.align_to(self.page_size)?;
        self.check_kind(pages)?;
        let mut table = self.table.lock();
        if table.registered.len() >= self.limit && !table.registered.touches(pages) {
            self.make_place(&mut table);
            if table.registered.len() >= self.limit {
                return Err(Error::new(
                    ErrorKind::Exhausted,
                    format!(
                        "{} separate ranges in use are watched already (an eighth of vm.max_map_count)",
                        self.limit
                    ),
                )
                .during(Operation::Memory));
            }
        }
        self.uffd
            .register(pages.start(), pages.len())
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOMEM) => {
                    Error::io("no place for one more mapping", error).during(Operation::Memory)
                }
                _ => unsupported(pages, "the kernel tells of no changes there").with_source(error),
            })?;
        table.registered.insert(pages);
        table.wanted.insert(pages);
        Ok(())
    }

    /// The pages stay registered until they are unmapped, or until their places in the table are needed: taking them out is slow.
    fn unwatch(&self, range: AddressRange) {
        // A page that is shared with a neighbour stays wanted.
        let start = range.start().checked_next_multiple_of(self.page_size);
        let end = range.end() & !(self.page_size - 1);
        let Some(Ok(pages)) = start
            .and_then(|start| Some((start, end.checked_sub(start)?)))
            .map(|(start, length)| AddressRange::new(start, length))
        else {
            return;
        };
        let mut table = self.table.lock();
        // Splitting a run makes the table longer; then it stays wanted.
        if table.wanted.len() < self.limit.saturating_mul(2) {
            table.wanted.remove(pages);
            table.released = true;
        }
    }

    #[inline]
    fn validate(&self) -> Validity {
        if fork::forked() {
            return Validity::Pending;
        }
        // Any failure leaves it open whether something is pending.
        match self.uffd.allow_writes(self.page.address(), self.page_size) {
            Ok(()) if self.reader.shared().generation.load(SeqCst) & 1 == 0 => Validity::Valid,
            _ => Validity::Pending,
        }
    }
}

impl Drop for Uffd {
    /// Nobody unmaps watched memory meanwhile, or waits until the descriptor is closed below.
    fn drop(&mut self) {
        // In a child the descriptor is closed already, and the reader is no thread of it.
        if fork::forked() {
            return;
        }
        for run in self.table.get_mut().registered.iter() {
            // An error means that nothing is mapped there.
            let _ = self.uffd.unregister(run.start(), run.len());
        }
        let _ = self.uffd.unregister(self.page.address(), self.page_size);
        self.reader.stop();
        // SAFETY: each is taken once, here, and nobody uses the value after its drop.
        let (uffd, reader, in_child, page) = unsafe {
            (
                ManuallyDrop::take(&mut self.uffd),
                ManuallyDrop::take(&mut self.reader),
                ManuallyDrop::take(&mut self.in_child),
                ManuallyDrop::take(&mut self.page),
            )
        };
        drop(in_child);
        // The last share: the reader gave up its own before it said that it stopped.
        drop(uffd);
        reader.join();
        drop(page);
    }
}

/// What there is no doing without. `EXACT_ADDRESS` is not used: it shows a kernel (5.18) in which the strict check counts changes; before
/// 5.15 the first that ended hid the others.
const NEEDED: Features = Features::PAGEFAULT_FLAG_WP
    .union(Features::EVENT_REMAP)
    .union(Features::EVENT_REMOVE)
    .union(Features::EVENT_UNMAP)
    .union(Features::EXACT_ADDRESS);

/// What has to be seen when it is tried.
const TESTED: EventClasses = EventClasses::UNMAP
    .union(EventClasses::OVERMAP)
    .union(EventClasses::REMAP)
    .union(EventClasses::DISCARD)
    .union(EventClasses::DIRECT);

/// How many separate ranges may be watched: each may split a mapping in three, and a process that has no mapping left cannot allocate.
fn limit() -> usize {
    fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .unwrap_or(65_530)
        / 8
}

/// Whether some page is not mapped. Changes nothing: `MS_ASYNC` has done nothing but this check since Linux 2.6.19.
fn has_hole(pages: AddressRange) -> bool {
    // SAFETY: reads and writes no memory, see above.
    unsafe {
        libc::msync(
            pages.start() as *mut libc::c_void,
            pages.len() as usize,
            libc::MS_ASYNC,
        ) != 0
    }
}

fn hole(pages: AddressRange) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("not all of {pages} is mapped"),
    )
    .during(Operation::Memory)
}

fn unsupported(pages: AddressRange, why: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("{pages} cannot be watched: {why}"),
    )
    .during(Operation::Memory)
}

fn refused(what: &'static str, error: io::Error) -> Error {
    let text = format!("{what}: {error}");
    match Error::io("", error).kind() {
        ErrorKind::Exhausted => Error::new(ErrorKind::Exhausted, text),
        ErrorKind::PermissionDenied => Error::new(ErrorKind::PermissionDenied, text),
        _ => Error::new(ErrorKind::Unsupported, text),
    }
    .during(Operation::Memory)
}
