//! Connections between RDMA devices by IP address: `librdmacm.so.1`, found at run time.
//!
//! Comes in: the path of a library, or none; queue pairs that `verbs` made. Goes out: [`RdmaCm`], from it [`EventChannel`]s, and from these
//! [`Id`]s, which are listeners or ends of connections. Every step ends with an event ([`EventChannel::next`]). Uses `library` and `verbs`.
//! Tests: `tests/verbs/`.
//!
//! ```text
//! asks:    resolve_address → AddressResolved → resolve_route → RouteResolved → connect ─┐
//!          ConnectResponse (queue pair to RTR and RTS) → establish                      │
//! listens: bind, listen → ConnectRequest with a new Id (queue pair to RTR and RTS) → accept → Established
//! ```
//!
//! An identifier's queue pair is made on wharf's own context of [`Id::device`]; each of its changes takes [`Id::prepare`].
//!
//! | file | holds |
//! |---|---|
//! | `sys` | what the header says |
//! | `driver` | the library: found, its functions |
//! | `libraries` | which files it and libibverbs are |
//! | `channel` | where events are told |
//! | `address` | addresses as the kernel has them |
//! | `id` | identifiers, and each step of a connection |
//! | `event` | what is told |
//!
//! # What may block
//! No step waits for the other side. Dropping an [`Id`], and [`Id::migrate`], wait for its events being acknowledged, which
//! [`EventChannel::next`] does at once.
//!
//! # Safety
//! As of `verbs`. An event is copied and acknowledged in the call that takes it, so nothing points into one.
#![allow(unsafe_code)]

mod address;
mod channel;
mod driver;
mod event;
mod id;
mod libraries;
mod sys;

pub(crate) use channel::EventChannel;
pub(crate) use driver::{RdmaCm, VARIABLE};
pub(crate) use event::{Event, EventKind};
pub(crate) use id::{Connect, Id};
pub(crate) use libraries::Libraries;
