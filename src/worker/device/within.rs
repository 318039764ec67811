//! What a worker puts into, gets from and sends to itself, with a device at either end: copies like any other (`local.rs`). Puts and gets need no
//! message but for a signal; of a send the announcement, which keeps its place among other messages, and its end.

use std::sync::Arc;

use crate::memory::{region::Exposed, run::Run};

/// Exposed memory of this worker at the other end of a put or get, from an offset on.
pub(crate) struct Own {
    pub(in crate::worker) exposed: Arc<Exposed>,
    pub(in crate::worker) offset: usize,
}

impl Own {
    /// What follows `position`.
    pub(in crate::worker) fn run(&self, position: usize) -> Run {
        self.exposed.run(self.offset + position)
    }
}
