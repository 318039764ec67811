//! The paths that bytes take, for those who choose options of one, drive one by hand, or bring their own. Most programs need nothing of it: a
//! [`Context`](crate::Context) uses what this machine has, and [`ContextBuilder::transports`](crate::ContextBuilder::transports) chooses by name.
//!
//! A transport carries messages with an id, a header of 64 bits and a body, and tells what arrived through [`Sink`]. It knows nothing of tags, operations or
//! rendezvous. An [`Accelerator`] copies between the host's memory and a device's: [`cuda`], [`rocm`], [`gaudi`].
//!
//! # By hand
//! [`by_hand`] drives one transport without a worker: exposed memory, a packed key, puts and gets that the program itself progresses.
//!
//! # A transport of one's own
//! Whoever implements [`Transport`] and gives it to [`ContextBuilder::transport`](crate::ContextBuilder::transport) has every operation over it. What has to be
//! written is a [`Connector`], which makes a link between two ends, an [`Interface`], which says what has arrived, and a [`Link`], which sends messages of some
//! KiB. The rest has defaults, and wharf does without: lent payloads ([`Link::am_zcopy`]), device memory and one-sided operations ([`Link::one_sided`]), one copy
//! between two memories of a host ([`Link::shared_memory`], [`Link::share`]). The duties are in [`contract`], and `conformance`, with the
//! feature of that name, holds a transport against them. `examples/own_transport` is one of three hundred lines.

// One contract, one registry, then one folder for each transport. Uses `memory`, `sys`, `types`, `util`. Tests: `conformance/` over each,
// `tests/own_transport/`, and loom models beside what they model.

pub mod accelerator;
pub mod by_hand;
pub mod channel;
pub(crate) mod cma;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
#[cfg(feature = "cuda")]
pub mod cuda;
pub(crate) mod exposing;
#[cfg(feature = "gaudi")]
pub mod gaudi;
mod hold;
mod inventory;
pub(crate) mod loopback;
pub mod one_sided;
mod pair;
mod path;
pub(crate) mod patience;
#[cfg(feature = "verbs")]
pub(crate) mod rdmacm;
pub(crate) mod registry;
#[cfg(feature = "rocm")]
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
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod wanted;

pub use accelerator::{
    Accelerator, CopyAttributes, CopyEnd, CopyEngine, CopyRequest, CopySink, DevicePlace,
    DeviceStream, Export, Import, ImportedMemory, SmallCopies, Stop,
};
pub use contract::{
    Connected, Connector, FRAGMENT, Interface, Link, LinkAttributes, MAX_PREFIX, Opened, PeerInfo,
    Place, RawSlice, Registry, Sink, Transport,
};
pub use hold::{HeldBytes, Hold};
pub use inventory::DeviceInfo;
pub use one_sided::{
    DeviceAtomic, DeviceKey, DeviceRegistrar, DeviceWays, Exposure, LocalKeys, LocalRange,
    MAX_DEVICES, OneSided, OneSidedAttributes, Registering, RemoteRange,
};
pub(crate) use pair::{Inside, Pair, Standing};
pub use path::{Reach, Role};
pub use send::{SendError, Zcopy};
pub use shared_memory::{SHARED_WORDS, SharedMemory};
pub use wanted::{InPlace, Taken, Wanted};
