#![allow(unsafe_code)]
//! Pages of device memory that the host sees through a window: what the emulated GDRCopy beside this library asks for, by exported names of the
//! emulator's own. All numbers of errors are errnos.
//!
//! # Safety
//! The pointers come from that library alone: null is checked, room is there.

use std::{
    ffi::{CStr, c_char, c_int},
    os::fd::IntoRawFd,
};

use wharf_emulated_common::faults::Fault;

use crate::{
    driver::driver,
    memory::{Kind, Memory},
};

/// Who is told when pages go. Called with the memory's lock held: it calls nothing here.
pub(crate) type Revoked = extern "C" fn(u64);

/// Pages of the device.
const PAGE: u64 = 64 << 10;

/// Pinned pages.
#[derive(Debug)]
pub(crate) struct Pin {
    /// The room that they lie in.
    pub(crate) room: u64,
    pub(crate) revoked: Revoked,
}

/// Pins pages in which there is live memory of `cuMemAlloc`, under a number that `revoked` is told when their room is given back. Writes a descriptor
/// of the bytes, which becomes the caller's, and where in it they begin.
#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_pin(
    number: u64,
    address: u64,
    len: u64,
    revoked: Revoked,
    fd: *mut c_int,
    offset: *mut u64,
) -> c_int {
    if fd.is_null()
        || offset.is_null()
        || !address.is_multiple_of(PAGE)
        || !len.is_multiple_of(PAGE)
    {
        return libc::EINVAL;
    }
    let mut memory = driver().memory.lock();
    let Some((room, backing, at)) = pages(&memory, address, len) else {
        return libc::EINVAL;
    };
    let Ok(descriptor) = backing.duplicate() else {
        return libc::EMFILE;
    };
    memory.pins.insert(number, Pin { room, revoked });
    // SAFETY: not null; the caller's room.
    unsafe { fd.write(descriptor.into_raw_fd()) };
    // SAFETY: as above.
    unsafe { offset.write(at) };
    0
}

/// The room of pages, its bytes, and where in them the pages begin.
fn pages(
    memory: &Memory,
    address: u64,
    len: u64,
) -> Option<(
    u64,
    std::sync::Arc<wharf_emulated_common::backing::Backing>,
    u64,
)> {
    let end = address.checked_add(len).filter(|_| len > 0)?;
    // The last that begins before the end is in the pages if any is.
    let (_, allocation) = memory.allocations.range(..end).next_back()?;
    let at = address.checked_sub(allocation.room)?;
    let inside = allocation.end() > address
        && matches!(allocation.kind, Kind::Device)
        && end - allocation.room <= allocation.backing.len();
    inside.then(|| {
        (
            allocation.room,
            std::sync::Arc::clone(&allocation.backing),
            at,
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_unpin(number: u64) {
    driver().memory.lock().pins.remove(&number);
}

/// Whether all bytes are of one live allocation.
#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_is_live(address: u64, len: u64) -> c_int {
    let memory = driver().memory.lock();
    let allocation = memory.allocation(address);
    c_int::from(allocation.is_some_and(|allocation| len <= allocation.end() - address))
}

/// Counts a call with its four arguments; the errno of a fault that strikes, or 0.
#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_enter(name: *const c_char, arguments: *const [u64; 4]) -> c_int {
    // SAFETY: a constant of a library that is never unloaded.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    let Ok(name) = name.to_str() else {
        return 0;
    };
    // SAFETY: four words of the caller's.
    let arguments = unsafe { arguments.read() };
    crate::settings::load();
    let mut result = 0;
    for fault in driver().faults.strike(name, None) {
        match fault {
            Fault::Code(code) | Fault::Late(code) | Fault::Die(code) => result = code,
            Fault::Skip => {}
        }
    }
    driver().journal.call(name, arguments, result);
    result as c_int
}

#[unsafe(no_mangle)]
extern "C" fn wharf_emulated_misuse(text: *const c_char) {
    // SAFETY: the caller's string.
    let text = unsafe { CStr::from_ptr(text) };
    driver().journal.misuse(text.to_string_lossy().into_owned());
}
