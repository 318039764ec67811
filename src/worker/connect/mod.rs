//! How connections come about: dialling, listening, the handshake, and the choice of the path.
//!
//! ```text
//! client                                                server
//!    │ ── TCP to host:port, or the Unix socket of an address, or an RDMA address ──▶
//!    │ ─── hello ─────────────────────────────────────────────▶  │
//!    │ ◀── hello: which worker; and proof of it ───────────────  │
//!    │ ─── who, where, which transports, proof ───────────────▶  │
//!    │ ◀── same host? a Unix name: the same goes on there ─────  │  or else Incoming: accepted, on any worker, or rejected
//!    │ ◀── who takes it, proof, lanes to set up, best first ───  │
//!    │ ◀──▶ the lane's own set-up ◀────────────────────────▶   │
//! ```
//!
//! At a Unix socket both ends try whether each can read the other's memory (cma), and say so with what they say anyway.
//!
//! A worker's id is a hash of its key, so every connection is one to and from whom it seems to be: an address leads to its own worker, and what a
//! peer has dialled is taken for this side's only where it has proved that it is the one meant.
//!
//! Where the better path fails, the next is tried from the start, with one warning that says what failed and why.
//!
//! | file | holds |
//! |---|---|
//! | `dial` | addresses in turn, and over which of them |
//! | `meeting` | both ends dial at once; connections that the peer made |
//! | `listen` | places where peers connect, the worker's address |
//! | `bind` | the addresses to listen at |
//! | `backlog` | how many handshakes at a time, and whose |
//! | `accepted` | how many connections peers have made, and whose |
//! | `handshake` | who is at the other end |
//! | `lanes` | which transport, its set-up, the finished link |

mod accepted;
mod backlog;
mod bind;
#[cfg(test)]
mod crowded;
mod dial;
mod handshake;
mod lanes;
#[cfg(test)]
mod liars;
mod listen;
mod meeting;
mod request;
mod said;
pub(crate) mod wireup;

pub(crate) use accepted::{Accepted, Seat};
#[allow(unreachable_pub, reason = "named by a sealed trait")]
pub use dial::Destination;
pub(crate) use dial::connect;
pub(crate) use lanes::accept;
pub(crate) use listen::{Place, accept_in_turn, address};
pub(crate) use request::Request;
pub(crate) use said::refuse;
pub(crate) use wireup::new_key;
