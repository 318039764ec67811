//! Domains and registered memory.
//!
//! # Safety
//! Pointers come from a C caller; see the crate.

use std::{
    ffi::{c_int, c_void},
    fs::File,
    io::Seek,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd},
    ptr,
};

use wharf_emulated_common::{backing::is_pinnable, gaudi, loaded::Library};

use crate::{
    abi::{Context, Mr, Pd},
    plan::{null, plan},
    world::{JOURNAL, MrState, WORLD},
};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    plan!("ibv_alloc_pd", pointer);
    let pd = Box::into_raw(Box::new(Pd { context, handle: 0 }));
    WORLD.lock().pds.insert(pd as usize, context as usize);
    pd
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    plan!("ibv_dealloc_pd", number);
    let mut world = WORLD.lock();
    let at = pd as usize;
    let used = world.mrs.values().any(|mr| mr.pd == at)
        || world.qps.values().any(|qp| qp.pd == at)
        || world.srqs.values().any(|srq| srq.pd == at);
    if used {
        JOURNAL.misuse("ibv_dealloc_pd with objects left".to_owned());
        return libc::EBUSY;
    }
    if world.pds.remove(&at).is_none() {
        return libc::EINVAL;
    }
    // SAFETY: boxed above.
    drop(unsafe { Box::from_raw(pd) });
    0
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut Mr {
    plan!("ibv_reg_mr_iova2", pointer);
    let access = access & 0xf_ffff;
    // Remote writes and atomics need local ones.
    if length == 0 || iova != addr as u64 || (access & 10 != 0 && access & 1 == 0) || access > 31 {
        return null(libc::EINVAL);
    }
    let mut world = WORLD.lock();
    let pinned = is_pinnable(addr as u64, length as u64);
    let file = match world.peermem && !pinned {
        true => peers(addr as u64, length as u64),
        false => None,
    };
    if !pinned && file.is_none() {
        return null(libc::EFAULT);
    }
    let key = world.number();
    let state = MrState {
        pd: pd as usize,
        addr: addr as u64,
        length: length as u64,
        access,
        file,
    };
    world.mrs.insert(key, state);
    // SAFETY: a live domain.
    unsafe { region(pd, addr, length, key) }
}

/// Names of older versions of the header, for rights that every kernel knows.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    // SAFETY: as the caller says.
    unsafe { ibv_reg_mr_iova(pd, addr, length, addr as u64, access) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    if access as u32 > 0xf_ffff {
        return null(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

/// # Safety
/// A live domain.
unsafe fn region(pd: *mut Pd, addr: *mut c_void, length: usize, key: u32) -> *mut Mr {
    // SAFETY: the caller says so.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(Mr {
        context,
        pd,
        addr,
        length,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

/// The file behind memory of the emulated CUDA driver's, and where in it the bytes are: what `nvidia_peermem` knows.
fn peers(address: u64, length: u64) -> Option<(File, Vec<(u64, u64)>)> {
    type Pin = extern "C" fn(u64, u64, u64, extern "C" fn(u64), *mut c_int, *mut u64) -> c_int;
    const PAGE: u64 = 64 << 10;
    extern "C" fn revoked(_: u64) {}
    let number = u64::MAX;
    let start = address / PAGE * PAGE;
    let whole = (address + length).next_multiple_of(PAGE) - start;
    let (mut fd, mut offset) = (-1, 0);
    for driver in Library::with(c"wharf_emulated_pin") {
        // SAFETY: the emulator's functions, of these types.
        let pin: Pin = unsafe { std::mem::transmute(driver.symbol(c"wharf_emulated_pin")) };
        let unpin = driver.symbol(c"wharf_emulated_unpin");
        // SAFETY: as above.
        let unpin: extern "C" fn(u64) = unsafe { std::mem::transmute(unpin) };
        if pin(number, start, whole, revoked, &raw mut fd, &raw mut offset) == 0 {
            // The file keeps what is behind it.
            unpin(number);
            // SAFETY: a descriptor that the call gave to this one.
            let file = unsafe { File::from_raw_fd(fd) };
            return Some((file, vec![(offset + (address - start), length)]));
        }
    }
    None
}

/// The file behind a dma-buf, and where in it `length` bytes from `offset` on are. The files that emulated drivers give for dma-bufs are the memory
/// itself, and where in it a dma-buf begins is the position in the file; those of Gaudi cards tell.
fn behind(given: BorrowedFd<'_>, offset: u64, length: u64) -> Option<(File, Vec<(u64, u64)>)> {
    let mut file = File::from(given.try_clone_to_owned().ok()?);
    if file.metadata().ok()?.is_file() {
        let room = file.metadata().ok()?.len();
        let at = file.stream_position().ok()?.checked_add(offset)?;
        return (at.checked_add(length)? <= room).then(|| (file, vec![(at, length)]));
    }
    let (size, mut runs, start, memory) = gaudi::look(given.as_raw_fd()).ok()?;
    if offset.checked_add(length)? > size {
        return None;
    }
    if runs.is_empty() {
        runs.push((start, size));
    }
    let (mut skip, mut left) = (offset, length);
    for (at, run) in &mut runs {
        let here = run.saturating_sub(skip).min(left);
        let skipped = skip.min(*run);
        (*at, *run) = (*at + skipped, here);
        (skip, left) = (skip - skipped, left - here);
    }
    Some((File::from(memory), runs))
}

/// In the order of the kernel's checks: whether the device can, the descriptor, the range.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    const PAGE: u64 = 4096;
    plan!("ibv_reg_dmabuf_mr", pointer);
    let mut world = WORLD.lock();
    if !world.dmabuf {
        return null(libc::EOPNOTSUPP);
    }
    let access = access as u32 & 0xf_ffff;
    let malformed = length == 0 || (offset ^ iova) & (PAGE - 1) != 0;
    if malformed || (access & 10 != 0 && access & 1 == 0) || access > 31 {
        return null(libc::EINVAL);
    }
    if fd < 0 {
        return null(libc::EBADF);
    }
    // SAFETY: open by the caller's word; it stays the caller's.
    let given = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(file) = behind(given, offset, length as u64) else {
        return null(libc::EINVAL);
    };
    let key = world.number();
    let state = MrState {
        pd: pd as usize,
        addr: iova,
        length: length as u64,
        access,
        file: Some(file),
    };
    world.mrs.insert(key, state);
    // SAFETY: a live domain.
    unsafe { region(pd, ptr::null_mut(), length, key) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    plan!("ibv_dereg_mr", number);
    // SAFETY: boxed above, and given once.
    let mr = unsafe { Box::from_raw(mr) };
    match WORLD.lock().mrs.remove(&mr.lkey) {
        Some(_) => 0,
        None => libc::EINVAL,
    }
}
