//! What the two ends of a link on one host have in common, so that each reaches the other's memory itself: one copy, no stop between.
//!
//! A transport gives a few KiB of words that both ends have mapped, and knows when its peer is gone. The worker does the rest: by these words the ends agree on
//! memory that one of them touches for both, in mapped segments ([`Link::share`](super::Link::share)) or by the kernel (`cma`).
//!
//! ```text
//! word
//!    0     16  mark of the client                0 "I am touching your memory now", 1 "you may touch none of mine any more"
//!   16     16  mark of the server
//!   32    512  64 transfers of 8 words           0 next chunk to claim, 1 chunks moved; 32 of the client, then 32 of the server
//!  544    512  generations of the client's exposed regions
//! 1056    512  generations of the server's
//! 1568         end
//! ```
//!
//! A mark is two cache lines, a transfer is one, if the words begin at a multiple of 128 bytes: else they are slower, and as right.
//!
//! # Safety
//! Nothing unsafe is done here. The trait is unsafe to implement: memory is freed on its word.
#![allow(unsafe_code)]

use std::{fmt, sync::atomic::AtomicU64};

use super::path::Role;

/// How many words of eight bytes two ends have in common: 12,544 bytes.
pub const SHARED_WORDS: usize = 1568;

/// Offsets in words; `[0]` of the client, `[1]` of the server.
pub(super) const MARK: [usize; 2] = [0, 16];
pub(super) const TRANSFER: usize = 32;
pub(super) const GENERATION: [usize; 2] = [544, 1056];
/// Words of a transfer.
pub(super) const TRANSFER_WORDS: usize = 8;
/// Transfers of both ends together.
pub(super) const TRANSFERS: usize = 64;
/// Generations in each end's table.
pub(super) const GENERATIONS: usize = 512;

const _: () = {
    assert!(MARK[1] + 16 == TRANSFER && TRANSFER + TRANSFERS * TRANSFER_WORDS == GENERATION[0]);
    assert!(GENERATION[0] + GENERATIONS == GENERATION[1]);
    assert!(GENERATION[1] + GENERATIONS == SHARED_WORDS);
};

/// Memory that both ends of a link have, and what is known of the peer that has it too. A [`Link`](super::Link) that offers one copy answers
/// [`Link::shared_memory`](super::Link::shared_memory) with it.
///
/// It is asked when the link is attached, and where something has gone wrong. No message and no copy calls it, so nothing here needs to be fast. It stays
/// until nothing that the peer was lent is in its reach, which may be after the link.
///
/// # Safety
/// The worker frees memory, and touches the peer's, on the word of these methods. Whoever implements them promises of each of the two objects:
/// * `words` is the same memory in each call, for as long as the object is. The peer's object has the same memory
///   (mapped elsewhere, where it is another process); nobody else writes there; all of it was zero when the link was made.
/// * One of the two is [`Role::Client`] and one [`Role::Server`].
/// * `is_peer_gone` is true only when the peer touches nothing of this end's memory any more.
/// * `has_barriers` is true at both ends or at none, and only as said there.
///
/// What a peer writes into the words is not trusted: it is compared, and is never an address, an index or a length.
///
/// # Examples
/// Between two workers of one process:
///
/// ```
/// # #![allow(unsafe_code)]
/// use std::sync::{Arc, atomic::{AtomicBool, AtomicU64, Ordering}};
/// use wharf::transport::{Role, SHARED_WORDS, SharedMemory};
///
/// /// What the two ends have in common.
/// #[derive(Debug)]
/// struct Common {
///     words: [AtomicU64; SHARED_WORDS],
///     /// Whether the client's link, and the server's, has been dropped.
///     dropped: [AtomicBool; 2],
/// }
///
/// #[derive(Debug)]
/// struct End(Arc<Common>, Role);
///
/// // SAFETY: the words are never moved, and zero at first; each end drops its link between two copies.
/// unsafe impl SharedMemory for End {
///     fn role(&self) -> Role {
///         self.1
///     }
///     fn words(&self) -> &[AtomicU64; SHARED_WORDS] {
///         &self.0.words
///     }
///     fn is_peer_gone(&self) -> bool {
///         let peer = match self.1 {
///             Role::Client => 1,
///             Role::Server => 0,
///         };
///         self.0.dropped[peer].load(Ordering::Acquire)
///     }
/// }
///
/// let common = Arc::new(Common {
///     words: [const { AtomicU64::new(0) }; SHARED_WORDS],
///     dropped: Default::default(),
/// });
/// let [near, far] = [Role::Client, Role::Server].map(|role| End(Arc::clone(&common), role));
/// near.words()[7].store(3, Ordering::Release);
/// assert_eq!(far.words()[7].load(Ordering::Acquire), 3);
/// assert!(!near.is_peer_gone());
/// ```
pub unsafe trait SharedMemory: Send + Sync + fmt::Debug + 'static {
    /// Which end this is.
    fn role(&self) -> Role;

    /// The words that both ends have.
    fn words(&self) -> &[AtomicU64; SHARED_WORDS];

    /// Whether the peer touches nothing of this end's memory any more, whatever the words say: its process has ended, or it has given the link up by
    /// its own will, which a worker does between two copies. Once true it stays true. It must become true soon after the peer is gone: what the peer may
    /// have been inside waits for it. May make a system call, must not block.
    fn is_peer_gone(&self) -> bool;

    /// Whether both processes have registered for the kernel's barriers (`MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED`), and each knows it of the other. Then
    /// who touches memory does without a fence, and who takes memory back makes every thread of both pass a barrier. Read once. By default no.
    fn has_barriers(&self) -> bool {
        false
    }
}
