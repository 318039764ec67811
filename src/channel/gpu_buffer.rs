//! Device memory as channels like it.

use std::fmt;

use crate::{
    context::Context,
    error::{Operation, Result},
    memory::BufferMut,
    sys::fork,
    types::{MemoryType, text::words},
};

#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "cuda")]
use crate::{memory, sys::blocking::blocking};

/// Memory of a device for channels, zeroed: made so that it can be shared as far as the device can share any.
///
/// | where | it is |
/// |---|---|
/// | the device does multicast (NVLink SHARP) | physical memory of a length that a multicast object takes as a part, with a handle of the fabric where there is one: [`Multicast`](GpuBufferKind::Multicast) |
/// | its memory has handles of a fabric (NVL72) | physical memory with such a handle: [`Fabric`](GpuBufferKind::Fabric) |
/// | elsewhere, and of other vendors' devices | what [`Context::allocate_on`] gives: [`Plain`](GpuBufferKind::Plain) |
///
/// All of it is device memory as any other for every operation, is opened by other processes as such, and can be read and written by every device that reaches its own. It becomes
/// a [`BufferMut`], for [`Communicator::register`](super::Communicator::register) and the rest; multicast objects are the program's to make.
///
/// ```no_run
/// # async fn run(communicator: wharf::channel::Communicator) -> wharf::Result<()> {
/// use wharf::{Access, MemoryType, channel::GpuBuffer};
/// let context = communicator.worker().context();
/// let buffer = GpuBuffer::allocate(context, MemoryType::Cuda(0), 1 << 20).await?;
/// let memory = communicator.register(buffer, Access::READ | Access::WRITE).await?;
/// # drop(memory);
/// # Ok(())
/// # }
/// ```
#[doc(alias("mscclpp::GpuBuffer", "cuMemCreate", "cuMulticastBindAddr"))]
pub struct GpuBuffer {
    memory: BufferMut,
    kind: GpuBufferKind,
}

/// How far memory of a [`GpuBuffer`] can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GpuBufferKind {
    /// It may become a part of a multicast object.
    Multicast,
    /// It has a handle for other nodes of a fabric.
    Fabric,
    /// As any other memory of the device.
    Plain,
}

words! {
    GpuBufferKind, "kind of device memory":
    Multicast = "multicast",
    Fabric = "fabric",
    Plain = "plain",
}

impl GpuBuffer {
    /// Allocates `length` bytes of a device.
    ///
    /// # Errors
    /// As [`Context::allocate_on`].
    ///
    /// # Cancel safety
    /// Dropped, what it had allocated is freed.
    pub async fn allocate(
        context: &Context,
        memory_type: MemoryType,
        length: usize,
    ) -> Result<Self> {
        fork::check(Operation::Memory)?;
        #[cfg(feature = "cuda")]
        if let (MemoryType::Cuda(ordinal), 1..) = (memory_type, length)
            && let Some(shared) = Self::allocate_to_share(context, ordinal, length).await?
        {
            return Ok(shared);
        }
        Ok(Self {
            memory: context.allocate_on(memory_type, length).await?,
            kind: GpuBufferKind::Plain,
        })
    }

    /// `None`: the device shares what it allocates as any other memory.
    #[cfg(feature = "cuda")]
    async fn allocate_to_share(
        context: &Context,
        ordinal: u16,
        length: usize,
    ) -> Result<Option<Self>> {
        let Some(accelerator) = cuda::accelerator(context) else {
            return Ok(None);
        };
        let made = blocking(move || match cuda::cuda(&accelerator) {
            Some(cuda) => cuda.allocate_to_share(ordinal, length),
            None => Ok(None),
        });
        Ok(made.await?.map(|(made, reach)| Self {
            kind: match (reach.multicast, reach.fabric) {
                (true, _) => GpuBufferKind::Multicast,
                (false, true) => GpuBufferKind::Fabric,
                (false, false) => GpuBufferKind::Plain,
            },
            memory: context.allocated(memory::announced(made)),
        }))
    }

    /// How far it can be shared.
    #[must_use]
    pub const fn kind(&self) -> GpuBufferKind {
        self.kind
    }

    /// The memory.
    #[must_use]
    pub fn into_inner(self) -> BufferMut {
        self.memory
    }
}

impl From<GpuBuffer> for BufferMut {
    fn from(buffer: GpuBuffer) -> Self {
        buffer.memory
    }
}

impl fmt::Debug for GpuBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBuffer")
            .field("memory", &self.memory)
            .field("kind", &self.kind)
            .finish()
    }
}
