#![allow(unsafe_code)]
//! Physical memory and addresses apart.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::{os::fd::IntoRawFd, sync::Arc};

use wharf_emulated_common::backing::borrow_fd;

use crate::{
    abi::{
        AccessDesc, AllocationProp, In, Location, MulticastProp, Out, Outcome, Status, handle_type,
    },
    driver::driver,
    gate::exports,
    ipc::{self, Of, Token},
    settings, vmm,
};

exports! {
    ["cuMemAddressReserve", 10020, Init]
    fn cuMemAddressReserve(address: Out<u64>, len: usize, align: usize, _wish: u64, flags: u64) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let given = driver().memory.lock().reserve(len as u64, align as u64)?;
        address.set(given)
    }

    ["cuMemAddressFree", 10020, Init]
    fn cuMemAddressFree(address: u64, len: usize) |_call| {
        driver().memory.lock().unreserve(address, len as u64)
    }

    ["cuMemCreate", 10020, Init]
    fn cuMemCreate(handle: Out<u64>, len: usize, prop: In<AllocationProp>, flags: u64) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let given = driver().memory.lock().create(len as u64, &prop.get()?)?;
        handle.set(given)
    }

    ["cuMemRelease", 10020, Init]
    fn cuMemRelease(handle: u64) |_call| {
        let gone = driver().memory.lock().release(handle)?;
        drop(gone);
        Ok(())
    }

    ["cuMemMap", 10020, Init]
    fn cuMemMap(address: u64, len: usize, offset: usize, handle: u64, flags: u64) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver().memory.lock().map(address, len as u64, offset as u64, handle)
    }

    ["cuMemUnmap", 10020, Init]
    fn cuMemUnmap(address: u64, len: usize) |_call| {
        let gone = driver().memory.lock().unmap(address, len as u64)?;
        drop(gone);
        Ok(())
    }

    ["cuMemSetAccess", 10020, Init]
    fn cuMemSetAccess(address: u64, len: usize, access: In<AccessDesc>, count: usize) |_call| {
        let access = access.list(count)?;
        driver().memory.lock().set_access(address, len as u64, &access)
    }

    ["cuMemGetAccess", 10020, Init]
    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) |_call| {
        let location = location.get()?;
        let access = driver().memory.lock().access(location, address)?;
        flags.set(access)
    }

    ["cuMemGetAllocationGranularity", 10020, Init]
    fn cuMemGetAllocationGranularity(len: Out<usize>, prop: In<AllocationProp>, option: u32) |_call| {
        if option > 1 {
            return Err(Status::INVALID_VALUE);
        }
        len.set(vmm::granularity(&prop.get()?)? as usize)
    }

    // Objects themselves are not made here.
    ["cuMulticastGetGranularity", 12010, Init]
    fn cuMulticastGetGranularity(len: Out<usize>, prop: In<MulticastProp>, option: u32) |_call| {
        let prop = prop.get()?;
        if !settings::MULTICAST.on() {
            return Err(Status::NOT_SUPPORTED);
        }
        if option > 1 || prop.flags != 0 || prop.size == 0 || prop.devices as usize > driver().devices.len() {
            return Err(Status::INVALID_VALUE);
        }
        len.set(vmm::MULTICAST as usize)
    }

    ["cuMemGetAllocationPropertiesFromHandle", 10020, Init]
    fn cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: u64) |_call| {
        let memory = driver().memory.lock();
        prop.set(vmm::properties(memory.handle(handle)?.physical()))
    }

    ["cuMemRetainAllocationHandle", 11000, Init]
    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) |_call| {
        let given = driver().memory.lock().retain(address)?;
        handle.set(given)
    }

    ["cuMemExportToShareableHandle", 10020, Init]
    fn cuMemExportToShareableHandle(out: Out<u8>, handle: u64, kind: u32, flags: u64) |_call| {
        let physical = Arc::clone(driver().memory.lock().handle(handle)?.physical());
        if flags != 0 || !physical.allows(kind) {
            return Err(Status::INVALID_VALUE);
        }
        match kind {
            handle_type::POSIX_FD => {
                let fd = physical.backing.duplicate().map_err(|_| Status::OPERATING_SYSTEM)?;
                out.cast::<i32>().set(fd.into_raw_fd())
            }
            handle_type::FABRIC => {
                let len = physical.backing.len();
                let token = Token::new(Of::FabricMemory, &physical.backing, 0, len, physical.device());
                out.cast().set(token.bytes())
            }
            _ => Err(Status::NOT_SUPPORTED),
        }
    }

    // A descriptor comes as the value of the pointer.
    ["cuMemImportFromShareableHandle", 10020, Init]
    fn cuMemImportFromShareableHandle(handle: Out<u64>, os_handle: In<u8>, kind: u32) |_call| {
        let fd = shared(&os_handle, kind, Of::FabricMemory)?;
        let given = driver().memory.lock().import(fd, kind)?;
        handle.set(given)
    }
}

/// The descriptor that a shareable handle stands for.
pub(super) fn shared(os_handle: &In<u8>, kind: u32, of: Of) -> Outcome<std::os::fd::OwnedFd> {
    match kind {
        handle_type::POSIX_FD => {
            let fd = i32::try_from(os_handle.address()).map_err(|_| Status::INVALID_VALUE)?;
            // SAFETY: the caller's descriptor, open through the call as the header demands; one that is not open only
            // makes the duplication fail.
            let fd = unsafe { borrow_fd(fd) };
            fd.try_clone_to_owned().map_err(|_| Status::INVALID_VALUE)
        }
        handle_type::FABRIC => ipc::open_fabric(&os_handle.cast::<[u8; 64]>().get()?, of),
        _ => Err(Status::NOT_SUPPORTED),
    }
}
