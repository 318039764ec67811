//! [`Context`].

use std::{fmt, sync::Arc};

use super::{
    admission::{Admission, Admit, IncomingInfo},
    memory::{ContextMetrics, Memory, no_device_atomics},
    reason::NOT_BUILT_IN,
};
use crate::{
    config::{Config, Entry, UnknownVariable},
    error::{Error, ErrorKind, Operation, Result},
    memory::{
        self, AddressRange, Advice, BufferMut, DmaBuf, DomainCapabilities, DomainMemory,
        HostBufferMut, MemoryAttributes, MemoryDomain, MemoryMonitor, Region, Registrar,
        RegistrationCache, RegistrationCacheOptions, region::RegionTable,
    },
    sys::fork,
    trace,
    transport::{Accelerator, Transport, exposing::let_devices, registry, tls::Tls},
    types::{Access, MemoryType},
};

/// What this process can reach and how it was asked to behave. The root of everything else; a cheap clone.
///
/// Making one probes the transports. It opens nothing: that is done by each worker.
///
/// ```
/// # fn main() -> wharf::Result<()> {
/// let context = wharf::Context::builder().transports("shm,tcp")?.build()?;
/// assert!(context.transports().any(|name| name == "tcp"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[doc(alias = "ucp_context_h")]
#[doc(alias = "ucp_cleanup")]
pub struct Context {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) config: Config,
    pub(super) secret: Option<Vec<u8>>,
    pub(super) admit: Option<Admit>,
    pub(super) tls: Option<Tls>,
    pub(super) transports: Vec<Arc<dyn Transport>>,
    pub(super) accelerators: Vec<Arc<dyn Accelerator>>,
    pub(super) usable: Vec<String>,
    pub(super) unavailable: Vec<(String, String)>,
    pub(super) regions: Arc<RegionTable>,
    pub(super) memory: Memory,
}

impl Context {
    /// The names of the transports that can be used, the preferred first.
    #[doc(alias("ucp_context_query", "ucp_context_attr_t", "ucp_context_print_info"))]
    pub fn transports(&self) -> impl Iterator<Item = &str> {
        self.inner.usable.iter().map(String::as_str)
    }

    /// The transports that cannot be used: name, and why not. What the configuration leaves out is not among them,
    /// but what it asks for by name and this build does not have is.
    #[must_use]
    pub fn unavailable(&self) -> &[(String, String)] {
        &self.inner.unavailable
    }

    /// A transport that messages can go over, by its name: for who drives one [by hand](crate::transport::by_hand).
    ///
    /// # Errors
    /// `Unsupported`: it cannot be used here, and why, or is none that carries messages.
    ///
    /// ```
    /// # fn main() -> wharf::Result<()> {
    /// let context = wharf::Context::builder().transports("tcp")?.build()?;
    /// assert_eq!(context.transport("tcp")?.name(), "tcp");
    /// assert_eq!(context.transport("shm").unwrap_err().kind(), wharf::ErrorKind::Unsupported);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("uct_component_query", "uct_md_open"))]
    pub fn transport(&self, name: &str) -> Result<Arc<dyn Transport>> {
        let mut all = self.inner.transports.iter();
        if let Some(found) = all.find(|transport| transport.name() == name) {
            return Ok(Arc::clone(found));
        }
        let mut why = self.unavailable().iter();
        let text = match why.find(|(of, _)| of == name) {
            Some((_, why)) => format!("{name} cannot be used here: {why}"),
            None => format!("no transport {name} that carries messages is in use"),
        };
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// The configuration in force: every variable of [`VARIABLES`](crate::config::VARIABLES) with its value, and where that came from. What a
    /// transport or an accelerator of one's own was told by the program is not among it.
    #[must_use]
    pub fn configuration(&self) -> Vec<Entry> {
        self.inner.config.entries()
    }

    /// `WHARF_` variables that were set when this context was built, and that nobody reads: misspellings.
    #[must_use]
    pub fn unknown_variables(&self) -> &[UnknownVariable] {
        &self.inner.config.unknown
    }

    /// Allocates `len` bytes of zeroed host memory that peers on this host can reach without a copy in between.
    ///
    /// # Errors
    /// `Exhausted` when there is no memory, `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Dropping the future frees what it had allocated.
    #[doc(alias = "ucp_mem_map")]
    #[doc(alias = "UCP_MEM_MAP_ALLOCATE")]
    pub async fn allocate(&self, len: usize) -> Result<HostBufferMut> {
        fork::check(Operation::Memory)?;
        HostBufferMut::allocate(len)
    }

    /// Exposes memory to peers: whoever holds the region's descriptor may access it as `access` says.
    ///
    /// # Errors
    /// When the system gives no random bytes; `Unsupported` for device memory that no accelerator in use moves, for a list of which a part is on
    /// a device, and for [`Access::DEVICE_ATOMIC`] where no network device reaches the memory or does atomics; `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Dropping the future before it resolved frees the buffer.
    #[doc(alias = "ucp_memh_pack")]
    #[doc(alias("ucp_mem_map", "ucp_mem_map_params_t", "ucp_memh_pack_params_t"))]
    pub async fn expose(&self, buffer: impl Into<BufferMut>, access: Access) -> Result<Region> {
        fork::check(Operation::Memory)?;
        let mut buffer = buffer.into();
        if buffer.was_given() {
            // A peer has it that may not have the region.
            buffer = buffer.replica().await?;
        }
        if buffer.is_on_device() && !self.serves(buffer.memory_type()) {
            buffer.check_reachable(Operation::Memory)?;
        }
        let region = self.inner.regions.expose(buffer, access)?;
        self.let_devices(region).await
    }

    /// Registers an exposed region with network devices, where there are any. Without it the region is reached by messages.
    async fn let_devices(&self, region: Region) -> Result<Region> {
        let mut transports = self.message_transports().iter();
        let transport = transports.find(|transport| transport.is_one_sided());
        let atomics = region.access().contains(Access::DEVICE_ATOMIC);
        let Some(transport) = transport.filter(|_| !region.is_empty()).cloned() else {
            return match atomics {
                true => Err(no_device_atomics(None)),
                false => Ok(region),
            };
        };
        let expose = move || match let_devices(&*transport, &region) {
            Err(error) if atomics => Err(no_device_atomics(Some(error))),
            Err(error) => {
                let reason = format!("exposed, unregistered: {:?}", error.kind());
                trace::slower!(reason, target: "wharf::memory", %error, remedy = registry::REFUSED_MEMORY, "exposed memory of {} bytes is not in reach of network devices: it is reached by messages", region.len());
                Ok(region)
            }
            Ok(()) => Ok(region),
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(expose).await.map_err(|error| {
                Error::new(ErrorKind::Canceled, "registering exposed memory")
                    .with_source(error)
                    .during(Operation::Memory)
            })?,
            Err(_) => expose(),
        }
    }

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
        self.inner.memory.monitor().cloned()
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
    ///
    /// Where a driver can tell what an address is, this counts as long as the driver agrees. Where none can, as no library says where others of the process have
    /// allocated, this is how wharf comes to know of the memory, and it counts until [`notify_freed`](Self::notify_freed).
    pub fn notify_allocated(&self, attributes: &MemoryAttributes) {
        self.inner.memory.types.announced(attributes);
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
        let allocate = move || {
            let allocated = memory::allocate(context.memory_domains(), memory_type, len);
            allocated.map_err(|error| context.not_here(error, memory_type))
        };
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
        Ok(self.allocated(allocated))
    }

    /// A buffer of memory that was allocated just now, which the index knows from now on.
    pub(crate) fn allocated(&self, allocated: Box<dyn DomainMemory>) -> BufferMut {
        let memory_type = allocated.memory_type();
        let attributes = MemoryAttributes::new(memory_type, allocated.range()).id(allocated.id());
        let exports = self
            .memory()
            .expert(DomainCapabilities::EXPORT, memory_type)
            .is_some_and(|_| allocated.exports());
        let attributes = attributes.dma_buf(exports);
        self.inner.memory.types.allocated(&attributes);
        allocated.into()
    }

    /// Adds why the accelerator of this type of memory is not in use, where that is why.
    fn not_here(&self, error: Error, memory_type: MemoryType) -> Error {
        let named = memory_type.to_string();
        let vendor = named.split(':').next().unwrap_or_default();
        let mut unavailable = self.unavailable().iter();
        let unavailable = unavailable.find(|(name, _)| name.starts_with(vendor));
        let mut left_out = registry::left_out();
        let left_out = left_out.find(|(name, _)| name.starts_with(vendor));
        let why = match (left_out, unavailable) {
            (Some((name, feature)), _) => {
                format!("{name}: {NOT_BUILT_IN}; its feature `{feature}` brings it")
            }
            (None, Some((name, why))) => format!("{name}: {why}"),
            (None, None) => return error,
        };
        match error.kind() {
            ErrorKind::Unsupported => error.with_source(Error::new(ErrorKind::Unsupported, why)),
            _ => error,
        }
    }

    /// Tells the domain of the memory of `range` what the program intends with it. May block.
    ///
    /// # Errors
    /// As [`memory_attributes`](Self::memory_attributes); `Unsupported` when the domain takes no such advice.
    #[doc(alias = "ucp_mem_advise")]
    pub fn advise(&self, range: AddressRange, advice: Advice) -> Result<()> {
        fork::check(Operation::Memory)?;
        let memory = &self.inner.memory;
        let domain = memory.domain_of(range, DomainCapabilities::ADVISE)?;
        domain.advise(range, advice)
    }

    /// The memory of `range` as a dma-buf, for another device's driver. May block. Of the host's memory that of [`Context::allocate`], where the kernel has
    /// `/dev/udmabuf`: network devices need no dma-buf for it and nothing else here takes one, so it is for drivers that the program talks to itself.
    ///
    /// # Errors
    /// As [`memory_attributes`](Self::memory_attributes); `Unsupported` when its domain cannot export it, and why; `InvalidArgument`: more of the host's than the kernel
    /// allows at once (64 MiB, unless its module was told another limit); `PermissionDenied`: the device is not this user's.
    pub fn export(&self, range: AddressRange) -> Result<DmaBuf> {
        fork::check(Operation::Memory)?;
        let memory = &self.inner.memory;
        let domain = memory.domain_of(range, DomainCapabilities::EXPORT)?;
        domain.export(range)
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// What is exposed now.
    pub(crate) fn regions(&self) -> &Arc<RegionTable> {
        &self.inner.regions
    }

    /// The options.
    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The shared secret; never empty.
    pub(crate) fn secret(&self) -> Option<&[u8]> {
        self.inner.secret.as_deref()
    }

    /// What the program says to a peer that asks for a connection.
    /// Errors: `Rejected`, with its reason.
    pub(crate) fn admits(&self, peer: &IncomingInfo) -> Result<()> {
        match self.inner.admit.as_ref().map(|admit| admit(peer)) {
            Some(Admission::Refuse(reason)) => Err(Error::new(ErrorKind::Rejected, reason)),
            Some(Admission::Accept) | None => Ok(()),
        }
    }

    /// How TCP connections are encrypted; `None`: they are not.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.inner.tls.as_ref()
    }

    /// The transports that a worker opens, the preferred first.
    pub(crate) fn message_transports(&self) -> &[Arc<dyn Transport>] {
        &self.inner.transports
    }

    /// The kinds of devices whose memory is moved, in the order in which they are asked.
    pub(crate) fn accelerators(&self) -> &[Arc<dyn Accelerator>] {
        &self.inner.accelerators
    }

    /// Whether there is one that moves memory of this type.
    fn serves(&self, memory_type: MemoryType) -> bool {
        let mut accelerators = self.accelerators().iter();
        accelerators.any(|accelerator| accelerator.serves(memory_type))
    }

    /// Whether a transport, or `cma`, is allowed and works here.
    pub(crate) fn can_use(&self, name: &str) -> bool {
        self.transports().any(|usable| usable == name)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret, only that there is one.
        f.debug_struct("Context")
            .field("transports", &self.inner.usable)
            .field("unavailable", &self.inner.unavailable)
            .field("secret", &self.inner.secret.is_some())
            .finish_non_exhaustive()
    }
}

#[cold]
fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument, why).during(Operation::Memory)
}
