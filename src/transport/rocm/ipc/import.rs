//! What other processes give to this one, opened by its kind.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{export::name, way::RocmWay};
use crate::{
    driver::hsa::{Agent, DmaBufMapping, IpcMapping},
    error::{Error, ErrorKind, Result},
    memory::AddressRange,
    transport::{
        accelerator::ipc::{self, descriptor::Allocation},
        rocm::{
            known::Known,
            machine::{Device, Machine, Reach},
            shared::Shared,
        },
    },
    types::MemoryType,
};

/// An allocation of another process, open here.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Where the allocation begins here.
    pub(super) start: u64,
    pub(super) memory_type: MemoryType,
    known: Arc<Known>,
    _memory: Memory,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Before it is closed: no copy finds it any more.
        self.known.forget(self.start, 0);
    }
}

/// Closed by its drop, which may block.
#[derive(Debug)]
#[allow(dead_code)] // Held for its drop.
enum Memory {
    DmaBuf(DmaBufMapping),
    Handle(IpcMapping),
}

/// Opens it. Takes about a millisecond, and more the first time; blocks.
pub(super) fn open(
    shared: &Shared,
    allocation: &Allocation<RocmWay>,
    fd: Option<OwnedFd>,
) -> Result<Opened> {
    let malformed = |text: String| Error::new(ErrorKind::Malformed, text);
    let length = usize::try_from(allocation.length)
        .ok()
        .filter(|length| *length > 0)
        .ok_or_else(|| malformed("no memory, or more than there can be".to_owned()))?;
    let machine = shared.machine()?;
    let ordinal = visible(machine, &allocation.device)?;
    let own = Reach::of([ordinal]);
    let all = machine.device(ordinal)?.reached_by;
    let (start, memory, reach) = match (&allocation.way, fd) {
        (RocmWay::DmaBuf(_, offset), Some(fd)) => {
            let map = |agents: &[Agent]| machine.hsa.map_dma_buf(fd.as_fd(), agents);
            let (mapping, reach) = for_most(machine, all, own, map)?;
            // A copy past its end would cost the whole device.
            let end = offset.checked_add(allocation.length);
            if end.is_none_or(|end| end > mapping.len() as u64) {
                let text = format!(
                    "the peer's dma-buf has {} bytes, and is said to have {length} from {offset} on",
                    mapping.len()
                );
                return Err(malformed(text));
            }
            (mapping.address() + offset, Memory::DmaBuf(mapping), reach)
        }
        (RocmWay::DmaBuf(..), None) => return Err(Error::new(ErrorKind::Io, "no descriptor")),
        (RocmWay::Handle(handle), _) => {
            let attach = |agents: &[Agent]| machine.hsa.attach(handle, length, agents);
            let (mapping, reach) = for_most(machine, all, own, attach)?;
            let here = machine.hsa.inspect(mapping.address())?;
            if here.len < length {
                let text = format!(
                    "the peer's device memory has {} bytes, and is said to have {length}",
                    here.len
                );
                return Err(malformed(text));
            }
            (mapping.address(), Memory::Handle(mapping), reach)
        }
    };
    let range = AddressRange::new(start, allocation.length)?;
    shared.known.import(range, ordinal, reach);
    Ok(Opened {
        start,
        memory_type: MemoryType::Rocm(ordinal),
        known: Arc::clone(&shared.known),
        _memory: memory,
    })
}

/// Opens for all devices that can, or, where that is refused, for its own.
fn for_most<T>(
    machine: &Machine,
    all: Reach,
    own: Reach,
    open: impl Fn(&[Agent]) -> Result<T>,
) -> Result<(T, Reach)> {
    match open(&machine.agents(all)) {
        Ok(opened) => Ok((opened, all)),
        Err(error) if all != own && error.kind() == ErrorKind::InvalidArgument => {
            tracing::debug!(target: "wharf::rocm", "a peer's memory is opened for its device alone: {error}");
            Ok((open(&machine.agents(own))?, own))
        }
        Err(error) => Err(error),
    }
}

/// The device with this name.
fn visible(machine: &Machine, wanted: &[u8; 16]) -> Result<u16> {
    let devices = (0_u16..).zip(&machine.devices);
    let shown = format!("device {}", String::from_utf8_lossy(wanted).escape_debug());
    let named = |(_, device): &(u16, &Device)| name(&device.agent);
    let found = ipc::visible(devices, named, wanted, &shown, "ROCR_VISIBLE_DEVICES")?;
    Ok(found.0)
}
