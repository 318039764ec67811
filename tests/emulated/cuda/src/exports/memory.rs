#![allow(unsafe_code)]
//! Device and managed memory, what the driver knows of an address, dma-buf.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::os::fd::IntoRawFd;

use super::ordinal;
use crate::{
    abi::{In, Location, Out, Outcome, Status, location},
    context::Context,
    driver::driver,
    gate::exports,
    memory::{Class, Kind},
    pointer, settings,
};

exports! {
    ["cuMemAlloc", 3020, Context]
    fn cuMemAlloc_v2(address: Out<u64>, len: usize) |call| {
        address.set(0)?;
        let given = driver().memory.lock().allocate(call.context()?, len as u64)?;
        address.set(given)
    }

    ["cuMemAllocPitch", 3020, Context]
    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) |call| {
        if ![4, 8, 16].contains(&element) || width == 0 || height == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(512).ok_or(Status::OUT_OF_MEMORY)?;
        let len = row.checked_mul(height).ok_or(Status::OUT_OF_MEMORY)?;
        let given = driver().memory.lock().allocate(call.context()?, len as u64)?;
        pitch.set(row)?;
        address.set(given)
    }

    ["cuMemAllocManaged", 6000, Context]
    fn cuMemAllocManaged(address: Out<u64>, len: usize, flags: u32) |call| {
        if flags != 1 && flags != 2 {
            return Err(Status::INVALID_VALUE);
        }
        address.set(0)?;
        let given = driver().memory.lock().allocate_managed(call.context()?, len as u64)?;
        address.set(given)
    }

    ["cuMemFree", 3020, Context]
    fn cuMemFree_v2(address: u64) |call| {
        if address == 0 {
            return Ok(());
        }
        let context = call.context()?;
        wait_before_free(context, address)?;
        let gone = driver().memory.lock().free(address)?;
        drop(gone);
        Ok(())
    }

    ["cuMemGetInfo", 3020, Context]
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |call| {
        let all = settings::MEMORY.get();
        let used = driver().devices[call.context()?.device].used();
        free.set(all.saturating_sub(used) as usize)?;
        total.set(all as usize)
    }

    ["cuMemGetAddressRange", 3020, Init]
    fn cuMemGetAddressRange_v2(base: Out<u64>, len: Out<usize>, address: u64) |_call| {
        let memory = driver().memory.lock();
        let (start, size) = match (memory.allocation(address), memory.mapping(address)) {
            (Some(allocation), _) => (allocation.address, allocation.len),
            (None, Some(mapping)) => (mapping.address, mapping.len),
            (None, None) => {
                let pinned = memory.pinned_at(address).ok_or(Status::NOT_FOUND)?;
                (pinned.start, pinned.len)
            }
        };
        base.offer(start);
        len.offer(size as usize);
        Ok(())
    }

    ["cuPointerGetAttribute", 4000, Init]
    fn cuPointerGetAttribute(value: Out<u8>, attribute: u32, address: u64) |_call| {
        let facts = pointer::facts(&driver().memory.lock(), address);
        let facts = facts.ok_or(Status::INVALID_VALUE)?;
        if !facts.has(attribute) {
            return Err(Status::INVALID_VALUE);
        }
        pointer::write(Some(&facts), attribute, &value)
    }

    ["cuPointerGetAttributes", 7000, Init]
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, values: In<u64>, address: u64) |_call| {
        let facts = pointer::facts(&driver().memory.lock(), address);
        let attributes = attributes.list(count as usize)?;
        let values = values.list(count as usize)?;
        for (attribute, value) in attributes.into_iter().zip(values) {
            pointer::write(facts.as_ref(), attribute, &Out::at(value))?;
        }
        Ok(())
    }

    ["cuPointerSetAttribute", 6000, Init]
    fn cuPointerSetAttribute(value: In<u32>, attribute: u32, address: u64) |_call| {
        // SYNC_MEMOPS is the only one that can be set; not for managed memory, nor for a pool's or mapped.
        if attribute != 6 {
            return Err(Status::INVALID_VALUE);
        }
        let value = value.get()?;
        let mut memory = driver().memory.lock();
        let allocation = memory.allocation_mut(address).ok_or(Status::INVALID_VALUE)?;
        if !matches!(allocation.kind, Kind::Device | Kind::Opened { .. }) {
            return Err(Status::NOT_SUPPORTED);
        }
        allocation.sync_memops = value != 0;
        Ok(())
    }

    ["cuMemRangeGetAttribute", 8000, Init]
    fn cuMemRangeGetAttribute(value: Out<i32>, size: usize, attribute: u32, address: u64, len: usize) |_call| {
        let memory = driver().memory.lock();
        if memory.classify(address, len.max(1) as u64)? != Class::Managed {
            return Err(Status::INVALID_VALUE);
        }
        let allocation = memory.allocation(address).ok_or(Status::INVALID_VALUE)?;
        if size < 4 {
            return Err(Status::INVALID_VALUE);
        }
        match attribute {
            1 => value.set(0),
            // CU_DEVICE_INVALID, -2, without one.
            2 | 4 => value.set(allocation.preferred),
            3 => value.set_all(&vec![-2; size / 4]),
            5 => value.set(match allocation.preferred {
                -2 => 0,
                -1 => location::HOST as i32,
                _ => location::DEVICE as i32,
            }),
            6 => value.set(allocation.preferred),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    ["cuMemAdvise", 8000, Init]
    fn cuMemAdvise(address: u64, len: usize, advice: u32, device: i32) |_call| {
        advise(address, len as u64, advice, device)
    }

    ["cuMemAdvise", 12020, Init]
    fn cuMemAdvise_v2(address: u64, len: usize, advice: u32, at: Location) |_call| {
        advise(address, len as u64, advice, ordinal_of(at))
    }

    ["cuMemPrefetchAsync", 8000, Context]
    fn cuMemPrefetchAsync(address: u64, len: usize, device: i32, _stream: u64) |_call| {
        prefetch(address, len as u64, device)
    }

    ["cuMemPrefetchAsync", 12020, Context]
    fn cuMemPrefetchAsync_v2(address: u64, len: usize, at: Location, _flags: u32, _stream: u64) |_call| {
        prefetch(address, len as u64, ordinal_of(at))
    }

    ["cuMemGetHandleForAddressRange", 11070, Context]
    fn cuMemGetHandleForAddressRange(handle: Out<i32>, address: u64, len: usize, kind: u32, flags: u64) |call| {
        // A dma-buf descriptor is the only kind; flag 1 asks for a mapping by PCIe.
        if kind != 1 || flags & !1 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let page = 4096;
        let len = len as u64;
        if len == 0 || !address.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(Status::INVALID_VALUE);
        }
        if !settings::DMABUF.on() {
            return Err(Status::NOT_SUPPORTED);
        }
        let (backing, offset, device) = {
            let memory = driver().memory.lock();
            if let Some(allocation) = memory.first_within(address, len) {
                if !matches!(allocation.kind, Kind::Device) {
                    return Err(Status::INVALID_VALUE);
                }
                // What the caller rounded to whole pages may reach into what else is in the room, or was, not beyond it.
                let offset = (allocation.offset + address)
                    .checked_sub(allocation.address)
                    .filter(|offset| offset + len <= allocation.backing.len())
                    .ok_or(Status::INVALID_VALUE)?;
                (std::sync::Arc::clone(&allocation.backing), offset, allocation.device)
            } else {
                let parts = memory.mapped(address, len)?;
                // One descriptor stands for one piece of physical memory.
                let [(mapping, skipped, _)] = parts[..] else {
                    return Err(Status::INVALID_VALUE);
                };
                let physical = &mapping.physical;
                (std::sync::Arc::clone(&physical.backing), mapping.offset + skipped, physical.device())
            }
        };
        if device != call.context()?.device {
            return Err(Status::INVALID_VALUE);
        }
        // What is mapped begins where the file does: the emulator has no file for what begins within memory.
        if offset != 0 && crate::memory::maps_dma_bufs() {
            return Err(Status::INVALID_VALUE);
        }
        let fd = backing.reopen(offset).map_err(|_| Status::OPERATING_SYSTEM)?;
        handle.set(fd.into_raw_fd())
    }
}

/// What freeing waits for, by the setting `free_waits`; without it, memory that is freed under a copy breaks the context. To free what queued
/// operations use is a misuse all the same.
pub(super) fn wait_before_free(context: &Context, address: u64) -> Outcome {
    let memory = driver().memory.lock();
    let len = match (memory.allocation(address), memory.pinned_at(address)) {
        (Some(allocation), _) => allocation.len,
        (None, Some(pinned)) => pinned.len,
        (None, None) => 0,
    };
    drop(memory);
    let streams = context.streams();
    let uses: usize = streams.iter().map(|stream| stream.uses(address, len)).sum();
    if uses > 0 {
        driver().journal.misuse(format!(
            "{address:#x} was freed while {uses} queued operations use it"
        ));
    }
    if settings::FREE_WAITS.on() && streams.iter().any(|stream| !stream.is_idle()) {
        return context.synchronize();
    }
    Ok(())
}

fn ordinal_of(at: Location) -> i32 {
    if at.kind == location::DEVICE {
        at.id
    } else {
        -1
    }
}

fn advise(address: u64, len: u64, advice: u32, device: i32) -> Outcome {
    if device != -1 {
        ordinal(device)?;
    }
    let mut memory = driver().memory.lock();
    if memory.classify(address, len)? != Class::Managed {
        return Err(Status::INVALID_VALUE);
    }
    let allocation = memory
        .allocation_mut(address)
        .ok_or(Status::INVALID_VALUE)?;
    match advice {
        // Preferred location: set, unset.
        3 => allocation.preferred = device,
        4 => allocation.preferred = -2,
        1 | 2 | 5 | 6 => {}
        _ => return Err(Status::INVALID_VALUE),
    }
    Ok(())
}

fn prefetch(address: u64, len: u64, device: i32) -> Outcome {
    if device != -1 {
        ordinal(device)?;
    }
    match driver().memory.lock().classify(address, len)? {
        Class::Managed => Ok(()),
        _ => Err(Status::INVALID_VALUE),
    }
}
