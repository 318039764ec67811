//! Memory registered with a communicator: lent to the other ranks, for good or until a moment, and taken back.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    endpoint::{Endpoint, RemoteRegion, Worker},
    error::{Error, ErrorKind, Operation, Result},
    memory::{Buffer, BufferMut, Region},
    protocol::registered::Registered,
    types::{Access, MemoryType},
    util::lock::Mutex,
};

use super::{
    Communicator,
    clock::{self, Appointment},
    communicator::CommunicatorId,
};

/// Leases of one memory that may be out at a time.
pub const MAX_LEASES: usize = 1024;

/// Memory of this rank that others may reach. A cheap clone; it is lent until the last clone is dropped, or until [`revoke`](Self::revoke).
///
/// Like a [`Region`] it has no slice view, since peers may change it at any time.
#[derive(Clone)]
#[doc(alias("registerMemory", "mscclpp::RegisteredMemory"))]
pub struct RegisteredMemory {
    inner: Arc<Inner>,
}

struct Inner {
    communicator: CommunicatorId,
    rank: u32,
    /// Apart, so that who ends a lease holds nothing else.
    leases: Arc<Mutex<Leases>>,
    region: Region,
}

#[derive(Default)]
struct Leases {
    /// The memory was taken back, for good.
    revoked: bool,
    next: u64,
    /// Those that have not ended.
    lent: Vec<Lent>,
}

struct Lent {
    number: u64,
    /// Its drop ends the lease.
    _region: Region,
    _end: Appointment,
}

impl Communicator {
    /// Registers memory of any type, so that ranks of this communicator may reach it.
    ///
    /// # Errors
    /// As [`Context::expose`](crate::Context::expose).
    ///
    /// # Cancel safety
    /// Dropped, the memory is freed.
    pub async fn register(
        &self,
        memory: impl Into<BufferMut> + Send,
        access: Access,
    ) -> Result<RegisteredMemory> {
        let context = self.worker().context();
        let region = context.expose(memory.into(), access).await?;
        self.registered(region)
    }

    /// Registers memory that is exposed already.
    ///
    /// # Errors
    /// `InvalidArgument` in a group of more than 2^32 ranks.
    pub fn registered(&self, region: Region) -> Result<RegisteredMemory> {
        let rank = u32::try_from(self.rank())
            .map_err(|_| refused("a rank past those that a descriptor holds"))?;
        Ok(RegisteredMemory {
            inner: Arc::new(Inner {
                communicator: self.id(),
                rank,
                region,
                leases: Arc::default(),
            }),
        })
    }

    /// Makes memory of another rank accessible, from what it has [serialised](RegisteredMemory::serialize). Connects to that rank.
    ///
    /// # Errors
    /// `Malformed`: altered, cut short or something else. `InvalidArgument`: of another communicator or process. `StaleKey`: the lease has
    /// expired. `VersionMismatch`; and as [`Communicator::endpoint`]. Memory that was revoked is found out by the first operation: `StaleKey`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn deserialize(&self, bytes: &[u8]) -> Result<RemoteMemory> {
        let registered = Registered::from_bytes(bytes).map_err(during)?;
        if registered.communicator != self.id().to_bytes() {
            return Err(refused(
                "the memory was registered with another communicator",
            ));
        }
        let owner = registered.rank as usize;
        let expires = registered.expires;
        check_lease(expires, owner)?;
        let endpoint = self.endpoint(owner).await?;
        let region = endpoint.import(&registered.descriptor)?;
        Ok(RemoteMemory {
            region,
            endpoint,
            owner,
            expires,
            memory_type: registered.descriptor.memory_type(),
        })
    }

    /// Receives memory that a rank [sent](RegisteredMemory::send) under `tag`.
    ///
    /// # Errors
    /// As [`Communicator::receive`] and [`Communicator::deserialize`].
    ///
    /// # Cancel safety
    /// Dropped before the message has come, nothing is lost; after that, what it says is.
    #[doc(alias = "recvMemory")]
    pub async fn receive_memory(&self, from: usize, tag: u32) -> Result<RemoteMemory> {
        let bytes = self.receive(from, tag).await?;
        self.memory_of(from, &bytes).await
    }

    /// The memory that a rank has serialised, if it is its own.
    pub(super) async fn memory_of(&self, from: usize, bytes: &[u8]) -> Result<RemoteMemory> {
        let memory = self.deserialize(bytes).await?;
        if memory.owner() == from {
            Ok(memory)
        } else {
            let text = format!("rank {from} sent memory of rank {}", memory.owner());
            Err(refused(text))
        }
    }
}

impl RegisteredMemory {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.region.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whose memory it is.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        self.inner.region.memory_type()
    }

    /// What other ranks may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.region.access()
    }

    /// The memory, for copies in and out and for atomic operations.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// Copies from it.
    ///
    /// # Errors
    /// As [`Region::read_at`].
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        self.inner.region.read_at(offset, target)
    }

    /// Copies into it.
    ///
    /// # Errors
    /// As [`Region::read_at`].
    pub fn write_at(&self, offset: usize, source: &[u8]) -> Result<()> {
        self.inner.region.write_at(offset, source)
    }

    /// Copies from memory of any type, a device's by its engine.
    ///
    /// # Errors
    /// `OutOfBounds`, and as [`Worker::copy`].
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost but the copy.
    pub async fn copy_out(&self, worker: &Worker, offset: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        if self.memory_type().is_host_accessible() {
            self.read_at(offset, &mut bytes)?;
            return Ok(bytes);
        }
        let copied = worker.copy(self.source(offset, length)?, bytes).await;
        copied.map_err(|error| error.into_parts().0)
    }

    /// Copies into memory of any type, a device's by its engine.
    ///
    /// # Errors
    /// As [`copy_out`](Self::copy_out).
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the bytes still go in.
    pub async fn copy_in(&self, worker: &Worker, offset: usize, bytes: Vec<u8>) -> Result<()> {
        if self.memory_type().is_host_accessible() {
            return self.write_at(offset, &bytes);
        }
        let target = self.target(offset, bytes.len())?;
        let copied = worker.copy(bytes, target).await;
        copied.map(drop).map_err(|error| error.into_parts().0)
    }

    /// What another rank needs to reach it, for as long as it is registered: to be passed on by any means.
    ///
    /// # Errors
    /// As [`Region::descriptor`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.inner.serialize(&self.inner.region, None)
    }

    /// The same until `lasts` from now, and for no more than `access`. The owner takes it back then, whoever uses it: operations that begin later
    /// fail with `StaleKey`, those under way end first. Ranks that have it also refuse by their own clock, so the clocks of hosts should agree
    /// much better than leases last.
    ///
    /// # Errors
    /// `AccessDenied` for more than the memory was registered for. `Exhausted` when [`MAX_LEASES`] are out, or there is no thread to end it.
    /// `StaleKey` once it was [revoked](Self::revoke).
    pub fn lease(&self, lasts: Duration, access: Access) -> Result<Lease> {
        let inner = &self.inner;
        if !inner.region.access().contains(access) {
            let text = "a lease for more than the memory was registered for";
            return Err(Error::new(ErrorKind::AccessDenied, text).during(Operation::Memory));
        }
        let end = now().saturating_add(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        let mut leases = inner.leases.lock();
        if leases.revoked {
            let text = "the memory was taken back";
            return Err(Error::new(ErrorKind::StaleKey, text).during(Operation::Memory));
        }
        if leases.lent.len() >= MAX_LEASES {
            let text = format!("{MAX_LEASES} leases of one memory");
            return Err(Error::new(ErrorKind::Exhausted, text).during(Operation::Memory));
        }
        let region = inner.region.lend(access)?;
        let bytes = inner.serialize(&region, Some(end))?;
        let number = leases.next;
        leases.next += 1;
        let of = Arc::downgrade(&inner.leases);
        let end = clock::after(lasts, move || end_lease(&of, number))?;
        leases.lent.push(Lent {
            number,
            _region: region,
            _end: end,
        });
        Ok(Lease {
            of: Arc::downgrade(&inner.leases),
            number,
            bytes,
        })
    }

    /// Sends it to a rank, which [receives](Communicator::receive_memory) it.
    ///
    /// # Errors
    /// As [`Communicator::send`]; `InvalidArgument` when it was registered with another communicator.
    ///
    /// # Cancel safety
    /// As [`Communicator::send`].
    #[doc(alias = "sendMemory")]
    pub async fn send(&self, communicator: &Communicator, to: usize, tag: u32) -> Result<()> {
        let bytes = self.serialize_for(communicator)?;
        communicator.send(to, tag, bytes).await
    }

    /// [`serialize`](Self::serialize) for ranks of this communicator.
    pub(super) fn serialize_for(&self, communicator: &Communicator) -> Result<Vec<u8>> {
        if self.inner.communicator != communicator.id() {
            return Err(refused(
                "the memory was registered with another communicator",
            ));
        }
        self.serialize()
    }

    /// Takes it back from all who have it, leases and all, for good. This process keeps it.
    ///
    /// # Completion
    /// Every access that peers began before has ended; later ones fail with `StaleKey`.
    ///
    /// # Cancel safety
    /// The access is revoked at the first poll; dropped, the rest is not waited for.
    pub async fn revoke(&self) {
        self.inner.leases.lock().revoked = true;
        self.end_leases();
        self.inner.region.revoke().await;
    }

    /// Takes it back as [`revoke`](Self::revoke), and gives the memory back.
    ///
    /// # Errors
    /// Gives itself back when there are other clones, or channels that use it. Others still have their access then.
    ///
    /// # Cancel safety
    /// As [`Region::unexpose`].
    pub async fn unregister(self) -> Result<BufferMut, Self> {
        let inner = Arc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        let leases = std::mem::take(&mut *inner.leases.lock());
        drop(leases);
        Ok(inner.region.unexpose().await)
    }

    /// Ends all leases.
    pub fn end_leases(&self) {
        let ended = std::mem::take(&mut self.inner.leases.lock().lent);
        drop(ended);
    }

    /// Which communicator it belongs to.
    #[must_use]
    pub fn communicator(&self) -> CommunicatorId {
        self.inner.communicator
    }

    pub(super) fn source(&self, offset: usize, length: usize) -> Result<Buffer> {
        self.inner.region.source(offset, length)
    }

    pub(super) fn target(&self, offset: usize, length: usize) -> Result<BufferMut> {
        self.inner.region.target(offset, length)
    }
}

impl Inner {
    fn serialize(&self, region: &Region, expires: Option<u64>) -> Result<Vec<u8>> {
        let registered = Registered {
            communicator: self.communicator.to_bytes(),
            rank: self.rank,
            expires,
            descriptor: region.descriptor()?,
        };
        Ok(registered.to_bytes())
    }
}

fn end_lease(of: &Weak<Mutex<Leases>>, number: u64) {
    let Some(leases) = of.upgrade() else { return };
    let mut leases = leases.lock();
    let at = leases.lent.iter().position(|lent| lent.number == number);
    // Dropped with the lock held: who takes the memory back meanwhile finds it ended.
    drop(at.map(|at| leases.lent.swap_remove(at)));
}

impl fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredMemory")
            .field("communicator", &self.inner.communicator)
            .field("region", &self.inner.region)
            .field("leases", &self.inner.leases.lock().lent.len())
            .finish_non_exhaustive()
    }
}

/// Registered memory lent until a moment; made by [`RegisteredMemory::lease`]. Dropping it changes nothing: it ends when its time is over, by
/// [`revoke`](Self::revoke), or with the registration.
pub struct Lease {
    of: Weak<Mutex<Leases>>,
    number: u64,
    bytes: Vec<u8>,
}

impl Lease {
    /// What another rank needs to reach the memory, as [`RegisteredMemory::serialize`].
    #[must_use]
    pub fn serialize(&self) -> &[u8] {
        &self.bytes
    }

    /// Ends it now.
    pub fn revoke(self) {
        end_lease(&self.of, self.number);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Memory of another rank, or of this one as others see it. A cheap clone.
#[derive(Clone)]
pub struct RemoteMemory {
    region: RemoteRegion,
    endpoint: Endpoint,
    owner: usize,
    expires: Option<u64>,
    memory_type: MemoryType,
}

impl RemoteMemory {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rank that registered it.
    #[must_use]
    pub fn owner(&self) -> usize {
        self.owner
    }

    /// Whose memory it is, at its owner.
    #[must_use]
    pub fn memory_type(&self) -> MemoryType {
        self.memory_type
    }

    /// What its owner allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The connection by which it is reached.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A part of it, for operations of its [`endpoint`](Self::endpoint).
    ///
    /// # Errors
    /// `OutOfBounds`; `StaleKey` when the lease has expired.
    pub fn part(&self, offset: usize, length: usize) -> Result<RemoteRegion> {
        check_lease(self.expires, self.owner)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(self.region.slice(offset..end)),
            _ => {
                let text = format!(
                    "{length} bytes at offset {offset} of {} bytes of rank {}",
                    self.len(),
                    self.owner
                );
                Err(Error::new(ErrorKind::OutOfBounds, text).during(Operation::Memory))
            }
        }
    }
}

impl fmt::Debug for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMemory")
            .field("owner", &self.owner)
            .field("region", &self.region)
            .field("memory_type", &self.memory_type)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

fn check_lease(expires: Option<u64>, owner: usize) -> Result<()> {
    if expires.is_none_or(|expires| now() < expires) {
        return Ok(());
    }
    let text = format!("the lease of rank {owner}'s memory has expired");
    Err(Error::new(ErrorKind::StaleKey, text).during(Operation::Memory))
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn during(error: Error) -> Error {
    error.during(Operation::Memory)
}

#[cold]
fn refused(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Memory)
}
