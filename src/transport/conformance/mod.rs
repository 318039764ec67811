//! What every transport must do, as scenarios that are written once and run over each: those of this build, and one of your own. Feature `conformance`.
//!
//! A [`Subject`] is a transport and how its two ends find each other. [`conformance!`](crate::conformance!) makes a test of each [`scenario`] of it. In
//! `tests/my_transport.rs` of your crate, with `wharf = { version = "0.1", features = ["conformance"] }` among its dev-dependencies:
//!
//! ```
//! use std::sync::Arc;
//! use wharf::transport::{
//!     conformance::{Subject, scenario, unix_channel},
//!     shm::{Shm, ShmOptions},
//! };
//!
//! fn subject() -> Subject {
//!     // Yours instead.
//!     Subject::new(|| Arc::new(Shm::new(ShmOptions::default())), unix_channel)
//! }
//!
//! // One #[test] for each scenario, in a module of that name.
//! wharf::conformance!(over_mine, subject());
//!
//! // Or one of them by hand.
//! scenario::order(&subject());
//! ```
//!
//! A scenario panics where something does not hold, and where anything takes a minute. It has both ends in one thread and drives them as a worker does;
//! transports that start threads, or leave sockets or devices, do so in it as well. `examples/own_transport` is a transport that passes.

pub(super) mod bed;
pub mod scenario;

use std::{fmt, sync::Arc};

use super::{Connected, Transport, channel::Channel};

/// A transport under test.
pub struct Subject {
    transport: Box<dyn Fn() -> Arc<dyn Transport>>,
    ends: Ends,
}

/// How two ends find each other.
enum Ends {
    Over(Box<dyn Fn() -> (Channel, Channel)>),
    /// Not at all: links lead back to themselves.
    #[cfg_attr(not(test), allow(dead_code))]
    Itself(fn() -> Connected),
}

impl Subject {
    /// `transport` is called for each of the two ends, which may be given the same one. `channel` makes both ends of a channel over which a link is set up;
    /// it is called within a Tokio runtime, for each link.
    pub fn new(
        transport: impl Fn() -> Arc<dyn Transport> + 'static,
        channel: impl Fn() -> (Channel, Channel) + 'static,
    ) -> Self {
        Self {
            transport: Box::new(transport),
            ends: Ends::Over(Box::new(channel)),
        }
    }

    /// Of a transport whose links lead back to themselves.
    #[cfg(test)]
    fn to_itself(
        transport: impl Fn() -> Arc<dyn Transport> + 'static,
        connected: fn() -> Connected,
    ) -> Self {
        Self {
            transport: Box::new(transport),
            ends: Ends::Itself(connected),
        }
    }

    /// Whether a link has a peer.
    fn has_peer(&self) -> bool {
        matches!(self.ends, Ends::Over(_))
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("has_peer", &self.has_peer())
            .finish_non_exhaustive()
    }
}

/// Both ends of a Unix socket, which passes descriptors: what transports within a host are set up over.
///
/// # Panics
/// Outside a Tokio runtime, and where the system gives no sockets.
#[must_use]
pub fn unix_channel() -> (Channel, Channel) {
    let (near, far) = tokio::net::UnixStream::pair().expect("a pair of sockets");
    (Channel::unix(near), Channel::unix(far))
}

/// Both ends of a TCP connection over the loopback interface: what transports between hosts are set up over.
///
/// # Panics
/// As [`unix_channel`].
#[must_use]
pub fn tcp_channel() -> (Channel, Channel) {
    let [near, far] = bed::tcp_streams().map(|stream| {
        stream.set_nonblocking(true).expect("a socket");
        Channel::tcp(tokio::net::TcpStream::from_std(stream).expect("a runtime"))
    });
    (near, far)
}

/// One test for each [`scenario`] over one transport, in a module of its own: `conformance!(over_mine, subject());`,
/// where the expression makes a [`Subject`] and sees what its place sees. Feature `conformance`.
#[macro_export]
macro_rules! conformance {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn sizes() {
                $crate::transport::conformance::scenario::sizes(&$subject);
            }
            #[test]
            fn order() {
                $crate::transport::conformance::scenario::order(&$subject);
            }
            #[test]
            fn full_then_writable() {
                $crate::transport::conformance::scenario::full_then_writable(&$subject);
            }
            #[test]
            fn long_zcopy_then_short() {
                $crate::transport::conformance::scenario::long_zcopy_then_short(&$subject);
            }
            #[test]
            fn discard() {
                $crate::transport::conformance::scenario::discard(&$subject);
            }
            #[test]
            fn many_links() {
                $crate::transport::conformance::scenario::many_links(&$subject);
            }
            #[test]
            fn detach() {
                $crate::transport::conformance::scenario::detach(&$subject);
            }
            #[test]
            fn refuse() {
                $crate::transport::conformance::scenario::refuse(&$subject);
            }
            #[test]
            fn peer_drop() {
                $crate::transport::conformance::scenario::peer_drop(&$subject);
            }
            #[test]
            fn peer_drop_within_a_payload() {
                $crate::transport::conformance::scenario::peer_drop_within_a_payload(&$subject);
            }
            #[test]
            fn send_to_a_dead_peer() {
                $crate::transport::conformance::scenario::send_to_a_dead_peer(&$subject);
            }
            #[test]
            fn small_budget() {
                $crate::transport::conformance::scenario::small_budget(&$subject);
            }
            #[test]
            fn wake() {
                $crate::transport::conformance::scenario::wake(&$subject);
            }
            #[test]
            fn shared_memory() {
                $crate::transport::conformance::scenario::shared_memory(&$subject);
            }
            #[test]
            fn share() {
                $crate::transport::conformance::scenario::share(&$subject);
            }
        }
    };
}

#[cfg(test)]
mod tests;
