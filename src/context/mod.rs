//! What this process can reach.
//!
//! Comes in: options from the program and the environment. Goes out: [`Context`], which holds the options and the
//! transports that work on this machine, and for each of the others the reason why it does not. Uses `config`, `memory`,
//! `transport`. Knows nothing of workers, connections or Tokio.
//! Tests: below, and `tests/api/`.

mod admission;
mod builder;
mod memory;
mod report;

use std::{fmt, sync::Arc};

pub use admission::{Admission, IncomingInfo, Via};
pub use builder::ContextBuilder;
pub use memory::ContextMetrics;
pub use report::{Report, TransportReport, TransportState, TypeCacheReport};

use crate::{
    config::{Config, Entry, UnknownVariable},
    error::{Error, ErrorKind, Operation, Result},
    memory::{BufferMut, HostBufferMut, Region, region::RegionTable},
    sys::fork,
    transport::{Accelerator, Transport, tls::Tls},
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
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    secret: Option<Vec<u8>>,
    admit: Option<admission::Admit>,
    tls: Option<Tls>,
    transports: Vec<Arc<dyn Transport>>,
    accelerators: Vec<Arc<dyn Accelerator>>,
    usable: Vec<String>,
    unavailable: Vec<(String, String)>,
    regions: Arc<RegionTable>,
    memory: memory::Memory,
}

impl Context {
    /// Starts to build one. Without any option it takes all transports that work here.
    #[doc(alias = "ucp_init")]
    #[doc(alias("ucp_init_version", "ucp_params_t"))]
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

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
                true => Err(memory::no_device_atomics(None)),
                false => Ok(region),
            };
        };
        let context = self.clone();
        let expose = move || match memory::let_devices(&context, &*transport, &region) {
            Err(error) if atomics => Err(memory::no_device_atomics(Some(error))),
            Err(error) => {
                tracing::warn!(target: "wharf::memory", %error, "exposed memory of {} bytes is not in reach of network devices: it is reached by messages", region.len());
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
    ///
    /// # Errors
    /// `Rejected`, with its reason.
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
