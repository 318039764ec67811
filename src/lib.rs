//! Awaitable transfers between host, CUDA, ROCm and Intel Gaudi memory, in one process, between processes, between hosts.

mod config;
mod context;
mod endpoint;
mod error;
mod listener;
mod memory;
mod protocol;
mod sys;
pub mod transport;
mod types;
mod util;
mod worker;

pub use config::Progress;
pub use context::{Context, ContextBuilder};
pub use endpoint::{
    Closed, Completion, Destination, Endpoint, Fetched, Flush, Get, Matched, MessageInfo, Op, Put,
    Received, RemoteRegion, TagMatched, TagRecv, TagSend, Worker,
};
pub use error::{Error, ErrorKind, OpError, Operation, Result};
pub use listener::{Incoming, Listener};
pub use memory::{Buffer, BufferMut, HostBufferMut, ReceiveBuffer, Region};
pub use protocol::{Descriptor, WorkerAddress};
pub use types::{Access, EndpointId, Identity, LinkId, Mask, MemoryType, Tag, WorkerId};
