//! Copies that no device makes alone, through memory of the host's pool, by a thread of their own: of host memory that cannot be locked, and between two devices
//! of which neither reaches the other's memory.
//!
//! # Safety
//! The user's memory is touched while it is known that the copy was not given up (`Alive`), which is held for each touch. Memory that the device may
//! still touch is never freed.
#![allow(unsafe_code)]

use std::{mem::ManuallyDrop, ptr, time::Duration};

use super::{failure::failure, machine::Machine, shared::Shared};
use crate::{
    driver::hsa::{Allocation, CopyEnd, Signal},
    error::Result,
    transport::accelerator::staging::{Alive, pieces, room},
};

/// How often it is looked whether the device is there still.
const LOOK: Duration = Duration::from_millis(20);

/// One end.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    /// Host memory.
    Host(u64),
    /// Memory that this device reaches.
    Device(u16, u64),
}

/// A copy.
pub(super) struct Staged {
    pub(super) from: Spot,
    pub(super) to: Spot,
    pub(super) length: usize,
}

/// Copies piece by piece. Blocks.
/// Errors: `Exhausted`: no memory for it; `Canceled`: it was given up; what the runtime said.
pub(super) fn stage(shared: &Shared, copy: &Staged, alive: &Alive) -> Result<()> {
    let machine = shared.machine()?;
    alive.stops(copy.length as u64);
    let mut block = Block::new(machine, copy.length)?;
    for (done, length) in pieces(copy.length as u64) {
        block.fill(machine, copy.from.at(done), length as usize, alive)?;
        block.empty(machine, copy.to.at(done), length as usize, alive)?;
    }
    Ok(())
}

impl Spot {
    fn at(self, offset: u64) -> Self {
        match self {
            Self::Host(address) => Self::Host(address + offset),
            Self::Device(device, address) => Self::Device(device, address + offset),
        }
    }
}

/// Memory between the two. Stays when the device may still touch it.
struct Block {
    memory: ManuallyDrop<Allocation>,
    signal: ManuallyDrop<Signal>,
    busy: bool,
}

impl Block {
    fn new(machine: &Machine, length: usize) -> Result<Self> {
        let memory = machine.host_pool.allocate(room(length as u64) as usize)?;
        memory.allow(&machine.agents(machine.everybody()))?;
        Ok(Self {
            signal: ManuallyDrop::new(machine.hsa.signal(0)?),
            memory: ManuallyDrop::new(memory),
            busy: false,
        })
    }

    /// From there into the block.
    fn fill(&mut self, machine: &Machine, from: Spot, length: usize, alive: &Alive) -> Result<()> {
        let here = self.memory.address();
        match from {
            Spot::Host(address) => touch(here, address, length, alive),
            Spot::Device(device, address) => {
                let there = end(machine, device, address)?;
                self.copy(machine, self.end(machine), there, length, alive)
            }
        }
    }

    /// From the block to there.
    fn empty(&mut self, machine: &Machine, to: Spot, length: usize, alive: &Alive) -> Result<()> {
        let here = self.memory.address();
        match to {
            Spot::Host(address) => touch(address, here, length, alive),
            Spot::Device(device, address) => {
                let there = end(machine, device, address)?;
                self.copy(machine, there, self.end(machine), length, alive)
            }
        }
    }

    fn end(&self, machine: &Machine) -> CopyEnd {
        CopyEnd {
            address: self.memory.address(),
            agent: machine.host,
        }
    }

    /// Has the device of one end copy, and waits for it.
    fn copy(
        &mut self,
        machine: &Machine,
        to: CopyEnd,
        from: CopyEnd,
        length: usize,
        alive: &Alive,
    ) -> Result<()> {
        self.signal.store(1);
        // Not begun once it was given up: the other end may be freed then.
        alive.touch(|| {
            // SAFETY: the block stays until the signal has fallen, or for ever; the caller looked whether the device reaches its own memory.
            unsafe { machine.hsa.copy(to, from, length, &[], &self.signal) }
        })?;
        self.busy = true;
        let value = loop {
            match self.signal.wait(1, LOOK) {
                1.. => alive.touch(|| Ok(()))?,
                value => break value,
            }
        };
        self.busy = false;
        match value {
            ..0 => Err(failure(value)),
            _ => Ok(()),
        }
    }
}

fn end(machine: &Machine, device: u16, address: u64) -> Result<CopyEnd> {
    let agent = machine.device(device)?.agent;
    Ok(CopyEnd { address, agent })
}

/// Has the processor copy, where one of the ends is the user's and the other the block's.
fn touch(to: u64, from: u64, length: usize, alive: &Alive) -> Result<()> {
    let pointer = |at: u64| ptr::with_exposed_provenance_mut::<u8>(at as usize);
    alive.touch(|| {
        // SAFETY: the user's memory is there, as the copy was not given up; the block is as long. Nobody copies to or from it now.
        unsafe { ptr::copy_nonoverlapping(pointer(from).cast_const(), pointer(to), length) };
        Ok(())
    })
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.busy {
            return;
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.signal) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
