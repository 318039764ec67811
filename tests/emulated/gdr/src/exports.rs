#![allow(unsafe_code)]
//! The exported names.
//!
//! # Safety
//! See `lib.rs`.

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use crate::{
    cuda::enter,
    table::{self, Outcome, PAGE},
};

/// `gdr_mh_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Handle {
    number: u64,
}

/// `gdr_info_v2_t`.
#[repr(C)]
struct Info {
    address: u64,
    mapped_size: u64,
    page_size: u32,
    tm_cycles: u64,
    cycles_per_ms: u32,
    /// Bit 0 mapped, bit 1 write combining.
    bits: u32,
    /// 0 none, 1 write combining.
    mapping: u32,
}

const _: () = assert!(size_of::<Info>() == 48 && size_of::<Handle>() == 8);

fn code(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(0)
}

/// The fault that strikes, if any.
macro_rules! enter {
    ($name:literal $(, $argument:expr)*) => {{
        let mut arguments = [0_u64; 4];
        let given: &[u64] = &[$($argument as u64),*];
        arguments.iter_mut().zip(given).for_each(|(place, word)| *place = *word);
        enter($name, arguments)
    }};
}

#[unsafe(no_mangle)]
extern "C" fn gdr_open() -> usize {
    if enter!(c"gdr_open") != 0 {
        return 0;
    }
    table::open().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn gdr_close(session: usize) -> c_int {
    match enter!(c"gdr_close", session) {
        0 => code(table::close(session)),
        fault => fault,
    }
}

fn pin(session: usize, address: u64, size: usize, handle: *mut Handle) -> c_int {
    if handle.is_null() {
        return libc::EINVAL;
    }
    match table::pin(session, address, size) {
        Ok(number) => {
            // SAFETY: not null; the caller's room for a handle.
            unsafe { handle.write(Handle { number }) };
            0
        }
        Err(code) => code,
    }
}

/// Tokens are of drivers long gone: 0 is the only one.
#[unsafe(no_mangle)]
extern "C" fn gdr_pin_buffer(
    session: usize,
    address: u64,
    size: usize,
    token: u64,
    space: u32,
    handle: *mut Handle,
) -> c_int {
    match enter!(c"gdr_pin_buffer", session, address, size) {
        0 if token != 0 || space != 0 => libc::EINVAL,
        0 => pin(session, address, size, handle),
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unpin_buffer(session: usize, handle: Handle) -> c_int {
    match enter!(c"gdr_unpin_buffer", session, handle.number) {
        0 => code(table::unpin(session, handle.number)),
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_get_callback_flag(session: usize, handle: Handle, flag: *mut c_int) -> c_int {
    match enter!(c"gdr_get_callback_flag", session, handle.number) {
        0 if flag.is_null() => libc::EINVAL,
        0 => match table::is_revoked(session, handle.number) {
            Ok(revoked) => {
                // SAFETY: not null; the caller's room for a number.
                unsafe { flag.write(revoked.into()) };
                0
            }
            Err(code) => code,
        },
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_get_info_v2(session: usize, handle: Handle, info: *mut Info) -> c_int {
    match enter!(c"gdr_get_info_v2", session, handle.number) {
        0 if info.is_null() => libc::EINVAL,
        0 => match table::info(session, handle.number) {
            Ok((address, mapped_size, mapped)) => {
                let (bits, mapping) = if mapped { (3, 1) } else { (0, 0) };
                let page_size = PAGE as u32;
                // SAFETY: not null; the caller's room for the struct.
                unsafe {
                    info.write(Info {
                        address,
                        mapped_size,
                        page_size,
                        tm_cycles: 0,
                        cycles_per_ms: 0,
                        bits,
                        mapping,
                    });
                };
                0
            }
            Err(code) => code,
        },
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_map(
    session: usize,
    handle: Handle,
    address: *mut *mut c_void,
    size: usize,
) -> c_int {
    match enter!(c"gdr_map", session, handle.number, size) {
        0 if address.is_null() => libc::EINVAL,
        0 => match table::map(session, handle.number, size) {
            Ok(at) => {
                // SAFETY: not null; the caller's room for an address.
                unsafe { address.write(ptr::with_exposed_provenance_mut(at as usize)) };
                0
            }
            Err(code) => code,
        },
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_unmap(
    session: usize,
    handle: Handle,
    address: *mut c_void,
    size: usize,
) -> c_int {
    match enter!(c"gdr_unmap", session, handle.number, size) {
        0 => code(table::unmap(
            session,
            handle.number,
            address.expose_provenance() as u64,
            size,
        )),
        fault => fault,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_copy_to_mapping(
    handle: Handle,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> c_int {
    let fault = enter!(
        c"gdr_copy_to_mapping",
        handle.number,
        to.expose_provenance(),
        from.expose_provenance(),
        size
    );
    if fault != 0 {
        return fault;
    }
    match table::access(handle.number, to.expose_provenance() as u64, size) {
        Ok(access) => {
            access.check("gdr_copy_to_mapping", size);
            // SAFETY: within the mapping, as was just checked; the caller's bytes.
            unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), size) };
            0
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_copy_from_mapping(
    handle: Handle,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> c_int {
    let fault = enter!(
        c"gdr_copy_from_mapping",
        handle.number,
        to.expose_provenance(),
        from.expose_provenance(),
        size
    );
    if fault != 0 {
        return fault;
    }
    match table::access(handle.number, from.expose_provenance() as u64, size) {
        Ok(access) => {
            access.check("gdr_copy_from_mapping", size);
            // SAFETY: within the mapping, as was just checked; the caller's room.
            unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), size) };
            0
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    if !major.is_null() && !minor.is_null() {
        // SAFETY: not null; the caller's room for two numbers.
        unsafe { (*major, *minor) = (2, 6) };
    }
}
