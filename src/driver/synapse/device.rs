//! The process's device: what it is, its memory, and host memory mapped for it.
//!
//! # Safety
//! As in [`super`]. What was made from a device holds it, so a device that was acquired here is released last.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fmt,
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{
    Status, Synapse,
    driver::forked,
    sys::{self, DeviceId},
};
use crate::error::{Error, ErrorKind, Result};

/// The device. A cheap clone; one that was acquired here is released with the last of them and of what was made from it.
#[derive(Clone)]
pub(crate) struct Device(Arc<Inner>);

struct Inner {
    synapse: &'static Synapse,
    id: DeviceId,
    /// Acquired here, not by somebody else.
    owned: bool,
    process: u32,
}

/// `synDeviceType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeviceType {
    /// `synDeviceGaudi`.
    Gaudi,
    /// `synDeviceGaudi2`.
    Gaudi2,
    /// `synDeviceGaudi3`.
    Gaudi3,
    /// One that is not known here.
    Other(u32),
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// Synapse's own descriptor of the device, for the calls of hl-thunk and SCAL. Borrowed: never close it.
    pub(crate) fd: i32,
    /// Which generation.
    pub(crate) kind: DeviceType,
    /// Where its memory begins, as the hardware counts; what is allocated may lie elsewhere.
    pub(crate) dram_base: u64,
    /// Bytes of its memory.
    pub(crate) dram_size: u64,
    /// Where the pool begins in which Synapse allocates; `None` of older runtimes, then SCAL knows.
    pub(crate) global_hbm_base: Option<u64>,
    /// Its place in the system's order.
    pub(crate) index: u8,
}

/// How much memory a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryInfo {
    /// Free bytes.
    pub(crate) free: u64,
    /// All bytes that programs can have.
    pub(crate) total: u64,
}

impl DeviceInfo {
    /// Reads what the library wrote.
    ///
    /// # Errors
    /// `Io`: it cannot be.
    fn new(raw: &sys::RawInfo) -> Result<Self> {
        let wrong = |what: String| {
            Error::new(
                ErrorKind::Io,
                format!("synDeviceGetInfoV2 answered what cannot be: {what}"),
            )
        };
        // 0 to 2 are a program's own; Synapse would not have got them. 0 is also what a library leaves that writes a shorter struct.
        let fd = i32::try_from(raw.fd).ok().filter(|fd| *fd > 2);
        let fd = fd.ok_or_else(|| wrong(format!("file descriptor {}", raw.fd)))?;
        let end = |base: u64| base.checked_add(raw.dram_size);
        if raw.dram_size == 0 || end(raw.dram_base).is_none() || end(raw.global_hbm_base).is_none()
        {
            return Err(wrong(format!("{} bytes of memory", raw.dram_size)));
        }
        Ok(Self {
            fd,
            kind: match raw.device_type {
                2 => DeviceType::Gaudi,
                4 => DeviceType::Gaudi2,
                5 => DeviceType::Gaudi3,
                other => DeviceType::Other(other),
            },
            dram_base: raw.dram_base,
            dram_size: raw.dram_size,
            global_hbm_base: Some(raw.global_hbm_base).filter(|base| *base != 0),
            index: raw.device_index,
        })
    }
}

impl Synapse {
    /// The device that this process has acquired already, by whomever. Initialises and acquires nothing; `None` when there is none, or when Synapse is not
    /// initialised. It is never released here, and its file descriptor is not ours to close.
    /// Errors: what Synapse reports beyond that: `DeviceLost` after a reset, `Io`.
    pub(crate) fn attach(&'static self) -> Result<Option<Device>> {
        let mut room = sys::InfoRoom::ZERO;
        // SAFETY: writes a struct into room of 4,096 bytes.
        let status =
            unsafe { (self.api.synDeviceGetInfoV2)(sys::THE_DEVICE, (&raw mut room).cast()) };
        match status {
            Status::UNINITIALIZED | Status::FAIL | Status::NO_DEVICE_FOUND => Ok(None),
            status => {
                status.check("synDeviceGetInfoV2")?;
                // Checked now, so that nothing is built on an answer that cannot be.
                DeviceInfo::new(&room.info)?;
                // The number that every runtime gives to the one device.
                Ok(Some(Device::new(self, 0, false)))
            }
        }
    }

    /// Takes the device at a PCI address, as in `0000:33:00.0`, for this process and gives it back with the last of what was made from it. Initialises
    /// Synapse if nobody has. Takes the whole card from every other process: call it only for a program that asked for it.
    /// Errors: `Unsupported`: no such device, or another process has it; no device at all; `Exhausted`: this process has a device already
    /// ([`Synapse::attach`]); `InvalidArgument`; `Io`.
    pub(crate) fn acquire(&'static self, address: &str) -> Result<Device> {
        // An empty address means any device to Synapse.
        let text = CString::new(address).ok().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| {
            let text = format!("{address:?} is no PCI address");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        self.initialise()?;
        let mut id = 0;
        // SAFETY: writes one number; the string lives through the call.
        let status = unsafe { (self.api.synDeviceAcquire)(&raw mut id, text.as_ptr()) };
        if status != Status::SUCCESS {
            return Err(status.error(&format!("synDeviceAcquire of {address}")));
        }
        Ok(Device::new(self, id, true))
    }
}

impl Device {
    fn new(synapse: &'static Synapse, id: DeviceId, owned: bool) -> Self {
        Self(Arc::new(Inner {
            synapse,
            id,
            owned,
            process: std::process::id(),
        }))
    }

    pub(super) fn api(&self) -> &'static sys::Symbols {
        &self.0.synapse.api
    }

    pub(super) fn id(&self) -> DeviceId {
        self.0.id
    }

    /// That this is the process that attached or acquired it.
    /// Errors: `Forked`.
    pub(super) fn usable(&self) -> Result<()> {
        if self.0.process == std::process::id() {
            Ok(())
        } else {
            Err(forked())
        }
    }

    /// Whether an error of one of its calls means that whoever acquired it has released it. Most calls say no more of that than that they failed: then
    /// it is asked whether there is a device.
    pub(crate) fn was_released(&self, error: &Error) -> bool {
        match Status::of(error) {
            Some(Status::NO_DEVICE_FOUND | Status::UNINITIALIZED) => true,
            Some(Status::FAIL) => matches!(self.0.synapse.attach(), Ok(None)),
            _ => false,
        }
    }

    /// What it is.
    /// Errors: `DeviceLost`, `Forked`, `Io`.
    pub(crate) fn info(&self) -> Result<DeviceInfo> {
        self.usable()?;
        let mut room = sys::InfoRoom::ZERO;
        // SAFETY: writes a struct into room of 4,096 bytes.
        let status = unsafe { (self.api().synDeviceGetInfoV2)(self.id(), (&raw mut room).cast()) };
        status.check("synDeviceGetInfoV2")?;
        DeviceInfo::new(&room.info)
    }

    /// How much of its memory is free.
    /// Errors: `DeviceLost`, `Forked`, `Io`.
    pub(crate) fn memory(&self) -> Result<MemoryInfo> {
        self.usable()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let status = unsafe {
            (self.api().synDeviceGetMemoryInfo)(self.id(), &raw mut free, &raw mut total)
        };
        status.check("synDeviceGetMemoryInfo")?;
        Ok(MemoryInfo { free, total })
    }

    /// Allocates device memory. Its content is undefined.
    /// Errors: `InvalidArgument`: no bytes; `Exhausted`, `DeviceLost`, `Forked`.
    pub(crate) fn allocate(&self, len: u64) -> Result<DeviceAllocation> {
        self.usable()?;
        some(len)?;
        let mut address = 0;
        // SAFETY: writes one number; no address is asked for.
        let status =
            unsafe { (self.api().synDeviceMalloc)(self.id(), len, 0, 0, &raw mut address) };
        status.check("synDeviceMalloc")?;
        Ok(DeviceAllocation {
            device: self.clone(),
            address,
            len,
        })
    }

    /// Maps host memory for the device, which pins its pages. Ranges that overlap a mapped one are refused by some runtimes.
    /// Errors: `InvalidArgument`: no bytes, memory that is not there or may not be written; `Exhausted`, `DeviceLost`, `Forked`, `Io`.
    ///
    /// # Safety
    /// The memory stays mapped in the process, at this address, until the result is dropped: pages that are given back before stay pinned, and the device
    /// would go on using them when the address means other memory.
    pub(crate) unsafe fn map(&self, start: NonNull<u8>, len: u64) -> Result<HostMapping> {
        self.usable()?;
        some(len)?;
        // SAFETY: the caller vouches for the memory; what is not there the kernel refuses.
        let status =
            unsafe { (self.api().synHostMap)(self.id(), len, start.as_ptr().cast_const().cast()) };
        status.check("synHostMap")?;
        Ok(HostMapping {
            device: self.clone(),
            start,
            len,
        })
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0.synapse, other.0.synapse) && self.0.id == other.0.id
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("library", &self.0.synapse.library())
            .field("id", &self.0.id)
            .field("owned", &self.0.owned)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned || self.process != std::process::id() {
            return;
        }
        // SAFETY: acquired here, released once, after all that was made from it.
        let status = unsafe { (self.synapse.api.synDeviceRelease)(self.id) };
        warn(status, "synDeviceRelease");
    }
}

/// Device memory. Dropping it frees it: nothing may use it then.
#[derive(Debug)]
pub(crate) struct DeviceAllocation {
    device: Device,
    address: u64,
    len: u64,
}

impl DeviceAllocation {
    /// Its address, as the device counts.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        if self.device.usable().is_ok() {
            // SAFETY: allocated once, freed once.
            let status =
                unsafe { (self.device.api().synDeviceFree)(self.device.id(), self.address, 0) };
            warn(status, "synDeviceFree");
        }
    }
}

/// Host memory of the program's, mapped for the device. Dropping it unmaps it: no copy may be under way then.
pub(crate) struct HostMapping {
    device: Device,
    start: NonNull<u8>,
    len: u64,
}

// SAFETY: an address and a length; the mapping belongs to the process.
unsafe impl Send for HostMapping {}
// SAFETY: as for Send.
unsafe impl Sync for HostMapping {}

impl fmt::Debug for HostMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {:p} mapped for a Gaudi",
            self.len, self.start
        )
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        if self.device.usable().is_ok() {
            let start = self.start.as_ptr().cast_const().cast();
            // SAFETY: mapped once, unmapped once.
            let status = unsafe { (self.device.api().synHostUnmap)(self.device.id(), start) };
            warn(status, "synHostUnmap");
        }
    }
}

/// That there are bytes at all: to some runtimes none are an error, to others not.
fn some(len: u64) -> Result<()> {
    if len == 0 {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "no bytes cannot be allocated or mapped",
        ));
    }
    Ok(())
}

/// For drops, which cannot fail: after a reset all of these calls do.
pub(super) fn warn(status: Status, call: &str) {
    if let Err(error) = status.check(call) {
        tracing::warn!(target: "wharf::gaudi", "{error:?}");
    }
}
