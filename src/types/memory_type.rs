//! What kind of memory an address belongs to.

use std::fmt;

/// The kind of memory, with the device's index where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ucs_memory_type_t")]
pub enum MemoryType {
    /// Ordinary host memory.
    Host,
    /// Host memory that a device's driver has pinned and mapped for its devices.
    HostPinned,
    /// Memory of a CUDA device.
    Cuda(u16),
    /// Memory that CUDA moves between host and devices.
    CudaManaged,
    /// Memory of a ROCm device.
    Rocm(u16),
    /// Memory that ROCm moves between host and devices.
    RocmManaged,
    /// Memory of a Gaudi device.
    Gaudi(u16),
}

impl MemoryType {
    /// Whether the host reads and writes it by ordinary loads and stores.
    #[must_use]
    pub const fn is_host_accessible(self) -> bool {
        matches!(
            self,
            Self::Host | Self::HostPinned | Self::CudaManaged | Self::RocmManaged
        )
    }
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::HostPinned => f.write_str("host-pinned"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::CudaManaged => f.write_str("cuda-managed"),
            Self::Rocm(index) => write!(f, "rocm:{index}"),
            Self::RocmManaged => f.write_str("rocm-managed"),
            Self::Gaudi(index) => write!(f, "gaudi:{index}"),
        }
    }
}
