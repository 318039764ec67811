#![allow(unsafe_code)]
//! Contexts.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::{ffi::c_void, sync::atomic::Ordering::SeqCst};

use wharf_emulated_common::loaded::Library;

use super::ordinal;
use crate::{
    abi::{Out, Status},
    context, device,
    gate::exports,
};

exports! {
    ["cuCtxCreate", 3020, Init]
    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) |_call| {
        let device = ordinal(device)?;
        context.set(0)?;
        context.set(context::create(device, flags).handle)
    }

    ["cuCtxCreate", 11040, Init]
    fn cuCtxCreate_v3(context: Out<u64>, _affinity: *mut c_void, _count: i32, flags: u32, device: i32) |_call| {
        let device = ordinal(device)?;
        context.set(0)?;
        context.set(context::create(device, flags).handle)
    }

    ["cuCtxCreate", 12050, Init]
    fn cuCtxCreate_v4(context: Out<u64>, _params: *mut c_void, flags: u32, device: i32) |_call| {
        let device = ordinal(device)?;
        context.set(0)?;
        context.set(context::create(device, flags).handle)
    }

    ["cuCtxDestroy", 4000, Init]
    fn cuCtxDestroy_v2(context: u64) |_call| {
        context::destroy(context)
    }

    ["cuCtxPushCurrent", 4000, Init]
    fn cuCtxPushCurrent_v2(context: u64) |_call| {
        context::push(context)
    }

    ["cuCtxPopCurrent", 4000, Init]
    fn cuCtxPopCurrent_v2(context: Out<u64>) |_call| {
        let popped = context::pop()?;
        context.offer(popped.handle);
        Ok(())
    }

    ["cuCtxSetCurrent", 4000, Init]
    fn cuCtxSetCurrent(context: u64) |_call| {
        context::set(context)
    }

    ["cuCtxGetCurrent", 4000, Init]
    fn cuCtxGetCurrent(context: Out<u64>) |_call| {
        context.set(context::current().map_or(0, |context| context.handle))
    }

    ["cuCtxGetDevice", 2000, Context]
    fn cuCtxGetDevice(device: Out<i32>) |call| {
        device.set(call.context()?.device as i32)
    }

    ["cuCtxGetId", 12000, Init]
    fn cuCtxGetId(context: u64, id: Out<u64>) |_call| {
        let context = match context {
            0 => context::current().ok_or(Status::INVALID_CONTEXT)?,
            handle => context::find(handle)?,
        };
        context.check()?;
        id.set(context.id)
    }

    ["cuCtxGetFlags", 7000, Context]
    fn cuCtxGetFlags(flags: Out<u32>) |call| {
        flags.set(call.context()?.flags.load(SeqCst))
    }

    ["cuCtxSetFlags", 12010, Context]
    fn cuCtxSetFlags(flags: u32) |call| {
        call.context()?.flags.store(flags, SeqCst);
        Ok(())
    }

    ["cuCtxGetApiVersion", 3020, Init]
    fn cuCtxGetApiVersion(_context: u64, version: Out<u32>) |_call| {
        version.set(3020)
    }

    ["cuCtxSynchronize", 2000, Context]
    fn cuCtxSynchronize() |call| {
        call.context()?.synchronize()
    }

    ["cuCtxGetStreamPriorityRange", 5050, Context]
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |_call| {
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }

    ["cuCtxEnablePeerAccess", 4000, Context]
    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) |call| {
        let peer = context::find(peer)?;
        let context = call.context()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if !device::can_reach(context.device, peer.device) {
            return Err(Status::PEER_ACCESS_UNSUPPORTED);
        }
        if context.peers.lock().insert(peer.device) {
            Ok(())
        } else {
            Err(Status::PEER_ACCESS_ALREADY_ENABLED)
        }
    }

    ["cuCtxDisablePeerAccess", 4000, Context]
    fn cuCtxDisablePeerAccess(peer: u64) |call| {
        let peer = context::find(peer)?;
        if call.context()?.peers.lock().remove(&peer.device) {
            Ok(())
        } else {
            Err(Status::PEER_ACCESS_NOT_ENABLED)
        }
    }

    ["cuFlushGPUDirectRDMAWrites", 11030, Context]
    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) |_call| {
        // Target 0 is the current context; scopes are 100 the owner and 200 all devices.
        if target != 0 || (scope != 100 && scope != 200) {
            return Err(Status::INVALID_VALUE);
        }
        let flush = c"wharf_emulated_flush_writes";
        for devices in Library::with(flush) {
            // SAFETY: the emulated network devices' function, of this type.
            let flush: extern "C" fn() = unsafe { std::mem::transmute(devices.symbol(flush)) };
            flush();
        }
        Ok(())
    }
}
