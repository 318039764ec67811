//! The monitor whose events come from elsewhere: a UCX that is in the process already, or the program.
//!
//! Two libraries that patch the same functions break each other, so a UCX that is there is asked instead. Nothing is loaded and nothing
//! patched for it: only a handler is added, and kept if its self-test sees the events.
//!
//! # Safety
//! The functions are those that UCX's `ucm/api/ucm.h` declares since 1.10, in a library that is mapped and stays mapped (the handle is never closed).
//! The handler reads of an event only the fields that all these versions have.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_void},
    mem, ptr,
    sync::atomic::{
        AtomicBool, AtomicU32, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use super::{Cause, EventClasses, MemoryMonitor, Timing, Validity, invalidate};
use crate::{
    error::{Error, ErrorKind, Operation, Result},
    memory::AddressRange,
    util::lock::Mutex,
};

// ucm/api/ucm.h: enum ucm_event_type.
const EVENT_MREMAP: c_int = 1 << 2;
const EVENT_MADVISE: c_int = 1 << 6;
const EVENT_VM_UNMAPPED: c_int = 1 << 17;
const EVENT_FLAG_NO_INSTALL: c_int = 1 << 24;
/// Below 0: before the call is made, and before other handlers.
const PRIORITY: c_int = -1000;

/// The least that a page may have; of longer ones (up to 64 KiB on aarch64) the kernel takes whole ones, however short a length is.
const PAGE: u64 = 4096;
const LARGEST_PAGE: u64 = if cfg!(target_arch = "x86_64") {
    PAGE
} else {
    64 << 10
};

// include/uapi/asm-generic/mman-common.h. UCX says nothing of these.
const MADV_DONTNEED_LOCKED: c_int = 24;
const MADV_GUARD_INSTALL: c_int = 102;

/// `union ucm_event`: the members that are read.
#[repr(C)]
union Event {
    mremap: Mremap,
    madvise: Madvise,
    unmapped: Unmapped,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Mremap {
    result: *mut c_void,
    address: *mut c_void,
    old_size: usize,
    new_size: usize,
    flags: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Madvise {
    result: c_int,
    address: *mut c_void,
    length: usize,
    advice: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Unmapped {
    address: *mut c_void,
    size: usize,
}

const _: () = {
    assert!(mem::offset_of!(Mremap, flags) == 4 * size_of::<usize>());
    assert!(mem::offset_of!(Madvise, address) == size_of::<usize>());
    assert!(mem::offset_of!(Madvise, advice) == 3 * size_of::<usize>());
};

type Handler = unsafe extern "C" fn(c_int, *mut Event, *mut c_void);
/// Answers `ucs_status_t`, an enum packed to one byte; 0 is good.
type SetHandler = unsafe extern "C" fn(c_int, c_int, Handler, *mut c_void) -> i8;
type UnsetHandler = unsafe extern "C" fn(c_int, Handler, *mut c_void);

/// Whether the program tells of everything itself.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// Where the self-test's page lies, and the classes of events that came for it.
static PROBE: AtomicUsize = AtomicUsize::new(0);
static PROBED: AtomicU32 = AtomicU32::new(0);

fn tell(start: u64, length: u64, cause: Cause) {
    let Some(end) = start
        .checked_add(length)
        .and_then(|end| end.checked_next_multiple_of(LARGEST_PAGE))
    else {
        return;
    };
    let start = start & !(PAGE - 1);
    if start >= end {
        return;
    }
    // Never fails: an error would allocate.
    if let Ok(range) = AddressRange::new(start, end - start) {
        invalidate(range, cause);
    }
}

/// What UCX calls, inside `munmap` and the others: no lock, no allocation, no log.
unsafe extern "C" fn handle(kind: c_int, event: *mut Event, _: *mut c_void) {
    let (address, class) = match kind {
        EVENT_VM_UNMAPPED => {
            // SAFETY: UCX fills this member for this event.
            let Unmapped { address, size } = unsafe { (*event).unmapped };
            tell(address as u64, size as u64, Cause::Unmapped);
            (address, EventClasses::UNMAP)
        }
        EVENT_MREMAP => {
            // SAFETY: as above. The old range came as an event of its own.
            let Mremap { flags, address, .. } = unsafe { (*event).mremap };
            // Older versions do not say where to.
            if flags & libc::MREMAP_FIXED != 0 {
                tell(
                    PAGE,
                    AddressRange::HOST_END - 2 * LARGEST_PAGE,
                    Cause::Unmapped,
                );
            }
            (address, EventClasses::REMAP)
        }
        EVENT_MADVISE => {
            // SAFETY: as above.
            let Madvise {
                address,
                length,
                advice,
                ..
            } = unsafe { (*event).madvise };
            if matches!(advice, MADV_DONTNEED_LOCKED | MADV_GUARD_INSTALL) {
                tell(address as u64, length as u64, Cause::Discarded);
            }
            (address, EventClasses::DISCARD)
        }
        _ => return,
    };
    if address as usize == PROBE.load(Relaxed) {
        PROBED.fetch_or(class.bits(), Relaxed);
    }
}

/// Declares that the program calls [`invalidate`] for every change of its mappings. Cannot be taken back.
///
/// # Safety
/// Before memory of this process that was ever handed to wharf is unmapped, remapped, mapped over, discarded by advice, or cut off by a
/// lower program break, in whatever thread and by whichever library, the program calls [`invalidate`] with its range.
/// Registrations of memory that was not announced would lead to pages that others own.
pub unsafe fn announce_all() {
    ANNOUNCED.store(true, SeqCst);
}

/// Events from a UCX in this process, or from the program.
#[derive(Clone, Copy, Debug)]
pub struct Imported {
    classes: EventClasses,
}

impl Imported {
    /// The monitor, when the program promised to tell ([`announce_all`]), or when `libucm.so.0` is loaded and watches memory.
    ///
    /// # Errors
    /// `Unsupported`: there is neither, or the self-test does not see the events of UCX.
    pub fn available() -> Result<Self> {
        if ANNOUNCED.load(SeqCst) {
            return Ok(Self {
                classes: EventClasses::all() - EventClasses::DIRECT,
            });
        }
        static UCX: Mutex<Option<Imported>> = Mutex::new(None);
        let mut ucx = UCX.lock();
        match *ucx {
            Some(imported) if test().contains(EventClasses::UNMAP) => Ok(imported),
            Some(_) => Err(unsupported(
                "UCX in this process does not tell of changes any more",
            )),
            None => Ok(*ucx.insert(from_ucx()?)),
        }
    }
}

fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message).during(Operation::Memory)
}

/// Adds the handler. Runs with a lock held: `handle` takes none.
fn from_ucx() -> Result<Imported> {
    // SAFETY: loads nothing; the handle is never closed.
    let library =
        unsafe { libc::dlopen(c"libucm.so.0".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return Err(unsupported("libucm.so.0 is not in this process"));
    }
    let (Some(set), Some(unset)) = (
        find(library, c"ucm_set_event_handler"),
        find(library, c"ucm_unset_event_handler"),
    ) else {
        return Err(unsupported("libucm.so.0 lacks ucm_set_event_handler"));
    };
    // SAFETY: functions of these types, by `ucm.h`.
    let (set, unset) = unsafe {
        (
            mem::transmute::<*mut c_void, SetHandler>(set),
            mem::transmute::<*mut c_void, UnsetHandler>(unset),
        )
    };
    let events = EVENT_VM_UNMAPPED | EVENT_MREMAP | EVENT_MADVISE;
    // SAFETY: the handler stays for ever; it needs no argument.
    let status = unsafe {
        set(
            events | EVENT_FLAG_NO_INSTALL,
            PRIORITY,
            handle,
            ptr::null_mut(),
        )
    };
    if status != 0 {
        return Err(unsupported(
            "UCX refuses to hand out memory events (UCX_MEM_EVENTS=n?)",
        ));
    }
    let classes = test();
    if !classes.covers_foreign_memory() {
        // SAFETY: the handler that was added.
        unsafe { unset(events, handle, ptr::null_mut()) };
        return Err(unsupported(
            "UCX is in this process but does not watch memory",
        ));
    }
    Ok(Imported { classes })
}

fn find(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of dlopen's and a string that ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Makes the changes on a page of its own, by libc's own entries, so that libc's inner calls are known to be seen. The break is not moved for a
/// test: UCX watches all of it or nothing.
fn test() -> EventClasses {
    // SAFETY: loads nothing.
    let libc = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if libc.is_null() {
        return EventClasses::empty();
    }
    let names = [c"mmap", c"munmap", c"mremap", c"madvise"];
    let [Some(mmap), Some(munmap), Some(mremap), Some(madvise)] =
        names.map(|name| find(libc, name))
    else {
        return EventClasses::empty();
    };
    let mut seen = EventClasses::empty();
    // SAFETY: libc's functions with their types, all on a mapping of our own.
    unsafe {
        let mmap: unsafe extern "C" fn(
            *mut c_void,
            usize,
            c_int,
            c_int,
            c_int,
            i64,
        ) -> *mut c_void = mem::transmute(mmap);
        let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int = mem::transmute(munmap);
        let mremap: unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void =
            mem::transmute(mremap);
        let madvise: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int =
            mem::transmute(madvise);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = LARGEST_PAGE as usize;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let block = mmap(ptr::null_mut(), 2 * page, rights, flags, -1, 0);
        if block == libc::MAP_FAILED {
            return seen;
        }
        PROBE.store(block as usize, SeqCst);
        let took = |class| EventClasses::from_bits_retain(PROBED.swap(0, SeqCst)).contains(class);
        PROBED.store(0, SeqCst);
        mmap(block, page, rights, flags | libc::MAP_FIXED, -1, 0);
        seen.set(EventClasses::OVERMAP, took(EventClasses::UNMAP));
        madvise(block, page, libc::MADV_DONTNEED);
        let both = EventClasses::UNMAP | EventClasses::DISCARD;
        seen.set(EventClasses::DISCARD, took(both));
        mremap(block, 2 * page, page, 0);
        seen.set(
            EventClasses::REMAP,
            took(EventClasses::UNMAP | EventClasses::REMAP),
        );
        munmap(block, page);
        if took(EventClasses::UNMAP) {
            seen |= EventClasses::UNMAP
                | EventClasses::BREAK
                | EventClasses::SYSV
                | EventClasses::RUST_HEAP
                | EventClasses::NOTIFIED;
        }
        PROBE.store(0, SeqCst);
    }
    seen
}

// SAFETY: UCX tells before the change, as the self-test saw, or the program does, as it promised.
unsafe impl MemoryMonitor for Imported {
    fn name(&self) -> &'static str {
        "imported"
    }

    fn timing(&self) -> Timing {
        Timing::Before
    }

    fn classes(&self) -> EventClasses {
        self.classes
    }

    fn watch(&self, _: AddressRange) -> Result<()> {
        Ok(())
    }

    fn unwatch(&self, _: AddressRange) {}

    fn validate(&self) -> Validity {
        Validity::Valid
    }
}
