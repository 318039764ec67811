//! Changes of mappings that the program makes itself.
//!
//! # Safety
//! All memory that is changed was mapped by the scenario, and nothing else refers to it.
#![allow(unsafe_code)]

use std::{io, ptr, thread};

use libc::c_void;
use wharf::{Error, ErrorKind, Result};

use super::stage::Stage;

/// 64 pages.
pub(super) const SIZE: usize = 256 << 10;
const PAGE: usize = 4096;

/// New private memory.
pub(super) fn map(size: usize) -> *mut u8 {
    map_with(size, libc::MAP_PRIVATE, -1)
}

/// New memory, private or shared, of a file or of none.
pub(super) fn map_with(size: usize, flags: libc::c_int, fd: libc::c_int) -> *mut u8 {
    let anonymous = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // SAFETY: where the kernel likes.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            flags | anonymous,
            fd,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    address.cast()
}

/// A call that must not fail.
#[track_caller]
fn done(result: libc::c_int) {
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

pub(super) fn munmap(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    done(unsafe { libc::munmap(memory.cast(), SIZE) });
    Ok(())
}

pub(super) fn munmap_part(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    done(unsafe { libc::munmap(memory.add(8 * PAGE).cast(), PAGE) });
    Ok(())
}

pub(super) fn munmap_direct(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    let result = unsafe { libc::syscall(libc::SYS_munmap, memory, SIZE) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Ok(())
}

pub(super) fn munmap_other_thread(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    let address = memory as usize;
    // SAFETY: see the head of the file.
    let other = thread::spawn(move || done(unsafe { libc::munmap(address as *mut c_void, SIZE) }));
    other.join().expect("no panic");
    Ok(())
}

pub(super) fn mmap_fixed_over(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: see the head of the file.
    let got = unsafe { libc::mmap(memory.cast(), PAGE, libc::PROT_READ, flags, -1, 0) };
    assert_eq!(got, memory.cast());
    Ok(())
}

/// UCX 1.13, where it patched `mremap`, forgets the fifth argument.
fn placed(got: *mut c_void, wanted: *mut u8) -> Result<()> {
    match got == wanted.cast() {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Io,
            format!("MREMAP_FIXED to {wanted:?} went to {got:?}"),
        )),
    }
}

pub(super) fn mremap_onto(stage: &Stage) -> Result<()> {
    let (memory, other) = (map(SIZE), map(SIZE));
    stage.watch(memory, SIZE)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: see the head of the file.
    let got = unsafe { libc::mremap(other.cast(), SIZE, SIZE, flags, memory) };
    placed(got, memory)
}

pub(super) fn mremap_move(stage: &Stage) -> Result<()> {
    let (memory, to) = (map(SIZE), map(SIZE));
    stage.watch(memory, SIZE)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: see the head of the file.
    let got = unsafe { libc::mremap(memory.cast(), SIZE, SIZE, flags, to) };
    placed(got, to)
}

pub(super) fn mremap_dontunmap(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: see the head of the file.
    let got = unsafe { libc::mremap(memory.cast(), SIZE, SIZE, flags, ptr::null_mut::<c_void>()) };
    assert_ne!(got, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    Ok(())
}

pub(super) fn mremap_shrink(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    let got = unsafe { libc::mremap(memory.cast(), SIZE, SIZE / 2, 0) };
    assert_eq!(got, memory.cast());
    Ok(())
}

fn madvise(stage: &Stage, memory: *mut u8, advice: libc::c_int) -> Result<()> {
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    done(unsafe { libc::madvise(memory.add(PAGE).cast(), PAGE, advice) });
    Ok(())
}

pub(super) fn madvise_dontneed(stage: &Stage) -> Result<()> {
    madvise(stage, map(SIZE), libc::MADV_DONTNEED)
}

pub(super) fn madvise_free(stage: &Stage) -> Result<()> {
    madvise(stage, map(SIZE), libc::MADV_FREE)
}

pub(super) fn madvise_remove(stage: &Stage) -> Result<()> {
    let memory = map_with(SIZE, libc::MAP_SHARED, -1);
    madvise(stage, memory, libc::MADV_REMOVE)
}

pub(super) fn madvise_guard_install(stage: &Stage) -> Result<()> {
    /// Linux 6.13.
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    madvise(stage, map(SIZE), MADV_GUARD_INSTALL)
}

pub(super) fn process_madvise(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    let part = libc::iovec {
        iov_base: memory.cast(),
        iov_len: PAGE,
    };
    // SAFETY: takes numbers.
    let this = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    assert!(this >= 0, "{}", io::Error::last_os_error());
    // SAFETY: see the head of the file.
    let got = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            this,
            &raw const part,
            1,
            libc::MADV_DONTNEED,
            0,
        )
    };
    assert_eq!(got, PAGE as libc::c_long, "{}", io::Error::last_os_error());
    Ok(())
}

pub(super) fn io_uring_madvise(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    let mut ring = io_uring::IoUring::new(2).expect("io_uring");
    stage.watch(memory, SIZE)?;
    let entry =
        io_uring::opcode::Madvise::new(memory.cast(), PAGE as libc::off_t, libc::MADV_DONTNEED)
            .build();
    // SAFETY: see the head of the file; the entry refers to nothing else.
    unsafe { ring.submission().push(&entry) }.expect("room for one");
    ring.submit_and_wait(1).expect("io_uring");
    let result = ring.completion().next().expect("waited for").result();
    assert_eq!(result, 0, "io_uring's madvise");
    Ok(())
}

pub(super) fn huge_page_unmapped(stage: &Stage) -> Result<()> {
    const HUGE: usize = 2 << 20;
    let memory = map(2 * HUGE);
    // SAFETY: within the mapping, whose size is twice that.
    let huge = unsafe { memory.add(memory.align_offset(HUGE)) };
    // SAFETY: see the head of the file.
    done(unsafe { libc::madvise(huge.cast(), HUGE, libc::MADV_HUGEPAGE) });
    stage.watch(huge, HUGE)?;
    // SAFETY: see the head of the file.
    done(unsafe { libc::munmap(huge.cast(), HUGE) });
    Ok(())
}

/// The parent's memory does not change.
pub(super) fn munmap_in_forked_child(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: its own copy.
        let result = unsafe { libc::munmap(memory.cast(), SIZE) };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(result) };
    }
    let mut status = -1;
    // SAFETY: waits for our child.
    let got = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!((got, status), (pid, 0), "{}", io::Error::last_os_error());
    Ok(())
}
