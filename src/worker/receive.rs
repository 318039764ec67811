//! Receives that were posted. One waits, and is filled, where the queue that matches has it: short, and found without a second look. It enters the
//! table of operations only when its message comes in parts, or is not for the host to copy.
//!
//! ```text
//! Waiting ─▶ Arrived ─▶ taken by its future, or put back when that is gone
//!    │  └──▶ Failed  ─▶ taken by its future
//!    └─────▶ Entered ─▶ what its entry in the table comes to
//! ```

use crate::{
    error::{Error, Result},
    memory::BufferMut,
    protocol::matching::{Arrival as Order, PostId},
    trace,
    types::{LinkId, OpKey},
    util::waker_slot::WakerSlot,
    worker::operations::Arrival,
};

/// What waits for a message, as the queue that matches has it.
pub(crate) enum Posted {
    Receive(Receive),
    /// This entry of the table waits for one to claim.
    Claim(OpKey),
}

/// A claim of nobody's. It stands in front of all, accepts every message, and so ends every short way as long as something waits for a message of one peer,
/// which may be earlier than those that wait for one of any.
pub(in crate::worker) const ASIDE: OpKey = OpKey(u64::MAX);

pub(crate) struct Receive {
    pub(in crate::worker) buffer: BufferMut,
    pub(in crate::worker) waker: WakerSlot,
    /// Its bytes may not stop in host memory between two places.
    pub(in crate::worker) unstaged: bool,
    pub(in crate::worker) stage: Stage,
}

pub(in crate::worker) enum Stage {
    Waiting,
    /// The message is in the buffer; how much of it, and its place for putting it back.
    Arrived(Arrival, LinkId, Order),
    Failed(Error),
    /// Its place in the table.
    Entered(OpKey),
}

impl OpKey {
    pub(in crate::worker) fn of(id: PostId) -> Self {
        Self::posted(id.slot, id.generation)
    }

    pub(in crate::worker) fn post_id(self) -> Option<PostId> {
        let (slot, generation) = self.as_posted()?;
        Some(PostId { slot, generation })
    }
}

impl Receive {
    #[inline]
    pub(in crate::worker) fn end(&mut self, result: Result<(Arrival, LinkId, Order)>) {
        trace::ended(
            "receive",
            result
                .as_ref()
                .err()
                .map(|error| error as &dyn std::fmt::Display),
        );
        self.stage = match result {
            Ok((arrival, link, order)) => Stage::Arrived(arrival, link, order),
            Err(error) => Stage::Failed(error),
        };
    }
}
