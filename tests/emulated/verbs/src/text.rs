//! Names of numbers, and what else programs ask a library for that is no device's.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    ffi::{CStr, c_char, c_int},
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
    slice,
};

/// The name at `index`, else what stands for all others.
fn named(names: &[&'static CStr], index: c_int, other: &'static CStr) -> *const c_char {
    let name = usize::try_from(index).ok().and_then(|at| names.get(at));
    name.copied().unwrap_or(other).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    named(&NAMES, kind, c"unknown")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [
        c"unchanged",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active, deferred",
    ];
    named(&NAMES, state, c"unknown")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(kind: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"completion queue failed",
        c"queue pair failed",
        c"queue pair got an invalid request",
        c"queue pair got a request without rights",
        c"first message came before the queue pair was ready",
        c"send queue drained",
        c"path changed",
        c"path did not change",
        c"device failed",
        c"port active",
        c"port down",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"shared receive queue failed",
        c"shared receive queue below its limit",
        c"queue pair takes no more shared receives",
        c"clients are to register again",
        c"GID change",
        c"work queue failed",
    ];
    named(&NAMES, kind, c"unknown")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"message longer than its receive",
        c"malformed request",
        c"malformed end-to-end context",
        c"local memory not registered for it",
        c"flushed",
        c"memory window not bound",
        c"bad response",
        c"local access refused",
        c"peer found the request invalid",
        c"peer refused access",
        c"peer could not complete the request",
        c"no answer after all tries",
        c"no receive after all tries",
        c"reliable datagram domains differ",
        c"peer found the reliable datagram invalid",
        c"aborted by the peer",
        c"no such end-to-end context",
        c"end-to-end context not ready",
        c"fatal",
        c"response timed out",
        c"other error",
        c"tag matching failed",
        c"tag matching left to software",
    ];
    named(&NAMES, status, c"unknown")
}

/// Reads a file of the kernel's into `to`, without the end of its line: its length, or −1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    name: *const c_char,
    to: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: strings and a buffer of the caller's.
    let (folder, name, to) = unsafe {
        (
            CStr::from_ptr(folder),
            CStr::from_ptr(name),
            slice::from_raw_parts_mut(to.cast::<u8>(), room),
        )
    };
    // An emulated device has no folder there.
    if folder.is_empty() || room == 0 {
        return -1;
    }
    let folder = Path::new(std::ffi::OsStr::from_bytes(folder.to_bytes()));
    let path = folder.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let Ok(mut length) = File::open(path).and_then(|mut file| file.read(to)) else {
        return -1;
    };
    if length > 0 && to[length - 1] == b'\n' {
        length -= 1;
    }
    if length < room {
        to[length] = 0;
    }
    c_int::try_from(length).unwrap_or(-1)
}

/// Nothing is pinned, so nothing is to be kept from children.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
