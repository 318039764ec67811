//! What kind of memory an address belongs to.

use std::fmt;

/// The kind of memory, with the device's index where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ucs_memory_type_t")]
pub enum MemoryType {
    /// Ordinary host memory.
    Host,
}

impl fmt::Display for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
        }
    }
}
