//! What a card is, found through its control node; and a card that this process has opened.
//!
//! # Safety
//! Calls get the address of a zeroed local larger than the library's struct, or of a buffer with its length. Descriptors are open while they
//! are used: a card's is lent out under a lock that its closing takes alone, a control node's lives in an owner.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    fmt,
    os::fd::RawFd,
    ptr,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    HlThunk,
    flights::Flights,
    physical::Physical,
    status::{Asked, Errno, check},
    sys,
};
use crate::{
    error::{Error, ErrorKind, Result},
    util::lock::RwLock,
};

/// A PCI place, `dddd:bb:dd.f` in small hexadecimal digits: the name of a card that stays.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BusId(String);

impl BusId {
    /// As text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BusId {
    type Err = Error;

    /// Also without the domain, which is 0 then.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            let text = format!("{text:?} is no PCI place such as 0000:33:00.0");
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let lower = text.trim().to_ascii_lowercase();
        let full = match lower.matches(':').count() {
            1 => format!("0000:{lower}"),
            _ => lower,
        };
        let shape = "xxxx:xx:xx.x";
        let fits = full.len() == shape.len()
            && full.chars().zip(shape.chars()).all(|(c, s)| match s {
                'x' => c.is_ascii_hexdigit(),
                s => c == s,
            });
        if fits { Ok(Self(full)) } else { Err(wrong()) }
    }
}

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A generation of cards, from `enum hlthunk_device_name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Chip {
    /// Gaudi, of 2019.
    Gaudi,
    /// Gaudi 2 and its variants.
    Gaudi2,
    /// Gaudi 3 and its variants.
    Gaudi3,
    /// Another number: Goya, Greco, or what came later.
    Other(u32),
}

impl Chip {
    const fn from_raw(raw: u32) -> Self {
        match raw {
            // HL-2000M is the first Gaudi on another board.
            2 | 6 => Self::Gaudi,
            5 | 8 | 10 | 11 => Self::Gaudi2,
            7 | 12 => Self::Gaudi3,
            raw => Self::Other(raw),
        }
    }

    /// Whether copies go by command submissions. On Gaudi 3 only the vendor's firmware submits.
    pub(crate) const fn takes_submissions(self) -> bool {
        matches!(self, Self::Gaudi | Self::Gaudi2)
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gaudi => f.write_str("Gaudi"),
            Self::Gaudi2 => f.write_str("Gaudi 2"),
            Self::Gaudi3 => f.write_str("Gaudi 3"),
            Self::Other(raw) => write!(f, "card of type {raw}"),
        }
    }
}

/// `enum hl_device_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum State {
    /// In operation.
    Operational,
    /// Being reset.
    InReset,
    /// Broken.
    Malfunction,
    /// An administrator must reset it.
    NeedsReset,
    /// The kernel's driver is still starting it.
    InCreation,
    /// Being reset because its last user has given it back.
    Releasing,
    /// Another number.
    Other(i32),
}

impl State {
    const fn from_raw(raw: i32) -> Self {
        match raw {
            0 => Self::Operational,
            1 => Self::InReset,
            2 => Self::Malfunction,
            3 => Self::NeedsReset,
            4 => Self::InCreation,
            5 => Self::Releasing,
            raw => Self::Other(raw),
        }
    }
}

/// What the card says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HwInfo {
    /// The card's name on its board.
    pub(crate) name: String,
    /// Its place in the server: stays over restarts, unlike the node's index.
    pub(crate) module_id: u32,
    /// PCI device number.
    pub(crate) device_id: u32,
    /// Where device memory begins: physical on Gaudi, where unhinted mappings begin on later ones.
    pub(crate) dram_base: u64,
    /// Bytes of device memory.
    pub(crate) dram_size: u64,
    /// What allocations are rounded up to; 0 where the driver does not say. Need not be a power of two.
    pub(crate) dram_page: u64,
    /// The page of an allocation that names none, where the driver says.
    pub(crate) default_page: u64,
    /// One bit for each engine that copies within the card.
    pub(crate) edma_mask: u32,
    /// Whether device memory is in use at all.
    pub(crate) dram_enabled: bool,
}

impl HwInfo {
    fn new(raw: &sys::HwIpInfo) -> Self {
        let end = raw.card_name.iter().position(|byte| *byte == 0);
        let name = &raw.card_name[..end.unwrap_or(raw.card_name.len())];
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            module_id: raw.module_id,
            device_id: raw.device_id,
            dram_base: raw.dram_base_address,
            dram_size: raw.dram_size,
            dram_page: raw.dram_page_size,
            default_page: raw.device_mem_alloc_default_page_size,
            edma_mask: raw.edma_enabled_mask,
            dram_enabled: raw.dram_enabled != 0,
        }
    }
}

/// A card of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardInfo {
    /// The number of its nodes; may change when the machine restarts.
    pub(crate) index: u32,
    /// Its PCI place.
    pub(crate) bus_id: BusId,
    /// Its generation.
    pub(crate) chip: Chip,
    /// What it says of itself.
    pub(crate) hw: HwInfo,
    /// How it is.
    pub(crate) state: State,
}

impl HlThunk {
    /// The cards of this machine, by their control nodes: none is opened, nobody is kept out. A card that does not tell what it is is an error
    /// in its place. 256 attempts to open a node, microseconds each where there is none.
    pub(crate) fn discover(&'static self) -> Vec<Result<CardInfo>> {
        let mut found = Vec::new();
        for index in 0..sys::MAX_MINOR {
            match self.control(index as u32) {
                Ok(node) => found.push(node.info()),
                Err(error) => {
                    let absent = Errno::of(&error).is_some_and(|errno| {
                        // -1 is also what a library says that has set `errno` alone.
                        matches!(errno.0, libc::ENOENT | libc::ENODEV | libc::ENXIO)
                    });
                    if !absent {
                        found.push(Err(error));
                    }
                }
            }
        }
        found
    }

    /// The control node of a number.
    /// Errors: `InvalidArgument`: there is none; `PermissionDenied`.
    pub(crate) fn control(&'static self, index: u32) -> Result<ControlNode> {
        let name = format!("Gaudi control node {index}");
        let index_raw = i32::try_from(index).unwrap_or(i32::MAX);
        nix::errno::Errno::clear();
        // SAFETY: no bus id: the number decides.
        let fd = unsafe { (self.api.hlthunk_open_control)(index_raw, ptr::null()) };
        let fd = opened(fd, &name, "hlthunk_open_control")?;
        Ok(ControlNode {
            thunk: self,
            fd,
            index,
            name,
        })
    }

    /// Opens the card at a PCI place: this process has it alone then. While another still has it, or it is in reset, the attempt is repeated for
    /// `patience`, for which the thread sleeps.
    /// Errors: `Exhausted`: another process has it; `WouldBlock`: it is in reset or being given back; `DeviceLost`: it is not in operation;
    /// `InvalidArgument`: there is no such card; `PermissionDenied`.
    pub(crate) fn open(&'static self, bus_id: &BusId, patience: Duration) -> Result<Arc<Card>> {
        let name = format!("Gaudi card {bus_id}");
        let text = CString::new(bus_id.as_str())
            .map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{name} is no name")))?;
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            nix::errno::Errno::clear();
            // SAFETY: a string that lives through the call.
            let fd = unsafe { (self.api.hlthunk_open)(sys::DEVICE_DONT_CARE, text.as_ptr()) };
            let error = match opened(fd, &name, "hlthunk_open") {
                Ok(fd) => return Card::new(self, fd, true, Some(bus_id)),
                Err(error) => error,
            };
            let passes = matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::WouldBlock);
            let left = patience.saturating_sub(start.elapsed());
            if !passes || left.is_zero() {
                return Err(error);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// A card that somebody else in this process has opened, Synapse as a rule. It is never closed here.
    /// Errors: it is no Gaudi card's.
    ///
    /// # Safety
    /// The descriptor stays open for as long as this value and all that is made from it.
    pub(crate) unsafe fn borrow(&'static self, fd: RawFd) -> Result<Arc<Card>> {
        Card::new(self, fd, false, None)
    }
}

/// The descriptor that an opening call returned. -1 may be `EPERM` or a number in `errno`.
fn opened(result: i32, name: &str, call: &str) -> Result<RawFd> {
    let errno = match Errno::from_result(result) {
        None => return Ok(result),
        Some(Errno(1)) if Errno::left().0 != 0 => Errno::left(),
        Some(errno) => errno,
    };
    Err(errno.error(Asked::Open, &name, call))
}

/// Questions that both kinds of descriptor answer.
#[derive(Clone, Copy)]
struct Asking<'a> {
    thunk: &'static HlThunk,
    fd: RawFd,
    name: &'a dyn fmt::Display,
}

impl Asking<'_> {
    fn bus_id(self) -> Result<BusId> {
        let mut text = [0 as c_char; 64];
        // SAFETY: room of the length that is given, less one zero at the end.
        let result = unsafe {
            (self.thunk.api.hlthunk_get_pci_bus_id_from_fd)(
                self.fd,
                text.as_mut_ptr(),
                text.len() as i32 - 1,
            )
        };
        check(
            result,
            Asked::Info,
            self.name,
            "hlthunk_get_pci_bus_id_from_fd",
        )?;
        // SAFETY: the last byte is zero still.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        text.parse().map_err(|_| {
            let text = format!("{}: the library gives {text:?} for a PCI place", self.name);
            Error::new(ErrorKind::Io, text)
        })
    }

    fn chip(self) -> Chip {
        // SAFETY: takes a descriptor.
        Chip::from_raw(unsafe { (self.thunk.api.hlthunk_get_device_name_from_fd)(self.fd) })
    }

    fn hw(self) -> Result<HwInfo> {
        // SAFETY: numbers alone: all zeros is a value.
        let mut info: sys::Oversized<sys::HwIpInfo> = unsafe { std::mem::zeroed() };
        // SAFETY: 4 KiB and more, of which the library writes its own struct's size.
        let result = unsafe { (self.thunk.api.hlthunk_get_hw_ip_info)(self.fd, &raw mut info) };
        check(result, Asked::Info, self.name, "hlthunk_get_hw_ip_info")?;
        Ok(HwInfo::new(&info.value))
    }

    fn state(self) -> Result<State> {
        let call = "hlthunk_get_device_status_info";
        let status = self.thunk.api.hlthunk_get_device_status_info;
        let status = self.thunk.optional(status, call)?;
        // SAFETY: takes a descriptor.
        let result = unsafe { status(self.fd) };
        check(result, Asked::Info, self.name, call).map(State::from_raw)
    }
}

/// A card's node that anybody may open: it answers questions and does no work.
pub(crate) struct ControlNode {
    thunk: &'static HlThunk,
    fd: RawFd,
    index: u32,
    name: String,
}

impl ControlNode {
    fn ask(&self) -> Asking<'_> {
        Asking {
            thunk: self.thunk,
            fd: self.fd,
            name: &self.name,
        }
    }

    /// All that is asked of a card.
    /// Errors: what the library reports.
    pub(crate) fn info(&self) -> Result<CardInfo> {
        let ask = self.ask();
        let bus_id = ask.bus_id()?;
        let state = match ask.state() {
            Ok(state) => state,
            // A library without the question.
            Err(error) if error.kind() == ErrorKind::Unsupported => State::Other(-1),
            Err(error) => return Err(error),
        };
        Ok(CardInfo {
            index: self.index,
            bus_id,
            chip: ask.chip(),
            hw: ask.hw()?,
            state,
        })
    }
}

impl Drop for ControlNode {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        let result = unsafe { (self.thunk.api.hlthunk_close)(self.fd) };
        if let Err(error) = check(result, Asked::Info, &self.name, "hlthunk_close") {
            tracing::warn!(target: "wharf::gaudi", "{error}");
        }
    }
}

impl fmt::Debug for ControlNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A card that this process has. Closed with the last of its clones and of what was made from it, or by [`Card::close`].
pub(crate) struct Card {
    thunk: &'static HlThunk,
    /// Lent under the shared lock; taken out under the exclusive one to be closed.
    fd: RwLock<Option<RawFd>>,
    owned: bool,
    process: u32,
    bus_id: BusId,
    chip: Chip,
    hw: HwInfo,
    lost: AtomicBool,
    pub(super) flights: Flights,
    pub(super) physical: Physical,
}

impl Card {
    fn new(
        thunk: &'static HlThunk,
        fd: RawFd,
        owned: bool,
        expected: Option<&BusId>,
    ) -> Result<Arc<Self>> {
        let described = Self::describe(thunk, fd, expected);
        let (bus_id, chip, hw) = match described {
            Ok(described) => described,
            Err(error) => {
                if owned {
                    // SAFETY: opened by the caller for this, and used nowhere yet.
                    unsafe { (thunk.api.hlthunk_close)(fd) };
                }
                return Err(error);
            }
        };
        if owned {
            // SAFETY: numbers alone. A program that this one starts must not keep the card.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        Ok(Arc::new(Self {
            thunk,
            fd: RwLock::new(Some(fd)),
            owned,
            process: std::process::id(),
            physical: Physical::new(hw.dram_base, hw.dram_size, hw.dram_page),
            bus_id,
            chip,
            hw,
            lost: AtomicBool::new(false),
            flights: Flights::default(),
        }))
    }

    fn describe(
        thunk: &'static HlThunk,
        fd: RawFd,
        expected: Option<&BusId>,
    ) -> Result<(BusId, Chip, HwInfo)> {
        let fallback = "Gaudi card";
        let name: &dyn fmt::Display = match expected {
            Some(bus_id) => bus_id,
            None => &fallback,
        };
        let ask = Asking { thunk, fd, name };
        let bus_id = ask.bus_id()?;
        if let Some(expected) = expected
            && *expected != bus_id
        {
            let text = format!("Gaudi card {expected}: the library opened {bus_id} in its place");
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok((bus_id, ask.chip(), ask.hw()?))
    }

    /// The library.
    pub(crate) fn library(&self) -> &'static HlThunk {
        self.thunk
    }
    /// Its PCI place.
    pub(crate) fn bus_id(&self) -> &BusId {
        &self.bus_id
    }
    /// Its generation.
    pub(crate) fn chip(&self) -> Chip {
        self.chip
    }
    /// What it says of itself.
    pub(crate) fn hw(&self) -> &HwInfo {
        &self.hw
    }
    /// Whether this value closes it; if not, somebody else in this process does.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether a call or the notifier has said that the card was reset. All later work fails with `DeviceLost`.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Takes note that the card was reset.
    pub(crate) fn set_lost(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::warn!(target: "wharf::gaudi", "{self}: lost; it must be closed and opened again");
        }
    }

    /// Gives the card up now, whoever still holds it or something made from it: their calls fail with `Closed`, and their drops do nothing. Waits
    /// for calls that are under way, for a second at most. A process that keeps a card open while it is reset is killed by the kernel: 30 s after
    /// the notifier spoke, at once without a notifier.
    ///
    /// The kernel has the card back when the dma-bufs that were exported are closed as well, and, on the first Gaudi, the command rings dropped.
    pub(crate) fn close(&self) {
        let Some(fd) = self.fd.write().take() else {
            return;
        };
        if !self.owned {
            return;
        }
        if !self.is_forked() {
            // SAFETY: taken out above: closed once, and nobody is using it.
            let result = unsafe { (self.thunk.api.hlthunk_close)(fd) };
            if let Err(error) = check(result, Asked::Info, self, "hlthunk_close") {
                tracing::warn!(target: "wharf::gaudi", "{error}");
            }
        } else {
            // SAFETY: the copy of the descriptor that `fork` made; the library is the parent's.
            unsafe { libc::close(fd) };
        }
    }

    /// Whether [`Card::close`] was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.fd.read().is_none()
    }

    /// Whether this process is a child of the one that opened it.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Runs `call` with the descriptor, which stays open meanwhile.
    /// Errors: `Closed`, `Forked`.
    pub(crate) fn with_fd<R>(&self, call: impl FnOnce(RawFd) -> R) -> Result<R> {
        if self.is_forked() {
            let text = format!(
                "{self} was opened before this process was forked; it cannot be used in the child"
            );
            return Err(Error::new(ErrorKind::Forked, text));
        }
        match *self.fd.read() {
            Some(fd) => Ok(call(fd)),
            None => Err(Error::new(ErrorKind::Closed, format!("{self} was closed"))),
        }
    }

    /// As [`Card::with_fd`], for work that a lost card does not do any more.
    /// Errors: `Closed`, `Forked`, `DeviceLost`.
    pub(super) fn with_live_fd<R>(&self, call: impl FnOnce(RawFd) -> R) -> Result<R> {
        if self.is_lost() {
            let text = format!("{self} was reset: close it and open it again");
            return Err(Error::new(ErrorKind::DeviceLost, text));
        }
        self.with_fd(call)
    }

    /// The error of a call that does work. One that says so marks the card as lost.
    #[cold]
    pub(super) fn failed(&self, errno: Errno, call: &str) -> Error {
        let error = errno.error(Asked::Work, self, call);
        if error.kind() == ErrorKind::DeviceLost {
            self.set_lost();
        }
        error
    }

    /// The value of a call that does work.
    /// Errors: as the number says.
    pub(super) fn checked(&self, result: i32, call: &str) -> Result<i32> {
        match Errno::from_result(result) {
            None => Ok(result),
            Some(errno) => Err(self.failed(errno, call)),
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gaudi card {}", self.bus_id)
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("bus_id", &self.bus_id)
            .field("chip", &self.chip)
            .field("lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}
