//! Device memory of another process on this host, made addressable here, whoever made the device.
//!
//! Comes in: an address range of device memory, to be exported; or the bytes that another process exported. Goes out: bytes; or an address of
//! the device here, as an end of copies, and what keeps it open. A vendor gives its [`Sharing`]. Uses `sys`, `types`. Tests: with each vendor's
//! (`tests/cuda_ipc/`).
//!
//! | file | holds |
//! |---|---|
//! | `sharing` | what a vendor gives |
//! | `descriptor` | the bytes |
//! | `export` | what is exported, and how it is remembered |
//! | `handover` | file descriptors that cross by a socket, for a ticket |
//! | `cache` | what is open here |
//! | `lazy` | all of it, made by the first who asks |
//!
//! # What is kept, and what makes it wrong
//! An allocation is known by the process (its start time and a random name with it: ids are used again) and by an id that the vendor never uses
//! again: memory that was freed, and allocated anew at the same address, has another. The exporter asks for the
//! id at every export, so what it says is of now. The importer keeps what it opened ([`cache`], at most [`MOST`]), finds it by all
//! that the descriptor says of the allocation, and closes it when another allocation of that process lies at its addresses, when room
//! is needed, and, at the next opening, when its process has ended.
//!
//! # Who keeps the memory
//! The exporter, from the export until the peer has said that it is done: the protocol's acknowledgement. After that an importer may have the
//! memory open still but touches it no more. An importer that dies has closed everything, by the kernel.

pub(crate) mod cache;
pub(crate) mod descriptor;
mod export;
pub(crate) mod handover;
pub(crate) mod lazy;
mod sharing;

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use cache::{Cache, Counts, Key, Lease};
use descriptor::{Allocation, Descriptor, Origin, Way};
use export::Exporter;
use handover::Wanted;
pub(crate) use sharing::{Shared, Sharing, Tickets};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::{identity::identity, process},
    transport::accelerator::{Export, Import, ImportedMemory},
    types::Identity,
};

/// Most allocations of other processes that are open at once.
pub(crate) const MOST: usize = 256;

/// See the module. One for each accelerator of a context.
#[derive(Debug)]
pub(crate) struct Ipc<S: Sharing> {
    sharing: Arc<S>,
    exporter: Exporter<S>,
    opened: Cache<Allocation<S::Way>, S::Opened>,
    /// How long an exporter is waited for.
    patience: Duration,
}

impl<S: Sharing> Ipc<S> {
    /// Initialises nothing.
    /// Errors: the system has no random numbers.
    pub(crate) fn new(sharing: S) -> Result<Self> {
        Self::with_limits(sharing, MOST, handover::DEADLINE)
    }

    /// With other limits than [`MOST`] and [`handover::DEADLINE`]; `most` is at least 1.
    /// Errors: as [`Self::new`].
    pub(crate) fn with_limits(sharing: S, most: usize, patience: Duration) -> Result<Self> {
        let sharing = Arc::new(sharing);
        Ok(Self {
            exporter: Exporter::new(Arc::clone(&sharing), origin()?.clone()),
            opened: Cache::new(most),
            sharing,
            patience,
        })
    }

    /// See [`Accelerator::export`](crate::transport::accelerator::Accelerator::export).
    pub(crate) fn export(&self, address: u64, length: u64) -> Result<Export> {
        self.exporter.export(address, length)
    }

    /// See [`Accelerator::exported`](crate::transport::accelerator::Accelerator::exported).
    pub(crate) fn exported(&self, address: u64, length: u64) -> Option<Export> {
        self.exporter.exported(address, length)
    }

    /// That the bytes are a descriptor, that it is `peer`'s to give, and that it may be opened here as far as one can tell without the driver.
    /// Errors: as of importing.
    pub(crate) fn judge(descriptor: &[u8], peer: &Identity) -> Result<()> {
        Self::decode(descriptor, peer).map(drop)
    }

    /// See [`Accelerator::import`](crate::transport::accelerator::Accelerator::import).
    pub(crate) fn import(&self, descriptor: &[u8], peer: &Identity) -> Import {
        let judged = Self::decode(descriptor, peer);
        let (sharing, opened) = (Arc::clone(&self.sharing), self.opened.clone());
        let patience = self.patience;
        Box::pin(async move {
            let descriptor = judged?;
            if descriptor.allocation.origin == *origin()? {
                return own(&*sharing, &descriptor);
            }
            let allocation = descriptor.allocation.clone();
            let lease = opened
                .get(&descriptor.allocation, may_live, move || {
                    open(&*sharing, &allocation, patience)
                })
                .await?;
            Self::imported_by(lease, &descriptor)
        })
    }

    /// See [`Accelerator::imported`](crate::transport::accelerator::Accelerator::imported).
    pub(crate) fn imported(&self, descriptor: &[u8], peer: &Identity) -> Option<ImportedMemory> {
        let descriptor = Self::decode(descriptor, peer).ok()?;
        let lease = self.opened.find(&descriptor.allocation)?;
        Self::imported_by(lease, &descriptor).ok()
    }

    /// What importing has done.
    #[allow(dead_code)] // Tests ask.
    pub(crate) fn counts(&self) -> Counts {
        self.opened.counts()
    }

    /// Closes all that nobody uses. Blocks.
    #[allow(dead_code)] // Tests ask.
    pub(crate) fn close_unused(&self) {
        self.opened.forget_unless(|_| false);
    }

    fn decode(bytes: &[u8], peer: &Identity) -> Result<Descriptor<S::Way>> {
        let descriptor = Descriptor::decode(bytes)?;
        judge(&descriptor.allocation, peer)?;
        Ok(descriptor)
    }

    fn imported_by(
        lease: Lease<Allocation<S::Way>, S::Opened>,
        descriptor: &Descriptor<S::Way>,
    ) -> Result<ImportedMemory> {
        let none = || Error::new(ErrorKind::Io, "nothing is open");
        let (start, memory_type) = S::place(lease.get().ok_or_else(none)?);
        let at = start.wrapping_add(descriptor.offset);
        let length = descriptor.length;
        Ok(ImportedMemory::new(at, length, memory_type, lease))
    }
}

impl<W: Way> Key for Allocation<W> {
    fn supersedes(&self, other: &Self) -> bool {
        // One process's addresses are one allocation's at a time.
        self.origin == other.origin
            && self.base < other.base.saturating_add(other.length)
            && other.base < self.base.saturating_add(self.length)
    }
}

/// That the memory is `peer`'s to give, and can be reached from here as far as one can tell without the driver.
/// Errors: `Protocol`: another process's; `Unreachable`, `PermissionDenied`, `Unsupported`: no way from here.
fn judge<W: Way>(allocation: &Allocation<W>, peer: &Identity) -> Result<()> {
    let (from, here) = (&allocation.origin.identity, identity());
    if from != peer {
        return Err(Error::new(
            ErrorKind::Protocol,
            "the peer gives device memory of another process than itself",
        ));
    }
    if allocation.way.leaves_the_host() {
        return Ok(());
    }
    if !from.same_host(here) {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "the device memory is on another host",
        ));
    }
    if from.user != here.user {
        let text = format!(
            "device memory of user {} cannot be opened by user {}",
            from.user, here.user
        );
        return Err(Error::new(ErrorKind::PermissionDenied, text));
    }
    // The driver's own handles name processes by their ids.
    if allocation.way.is_by_process() && from.pid_namespace != here.pid_namespace {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the driver's handles do not lead to another process namespace: allocate by the virtual memory calls, or from a pool, to be shared",
        ));
    }
    Ok(())
}

/// Whether the process may still be there that exported it. What cannot be told is taken for yes.
fn may_live<W>(allocation: &Allocation<W>) -> bool {
    let (from, here) = (&allocation.origin, identity());
    let visible = from.identity.same_host(here)
        && from.identity.pid_namespace == here.pid_namespace
        && from.start != 0;
    match process::start_time(from.identity.pid) {
        Ok(start) => !visible || start == from.start,
        Err(error) => !(visible && error.kind() == io::ErrorKind::NotFound),
    }
}

/// Opens it. Takes about a millisecond, and more the first time; blocks.
fn open<S: Sharing>(
    sharing: &S,
    allocation: &Allocation<S::Way>,
    patience: Duration,
) -> Result<S::Opened> {
    if !may_live(allocation) {
        return Err(Error::new(
            ErrorKind::PeerDied,
            "the process that exported device memory has ended",
        ));
    }
    // Before anything of the driver: nobody may answer.
    let fd = match allocation.way.ticket() {
        Some((ticket, kind)) => {
            let wanted = Wanted {
                kind,
                base: allocation.base,
                id: allocation.id,
            };
            let from = &allocation.origin.identity;
            let deadline = Instant::now() + patience;
            Some(handover::fetch(ticket, wanted, from, deadline)?)
        }
        None => None,
    };
    sharing.open(allocation, fd)
}

/// Memory of this process itself: it needs no opening, and the driver would refuse.
fn own<S: Sharing>(sharing: &S, descriptor: &Descriptor<S::Way>) -> Result<ImportedMemory> {
    let allocation = &descriptor.allocation;
    let at = allocation.base.wrapping_add(descriptor.offset);
    // A peer gives it back, and may have changed it: it ends in the allocation, too.
    let last = at.wrapping_add(descriptor.length.saturating_sub(1));
    let is_there = last >= at && sharing.own(last, allocation.id)?.is_some();
    match sharing.own(at, allocation.id)?.filter(|_| is_there) {
        Some(memory_type) => Ok(ImportedMemory::new(at, descriptor.length, memory_type, ())),
        None => Err(handover::stale()),
    }
}

/// This process.
fn origin() -> Result<&'static Origin> {
    static ORIGIN: OnceLock<Origin> = OnceLock::new();
    if let Some(origin) = ORIGIN.get() {
        return Ok(origin);
    }
    let mut name = [0; 16];
    getrandom::fill(&mut name)
        .map_err(|error| Error::new(ErrorKind::Io, "drawing random bytes").with_source(error))?;
    Ok(ORIGIN.get_or_init(|| Origin {
        identity: identity().clone(),
        start: process::own_start_time(),
        name,
    }))
}

/// The one of this process's devices whose name, which all processes have for it, is `wanted`. `variable` may hide devices.
/// Errors: `Unsupported`: none; and those of `name`.
pub(crate) fn visible<D, N: PartialEq>(
    devices: impl IntoIterator<Item = D>,
    name: impl Fn(&D) -> Result<N>,
    wanted: &N,
    shown: &dyn fmt::Display,
    variable: &str,
) -> Result<D> {
    for device in devices {
        if name(&device)? == *wanted {
            return Ok(device);
        }
    }
    let text = format!(
        "the peer's memory is on {shown}, which is not visible to this process ({variable} may hide it)"
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Gives bytes to the decoder of exported memory that is opened in ways of `W`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz<W: Way>(bytes: &[u8]) {
    if let Ok(descriptor) = Descriptor::<W>::decode(bytes) {
        assert_eq!(
            descriptor.encode(),
            bytes,
            "what is taken is what the encoder makes"
        );
        let _ = judge(&descriptor.allocation, identity());
    }
}
