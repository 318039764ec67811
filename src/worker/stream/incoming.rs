//! What a peer says about streams, acted upon. A message about a stream that has ended is late when it concerns what this side writes, and a
//! breach of the protocol when it brings more of what the peer said had ended.

use bytes::BytesMut;

use crate::{
    error::Error,
    worker::{stream::key::StreamKey, violation::violation},
};

/// A long frame on its way into memory of its own.
pub(crate) struct Landing {
    pub(in crate::worker) stream: StreamKey,
    pub(in crate::worker) data: BytesMut,
    pub(in crate::worker) length: usize,
}

#[cold]
pub(in crate::worker) fn exceeded() -> Error {
    violation("the peer exceeded the window of a stream")
}
