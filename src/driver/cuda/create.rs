//! Memory that is made to be shared: physical memory, as the device can share it, at addresses of this process.
//!
//! # Safety
//! Descriptions that the driver reads live through the call; what it makes is released once, by [`VirtualMemory`].
#![allow(unsafe_code)]

use super::{
    Attribute, ContextGuard, VirtualMemory,
    memory::describe,
    sys::{self, AllocationProperties, Location, MulticastProperties},
};
use crate::error::{Error, ErrorKind, Result};

/// How far memory can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// It may become a part of a multicast object.
    pub(crate) multicast: bool,
    /// It has a handle for other nodes of the fabric.
    pub(crate) fabric: bool,
}

impl ContextGuard<'_> {
    /// What the context's device can make.
    /// Errors: `DeviceLost`.
    pub(crate) fn reach_of_memory(&self) -> Result<Reach> {
        let device = self.context().device();
        let api = &self.cuda().api;
        let is_virtual = device.has(Attribute::VirtualMemory)? && api.cuMemCreate.is_some();
        Ok(Reach {
            multicast: is_virtual
                && api.cuMulticastGetGranularity.is_some()
                && device.has(Attribute::Multicast)?,
            fabric: is_virtual && device.has(Attribute::FabricHandles)?,
        })
    }

    /// Makes at least `len` bytes of the context's device, which every device that reaches this one may read and write, and network cards where they can. With less
    /// reach than was asked for where the machine lacks what the device has: what became of it. Not zeroed. May block.
    /// Errors: `Unsupported`, `Exhausted`, `DeviceLost`.
    pub(crate) fn create_virtual(
        &self,
        len: usize,
        reach: Reach,
    ) -> Result<(VirtualMemory, Reach)> {
        let device = self.context().device();
        let mut properties = AllocationProperties {
            kind: 1,
            handle_types: sys::HANDLE_POSIX_FD,
            location: Location::device(i32::from(device.ordinal())),
            win32: 0,
            compression: 0,
            rdma_capable: u8::from(device.has(Attribute::VirtualMemoryRdma)?),
            usage: 0,
            reserved: [0; 4],
        };
        if reach.fabric {
            properties.handle_types |= sys::HANDLE_FABRIC;
            match self.create_as(len, &properties, reach.multicast) {
                Ok(memory) => return Ok((memory, reach)),
                // As where no service of the fabric runs, or this process may not use it.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Unsupported
                            | ErrorKind::PermissionDenied
                            | ErrorKind::InvalidArgument
                    ) =>
                {
                    tracing::debug!(target: "wharf::cuda", %error, "memory without a handle of the fabric");
                }
                Err(error) => return Err(error),
            }
            properties.handle_types = sys::HANDLE_POSIX_FD;
        }
        let memory = self.create_as(len, &properties, reach.multicast)?;
        let fabric = false;
        Ok((memory, Reach { fabric, ..reach }))
    }

    fn create_as(
        &self,
        len: usize,
        properties: &AllocationProperties,
        multicast: bool,
    ) -> Result<VirtualMemory> {
        let cuda = self.cuda();
        let ask = cuda.optional(
            cuda.api.cuMemGetAllocationGranularity,
            "cuMemGetAllocationGranularity",
        )?;
        let create = cuda.optional(cuda.api.cuMemCreate, "cuMemCreate")?;
        let mut granularity = 0;
        // SAFETY: writes one number, and reads one description.
        let status = unsafe {
            ask(
                &raw mut granularity,
                properties,
                sys::GRANULARITY_RECOMMENDED,
            )
        };
        status.check("cuMemGetAllocationGranularity")?;
        if multicast {
            granularity = granularity.max(self.multicast_granularity(len, properties)?);
        }
        let rounded = len.checked_next_multiple_of(granularity.max(1));
        let rounded = rounded.ok_or_else(|| {
            Error::new(ErrorKind::Exhausted, "more bytes than there are addresses")
        })?;
        let mut memory = 0;
        // SAFETY: writes one handle, and reads one description.
        let status = unsafe { create(&raw mut memory, rounded, properties, 0) };
        status
            .check("cuMemCreate")
            .map_err(|error| describe(error, format_args!("{rounded} bytes")))?;
        let memory = self.map(memory, rounded)?;
        let own = self.context().device();
        for device in cuda.devices()? {
            if device.ordinal() != own.ordinal() && device.can_access(&own)? {
                memory.let_access(&device)?;
            }
        }
        Ok(memory)
    }

    /// What the length of a part of a multicast object is a multiple of.
    fn multicast_granularity(
        &self,
        len: usize,
        properties: &AllocationProperties,
    ) -> Result<usize> {
        let cuda = self.cuda();
        let ask = cuda.optional(
            cuda.api.cuMulticastGetGranularity,
            "cuMulticastGetGranularity",
        )?;
        let wanted = MulticastProperties {
            devices: u32::from(cuda.device_count().unwrap_or(1)),
            size: len,
            handle_types: u64::from(properties.handle_types),
            flags: 0,
        };
        let mut granularity = 0;
        // SAFETY: writes one number, and reads one description.
        let status = unsafe {
            ask(
                &raw mut granularity,
                &raw const wanted,
                sys::GRANULARITY_RECOMMENDED,
            )
        };
        status.check("cuMulticastGetGranularity")?;
        Ok(granularity)
    }
}
