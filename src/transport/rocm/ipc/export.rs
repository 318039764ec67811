//! What this process gives to others.

use std::os::fd::OwnedFd;

use super::way::{DMA_BUF, RocmWay};
use crate::{
    driver::hsa::Agent,
    error::{Error, ErrorKind, Result},
    transport::{
        accelerator::ipc::{
            Shared, Sharing, Tickets,
            handover::{Wanted, stale},
        },
        rocm::{known::Seen, machine::Machine},
    },
    types::MemoryType,
};

/// See [`Sharing::share`].
pub(super) fn share(
    machine: &Machine,
    address: u64,
    seen: Option<&Seen>,
    tickets: &Tickets<impl Sharing>,
) -> Result<Result<Shared<RocmWay>, String>> {
    let Some(seen) = seen else {
        let text = format!(
            "no allocation of ROCm is at {address:#x}, or it was freed, or is another process's"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    };
    let MemoryType::Rocm(ordinal) = seen.memory_type else {
        return Ok(Err("it is pinned host memory".to_owned()));
    };
    let device = name(&machine.device(ordinal)?.agent)?;
    let (base, length) = (seen.range.start(), seen.range.len());
    let Ok(bytes) = usize::try_from(length) else {
        return Ok(Err("it is longer than memory can be".to_owned()));
    };
    let offset = match machine.hsa.has_dma_buf()? {
        // To see that it can be had, and where the memory begins in it: nobody keeps it.
        true => machine
            .hsa
            .export_dma_buf(base, bytes)
            .map(|made| made.offset()),
        false => Err(Error::new(
            ErrorKind::Unsupported,
            "the runtime exports no dma-bufs",
        )),
    };
    let way = match offset {
        Ok(offset) => {
            let wanted = Wanted {
                kind: DMA_BUF,
                base,
                id: seen.id,
            };
            RocmWay::DmaBuf(tickets.ticket(wanted)?, offset)
        }
        Err(why) => {
            tracing::debug!(target: "wharf::rocm", "{} goes by a handle: {why}", seen.range);
            RocmWay::Handle(machine.hsa.export_handle(base, bytes)?)
        }
    };
    Ok(Ok(Shared {
        device,
        base,
        length,
        way,
    }))
}

/// A dma-buf of an allocation that was exported, if it still is the same.
pub(super) fn hand_over(
    shared: &std::sync::Arc<crate::transport::rocm::shared::Shared>,
    wanted: Wanted,
) -> Result<OwnedFd> {
    let machine = shared.machine()?;
    let still = || {
        let seen = shared.known.see(machine, wanted.base, false)?;
        seen.filter(|seen| seen.id == wanted.id && seen.range.start() == wanted.base)
            .ok_or_else(stale)
    };
    if wanted.kind != DMA_BUF {
        return Err(stale());
    }
    let length = usize::try_from(still()?.range.len()).map_err(|_| stale())?;
    let made = machine.hsa.export_dma_buf(wanted.base, length)?.into_fd()?;
    // Once more when it is held: then nothing can change any more.
    still()?;
    Ok(made)
}

/// Who a device is, in 16 bytes that are the same in all processes of the host: its number, or where on PCI it is.
pub(super) fn name(agent: &Agent) -> Result<[u8; 16]> {
    let mut name = [0; 16];
    if let Some(text) = agent.uuid()?
        && let Some(digits) = text.strip_prefix("GPU-")
        && digits.len() == name.len()
    {
        name.copy_from_slice(digits.as_bytes());
        return Ok(name);
    }
    let place = agent.pci_address()?;
    name[..4].copy_from_slice(b"pci:");
    name[4..8].copy_from_slice(&place.domain.to_le_bytes());
    name[8..11].copy_from_slice(&[place.bus, place.device, place.function]);
    Ok(name)
}
