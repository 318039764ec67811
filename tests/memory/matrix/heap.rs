//! Changes that an allocator makes, or the end of a thread.
//!
//! # Safety
//! Blocks are freed once; what was freed is not touched. The break is moved while the allocator does not use it.
#![allow(unsafe_code)]

use std::{hint::black_box, io, ptr, thread};

use wharf::Result;

use super::stage::Stage;

const BIG: usize = 64 << 20;
/// Below glibc's limit for the heap of a thread.
const BLOCK: usize = 8 << 20;

fn big_vec(stage: &Stage) -> Result<Vec<u8>> {
    let mut vec = black_box(vec![1_u8; BIG]);
    stage.watch(vec.as_mut_ptr(), BIG)?;
    Ok(vec)
}

pub(super) fn vec_dropped(stage: &Stage) -> Result<()> {
    drop(big_vec(stage)?);
    Ok(())
}

pub(super) fn vec_grown(stage: &Stage) -> Result<()> {
    let mut vec = big_vec(stage)?;
    let old = vec.as_ptr() as usize;
    // It could grow where it is, and nothing would have changed: something has to stand behind it.
    let end = (old + BIG).next_multiple_of(4096);
    for page in 0..2 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = ptr::without_provenance_mut(end + page * 4096);
        // SAFETY: where nothing is; fails if there is.
        unsafe { libc::mmap(at, 4096, libc::PROT_NONE, flags, -1, 0) };
    }
    vec.reserve_exact(2 * BIG);
    assert_ne!(black_box(&vec).as_ptr() as usize, old, "it did not move");
    Ok(())
}

pub(super) fn vec_shrunk(stage: &Stage) -> Result<()> {
    let mut vec = big_vec(stage)?;
    vec.truncate(BIG / 2);
    vec.shrink_to_fit();
    black_box(&vec);
    Ok(())
}

pub(super) fn brk_shrink(stage: &Stage) -> Result<()> {
    // SAFETY: nobody else moves the break: the process does nothing else, and its heap is not full.
    let block = unsafe { libc::sbrk(BLOCK as isize) };
    assert_ne!(block as isize, -1, "{}", io::Error::last_os_error());
    stage.watch(block.cast(), BLOCK)?;
    // SAFETY: what was added above.
    let result = unsafe { libc::brk(block) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    Ok(())
}

/// A block from the allocator's heap, not mapped for itself, and what keeps it from the end of the heap.
#[cfg(target_env = "gnu")]
fn heap_block(trim: libc::c_int) -> (*mut u8, *mut libc::c_void) {
    // SAFETY: settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, trim);
    }
    // SAFETY: the two are checked below.
    let (block, behind) = unsafe { (libc::malloc(BLOCK), libc::malloc(64 << 10)) };
    assert!(!block.is_null() && !behind.is_null());
    (block.cast(), behind)
}

/// Its process is told to have one heap only, at the break.
#[cfg(target_env = "gnu")]
pub(super) fn malloc_trim_end(stage: &Stage) -> Result<()> {
    let (block, behind) = heap_block(1 << 30);
    // SAFETY: asks where the break is.
    let end = unsafe { libc::sbrk(0) };
    assert!(end >= behind, "malloc uses the break");
    stage.watch(block, BLOCK)?;
    // SAFETY: allocated above, in this order from the end of the heap.
    unsafe {
        libc::free(behind);
        libc::free(block.cast());
        libc::malloc_trim(0);
    }
    Ok(())
}

#[cfg(target_env = "gnu")]
pub(super) fn malloc_trim_middle(stage: &Stage) -> Result<()> {
    let (block, behind) = heap_block(1 << 30);
    stage.watch(block, BLOCK)?;
    // SAFETY: allocated above; `behind` stays.
    unsafe {
        libc::free(block.cast());
        libc::malloc_trim(0);
    }
    black_box(behind);
    Ok(())
}

#[cfg(target_env = "gnu")]
pub(super) fn thread_arena_shrink(stage: &Stage) -> Result<()> {
    let in_thread = || {
        let (block, behind) = heap_block(128 << 10);
        stage.watch(block, BLOCK)?;
        // SAFETY: allocated above; the end of the heap is large enough then to be given back.
        unsafe {
            libc::free(behind);
            libc::free(block.cast());
        }
        Ok(())
    };
    thread::scope(|scope| scope.spawn(in_thread).join().expect("no panic"))
}

pub(super) fn thread_stack(stage: &Stage) -> Result<()> {
    let in_thread = || {
        let mut here = 0_u8;
        // A part of the stack that is not in use: far below, and not touched before.
        let unused = (&raw mut here).wrapping_sub(32 << 20);
        stage.watch(unused.map_addr(|address| address & !4095), 1 << 20)
    };
    // More than glibc keeps for the next thread.
    let builder = thread::Builder::new().stack_size(128 << 20);
    thread::scope(|scope| {
        builder
            .spawn_scoped(scope, in_thread)
            .expect("a thread")
            .join()
            .expect("no panic")
    })
}
