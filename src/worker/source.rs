//! Where the bytes are that a peer asked for.

use std::sync::Arc;

use crate::memory::{Buffer, region::Exposed};

/// Where the bytes of a [`Serve`](crate::worker::operations::Serve) are.
#[derive(Clone)]
pub(crate) enum Source {
    Region(Arc<Exposed>),
    /// Of an operation that was announced.
    Message(Buffer),
}
