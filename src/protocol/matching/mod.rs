//! Tag matching: receives that wait for a message, and messages that wait for a receive.
//!
//! Comes in: tags, masks, and whatever the worker keeps for a receive (`T`) or a message (`M`). Goes out: the one that
//! matches. The order is MPI's: a message takes the earliest posted receive that accepts it, a receive takes the earliest
//! arrived message that it accepts. Uses `types`. Tests: `tests.rs` here, against a plain list.
//!
//! ```text
//! buckets   [ ●  |    |  ● | ... ]     hash of the tag and the mask
//!             │          │
//!  chain      ▼          ▼
//!           tag 7 ──▶  tag 9           first of each group: one group for each tag (and mask) that is present
//!             │
//!  group      ▼  in order
//!           tag 7 ──▶ tag 7 ──▶ ...
//! ```
//!
//! The group that is used most, the one in front, is in no bucket: whoever has one tag at a time pays for no hash. It gives its place up once it is
//! empty, or when others have been used for a while.
//!
//! Everything lives in one slab of nodes linked by index, so nothing is allocated for a message once the slab has grown to
//! the most that were ever waiting. The array of buckets doubles when there are more groups than buckets.
//!
//! For the caller: a message is offered to [`PostedQueue::first_match`] first and pushed only when nothing took it; a
//! receive is offered to [`UnexpectedQueue::take_match`] first and posted only when that gave nothing. A message that is
//! restored is offered to the posted receives first, like a new one. All under one lock.

mod posted;
mod store;
#[cfg(test)]
mod tests;
mod unexpected;

pub(crate) use posted::{PostId, PostedQueue};
pub(crate) use unexpected::{Arrival, Message, Name, Taken, UnexpectedQueue};
