//! What this process can reach.
//!
//! Comes in: options from the program and the environment. Goes out: [`Context`], which holds the options and the
//! transports that work on this machine, and for each of the others the reason why it does not. Uses `config`, `memory`,
//! `transport`. Knows nothing of workers, connections or Tokio.
//! Tests: below, and `tests/api/`.

mod builder;
mod memory;

use std::{fmt, sync::Arc};

pub use builder::ContextBuilder;

use crate::{
    config::Config,
    error::{Operation, Result},
    memory::{BufferMut, HostBufferMut, Region, region::RegionTable},
    sys::fork,
    transport::{Accelerator, Transport},
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
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    secret: Option<Vec<u8>>,
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
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// The names of the transports that can be used, the preferred first.
    pub fn transports(&self) -> impl Iterator<Item = &str> {
        self.inner.usable.iter().map(String::as_str)
    }

    /// The transports that cannot be used: name, and why not. What the configuration leaves out is not among them,
    /// but what it asks for by name and this build does not have is.
    #[must_use]
    pub fn unavailable(&self) -> &[(String, String)] {
        &self.inner.unavailable
    }

    /// Allocates `len` bytes of zeroed host memory that peers on this host can reach without a copy in between.
    ///
    /// # Errors
    /// `Exhausted` when there is no memory, `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Dropping the future frees what it had allocated.
    #[doc(alias = "ucp_mem_map")]
    pub async fn allocate(&self, len: usize) -> Result<HostBufferMut> {
        fork::check(Operation::Memory)?;
        HostBufferMut::allocate(len)
    }

    /// Exposes memory to peers: whoever holds the region's descriptor may access it as `access` says.
    ///
    /// # Errors
    /// When the system gives no random bytes; `Unsupported` for device memory that no accelerator in use moves, and for a list of which a part is on
    /// a device; `Forked` in a child made by `fork`.
    ///
    /// # Cancel safety
    /// Dropping the future before it resolved frees the buffer.
    #[doc(alias = "ucp_memh_pack")]
    pub async fn expose(&self, buffer: impl Into<BufferMut>, access: Access) -> Result<Region> {
        fork::check(Operation::Memory)?;
        let buffer = buffer.into();
        if buffer.is_on_device() && !self.serves(buffer.memory_type()) {
            buffer.check_reachable(Operation::Memory)?;
        }
        self.inner.regions.expose(buffer, access)
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
