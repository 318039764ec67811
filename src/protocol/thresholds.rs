//! How a message travels, by its length.
//!
//! ```text
//! 0 ............ short ............ eager ............
//!    in the cell   |  copied twice   |  rendezvous: it waits at its sender and is copied once
//! ```
//!
//! The limits are computed once, when a link is attached; a message costs two comparisons. The cost model is the table
//! below: one crossover for each class of link. A model that is measured at run time replaces [`crossover`] and nothing else.

use crate::{config::Threshold, transport::LinkAttributes};

/// Bytes in front of the payload of a synchronous send.
const SYNC_PREFIX: usize = 8;

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// [`Link::am_short`](crate::transport::Link::am_short).
    Short,
    /// [`Link::am_bcopy`](crate::transport::Link::am_bcopy), with room for the prefix of a synchronous send.
    Eager,
    /// RTS first.
    Rendezvous,
}

/// The longest message of each scheme over one link, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// Longest short message.
    pub(crate) short: usize,
    /// Longest eager message; at least `short`.
    pub(crate) eager: usize,
}

impl Thresholds {
    /// The limits of a link. `rendezvous` is the user's choice of the first length that goes by rendezvous; the link's own limits
    /// stand above it, and an empty message is always short.
    pub(crate) fn new(link: &LinkAttributes, rendezvous: Threshold) -> Self {
        let longest = rendezvous.or_auto(crossover(link)).saturating_sub(1);
        let short = link.max_short.min(longest);
        let eager = link.max_bcopy.saturating_sub(SYNC_PREFIX).min(longest);
        Self {
            short,
            eager: eager.max(short),
        }
    }

    /// How a message of `length` bytes travels.
    #[inline]
    pub(crate) const fn choose(&self, length: usize) -> Scheme {
        if length <= self.short {
            Scheme::Short
        } else if length <= self.eager {
            Scheme::Eager
        } else {
            Scheme::Rendezvous
        }
    }
}

/// The first length at which the round trip of a rendezvous costs less than the second copy.
///
/// * Where the peer's memory can be reached directly, one copy wins from about 32 KiB on.
/// * Where it cannot, rendezvous saves only the buffering of messages that nobody waits for yet.
fn crossover(link: &LinkAttributes) -> usize {
    if link.remote_memory {
        32 << 10
    } else {
        64 << 10
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(max_short: usize, max_bcopy: usize, remote_memory: bool) -> LinkAttributes {
        LinkAttributes {
            transport: "test",
            max_short,
            max_bcopy,
            max_zcopy: 0,
            remote_memory,
        }
    }

    #[test]
    fn each_length_has_its_scheme() {
        let limits = Thresholds::new(&link(48, 1 << 20, true), None);
        let schemes =
            [0, 48, 49, (32 << 10) - 1, 32 << 10, usize::MAX].map(|length| limits.choose(length));
        use Scheme::{Eager, Rendezvous, Short};
        assert_eq!(
            schemes,
            [Short, Short, Eager, Eager, Rendezvous, Rendezvous]
        );
    }

    #[test]
    fn the_override_names_the_first_rendezvous() {
        let link = link(48, 1 << 20, false);
        for first in [1, 10, 48, 49, 50, 100_000] {
            let limits = Thresholds::new(&link, Some(first));
            assert_ne!(limits.choose(first - 1), Scheme::Rendezvous);
            assert_eq!(limits.choose(first), Scheme::Rendezvous);
        }
        assert_eq!(Thresholds::new(&link, Some(0)).choose(0), Scheme::Short);
        assert_eq!(
            Thresholds::new(&link, Some(0)).choose(1),
            Scheme::Rendezvous
        );
    }

    proptest! {
        #[test]
        fn the_link_is_never_asked_for_more_than_it_can(
            max_short in 0usize..10_000,
            max_bcopy in 0usize..100_000,
            remote in any::<bool>(),
            rendezvous in prop::option::of(0usize..1 << 20),
            length in 0usize..1 << 20,
        ) {
            let limits = Thresholds::new(&link(max_short, max_bcopy, remote), rendezvous);
            match limits.choose(length) {
                Scheme::Short => prop_assert!(length <= max_short),
                Scheme::Eager => prop_assert!(length + SYNC_PREFIX <= max_bcopy),
                Scheme::Rendezvous => prop_assert!(length > 0),
            }
        }
    }
}
