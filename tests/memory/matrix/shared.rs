//! Changes of files, System V segments and libraries.
//!
//! # Safety
//! All memory that is changed was mapped by the scenario, and nothing else refers to it.
#![allow(unsafe_code)]

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, FromRawFd},
    ptr,
};

use wharf::Result;

use super::{
    mappings::{SIZE, map, map_with},
    stage::Stage,
};

fn memfd() -> File {
    // SAFETY: a name that ends in zero.
    let fd = unsafe { libc::memfd_create(c"matrix".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: a new descriptor.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(SIZE as u64).expect("memory");
    file
}

pub(super) fn memfd_unmapped(stage: &Stage) -> Result<()> {
    let file = memfd();
    let memory = map_with(SIZE, libc::MAP_SHARED, file.as_raw_fd());
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    let result = unsafe { libc::munmap(memory.cast(), SIZE) };
    assert_eq!(result, 0);
    Ok(())
}

pub(super) fn memfd_truncated(stage: &Stage) -> Result<()> {
    let file = memfd();
    let memory = map_with(SIZE, libc::MAP_SHARED, file.as_raw_fd());
    stage.watch(memory, SIZE)?;
    file.set_len(4096).expect("truncated");
    Ok(())
}

pub(super) fn memfd_hole_punched(stage: &Stage) -> Result<()> {
    let file = memfd();
    let memory = map_with(SIZE, libc::MAP_SHARED, file.as_raw_fd());
    stage.watch(memory, SIZE)?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: of our file.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, SIZE as libc::off_t) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Ok(())
}

pub(super) fn private_file(stage: &Stage) -> Result<()> {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(SIZE as u64).expect("room");
    let memory = map_with(SIZE, libc::MAP_PRIVATE, file.as_raw_fd());
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    let result = unsafe { libc::munmap(memory.cast(), SIZE) };
    assert_eq!(result, 0);
    Ok(())
}

/// Other pages of the same file, by the call that has no use but this.
pub(super) fn pages_remapped(stage: &Stage) -> Result<()> {
    let file = memfd();
    let memory = map_with(SIZE, libc::MAP_SHARED, file.as_raw_fd());
    stage.watch(memory, SIZE)?;
    // SAFETY: the first half shows the second from now on.
    let result =
        unsafe { libc::remap_file_pages(memory.cast(), SIZE / 2, 0, (SIZE / 8192) as _, 0) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Ok(())
}

/// A new segment, gone with its last attachment.
fn attach(at: *const u8, flags: libc::c_int) -> *mut u8 {
    // SAFETY: a segment of nobody else.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, SIZE, libc::IPC_CREAT | 0o600) };
    assert!(id >= 0, "{}", io::Error::last_os_error());
    // SAFETY: where the kernel likes, or over memory of the scenario.
    let memory = unsafe { libc::shmat(id, at.cast(), flags) };
    assert_ne!(memory as isize, -1, "{}", io::Error::last_os_error());
    // SAFETY: only marks it.
    unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) };
    memory.cast()
}

pub(super) fn shmdt(stage: &Stage) -> Result<()> {
    let memory = attach(ptr::null(), 0);
    stage.watch(memory, SIZE)?;
    // SAFETY: see the head of the file.
    let result = unsafe { libc::shmdt(memory.cast()) };
    assert_eq!(result, 0);
    Ok(())
}

pub(super) fn shmat_remap_over_sysv(stage: &Stage) -> Result<()> {
    let memory = attach(ptr::null(), 0);
    stage.watch(memory, SIZE)?;
    assert_eq!(attach(memory, libc::SHM_REMAP), memory);
    Ok(())
}

pub(super) fn shmat_remap_over(stage: &Stage) -> Result<()> {
    let memory = map(SIZE);
    stage.watch(memory, SIZE)?;
    assert_eq!(attach(memory, libc::SHM_REMAP), memory);
    Ok(())
}

/// The dynamic loader unmaps by a system call of its own.
pub(super) fn dlclose(stage: &Stage) -> Result<()> {
    for name in [c"libresolv.so.2", c"libanl.so.1", c"libz.so.1"] {
        let loaded = || fs::read_to_string("/proc/self/maps").expect("a mounted /proc");
        let short = name
            .to_str()
            .expect("ASCII")
            .split(".so")
            .next()
            .expect("a name");
        if loaded().contains(short) {
            continue;
        }
        // SAFETY: a library of the system whose loading runs no code of note.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            continue;
        }
        let maps = loaded();
        let data = maps
            .lines()
            .find(|line| line.contains(short) && line.contains(" rw-p "))
            .and_then(|line| line.split(' ').next()?.split_once('-'))
            .and_then(|(start, end)| {
                let number = |text| usize::from_str_radix(text, 16).ok();
                Some((number(start)?, number(end)?))
            });
        let Some((start, end)) = data else {
            continue;
        };
        stage.watch_as_it_is(ptr::with_exposed_provenance_mut(start), end - start)?;
        // SAFETY: loaded above, and nothing of it is in use.
        let result = unsafe { libc::dlclose(library) };
        assert_eq!(result, 0);
        assert!(!loaded().contains(short), "{short} stays loaded");
        return Ok(());
    }
    panic!("no library of the system to load");
}
