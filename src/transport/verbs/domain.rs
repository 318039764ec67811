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
//! a peer writes once: whoever lent it waits for [`RemoteMemory::end_writing`]. Exposed memory: as its caller promises.
#![allow(unsafe_code)]

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use parking_lot::Mutex;

use super::{
    options::{self, MemoryOptions, RelaxedOrdering},
    served::Served,
};
use crate::{
    driver::verbs::{self, MemoryRegion, ProtectionDomain},
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        AddressRange, DmaBuf, Registrar, RegistrarAttributes, Registration, RegistrationCache,
        monitor,
    },
    transport::{DeviceKey, Exposure, LocalKeys, Registering, RemoteMemory},
    types::Access,
};

/// A device that memory is registered with.
#[derive(Clone, Debug)]
pub(crate) struct MemoryDevice {
    /// Its number, as peers are told it.
    pub(crate) id: u64,
    /// What its queues belong to.
    pub(crate) domain: ProtectionDomain,
    /// It offers on-demand paging for connected queues.
    pub(crate) on_demand: bool,
    /// It does atomics.
    pub(crate) atomics: bool,
    /// How peers reach what is registered.
    pub(crate) served: Arc<Served>,
}

/// The memory of a context, as its devices see it.
pub(crate) struct Domain {
    devices: Vec<Device>,
    relaxed_ordering: RelaxedOrdering,
}

struct Device {
    of: MemoryDevice,
    local: RegistrationCache<Pins>,
    /// For what a peer writes: to the byte, where a cache would take whole pages.
    written: Arc<Pins>,
}

impl Domain {
    /// # Errors
    /// As of [`RegistrationCache::new`] and [`monitor`].
    pub(crate) fn new(devices: Vec<MemoryDevice>, options: &MemoryOptions) -> Result<Self> {
        let monitor = monitor(options.monitor)?;
        let relaxed = match options.relaxed_ordering {
            RelaxedOrdering::Off => verbs::Access::empty(),
            _ => verbs::Access::RELAXED_ORDERING,
        };
        let devices = devices.into_iter().map(|of| {
            let mut always = relaxed;
            if options.on_demand && of.on_demand {
                always |= verbs::Access::ON_DEMAND;
            } else if options.on_demand {
                tracing::warn!(target: "wharf::verbs", "{:?} offers no on-demand paging: memory is pinned", of.domain);
            }
            let pins = |remote| Pins {
                domain: of.domain.clone(),
                served: Arc::clone(&of.served),
                always,
                remote,
            };
            let local = pins(verbs::Access::REMOTE_READ);
            let written = pins(verbs::Access::REMOTE_WRITE);
            Ok(Device {
                local: RegistrationCache::new(local, Arc::clone(&monitor), options.cache)?,
                written: Arc::new(written),
                of,
            })
        });
        Ok(Self {
            devices: devices.collect::<Result<_>>()?,
            relaxed_ordering: options.relaxed_ordering,
        })
    }

    fn device(&self, id: u64) -> Option<&Device> {
        self.devices.iter().find(|device| device.of.id == id)
    }

    /// A registration of exposed memory with one device.
    ///
    /// # Safety
    /// As of [`RemoteMemory::expose`].
    unsafe fn expose_on(
        &self,
        device: &MemoryDevice,
        range: AddressRange,
        dma_buf: Option<&DmaBuf>,
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
            if !device.atomics {
                let text = format!("{:?} does no atomics", device.domain);
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            rights |= verbs::Access::REMOTE_ATOMIC | verbs::Access::LOCAL_WRITE;
        } else if self.relaxed_ordering == RelaxedOrdering::On {
            rights |= verbs::Access::RELAXED_ORDERING;
        }
        let length = length(range)?;
        let region = match dma_buf {
            // SAFETY: the caller's promise.
            None => unsafe {
                device
                    .domain
                    .register(range.start() as usize, length, rights)
            },
            Some(dma_buf) => {
                use std::os::fd::AsFd;
                let fd = dma_buf.fd.as_fd();
                // SAFETY: the caller's promise.
                unsafe {
                    device
                        .domain
                        .register_dmabuf(fd, dma_buf.offset, length, range.start(), rights)
                }
            }
        };
        Ok(Reached::new(region?, &device.served))
    }
}

impl RemoteMemory for Domain {
    fn find(&self, range: AddressRange, access: Access, devices: &[u64]) -> Option<LocalKeys> {
        let mut found = Vec::with_capacity(devices.len());
        for id in devices {
            found.push((*id, self.device(*id)?.local.lookup(range, access)?));
        }
        Some(keys(range, found))
    }

    fn register(
        &self,
        range: AddressRange,
        whole: Option<AddressRange>,
        access: Access,
        devices: &[u64],
    ) -> Registering<LocalKeys> {
        let caches = self.caches(devices, |device| &device.local);
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
            Ok(keys(range, made))
        })
    }

    fn register_for_writing(&self, range: AddressRange, devices: &[u64]) -> Registering<LocalKeys> {
        let pins = devices.iter().map(|id| {
            let device = self.device(*id).ok_or_else(|| unknown(*id))?;
            Ok((*id, Arc::clone(&device.written)))
        });
        let pins: Result<Vec<_>> = pins.collect();
        Box::pin(async move {
            let pins = pins?;
            let work = move || {
                let register = |(id, pins): (u64, Arc<Pins>)| {
                    let access = Access::READ | Access::WRITE;
                    Ok((id, pins.register(range, access)?))
                };
                pins.into_iter().map(register).collect::<Result<Vec<_>>>()
            };
            let made = tokio::task::spawn_blocking(work).await.map_err(|error| {
                let text = "the runtime is shutting down";
                Error::new(ErrorKind::Closed, text).with_source(error)
            })??;
            let key = |device: &u64, key| DeviceKey {
                device: *device,
                key,
            };
            let local = made.iter().map(|(device, one)| key(device, one.lkey()));
            let remote = made.iter().map(|(device, one)| key(device, one.rkey()));
            let (local, remote) = (local.collect(), remote.collect());
            let held = made.into_iter().map(|(_, one)| one).collect();
            let held = Arc::new(Written(Mutex::new(held)));
            Ok(LocalKeys::new(range, local, remote, held))
        })
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

    unsafe fn expose(
        &self,
        range: AddressRange,
        dma_buf: Option<&DmaBuf>,
        access: Access,
    ) -> Result<Exposure> {
        let mut made = Vec::new();
        let mut refused = None;
        for device in self.devices.iter().take(crate::transport::MAX_DEVICES) {
            // SAFETY: the caller's promise.
            match unsafe { self.expose_on(&device.of, range, dma_buf, access) } {
                Ok(region) => made.push((device.of.id, region)),
                Err(error) => {
                    tracing::debug!(target: "wharf::verbs", "exposing {range}: {error}");
                    refused.get_or_insert(error);
                }
            }
        }
        let keys = made.iter().map(|(device, region)| DeviceKey {
            device: *device,
            key: region.rkey(),
        });
        match (made.is_empty(), refused) {
            (false, _) => Ok(Exposure::new(keys.collect(), Box::new(made))),
            (true, Some(error)) => Err(error.during(Operation::Memory)),
            (true, None) => {
                Err(Error::new(ErrorKind::Unsupported, "no device is open")
                    .during(Operation::Memory))
            }
        }
    }
}

impl Domain {
    fn caches(
        &self,
        devices: &[u64],
        which: impl Fn(&Device) -> &RegistrationCache<Pins>,
    ) -> Result<Vec<(u64, RegistrationCache<Pins>)>> {
        let cache = |id: &u64| {
            let device = self.device(*id).ok_or_else(|| unknown(*id))?;
            Ok((*id, which(device).clone()))
        };
        devices.iter().map(cache).collect()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(|device| &device.of);
        f.debug_list().entries(devices).finish()
    }
}

/// What [`LocalKeys`] hold.
struct Held(#[allow(dead_code, reason = "held to be dropped")] Vec<Registration<Pins>>);

/// What those of [`RemoteMemory::register_for_writing`] hold.
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

fn keys(range: AddressRange, made: Vec<(u64, Registration<Pins>)>) -> LocalKeys {
    let key = |device: &u64, key| DeviceKey {
        device: *device,
        key,
    };
    let local = made.iter().map(|(device, one)| key(device, one.lkey()));
    let remote = made.iter().map(|(device, one)| key(device, one.rkey()));
    let (local, remote) = (local.collect(), remote.collect());
    let held = made.into_iter().map(|(_, one)| one).collect();
    LocalKeys::new(range, local, remote, Arc::new(Held(held)))
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
    served: Arc<Served>,
}

impl Reached {
    fn new(region: MemoryRegion, served: &Arc<Served>) -> Self {
        Self {
            lkey: region.lkey(),
            rkey: region.rkey(),
            region: Some(region),
            served: Arc::clone(served),
        }
    }

    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn end(&mut self) -> Result<()> {
        let ended = self.region.take().map_or(Ok(()), MemoryRegion::end);
        ended.inspect_err(|_| self.served.shut())
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Registers with one device.
struct Pins {
    domain: ProtectionDomain,
    served: Arc<Served>,
    /// Relaxed ordering, on-demand paging.
    always: verbs::Access,
    /// What peers may do.
    remote: verbs::Access,
}

impl Registrar for Pins {
    type Handle = Reached;

    fn name(&self) -> &'static str {
        options::NAME
    }

    /// Never in the thread that asks, which is a runtime's: every page is touched and pinned.
    fn attributes(&self) -> RegistrarAttributes {
        RegistrarAttributes::default()
            .inline_max(0)
            .pins_pages(!self.always.contains(verbs::Access::ON_DEMAND))
    }

    fn register(&self, range: AddressRange, access: Access) -> Result<Reached> {
        let mut rights = self.always | self.remote;
        if access.contains(Access::WRITE) {
            rights |= verbs::Access::LOCAL_WRITE;
        }
        let length = length(range)?;
        // SAFETY: see the chapter on safety: whoever has it registered has it mapped now, and the cache hears when it no more is.
        unsafe { self.domain.register(range.start() as usize, length, rights) }
            .map(|region| Reached::new(region, &self.served))
            .map_err(|error| error.during(Operation::Memory))
    }

    fn deregister(&self, mut reached: Reached, _: AddressRange) -> Result<()> {
        reached.end()
    }
}
