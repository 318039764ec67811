//! The windows that a peer has. What is taken out of them is given back by `verbs/windows.rs`.

use crate::{
    types::{AmId, LinkId},
    worker::stream::key::StreamKey,
};

/// A window of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    /// Bytes of eager tagged messages.
    Eager(LinkId),
    /// Active messages of an id.
    Messages(LinkId, AmId),
    /// Bytes of those of them that go unasked.
    Active(LinkId, AmId),
    /// Bytes of a stream.
    Stream(StreamKey),
}
