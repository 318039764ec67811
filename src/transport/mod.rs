//! The paths that bytes take: one contract, one registry, then one folder for each transport.
//!
//! Comes in: messages with an id, a 64-bit header and a body; channels to set links up over. Goes out: what arrived, through
//! [`Sink`]. Uses `memory`, `sys`, `types`, `util`. Knows nothing of tags, operations or rendezvous.
//! Tests: `conformance/` over each, `tests/own_transport/`, and loom models beside what they model.
//!
//! # A transport of one's own
//! Whoever implements [`Transport`] and gives it to [`ContextBuilder::transport`](crate::ContextBuilder::transport) has every operation over it. What has to be
//! written is a [`Connector`], which makes a link between two ends, an [`Interface`], which says what has arrived, and a [`Link`], which sends messages of some
//! KiB. The rest has defaults, and wharf does without: lent payloads ([`Link::am_zcopy`]), device memory and one-sided operations ([`Link::one_sided`]), one copy
//! between two memories of a host ([`Link::shared_memory`], [`Link::share`]). The duties are in [`contract`], and `conformance`, with the
//! feature of that name, holds a transport against them. `examples/own_transport` is one of three hundred lines.

pub mod accelerator;
pub mod channel;
pub(crate) mod cma;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
pub mod cuda;
pub mod gaudi;
mod hold;
mod inventory;
pub(crate) mod loopback;
pub mod one_sided;
mod pair;
mod path;
pub(crate) mod patience;
pub(crate) mod rdmacm;
pub(crate) mod registry;
pub mod rocm;
mod send;
mod shared_memory;
pub mod shm;
pub(crate) mod tcp;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/absent.rs"]
pub(crate) mod tls;
pub(crate) mod verbs;
mod wanted;

pub use accelerator::{
    Accelerator, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace,
    DeviceStream, Export, Import, ImportedMemory, SmallCopies, Stop,
};
pub use contract::{
    Connected, Connector, Interface, Link, LinkAttributes, MAX_PREFIX, Opened, PeerInfo, Place,
    RawSlice, Registry, Sink, Transport,
};
pub use hold::{Held, Hold};
pub use inventory::DeviceInfo;
pub use one_sided::{
    DeviceAtomic, DeviceKey, DeviceWays, Exposure, LocalKeys, LocalRange, MAX_DEVICES, OneSided,
    OneSidedAttributes, Registering, RemoteMemory, RemoteRange,
};
pub(crate) use pair::{Inside, Pair, Standing};
pub use path::{Reach, Role};
pub use send::{SendError, Zcopy};
pub use shared_memory::{SHARED_WORDS, SharedMemory};
pub use wanted::{InPlace, Taken, Wanted};
