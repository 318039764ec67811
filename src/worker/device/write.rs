//! Out of device memory into a byte stream: parts wait in fragments until the stream has its turn on the link (`verbs/stream_out.rs`).

use crate::{memory::Buffer, worker::stream::key::StreamKey};

/// A buffer that a stream owns and the host does not reach.
pub(crate) struct DeviceWrite {
    pub(in crate::worker) stream: StreamKey,
    pub(in crate::worker) buffer: Buffer,
    /// Bytes that have left.
    pub(in crate::worker) sent: usize,
}
