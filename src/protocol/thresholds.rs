//! How a message travels, by its length.
//!
//! ```text
//! 0 ............ short ............ eager ............
//!    in the cell   |  copied twice   |  rendezvous: it waits at its sender and is copied once
//! ```
//!
//! The limits are computed once, when a link is attached; a message costs two comparisons. The cost model is [`crossover`]: one for
//! each class of link. A model that is measured at run time replaces it and nothing else.

use crate::{protocol::stream::STREAM_BYTES, transport::LinkAttributes};

/// Bytes in front of the payload of a synchronous send.
const SYNC_PREFIX: usize = 8;

/// The longest message of each scheme over one link, in bytes. Longer ones go by rendezvous.
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
    pub(crate) fn new(link: &LinkAttributes, rendezvous: Option<usize>) -> Self {
        let longest = rendezvous
            .unwrap_or_else(|| crossover(link))
            .saturating_sub(1);
        let short = link.max_short.min(longest);
        let at_once = link.max_bcopy.max(link.max_zcopy);
        let eager = at_once.saturating_sub(SYNC_PREFIX).min(longest);
        Self {
            short,
            eager: eager.max(short),
        }
    }
}

/// The shortest owned buffers of a stream that the reader copies out of the writer's memory, in bytes. Shorter ones are cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lending {
    /// In memory that both processes map.
    pub(crate) mapped: usize,
    /// In any memory, by the kernel.
    pub(crate) by_kernel: usize,
}

impl Lending {
    /// `rendezvous` is the user's choice. Without one:
    /// * in mapped memory, as soon as the buffer is as long as the window of a stream, so that its write waits for the reader anyhow;
    /// * by the kernel never: one copy by the reader is slower than two through the ring, which both ends make at the same time (0.2 to 0.9
    ///   times the rate from 64 KiB to 16 MiB, 21 November 2026, two CPUs of a virtual machine).
    pub(crate) fn new(rendezvous: Option<usize>) -> Self {
        Self {
            mapped: rendezvous.map_or(STREAM_BYTES as usize, |first| first.max(MAPPED_LEAST)),
            by_kernel: rendezvous.map_or(usize::MAX, |first| first.max(BY_KERNEL_LEAST)),
        }
    }
}

/// Shorter ones go in a frame or a few, whatever the user says.
const MAPPED_LEAST: usize = 16 << 10;
/// The least for which the kernel copies anything.
const BY_KERNEL_LEAST: usize = 128 << 10;

/// The first length at which the round trip of a rendezvous costs less than the second copy.
///
/// * A link that copies everything it sends (shared memory): as soon as its own limit is reached.
/// * A link that sends from where the bytes are (sockets): rendezvous saves only the buffering of messages that nobody waits for yet,
///   and the window bounds that.
fn crossover(link: &LinkAttributes) -> usize {
    if link.max_zcopy == 0 {
        link.max_bcopy
    } else {
        256 << 10
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link(max_short: usize, max_bcopy: usize, max_zcopy: usize) -> LinkAttributes {
        LinkAttributes {
            transport: "test",
            max_short,
            max_bcopy,
            max_zcopy,
        }
    }

    #[test]
    fn a_link_that_copies_announces_what_it_cannot_copy() {
        let limits = Thresholds::new(&link(48, 8192, 0), None);
        assert_eq!((limits.short, limits.eager), (48, 8184));
    }

    #[test]
    fn never_means_as_far_as_the_link_goes() {
        let limits = Thresholds::new(&link(48, 8192, 1 << 20), Some(usize::MAX));
        assert_eq!(limits.eager, (1 << 20) - 8);
    }

    #[test]
    fn buffers_of_streams_wait_from_the_users_length_on() {
        let limits = |first| {
            let lending = Lending::new(first);
            (lending.mapped, lending.by_kernel)
        };
        assert_eq!(limits(None), (512 << 10, usize::MAX));
        assert_eq!(limits(Some(0)), (16 << 10, 128 << 10));
        assert_eq!(limits(Some(1 << 20)), (1 << 20, 1 << 20));
        assert_eq!(limits(Some(usize::MAX)), (usize::MAX, usize::MAX));
    }

    proptest! {
        #[test]
        fn limits_hold(max_short in 0usize..100, max_bcopy in 100usize..1 << 20, max_zcopy in 0usize..1 << 30, first in 0usize..1 << 30) {
            let limits = Thresholds::new(&link(max_short, max_bcopy, max_zcopy), Some(first));
            prop_assert!(limits.short <= limits.eager && limits.short <= max_short);
            prop_assert!(limits.eager == limits.short || limits.eager + SYNC_PREFIX <= max_bcopy.max(max_zcopy));
            prop_assert!(limits.eager < first.max(1));
        }
    }
}
