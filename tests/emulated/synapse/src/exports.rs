#![allow(unsafe_code)]
//! The exported names.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is Synapse itself. Pointers come from a C caller, whose
//! duty is that they are good for the call; null is checked.

use std::{
    ffi::{CStr, c_char, c_void},
    io,
    sync::Arc,
    sync::atomic::Ordering::SeqCst,
};

use wharf_emulated_common::gaudi;

use crate::{
    abi::{Info, InfoV2, Outcome, SmallInfo, Status},
    device::Device,
    gate::{Call, Needs, enter, runtime},
    settings,
    stream::{Direction, Event, Op, Stream},
};

/// The most bytes of one copy.
const MAX_COPY: u64 = (4 << 30) - 1;

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Status::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the C caller's duty is that it points to room for a T; it may be unaligned.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Defines exported functions: `[what it needs] fn name(arguments) |call| { work }`.
macro_rules! exports {
    ($([$needs:ident] fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$call:ident| $work:block)*) => { $(
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> i32 {
            let words: &[u64] = &[$($argument as u64),*];
            let mut arguments = [0; 4];
            for (place, word) in arguments.iter_mut().zip(words) {
                *place = *word;
            }
            enter(stringify!($name), Needs::$needs, arguments, move |$call: &Call| $work)
        }
    )* };
}

exports! {
    [Nothing] fn synInitialize() |_call| {
        if runtime().initialised_in.swap(std::process::id(), SeqCst) != 0 {
            return Err(Status::ALREADY_INITIALIZED);
        }
        Ok(())
    }

    [Nothing] fn synDestroy() |_call| {
        runtime().journal.misuse("synDestroy was called: it ends Synapse for everybody in the process".to_owned());
        runtime().initialised_in.store(0, SeqCst);
        Ok(())
    }

    [Init] fn synDeviceAcquire(id: *mut u32, address: *const c_char) |_call| {
        let wanted = if address.is_null() {
            String::new()
        } else {
            // SAFETY: not null, and the C caller's duty is that it ends with a zero byte.
            unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned()
        };
        if wanted.is_empty() {
            return acquire(id, 0..cards(), Status::NO_DEVICE_FOUND);
        }
        let index = (0..cards()).find(|index| gaudi::pci_address(*index) == wanted);
        let index = index.ok_or(Status::NO_DEVICE_FOUND)?;
        // As the runtime does: the way by the address says another thing of a busy card than that by the module.
        acquire(id, index..index + 1, Status::FAIL)
    }

    [Init] fn synDeviceAcquireByModuleId(id: *mut u32, module: u32) |_call| {
        let index = (0..cards()).find(|index| gaudi::module_id(*index) == u64::from(module));
        let index = index.ok_or(Status::NO_DEVICE_FOUND)?;
        acquire(id, index..index + 1, Status::NO_DEVICE_FOUND)
    }

    [Init] fn synDeviceRelease(id: u32) |call| {
        let device = call.numbered(id)?;
        *runtime().device.lock() = None;
        device.release();
        Ok(())
    }

    [Init] fn synDeviceGetInfo(_id: u32, info: *mut Info) |call| {
        let device = call.device().map_err(|_| Status::FAIL)?;
        device.check()?;
        let all = device.info();
        if settings::SMALL.on() {
            return put(info.cast(), SmallInfo {
                sram_base: all.sram_base,
                dram_base: all.dram_base,
                sram_size: all.sram_size,
                dram_size: all.dram_size,
                tpc_mask: all.tpc_mask as u16,
                dram_enabled: all.dram_enabled,
                device_id: all.device_id,
                fd: all.fd,
                kind: all.kind,
            });
        }
        put(info, Info {
            sram_base: all.sram_base,
            dram_base: all.dram_base,
            sram_size: all.sram_size,
            dram_size: all.dram_size,
            tpc_mask: all.tpc_mask,
            dram_enabled: all.dram_enabled,
            device_id: all.device_id,
            fd: all.fd,
            kind: all.kind,
        })
    }

    [Init] fn synDeviceGetInfoV2(_id: u32, info: *mut InfoV2) |call| {
        let device = call.device().map_err(|_| Status::FAIL)?;
        device.check()?;
        put(info, device.info())
    }

    [Device] fn synDeviceGetMemoryInfo(id: u32, free: *mut u64, total: *mut u64) |call| {
        let device = call.numbered(id)?;
        put(free, device.memory.lock().free_bytes())?;
        put(total, device.card.len)
    }

    [Device] fn synDeviceMalloc(id: u32, len: u64, wanted: u64, _flags: u32, address: *mut u64) |call| {
        let device = call.numbered(id)?;
        put(address, 0)?;
        let mut memory = device.memory.lock();
        let at = memory.allocate(len, wanted)?;
        device.tell_free(memory.free_bytes());
        put(address, at)
    }

    [Device] fn synDeviceFree(id: u32, address: u64, _flags: u32) |call| {
        let device = call.numbered(id)?;
        let mut memory = device.memory.lock();
        let len = memory.free(address)?;
        device.tell_free(memory.free_bytes());
        let offset = address - device.card.allocated_base;
        device.bytes.discard(offset, len).map_err(|_| Status::FAIL)
    }

    [Device] fn synHostMap(id: u32, len: u64, start: *const c_void) |call| {
        call.numbered(id)?.memory.lock().map(start.expose_provenance() as u64, len)
    }

    [Device] fn synHostUnmap(id: u32, start: *const c_void) |call| {
        call.numbered(id)?.memory.lock().unmap(start.expose_provenance() as u64)
    }

    [Device] fn synStreamCreateGeneric(stream: *mut u64, id: u32, _flags: u32) |call| {
        let device = call.numbered(id)?;
        let number = runtime().number();
        let handle = (0x0C02 << 48) | (number << 4);
        put(stream, handle)?;
        device.objects.lock().streams.insert(handle, Stream::new(device, number));
        Ok(())
    }

    [Device] fn synStreamDestroy(stream: u64) |call| {
        let device = call.device()?;
        let gone = find_stream(device, stream)?;
        // What is queued is done first.
        gone.wait(gone.place())?;
        device.objects.lock().streams.remove(&stream);
        gone.end();
        Ok(())
    }

    [Device] fn synStreamSynchronize(stream: u64) |call| {
        let stream = find_stream(call.device()?, stream)?;
        stream.wait(stream.place())
    }

    [Device] fn synStreamQuery(stream: u64) |call| {
        let stream = find_stream(call.device()?, stream)?;
        if stream.reached(stream.place()) { call.device()?.check() } else { Err(Status::BUSY) }
    }

    [Device] fn synEventCreate(event: *mut u64, id: u32, _flags: u32) |call| {
        let device = call.numbered(id)?;
        let handle = (0x0C03 << 48) | (runtime().number() << 4);
        put(event, handle)?;
        device.objects.lock().events.insert(handle, Arc::default());
        Ok(())
    }

    [Device] fn synEventDestroy(event: u64) |call| {
        let gone = call.device()?.objects.lock().events.remove(&event);
        gone.map(drop).ok_or(Status::INVALID_EVENT_HANDLE)
    }

    [Device] fn synEventRecord(event: u64, stream: u64) |call| {
        let device = call.device()?;
        let event = find_event(device, event)?;
        let stream = find_stream(device, stream)?;
        let place = stream.place();
        *event.recorded.lock() = Some((stream, place));
        Ok(())
    }

    [Device] fn synEventQuery(event: u64) |call| {
        let event = find_event(call.device()?, event)?;
        match event.place("synEventQuery") {
            Some((stream, place)) if !stream.reached(place) => Err(Status::BUSY),
            // What was lost on the way counts as passed.
            _ => call.device()?.check(),
        }
    }

    [Device] fn synEventSynchronize(event: u64) |call| {
        let event = find_event(call.device()?, event)?;
        match event.place("synEventSynchronize") {
            Some((stream, place)) => stream.wait(place),
            None => Ok(()),
        }
    }

    [Device] fn synMemCopyAsync(stream: u64, from: u64, len: u64, to: u64, direction: u32) |call| {
        let device = call.device()?;
        let stream = find_stream(device, stream)?;
        let direction = Direction::of(direction).ok_or(Status::INVALID_ARGUMENT)?;
        check(device, direction, from, len, to)?;
        queue(call, &stream, direction, (from, len, to))
    }

    [Device] fn synMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |call| {
        let device = call.device()?;
        let stream = find_stream(device, stream)?;
        if count as u64 > MAX_COPY {
            return Err(Status::INVALID_ARGUMENT);
        }
        if let Some(status) = call.late {
            stream.push(Direction::Within, Op::Break(status))?;
        }
        match count {
            0 => Ok(()),
            _ => stream.push(Direction::Within, Op::Fill { to, len: count as u64, value }),
        }
    }
}

/// How many cards there are.
fn cards() -> u64 {
    settings::DEVICES.get().min(8)
}

/// Acquires the first of the cards that is free.
fn acquire(id: *mut u32, cards: std::ops::Range<u64>, busy: Status) -> Outcome {
    let mut device = runtime().device.lock();
    if device.is_some() {
        return Err(Status::DEVICE_ALREADY_ACQUIRED);
    }
    put(id, u32::MAX)?;
    for index in cards {
        match Device::open(index) {
            Ok(opened) => {
                *device = Some(Arc::new(opened));
                return put(id, 0);
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => {
                eprintln!("emulated Synapse: card {index}: {error}");
                return Err(Status::FAIL);
            }
        }
    }
    Err(busy)
}

/// What a copy call checks at once: lengths, and that host memory is mapped.
fn check(device: &Device, direction: Direction, from: u64, len: u64, to: u64) -> Outcome {
    if len > MAX_COPY {
        return Err(Status::INVALID_ARGUMENT);
    }
    let host = match direction {
        Direction::ToDevice => from,
        Direction::ToHost => to,
        Direction::Within => return Ok(()),
    };
    if len > 0 && !device.memory.lock().is_mapped(host, len) {
        return Err(Status::MAPPING_NOT_FOUND);
    }
    Ok(())
}

fn queue(
    call: &Call,
    stream: &Arc<Stream>,
    direction: Direction,
    (from, len, to): (u64, u64, u64),
) -> Outcome {
    if let Some(status) = call.late {
        stream.push(direction, Op::Break(status))?;
    }
    match len {
        0 => Ok(()),
        _ => stream.push(direction, Op::Copy { from, len, to }),
    }
}

fn find_stream(device: &Device, handle: u64) -> Outcome<Arc<Stream>> {
    let objects = device.objects.lock();
    let found = objects.streams.get(&handle).cloned();
    found.ok_or(Status::INVALID_ARGUMENT)
}

fn find_event(device: &Device, handle: u64) -> Outcome<Arc<Event>> {
    let objects = device.objects.lock();
    let found = objects.events.get(&handle).cloned();
    found.ok_or(Status::INVALID_EVENT_HANDLE)
}
