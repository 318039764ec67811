//! What a device is and can do.
//!
//! # Safety
//! As in [`super`]: the calls write into live local variables of the size that the header says.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char},
    fmt,
};

use super::{Attribute, Cuda, Status, Uuid, sys::RawDevice};
use crate::error::Result;

/// A device of the driver. A cheap copy.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(super) cuda: &'static Cuda,
    pub(super) raw: RawDevice,
    ordinal: u16,
}

impl Cuda {
    /// The devices that the driver shows, in its order. Initialises it.
    /// Errors: as of [`Cuda::initialise`].
    pub(crate) fn devices(&'static self) -> Result<Vec<Device>> {
        self.initialise()?;
        let mut count = 0;
        // SAFETY: writes one number.
        let status = unsafe { (self.api.cuDeviceGetCount)(&raw mut count) };
        status.check("cuDeviceGetCount")?;
        (0..count)
            .map(|ordinal| Device::new(self, ordinal))
            .collect()
    }

    /// One device. Initialises the driver.
    /// Errors: as of [`Cuda::initialise`]; `InvalidArgument`: there is no such device.
    pub(crate) fn device(&'static self, ordinal: u16) -> Result<Device> {
        self.initialise()?;
        Device::new(self, i32::from(ordinal))
    }
}

impl Device {
    pub(super) fn new(cuda: &'static Cuda, ordinal: i32) -> Result<Self> {
        let mut raw = 0;
        // SAFETY: writes one number.
        let status = unsafe { (cuda.api.cuDeviceGet)(&raw mut raw, ordinal) };
        status.check("cuDeviceGet")?;
        Ok(Self {
            cuda,
            raw,
            // The driver took it, and counts devices from 0.
            ordinal: u16::try_from(ordinal).unwrap_or(u16::MAX),
        })
    }

    /// Its place in the driver's order, which `CUDA_VISIBLE_DEVICES` may have changed: say who it is by [`Device::uuid`].
    pub(crate) fn ordinal(&self) -> u16 {
        self.ordinal
    }

    /// The product's name.
    pub(crate) fn name(&self) -> Result<String> {
        self.cuda.usable()?;
        text(|buffer, len| {
            // SAFETY: writes at most `len` bytes.
            let status = unsafe { (self.cuda.api.cuDeviceGetName)(buffer, len, self.raw) };
            status.check("cuDeviceGetName")
        })
    }

    /// Its place on the PCI bus, as in `0000:17:00.0`, in lower case as in `/sys/bus/pci/devices`.
    pub(crate) fn pci_bus_id(&self) -> Result<String> {
        self.cuda.usable()?;
        let text = text(|buffer, len| {
            // SAFETY: writes at most `len` bytes.
            let status = unsafe { (self.cuda.api.cuDeviceGetPCIBusId)(buffer, len, self.raw) };
            status.check("cuDeviceGetPCIBusId")
        })?;
        Ok(text.to_ascii_lowercase())
    }

    /// Who it is, the same in every process; of a part of a divided device (MIG), that part.
    /// Errors: `Unsupported` by drivers that cannot say.
    pub(crate) fn uuid(&self) -> Result<Uuid> {
        self.cuda.usable()?;
        let api = &self.cuda.api;
        let newest = api.cuDeviceGetUuid_v2.or(api.cuDeviceGetUuid);
        let call = self.cuda.optional(newest, "cuDeviceGetUuid_v2")?;
        let mut uuid = Uuid::default();
        // SAFETY: writes 16 bytes.
        let status = unsafe { call(&raw mut uuid, self.raw) };
        let newer = api.cuDeviceGetUuid_v2.is_some();
        status.check(if newer {
            "cuDeviceGetUuid_v2"
        } else {
            "cuDeviceGetUuid"
        })?;
        Ok(uuid)
    }

    /// A number or a flag that describes it.
    /// Errors: `InvalidArgument`: the driver is too old to know the attribute.
    pub(crate) fn attribute(&self, attribute: Attribute) -> Result<i32> {
        self.cuda.usable()?;
        let mut value = 0;
        // SAFETY: writes one number.
        let status = unsafe {
            (self.cuda.api.cuDeviceGetAttribute)(&raw mut value, attribute as u32, self.raw)
        };
        status.check("cuDeviceGetAttribute")?;
        Ok(value)
    }

    /// Whether it can do something; what its driver does not know, it cannot.
    /// Errors: `Forked`, and what the driver reports.
    pub(crate) fn has(&self, attribute: Attribute) -> Result<bool> {
        Ok(self.mask(attribute)? != 0)
    }

    /// A number that describes it; 0 when its driver does not know the attribute.
    pub(super) fn mask(&self, attribute: Attribute) -> Result<u32> {
        match self.attribute(attribute) {
            Ok(value) => Ok(value as u32),
            Err(error) if Status::of(&error) == Some(Status::INVALID_VALUE) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whether somebody in this process uses it: its primary context is active. Activates nothing.
    pub(crate) fn is_active(&self) -> Result<bool> {
        self.cuda.usable()?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two numbers.
        let status = unsafe {
            (self.cuda.api.cuDevicePrimaryCtxGetState)(self.raw, &raw mut flags, &raw mut active)
        };
        status.check("cuDevicePrimaryCtxGetState")?;
        Ok(active != 0)
    }

    /// Whether it can read and write the memory of another.
    pub(crate) fn can_access(&self, peer: &Self) -> Result<bool> {
        self.cuda.usable()?;
        let call = self
            .cuda
            .optional(self.cuda.api.cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer")?;
        let mut yes = 0;
        // SAFETY: writes one number.
        let status = unsafe { call(&raw mut yes, self.raw, peer.raw) };
        status.check("cuDeviceCanAccessPeer")?;
        Ok(yes != 0)
    }
}

impl Device {
    /// Whether it does atomic operations on the memory of another natively. On its own it does; of what the driver cannot say, not.
    /// Errors: `Forked`, and what the driver reports.
    pub(crate) fn has_atomics_on(&self, peer: &Self) -> Result<bool> {
        self.cuda.usable()?;
        if self == peer {
            return Ok(true);
        }
        let Some(call) = self.cuda.api.cuDeviceGetP2PAttribute else {
            return Ok(false);
        };
        let mut yes = 0;
        // SAFETY: writes one number.
        let status = unsafe {
            call(
                &raw mut yes,
                super::sys::P2P_NATIVE_ATOMICS,
                self.raw,
                peer.raw,
            )
        };
        match status {
            Status::INVALID_VALUE => Ok(false),
            status => status.check("cuDeviceGetP2PAttribute").map(|()| yes != 0),
        }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.cuda, other.cuda) && self.raw == other.raw
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.ordinal)
    }
}

/// A text that the driver writes into a buffer of a given length.
fn text(write: impl FnOnce(*mut c_char, i32) -> Result<()>) -> Result<String> {
    const LEN: usize = 256;
    let mut buffer = [0_u8; LEN];
    // One less, so that it ends with a zero whatever the driver does.
    write(buffer.as_mut_ptr().cast(), LEN as i32 - 1)?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}
