#![allow(unsafe_code)]
//! Devices: acquired, described and released.
//!
//! # Safety
//! As in `exports`.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use wharf_emulated_common::gaudi;

use super::{exports, given, put, put_at, put_text, room, system::cards, take};
use crate::{
    abi::{ANY_TYPE, Attribute, Info, InfoV2, Outcome, SmallInfo, Status, device_type},
    device::{Device, constant},
    gate::runtime,
    settings,
};

/// How many bytes the text of a PCI address has.
const PCI_ADDRESS: usize = 13;

exports! {
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
        // As the runtime does: the way by the address says another thing of a busy card than that by the module.
        acquire(id, one(index), if index.is_some() { Status::FAIL } else { Status::NO_DEVICE_FOUND })
    }

    [Init] fn synDeviceAcquireByModuleId(id: *mut u32, module: u32) |_call| {
        let index = (0..cards()).find(|index| gaudi::module_id(*index) == u64::from(module));
        acquire(id, one(index), Status::NO_DEVICE_FOUND)
    }

    [Init] fn synDeviceAcquireByDeviceType(id: *mut u32, kind: u32) |_call| {
        let fits = kind == ANY_TYPE || kind == device_type(settings::GENERATION.get());
        let busy = if fits || cards() == 0 { Status::NO_DEVICE_FOUND } else { Status::TYPE_MISMATCH };
        acquire(id, if fits { 0..cards() } else { 0..0 }, busy)
    }

    [Init] fn synDeviceRelease(id: u32) |call| {
        let device = call.numbered(id)?;
        // This one is under way as well.
        if device.inside.load(SeqCst) > 1 {
            let what = "the device was to be released while another thread was in a call";
            runtime().journal.misuse(what.to_owned());
            return Err(Status::FAIL);
        }
        *runtime().device.lock() = None;
        device.release();
        Ok(())
    }

    [Device] fn synDeviceSynchronize(id: u32) |call| {
        let device = call.numbered(id)?;
        let streams: Vec<_> = device.objects.lock().streams.values().cloned().collect();
        streams.iter().try_for_each(|stream| stream.wait(stream.place()))
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

    [Init] fn synDeviceGetName(name: *mut c_char, len: c_int, id: u32) |call| {
        let device = call.numbered(id)?;
        device.check()?;
        put_text(name, room(len), match device.card.generation {
            1 => "GAUDI",
            2 => "GAUDI2",
            _ => "GAUDI3",
        })
    }

    [Device] fn synDeviceGetPCIBusId(address: *mut c_char, len: c_int, id: u32) |call| {
        let device = call.numbered(id)?;
        // A part of an address is the address of another card.
        if room(len) < PCI_ADDRESS {
            return Err(Status::INVALID_ARGUMENT);
        }
        put_text(address, room(len), &gaudi::pci_address(device.index))
    }

    [Device] fn synDeviceGetMemoryInfo(id: u32, free: *mut u64, total: *mut u64) |call| {
        let device = call.numbered(id)?;
        given(total)?;
        put(free, device.memory.lock().free_bytes())?;
        put(total, device.card.len)
    }

    [Device] fn synDeviceGetAttribute(values: *mut u64, which: *const u32, count: u32, id: u32) |call| {
        let device = call.numbered(id)?;
        each(values, which, count, |attribute| Some(device.attribute(attribute)))
    }

    [Init] fn synDeviceGetAttributeByModuleId(
        values: *mut u64, which: *const u32, count: u32, module: u32,
    ) |_call| {
        let index = (0..cards()).find(|index| gaudi::module_id(*index) == u64::from(module));
        index.ok_or(Status::NO_DEVICE_FOUND)?;
        let generation = settings::GENERATION.get();
        each(values, which, count, |attribute| match attribute {
            // Only who has the card knows what is taken of it.
            Attribute::DramFree | Attribute::StreamsMemory => Some(0),
            attribute => Some(constant(attribute, generation, settings::MEMORY.get())),
        })
    }

    [Init] fn synDeviceTypeGetAttribute(
        values: *mut u64, which: *const u32, count: u32, kind: u32,
    ) |call| {
        let generation = (1..=3).find(|generation| device_type(*generation) == kind);
        let generation = generation.ok_or(Status::UNSUPPORTED)?;
        each(values, which, count, |attribute| match (call.device(), attribute) {
            (_, Attribute::DramFree | Attribute::StreamsMemory) => None,
            (Ok(device), attribute) => Some(device.attribute(attribute)),
            // What differs from card to card.
            (
                Err(_),
                Attribute::SramBase
                | Attribute::SramSize
                | Attribute::DramSize
                | Attribute::ClockRate,
            ) => None,
            (Err(_), attribute) => Some(constant(attribute, generation, 0)),
        })
    }
}

/// Answers for each attribute. What one of them is refused for is told at the end: the others are written.
fn each(
    values: *mut u64,
    which: *const u32,
    count: u32,
    value: impl Fn(Attribute) -> Option<u64>,
) -> Outcome {
    given(values)?;
    given(which)?;
    let mut outcome = Ok(());
    for index in 0..count as usize {
        match Attribute::of(take(which, index)?).and_then(&value) {
            Some(value) => put_at(values, index, value)?,
            None => outcome = Err(Status::UNSUPPORTED),
        }
    }
    outcome
}

fn one(index: Option<u64>) -> Range<u64> {
    index.map_or(0..0, |index| index..index + 1)
}

/// Acquires the first of the cards that is free.
fn acquire(id: *mut u32, cards: Range<u64>, busy: Status) -> Outcome {
    given(id)?;
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
