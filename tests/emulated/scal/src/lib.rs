#![allow(unsafe_code)]
//! An emulated SCAL: the exported names of `libscal.so` by which one learns where a card's memory pool lies.
//!
//! It knows a card by its descriptor alone (`gaudi.rs` of the common parts), whichever emulated library opened it:
//! * a handle is there in the process alone in which SCAL was set up, and for that very descriptor, not for a duplicate (-1);
//! * handles and pools are no canonical addresses; a stale or made-up one is -4 and a misuse;
//! * the info is written in its own 72 bytes and no more.
//!
//! # Environment
//! `EMULATED_SCAL_FAILING=N`: every call gives -N: the library is there and does not work. `EMULATED_SCAL_FAULTS` is a fault plan; its codes are
//! without their sign.
//!
//! # Control
//! `isize wharf_emulated_control(const char *command, char *answer, size_t room)` gives the answer's length, or -1 with a reason: `count NAME`,
//! `counts`, `misuses`, `misused`, `reset`, `fault PLAN…`, `failing N`, `live` (how many handles), and `lie WORD VALUE`: word `WORD` of the 9 of
//! the info is `VALUE` from now on.
//!
//! Tests: `tests/driver/scal.rs`.
//!
//! # Safety
//! The pointers come from a C caller, whose duty is that they are good for the call; null is checked.

// A header's numbers are of all widths; the conversions are what the ABI means.
#![allow(clippy::cast_possible_truncation)]

mod control;

use std::{
    collections::HashMap,
    ffi::{CStr, c_char},
    mem::offset_of,
    os::fd::RawFd,
    sync::OnceLock,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    faults::{Fault, Faults},
    gaudi::Card,
    journal::Journal,
    share::Process,
};

/// `scal_memory_pool_infoV2`; the first 64 bytes are `scal_memory_pool_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PoolInfo {
    scal: u64,
    name: u64,
    index: u32,
    device_base: u64,
    host_base: u64,
    core_base: u32,
    total: u64,
    free: u64,
    allocated_base: u64,
}

const _: () = {
    assert!(size_of::<PoolInfo>() == 72 && offset_of!(PoolInfo, device_base) == 24);
    assert!(offset_of!(PoolInfo, core_base) == 40 && offset_of!(PoolInfo, total) == 48);
    assert!(offset_of!(PoolInfo, allocated_base) == 64);
};

const FAILURE: i32 = -1;
const INVALID_PARAM: i32 = -4;
const NOT_FOUND: i32 = -11;

/// The pool of a handle is the handle with this bit.
const POOL: u64 = 1 << 40;
/// What no canonical address begins with.
const MARK: u64 = 0x0CA1 << 48;

/// The name of the one pool, which lives as long as the library.
static NAME: &CStr = c"global_hbm";

/// SCAL in this process.
#[derive(Debug)]
struct Scal {
    journal: Journal,
    faults: Faults,
    failing: AtomicU64,
    /// Handles and their descriptors; the process in which the handle was given.
    handles: Mutex<HashMap<u64, (RawFd, u32)>>,
    /// Words of the info that are not told as they are.
    lies: Mutex<Vec<(usize, u64)>>,
}

fn scal() -> &'static Scal {
    static SCAL: OnceLock<Scal> = OnceLock::new();
    SCAL.get_or_init(|| {
        let faults = Faults::new();
        if let Ok(plan) = std::env::var("EMULATED_SCAL_FAULTS")
            && let Err(error) = faults.add(&plan)
        {
            eprintln!("emulated SCAL: EMULATED_SCAL_FAULTS: {error}");
        }
        let failing = std::env::var("EMULATED_SCAL_FAILING").ok();
        let failing = failing.and_then(|text| text.parse().ok()).unwrap_or(0);
        Scal {
            journal: Journal::new(),
            faults,
            failing: AtomicU64::new(failing),
            handles: Mutex::default(),
            lies: Mutex::default(),
        }
    })
}

/// Runs the work of an exported function.
fn enter(name: &'static str, arguments: [u64; 4], work: impl FnOnce() -> Result<(), i32>) -> i32 {
    let admitted = || {
        let failing = scal().failing.load(SeqCst);
        if failing != 0 {
            return Err(-(failing as i32));
        }
        match scal().faults.strike(name, None).first() {
            None => work(),
            Some(Fault::Skip) => Ok(()),
            Some(Fault::Code(code) | Fault::Die(code) | Fault::Late(code)) => Err(-(*code as i32)),
        }
    };
    let code = admitted().err().unwrap_or(0);
    scal().journal.call(name, arguments, code.unsigned_abs());
    code
}

/// Writes a result where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Result<(), i32> {
    if to.is_null() {
        return Err(INVALID_PARAM);
    }
    // SAFETY: not null, and the C caller's duty is that it points to room for a T; it may be unaligned.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// The handle of a descriptor: a new one the first time.
fn handle_of(fd: RawFd) -> u64 {
    let mut handles = scal().handles.lock();
    let this = std::process::id();
    let known = handles.iter().find(|(_, known)| **known == (fd, this));
    if let Some((handle, _)) = known {
        return *handle;
    }
    let handle = MARK | ((handles.len() as u64 + 1) << 8);
    handles.insert(handle, (fd, this));
    handle
}

/// The card of a handle, as it is now.
fn card_of(handle: u64) -> Result<Card, i32> {
    let found = scal().handles.lock().get(&handle).copied();
    let card = found
        .filter(|(_, process)| *process == std::process::id())
        .and_then(|(fd, _)| attached(fd));
    card.ok_or_else(|| {
        let text = format!("{handle:#x} is no handle, or its card is closed");
        scal().journal.misuse(text);
        INVALID_PARAM
    })
}

/// The card behind a descriptor, when SCAL was set up on it, by it, in this process.
fn attached(fd: RawFd) -> Option<Card> {
    Card::of(fd).filter(|card| card.scal == Some(Process::this()) && card.scal_fd == fd as u64)
}

#[unsafe(no_mangle)]
extern "C" fn scal_get_handle_from_fd(fd: i32, handle: *mut u64) -> i32 {
    enter("scal_get_handle_from_fd", [fd as u64, 0, 0, 0], || {
        attached(fd).ok_or(FAILURE)?;
        put(handle, handle_of(fd))
    })
}

#[unsafe(no_mangle)]
extern "C" fn scal_get_fd(handle: u64) -> i32 {
    let found = scal().handles.lock().get(&handle).copied();
    found.map_or(-1, |(fd, _)| fd)
}

#[unsafe(no_mangle)]
extern "C" fn scal_get_pool_handle_by_name(
    handle: u64,
    name: *const c_char,
    pool: *mut u64,
) -> i32 {
    enter("scal_get_pool_handle_by_name", [handle, 0, 0, 0], || {
        card_of(handle)?;
        if name.is_null() {
            return Err(INVALID_PARAM);
        }
        // SAFETY: not null, and the C caller's duty is that it ends with a zero byte.
        if unsafe { CStr::from_ptr(name) } != NAME {
            return Err(NOT_FOUND);
        }
        put(pool, handle | POOL)
    })
}

fn pool_info(pool: u64) -> Result<[u64; 9], i32> {
    let handle = pool & !POOL;
    if handle == pool {
        scal().journal.misuse(format!("{pool:#x} is no pool"));
        return Err(INVALID_PARAM);
    }
    let card = card_of(handle)?;
    let name = NAME.as_ptr().expose_provenance() as u64;
    let (base, free) = (card.base, card.free);
    let mut words = [
        handle,
        name,
        1,
        base,
        0,
        0,
        card.len,
        free,
        card.allocated_base,
    ];
    for (word, lie) in &*scal().lies.lock() {
        words[*word] = *lie;
    }
    Ok(words)
}

#[unsafe(no_mangle)]
extern "C" fn scal_pool_get_info(pool: u64, info: *mut [u64; 8]) -> i32 {
    enter("scal_pool_get_info", [pool, 0, 0, 0], || {
        let [a, b, c, d, e, f, g, h, _] = pool_info(pool)?;
        put(info, [a, b, c, d, e, f, g, h])
    })
}

#[unsafe(no_mangle)]
extern "C" fn scal_pool_get_infoV2(pool: u64, info: *mut PoolInfo) -> i32 {
    enter("scal_pool_get_infoV2", [pool, 0, 0, 0], || {
        let words = pool_info(pool)?;
        let told = PoolInfo {
            scal: words[0],
            name: words[1],
            index: words[2] as u32,
            device_base: words[3],
            host_base: words[4],
            core_base: words[5] as u32,
            total: words[6],
            free: words[7],
            allocated_base: words[8],
        };
        put(info, told)
    })
}
