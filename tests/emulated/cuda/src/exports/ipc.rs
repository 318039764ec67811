#![allow(unsafe_code)]
//! Memory of another process by the oldest way. Handles go by value: 64 bytes on the stack.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use crate::{
    abi::{Opaque, Out},
    driver::driver,
    gate::exports,
    ipc,
};

exports! {
    ["cuIpcGetMemHandle", 4010, Context]
    fn cuIpcGetMemHandle(handle: Out<Opaque>, address: u64) |_call| {
        let token = ipc::export(&driver().memory.lock(), address)?;
        handle.set(token.bytes())
    }

    ["cuIpcOpenMemHandle", 11000, Context]
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: Opaque, flags: u32) |call| {
        address.set(0)?;
        address.set(ipc::open(call.context()?, &handle, flags)?)
    }

    ["cuIpcCloseMemHandle", 4010, Context]
    fn cuIpcCloseMemHandle(address: u64) |_call| {
        let gone = driver().memory.lock().close(address)?;
        drop(gone);
        Ok(())
    }
}
