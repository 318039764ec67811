//! What a context knows of memory: whose it is, who allocates and exports it, who tells when it goes away.
//!
//! # Safety
//! Exposed memory is registered with devices that peers reach it by: see [`let_devices`].
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use super::Context;
use crate::{
    config::Config,
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        self, AddressRange, Advice, BufferMut, DmaBuf, DomainCapabilities, HostBufferMut,
        HostDomain, MemoryAttributes, MemoryDomain, MemoryMonitor, MemoryTypeMetrics, MemoryTypes,
        MonitorKind, Region, Registrar, RegistrationCache, RegistrationCacheMetrics,
        RegistrationCacheOptions, region::DeviceReach,
    },
    sys::fork,
    transport::{Transport, verbs::MemoryOptions},
    types::{Access, MemoryType},
};

/// The part of a context that is about memory.
#[derive(Debug)]
pub(super) struct Memory {
    types: MemoryTypes,
    rcache: RegistrationCacheOptions,
    kind: MonitorKind,
    /// Made when it is first needed.
    monitor: OnceLock<Arc<dyn MemoryMonitor>>,
}

impl Memory {
    pub(super) fn new(config: &Config, mut domains: Vec<Arc<dyn MemoryDomain>>) -> Result<Self> {
        let kind = *config.memory_monitor;
        let made = OnceLock::new();
        if kind != MonitorKind::Auto {
            // Asked for by name: whether it can be had is told now.
            let _ = made.set(memory::monitor(kind)?);
        }
        domains.push(Arc::new(HostDomain));
        Ok(Self {
            types: MemoryTypes::new(domains, kind)?,
            rcache: options(config),
            kind,
            monitor: made,
        })
    }
}

impl Memory {
    /// What the cache of memory types can hold.
    pub(super) fn type_cache(&self) -> super::TypeCacheReport {
        super::TypeCacheReport {
            is_in_use: self.types.is_in_use(),
            capacity: MemoryTypes::CAPACITY,
        }
    }
}

/// What the configuration says of registration caches.
fn options(config: &Config) -> RegistrationCacheOptions {
    let mut options = RegistrationCacheOptions::new().enabled(*config.rcache);
    if let Some(regions) = *config.rcache_max_regions {
        options = options.max_regions(regions);
    }
    if let Some(bytes) = *config.rcache_max_size {
        options = options.max_bytes(bytes as u64);
    }
    if let Some(bytes) = *config.rcache_max_unreleased {
        options = options.max_unreleased(bytes as u64);
    }
    options
}

/// What the configuration says of memory in reach of network devices.
pub(super) fn device_memory(config: &Config) -> MemoryOptions {
    MemoryOptions {
        cache: options(config),
        monitor: *config.memory_monitor,
        relaxed_ordering: *config.relaxed_ordering,
        on_demand: *config.on_demand,
    }
}

fn monitor(
    kind: MonitorKind,
    made: &OnceLock<Arc<dyn MemoryMonitor>>,
) -> Result<&Arc<dyn MemoryMonitor>> {
    if let Some(monitor) = made.get() {
        return Ok(monitor);
    }
    let monitor = memory::monitor(kind)?;
    Ok(made.get_or_init(|| monitor))
}

/// What a [`Context`] and the process know of memory, counted; a snapshot, by [`Context::metrics`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextMetrics {
    /// Whose memory is.
    pub memory_types: MemoryTypeMetrics,
    /// The registration caches of this process, of all contexts.
    pub registration_caches: Vec<RegistrationCacheMetrics>,
}

impl Context {
    /// What was asked about memory so far, and what its registration caches have done. What a worker has done [`Worker::metrics`] says.
    ///
    /// [`Worker::metrics`]: crate::Worker::metrics
    #[must_use]
    pub fn metrics(&self) -> ContextMetrics {
        ContextMetrics {
            memory_types: self.inner.memory.types.metrics(),
            registration_caches: memory::registration_caches(),
        }
    }

    /// Who tells this context's caches when memory goes away. The first call may have to make it.
    ///
    /// # Errors
    /// `Forked` in a child made by `fork`.
    pub fn memory_monitor(&self) -> Result<Arc<dyn MemoryMonitor>> {
        fork::check(Operation::Memory)?;
        monitor(self.inner.memory.kind, &self.inner.memory.monitor).cloned()
    }

    /// A cache of what `registrar` registers, with this context's monitor and limits.
    ///
    /// # Errors
    /// As [`RegistrationCache::new`].
    pub fn registration_cache<R: Registrar>(&self, registrar: R) -> Result<RegistrationCache<R>> {
        let options = self.registration_cache_options();
        RegistrationCache::new(registrar, self.memory_monitor()?, options)
    }

    /// The limits of this context's registration caches: the defaults, and what `WHARF_RCACHE_*` and `UCX_RCACHE_*` say.
    #[must_use]
    pub fn registration_cache_options(&self) -> RegistrationCacheOptions {
        self.inner.memory.rcache
    }

    /// The experts for memory, in the order in which they are asked; the host's is the last.
    #[must_use]
    pub fn memory_domains(&self) -> &[Arc<dyn MemoryDomain>] {
        self.inner.memory.types.domains()
    }

    /// Whose the memory of `range` is. What is not remembered the domains are asked, once for an allocation however many threads want to know;
    /// that may block for as long as their drivers take. What none of them knows is host memory.
    ///
    /// Buffers know their type themselves: [`Buffer::memory_type`](crate::Buffer::memory_type). Where no domain knows that memory was freed,
    /// and nobody says so ([`notify_freed`](Self::notify_freed)), what is remembered of it is out of date:
    /// [`refresh_memory_attributes`](Self::refresh_memory_attributes) asks in any case.
    ///
    /// # Errors
    /// `InvalidArgument`: no bytes, or not all in one allocation. What a domain said: then the memory is unknown. `Forked` in a child made by
    /// `fork`.
    #[doc(alias = "ucp_mem_query")]
    pub fn memory_attributes(&self, range: AddressRange) -> Result<MemoryAttributes> {
        fork::check(Operation::Memory)?;
        self.inner.memory.types.find(range)
    }

    /// What is remembered of the memory of `range`; `None`: unknown, which is not to say that it is the host's. Asks nobody and waits for
    /// nobody. As long as no device's driver is in use, all memory is the host's.
    #[inline]
    #[must_use]
    pub fn known_memory_attributes(&self, range: AddressRange) -> Option<MemoryAttributes> {
        self.inner.memory.types.known(range)
    }

    /// As [`memory_attributes`](Self::memory_attributes), but asks the domains whatever is remembered: before something lasting is made of the
    /// answer, such as a registration, when the memory may have been freed and allocated anew without a word.
    ///
    /// # Errors
    /// As [`memory_attributes`](Self::memory_attributes).
    pub fn refresh_memory_attributes(&self, range: AddressRange) -> Result<MemoryAttributes> {
        fork::check(Operation::Memory)?;
        self.inner.memory.types.find_anew(range)
    }

    /// Says what an allocator of device memory has just allocated, so that nobody needs to ask. Of host memory it is not needed, and ignored.
    pub fn notify_allocated(&self, attributes: &MemoryAttributes) {
        self.inner.memory.types.allocated(attributes);
    }

    /// Says that memory is about to be freed: what this context remembers of it is forgotten.
    /// [`memory::invalidate`] says so to every cache of the process.
    pub fn notify_freed(&self, range: AddressRange) {
        self.inner.memory.types.freed(range);
    }

    /// Allocates `len` bytes of memory of this type: as [`allocate`](Self::allocate) for the host's, else by the domain that can, on a thread
    /// that may block where there is a Tokio runtime.
    ///
    /// # Errors
    /// `Unsupported`: no domain allocates memory of this type, or its driver is not in use. `Exhausted`, `InvalidArgument` for no bytes on a
    /// device, `Forked` in a child made by `fork`, and what the driver said.
    ///
    /// # Cancel safety
    /// Dropped, what it had allocated is freed.
    #[doc(alias = "ucp_mem_map")]
    pub async fn allocate_on(&self, memory_type: MemoryType, len: usize) -> Result<BufferMut> {
        fork::check(Operation::Memory)?;
        if memory_type == MemoryType::Host {
            return HostBufferMut::allocate(len).map(BufferMut::from);
        }
        if len == 0 {
            return Err(refused("a domain allocates no memory of 0 bytes"));
        }
        let context = self.clone();
        let allocate = move || memory::allocate(context.memory_domains(), memory_type, len);
        let allocated = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => match runtime.spawn_blocking(allocate).await {
                Ok(allocated) => allocated,
                Err(error) => {
                    let kind = match error.is_panic() {
                        true => ErrorKind::Io,
                        false => ErrorKind::Canceled,
                    };
                    let text = format!("allocating memory of type {memory_type}");
                    Err(Error::new(kind, text)
                        .with_source(error)
                        .during(Operation::Memory))
                }
            },
            Err(_) => allocate(),
        }?;
        let attributes = MemoryAttributes::new(memory_type, allocated.range()).id(allocated.id());
        let exports = self
            .expert(DomainCapabilities::EXPORT, memory_type)
            .is_some_and(|_| allocated.exports());
        self.notify_allocated(&attributes.dma_buf(exports));
        Ok(allocated.into())
    }

    /// Tells the domain of the memory of `range` what the program intends with it. May block.
    ///
    /// # Errors
    /// As [`memory_attributes`](Self::memory_attributes); `Unsupported` when the domain takes no such advice.
    #[doc(alias = "ucp_mem_advise")]
    pub fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        self.domain_of(range, DomainCapabilities::ADVISE)?
            .advise(range, advice)
    }

    /// The memory of `range` as a dma-buf, for another device's driver. May block.
    ///
    /// # Errors
    /// As [`memory_attributes`](Self::memory_attributes); `Unsupported` when its domain cannot export it, as the host's cannot.
    pub fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        self.domain_of(range, DomainCapabilities::EXPORT)?
            .export(range)
    }

    /// The expert for the memory of `range`, which has to be able to do this.
    fn domain_of(
        &self,
        range: AddressRange,
        capability: DomainCapabilities,
    ) -> Result<&Arc<dyn MemoryDomain>> {
        let memory_type = self.memory_attributes(range)?.memory_type;
        self.expert(capability, memory_type).ok_or_else(|| {
            let text = format!("no memory domain can do {capability:?} with {memory_type} memory");
            Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
        })
    }

    fn expert(
        &self,
        capability: DomainCapabilities,
        memory_type: MemoryType,
    ) -> Option<&Arc<dyn MemoryDomain>> {
        self.memory_domains()
            .iter()
            .find(|domain| domain.attributes().can(capability, memory_type))
    }
}

/// Registers a region with the network devices of a transport. May block.
///
/// # Errors
/// Why peers reach it by messages alone.
pub(super) fn let_devices(
    context: &Context,
    transport: &dyn Transport,
    region: &Region,
) -> Result<()> {
    let memory = transport.remote_memory().ok_or_else(|| {
        let text = format!("{} has no device open", transport.name());
        Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
    })?;
    let exposed = region.exposed();
    let (address, on_device) = match exposed.device {
        Some((_, address)) => (address, true),
        None => (exposed.address as u64, false),
    };
    let range = AddressRange::new(address, exposed.length as u64)?;
    let dma_buf = match on_device {
        true => Some(exported(context, range, region.access())?),
        false => None,
    };
    // SAFETY: the region holds its memory until what is made here is dropped, and nothing in this process has references into it.
    let exposure = unsafe { memory.expose(range, dma_buf.as_ref(), region.access()) }?;
    region.reach_by(DeviceReach {
        keys: exposure.keys().to_vec(),
        registered: Box::new(exposure),
    });
    Ok(())
}

/// Memory of a device, for network devices to reach it with these rights.
///
/// # Errors
/// As of [`Context::export`]; `Unsupported`: it is to be written, and its device would not see that.
fn exported(context: &Context, range: AddressRange, access: Access) -> Result<DmaBuf> {
    let dma_buf = context.export(range)?;
    let is_written = access.intersects(Access::WRITE | Access::DEVICE_ATOMIC);
    if is_written && !dma_buf.ordered {
        let text = "its device may not see what network devices write into its memory";
        return Err(Error::new(ErrorKind::Unsupported, text).during(Operation::Memory));
    }
    Ok(dma_buf)
}

/// Why memory is not exposed for atomics of devices.
#[cold]
pub(super) fn no_device_atomics(cause: Option<Error>) -> Error {
    let text = "no network device that reaches the memory does atomics";
    let error = Error::new(ErrorKind::Unsupported, text).during(Operation::Memory);
    match cause {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

#[cold]
fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Memory)
}
