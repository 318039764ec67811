//! dma-bufs: descriptors without bytes, which keep the card busy while any copy of them is open.
//!
//! One is an end of a socket. In it lie a line of text, which says what it is of, and two descriptors on their way: the card's memory, and an open file
//! description of the card with a lock on the export's own byte. A second line says where in that memory its bytes are. They live as long as the socket's last copy, in whichever process.

use std::{
    io::Write,
    os::{
        fd::{AsRawFd, IntoRawFd, RawFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use wharf_emulated_common::{backing::Backing, gaudi, share};

use crate::{
    abi::{Chip, Outcome},
    memory::Place,
    node::{Card, EXPORTS, lock, number},
    session::Session,
};

const PAGE: u64 = 4096;
/// `O_RDWR | O_CLOEXEC`.
pub(crate) const FLAGS: u32 = 0x80002;

/// A dma-buf of mapped device memory.
pub(crate) fn mapped(
    card: &Card,
    session: &Session,
    address: u64,
    size: u64,
    offset: u64,
    flags: u32,
) -> Outcome<RawFd> {
    let mut tables = session.tables()?;
    let aligned = [address, size, offset]
        .iter()
        .all(|n| n.is_multiple_of(PAGE));
    if flags != FLAGS || size == 0 || !aligned || session.chip == Chip::Gaudi {
        return Err(libc::EINVAL);
    }
    let len = tables.memory.mapping(address).ok_or(libc::EINVAL)?;
    if offset.checked_add(size).is_none_or(|end| end > len) {
        return Err(libc::EINVAL);
    }
    let pieces = tables.memory.resolve(address + offset, size);
    let pieces = pieces.map_err(|()| libc::EINVAL)?.into_iter();
    let runs: Vec<String> = pieces
        .filter_map(|(place, len)| match place {
            Place::Device(at) => Some(format!("{at:#x}:{len:#x}")),
            _ => None,
        })
        .collect();
    let part = (address, offset, size);
    let (fd, export) = make(card, &session.backing, part, &runs.join(","))?;
    tables.exports.push((address, export));
    Ok(fd)
}

/// A dma-buf of physical device memory. Its flags are ignored.
pub(crate) fn physical(card: &Card, session: &Session, address: u64, size: u64) -> Outcome<RawFd> {
    let tables = session.tables()?;
    let aligned = address.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
    if size == 0 || !aligned || session.chip != Chip::Gaudi {
        return Err(libc::EINVAL);
    }
    let base = session.chip.dram_base();
    if address < base || !tables.memory.is_known(address, size) {
        return Err(libc::EINVAL);
    }
    Ok(make(card, &session.backing, (address, 0, size), "")?.0)
}

/// A dma-buf of the pool that Synapse has on a card of its own. On the first Gaudi the address is any one, and there is no offset.
pub(crate) fn lent(
    card: &Card,
    lent: &gaudi::Card,
    address: u64,
    size: u64,
    offset: u64,
) -> Outcome<RawFd> {
    let base = lent.allocated_base;
    let end = lent.base + lent.len;
    let aligned = [address, size, offset]
        .iter()
        .all(|n| n.is_multiple_of(PAGE));
    let start = address.checked_add(offset).ok_or(libc::EINVAL)?;
    let leaves = start < base || start.checked_add(size).is_none_or(|last| last > end);
    if size == 0 || !aligned || leaves || (lent.generation != 1 && address != base) {
        return Err(libc::EINVAL);
    }
    let memory = lent.memory().map_err(number)?;
    Ok(make(card, &memory, (base, start - base, size), "")?.0)
}

fn make(
    card: &Card,
    backing: &Backing,
    (address, offset, size): (u64, u64, u64),
    runs: &str,
) -> Outcome<(RawFd, u64)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let export = u64::from(std::process::id()) << 24 | NEXT.fetch_add(1, Relaxed);
    let description = card.description().map_err(number)?;
    if !lock(description.as_raw_fd(), EXPORTS + export as i64)? {
        return Err(libc::EBUSY);
    }
    let (end, mut other) = UnixStream::pair().map_err(number)?;
    let place = card.bus_id();
    let text = format!("{place} {address:#x} {offset:#x} {size:#x}\n{runs}\n");
    other
        .write_all(text.as_bytes())
        .and_then(|()| share::send(&other, backing.fd()))
        .and_then(|()| share::send(&other, description.as_raw_fd()))
        .map_err(number)?;
    Ok((end.into_raw_fd(), export))
}

/// Forgets those that were closed; whether one of the mapping at `address` is open still.
pub(crate) fn is_open(card: &Card, exports: &mut Vec<(u64, u64)>, address: u64) -> bool {
    exports.retain(|(of, export)| *of != address || card.is_exported(Some(*export)));
    exports.iter().any(|(of, _)| *of == address)
}
