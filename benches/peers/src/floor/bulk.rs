//! Copies of large blocks: by one process, by both ends a half each, by the kernel.
//!
//! # Safety
//!
//! Copies run between buffers of this process and the shared mapping, both longer than what is copied; while one process
//! writes its part of the destination nobody reads that part (the two words in the first lines say whose turn it is).
#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::Outcome;
use crate::half::{Half, LAST, Laps};
use crate::shared::Shared;

const DATA: usize = 4096;

/// One process copies a block from private memory to a mapping that the other one also has. GB a second.
pub(crate) fn memcpy(half: &mut Half) -> Outcome<f64> {
    let size = half.spec.size;
    let shared = Shared::new(half, DATA + size)?;
    half.barrier()?;
    if half.is_a() {
        let source = vec![1_u8; size];
        let mut laps = Laps::start(&half.spec);
        loop {
            for _ in 0..laps.batch() {
                copy(source.as_ptr(), shared.bytes(DATA, size), size);
            }
            if !laps.lap() {
                half.barrier()?;
                return Ok(size as f64 / laps.mean());
            }
        }
    }
    half.barrier()?;
    Ok(0.0)
}

/// Both processes copy a half of each block, from one shared buffer to another. GB a second.
pub(crate) fn halves(half: &mut Half) -> Outcome<f64> {
    let size = half.spec.size;
    let shared = Shared::new(half, DATA + 2 * size)?;
    let lower = size / 2;
    let part = if half.is_a() { 0..lower } else { lower..size };
    let mut work = || -> Outcome<()> {
        copy(
            shared.bytes(DATA + part.start, part.len()),
            shared.bytes(DATA + size + part.start, part.len()),
            part.len(),
        );
        Ok(())
    };
    turns(half, &shared, &mut work)
}

/// The receiver pulls each block by `process_vm_readv`; with `both` it pulls one half and the sender pushes the other. GB a second.
pub(crate) fn cma(half: &mut Half, both: bool) -> Outcome<f64> {
    let size = half.spec.size;
    let shared = Shared::new(half, DATA)?;
    let mut buffer = vec![1_u8; size];
    let lower = if both { size / 2 } else { 0 };
    half.link.send(&format!(
        "{} {}",
        std::process::id(),
        buffer.as_ptr().expose_provenance()
    ))?;
    let line = half.link.receive()?;
    let (pid, base) = line.split_once(' ').ok_or("a pid and an address")?;
    let (pid, base) = (Pid::from_raw(pid.parse()?), base.parse::<usize>()?);
    let pushes = half.is_a();
    let mut work = || -> Outcome<()> {
        let range = if pushes { 0..lower } else { lower..size };
        let len = range.len();
        let remote = RemoteIoVec {
            base: base + range.start,
            len,
        };
        if len == 0 {
            return Ok(());
        }
        let moved = if pushes {
            process_vm_writev(pid, &[IoSlice::new(&buffer[range])], &[remote])
        } else {
            process_vm_readv(pid, &mut [IoSliceMut::new(&mut buffer[range])], &[remote])
        }?;
        if moved == len {
            Ok(())
        } else {
            Err(format!("process_vm moved {moved} of {len} bytes").into())
        }
    };
    turns(half, &shared, &mut work)
}

/// `A` opens a turn, both do their part, `A` waits until `B` has done its own.
fn turns(half: &mut Half, shared: &Shared, work: &mut dyn FnMut() -> Outcome<()>) -> Outcome<f64> {
    let (open, done) = (shared.word(0), shared.word(1));
    half.barrier()?;
    let mut turn = 0;
    if !half.is_a() {
        loop {
            let seen = open.load(Acquire);
            if seen == LAST {
                return Ok(0.0);
            }
            if seen != turn {
                work()?;
                turn = seen;
                done.store(turn, Release);
            }
            spin_loop();
        }
    }
    let mut laps = Laps::start(&half.spec);
    loop {
        for _ in 0..laps.batch() {
            turn += 1;
            open.store(turn, Release);
            work()?;
            while done.load(Acquire) != turn {
                spin_loop();
            }
        }
        if !laps.lap() {
            open.store(LAST, Release);
            return Ok(half.spec.size as f64 / laps.mean());
        }
    }
}

fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: both callers pass `len` valid bytes on either side, in different buffers (see the chapter above).
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    // The copy must not be thought useless.
    std::hint::black_box(to);
}
