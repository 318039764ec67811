#![allow(unsafe_code)]
//! Before all else: `cuInit`, versions, the names of errors, the look-up of functions.
//!
//! # Safety
//! The names are exported as they are: no other library of the program defines them, unless it is a CUDA driver itself.

use std::ffi::c_char;

use crate::{
    abi::{In, Out, Outcome, Status},
    driver::driver,
    exports,
    gate::{self, Symbol, exports},
    settings,
};

exports! {
    ["cuInit", 2000, Init]
    fn cuInit(flags: u32) |_call| {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if driver().devices.is_empty() {
            return Err(Status::NO_DEVICE);
        }
        gate::initialise();
        Ok(())
    }

    ["cuDriverGetVersion", 2020, Nothing]
    fn cuDriverGetVersion(version: Out<i32>) |_call| {
        version.set(settings::VERSION.get() as i32)
    }

    ["cuGetErrorName", 6000, Nothing]
    fn cuGetErrorName(error: u32, text: Out<*const c_char>) |_call| {
        let Some((name, _)) = Status(error).words() else {
            text.set(std::ptr::null())?;
            return Err(Status::INVALID_VALUE);
        };
        text.set(name.as_ptr())
    }

    ["cuGetErrorString", 6000, Nothing]
    fn cuGetErrorString(error: u32, text: Out<*const c_char>) |_call| {
        let Some((_, phrase)) = Status(error).words() else {
            text.set(std::ptr::null())?;
            return Err(Status::INVALID_VALUE);
        };
        text.set(phrase.as_ptr())
    }

    ["cuGetProcAddress", 12000, Nothing]
    fn cuGetProcAddress_v2(
        name: In<c_char>,
        function: Out<*const ()>,
        version: i32,
        flags: u64,
        status: Out<u32>,
    ) |_call| {
        let (address, found) = look_up(&name, version, flags)?;
        // A success either way: who reads the address alone has none.
        status.offer(found);
        function.set(address)
    }

    ["cuGetProcAddress", 11030, Nothing]
    fn cuGetProcAddress(name: In<c_char>, function: Out<*const ()>, version: i32, flags: u64) |_call| {
        let (address, _) = look_up(&name, version, flags)?;
        function.set(address)?;
        if address.is_null() { Err(Status::NOT_FOUND) } else { Ok(()) }
    }

    // The tables behind it are nowhere documented; libcudart needs them, and so does not run on this driver.
    ["cuGetExportTable", 3000, Nothing]
    fn cuGetExportTable(table: Out<*const ()>, _id: In<[u8; 16]>) |_call| {
        table.set(std::ptr::null())?;
        Err(Status::NOT_FOUND)
    }
}

/// The newest function of a base name that both the caller's version and the driver's have, and
/// `CUdriverProcAddressQueryResult`: 0 found, 1 not found, 2 only in versions that the caller does not ask for.
fn look_up(name: &In<c_char>, version: i32, flags: u64) -> Outcome<(*const (), u32)> {
    let name = name.text()?;
    let version = u64::try_from(version).map_err(|_| Status::INVALID_VALUE)?;
    // Flags: 1 the legacy default stream, 2 a thread's own; both are one stream here.
    if version > settings::VERSION.get() || flags & !3 != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let named = |symbol: &&Symbol| {
        symbol.base == name && u64::from(symbol.since) <= settings::VERSION.get()
    };
    let best = exports::symbols()
        .filter(named)
        .filter(|symbol| u64::from(symbol.since) <= version)
        .max_by_key(|symbol| symbol.since);
    Ok(match best {
        Some(symbol) => (symbol.address, 0),
        None if exports::symbols().any(|symbol| named(&symbol)) => (std::ptr::null(), 2),
        None => (std::ptr::null(), 1),
    })
}
