//! What a context knows of memory: whose it is, who allocates and exports it, who tells when it goes away.

use std::sync::{Arc, OnceLock};

#[cfg(feature = "verbs")]
use crate::transport::verbs::MemoryOptions;
use crate::{
    config::Config,
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        self, AddressRange, DomainCapabilities, HostDomain, MemoryDomain, MemoryMonitor,
        MemoryTypeMetrics, MemoryTypes, MonitorKind, RegistrationCacheMetrics,
        RegistrationCacheOptions,
    },
    types::MemoryType,
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
            rcache: registrations(config),
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
pub(super) fn registrations(config: &Config) -> RegistrationCacheOptions {
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
#[cfg(feature = "verbs")]
pub(super) fn device_memory(config: &Config) -> MemoryOptions {
    MemoryOptions {
        cache: registrations(config),
        monitor: *config.memory_monitor,
        relaxed_ordering: *config.rc.relaxed_ordering,
        on_demand: *config.rc.on_demand,
        experts: Arc::default(),
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
