//! What the bytes mean, without any input or output: no fd, no clock, no runtime.
//!
//! Comes in: bytes that a peer sent, tags and masks that a caller wants, the attributes of a link. Goes out: values that
//! were checked while they were parsed, bytes to send, and the receive or message that matches.
//! Uses `types`, `error` and `util`, and of `transport` only a link's attributes.
//!
//! | file | holds |
//! |---|---|
//! | [`matching`] | posted receives and unexpected messages of a worker |
//! | [`plan`] | which way bytes go: every choice of it |
//! | [`thresholds`] | the lengths at which messages travel otherwise |
//! | [`control`] | the messages of a link: their ids, what their header means, their bodies |
//! | [`window`] | what a peer may send ahead of its receiver, and when it comes back |
//! | [`goodbye`] | why a connection is closed: codes and reasons |
//! | [`stream`] | byte streams: their names in messages and their limits |
//! | [`am`] | the words of active messages, their limits |
//! | [`ledger`] | what is held for peers: accounts, and their limits |
//! | [`atomic`] | the number by which a message names an atomic operation |
//! | [`layout`] | which bytes of a region a put or get touches: blocks, loops over them, and a place in their stream |
//! | [`handshake`] | who is at the other end of a new connection: proofs of that, and of the shared secret |
//! | [`hello`], [`keys`], [`pake`] | its messages; a worker's key, of which its id is a hash; what a weak secret is good for |
//! | [`address`], [`descriptor`] | what programs pass to each other by other means: where a worker is, what memory it exposes |
//! | [`registered`] | the same memory within a communicator: whose it is, and until when |
//! | [`wire`](crate::util::wire) | the parts these are made of: reader, fields, sealed envelope |
//!
//! Everything on the wire is little-endian. What comes from outside is parsed without trusting a length and without a
//! panic; bytes that make no sense are an error of kind `Malformed` (things passed around), `VersionMismatch`, or
//! `Protocol` (messages of a link).
//!
//! Tests: beside each file, against models and with arbitrary bytes; seen from outside in `tests/api/`.

pub(crate) mod address;
pub(crate) mod am;
pub(crate) mod atomic;
pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod goodbye;
pub(crate) mod handshake;
pub(crate) mod hello;
pub(crate) mod keys;
pub(crate) mod layout;
pub(crate) mod ledger;
pub(crate) mod matching;
#[cfg(feature = "channel")]
pub(crate) mod offer;
pub(crate) mod pake;
pub(crate) mod plan;
#[cfg(feature = "channel")]
pub(crate) mod registered;
pub(crate) mod stream;
pub(crate) mod thresholds;
pub(crate) mod window;

pub use address::WorkerAddress;
pub use descriptor::Descriptor;
pub use layout::{Block, Blocks};

/// Bytes of eager tagged messages, 64 for each message and its payload, that may be under way to a peer or unmatched there: what an
/// endpoint can make its peer hold. Part of version 1 of the wire; past it messages are announced and wait at their sender.
pub(crate) const EAGER_WINDOW: u64 = 1 << 20;

/// Messages that may be announced to a peer and unmatched there; later ones wait at their sender. Part of version 1 of the wire.
pub(crate) const ANNOUNCEMENTS: usize = 4096;
