//! Copies from or to host memory that cannot be locked, through memory of the host's pool, by a thread of their own.
//!
//! # Safety
//! The user's memory is touched while it is known that the copy was not given up (`Alive`), which is held for each touch. Memory that the device may
//! still touch is never freed.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, ptr, time::Duration};

use super::{failure::failure, shared::Shared};
use crate::{
    driver::hsa::{Allocation, CopyEnd, Signal},
    error::Result,
    transport::accelerator::staging::{Alive, pieces, room},
};

/// How often it is looked whether the device is there still.
const LOOK: Duration = Duration::from_millis(20);

/// A copy.
pub(super) struct Staged {
    pub(super) device: u16,
    pub(super) host: u64,
    pub(super) at: u64,
    pub(super) length: usize,
    pub(super) to_device: bool,
}

/// Copies piece by piece. Blocks.
///
/// # Errors
/// `Exhausted`: no memory for it; `Canceled`: it was given up; what the runtime said.
pub(super) fn stage(shared: &Shared, copy: &Staged, alive: &Alive) -> Result<()> {
    let machine = shared.machine()?;
    alive.stops(copy.length as u64);
    let block = machine
        .host_pool
        .allocate(room(copy.length as u64) as usize)?;
    block.allow(&machine.agents(machine.everybody()))?;
    let mut block = Block {
        allocation: ManuallyDrop::new(block),
        signal: ManuallyDrop::new(machine.hsa.signal(0)?),
        busy: false,
    };
    let (device, here) = (
        machine.device(copy.device)?.agent,
        block.allocation.address(),
    );
    for (done, length) in pieces(copy.length as u64) {
        let length = length as usize;
        let (host, at) = (copy.host + done, copy.at + done);
        let pointer = |at: u64| ptr::with_exposed_provenance_mut::<u8>(at as usize);
        let touch = |to: u64, from: u64| {
            // SAFETY: the user's memory is there, as the copy was not given up; the block is as long. Nobody copies to or from it now.
            let copy = || unsafe {
                ptr::copy_nonoverlapping(pointer(from).cast_const(), pointer(to), length);
            };
            alive.touch(|| {
                copy();
                Ok(())
            })
        };
        if copy.to_device {
            touch(here, host)?;
        }
        let (ours, theirs) = (
            CopyEnd {
                address: here,
                agent: machine.host,
            },
            CopyEnd {
                address: at,
                agent: device,
            },
        );
        let (to, from) = match copy.to_device {
            true => (theirs, ours),
            false => (ours, theirs),
        };
        block.signal.store(1);
        // SAFETY: the block stays until the signal has fallen, or for ever; the caller looked whether the device reaches its own memory.
        unsafe { machine.hsa.copy(to, from, length, &[], &block.signal) }?;
        block.busy = true;
        let value = loop {
            match block.signal.wait(1, LOOK) {
                1.. => alive.touch(|| Ok(()))?,
                value => break value,
            }
        };
        block.busy = false;
        if value < 0 {
            return Err(failure(value));
        }
        if !copy.to_device {
            touch(host, here)?;
        }
    }
    Ok(())
}

/// Memory between the two. Stays when the device may still touch it.
struct Block {
    allocation: ManuallyDrop<Allocation>,
    signal: ManuallyDrop<Signal>,
    busy: bool,
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.busy {
            return;
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.signal) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.allocation) };
    }
}
