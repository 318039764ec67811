//! Memory in reach of the devices: local memory by one registration cache for each device, exposed memory by registrations of its own.
//!
//! ```text
//! a put, a get, an announced message ──▶ cache of the device ──▶ local key, remote key to read
//! a peer that is to write once       ──▶ registered for that, deregistered before the memory is given back
//! an exposed region                  ──▶ registered on every device, until the region ends
//! ```
//!
//! # Rights
//! What is cached may be read by peers who know its key, as long as it is cached, and written by none. Peers get keys of what is sent to
//! them. A page that the process may only read is registered for reading alone.
//!
//! # Relaxed ordering
//! With it a device's writes may overtake each other on the bus. Whoever waits for a completion sees all bytes; whoever polls the memory
//! itself may see the last byte before the first. So it is asked for where completions tell of the bytes, and for exposed memory only on demand.
//!
//! # Safety
//! Devices write registered memory by themselves. Local memory: only for operations that are posted, whose memory its owner lends
//! ([`OneSided`](crate::transport::OneSided)); the cache hears when memory is unmapped, and gives such a registration to nobody. Memory that
//! a peer writes once: whoever lent it waits for [`DeviceRegistrar::end_writing`]. Exposed memory: as its caller promises.
#![allow(unsafe_code)]

use std::{
    any::Any,
    borrow::Borrow,
    fmt,
    future::Future,
    os::fd::AsFd,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use super::{
    device::OpenDevice,
    options::{self, Experts, MemoryOptions, RelaxedOrdering},
    read_back::ReadBack,
};
use crate::{
    driver::verbs::{self, MemoryRegion},
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, Cause, DomainCapabilities, LocalMemory, MemoryDomain, MemoryMonitor,
        Registrar, RegistrarAttributes, Registration, RegistrationCache, RegistrationCacheOptions,
        invalidate, monitor,
    },
    sys::{
        blocking::blocking,
        topology::{self, Distance},
    },
    trace,
    transport::{DeviceKey, DeviceRegistrar, Exposure, LocalKeys, Registering},
    types::{Access, MemoryType},
    util::lock::Mutex,
};

/// Devices that memory of the host is registered with for an operation: two take what a host's memory gives, and each costs a registration.
const HOST_DEVICES: usize = 2;

/// The memory of a context, as its devices see it.
pub(crate) struct Domain {
    devices: Vec<Device>,
    relaxed_ordering: RelaxedOrdering,
    experts: Experts,
    monitor: Arc<dyn MemoryMonitor>,
    cache: RegistrationCacheOptions,
}

struct Device {
    open: Arc<OpenDevice>,
    local: RegistrationCache<Pins>,
    /// For what a peer writes: to the byte, where a cache would take whole pages.
    written: Arc<Pins>,
    others: Mutex<Vec<Other>>,
    read_back: Arc<ReadBack>,
}

/// Memory of other devices, of one type, and what is registered of it, once anything is.
type Other = (Arc<Exporter>, Option<RegistrationCache<Pins>>);

impl Device {
    fn id(&self) -> u64 {
        self.open.id
    }

    /// Registers memory of another device.
    fn pins(&self, exporter: Arc<Exporter>) -> Pins {
        Pins {
            device: Arc::clone(&self.open),
            always: verbs::Access::empty(),
            remote: verbs::Access::REMOTE_READ,
            exporter: Some(exporter),
        }
    }
}

/// Who exports memory of a type, and what a network device makes of it: found out once.
struct Exporter {
    memory_type: MemoryType,
    domain: Arc<dyn MemoryDomain>,
    /// Whether the device reaches it, or why not, which will not change.
    takes: Mutex<Result<(), String>>,
    /// How far it is, once whose memory it is says where that is.
    distance: OnceLock<Distance>,
    /// Allocations that were registered, with their numbers: nobody tells when the program frees its own.
    kept: Mutex<Vec<(AddressRange, u64)>>,
}

impl Exporter {
    fn new(memory_type: MemoryType, domain: &Arc<dyn MemoryDomain>, device: &OpenDevice) -> Self {
        let takes = match device.domain.takes_dma_bufs() {
            Err(_) if domain.by_address() == Some(true) => Ok(()),
            takes => takes.map_err(|error| error.to_string()),
        };
        Self {
            memory_type,
            domain: Arc::clone(domain),
            takes: Mutex::new(takes),
            distance: OnceLock::new(),
            kept: Mutex::default(),
        }
    }

    fn distance_to(&self, device: &OpenDevice) -> Option<Distance> {
        if let Some(known) = self.distance.get() {
            return Some(*known);
        }
        let place = self.domain.place(self.memory_type)?;
        let (own, _) = topology::place("infiniband", device.name());
        let distance = own.map_or(Distance::Far, |own| topology::distance(&place, &own));
        Some(*self.distance.get_or_init(|| distance))
    }

    /// What was freed since it was registered is kept by its registration: it ends, so that its device has the room. What is registered now takes the place
    /// of what was there before.
    fn forget_freed(&self, now: AddressRange) {
        let mut kept = std::mem::take(&mut *self.kept.lock());
        kept.retain(|(whole, id)| {
            if whole.overlaps(now) {
                return false;
            }
            let known = self.domain.detect(*whole).ok().flatten();
            let is_there = known.is_some_and(|known| known.id == *id);
            if !is_there {
                invalidate(*whole, Cause::Freed);
            }
            is_there
        });
        self.kept.lock().append(&mut kept);
    }

    /// The device has not taken such memory, nor will it: the two do not reach each other on the bus, as a rule.
    fn refuse(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::StaleKey) {
            return;
        }
        let mut takes = self.takes.lock();
        if takes.is_ok() {
            *takes = Err(error.to_string());
        }
    }
}

impl Domain {
    /// # Errors
    /// As of [`RegistrationCache::new`] and [`monitor`].
    pub(crate) fn new(devices: &[Arc<OpenDevice>], options: &MemoryOptions) -> Result<Self> {
        let monitor = monitor(options.monitor)?;
        let relaxed = match options.relaxed_ordering {
            RelaxedOrdering::Off => verbs::Access::empty(),
            _ => verbs::Access::RELAXED_ORDERING,
        };
        let devices = devices.iter().map(|open| {
            let mut always = relaxed;
            if options.on_demand && open.attributes.on_demand.supported {
                always |= verbs::Access::ON_DEMAND;
            } else if options.on_demand {
                trace::slower!(format!("no paging: {:?}", open.domain), target: "wharf::verbs", remedy = "WHARF_IB_ON_DEMAND=n asks for none", "{:?} offers no on-demand paging: memory is pinned", open.domain);
            }
            let pins = |remote| Pins {
                device: Arc::clone(open),
                always,
                remote,
                exporter: None,
            };
            let local = pins(verbs::Access::REMOTE_READ);
            let written = pins(verbs::Access::REMOTE_WRITE);
            Ok(Device {
                open: Arc::clone(open),
                local: RegistrationCache::new(local, Arc::clone(&monitor), options.cache)?,
                written: Arc::new(written),
                others: Mutex::default(),
                read_back: Arc::default(),
            })
        });
        Ok(Self {
            devices: devices.collect::<Result<_>>()?,
            relaxed_ordering: options.relaxed_ordering,
            experts: Arc::clone(&options.experts),
            cache: options.cache,
            monitor,
        })
    }

    fn device(&self, id: u64) -> Option<&Device> {
        self.devices.iter().find(|device| device.id() == id)
    }

    /// Memory of another device, of this type, for a device; what of it is remembered may be changed.
    ///
    /// # Errors
    /// `Unsupported`: nobody exports it.
    fn with_other<T>(
        &self,
        device: &Device,
        memory_type: MemoryType,
        with: impl FnOnce(&mut Other) -> T,
    ) -> Result<T> {
        let mut others = device.others.lock();
        let known = others
            .iter()
            .position(|(of, _)| of.memory_type == memory_type);
        let index = match known {
            Some(index) => index,
            None => {
                let mut experts = self.experts.get().into_iter().flatten();
                let can = |domain: &&Arc<dyn MemoryDomain>| {
                    let attributes = domain.attributes();
                    attributes.can(DomainCapabilities::EXPORT, memory_type)
                };
                let domain = experts.find(can).ok_or_else(|| {
                    let text = format!("no memory domain exports memory of type {memory_type}");
                    Error::new(ErrorKind::Unsupported, text)
                })?;
                let exporter = Exporter::new(memory_type, domain, &device.open);
                others.push((Arc::new(exporter), None));
                others.len() - 1
            }
        };
        Ok(with(&mut others[index]))
    }

    fn exporter(&self, device: &Device, memory_type: MemoryType) -> Result<Arc<Exporter>> {
        self.with_other(device, memory_type, |(exporter, _)| Arc::clone(exporter))
    }

    /// What is registered with a device of another's memory of this type.
    fn cache_of(
        &self,
        device: &Device,
        memory_type: MemoryType,
    ) -> Result<RegistrationCache<Pins>> {
        self.with_other(device, memory_type, |(exporter, cache)| {
            if let Some(cache) = cache {
                return Ok(cache.clone());
            }
            let pins = device.pins(Arc::clone(exporter));
            let made = RegistrationCache::new(pins, Arc::clone(&self.monitor), self.cache)?;
            Ok(cache.insert(made).clone())
        })?
    }

    /// A registration of exposed memory with one device.
    ///
    /// # Safety
    /// As of [`DeviceRegistrar::expose`].
    unsafe fn expose_on(
        &self,
        device: &Device,
        memory: &LocalMemory,
        access: Access,
    ) -> Result<Reached> {
        let mut rights = verbs::Access::empty();
        if access.contains(Access::READ) {
            rights |= verbs::Access::REMOTE_READ;
        }
        if access.contains(Access::WRITE) {
            rights |= verbs::Access::REMOTE_WRITE | verbs::Access::LOCAL_WRITE;
        }
        if access.contains(Access::DEVICE_ATOMIC) {
            if !device.open.does_atomics() {
                let text = format!("{:?} does no atomics", device.open.domain);
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            rights |= verbs::Access::REMOTE_ATOMIC | verbs::Access::LOCAL_WRITE;
        } else if self.relaxed_ordering == RelaxedOrdering::On && !memory.is_on_device() {
            rights |= verbs::Access::RELAXED_ORDERING;
        }
        let pins = match memory.is_on_device() {
            false => None,
            true => Some(device.pins(self.exporter(device, memory.memory_type)?)),
        };
        let pins = pins.as_ref().unwrap_or(&device.written);
        let reached = pins.reach(memory.range, rights)?;
        let is_written = access.intersects(Access::WRITE | Access::DEVICE_ATOMIC);
        let is_read_back = access.contains(Access::READ) && !access.contains(Access::DEVICE_ATOMIC);
        match is_written && !reached.ordered && !is_read_back {
            true => Err(unseen()),
            false => Ok(reached),
        }
    }
}

/// Memory of a device that would not see what is written into it.
#[cold]
fn unseen() -> Error {
    let text = "its device may not see what network devices write into its memory before they read it back, which takes the right to read it";
    Error::new(ErrorKind::Unsupported, text)
}

impl DeviceRegistrar for Domain {
    fn takes(&self, memory_type: MemoryType, devices: &[u64]) -> Result<(), String> {
        if memory_type.is_host_accessible() {
            return Ok(());
        }
        devices.iter().try_for_each(|id| {
            let device = self.device(*id).ok_or_else(|| unknown(*id));
            let exporter = device.and_then(|device| self.exporter(device, memory_type));
            let exporter = exporter.map_err(|error| error.to_string())?;
            exporter.takes.lock().clone()
        })
    }

    fn nearest(&self, memory_type: MemoryType, mut devices: Vec<u64>) -> Vec<u64> {
        if memory_type.is_host_accessible() {
            devices.truncate(HOST_DEVICES);
            return devices;
        }
        let distance = |id: &u64| {
            let device = self.device(*id)?;
            let exporter = self.exporter(device, memory_type).ok()?;
            exporter.distance_to(&device.open)
        };
        let distances: Option<Vec<_>> = devices.iter().map(distance).collect();
        let Some(distances) = distances else {
            return devices;
        };
        let nearest = distances.iter().min();
        let each = devices.into_iter().zip(&distances);
        each.filter_map(|(id, distance)| (Some(distance) == nearest).then_some(id))
            .collect()
    }

    fn find(&self, memory: &LocalMemory, access: Access, devices: &[u64]) -> Option<LocalKeys> {
        let mut found = Vec::with_capacity(devices.len());
        for id in devices {
            let device = self.device(*id)?;
            let cache = match memory.is_on_device() {
                false => device.local.clone(),
                true if memory.whole.is_none() => return None,
                true => self.cache_of(device, memory.memory_type).ok()?,
            };
            let registration = cache.lookup(memory.range, access)?;
            if registration.id != memory.id {
                return None;
            }
            found.push((*id, registration));
        }
        Some(kept(memory.range, found))
    }

    fn register(
        &self,
        memory: LocalMemory,
        access: Access,
        devices: &[u64],
    ) -> Registering<LocalKeys> {
        if memory.is_on_device() {
            return self.register_other(memory, access, devices);
        }
        let (range, whole) = (memory.range, memory.whole);
        let caches = self.each(devices, |device| Ok(device.local.clone()));
        Box::pin(async move {
            let mut made = Vec::new();
            for (id, cache) in caches? {
                // What is read now is often written later: one registration for both, but of memory that the process may only read.
                let get = |access| match whole {
                    Some(whole) => cache.get_owned(range, whole, access),
                    None => cache.get(range, access),
                };
                let registration = match get(Access::READ | Access::WRITE).await {
                    Err(error)
                        if error.kind() == ErrorKind::InvalidArgument
                            && !access.contains(Access::WRITE) =>
                    {
                        get(access).await?
                    }
                    result => result?,
                };
                made.push((id, registration));
            }
            Ok(kept(range, made))
        })
    }

    fn settle(&self, keys: &LocalKeys, range: AddressRange) -> Option<Registering<()>> {
        let exporter = keys.held().downcast_ref::<Held>()?.late.clone()?;
        let reads = keys.remote().iter().filter_map(|key| {
            let device = self.device(key.device)?;
            let (open, read_back) = (Arc::clone(&device.open), Arc::clone(&device.read_back));
            Some((open, read_back, key.key))
        });
        let (reads, keys): (Vec<_>, _) = (reads.collect(), keys.clone());
        Some(Box::pin(blocking(move || {
            match exporter.flush(range) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                flushed => return flushed,
            }
            for (open, read_back, rkey) in reads {
                read_back.read(&open, range.end() - 1, rkey)?;
            }
            drop(keys);
            Ok(())
        })))
    }

    fn register_for_writing(&self, range: AddressRange, devices: &[u64]) -> Registering<LocalKeys> {
        let pins = self.each(devices, |device| Ok(Arc::clone(&device.written)));
        Box::pin(blocking(move || {
            let register = |(id, pins): (u64, Arc<Pins>)| {
                let access = Access::READ | Access::WRITE;
                Ok((id, pins.register(range, access)?))
            };
            let made = pins?.into_iter().map(register);
            let made = made.collect::<Result<Vec<_>>>()?;
            Ok(keys(range, made, |made| Written(Mutex::new(made))))
        }))
    }

    fn end_writing(&self, keys: LocalKeys) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let held = Arc::clone(keys.held()).downcast::<Written>();
        Box::pin(async move {
            if let Ok(held) = held {
                let ending = Arc::clone(&held);
                let ended = tokio::task::spawn_blocking(move || ending.end()).await;
                if ended.is_err() {
                    // The runtime is shutting down: here then.
                    held.end();
                }
            }
        })
    }

    fn end_writing_now(&self, keys: &LocalKeys) {
        if let Some(held) = keys.held().downcast_ref::<Written>() {
            held.end();
        }
    }

    unsafe fn expose(&self, memory: &LocalMemory, access: Access) -> Result<Exposure> {
        let mut made = Vec::new();
        let mut refused = None;
        for device in self.devices.iter().take(crate::transport::MAX_DEVICES) {
            // SAFETY: the caller's promise.
            match unsafe { self.expose_on(device, memory, access) } {
                Ok(region) => made.push((device.id(), region)),
                Err(error) => {
                    tracing::debug!(target: "wharf::verbs", "exposing {}: {error}", memory.range);
                    refused.get_or_insert(error);
                }
            }
        }
        let keys = made.iter().map(|(device, region)| DeviceKey {
            device: *device,
            key: region.rkey,
        });
        let late = made.iter().any(|(_, reached)| !reached.ordered);
        match (made.is_empty(), refused) {
            (false, _) => {
                let (keys, read_back) = (keys.collect(), late && access.contains(Access::WRITE));
                Ok(Exposure::new(keys, Box::new(made)).read_back(read_back))
            }
            (true, Some(error)) => Err(error.during(Operation::Memory)),
            (true, None) => {
                Err(Error::new(ErrorKind::Unsupported, "no device is open")
                    .during(Operation::Memory))
            }
        }
    }
}

impl Domain {
    /// Registers memory of another device.
    fn register_other(
        &self,
        memory: LocalMemory,
        access: Access,
        devices: &[u64],
    ) -> Registering<LocalKeys> {
        let range = memory.range;
        let Some(whole) = memory.whole else {
            // Nobody would tell when it is another's: for this once.
            let pins = self.each(devices, |device| {
                let exporter = self.exporter(device, memory.memory_type)?;
                Ok(device.pins(exporter))
            });
            return Box::pin(blocking(move || {
                let register = |(id, pins): (u64, Pins)| Ok((id, pins.register(range, access)?));
                let made = pins?.into_iter().map(register);
                Ok(kept(range, made.collect::<Result<Vec<_>>>()?))
            }));
        };
        let caches = self.each(devices, |device| self.cache_of(device, memory.memory_type));
        Box::pin(async move {
            let mut made = Vec::new();
            for (id, cache) in caches? {
                let both = Access::READ | Access::WRITE;
                let mut registration = cache.get_owned(range, whole, both).await?;
                if registration.id != memory.id {
                    // Of what was there before.
                    cache.invalidate(whole);
                    registration = cache.get_owned(range, whole, both).await?;
                }
                if registration.id != memory.id {
                    let text = format!("the memory at {range} is no longer what it was");
                    return Err(Error::new(ErrorKind::StaleKey, text).during(Operation::Memory));
                }
                made.push((id, registration));
            }
            Ok(kept(range, made))
        })
    }

    /// What of each of these devices is wanted.
    fn each<T>(
        &self,
        devices: &[u64],
        wanted: impl Fn(&Device) -> Result<T>,
    ) -> Result<Vec<(u64, T)>> {
        let of = |id: &u64| {
            let device = self.device(*id).ok_or_else(|| unknown(*id))?;
            Ok((*id, wanted(device)?))
        };
        devices.iter().map(of).collect()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(|device| &device.open);
        f.debug_list().entries(devices).finish()
    }
}

/// What [`LocalKeys`] hold.
struct Held {
    #[allow(dead_code, reason = "held to be dropped")]
    registrations: Box<dyn Any + Send + Sync>,
    /// Who flushes what was written, where it is not seen else.
    late: Option<Arc<dyn MemoryDomain>>,
}

/// What those of [`DeviceRegistrar::register_for_writing`] hold.
struct Written(Mutex<Vec<Reached>>);

impl Written {
    /// Ends them; when this returns they have ended, or the ways to them, whoever did it.
    fn end(&self) {
        self.0.lock().clear();
    }
}

#[cold]
fn unknown(id: u64) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("no open device {id:#018x}"),
    )
}

impl Borrow<Reached> for Registration<Pins> {
    fn borrow(&self) -> &Reached {
        self
    }
}

/// What was registered, in the cache or not.
fn kept<R: Borrow<Reached> + Send + Sync + 'static>(
    range: AddressRange,
    made: Vec<(u64, R)>,
) -> LocalKeys {
    let mut each = made.iter().map(|(_, one)| one.borrow());
    let late = each.find(|one| !one.ordered);
    let late = late.and_then(|one| one.exporter.clone());
    keys(range, made, |made| Held {
        registrations: Box::new(made),
        late,
    })
}

fn keys<R: Borrow<Reached>, H: Any + Send + Sync>(
    range: AddressRange,
    made: Vec<(u64, R)>,
    hold: impl FnOnce(Vec<R>) -> H,
) -> LocalKeys {
    let key = |device: &u64, key| DeviceKey {
        device: *device,
        key,
    };
    let local = made
        .iter()
        .map(|(device, one)| key(device, one.borrow().lkey));
    let remote = made
        .iter()
        .map(|(device, one)| key(device, one.borrow().rkey));
    let (local, remote) = (local.collect(), remote.collect());
    let held = hold(made.into_iter().map(|(_, one)| one).collect());
    LocalKeys::new(range, local, remote, Arc::new(held))
}

fn length(range: AddressRange) -> Result<usize> {
    usize::try_from(range.len()).map_err(|_| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{range} is longer than memory"),
        )
    })
}

/// Memory that a device reaches, for peers too. Where it cannot be ended no peer reaches the device.
struct Reached {
    /// `None` only while it ends.
    region: Option<MemoryRegion>,
    lkey: u32,
    rkey: u32,
    device: Arc<OpenDevice>,
    /// Whose memory it is, where it is another device's, and the number of the allocation.
    exporter: Option<Arc<dyn MemoryDomain>>,
    id: u64,
    /// What devices write there is seen by whose memory it is when they say so.
    ordered: bool,
}

impl Reached {
    fn new(region: MemoryRegion, device: &Arc<OpenDevice>) -> Self {
        Self {
            lkey: region.lkey(),
            rkey: region.rkey(),
            region: Some(region),
            device: Arc::clone(device),
            exporter: None,
            id: 0,
            ordered: true,
        }
    }

    fn end(&mut self) -> Result<()> {
        let ended = self.region.take().map_or(Ok(()), MemoryRegion::end);
        ended.inspect_err(|_| self.device.served.shut())
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Registers with one device.
struct Pins {
    device: Arc<OpenDevice>,
    /// Relaxed ordering, on-demand paging.
    always: verbs::Access,
    /// What peers may do.
    remote: verbs::Access,
    /// Whom the memory is had from, where it is another device's.
    exporter: Option<Arc<Exporter>>,
}

impl Pins {
    /// # Errors
    /// What the library said; of a device's memory, what who has it said.
    fn reach(&self, range: AddressRange, rights: verbs::Access) -> Result<Reached> {
        let Some(exporter) = &self.exporter else {
            return self.reach_address(range, rights);
        };
        let known = exporter.domain.detect(range)?.map_or(0, |known| known.id);
        let exported = exporter.domain.export(range).map(|dma_buf| {
            let fd = dma_buf.fd.as_fd();
            let (offset, length) = (dma_buf.offset, length(range)?);
            // SAFETY: as in `reach_address`; the dma-buf keeps what is behind it while it is registered.
            let region = unsafe {
                let domain = &self.device.domain;
                domain.register_dmabuf(fd, offset, length, range.start(), rights)
            };
            let mut reached = Reached::new(region?, &self.device);
            reached.ordered = dma_buf.ordered;
            Ok(reached)
        });
        let by_address = |error| match exporter.domain.by_address() {
            // Nothing says whether such writes are seen in order.
            Some(_) => match self.reach_address(range, rights) {
                Ok(mut reached) => {
                    reached.ordered = false;
                    Ok(reached)
                }
                Err(_) => Err(error),
            },
            None => Err(error),
        };
        let mut reached = match exported {
            // Of this memory alone.
            Err(error) => by_address(error)?,
            Ok(Err(error)) => by_address(error).inspect_err(|error| exporter.refuse(error))?,
            Ok(reached) => reached?,
        };
        reached.exporter = Some(Arc::clone(&exporter.domain));
        reached.id = known;
        Ok(reached)
    }

    /// By the address alone: of the host's memory, and of a device's where a module of the vendor's has told the kernel (`nvidia_peermem`, `amdgpu` with its
    /// own).
    fn reach_address(&self, range: AddressRange, rights: verbs::Access) -> Result<Reached> {
        let (start, length) = (range.start() as usize, length(range)?);
        // SAFETY: see the chapter on safety: whoever has it registered has it mapped now, and the cache hears when it no more is. Where a device has it, the
        // host has no other memory there.
        let region = unsafe { self.device.domain.register(start, length, rights) };
        Ok(Reached::new(region?, &self.device))
    }

    fn rights(&self, access: Access) -> verbs::Access {
        let mut rights = self.always | self.remote;
        if access.contains(Access::WRITE) {
            rights |= verbs::Access::LOCAL_WRITE;
        }
        rights
    }
}

impl Registrar for Pins {
    type Handle = Reached;

    fn name(&self) -> &'static str {
        options::NAME
    }

    /// Never in the thread that asks, which is a runtime's: every page is touched and pinned. Pages of another device do not change under it.
    fn attributes(&self) -> RegistrarAttributes {
        let moves = self.always.contains(verbs::Access::ON_DEMAND) || self.exporter.is_some();
        RegistrarAttributes::default()
            .inline_max(0)
            .pins_pages(!moves)
    }

    fn register(&self, range: AddressRange, access: Access) -> Result<Reached> {
        self.reach(range, self.rights(access))
            .map_err(|error| error.during(Operation::Memory))
    }

    fn register_owned(
        &self,
        range: AddressRange,
        whole: AddressRange,
        access: Access,
    ) -> Result<Reached> {
        let Some(exporter) = &self.exporter else {
            return self.register(range, access);
        };
        exporter.forget_freed(whole);
        // Allocations of a device may share a page.
        let reached = self.register(range.common(whole), access)?;
        exporter.kept.lock().push((whole, reached.id));
        Ok(reached)
    }

    fn deregister(&self, mut reached: Reached, _: AddressRange) -> Result<()> {
        reached.end()
    }
}
