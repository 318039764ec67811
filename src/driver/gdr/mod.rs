//! GDRCopy: a window into device memory through which the host itself loads and stores, for transfers so small that a copy engine's start
//! costs more than they do.
//!
//! Comes in: the address of device memory. Goes out: [`Window`], with copies in and out. It is no way for network cards: they use
//! dma-bufs. Uses `library`. Tests: `tests/driver/`.
//!
//! Writes are combined and fast (about 0.1 µs up to 64 bytes, 10 GB/s); reads are not cached and slow (about 1 µs, 0.5 GB/s), as GDRCopy's own
//! README measured on a V100. The window is the device's BAR1, which may be small. `direct` makes windows without GDRCopy, where driver and device can.
//!
//! # Safety
//! A window keeps its pages pinned and mapped from its making to its drop, in the order that the header demands: unmap, unpin, close. When
//! the memory is freed under it, the driver takes the pages away: an access is then a fault of the process (SIGBUS), so whoever copies
//! vouches that the allocation lives. Nothing of the library is used in a child made by `fork`: the kernel ties the pages to the parent.
#![allow(unsafe_code)]

mod direct;
mod sys;

use std::{ffi::c_void, fmt, io, path::Path, ptr, sync::Arc};

pub(crate) use direct::DirectWindow;

use super::{
    cuda::DevicePtr,
    library::{Library, Search, names},
    loaded::Loaded,
};
use crate::error::{Error, ErrorKind, Result};

/// The variable that names the library.
pub(crate) const VARIABLE: &str = "WHARF_LIBGDRAPI";

const NAMES: &[&str] = &["libgdrapi.so.2"];

/// Pages of a device: a window covers whole ones.
pub(crate) const PAGE: u64 = 64 << 10;

/// GDRCopy's library in this process.
pub(crate) struct Gdr {
    api: sys::Symbols,
    library: Library,
    version: (i32, i32),
}

/// Every library that was loaded.
static LOADED: Loaded<Gdr> = Loaded::new();

impl Gdr {
    /// The library at `path`, else the one that `WHARF_LIBGDRAPI` names, else `libgdrapi.so.2`.
    /// Errors: `Unsupported`: none, with the loader's words, or one without a required function.
    pub(crate) fn load(path: Option<&Path>) -> Result<&'static Self> {
        let search = Search {
            what: "GDRCopy",
            given: path,
            variable: VARIABLE,
            names: NAMES,
        };
        LOADED.load(&search, || Ok(()), "gdr_open", Self::with_library)
    }

    fn with_library(library: Library) -> Result<Self> {
        let find = |name: &'static str, _| library.find(name);
        // SAFETY: exact names of a library with that soname.
        let api = unsafe { sys::Symbols::resolve(&find) };
        let api = api.map_err(|missing| {
            let text = format!("{} has no {}", library.name(), names(&missing));
            Error::new(ErrorKind::Unsupported, text)
        })?;
        if api.gdr_get_info_v2.is_none() && api.gdr_get_info.is_none() {
            let text = format!(
                "{} has neither gdr_get_info_v2 nor gdr_get_info",
                library.name()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let mut version = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { (api.gdr_runtime_get_version)(&raw mut version.0, &raw mut version.1) };
        Ok(Self {
            api,
            library,
            version,
        })
    }

    /// The name by which the library was found.
    pub(crate) fn library(&self) -> &str {
        self.library.name()
    }

    /// What says where pages were mapped, and its name: until 2.3 the older call, whose struct is a shorter one of the same beginning.
    fn info(&self) -> (sys::GetInfo, &'static str) {
        match (self.api.gdr_get_info_v2, self.api.gdr_get_info) {
            (Some(call), _) => (call, "gdr_get_info_v2"),
            (None, Some(call)) => (call, "gdr_get_info"),
            (None, None) => unreachable!("one of them was there when it was loaded"),
        }
    }

    /// The library's version.
    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Opens the kernel's driver.
    /// Errors: `Unsupported`: its module is not loaded, or its device file may not be opened.
    pub(crate) fn open(&'static self) -> Result<GdrSession> {
        // SAFETY: takes nothing.
        let raw = unsafe { (self.api.gdr_open)() };
        if raw == 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: the kernel's part of GDRCopy (gdrdrv) does not answer",
                    self.library()
                ),
            ));
        }
        Ok(GdrSession(Arc::new(Session {
            gdr: self,
            raw,
            process: std::process::id(),
        })))
    }
}

impl fmt::Debug for Gdr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gdr")
            .field("library", &self.library.name())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The kernel's driver, open. A cheap clone; closed with the last one and the last window.
#[derive(Clone, Debug)]
pub(crate) struct GdrSession(Arc<Session>);

struct Session {
    gdr: &'static Gdr,
    raw: sys::RawGdr,
    process: u32,
}

impl Session {
    fn check(&self, code: i32, call: &str) -> Result<()> {
        match code {
            0 => Ok(()),
            // Positive numbers are the system's.
            code => Err(Error::io(
                format!("{}: {call}", self.gdr.library()),
                io::Error::from_raw_os_error(code.abs()),
            )),
        }
    }

    fn forked(&self) -> bool {
        self.process != std::process::id()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.gdr, f)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.forked() {
            return;
        }
        // SAFETY: opened once, closed once, after the last window.
        let code = unsafe { (self.gdr.api.gdr_close)(self.raw) };
        if let Err(error) = self.check(code, "gdr_close") {
            tracing::warn!(target: "wharf::cuda", "{error:?}");
        }
    }
}

impl GdrSession {
    /// Maps the device pages that `len` bytes at `start` lie in. About 10 µs and more.
    /// Errors: `InvalidArgument`, `Io`: not device memory of a kind that can be mapped; `Exhausted`: BAR1 is full; `Forked`.
    ///
    /// # Safety
    /// The window is not read or written once the memory is freed. Memory that is freed before makes a window onto nothing, or onto what took its
    /// place.
    pub(crate) unsafe fn map(&self, start: DevicePtr, len: usize) -> Result<Window> {
        let session = &self.0;
        if session.forked() {
            return Err(Error::new(
                ErrorKind::Forked,
                "GDRCopy was opened before this process was forked; it cannot be used in the child",
            ));
        }
        let invalid = || {
            let text = format!("{len} bytes at {start} are no range");
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let base = start.0 / PAGE * PAGE;
        let end = start
            .0
            .checked_add(len as u64)
            .and_then(|end| end.checked_next_multiple_of(PAGE))
            .filter(|_| len > 0)
            .ok_or_else(invalid)?;
        let whole = usize::try_from(end - base).map_err(|_| invalid())?;
        let api = &session.gdr.api;
        let mut handle = sys::RawHandle::default();
        // SAFETY: writes one handle; the addresses are the driver's to judge.
        let code = unsafe { (api.gdr_pin_buffer)(session.raw, base, whole, 0, 0, &raw mut handle) };
        session.check(code, "gdr_pin_buffer")?;
        // From here on a drop undoes what was done.
        let mut window = Window {
            session: Arc::clone(session),
            handle,
            mapped: ptr::null_mut(),
            whole,
            start,
            len,
            offset: 0,
        };
        let mut mapped: *mut c_void = ptr::null_mut();
        // SAFETY: a handle of this session; writes one address.
        let code = unsafe { (api.gdr_map)(session.raw, handle, &raw mut mapped, whole) };
        session.check(code, "gdr_map")?;
        window.mapped = mapped.cast();
        let mut info = sys::Info::default();
        let (call, name) = session.gdr.info();
        // SAFETY: a handle of this session; writes 48 bytes at most.
        let code = unsafe { call(session.raw, handle, &raw mut info) };
        session.check(code, name)?;
        // The kernel may have begun earlier than it was asked to.
        window.offset = usize::try_from(start.0.wrapping_sub(info.address))
            .ok()
            .filter(|offset| {
                offset
                    .checked_add(len)
                    .is_some_and(|end| end as u64 <= info.mapped_len)
            })
            .ok_or_else(|| {
                let text = format!("GDRCopy mapped {:#x} for {start}", info.address);
                Error::new(ErrorKind::Io, text)
            })?;
        Ok(window)
    }
}

/// Device memory that the host reads and writes itself.
pub(crate) struct Window {
    session: Arc<Session>,
    handle: sys::RawHandle,
    mapped: *mut u8,
    whole: usize,
    start: DevicePtr,
    len: usize,
    /// Where in the mapping `start` lies.
    offset: usize,
}

// SAFETY: the library's copies take a handle and addresses and keep no state of a thread; the mapping belongs to the process.
unsafe impl Send for Window {}
// SAFETY: as for Send; that two copies do not meet is the caller's to see to, as of any memory.
unsafe impl Sync for Window {}

impl Window {
    /// The device's address of its first byte.
    pub(crate) fn start(&self) -> DevicePtr {
        self.start
    }
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Stores host bytes into device memory. They are on their way when this returns, in order with later copies through this window.
    /// Errors: `OutOfBounds`; what the library reports.
    ///
    /// # Safety
    /// The device memory is still allocated, and nobody else uses the range.
    pub(crate) unsafe fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        let target = self.at(offset, source.len())?;
        let session = &self.session;
        // SAFETY: within the mapping; the caller vouches for the rest.
        let code = unsafe {
            (session.gdr.api.gdr_copy_to_mapping)(
                self.handle,
                target.cast(),
                source.as_ptr().cast(),
                source.len(),
            )
        };
        session.check(code, "gdr_copy_to_mapping")
    }

    /// Loads device memory into host memory.
    /// Errors: as of [`Window::write`].
    ///
    /// # Safety
    /// As of [`Window::write`], and `target` is `len` bytes that may be written.
    pub(crate) unsafe fn read(&self, offset: usize, target: *mut u8, len: usize) -> Result<()> {
        let source = self.at(offset, len)?;
        let session = &self.session;
        // SAFETY: within the mapping; the caller vouches for the rest.
        let code = unsafe {
            (session.gdr.api.gdr_copy_from_mapping)(
                self.handle,
                target.cast(),
                source.cast_const().cast(),
                len,
            )
        };
        session.check(code, "gdr_copy_from_mapping")
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("{len} bytes at {offset} of a window of {}", self.len),
            ));
        }
        Ok(self.mapped.wrapping_add(self.offset + offset))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let session = &self.session;
        if session.forked() {
            return;
        }
        let api = &session.gdr.api;
        if !self.mapped.is_null() {
            // SAFETY: mapped once, unmapped once.
            let code = unsafe {
                (api.gdr_unmap)(session.raw, self.handle, self.mapped.cast(), self.whole)
            };
            if let Err(error) = session.check(code, "gdr_unmap") {
                tracing::warn!(target: "wharf::cuda", "{error:?}");
            }
        }
        // SAFETY: pinned once, unpinned once.
        let code = unsafe { (api.gdr_unpin_buffer)(session.raw, self.handle) };
        if let Err(error) = session.check(code, "gdr_unpin_buffer") {
            tracing::warn!(target: "wharf::cuda", "{error:?}");
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window of {} bytes onto {}", self.len, self.start)
    }
}
