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
//! | `tag_of_peer`, `tag_bytes` | receives from one peer; receives that allocate |
//! | `am`, `inbox`, `message` | active messages: sending, receiving, one of them |
//! | `region` | [`RemoteRegion`]: memory of a peer |
//! | `rma` | put, get |
//! | `stream` | [`ByteStream`]: streams of bytes, opened and accepted on an endpoint |
//! | `connector` | streams for clients of tonic and hyper |
//! | `atomic`, `signal` | atomic operations; [`Counter`] and its waits |
//! | `copy` | copies within the process |
//! | `fence` | fences, flush of all endpoints |
//! | `layout` | [`RemoteLayout`]: blocks of remote memory |
//! | `attempt` | sends that are tried before they are entered into the table |
//! | `op` | [`Op`]: an operation that has begun |
//! | `operation` | what operations come to, and from where their futures learn it |
//! | `progress` | how far an operation is: [`OpProgress`] |
//! | `request` | an operation of any verb, from its making to its end |
//!
//! Tests: `tests/api/`, `tests/cancel/`, `tests/process/`.

mod am;
mod atomic;
mod attempt;
#[cfg(test)]
mod by_devices;
#[cfg(feature = "hyper")]
mod connector;
mod copy;
mod destination;
#[cfg(test)]
mod dialling;
mod fence;
mod handle;
mod in_place;
mod inbox;
mod layout;
mod message;
mod op;
mod operation;
mod progress;
mod region;
mod request;
mod rma;
mod signal;
mod stream;
mod tag;
mod tag_bytes;
mod tag_of_peer;
mod worker;

pub use am::{AmSend, AmSendCopy, AmSink};
pub use atomic::Atomic;
#[cfg(feature = "hyper")]
pub use connector::StreamConnector;
pub use copy::{CopyBuffer, Queued, Reached};
pub(crate) use destination::lookup;
pub use destination::{Destination, SocketAddresses};
pub use fence::{Fence, Flush, FlushAll};
pub use handle::{Closed, Endpoint, Ready};
pub use in_place::{AmArrival, BytesInPlace, ChunksInPlace};
pub use inbox::{ActiveMessages, AmHandler, AmInbox, AmRecv, AmRecvWith};
pub use layout::RemoteLayout;
pub use message::{ActiveMessage, AmBytes, AmReceive, AmReceived};
pub use op::Op;
pub use operation::Completion;
pub use progress::{OpProgress, ProgressStream, Transferred};
pub use region::RemoteRegion;
pub use rma::{Fetched, Get, Put};
pub(crate) use signal::Waiting;
pub use signal::{Counter, Wait};
pub(crate) use stream::AcceptedStreams;
pub use stream::{
    AcceptStream, ByteReader, ByteStream, ByteWriter, OpenStream, ReadChunk, ReuniteError,
    WriteBuffer,
};
pub use tag::{Matched, MessageInfo, Received, TagMatched, TagRecv, TagSend};
pub use tag_bytes::TagRecvBytes;
pub use tag_of_peer::TagRecvFrom;
pub use worker::{Arm, Worker};
