//! The words that every room uses: small values without behaviour.
//!
//! Comes in: nothing. Goes out: tags, memory types, access rights, identifiers. Uses no other room.
//! Tests: `tests/api/`, and beside each type.

mod access;
mod identity;
mod ids;
mod memory_type;
mod tag;

pub use access::Access;
pub use identity::Identity;
pub(crate) use ids::OpKey;
pub use ids::{AmId, EndpointId, LinkId, WorkerId};
pub use memory_type::MemoryType;
pub use tag::{Mask, Tag};
