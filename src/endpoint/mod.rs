//! What the user calls and awaits.
//!
//! Comes in: buffers, tags, descriptors. Goes out: named futures, each a key into the worker's table of operations. Uses `worker` and
//! what is below it. Knows nothing of transports.
//!
//! | file | holds |
//! |---|---|
//! | `worker` | [`Worker`]: the root of endpoints and listeners, and of receives |
//! | `handle` | [`Endpoint`]: one connection |
//! | `tag` | tagged sends and receives, probes |
//! | `rma` | [`RemoteRegion`], put, get |
//! | `stream` | [`ByteStream`]: streams of bytes, opened and accepted on an endpoint |
//! | `operation` | [`Op`]: an operation that was posted |
//!
//! Tests: `tests/api/`, `tests/cancel/`, `tests/process/`.

mod handle;
mod operation;
mod rma;
mod stream;
mod tag;
mod worker;

pub use handle::{Closed, Endpoint, Flush};
pub use operation::{Completion, Op};
pub use rma::{Fetched, Get, Put, RemoteRegion};
pub use stream::{
    AcceptStream, ByteReader, ByteStream, ByteWriter, OpenStream, ReadChunk, ReuniteError,
    WriteBuffer,
};
pub use tag::{Matched, MessageInfo, Received, TagMatched, TagRecv, TagSend};
pub(crate) use worker::lookup;
pub use worker::{Destination, Worker};
