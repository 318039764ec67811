//! Channels to set connections up over, made by IP address through RDMA devices (librdmacm): what `Channel` is over TCP where there is no
//! TCP between two hosts.
//!
//! Comes in: addresses. Goes out: [`Listening`] and [`dial`], which give `Channel`s. Uses the drivers `rdmacm` and `verbs`, and `channel`.
//! Tests: here and in `tests/rc_faults/`, in a virtual machine with soft-RoCE devices.
//!
//! What librdmacm passes with a request is too short for a handshake (56 bytes), so a queue pair of 48 KiB carries the channel's bytes:
//!
//! ```text
//! Channel ── Unix socket pair ── pump (a task) ── queue pair ═══ queue pair ── pump ── Unix socket pair ── Channel
//!                                  └ connection manager's events: the other end's end is the socket's end
//! ```
//!
//! So a channel's user sees a socket whose end tells that the peer, its host's device or the connection has gone, as with TCP.
//!
//! A host that vanishes tells nothing. So a peer that is silent for the keepalive interval is sent a message without bytes, which its device
//! acknowledges; after three intervals it is given up.
//!
//! | file | holds |
//! |---|---|
//! | `manager` | the libraries, or why they are not there |
//! | `greeting` | what the two ends tell each other with request and answer |
//! | `events` | events of a connection manager, awaited |
//! | `pair` | the queue pair and its memory |
//! | `window` | who may send how much |
//! | `pump` | the task between socket and queue pair |
//! | `connect` | how a connection comes about |
//! | `watch` | their descriptors |
//!
//! # What may block
//! Loading, opening, making and ending objects, and every call of librdmacm: all on threads that may block. What an end holds is dropped there
//! too, also when the future that made it is dropped.

mod connect;
mod events;
mod greeting;
mod manager;
mod pair;
mod pump;
#[cfg(test)]
mod tests;
mod watch;
mod window;

pub(crate) use connect::{Listening, dial};

/// Gives bytes to the decoder of this transport.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Ok(read) = greeting::Greeting::decode(bytes) {
        assert_eq!(greeting::Greeting::decode(&read.encode()).ok(), Some(read));
    }
}
