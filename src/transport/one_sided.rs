//! One-sided operations: a device reads and writes the peer's registered memory, and the peer's processor takes no part.
//!
//! ```text
//! DeviceRegistrar ── find() / register() ──▶ LocalKeys ──┐
//!      │                                              ├── OneSided::put / get ──▶ Sink::sent, or Sink::refused
//!      └── expose() ──▶ Exposure, in the descriptor ──┘         (token)
//! ```
//!
//! A [`Link`](super::Link) that has them answers [`Link::one_sided`](super::Link::one_sided); the transport's registrations are had from
//! [`OneSided::memory`] and [`Transport::remote_memory`](super::Transport::remote_memory). All of a context's links over one transport
//! share one [`DeviceRegistrar`].
//!
//! # Completion
//! Every operation that answered [`Zcopy::Pending`] ends with exactly one [`Sink::sent`](super::Sink::sent) or
//! [`Sink::refused`](super::Sink::refused), or with the link; short gets and atomics with [`Sink::fetched`](super::Sink::fetched) instead. Then the bytes of a put are in the peer's memory, visible to its processor, and
//! those of a get are here. Operations of one link may end in any order, and are not ordered with its messages: who wants a message behind
//! a put sends it after [`Sink::sent`](super::Sink::sent).
//!
//! # Safety
//! A device uses the local memory of an operation by itself until the operation has ended, as said at [`OneSided::put`].
#![allow(unsafe_code)]

use std::{any::Any, fmt, future::Future, pin::Pin, sync::Arc};

use super::{SendError, Zcopy};
use crate::{
    error::{Error, ErrorKind, Result},
    memory::{AddressRange, LocalMemory},
    types::{Access, MemoryType},
};

pub use crate::types::DeviceKey;

/// The most devices that one link or one exposed region names.
pub const MAX_DEVICES: usize = 8;

/// Registered memory of this process, as far as one operation uses it.
#[derive(Clone, Copy, Debug)]
pub struct LocalRange<'a> {
    /// First byte, as the device addresses it.
    pub address: u64,
    /// Bytes.
    pub length: usize,
    /// Local keys, one for each device that has it registered.
    pub keys: &'a [DeviceKey],
}

/// Where in the peer's registered memory an operation begins.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRange<'a> {
    /// First byte, as the peer's devices address it.
    pub address: u64,
    /// The peer's remote keys, one for each of its devices that has it registered.
    pub keys: &'a [DeviceKey],
}

/// What one-sided operations of a link can do; fixed when it is attached. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct OneSidedAttributes {
    /// Longest single [`OneSided::put`].
    pub max_put: usize,
    /// Longest single [`OneSided::get`].
    pub max_get: usize,
    /// Longest [`OneSided::put_short`] and [`OneSided::get_short`].
    pub max_short: usize,
    /// A multiple of this is what a long transfer is best cut into, so that rails share it.
    pub piece: usize,
    /// Rails it has: from 2 on, pieces of one transfer travel side by side.
    pub rails: usize,
    /// Devices do 64-bit atomics, on addresses that are multiples of 8. They are atomic towards operations of the same device alone, never
    /// towards a processor's.
    pub atomics: bool,
}

/// One 64-bit atomic operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAtomic {
    /// Adds, wrapping around.
    FetchAdd(u64),
    /// Stores `swap` if `compare` is there.
    CompareSwap {
        /// What is to be there.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
}

impl fmt::Display for DeviceAtomic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FetchAdd(operand) => write!(f, "fetch-add {operand}"),
            Self::CompareSwap { compare, swap } => write!(f, "compare-swap {compare} {swap}"),
        }
    }
}

/// The one-sided half of a link. Called with the worker's lock held.
///
/// An operation goes over a rail between a device of this process that `local` has a key for and one of the peer that `remote` has a key for;
/// which of several, the link chooses. Where none fits, the answer is [`SendError::Failed`] of kind `Unsupported`, which is an error of the operation alone:
/// ask [`OneSided::reaches`] first. Any other `Failed` is the link's end.
pub trait OneSided {
    /// What it can do.
    fn attributes(&self) -> OneSidedAttributes;

    /// Registers memory for this link's devices.
    fn memory(&self) -> &Arc<dyn DeviceRegistrar>;

    /// The devices of this process that have rails of this link, for [`DeviceRegistrar::register`]. At most [`MAX_DEVICES`], none twice.
    fn devices(&self) -> &[u64];

    /// Those of them from which a rail leads to one of the peer's devices that `remote` names.
    fn devices_to(&self, remote: &[DeviceKey]) -> Vec<u64> {
        let _ = remote;
        self.devices().to_vec()
    }

    /// Whether a rail leads to one of the peer's devices that `remote` names.
    fn reaches(&self, remote: &[DeviceKey]) -> bool;

    /// Writes the bytes of `local` to `remote`. At least one byte, at most [`OneSidedAttributes::max_put`].
    ///
    /// # Safety
    /// `local` must stay valid, unchanged and registered under its keys until the operation has ended (`Zcopy::Done`, [`Sink::sent`](super::Sink::sent),
    /// [`Sink::refused`](super::Sink::refused)), or the link was dropped.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Failed`].
    unsafe fn put(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError>;

    /// Writes `data`, which is copied before the call returns, to `remote`. At most [`OneSidedAttributes::max_short`] bytes. It has ended with
    /// [`Sink::sent`](super::Sink::sent), as every put.
    ///
    /// # Errors
    /// As [`OneSided::put`].
    fn put_short(
        &mut self,
        data: &[u8],
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError>;

    /// Reads into all of `local` from `remote`. At least one byte, at most [`OneSidedAttributes::max_get`].
    ///
    /// # Safety
    /// `local` must stay valid for writing, used by nobody else and registered under its keys until the operation has ended, or the link was
    /// dropped.
    ///
    /// # Errors
    /// As [`OneSided::put`].
    unsafe fn get(
        &mut self,
        local: LocalRange<'_>,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<Zcopy, SendError>;

    /// Reads `length` bytes, at most [`OneSidedAttributes::max_short`], from `remote`. It ends with [`Sink::fetched`](super::Sink::fetched), or
    /// [`Sink::refused`](super::Sink::refused).
    ///
    /// # Errors
    /// As [`OneSided::put`].
    fn get_short(
        &mut self,
        length: usize,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError>;

    /// Does `atomic` on the 8 bytes at `remote`, whose address is a multiple of 8. It ends with [`Sink::fetched`](super::Sink::fetched) of the 8
    /// bytes that were there before, in this processor's order, or [`Sink::refused`](super::Sink::refused).
    ///
    /// # Errors
    /// As [`OneSided::put`]; `Unsupported`, an error of the operation alone, without [`OneSidedAttributes::atomics`].
    fn atomic(
        &mut self,
        atomic: DeviceAtomic,
        remote: RemoteRange<'_>,
        token: u64,
    ) -> Result<(), SendError> {
        let _ = (atomic, remote, token);
        Err(SendError::Failed(Error::new(
            ErrorKind::Unsupported,
            "the device does no atomics",
        )))
    }
}

/// A registration under way. Dropping it gives it up.
pub type Registering<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Registers memory of this process with the devices of a context, off the caller's thread.
pub trait DeviceRegistrar: Send + Sync + fmt::Debug {
    /// Whether `devices` may reach memory of this type, as far as is known: that of a device not everybody does.
    ///
    /// # Errors
    /// Why not.
    fn takes(&self, memory_type: MemoryType, devices: &[u64]) -> Result<(), String> {
        let _ = devices;
        match memory_type.is_host_accessible() {
            true => Ok(()),
            false => Err(format!("memory of type {memory_type} is not registered")),
        }
    }

    /// Those of `devices` that are nearest to memory of this type on the bus: it is best moved by them. All of them, where nothing is known.
    fn nearest(&self, memory_type: MemoryType, devices: Vec<u64>) -> Vec<u64> {
        let _ = memory_type;
        devices
    }

    /// Keys of all `devices` for this memory, where it is registered already. Does not wait and does not register. `access` is what devices
    /// of this process do: `READ` it for a put, `WRITE` it for a get.
    fn find(&self, memory: &LocalMemory, access: Access, devices: &[u64]) -> Option<LocalKeys>;

    /// Registers this memory (with the whole allocation around it, where it says one) on all `devices`, from the first poll on.
    /// It may be used by this process's operations as `access` says, and read by peers who are told [`LocalKeys::remote`].
    fn register(
        &self,
        memory: LocalMemory,
        access: Access,
        devices: &[u64],
    ) -> Registering<LocalKeys>;

    /// Makes what devices of this process have written into `range` under these keys, and said so, seen by whose memory it is. `None`: it is seen.
    fn settle(&self, keys: &LocalKeys, range: AddressRange) -> Option<Registering<()>> {
        let _ = (keys, range);
        None
    }

    /// Registers `range`, of the host, to the byte, for one operation of a peer that writes into it: a registration of its own, kept for nobody else.
    fn register_for_writing(&self, range: AddressRange, devices: &[u64]) -> Registering<LocalKeys>;

    /// Ends what [`DeviceRegistrar::register_for_writing`] made. When the future resolves, no peer reaches the memory any more.
    fn end_writing(&self, keys: LocalKeys) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// The same in the caller's thread, also where [`DeviceRegistrar::end_writing`] is under way. Blocks: 0.1 ms and more for each MiB.
    fn end_writing_now(&self, keys: &LocalKeys);

    /// Registers exposed memory on all devices, by a registration of its own that ends with the [`Exposure`]. Blocks: 0.1 ms and more for
    /// each MiB.
    ///
    /// # Safety
    /// The memory must stay allocated until the [`Exposure`] was dropped, and whoever uses it meanwhile must expect that peers read and
    /// write it.
    ///
    /// # Errors
    /// What the system said, with the remedy; `Unsupported` when no device can. The region is then reached by messages.
    unsafe fn expose(&self, memory: &LocalMemory, access: Access) -> Result<Exposure>;
}

/// How a link's devices do one-sided operations, for people.
#[derive(Clone, Debug)]
pub struct DeviceWays {
    /// Each rail by its device at this end and its name, a device and a port; or why there is none.
    pub rails: Result<Vec<(u64, String)>, String>,
    /// How many there were besides, and failed.
    pub failed: usize,
    /// Why they do no atomics.
    pub no_atomics: Option<String>,
}

/// Registered memory. What was registered stays so until the last clone of it is dropped.
#[derive(Clone, Debug)]
pub struct LocalKeys {
    local: Vec<DeviceKey>,
    remote: Vec<DeviceKey>,
    range: AddressRange,
    held: Arc<dyn Any + Send + Sync>,
}

impl LocalKeys {
    /// Keys for `range` that last as long as `held`.
    #[must_use]
    pub fn new(
        range: AddressRange,
        local: Vec<DeviceKey>,
        remote: Vec<DeviceKey>,
        held: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            local,
            remote,
            range,
            held,
        }
    }

    /// All that is registered; at least what was asked for.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// For operations of this process.
    #[must_use]
    pub fn local(&self) -> &[DeviceKey] {
        &self.local
    }

    /// What holds the registrations.
    #[must_use]
    pub fn held(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.held
    }

    /// For operations of a peer.
    #[must_use]
    pub fn remote(&self) -> &[DeviceKey] {
        &self.remote
    }
}

/// The registrations of one exposed region. Dropping it ends them, which takes 0.1 ms and more for each MiB: from then on no peer reaches the
/// memory by its keys.
#[derive(Debug)]
pub struct Exposure {
    keys: Vec<DeviceKey>,
    read_back: bool,
    _held: Box<dyn Any + Send + Sync>,
}

impl Exposure {
    /// Remote keys that last as long as `held`.
    #[must_use]
    pub fn new(keys: Vec<DeviceKey>, held: Box<dyn Any + Send + Sync>) -> Self {
        Self {
            keys,
            read_back: false,
            _held: held,
        }
    }

    /// Whoever writes the memory reads a byte of it afterwards by the same device: only then is it seen by whose it is.
    #[must_use]
    pub fn read_back(mut self, yes: bool) -> Self {
        self.read_back = yes;
        self
    }

    /// Whether it is to be read back.
    #[must_use]
    pub fn is_read_back(&self) -> bool {
        self.read_back
    }

    /// The remote keys, one for each device that has the memory registered.
    #[must_use]
    pub fn keys(&self) -> &[DeviceKey] {
        &self.keys
    }
}
