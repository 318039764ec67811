//! Memory of a card, host memory that its engines reach, and dma-bufs.
//!
//! Device addresses are numbers: the host can never read them. On Gaudi 2 an allocation is a multiple of hundreds of MiB, so what is
//! allocated here is to be divided by whoever wants less. The first Gaudi's memory has no page table: there this process has all of it, and
//! `physical` hands the ranges out.
//!
//! # Safety
//! Numbers alone go to the kernel, which checks them. What is unmapped is what was mapped, once. That no copy is under way to or from a
//! mapping that is dropped is the promise of who submitted the copy (`submit`).
#![allow(unsafe_code)]

use std::{
    fmt,
    os::fd::{FromRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use super::{Card, Chip, physical::PHYSICAL_PAGE, status::Errno, sys};
use crate::error::{Error, ErrorKind, Result};

/// Device memory that this process has allocated and mapped. Dropping it gives it back, which may block.
pub(crate) struct Allocation {
    card: Arc<Card>,
    address: u64,
    len: u64,
    /// The driver's handle; none on the first Gaudi.
    handle: Option<u64>,
    /// Mapped and allocated still.
    live: bool,
}

/// Host memory that a card's engines reach. Dropping it ends that, which may block.
///
/// Its pages stay where they are in the machine's memory until then, even when the program unmaps them: memory that comes to the same
/// address later is other memory, which the card does not see.
pub(crate) struct HostMapping {
    card: Arc<Card>,
    host: u64,
    device: u64,
    len: u64,
    /// Left to the card's closing.
    kept: bool,
}

impl Card {
    /// What an allocation's length is rounded up to.
    pub(crate) fn granularity(&self) -> u64 {
        match (self.chip(), self.hw().dram_page) {
            (Chip::Gaudi, 0) => PHYSICAL_PAGE,
            (_, page) => page.max(4096),
        }
    }

    /// Allocates device memory of at least `len` bytes and maps it.
    /// Errors: `InvalidArgument`: no bytes; `Exhausted`: the card has no such memory left; `DeviceLost`, `Closed`, `Forked`.
    pub(crate) fn allocate(self: &Arc<Self>, len: u64) -> Result<Allocation> {
        if len == 0 {
            let text = format!("{self}: an allocation of no bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let full = || {
            let text = format!("{self}: {len} bytes of device memory are not free");
            Error::new(ErrorKind::Exhausted, text)
        };
        let rounded = len
            .checked_next_multiple_of(self.granularity())
            .ok_or_else(full)?;
        if self.chip() == Chip::Gaudi {
            self.with_live_fd(|_| ())?;
            let (address, len) = self.physical.take(len).ok_or_else(full)?;
            return Ok(Allocation {
                card: Arc::clone(self),
                address,
                len,
                handle: None,
                live: true,
            });
        }
        let api = &self.library().api;
        let (handle, errno) = self.with_live_fd(|fd| {
            nix::errno::Errno::clear();
            // SAFETY: numbers alone. The page is the driver's choice.
            let handle = unsafe { (api.hlthunk_device_memory_alloc)(fd, len, 0, false, false) };
            (handle, Errno::left())
        })?;
        if handle == 0 {
            return Err(self.failed(errno, "hlthunk_device_memory_alloc"));
        }
        let mapped = self.with_live_fd(|fd| {
            nix::errno::Errno::clear();
            // SAFETY: numbers alone.
            let address = unsafe { (api.hlthunk_device_memory_map)(fd, handle, 0) };
            (address, Errno::left())
        });
        let error = match mapped {
            Ok((0, errno)) => self.failed(errno, "hlthunk_device_memory_map"),
            Err(error) => error,
            Ok((address, _)) => {
                return Ok(Allocation {
                    card: Arc::clone(self),
                    address,
                    len: rounded,
                    handle: Some(handle),
                    live: true,
                });
            }
        };
        // SAFETY: allocated above and mapped nowhere.
        let freed = self.with_fd(|fd| unsafe { (api.hlthunk_device_memory_free)(fd, handle) });
        if freed.is_ok_and(|result| result < 0) {
            tracing::warn!(target: "wharf::gaudi", "{self}: an allocation was not given back");
        }
        Err(error)
    }

    /// Has the card's engines reach `len` bytes of host memory at `host`. Pins the pages, which takes 0.1 µs a page and more. The same memory may be
    /// mapped again, under another address.
    /// Errors: `InvalidArgument`: no bytes, or memory that is not there or may not be written; `Exhausted`; `DeviceLost`, `Closed`, `Forked`.
    pub(crate) fn map_host(self: &Arc<Self>, host: u64, len: u64) -> Result<HostMapping> {
        let start = usize::try_from(host)
            .ok()
            .filter(|_| len > 0 && host != 0 && host.checked_add(len).is_some());
        let start = start.ok_or_else(|| {
            let text = format!("{self}: {len} bytes of host memory at {host:#x} are no range");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let call = self.library().api.hlthunk_host_memory_map;
        let (device, errno) = self.with_live_fd(|fd| {
            nix::errno::Errno::clear();
            // SAFETY: an address that the kernel checks and the library does not follow.
            let device = unsafe { call(fd, ptr::without_provenance_mut(start), 0, len) };
            (device, Errno::left())
        })?;
        if device == 0 {
            return Err(self.failed(errno, "hlthunk_host_memory_map"));
        }
        Ok(HostMapping {
            card: Arc::clone(self),
            host,
            device,
            len,
            kept: false,
        })
    }

    /// A dma-buf of device memory, for network cards and other devices; the host cannot read it. `base` is the address that mapping gave (on the first Gaudi
    /// any address), `offset` where in it the dma-buf begins. Each holds the card open until its last copy is closed, in any process.
    /// Errors: `InvalidArgument`: not whole pages, not the address of a mapping, beyond its end, or out of the PCI window; `Unsupported`: the library cannot;
    /// `Exhausted`, `DeviceLost`, `Closed`, `Forked`.
    pub(crate) fn export(&self, base: u64, offset: u64, len: u64) -> Result<OwnedFd> {
        let api = &self.library().api;
        let (result, call) = if self.chip() == Chip::Gaudi {
            let call = "hlthunk_device_memory_export_dmabuf_fd";
            let export = api.hlthunk_device_memory_export_dmabuf_fd;
            let export = self.library().optional(export, call)?;
            let start = base.checked_add(offset).ok_or_else(|| {
                let text = format!("{self}: {offset} bytes behind {base:#x} is no address");
                Error::new(ErrorKind::InvalidArgument, text)
            })?;
            // SAFETY: numbers alone.
            let result =
                self.with_live_fd(|fd| unsafe { export(fd, start, len, sys::DMABUF_FLAGS) })?;
            (result, call)
        } else {
            let call = "hlthunk_device_mapped_memory_export_dmabuf_fd";
            let export = api.hlthunk_device_mapped_memory_export_dmabuf_fd;
            let export = self.library().optional(export, call)?;
            let result = self.with_live_fd(|fd| {
                // SAFETY: numbers alone.
                unsafe { export(fd, base, len, offset, sys::DMABUF_FLAGS) }
            })?;
            (result, call)
        };
        let fd = self.checked(result, call)?;
        // SAFETY: the call made the descriptor for this caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Allocation {
    /// Its first address, as the card's engines take it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
    /// Its bytes, rounded up as the driver does.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// A dma-buf of a part of it, whole pages.
    /// Errors: as of [`Card::export`]; `OutOfBounds`.
    pub(crate) fn export(&self, offset: u64, len: u64) -> Result<OwnedFd> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = format!("{len} bytes at {offset} of an allocation of {}", self.len);
            return Err(Error::new(ErrorKind::OutOfBounds, text));
        }
        self.card.export(self.address, offset, len)
    }

    /// Gives it back, as the drop does, and says when that does not go. It may be tried again. What is not given back goes with the card.
    /// Errors: `InvalidArgument`: a dma-buf of it is open still; `DeviceLost`.
    pub(crate) fn free(&mut self) -> Result<()> {
        if !self.live || self.card.is_closed() {
            return Ok(());
        }
        let card = &self.card;
        let Some(handle) = self.handle else {
            card.physical.give_back(self.address);
            self.live = false;
            return Ok(());
        };
        let api = &card.library().api;
        // SAFETY: mapped once; unmapped once, unless that fails.
        let result = card.with_fd(|fd| unsafe { (api.hlthunk_memory_unmap)(fd, self.address) })?;
        card.checked(result, "hlthunk_memory_unmap")?;
        self.live = false;
        // SAFETY: allocated once, and mapped no more.
        let result = card.with_fd(|fd| unsafe { (api.hlthunk_device_memory_free)(fd, handle) })?;
        card.checked(result, "hlthunk_device_memory_free")?;
        Ok(())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Err(error) = self.free() {
            told("device memory is kept until the card is closed", &error);
        }
    }
}

impl HostMapping {
    /// Its first address for the card's engines.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// The card's address of `len` bytes at the host's address `host`, if they lie in it.
    pub(crate) fn translate(&self, host: u64, len: u64) -> Option<u64> {
        let offset = host.checked_sub(self.host)?;
        let inside = offset <= self.len && self.len - offset >= len;
        inside.then(|| self.device + offset)
    }

    /// Leaves the mapping to the card's closing: something may use it still.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        if self.kept || self.card.is_closed() {
            return;
        }
        let call = self.card.library().api.hlthunk_memory_unmap;
        // SAFETY: mapped once, unmapped once.
        let result = self.card.with_fd(|fd| unsafe { call(fd, self.device) });
        let done = result.and_then(|result| self.card.checked(result, "hlthunk_memory_unmap"));
        if let Err(error) = done {
            told("host memory stays mapped until the card is closed", &error);
        }
    }
}

/// What a drop has to tell. That a card is gone is told once, elsewhere.
pub(super) fn told(what: &str, error: &Error) {
    let expected = [ErrorKind::Forked, ErrorKind::Closed, ErrorKind::DeviceLost];
    if !expected.contains(&error.kind()) {
        tracing::warn!(target: "wharf::gaudi", "{what}: {error}");
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x} of {}",
            self.len, self.address, self.card
        )
    }
}

impl fmt::Debug for HostMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:#x}, {:#x} for {}",
            self.len, self.host, self.device, self.card
        )
    }
}
