#![allow(unsafe_code)]
//! Sessions, pinned pages and their mappings.
//!
//! The lock here is taken inside the CUDA emulator's, when that tells of memory that goes: so nothing of it is called with this one held.
//!
//! # Safety
//! See `lib.rs`.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    os::fd::AsRawFd,
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use crate::cuda::{Driver, Pinned, misuse};

/// The device's pages.
pub(crate) const PAGE: u64 = 64 << 10;
const BAR1: u64 = 256 << 20;

pub(crate) type Outcome<T = ()> = Result<T, c_int>;

#[derive(Debug)]
struct Session {
    process: u32,
    /// Bytes that may be pinned in all.
    room: u64,
}

#[derive(Debug)]
struct Pin {
    session: usize,
    address: u64,
    len: u64,
    /// `None` while it is being made.
    pinned: Option<Pinned>,
    mapped: Option<u64>,
    revoked: bool,
}

/// A copy that was found good.
#[derive(Debug)]
pub(crate) struct Access {
    driver: Driver,
    /// The device's address of the first byte.
    address: u64,
}

#[derive(Debug, Default)]
struct Table {
    sessions: BTreeMap<usize, Session>,
    pins: BTreeMap<u64, Pin>,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    sessions: BTreeMap::new(),
    pins: BTreeMap::new(),
});
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Table {
    fn session(&self, session: usize) -> Outcome<&Session> {
        let session = self.sessions.get(&session).ok_or(libc::EINVAL)?;
        if session.process != std::process::id() {
            return Err(libc::EACCES);
        }
        Ok(session)
    }

    fn pin(&mut self, session: usize, handle: u64) -> Outcome<&mut Pin> {
        self.session(session)?;
        let pin = self
            .pins
            .get_mut(&handle)
            .filter(|pin| pin.session == session);
        pin.filter(|pin| pin.pinned.is_some()).ok_or(libc::EINVAL)
    }
}

/// `None`: the kernel's part is not there.
pub(crate) fn open() -> Option<usize> {
    if std::env::var("EMULATED_GDR_OPEN").as_deref() == Ok("0") {
        return None;
    }
    let room = std::env::var("EMULATED_GDR_BAR1").ok();
    let room = room.and_then(|room| room.parse().ok()).unwrap_or(BAR1);
    // No address, and never the same.
    let session = 0x6D00 + NUMBERS.fetch_add(1, Relaxed) as usize;
    let process = std::process::id();
    TABLE
        .lock()
        .sessions
        .insert(session, Session { process, room });
    Some(session)
}

pub(crate) fn close(session: usize) -> Outcome {
    let left: Vec<Pin> = {
        let mut table = TABLE.lock();
        table.session(session)?;
        table.sessions.remove(&session);
        table
            .pins
            .extract_if(.., |_, pin| pin.session == session)
            .map(|(_, pin)| pin)
            .collect()
    };
    for pin in left {
        misuse(&format!(
            "gdr_close left {} bytes at {:#x} pinned",
            pin.len, pin.address
        ));
        if let Some(at) = pin.mapped {
            unmap_pages(at, pin.len);
        }
        if let Some(pinned) = pin.pinned {
            pinned.unpin();
        }
    }
    Ok(())
}

pub(crate) fn pin(session: usize, address: u64, len: usize) -> Outcome<u64> {
    let len = len as u64;
    let handle = NUMBERS.fetch_add(1, Relaxed);
    {
        let mut table = TABLE.lock();
        let room = table.session(session)?.room;
        if len == 0
            || !address.is_multiple_of(PAGE)
            || !len.is_multiple_of(PAGE)
            || address.checked_add(len).is_none()
        {
            return Err(libc::EINVAL);
        }
        let used: u64 = table
            .pins
            .values()
            .filter(|pin| !pin.revoked)
            .map(|pin| pin.len)
            .sum();
        if used.saturating_add(len) > room {
            return Err(libc::ENOMEM);
        }
        // There before the driver knows of it, as that may tell at once that it goes.
        table.pins.insert(
            handle,
            Pin {
                session,
                address,
                len,
                pinned: None,
                mapped: None,
                revoked: false,
            },
        );
    }
    let mut result = Err(libc::EINVAL);
    for driver in Driver::all() {
        result = driver.pin(handle, address, len, revoked);
        if result.is_ok() {
            break;
        }
    }
    let mut table = TABLE.lock();
    match result {
        Ok(pinned) => {
            if let Some(pin) = table.pins.get_mut(&handle) {
                pin.pinned = Some(pinned);
            }
            Ok(handle)
        }
        Err(code) => {
            table.pins.remove(&handle);
            Err(code)
        }
    }
}

pub(crate) fn unpin(session: usize, handle: u64) -> Outcome {
    let pin = {
        let mut table = TABLE.lock();
        if table.pin(session, handle)?.mapped.is_some() {
            return Err(libc::EBUSY);
        }
        table.pins.remove(&handle)
    };
    if let Some(pinned) = pin.and_then(|pin| pin.pinned) {
        pinned.unpin();
    }
    Ok(())
}

pub(crate) fn map(session: usize, handle: u64, len: usize) -> Outcome<u64> {
    let mut table = TABLE.lock();
    let pin = table.pin(session, handle)?;
    if pin.revoked || len as u64 != pin.len {
        return Err(libc::EINVAL);
    }
    if pin.mapped.is_some() {
        return Err(libc::EAGAIN);
    }
    let pinned = pin.pinned.as_ref().ok_or(libc::EINVAL)?;
    // SAFETY: no fixed address: nothing that exists is touched.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            pinned.file.as_raw_fd(),
            i64::try_from(pinned.offset).map_err(|_| libc::EINVAL)?,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(libc::ENOMEM);
    }
    let at = at.expose_provenance() as u64;
    pin.mapped = Some(at);
    Ok(at)
}

pub(crate) fn unmap(session: usize, handle: u64, at: u64, len: usize) -> Outcome {
    let mut table = TABLE.lock();
    let pin = table.pin(session, handle)?;
    if pin.mapped != Some(at) || pin.len != len as u64 {
        return Err(libc::EINVAL);
    }
    pin.mapped = None;
    unmap_pages(at, pin.len);
    Ok(())
}

pub(crate) fn is_revoked(session: usize, handle: u64) -> Outcome<bool> {
    Ok(TABLE.lock().pin(session, handle)?.revoked)
}

/// Where pinned pages begin, their length, and whether they are mapped.
pub(crate) fn info(session: usize, handle: u64) -> Outcome<(u64, u64, bool)> {
    let mut table = TABLE.lock();
    let pin = table.pin(session, handle)?;
    Ok((pin.address, pin.len, pin.mapped.is_some()))
}

/// A copy of `len` bytes at `at` in the mapping of a handle.
pub(crate) fn access(handle: u64, at: u64, len: usize) -> Outcome<Access> {
    let table = TABLE.lock();
    let pin = table.pins.get(&handle).ok_or(libc::EINVAL)?;
    table.session(pin.session)?;
    let (Some(mapped), Some(pinned)) = (pin.mapped, &pin.pinned) else {
        return Err(libc::EINVAL);
    };
    let skipped = at.checked_sub(mapped).ok_or(libc::EINVAL)?;
    if skipped
        .checked_add(len as u64)
        .is_none_or(|end| end > pin.len)
    {
        return Err(libc::EINVAL);
    }
    Ok(Access {
        driver: pinned.driver,
        address: pin.address + skipped,
    })
}

impl Access {
    /// Notes a copy of memory that is freed. Without the table's lock.
    pub(crate) fn check(&self, name: &str, len: usize) {
        if len > 0 && !self.driver.is_live(self.address, len as u64) {
            misuse(&format!(
                "{name} of {len} bytes at {:#x}, which are freed",
                self.address
            ));
        }
    }
}

/// The driver's word that pages go: from now on an access ends the process.
extern "C" fn revoked(handle: u64) {
    let mut table = TABLE.lock();
    let Some(pin) = table.pins.get_mut(&handle) else {
        return;
    };
    pin.revoked = true;
    if let Some(at) = pin.mapped {
        // SAFETY: in the place of a mapping of ours.
        unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(at as usize),
                pin.len as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
    }
}

fn unmap_pages(at: u64, len: u64) {
    // SAFETY: a mapping of ours, which is forgotten.
    unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at as usize), len as usize) };
}
