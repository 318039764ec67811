#![allow(unsafe_code)]
//! Pinned host memory.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use super::memory::wait_before_free;
use crate::{
    abi::{Out, Status},
    driver::driver,
    gate::exports,
};

exports! {
    ["cuMemHostAlloc", 2020, Context]
    fn cuMemHostAlloc(address: Out<u64>, len: usize, flags: u32) |call| {
        address.set(0)?;
        let given = driver().memory.lock().allocate_host(call.context()?, len as u64, flags)?;
        address.set(given)
    }

    ["cuMemAllocHost", 3020, Context]
    fn cuMemAllocHost_v2(address: Out<u64>, len: usize) |call| {
        address.set(0)?;
        let given = driver().memory.lock().allocate_host(call.context()?, len as u64, 0)?;
        address.set(given)
    }

    ["cuMemFreeHost", 2000, Context]
    fn cuMemFreeHost(address: u64) |call| {
        wait_before_free(call.context()?, address)?;
        let gone = driver().memory.lock().free_host(address)?;
        drop(gone);
        Ok(())
    }

    ["cuMemHostRegister", 6050, Context]
    fn cuMemHostRegister_v2(address: u64, len: usize, flags: u32) |call| {
        driver().memory.lock().register_host(call.context()?, address, len as u64, flags)
    }

    ["cuMemHostUnregister", 4000, Context]
    fn cuMemHostUnregister(address: u64) |call| {
        wait_before_free(call.context()?, address)?;
        let gone = driver().memory.lock().unregister_host(address)?;
        drop(gone);
        Ok(())
    }

    ["cuMemHostGetDevicePointer", 3020, Context]
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, flags: u32) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let memory = driver().memory.lock();
        memory.pinned_at(address).ok_or(Status::INVALID_VALUE)?;
        device.set(address)
    }

    ["cuMemHostGetFlags", 2030, Context]
    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) |_call| {
        let memory = driver().memory.lock();
        let pinned = memory.pinned_at(address).ok_or(Status::INVALID_VALUE)?;
        if pinned.pages.is_none() {
            return Err(Status::INVALID_VALUE);
        }
        // Memory is always mapped for devices.
        flags.set(pinned.flags | 2)
    }
}
