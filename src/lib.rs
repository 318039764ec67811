//! Awaitable transfers between host, CUDA, ROCm and Intel Gaudi memory, in one process, between processes, between hosts.

pub mod error;
pub mod types;
mod util;
mod sys;
pub mod memory;
mod protocol;
pub mod transport;
mod config;
mod context;
mod worker;
mod endpoint;
mod listener;

pub use error::{Error, ErrorKind, OpError, Operation, Result};
pub use types::{Access, EndpointId, Mask, MemoryType, Tag, WorkerId};
