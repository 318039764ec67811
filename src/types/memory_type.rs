//! What kind of memory an address belongs to.

use std::{fmt, str::FromStr};

use crate::error::{Error, ErrorKind, Result};

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

impl FromStr for MemoryType {
    type Err = Error;

    /// From its `Display` form; a device without a number is the first (`cuda` is `cuda:0`).
    ///
    /// # Errors
    /// `InvalidArgument`: no such type.
    fn from_str(text: &str) -> Result<Self> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, number.parse().ok()),
            None => (text, Some(0)),
        };
        match (name, number) {
            ("cuda", Some(number)) => Ok(Self::Cuda(number)),
            ("rocm", Some(number)) => Ok(Self::Rocm(number)),
            ("gaudi", Some(number)) => Ok(Self::Gaudi(number)),
            _ => [
                Self::Host,
                Self::HostPinned,
                Self::CudaManaged,
                Self::RocmManaged,
            ]
            .into_iter()
            .find(|plain| plain.to_string() == text)
            .ok_or_else(|| {
                let text = format!("\"{text}\" is no memory type: host, host-pinned, cuda:0, cuda-managed, rocm:0, rocm-managed, gaudi:0");
                Error::new(ErrorKind::InvalidArgument, text)
            }),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for memory_type in [
            MemoryType::Host,
            MemoryType::HostPinned,
            MemoryType::Cuda(3),
            MemoryType::CudaManaged,
            MemoryType::Rocm(0),
            MemoryType::RocmManaged,
            MemoryType::Gaudi(u16::MAX),
        ] {
            let read: MemoryType = memory_type.to_string().parse().expect("its own name");
            assert_eq!(read, memory_type);
        }
        assert_eq!("cuda".parse::<MemoryType>().ok(), Some(MemoryType::Cuda(0)));
        for bad in [
            "",
            "cuda:",
            "cuda:x",
            "cuda:65536",
            "host:0",
            "Host",
            "gaudi:-1",
        ] {
            let error = bad.parse::<MemoryType>().expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
