#![allow(unsafe_code)]
//! Devices and their primary contexts.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::{ffi::c_char, sync::atomic::Ordering::SeqCst};

use super::ordinal;
use crate::{
    abi::{In, Out, Outcome, Status},
    context, device,
    driver::driver,
    gate::exports,
    settings,
};

exports! {
    ["cuDeviceGetCount", 2000, Init]
    fn cuDeviceGetCount(count: Out<i32>) |_call| {
        count.set(driver().devices.len() as i32)
    }

    ["cuDeviceGet", 2000, Init]
    fn cuDeviceGet(device: Out<i32>, number: i32) |_call| {
        ordinal(number)?;
        device.set(number)
    }

    ["cuDeviceGetAttribute", 2000, Init]
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) |_call| {
        value.set(driver().devices[ordinal(device)?].attribute(attribute)?)
    }

    ["cuDeviceGetName", 2000, Init]
    fn cuDeviceGetName(name: Out<u8>, len: i32, device: i32) |_call| {
        let physical = driver().devices[ordinal(device)?].physical;
        text(&name, len, &format!("wharf emulated CUDA device {physical}"))
    }

    // The first ABI is the same, but for the name of part of a device.
    ["cuDeviceGetUuid", 9020, Init]
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) |_call| {
        uuid.set(driver().devices[ordinal(device)?].uuid())
    }

    ["cuDeviceGetUuid", 11040, Init]
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) |_call| {
        uuid.set(driver().devices[ordinal(device)?].uuid())
    }

    ["cuDeviceTotalMem", 3020, Init]
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |_call| {
        ordinal(device)?;
        bytes.set(settings::MEMORY.get() as usize)
    }

    ["cuDeviceComputeCapability", 2000, Init]
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) |_call| {
        ordinal(device)?;
        major.set(9)?;
        minor.set(0)
    }

    ["cuDeviceGetPCIBusId", 4010, Init]
    fn cuDeviceGetPCIBusId(name: Out<u8>, len: i32, device: i32) |_call| {
        let (domain, bus, slot) = driver().devices[ordinal(device)?].pci();
        text(&name, len, &format!("{domain:04X}:{bus:02X}:{slot:02X}.0"))
    }

    ["cuDeviceGetByPCIBusId", 4010, Init]
    fn cuDeviceGetByPCIBusId(device: Out<i32>, name: In<c_char>) |_call| {
        let name = name.text()?.to_uppercase();
        let found = driver().devices.iter().position(|device| {
            let (domain, bus, slot) = device.pci();
            name == format!("{domain:04X}:{bus:02X}:{slot:02X}.0")
        });
        device.set(found.ok_or(Status::INVALID_DEVICE)? as i32)
    }

    ["cuDeviceCanAccessPeer", 4000, Init]
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |_call| {
        can.set(i32::from(device::can_reach(ordinal(device)?, ordinal(peer)?)))
    }

    ["cuDeviceGetP2PAttribute", 8000, Init]
    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, device: i32, peer: i32) |_call| {
        let reach = i32::from(device::can_reach(ordinal(device)?, ordinal(peer)?));
        if device == peer {
            return Err(Status::INVALID_DEVICE);
        }
        match attribute {
            1 => value.set(0),
            3 if !settings::P2P_ATOMICS.on() => value.set(0),
            2..=4 => value.set(reach),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    ["cuDevicePrimaryCtxGetState", 7000, Init]
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |_call| {
        let primary = driver().devices[ordinal(device)?].primary.lock();
        flags.set(match &primary.context {
            Some(context) => context.flags.load(SeqCst),
            None => primary.flags,
        })?;
        active.set(i32::from(primary.context.is_some()))
    }

    ["cuDevicePrimaryCtxRetain", 7000, Init]
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |_call| {
        let device = ordinal(device)?;
        context.set(0)?;
        context.set(context::retain_primary(device).handle)
    }

    ["cuDevicePrimaryCtxRelease", 11000, Init]
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |_call| {
        context::release_primary(ordinal(device)?)
    }

    ["cuDevicePrimaryCtxReset", 11000, Init]
    fn cuDevicePrimaryCtxReset_v2(device: i32) |_call| {
        context::reset_primary(ordinal(device)?);
        Ok(())
    }

    ["cuDevicePrimaryCtxSetFlags", 11000, Init]
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |_call| {
        let mut primary = driver().devices[ordinal(device)?].primary.lock();
        if primary.context.is_some() && settings::VERSION.get() < 11000 {
            return Err(Status::PRIMARY_CONTEXT_ACTIVE);
        }
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, SeqCst);
        }
        Ok(())
    }
}

/// Writes as much of a text as there is room for, and its zero byte.
fn text(to: &Out<u8>, len: i32, text: &str) -> Outcome {
    let room = usize::try_from(len).map_err(|_| Status::INVALID_VALUE)?;
    if room == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let mut bytes: Vec<u8> = text.bytes().take(room - 1).collect();
    bytes.push(0);
    to.set_all(&bytes)
}
