//! What the program calls.
//!
//! # Safety
//! A direct copy touches the peer's memory between `Pair::enter` and `Pair::leave` alone, after a look at the generation of its region, as everybody who does so
//! ([`Pair`]); the memory here is the operation's own. The poll of an interface is registered with the runtime by its own descriptor.
#![allow(unsafe_code)]

use std::{
    any::type_name, collections::HashMap, fmt, marker::PhantomData, sync::Arc, time::Duration,
};

use tokio::io::{Interest, unix::AsyncFd};

use super::{
    brought::Of,
    key::RemoteKey,
    meet::meet,
    send::pump,
    state::{Endpoint, Near, Operation, Out, State, Target, Work},
    wire,
};
use crate::{
    error::{self, Error, ErrorKind, Result},
    memory::{Buffer, BufferMut, LocalMemory, Region, region::stale},
    sys::fork,
    transport::{
        Connector, Interface, Link, LocalKeys, Opened, Pair, Registry, Role, Standing, Transport,
        channel::Channel, exposing::let_devices,
    },
    types::{Access, LinkId, Mover},
    util::copy::copy,
};

/// What is copied at once in the peer's memory, which who takes that back waits for, in bytes.
const CHUNK: usize = 256 << 10;
/// Things that one pass takes, about.
const BUDGET: usize = 64;
/// The token of the interface's doorbells.
const DOORBELL: mio::Token = mio::Token(usize::MAX >> 1);

/// An operation that was posted: a key to what comes of it. Dropping it changes nothing: the operation goes on, and what it worked on is kept until the
/// [`Driver`] is dropped.
#[must_use = "what comes of it is had by `Driver::wait`"]
pub struct Posted<T> {
    token: u64,
    brings: PhantomData<fn() -> T>,
}

#[cfg(all(test, not(wharf_loom)))]
impl<T> Posted<T> {
    pub(super) fn token(&self) -> u64 {
        self.token
    }
}

impl<T> fmt::Debug for Posted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brings = type_name::<T>();
        write!(f, "Posted({}, brings {brings})", self.token)
    }
}

/// What an operation gives back. Of `()`, [`Buffer`] and [`BufferMut`].
#[allow(private_bounds)]
pub trait Brought: Of {}

impl<T: Of> Brought for T {}

/// A transport driven by hand: its interface, the memory exposed through it, and its links. One thread at a time. Needs a Tokio runtime, with its I/O, where it
/// is made.
///
/// Its descriptors are edge-triggered and its peers' questions are answered by [`Driver::progress`] and [`Driver::turn`] alone. Dropping it ends its
/// links, and with them what is under way.
#[doc(alias("uct_iface_h", "uct_md_h", "uct_worker_h"))]
pub struct Driver {
    // Links go first: they use what the operations own.
    pub(super) links: HashMap<LinkId, Box<dyn Link>>,
    interface: Box<dyn Interface>,
    pub(super) state: State,
    connector: Arc<dyn Connector>,
    transport: Arc<dyn Transport>,
    by_kernel: bool,
    poll: AsyncFd<mio::Poll>,
    events: mio::Events,
}

impl Driver {
    /// Opens a transport: one of [`Context::transport`](crate::Context::transport), or one of your own.
    ///
    /// # Errors
    /// Why the transport cannot be used here, and what the system said; `Forked` in a child made by `fork`.
    ///
    /// # Panics
    /// Outside a Tokio runtime with its I/O driver.
    #[doc(alias = "uct_iface_open")]
    pub fn open(transport: &Arc<dyn Transport>) -> Result<Self> {
        fork::check(error::Operation::Configure)?;
        transport.probe()?;
        let Opened {
            mut interface,
            connector,
        } = transport.open()?;
        let failed = |error| Error::io("making a poll for a transport by hand", error);
        let poll = mio::Poll::new().map_err(failed)?;
        let registry = poll.registry().try_clone().map_err(failed)?;
        if let Some(bell) = interface.doorbell() {
            use std::os::fd::AsRawFd;
            let fd = bell.as_raw_fd();
            registry
                .register(
                    &mut mio::unix::SourceFd(&fd),
                    DOORBELL,
                    mio::Interest::READABLE,
                )
                .map_err(failed)?;
        }
        interface.register(Registry::new(registry, 0))?;
        // SAFETY: a poll has one fd, from when it is made until it is dropped, and nothing here takes it out.
        let poll = unsafe { AsyncFd::register_with_interest(poll, Interest::READABLE) };
        Ok(Self {
            links: HashMap::new(),
            interface,
            state: State::new(),
            connector,
            transport: Arc::clone(transport),
            by_kernel: true,
            poll: poll
                .map_err(|error| Error::io("watching a transport by hand", error.into_parts().1))?,
            events: mio::Events::with_capacity(64),
        })
    }

    /// Whether links made from here on copy between the two processes by the kernel (`process_vm_readv`, `process_vm_writev`) where nothing better is there. By
    /// default they do where the other end does, and the system allows it.
    #[must_use]
    pub fn by_kernel(mut self, yes: bool) -> Self {
        self.by_kernel = yes;
        self
    }

    /// Makes a link over a channel whose other end does the same at that moment, in the other role: over a Unix socket for `shm`, over TCP for `tcp`, over
    /// either for `rc_verbs`. The channel may go to the link. Nothing else is progressed meanwhile, and there is no deadline: put a `timeout` around it.
    ///
    /// # Errors
    /// Why the transport cannot use the channel; `Protocol`, `VersionMismatch`: the other end is something else; what the transport or the peer says.
    ///
    /// # Cancel safety
    /// Dropping the future drops the half-made link.
    #[doc(alias("uct_ep_create", "uct_ep_connect_to_ep"))]
    pub async fn connect(&mut self, mut channel: Channel, role: Role) -> Result<LinkId> {
        fork::check(error::Operation::Connect)?;
        let (info, cma) = meet(&mut channel, self.by_kernel).await?;
        self.connector.can_use(&channel, &info)?;
        let connected = self.connector.connect(&mut channel, role, &info).await?;
        let id = LinkId(self.state.number());
        let link = self.interface.attach(id, connected)?;
        let near = link.shared_memory().map(|memory| {
            let pair = Arc::new(Pair::new(memory));
            self.state.guests.add(id, &pair);
            Near::new(pair, cma)
        });
        self.state.endpoints.insert(id, Endpoint::new(near));
        self.links.insert(id, link);
        Ok(id)
    }

    /// Ends a link. Operations on it end with `Closed`; the peer finds it at its end.
    pub fn disconnect(&mut self, link: LinkId) {
        let text = "the endpoint was closed on this side";
        self.state.fail(link, Error::new(ErrorKind::Closed, text));
        self.end_failed();
    }

    /// Why a link has ended; `None` while it has not, and for what is no link of this driver.
    #[must_use]
    pub fn failure(&self, link: LinkId) -> Option<&Error> {
        self.state.endpoints.get(&link)?.failed.as_ref()
    }

    /// Exposes memory of the host to the peers of this driver: whoever has its packed key may access it as `access` says, as long as the [`Region`] is there.
    /// Registers it with the transport's network devices, where it has some; that blocks for 0.1 ms and more for each MiB. Where it cannot be
    /// registered, messages reach it.
    ///
    /// # Errors
    /// `Unsupported` for memory that the processor does not reach: an [`Accelerator`](crate::transport::Accelerator) copies that. `Exhausted`, `Io`: no
    /// memory, no random bytes.
    ///
    /// # Cancel safety
    /// Dropping the future before it resolved frees the buffer.
    #[doc(alias = "uct_md_mem_reg")]
    pub async fn expose(&self, buffer: impl Into<BufferMut>, access: Access) -> Result<Region> {
        let mut buffer = buffer.into();
        buffer.check_reachable(error::Operation::Memory)?;
        if buffer.was_given() {
            // A peer has it that may not have the region.
            buffer = buffer.replica().await?;
        }
        let region = self.state.regions.expose(buffer, access)?;
        if self.transport.is_one_sided()
            && !region.is_empty()
            && let Err(error) = let_devices(&*self.transport, &region)
        {
            tracing::debug!(target: "wharf::by_hand", %error, "exposed memory is not in reach of network devices");
        }
        Ok(region)
    }

    /// The key of memory that [`Driver::expose`] of this driver exposed.
    #[must_use]
    #[doc(alias = "uct_md_mkey_pack")]
    pub fn pack(&self, region: &Region) -> RemoteKey {
        let exposed = region.exposed();
        let segment = exposed.segment.as_ref();
        let (devices, _) = region.device_keys();
        RemoteKey {
            slot: exposed.slot,
            generation: exposed.generation,
            access: exposed.access,
            address: exposed.address.expose_provenance() as u64,
            length: exposed.length as u64,
            segment: segment
                .filter(|(segment, _)| segment.is_mappable())
                .map(|(segment, offset)| (segment.id(), *offset as u64)),
            devices,
        }
    }

    /// Shows a key to its owner, who lets this end at the memory: from here on it is reached without the owner's help where the link allows that, in a mapping
    /// or by the kernel. Without it, or where that cannot be, operations go by messages or devices, and are as right. The owner has to be progressed.
    ///
    /// # Errors
    /// `StaleKey`: the memory is exposed no longer, or never was. What ended the link.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the key opened, or not.
    #[doc(alias("uct_rkey_unpack", "uct_rkey_ptr"))]
    pub async fn open_key(&mut self, link: LinkId, key: &RemoteKey) -> Result<()> {
        if self.state.endpoint(link)?.near.is_none() {
            return Ok(());
        }
        let work = Work::Open(key.segment.map(|(segment, _)| segment));
        let posted = self.post::<()>(link, work, (key, 0), 1, false, None);
        self.wait(posted).await
    }

    /// How a put or get by this key would go now: in a mapping, by the kernel, by network devices, or by messages.
    ///
    /// # Errors
    /// What ended the link; `InvalidArgument`: there is none.
    pub fn way(&mut self, link: LinkId, key: &RemoteKey) -> Result<Mover> {
        let by_devices = self.by_devices(link, key);
        let endpoint = self.state.endpoint(link)?;
        let Some(near) = endpoint.near.as_ref().filter(|_| !by_devices) else {
            return Ok(match by_devices {
                true => Mover::NetworkDevices,
                false => Mover::Messages,
            });
        };
        near.pair.enter();
        let standing = near.pair.standing(key.slot, key.generation);
        near.pair.leave();
        let mapped = key
            .segment
            .and_then(|at| near.mapped(at, 0, key.access.contains(Access::WRITE)));
        Ok(match (mapped, &near.cma) {
            _ if standing != Standing::Let || !has_word(key) => Mover::Messages,
            (Some(_), _) => Mover::Mapped,
            (None, Some(_)) => Mover::Kernel,
            (None, None) => Mover::Messages,
        })
    }

    /// Longest [`Driver::put_short`] by this key, in bytes: at least 28.
    ///
    /// # Errors
    /// As [`Driver::way`].
    pub fn max_short(&mut self, link: LinkId, key: &RemoteKey) -> Result<usize> {
        let way = self.way(link, key)?;
        let Some(to) = self.links.get_mut(&link) else {
            return Ok(0);
        };
        let attributes = to.attributes();
        Ok(match (way, to.one_sided()) {
            (Mover::NetworkDevices, Some(one_sided)) => one_sided.attributes().max_short,
            _ => attributes.max_short - wire::PUT_PREFIX,
        })
    }

    /// Writes some bytes, which are copied before the call returns, to `offset` in the memory of the key.
    ///
    /// # Errors
    /// `AccessDenied`, `OutOfBounds` as the key says; `InvalidArgument`: more than [`Driver::max_short`]; what ended the link. By [`Driver::wait`]: `StaleKey`,
    /// and what the owner says.
    #[doc(alias("uct_ep_put_short", "uct_ep_put_bcopy"))]
    pub fn put_short(
        &mut self,
        link: LinkId,
        bytes: &[u8],
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Posted<()>> {
        key.check(offset, bytes.len(), Access::WRITE)?;
        let longest = self.max_short(link, key)?;
        if bytes.len() > longest {
            let text = format!("a short put has {longest} bytes at most");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let by_devices = self.by_devices(link, key);
        let (work, length) = (Work::Short(bytes.to_vec()), bytes.len());
        Ok(self.post(link, work, (key, offset), length, by_devices, None))
    }

    /// Writes a buffer to `offset` in the memory of the key, from where it lies. Registers it first, where devices do it. A copy in a mapping or by the kernel is made
    /// within the call.
    ///
    /// # Errors
    /// As [`Driver::put_short`]; `Unsupported` for a list, and for memory that the processor does not reach.
    ///
    /// # Cancel safety
    /// Dropping the future before it resolved drops the buffer; nothing was posted.
    #[doc(alias = "uct_ep_put_zcopy")]
    pub async fn put_zcopy(
        &mut self,
        link: LinkId,
        buffer: impl Into<Buffer>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Posted<Buffer>> {
        let buffer = buffer.into();
        key.check(offset, buffer.len(), Access::WRITE)?;
        self.state.endpoint(link)?;
        buffer.as_run().ok_or_else(not_one_run)?;
        let by_devices = self.by_devices(link, key) && !buffer.is_empty();
        let keys = match buffer.local_memory().filter(|_| by_devices) {
            Some(memory) => Some(self.register(link, key, memory, Access::READ).await?),
            None => None,
        };
        let length = buffer.len();
        Ok(self.post(
            link,
            Work::Put(buffer),
            (key, offset),
            length,
            by_devices,
            keys,
        ))
    }

    /// Reads all of a buffer from `offset` in the memory of the key, to where it lies. Else as [`Driver::put_zcopy`].
    ///
    /// # Errors
    /// As [`Driver::put_zcopy`].
    ///
    /// # Cancel safety
    /// As [`Driver::put_zcopy`].
    #[doc(alias("uct_ep_get_zcopy", "uct_ep_get_bcopy"))]
    pub async fn get_zcopy(
        &mut self,
        link: LinkId,
        buffer: impl Into<BufferMut>,
        key: &RemoteKey,
        offset: u64,
    ) -> Result<Posted<BufferMut>> {
        let mut buffer = buffer.into();
        let length = buffer.len();
        key.check(offset, length, Access::READ)?;
        self.state.endpoint(link)?;
        buffer.run_mut().ok_or_else(not_one_run)?;
        let by_devices = self.by_devices(link, key) && length > 0;
        let keys = match buffer.local_memory(length).filter(|_| by_devices) {
            Some(memory) => Some(self.register(link, key, memory, Access::WRITE).await?),
            None => None,
        };
        Ok(self.post(
            link,
            Work::Get(buffer),
            (key, offset),
            length,
            by_devices,
            keys,
        ))
    }

    /// Whether a link leads to one of the devices that the key's memory is registered with.
    fn by_devices(&mut self, link: LinkId, key: &RemoteKey) -> bool {
        let one_sided = self.links.get_mut(&link).and_then(|link| link.one_sided());
        one_sided.is_some_and(|one_sided| one_sided.reaches(&key.devices))
    }

    /// Registers local memory with the devices that lead there.
    async fn register(
        &mut self,
        link: LinkId,
        key: &RemoteKey,
        memory: LocalMemory,
        access: Access,
    ) -> Result<LocalKeys> {
        let one_sided = self.links.get_mut(&link).and_then(|link| link.one_sided());
        let Some(one_sided) = one_sided else {
            let text = "the link has no devices any more";
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let registrar = Arc::clone(one_sided.memory());
        let devices = registrar.nearest(memory.memory_type, one_sided.devices_to(&key.devices));
        match registrar.find(&memory, access, &devices) {
            Some(keys) => Ok(keys),
            None => registrar.register(memory, access, &devices).await,
        }
    }

    fn post<T>(
        &mut self,
        link: LinkId,
        work: Work,
        (key, offset): (&RemoteKey, u64),
        length: usize,
        by_devices: bool,
        keys: Option<LocalKeys>,
    ) -> Posted<T> {
        let token = self.state.number();
        let place = wire::Place {
            slot: key.slot,
            generation: key.generation,
            offset,
            length: length as u64,
        };
        let mut operation = Operation {
            link,
            work,
            target: Target {
                place,
                address: key.address.wrapping_add(offset),
                devices: key.devices.clone(),
            },
            keys,
            by_devices,
            length,
            taken: 0,
            parts: 0,
            lent: 0,
            got: 0,
            result: Ok(()),
        };
        match self.state.endpoint(link) {
            Err(error) => operation.result = Err(error),
            Ok(_) if length == 0 => {}
            Ok(endpoint) => {
                let near = endpoint.near.as_ref().filter(|_| !by_devices);
                let done = near.and_then(|near| straight(near, key, &mut operation));
                match done {
                    Some(result) => (operation.taken, operation.result) = (length, result),
                    None => endpoint.out.push_back(Out::Operation(token)),
                }
            }
        }
        self.state.operations.insert(token, operation);
        self.push(link);
        Posted {
            token,
            brings: PhantomData,
        }
    }

    /// Sends what can be sent on a link. Whether anything was.
    fn push(&mut self, id: LinkId) -> bool {
        let Some(link) = self.links.get_mut(&id) else {
            return false;
        };
        let sent = pump(&mut self.state, id, &mut **link);
        if sent || !link.is_flushed() {
            link.flush(&mut self.state);
        }
        sent
    }

    /// Takes what has arrived, answers it, and sends what has room now. How many things happened. Never sleeps; where nothing happens it costs a system call.
    #[doc(alias("uct_worker_progress", "uct_iface_progress"))]
    pub fn progress(&mut self) -> usize {
        match self.pass() {
            0 => {
                self.look();
                self.pass()
            }
            happened => happened,
        }
    }

    fn pass(&mut self) -> usize {
        let mut happened = self.interface.progress(BUDGET, &mut self.state);
        for id in std::mem::take(&mut self.state.writable) {
            if let Some(link) = self.links.get_mut(&id) {
                link.flush(&mut self.state);
            }
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        happened += links.into_iter().filter(|id| self.push(*id)).count();
        happened + self.end_failed()
    }

    /// Drops links that have failed.
    fn end_failed(&mut self) -> usize {
        let failed = std::mem::take(&mut self.state.failed);
        for id in &failed {
            self.interface.detach(*id);
            drop(self.links.remove(id));
            self.state.ended(*id);
        }
        failed.len()
    }

    /// Takes what has arrived, as [`Driver::progress`]; sleeps first when there is nothing. Who serves peers calls it again and again.
    ///
    /// # Errors
    /// What the system said when it was to tell of arrivals. What ends a link is no error here: [`Driver::failure`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn turn(&mut self) -> Result<()> {
        if self.progress() > 0 {
            return Ok(());
        }
        // Arm, then look again, then sleep: what arrives in between is not missed.
        let slept = match self.interface.arm() {
            true => self.events().await,
            false => Ok(()),
        };
        self.interface.disarm();
        slept?;
        self.progress();
        Ok(())
    }

    async fn events(&mut self) -> Result<()> {
        let failed = |error| Error::io("waiting for a transport by hand", error);
        self.poll
            .readable_mut()
            .await
            .map_err(failed)?
            .clear_ready();
        self.look();
        Ok(())
    }

    /// Tells the interface what its descriptors say.
    fn look(&mut self) {
        loop {
            let poll = self.poll.get_mut();
            if let Err(error) = poll.poll(&mut self.events, Some(Duration::ZERO)) {
                // It says so again at the next look.
                tracing::debug!(target: "wharf::by_hand", %error, "the poll of a transport by hand");
                return;
            }
            let mut count = 0;
            for event in &self.events {
                count += 1;
                if event.token() == DOORBELL {
                    self.interface.rung();
                    continue;
                }
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed();
                self.interface.ready(event.token().0, readable, writable);
            }
            if count < self.events.capacity() {
                return;
            }
        }
    }

    /// What has come of an operation, if it is over; the memory that it worked on comes back with it. Once it has said so it is `None` for good.
    ///
    /// # Errors
    /// Within: `StaleKey`, `AccessDenied`, `OutOfBounds`: the owner refused; a device says `AccessDenied` or `Protocol` for all of these. What ended the link. The memory is
    /// dropped then.
    pub fn test<T: Brought>(&mut self, posted: &Posted<T>) -> Option<Result<T>> {
        let work = match self.state.take(posted.token)? {
            Ok(work) => work,
            Err(error) => return Some(Err(error)),
        };
        Some(T::of(work).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "an operation of another driver")
        }))
    }

    /// Drives until an operation is over; the memory that it worked on comes back. Peers are served meanwhile.
    ///
    /// # Errors
    /// As [`Driver::test`] and [`Driver::turn`]; `InvalidArgument` for what this driver does not know.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: the operation goes on while the driver is progressed.
    ///
    /// # Completion
    /// The bytes of a put are visible at the target, those of a get are in the buffer.
    pub async fn wait<T: Brought>(&mut self, posted: Posted<T>) -> Result<T> {
        loop {
            if let Some(result) = self.test(&posted) {
                return result;
            }
            if !self.state.operations.contains_key(&posted.token) {
                let text = "an operation that this driver does not know";
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            self.turn().await?;
        }
    }
}

#[cold]
fn not_one_run() -> Error {
    let text = "only memory in one run that the processor reaches is moved by hand";
    Error::new(ErrorKind::Unsupported, text)
}

/// Whether the words in common have one for the region.
fn has_word(key: &RemoteKey) -> bool {
    (key.slot as usize) < Pair::GENERATIONS
}

/// Does an operation in the peer's memory, where this end is let at it. `None`: it is not.
fn straight(near: &Near, key: &RemoteKey, operation: &mut Operation) -> Option<Result<()>> {
    if !has_word(key) {
        return None;
    }
    let (length, offset) = (operation.length, operation.target.place.offset);
    let (local, pull) = match &mut operation.work {
        Work::Short(bytes) => (bytes.as_mut_ptr(), false),
        Work::Put(buffer) => (buffer.address().cast_mut(), false),
        Work::Get(buffer) => (buffer.address(), true),
        Work::Open(_) => return None,
    };
    let mapped = key.segment.and_then(|(segment, start)| {
        near.mapped((segment, start.checked_add(offset)?), length, !pull)
    });
    if mapped.is_none() && near.cma.is_none() {
        return None;
    }
    let mut done = 0;
    while done < length {
        let count = CHUNK.min(length - done);
        near.pair.enter();
        let moved = match near.pair.standing(key.slot, key.generation) {
            // Nothing has moved yet where it is unknown, or the owner has ended the link.
            Standing::Unknown => None,
            Standing::TakenBack => Some(Err(stale())),
            Standing::Let => {
                let local = local.wrapping_add(done);
                // SAFETY: `count` bytes of the operation's own memory; the peer's are exposed while this end is inside and the generation stands, and the
                // key's range was checked against the mapping, or is the kernel's to check.
                Some(unsafe {
                    moved(
                        near,
                        mapped,
                        operation.target.address,
                        (local, done, count),
                        pull,
                    )
                })
            }
        };
        near.pair.leave();
        match moved {
            None if done == 0 => return None,
            None => {
                let text = "the peer has ended the link";
                return Some(Err(Error::new(ErrorKind::ConnectionReset, text)));
            }
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(())) => done += count,
        }
    }
    Some(Ok(()))
}

/// Copies one chunk, inside the peer.
///
/// # Safety
/// `count` bytes at `local` are valid, for writing when `pull`, and at `done` behind the beginning in the peer's memory, which lets this end at them.
unsafe fn moved(
    near: &Near,
    mapped: Option<*mut u8>,
    address: u64,
    (local, done, count): (*mut u8, usize, usize),
    pull: bool,
) -> Result<()> {
    let there = address.wrapping_add(done as u64);
    match (mapped, &near.cma) {
        (Some(mapped), _) => {
            let there = mapped.wrapping_add(done);
            let (from, to) = match pull {
                true => (there.cast_const(), local),
                false => (local.cast_const(), there),
            };
            // SAFETY: the caller's promise; a mapping of the peer's memory and own memory do not overlap.
            unsafe { copy(from, to, count) };
            Ok(())
        }
        // SAFETY: the caller's promise.
        (None, Some(cma)) => unsafe { cma.copy(there, local, count, pull) },
        (None, None) => Err(Error::new(
            ErrorKind::Unsupported,
            "no way into the peer's memory",
        )),
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        for (id, link) in self.links.drain() {
            self.interface.detach(id);
            drop(link);
        }
        self.state.guests.end_all();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("transport", &self.transport.name())
            .field("links", &self.links.len())
            .field("operations", &self.state.operations.len())
            .finish_non_exhaustive()
    }
}
