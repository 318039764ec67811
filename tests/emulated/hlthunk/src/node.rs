#![allow(unsafe_code)]
//! The machine's cards and their nodes: who has which, in all processes.
//!
//! ```text
//! card ── a file; an opened card is an open file description of it that has locked byte 0
//!         a dma-buf holds another description of it that has locked a byte of its own (dmabuf.rs)
//! ```
//! Locks of open file descriptions go with the last copy of the descriptor and the last mapping, in whichever process, as an opened card does.
//! The file is a nameless one of this process, or stands in the folder that processes share.
//!
//! # Safety
//! System calls with numbers and structs that live through them; descriptors that come back belong to nobody else.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use wharf_emulated_common::{backing::Backing, gaudi, share::Process};

use crate::{
    abi::{Chip, Outcome},
    hold::Hold,
    session::Session,
    settings,
};

/// Size of a card's file: the upper half is for command buffers.
pub(crate) const FILE: u64 = 8 << 30;
/// Where in the file command buffers begin.
pub(crate) const BUFFERS: u64 = 4 << 30;
/// Where the bytes begin that dma-bufs lock.
pub(crate) const EXPORTS: i64 = 1 << 40;
/// Where the file says until when the card is in reset: milliseconds since 1970.
const RESET_UNTIL: u64 = 64;

/// The cards.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cards: Vec<Card>,
    /// Control nodes that are open: device and inode, and the card.
    controls: Mutex<HashMap<(u64, u64), usize>>,
}

/// One card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) index: usize,
    file: CardFile,
    identity: (u64, u64),
    /// What its state says to who asks; 0: in operation.
    pub(crate) state: AtomicI32,
    /// A stranger has it.
    pub(crate) busy: AtomicBool,
    pub(crate) hold: Hold,
    pub(crate) session: Mutex<Option<Arc<Session>>>,
    memory: OnceLock<Option<Arc<Backing>>>,
}

#[derive(Debug)]
enum CardFile {
    Nameless(OwnedFd),
    Named(PathBuf),
}

/// What a descriptor is.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Control(usize),
    Compute(usize, Arc<Session>),
}

impl Node {
    pub(crate) const fn card(&self) -> usize {
        match self {
            Self::Control(card) | Self::Compute(card, _) => *card,
        }
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        let count = settings::CARDS.get().min(8) as usize;
        let cards = (0..count).filter_map(|index| match Card::new(index) {
            Ok(card) => Some(card),
            Err(error) => {
                eprintln!("emulated libhl-thunk: card {index}: {error}");
                None
            }
        });
        Self {
            cards: cards.collect(),
            controls: Mutex::new(HashMap::new()),
        }
    }

    pub(crate) fn by_bus_id(&self, bus_id: &str) -> Option<&Card> {
        self.cards.iter().find(|card| card.bus_id() == bus_id)
    }

    pub(crate) fn session(&self, card: usize) -> Option<Arc<Session>> {
        self.cards.get(card)?.session.lock().clone()
    }

    /// The card of a descriptor, if it is one's.
    pub(crate) fn card_of(&self, fd: RawFd) -> Option<usize> {
        self.node(fd).ok().map(|node| node.card())
    }

    /// What a descriptor is: `EBADF` for none, `ENOTTY` for something else's.
    pub(crate) fn node(&self, fd: RawFd) -> Outcome<Node> {
        let identity = identity(fd)?;
        if let Some(card) = self.controls.lock().get(&identity) {
            return Ok(Node::Control(*card));
        }
        let card = self.cards.iter().find(|card| card.identity == identity);
        let session = card.and_then(|card| Some((card.index, card.session.lock().clone()?)));
        match session {
            Some((index, session)) => Ok(Node::Compute(index, session)),
            // Synapse's own descriptor answers questions; its work is done by other calls.
            None => {
                let lent = self.lent(fd).ok_or(libc::ENOTTY)?;
                Ok(Node::Control(lent.index as usize))
            }
        }
    }

    /// The card that Synapse has opened in this process, by its descriptor.
    pub(crate) fn lent(&self, fd: RawFd) -> Option<gaudi::Card> {
        let here = |card: &gaudi::Card| {
            card.owner == Some(Process::this()) && (card.index as usize) < self.cards.len()
        };
        gaudi::Card::of(fd).filter(here)
    }

    /// The session of a compute node: a control node does no work.
    pub(crate) fn compute(&self, fd: RawFd) -> Outcome<(&Card, Arc<Session>)> {
        match self.node(fd)? {
            Node::Control(_) => Err(libc::ENOTTY),
            Node::Compute(card, session) => Ok((&self.cards[card], session)),
        }
    }

    pub(crate) fn open_control(&self, card: usize) -> Outcome<RawFd> {
        if card >= self.cards.len() {
            return Err(libc::ENOENT);
        }
        let node = Backing::new("emulated-gaudi-control", 0).map_err(number)?;
        let fd = node.duplicate().map_err(number)?;
        let identity = identity(fd.as_raw_fd())?;
        self.controls.lock().insert(identity, card);
        Ok(fd.into_raw_fd())
    }

    /// Closes either kind.
    pub(crate) fn close(&self, fd: RawFd) -> Outcome {
        let node = self.node(fd);
        let identity = identity(fd)?;
        if matches!(node, Ok(Node::Control(_))) {
            self.controls.lock().remove(&identity);
        }
        // SAFETY: the caller's descriptor, which it gives up.
        unsafe { libc::close(fd) };
        if let Ok(Node::Compute(card, _)) = node {
            self.cards[card].settle();
        }
        Ok(())
    }
}

impl Card {
    fn new(index: usize) -> io::Result<Self> {
        let folder = std::env::var_os("EMULATED_HLTHUNK_FOLDER");
        let file = match folder {
            Some(folder) => {
                let path = PathBuf::from(folder).join(format!("card{index}"));
                let file = File::options()
                    .create(true)
                    .truncate(false)
                    .read(true)
                    .write(true)
                    .open(&path)?;
                file.set_len(FILE)?;
                CardFile::Named(path)
            }
            None => CardFile::Nameless(Backing::new("emulated-gaudi", FILE)?.duplicate()?),
        };
        let mut card = Self {
            index,
            file,
            identity: (0, 0),
            state: AtomicI32::new(0),
            busy: AtomicBool::new(false),
            hold: Hold::default(),
            session: Mutex::new(None),
            memory: OnceLock::new(),
        };
        let probe = card.description()?;
        card.identity = identity(probe.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        Ok(card)
    }

    /// Its PCI place.
    pub(crate) fn bus_id(&self) -> String {
        format!("0000:{:02x}:00.0", 0x33 + 0x11 * self.index)
    }

    /// Its place in the server: not its number.
    pub(crate) const fn module_id(&self) -> u32 {
        7 - self.index as u32
    }

    /// A new open file description of its file.
    pub(crate) fn description(&self) -> io::Result<OwnedFd> {
        let path = match &self.file {
            CardFile::Named(path) => path.clone(),
            CardFile::Nameless(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()).into(),
        };
        let file = File::options().read(true).write(true).open(path)?;
        Ok(file.into())
    }

    /// Its memory, in this process.
    pub(crate) fn memory(&self) -> Outcome<Arc<Backing>> {
        let new = || {
            let size = settings::MEMORY.get();
            let backing = Backing::new("emulated-gaudi-memory", size);
            backing.ok().map(Arc::new)
        };
        self.memory.get_or_init(new).clone().ok_or(libc::ENOMEM)
    }

    /// Opens it: the kernel's answers in the kernel's order.
    pub(crate) fn open(&self) -> Outcome<RawFd> {
        match self.state.load(SeqCst) {
            0 => {}
            1 | 4 | 5 => return Err(libc::EAGAIN),
            _ => return Err(libc::EPERM),
        }
        if self.busy.load(SeqCst) {
            return Err(libc::EBUSY);
        }
        let mut session = self.session.lock();
        let fd = self.description().map_err(number)?;
        if !lock(fd.as_raw_fd(), 0)? || is_locked(fd.as_raw_fd(), EXPORTS, 0)? {
            return Err(libc::EBUSY);
        }
        let mut file = File::from(fd);
        if let Some(old) = session.take() {
            // Its last descriptor was closed behind the library's back.
            old.end();
            reset_from_now(&file);
        }
        if now() < reset_until(&mut file) {
            return Err(libc::EAGAIN);
        }
        let opened = Session::new(self.index, Chip::now(), self.memory()?);
        *session = Some(opened);
        Ok(OwnedFd::from(file).into_raw_fd())
    }

    /// Ends the session, if there is one, when its last descriptor has gone.
    pub(crate) fn settle(&self) {
        let mut session = self.session.lock();
        if session.is_none() {
            return;
        }
        let Ok(probe) = self.description() else {
            return;
        };
        // A lock of this probe goes with it.
        if lock(probe.as_raw_fd(), 0) != Ok(true) {
            return;
        }
        if let Some(old) = session.take() {
            old.end();
        }
        reset_from_now(&File::from(probe));
    }

    /// Whether a dma-buf of it is open somewhere: one, or any.
    pub(crate) fn is_exported(&self, export: Option<u64>) -> bool {
        let Ok(probe) = self.description() else {
            return true;
        };
        let (start, len) = export.map_or((EXPORTS, 0), |export| (EXPORTS + export as i64, 1));
        is_locked(probe.as_raw_fd(), start, len).unwrap_or(true)
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

fn reset_from_now(file: &File) {
    let until = now() + settings::RELEASE_MS.get();
    let _ = file.write_all_at(&until.to_ne_bytes(), RESET_UNTIL);
}

fn reset_until(file: &mut File) -> u64 {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, RESET_UNTIL) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}

/// Device and inode of a descriptor.
fn identity(fd: RawFd) -> Outcome<(u64, u64)> {
    // SAFETY: all zeros is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: see the head of the file.
    if unsafe { libc::fstat(fd, &raw mut stat) } < 0 {
        return Err(libc::EBADF);
    }
    Ok((stat.st_dev, stat.st_ino))
}

/// Locks a byte for the open file description; whether that went.
pub(crate) fn lock(fd: RawFd, start: i64) -> Outcome<bool> {
    let mut region = region(start, 1);
    // SAFETY: see the head of the file.
    let status = unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw mut region) };
    match status {
        0 => Ok(true),
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            other => Err(other.unwrap_or(libc::EIO)),
        },
    }
}

/// Whether another open file description has locked a byte of a region; a length of 0 is all that follows.
fn is_locked(fd: RawFd, start: i64, len: i64) -> Outcome<bool> {
    let mut region = region(start, len);
    // SAFETY: see the head of the file.
    if unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut region) } < 0 {
        return Err(number(io::Error::last_os_error()));
    }
    Ok(i32::from(region.l_type) != libc::F_UNLCK)
}

fn region(start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// The number of a system's error.
pub(crate) fn number(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
