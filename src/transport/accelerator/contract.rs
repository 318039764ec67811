//! The traits that a device's transport implements and the worker drives, and their words.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, ErrorKind, Result},
    memory::{MemoryDomain, MonitorKind, RegistrationCacheOptions},
    transport::{DeviceInfo, Registry, SendError},
    types::{Identity, MemoryType},
};

/// For how long a device is waited for whose worker was closed, or whose engine is dropped: what it has not ended by then is given up with it.
pub(crate) const QUIESCE: Duration = Duration::from_secs(5);

/// A kind of device whose memory can be copied to and from. Lives as long as the context.
pub trait Accelerator: Any + Send + Sync + fmt::Debug + 'static {
    /// The name used in configuration (`cuda_copy`, `rocm_copy`, …).
    fn name(&self) -> &'static str;

    /// Whether its library and a device are there.
    ///
    /// # Errors
    /// The reason why not, with the remedy where there is one.
    fn probe(&self) -> Result<()>;

    /// Whether the program, or a variable, has asked for devices of it by name: then a context is not built where the probe fails.
    fn is_demanded(&self) -> bool {
        false
    }

    /// Its devices, with their place. Initialises the driver where it has to; may take seconds.
    ///
    /// # Errors
    /// What the driver said.
    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        Ok(Vec::new())
    }

    /// The parts of it that have names of their own in configuration (`cuda_ipc`, `gdr_copy`): each with what there is to say of it, or why it is
    /// not used. May load libraries.
    fn parts(&self) -> Vec<(&'static str, Result<String>)> {
        Vec::new()
    }

    /// Who knows its memory.
    fn domain(&self) -> Arc<dyn MemoryDomain>;

    /// Whether copies to or from this memory are its business. The host's is not.
    fn serves(&self, memory_type: MemoryType) -> bool;

    /// How a context that has it is configured: what registration caches for copies of ordinary memory keep, and who tells them when it goes away
    /// (`WHARF_RCACHE_…`, `WHARF_MEM_MONITOR`). Of several contexts the last one says it, for caches that are made from then on.
    fn configure(&self, options: RegistrationCacheOptions, monitor: MonitorKind) {
        let _ = (options, monitor);
    }

    /// Opens it for one worker. May take long; called outside the worker's lock, on a thread that may block.
    ///
    /// # Errors
    /// What the driver said.
    fn open(&self) -> Result<Box<dyn CopyEngine>>;

    /// What lets another process on this host reach `length` bytes of this process's device memory at `address`. Cheap when the allocation was
    /// exported before. May take long else; called outside of locks, on a thread that may block. The memory stays allocated meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument`: not this accelerator's memory (any more), or not all of it of one allocation; and what the driver said.
    fn export(&self, address: u64, length: u64) -> Result<Export> {
        let _ = (address, length);
        Ok(Export::Impossible(format!(
            "{} shares no memory between processes",
            self.name()
        )))
    }

    /// What [`Accelerator::export`] says at once because it has exported the allocation before. Makes no call that can take longer than a few
    /// microseconds; may be called with the worker's lock held.
    fn exported(&self, address: u64, length: u64) -> Option<Export> {
        let _ = (address, length);
        None
    }

    /// Makes device memory that `peer` exported addressable here. To be called only for a peer that the host's kernel vouches for: one with a
    /// link between processes of the host. Nothing of `descriptor` is trusted.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: what was being opened is kept for the next.
    ///
    /// # Errors
    /// The reason why it cannot be reached, after which the memory is staged: `Malformed`, `VersionMismatch`; `Unsupported`: the device is not
    /// visible here, or another process namespace; `PermissionDenied`: another user; `Unreachable`, `PeerDied`: the exporter does not answer;
    /// `StaleKey`: freed meanwhile; `Exhausted`: too much is open; and what the driver said.
    fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        let _ = (descriptor, peer);
        let error = format!("{} shares no memory between processes", self.name());
        Box::pin(std::future::ready(Err(Error::new(
            ErrorKind::Unsupported,
            error,
        ))))
    }

    /// What [`Accelerator::import`] gives at once because it is open already. Calls no driver; may be called with the worker's lock held.
    fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        let _ = (descriptor, peer);
        None
    }
}

/// What [`Accelerator::import`] resolves with.
pub type Import = Pin<Box<dyn Future<Output = Result<ImportedMemory>> + Send>>;

/// What became of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// Bytes for [`Accelerator::import`] in the other process, at most [`Export::MAX`].
    Descriptor(Vec<u8>),
    /// Such memory cannot be given to other processes, and why: it is staged.
    Impossible(String),
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(bytes) => write!(f, "a descriptor of {} bytes", bytes.len()),
            Self::Impossible(why) => write!(f, "impossible: {why}"),
        }
    }
}

impl Export {
    /// Longest descriptor, in bytes.
    pub const MAX: usize = 512;
}

/// Device memory of another process, open here for as long as this value lives. Dropping it makes no call that takes long.
#[derive(Debug)]
pub struct ImportedMemory {
    address: u64,
    length: u64,
    memory_type: MemoryType,
    _lease: Box<dyn Any + Send + Sync>,
}

impl ImportedMemory {
    /// `length` bytes at `address` of a device; `lease` keeps them.
    pub fn new(
        address: u64,
        length: u64,
        memory_type: MemoryType,
        lease: impl Any + Send + Sync,
    ) -> Self {
        Self {
            address,
            length,
            memory_type,
            _lease: Box::new(lease),
        }
    }

    /// The first byte, as the device has it in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The device, as this process counts.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// `length` bytes from `offset` on, as an end of a copy; `None` when they leave the memory.
    #[must_use]
    pub fn end(&self, offset: u64, length: u64) -> Option<CopyEnd> {
        offset
            .checked_add(length)
            .filter(|end| *end <= self.length)?;
        Some(CopyEnd::Device {
            address: self.address.checked_add(offset)?,
            memory_type: self.memory_type,
        })
    }
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// Host memory.
    Host {
        /// First byte.
        address: *mut u8,
        /// The accelerator's own domain allocated it as [`MemoryType::HostPinned`], so that the device reads and writes it by itself.
        pinned: bool,
    },
    /// Memory of a device.
    Device {
        /// First byte, as the device has it.
        address: u64,
        /// Which device's.
        memory_type: MemoryType,
    },
}

impl fmt::Display for CopyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { address, pinned } => {
                let memory_type = if *pinned {
                    MemoryType::HostPinned
                } else {
                    MemoryType::Host
                };
                write!(f, "{memory_type} {:p}", *address)
            }
            Self::Device {
                address,
                memory_type,
            } => write!(f, "{memory_type} {address:#x}"),
        }
    }
}

/// Bytes to copy. At least one end is the accelerator's.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// Where they are.
    pub from: CopyEnd,
    /// Where they go. Does not overlap `from`.
    pub to: CopyEnd,
    /// How many, at least 1 and at most [`CopyAttributes::max_copy`].
    pub length: usize,
    /// Given back to [`CopySink::copied`].
    pub token: u64,
    /// Whether it is to fail (`Unsupported`) where the bytes would stop in host memory between the two ends.
    pub unstaged: bool,
}

#[allow(unsafe_code)]
// SAFETY: plain addresses; whoever submits the request vouches for them.
unsafe impl Send for CopyRequest {}

/// What an engine can do; fixed when it is opened. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyAttributes {
    /// Longest single copy.
    pub max_copy: usize,
    /// Copies that may be under way at once.
    pub max_in_flight: usize,
    /// Length of the pieces that a long transfer is best cut into when it goes through host memory.
    pub fragment: usize,
    /// From how many bytes on it is better to give it ordinary host memory as an end than to bring the bytes through pinned memory. Shorter copies of such memory
    /// it makes as well. `None`: one end is pinned, or both are the device's. Of memory that it cannot take after all it reports `WouldBlock`, having copied
    /// nothing, and the bytes are brought through pinned memory.
    pub pageable_from: Option<usize>,
}

impl CopyAttributes {
    /// Whether so many bytes are best copied out of ordinary host memory, or into it, by the engine alone.
    #[must_use]
    pub fn takes_pageable(&self, length: usize) -> bool {
        self.pageable_from.is_some_and(|from| length >= from)
    }
}

/// Copies so short that the processor makes them itself, sooner than a device is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallCopies {
    /// By what, as in configuration (`gdr_copy`, …).
    pub name: &'static str,
    /// Most bytes into a device's memory.
    pub to_device: usize,
    /// Most bytes out of it.
    pub to_host: usize,
}

/// Why a copy between two devices stops in host memory on its way; said by [`CopyEngine::stops`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It does, and this is why.
    Certain(String),
    /// The first such copy finds out whether one device reaches the other's memory.
    Untried,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Certain(why) => why,
            Self::Untried => "not tried yet",
        })
    }
}

/// A stream of the program's own: a queue of work for a device, in which it is done in order. Made by the types of its vendor, such as
/// [`CudaStream`](crate::transport::cuda::CudaStream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStream {
    pub(crate) accelerator: &'static str,
    pub(crate) device: u16,
    pub(crate) raw: usize,
}

/// A place in the program's own work for a device: the end of a stream as it is now, or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlace {
    /// All that is in this stream when the engine is asked.
    Stream(DeviceStream),
    /// What this event was last recorded behind, with the fields of a stream.
    Event(DeviceStream),
}

impl fmt::Display for DevicePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, of) = match self {
            Self::Stream(of) => ("stream", of),
            Self::Event(of) => ("event", of),
        };
        write!(
            f,
            "{what} {:#x} of device {} of {}",
            of.raw, of.device, of.accelerator
        )
    }
}

impl DeviceStream {
    /// The name of the [`Accelerator`] whose engine takes it.
    #[must_use]
    pub fn accelerator(&self) -> &'static str {
        self.accelerator
    }
}

impl DevicePlace {
    /// The name of the [`Accelerator`] whose engine takes it.
    #[must_use]
    pub fn accelerator(&self) -> &'static str {
        let (Self::Stream(at) | Self::Event(at)) = self;
        at.accelerator
    }
}

/// Where an engine reports.
pub trait CopySink {
    /// The copy with this token is over: its bytes are visible at their place, for the host and for the device's next copy; or nothing is known of
    /// them. Its memory is free.
    fn copied(&mut self, token: u64, result: Result<()>);

    /// The device is lost. What is under way is reported by [`CopySink::copied`] first; nothing more is accepted.
    fn lost(&mut self, error: Error);
}

/// Copies for one worker. Called with the worker's lock held.
pub trait CopyEngine: Send + fmt::Debug {
    /// What it can do.
    fn attributes(&self) -> CopyAttributes;

    /// Begins a copy. Copies may be done in any order; one that must see another's bytes is begun after the other was reported.
    ///
    /// # Safety
    /// Both ends stay valid, and nobody else writes either or reads `to`, until the copy was reported or the engine was dropped.
    ///
    /// # Errors
    /// [`SendError::Full`]: too many are under way, nothing was taken; try again after the next report. [`SendError::Failed`]: this copy cannot be done.
    #[allow(unsafe_code)]
    unsafe fn copy(&mut self, request: CopyRequest) -> Result<(), SendError>;

    /// Reports `token` by [`CopySink::copied`] once the program's work up to `place` is done: then what that work wrote can be copied. The place is
    /// fixed by this call.
    ///
    /// # Errors
    /// As of [`CopyEngine::copy`], but that there may be room for another place, or for copies; `InvalidArgument`: the stream is capturing a graph; `Unsupported`: not this accelerator's.
    fn after(&mut self, place: DevicePlace, token: u64) -> Result<(), SendError> {
        let _ = token;
        Err(SendError::Failed(foreign(place.accelerator())))
    }

    /// Makes the program's stream wait for the copies with these tokens: what the program queues in it afterwards begins when the device has done
    /// them, without the host. Those that were reported, or that this engine never had, count as done.
    ///
    /// The wait has to be one that ends by itself, whatever becomes of this engine: an event recorded behind the copies, or a word that the driver's
    /// own thread sets as the last of them ends. The latter only where copies share no queue of the device with streams, which would hold them up.
    ///
    /// # Errors
    /// [`SendError::Full`]: one of them is not in the device's hands yet; to be tried again after each [`CopyEngine::progress`]. `InvalidArgument`: the
    /// stream is capturing a graph; `Unsupported`: the driver cannot, or not this accelerator's: then the caller waits for the copies itself.
    fn then(&mut self, stream: DeviceStream, tokens: &[u64]) -> Result<(), SendError> {
        let _ = tokens;
        Err(SendError::Failed(foreign(stream.accelerator)))
    }

    /// Copies that the processor makes itself within [`CopyEngine::copy`], where it can.
    fn small_copies(&self) -> Option<SmallCopies> {
        None
    }

    /// Why a copy of this length between memories of these types, both of its devices, stops in host memory on its way. `None`: it does not.
    fn stops(&self, from: MemoryType, to: MemoryType, length: usize) -> Option<Stop> {
        let _ = (from, to, length);
        None
    }

    /// Whether an engine that has told that it is lost ([`CopySink::lost`]) takes copies again: a device of it was reset and opened anew in this process. Asked when the
    /// next copy comes. What was lost stays so; the device's memory of before is nobody's.
    fn is_back(&mut self) -> bool {
        false
    }

    /// How many copies have stopped in host memory of its own so far, and their bytes.
    fn stopped(&self) -> (u64, u64) {
        (0, 0)
    }

    /// The end of a batch: what was begun is handed to the device now.
    fn flush(&mut self);

    /// Reports what has completed, at most about `budget` copies. Returns how many.
    fn progress(&mut self, budget: usize, sink: &mut dyn CopySink) -> usize;

    /// Registers its fds. As [`Interface::register`](crate::transport::Interface::register).
    ///
    /// # Errors
    /// What the system said.
    fn register(&mut self, registry: Registry) -> Result<()>;

    /// An fd registered under `token` became ready.
    fn ready(&mut self, token: usize);

    /// Asks to be woken through the fds by the next completion. `false`: something has completed already. Nothing is asked for when nothing is under way.
    fn arm(&mut self) -> bool;

    /// Takes back [`CopyEngine::arm`]: this side polls again.
    fn disarm(&mut self);

    /// Waits until nothing is under way; what is not over at `deadline` is given up with the device, and its memory is never
    /// touched again by it or never freed. Closing that may take a second more. Called before the engine is dropped, on a thread that may block.
    fn quiesce(&mut self, deadline: Instant);
}

#[cold]
fn foreign(accelerator: &str) -> Error {
    let text = format!("this engine takes no streams of {accelerator}");
    Error::new(ErrorKind::Unsupported, text)
}
