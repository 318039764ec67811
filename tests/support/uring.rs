//! io_uring's fixed buffers as a device: registering pins pages exactly as the driver of an RDMA card does, so whoever reads through a
//! registration that is no longer right gets visibly wrong bytes, with no hardware at all.
//!
//! # Safety
//! The kernel alone touches the memory that is handed to it, by pages that it pinned and checked: whatever address a request names, it reads
//! and writes pages of the registration. What it writes to is memory that the caller hands over as a raw address range for that.
#![allow(unsafe_code)]

use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::FileExt,
    },
    sync::Arc,
};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use wharf::{
    Access, Error, ErrorKind, Result,
    memory::{AddressRange, Registrar, RegistrarAttributes},
};

/// What one registration may have: the kernel's own limit.
const LONGEST: u64 = 1 << 30;

/// Registers memory with one ring of the kernel's.
#[derive(Clone)]
pub(crate) struct UringRegistrar {
    device: Arc<Mutex<Device>>,
}

/// A place in the ring's table of buffers.
#[derive(Debug)]
pub(crate) struct Slot {
    index: u16,
}

struct Device {
    ring: IoUring,
    /// Where bytes that the device read come out, and what it writes goes in.
    file: File,
    free: Vec<u16>,
}

impl UringRegistrar {
    /// A ring with room for `slots` registrations, at most 16384.
    pub(crate) fn new(slots: u16) -> Self {
        let ring = IoUring::new(4).expect("io_uring");
        let made = ring.submitter().register_buffers_sparse(slots.into());
        made.expect("fixed buffers of io_uring");
        // SAFETY: the name is a string with its end.
        let fd = unsafe { libc::memfd_create(c"uring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: made above, and owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        Self {
            device: Arc::new(Mutex::new(Device {
                ring,
                file,
                free: (0..slots).rev().collect(),
            })),
        }
    }

    /// Registrations that are held now, of `slots`.
    pub(crate) fn held(&self, slots: u16) -> usize {
        usize::from(slots) - self.device.lock().free.len()
    }

    /// The device reads `length` bytes at `address` through the registration: what it saw.
    pub(crate) fn read(&self, slot: &Slot, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut device = self.device.lock();
        let entry = opcode::WriteFixed::new(
            types::Fd(device.file.as_raw_fd()),
            address as *const u8,
            u32::try_from(length).map_err(io::Error::other)?,
            slot.index,
        )
        .build();
        // SAFETY: the kernel reads pages of the registration, which stay pinned while it is held, and the file lives as long as the ring.
        unsafe { device.transfer(&entry, length) }?;
        let mut seen = vec![0; length];
        device.file.read_exact_at(&mut seen, 0)?;
        Ok(seen)
    }

    /// The device writes `bytes` to `address` through the registration.
    ///
    /// # Safety
    /// The memory there is the caller's, and nobody has a reference to it. (If the registration is stale, other pages are written, which
    /// nobody has any more.)
    pub(crate) unsafe fn write(&self, slot: &Slot, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut device = self.device.lock();
        device.file.write_all_at(bytes, 0)?;
        let entry = opcode::ReadFixed::new(
            types::Fd(device.file.as_raw_fd()),
            address as *mut u8,
            u32::try_from(bytes.len()).map_err(io::Error::other)?,
            slot.index,
        )
        .build();
        // SAFETY: as the caller promises; the file lives as long as the ring.
        unsafe { device.transfer(&entry, bytes.len()) }
    }
}

impl Device {
    /// # Safety
    /// What the entry names stays until it is done, which is when this returns.
    unsafe fn transfer(
        &mut self,
        entry: &io_uring::squeue::Entry,
        length: usize,
    ) -> io::Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.ring.submission().push(entry) }.map_err(io::Error::other)?;
        let done = loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if let Some(entry) = self.ring.completion().next() {
                break entry.result();
            }
        };
        match usize::try_from(done) {
            Ok(done) if done == length => Ok(()),
            Ok(done) => Err(io::Error::other(format!("{done} of {length} bytes"))),
            Err(_) => Err(io::Error::from_raw_os_error(-done)),
        }
    }

    fn update(&self, index: u16, base: u64, length: u64) -> io::Result<()> {
        let buffer = libc::iovec {
            iov_base: base as *mut libc::c_void,
            iov_len: usize::try_from(length).map_err(io::Error::other)?,
        };
        // SAFETY: the kernel checks the range and pins its pages itself; no address in it is read here.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(index.into(), &[buffer], None)
        }
    }
}

impl Registrar for UringRegistrar {
    type Handle = Slot;

    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default().max_length(LONGEST)
    }

    /// Needs memory that may be written: the kernel pins it for writing.
    fn register(&self, range: AddressRange, _: Access) -> Result<Slot> {
        let mut device = self.device.lock();
        let Some(index) = device.free.pop() else {
            return Err(Error::new(
                ErrorKind::Exhausted,
                "all of the ring's buffers are in use",
            ));
        };
        match device.update(index, range.start(), range.len()) {
            Ok(()) => Ok(Slot { index }),
            Err(error) => {
                device.free.push(index);
                let kind = match error.raw_os_error() {
                    Some(libc::ENOMEM) => ErrorKind::Exhausted,
                    Some(libc::EFAULT) => ErrorKind::InvalidArgument,
                    Some(libc::EOPNOTSUPP) => ErrorKind::Unsupported,
                    _ => ErrorKind::Io,
                };
                Err(Error::new(kind, format!("io_uring does not pin {range}")).with_source(error))
            }
        }
    }

    fn deregister(&self, slot: Slot, _: AddressRange) -> Result<()> {
        let mut device = self.device.lock();
        let result = device.update(slot.index, 0, 0);
        device.free.push(slot.index);
        result.map_err(|error| Error::io("io_uring keeps a buffer", error))
    }
}
