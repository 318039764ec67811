//! What a context knows of memory: whose it is, who allocates and exports it, who tells when it goes away.
//!
//! # Safety
//! Exposed memory is registered with devices that peers reach it by: see [`let_devices`].
#![allow(unsafe_code)]

use std::sync::{Arc, OnceLock};

use crate::{
    config::Config,
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        self, AddressRange, DmaBuf, DomainCapabilities, HostDomain, MemoryDomain, MemoryMonitor,
        MemoryTypeMetrics, MemoryTypes, MonitorKind, Region, RegistrationCacheMetrics,
        RegistrationCacheOptions, region::DeviceReach,
    },
    transport::{Transport, verbs::MemoryOptions},
    types::{Access, MemoryType},
};

/// The part of a context that is about memory.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) types: MemoryTypes,
    pub(super) rcache: RegistrationCacheOptions,
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

    pub(super) fn monitor(&self) -> Result<&Arc<dyn MemoryMonitor>> {
        if let Some(monitor) = self.monitor.get() {
            return Ok(monitor);
        }
        let monitor = memory::monitor(self.kind)?;
        Ok(self.monitor.get_or_init(|| monitor))
    }

    /// The expert for the memory of `range`, which has to be able to do this.
    pub(super) fn domain_of(
        &self,
        range: AddressRange,
        capability: DomainCapabilities,
    ) -> Result<&Arc<dyn MemoryDomain>> {
        let memory_type = self.types.find(range)?.memory_type;
        self.expert(capability, memory_type).ok_or_else(|| {
            let text = format!("no memory domain can do {capability:?} with {memory_type} memory");
            Error::new(ErrorKind::Unsupported, text).during(Operation::Memory)
        })
    }

    pub(super) fn expert(
        &self,
        capability: DomainCapabilities,
        memory_type: MemoryType,
    ) -> Option<&Arc<dyn MemoryDomain>> {
        self.types
            .domains()
            .iter()
            .find(|domain| domain.attributes().can(capability, memory_type))
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

/// What a [`Context`](crate::Context) and the process know of memory, counted; a snapshot, by [`Context::metrics`](crate::Context::metrics).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextMetrics {
    /// Whose memory is.
    pub memory_types: MemoryTypeMetrics,
    /// The registration caches of this process, of all contexts.
    pub registration_caches: Vec<RegistrationCacheMetrics>,
}

/// Registers a region with the network devices of a transport. May block.
///
/// # Errors
/// Why peers reach it by messages alone.
pub(super) fn let_devices(
    known: &Memory,
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
        true => Some(exported(known, range, region.access())?),
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
/// As of [`Context::export`](crate::Context::export); `Unsupported`: it is to be written, and its device would not see that.
fn exported(known: &Memory, range: AddressRange, access: Access) -> Result<DmaBuf> {
    let domain = known.domain_of(range, DomainCapabilities::EXPORT)?;
    let dma_buf = domain.export(range)?;
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
