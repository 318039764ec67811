//! Memory and events of another process.
//!
//! A handle says where the memory file is: process, descriptor and inode. Whoever opens it takes the descriptor from that
//! process (`pidfd_getfd`), or asks its socket where that is refused. A fabric handle always goes by the socket: there the
//! processes need not see each other's ids.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use wharf_emulated_common::{
    backing::Backing,
    pace::Looks,
    share::{self, Process},
};

use crate::{
    abi::{Opaque, Outcome, Status},
    context::Context,
    device,
    driver::driver,
    memory::{Allocation, BLOCK, Kind, Memory},
    settings, vmm,
};

const MAGIC: u32 = 0x5743_5544;
const REALM: &str = "cuda";

/// What a handle is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum Of {
    Memory = 1,
    Event = 2,
    FabricMemory = 3,
    FabricPool = 4,
    PoolPointer = 5,
}

/// A handle's 64 bytes.
///
/// ```text
///  0 magic   4 kind   8 process   12 descriptor   16 start time   24 inode
/// 32 offset 40 length 48 device   52 0            56 cluster
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    of: u32,
    process: Process,
    fd: i32,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    physical: u32,
    cluster: u64,
}

impl Token {
    /// A handle of `len` bytes at `offset` of `backing`, on a device.
    pub(crate) fn new(
        of: Of,
        backing: &Arc<Backing>,
        offset: u64,
        len: u64,
        device: usize,
    ) -> Self {
        let mut shared = SHARED.lock();
        shared.retain(|_, backing| backing.strong_count() > 0);
        shared.insert(backing.inode(), Arc::downgrade(backing));
        drop(shared);
        if settings::FETCH.get() != 1 || of == Of::FabricMemory || of == Of::FabricPool {
            // Without a server the handle is good for those who may trace this process.
            let _ = share::serve(REALM, answer);
        }
        Self {
            of: of as u32,
            process: Process::this(),
            fd: backing.fd(),
            inode: backing.inode(),
            offset,
            len,
            physical: driver()
                .devices
                .get(device)
                .map_or(0, |device| device.physical),
            cluster: settings::CLUSTER.get(),
        }
    }

    /// As it travels.
    pub(crate) fn bytes(&self) -> Opaque {
        let mut bytes = [0; 64];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(0, &MAGIC.to_le_bytes());
        put(4, &self.of.to_le_bytes());
        put(8, &self.process.id.to_le_bytes());
        put(12, &self.fd.to_le_bytes());
        put(16, &self.process.start.to_le_bytes());
        put(24, &self.inode.to_le_bytes());
        put(32, &self.offset.to_le_bytes());
        put(40, &self.len.to_le_bytes());
        put(48, &self.physical.to_le_bytes());
        put(56, &self.cluster.to_le_bytes());
        Opaque(bytes)
    }

    /// What came.
    pub(crate) fn parse(bytes: &[u8; 64], of: Of) -> Outcome<Self> {
        let long = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let short = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        if short(0) != MAGIC || short(4) != of as u32 {
            return Err(Status::INVALID_HANDLE);
        }
        Ok(Self {
            of: of as u32,
            process: Process {
                id: short(8),
                start: long(16),
            },
            fd: short(12) as i32,
            inode: long(24),
            offset: long(32),
            len: long(40),
            physical: short(48),
            cluster: long(56),
        })
    }

    /// Whether it came from this process.
    fn is_own(&self) -> bool {
        self.process == Process::this()
    }

    /// The memory file behind it.
    ///
    /// What has been freed, or whose process has ended, is an invalid value; what this process may not have cannot be
    /// mapped.
    fn fetch(&self) -> Outcome<Backing> {
        let fd = self
            .descriptor()
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Status::MAP_FAILED,
                _ => Status::INVALID_VALUE,
            })?;
        let backing = Backing::from_file(File::from(fd)).map_err(|_| Status::INVALID_VALUE)?;
        if backing.inode() != self.inode {
            return Err(Status::INVALID_VALUE);
        }
        Ok(backing)
    }

    fn descriptor(&self) -> std::io::Result<OwnedFd> {
        let by_socket = || share::ask(REALM, self.process, &self.bytes().0);
        if self.of == Of::FabricMemory as u32 || self.of == Of::FabricPool as u32 {
            return by_socket();
        }
        match settings::FETCH.get() {
            0 => share::take(self.process, self.fd).or_else(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS) => by_socket(),
                _ => Err(error),
            }),
            1 => share::take(self.process, self.fd),
            2 => by_socket(),
            _ => Err(std::io::Error::from_raw_os_error(libc::EPERM)),
        }
    }
}

static SHARED: Mutex<BTreeMap<u64, Weak<Backing>>> = Mutex::new(BTreeMap::new());

/// Finds what another process asks this one for.
fn answer(question: &[u8; share::QUESTION]) -> Option<OwnedFd> {
    let mut inode = [0; 8];
    inode.copy_from_slice(&question[24..32]);
    let backing = SHARED.lock().get(&u64::from_le_bytes(inode))?.upgrade()?;
    backing.duplicate().ok()
}

/// Another process's room, open here.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) room: u64,
    pub(crate) context: u64,
    backing: Arc<Backing>,
    times: u32,
    process: Process,
    device: usize,
    /// Ordinal of the device of the context that opened it.
    by: usize,
}

/// `cuIpcGetMemHandle`: of the whole allocation, and with it the room that it shares.
pub(crate) fn export(memory: &Memory, address: u64) -> Outcome<Token> {
    let allocation = memory.allocation(address).ok_or(Status::INVALID_VALUE)?;
    if !matches!(allocation.kind, Kind::Device) {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Token::new(
        Of::Memory,
        &allocation.backing,
        allocation.offset,
        allocation.len,
        allocation.device,
    ))
}

/// `cuIpcOpenMemHandle`.
pub(crate) fn open(context: &Arc<Context>, handle: &Opaque, flags: u32) -> Outcome<u64> {
    if flags != 1 {
        return Err(Status::INVALID_VALUE);
    }
    let token = Token::parse(&handle.0, Of::Memory)?;
    if token.is_own() {
        return Err(Status::INVALID_CONTEXT);
    }
    wait_while_held();
    let device = vmm::visible(token.physical)?;
    if device != context.device && !device::can_reach(context.device, device) {
        return Err(Status::PEER_ACCESS_UNSUPPORTED);
    }
    let backing = Arc::new(token.fetch()?);
    if token
        .offset
        .checked_add(token.len)
        .is_none_or(|end| end > backing.len())
    {
        return Err(Status::INVALID_HANDLE);
    }
    driver()
        .memory
        .lock()
        .open(context, &token, device, backing)
}

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Openings that wait for `open_held` to be 0.
pub(crate) fn held() -> usize {
    HELD.load(Relaxed)
}

fn wait_while_held() {
    HELD.fetch_add(1, Relaxed);
    let start = Instant::now();
    let limit = Duration::from_millis(settings::HANG_MS.get());
    let mut looks = Looks::new();
    while settings::OPEN_HELD.get() != 0 {
        looks.pause();
        if start.elapsed() > limit {
            eprintln!(
                "emulated CUDA driver: an opening was held for more than {limit:?} (hang_ms)"
            );
            std::process::abort();
        }
    }
    HELD.fetch_sub(1, Relaxed);
}

impl Memory {
    fn open(
        &mut self,
        context: &Arc<Context>,
        token: &Token,
        device: usize,
        backing: Arc<Backing>,
    ) -> Outcome<u64> {
        // The memory of one device of one process goes to one context of each device here.
        let elsewhere = self.opened.values().any(|opened| {
            opened.process == token.process
                && opened.device == device
                && opened.context != context.id
                && opened.by == context.device
        });
        if elsewhere {
            return Err(Status::ALREADY_MAPPED);
        }
        if !self.opened.contains_key(&token.inode) {
            let room = self.reserve_room(backing.len(), BLOCK)?;
            self.opened.insert(
                token.inode,
                Opened {
                    room,
                    context: context.id,
                    backing,
                    times: 0,
                    process: token.process,
                    device,
                    by: context.device,
                },
            );
        }
        let opened = self
            .opened
            .get_mut(&token.inode)
            .ok_or(Status::INVALID_VALUE)?;
        if opened.context != context.id {
            // The table knows one place of each room.
            return Err(Status::ALREADY_MAPPED);
        }
        opened.times += 1;
        let (room, backing) = (opened.room, Arc::clone(&opened.backing));
        let address = room + token.offset;
        if let Some(allocation) = self.allocations.get_mut(&address)
            && let Kind::Opened { times, .. } = &mut allocation.kind
        {
            *times += 1;
            return Ok(address);
        }
        self.enter(room);
        self.insert(Allocation {
            address,
            len: token.len,
            id: driver().number(),
            device,
            context: Some((context.handle, context.id)),
            kind: Kind::Opened {
                inode: token.inode,
                times: 1,
            },
            backing,
            offset: token.offset,
            room,
            sync_memops: false,
            preferred: -2,
            _used: None,
        });
        Ok(address)
    }

    /// `cuIpcCloseMemHandle`: exactly the address that opening gave. To be dropped without the lock.
    pub(crate) fn close(&mut self, address: u64) -> Outcome<Option<Allocation>> {
        let allocation = self
            .allocations
            .get_mut(&address)
            .ok_or(Status::INVALID_VALUE)?;
        let Kind::Opened { inode, times } = &mut allocation.kind else {
            return Err(Status::INVALID_VALUE);
        };
        let inode = *inode;
        *times -= 1;
        let mut gone = None;
        if *times == 0 {
            gone = self.allocations.remove(&address);
        }
        if let Some(allocation) = &gone {
            self.leave(allocation.room);
        }
        if let Some(opened) = self.opened.get_mut(&inode) {
            opened.times -= 1;
            if opened.times == 0 {
                let room = opened.room;
                self.opened.remove(&inode);
                self.leave(room);
            }
        }
        Ok(gone)
    }
}

/// `cuIpcOpenEventHandle`: the words that the event shares.
pub(crate) fn open_event(handle: &Opaque) -> Outcome<Arc<Backing>> {
    let token = Token::parse(&handle.0, Of::Event)?;
    if token.is_own() {
        return Err(Status::INVALID_CONTEXT);
    }
    Ok(Arc::new(token.fetch()?))
}

/// The descriptor behind a fabric handle.
pub(crate) fn open_fabric(handle: &[u8; 64], of: Of) -> Outcome<OwnedFd> {
    if !settings::FABRIC.on() {
        return Err(Status::NOT_SUPPORTED);
    }
    let token = Token::parse(handle, of).map_err(|_| Status::INVALID_VALUE)?;
    if token.cluster != settings::CLUSTER.get() {
        return Err(Status::NOT_PERMITTED);
    }
    token
        .fetch()?
        .duplicate()
        .map_err(|_| Status::OPERATING_SYSTEM)
}
