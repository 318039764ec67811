//! The words that every room uses: small values without behaviour.
//!
//! Comes in: nothing. Goes out: tags, memory types, access rights, identifiers, atomic words, what moves bytes. Uses no other room.
//! Tests: `tests/api/`, and beside each type.

mod access;
mod atomic;
mod device_key;
pub(crate) mod hex;
mod identity;
mod ids;
mod memory_type;
mod plan;
mod priority;
#[cfg(feature = "serde")]
pub(crate) mod serial;
mod source;
mod tag;
pub(crate) mod text;

pub use access::Access;
pub use atomic::AtomicWord;
pub(crate) use atomic::{AtomicOp, AtomicRequest, Width};
pub use device_key::DeviceKey;
pub use identity::Identity;
pub(crate) use identity::Landmark;
pub(crate) use ids::OpKey;
pub use ids::{AmId, EndpointId, LinkId, WorkerId};
pub use memory_type::MemoryType;
pub use plan::{Mover, Party, Plan, When};
pub use priority::Priority;
pub(crate) use source::Source;
pub use tag::{Mask, Tag};
