//! A long frame of a stream, as it lands.

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
