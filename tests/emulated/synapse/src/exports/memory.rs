//! Memory: of the device, and of the host's what is mapped for it.

use std::{ffi::c_void, ptr};

use super::{exports, given, none, put};
use crate::{
    abi::{Outcome, Status},
    device::Device,
    gate::runtime,
    memory,
    stream::End,
};

exports! {
    [Device] fn synDeviceMalloc(id: u32, len: u64, wanted: u64, flags: u32, address: *mut u64) |call| {
        let device = call.numbered(id)?;
        none(flags, Status::FAIL)?;
        put(address, 0)?;
        let at = {
            let mut memory = device.memory.lock();
            let at = memory.allocate(len, wanted)?;
            device.tell_free(memory.free_bytes());
            at
        };
        memory::spoil(device, at, len)?;
        put(address, at)
    }

    [Device] fn synDeviceFree(id: u32, address: u64, flags: u32) |call| {
        let device = call.numbered(id)?;
        none(flags, Status::FAIL)?;
        let known = device.memory.lock().allocated(address);
        let len = known.ok_or_else(|| unknown("synDeviceFree", address, Status::FAIL))?;
        device.not_in_use(End::Device, address, len, "synDeviceFree")?;
        let mut memory = device.memory.lock();
        let room = memory.free(address).ok_or(Status::FAIL)?;
        device.tell_free(memory.free_bytes());
        let offset = address - device.card.allocated_base;
        device.bytes.discard(offset, room).map_err(|_| Status::FAIL)
    }

    [Mapping] fn synHostMap(id: u32, len: u64, start: *const c_void) |call| {
        call.numbered(id)?.memory.lock().map(start.expose_provenance() as u64, len)
    }

    [Mapping] fn synHostUnmap(id: u32, start: *const c_void) |call| {
        let device = call.numbered(id)?;
        unmap(device, start.expose_provenance() as u64, false, "synHostUnmap")
    }

    [Device] fn synHostMalloc(id: u32, len: u64, flags: u32, start: *mut *mut c_void) |call| {
        let device = call.numbered(id)?;
        none(flags, Status::FAIL)?;
        given(start)?;
        put(start, ptr::null_mut())?;
        let at = device.memory.lock().pin(len)?;
        put(start, ptr::with_exposed_provenance_mut(at as usize))
    }

    [Device] fn synHostFree(id: u32, start: *const c_void, flags: u32) |call| {
        let device = call.numbered(id)?;
        none(flags, Status::FAIL)?;
        unmap(device, start.expose_provenance() as u64, true, "synHostFree")
    }
}

/// Takes host memory from the device, and from the program when it is Synapse's.
fn unmap(device: &Device, start: u64, is_pinned: bool, call: &str) -> Outcome {
    let known = device.memory.lock().mapped_at(start, is_pinned);
    let len = known.ok_or_else(|| unknown(call, start, Status::INVALID_ARGUMENT))?;
    device.not_in_use(End::Host, start, len, call)?;
    device.memory.lock().unmap(start);
    Ok(())
}

/// Memory that is given back and was not had, or was given back before: by the time it may be somebody else's.
fn unknown(call: &str, start: u64, status: Status) -> Status {
    let what = format!("{call} of {start:#x}, where nothing begins that it could take");
    runtime().journal.misuse(what);
    status
}
