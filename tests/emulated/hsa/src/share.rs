//! Memory of another process: handles and dma-bufs.
//!
//! A handle says where the memory file is: process, descriptor and inode. Whoever attaches it takes the descriptor from that process (`pidfd_getfd`), or asks
//! its socket where that is refused; so it lives with the process and the allocation.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    backing::Backing,
    pace::takes,
    share::{self, Process},
};

use crate::{
    abi::{Outcome, Status},
    agent::{HOST, Index},
    memory::{Header, Kind},
    runtime::runtime,
    settings,
};

const MAGIC: u32 = 0x4153_4858;
const REALM: &str = "hsa";

/// `hsa_amd_ipc_memory_t`: magic, process, its start (2), descriptor, inode (2), 0.
pub(crate) type Handle = [u32; 8];

static SHARED: Mutex<BTreeMap<u64, Weak<Backing>>> = Mutex::new(BTreeMap::new());

/// Descriptors that were exported as dma-bufs and not closed.
static EXPORTED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// How many exported dma-bufs are open.
pub(crate) fn exported() -> usize {
    EXPORTED.lock().len()
}

/// `hsa_amd_ipc_memory_create`: exactly a whole allocation; its length may be rounded up to pages.
pub(crate) fn create(address: u64, len: u64) -> Outcome<Handle> {
    let memory = runtime().memory.lock();
    let (start, whole, _, backing, _) =
        memory.allocation(address).ok_or(Status::INVALID_ARGUMENT)?;
    drop(memory);
    if !settings::IPC.on()
        || start != address
        || (whole != len && whole.next_multiple_of(4096) != len)
    {
        return Err(Status::INVALID_ARGUMENT);
    }
    let mut shared = SHARED.lock();
    shared.retain(|_, backing| backing.strong_count() > 0);
    shared.insert(backing.inode(), Arc::downgrade(&backing));
    drop(shared);
    if settings::FETCH.get() != 1 {
        // Without a server the handle is good for those who may trace this process.
        let _ = share::serve(REALM, answer);
    }
    let this = Process::this();
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let ([start, start_high], [inode, inode_high]) = (halves(this.start), halves(backing.inode()));
    Ok([
        MAGIC,
        this.id,
        start,
        start_high,
        backing.fd() as u32,
        inode,
        inode_high,
        0,
    ])
}

/// Finds what another process asks this one for.
fn answer(question: &[u8; share::QUESTION]) -> Option<OwnedFd> {
    let mut inode = [0; 8];
    inode.copy_from_slice(&question[20..28]);
    let backing = SHARED.lock().get(&u64::from_le_bytes(inode))?.upgrade()?;
    backing.duplicate().ok()
}

/// `hsa_amd_ipc_memory_attach`: each time another address.
pub(crate) fn attach(handle: Handle, len: u64, agents: Vec<Index>) -> Outcome<u64> {
    takes(Duration::from_micros(settings::ATTACH_US.get()));
    let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let process = Process {
        id: handle[1],
        start: whole(handle[2], handle[3]),
    };
    let mut question = [0; share::QUESTION];
    for (place, word) in question.chunks_exact_mut(4).zip(handle) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    if handle[0] != MAGIC {
        return Err(Status::INVALID_ARGUMENT);
    }
    let by_socket = || share::ask(REALM, process, &question);
    let fd = match settings::FETCH.get() {
        0 => share::take(process, handle[4] as RawFd).or_else(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS) => by_socket(),
            _ => Err(error),
        }),
        1 => share::take(process, handle[4] as RawFd),
        2 => by_socket(),
        _ => Err(std::io::Error::from_raw_os_error(libc::EPERM)),
    };
    let wrong = |_| Status::INVALID_ARGUMENT;
    let backing = Backing::from_file(File::from(fd.map_err(wrong)?)).map_err(wrong)?;
    let header = Header::of(&backing).ok_or(Status::INVALID_ARGUMENT)?;
    if backing.inode() != whole(handle[5], handle[6])
        || (header.len != len && header.len.next_multiple_of(4096) != len)
    {
        return Err(Status::INVALID_ARGUMENT);
    }
    let mut memory = runtime().memory.lock();
    memory.map(
        Kind::Ipc,
        backing,
        (header.offset, header.len),
        header.physical,
        agents,
    )
}

/// `hsa_amd_portable_export_dmabuf`: a descriptor, and where the memory begins in it.
pub(crate) fn export(address: u64, len: u64) -> Outcome<(RawFd, u64)> {
    if len == 0 || address == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let found = runtime().memory.lock().allocation(address);
    let (start, whole, owner, backing, offset) = found.ok_or(Status::INVALID_ALLOCATION)?;
    if whole - (address - start) < len {
        return Err(Status::INVALID_ALLOCATION);
    }
    if owner == HOST {
        return Err(Status::INVALID_AGENT);
    }
    if !settings::DMABUF.on() {
        return Err(Status::OUT_OF_RESOURCES);
    }
    let fd = backing.reopen(0).map_err(|_| Status::OUT_OF_RESOURCES)?;
    let fd = fd.into_raw_fd();
    EXPORTED.lock().push(fd);
    Ok((fd, offset + (address - start)))
}

/// `hsa_amd_portable_close_dmabuf`: takes the descriptor out of the list; the caller closes it.
pub(crate) fn close(fd: RawFd) -> Outcome {
    let mut exported = EXPORTED.lock();
    let place = exported.iter().position(|open| *open == fd);
    exported.swap_remove(place.ok_or(Status::RESOURCE_FREE)?);
    Ok(())
}

/// `hsa_amd_interop_map_buffer`: the whole dma-buf, from its begin.
pub(crate) fn map(fd: BorrowedFd<'_>, agents: Vec<Index>) -> Outcome<(u64, u64)> {
    if agents.is_empty() {
        return Err(Status::INVALID_ARGUMENT);
    }
    let fd = fd.try_clone_to_owned().map_err(|_| Status::ERROR)?;
    let backing = Backing::from_file(File::from(fd)).map_err(|_| Status::ERROR)?;
    let header = Header::of(&backing).ok_or(Status::ERROR)?;
    let len = backing.len();
    let mut memory = runtime().memory.lock();
    let address = memory.map(Kind::DmaBuf, backing, (0, len), header.physical, agents)?;
    Ok((len, address))
}
