//! Buffers that notice who writes where it must not: canaries around them, and a look at their memory after they were given back.
//!
//! # Safety
//! The bytes lent to a buffer lie in a heap block that its owner keeps, and are used through that buffer alone until the owner is dropped.

use std::sync::Arc;

use parking_lot::Mutex;
use wharf::{Buffer, BufferMut};

use crate::bytes::all_are;
pub(crate) use crate::bytes::bytes;

const CANARY: usize = 64;
const SONG: u8 = 0xc5;
const POISON: u8 = 0xdd;

/// Memory that was lent to operations and came back.
type Yard = Vec<Box<[u8]>>;

/// The buffers of one test case.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    yard: Arc<Mutex<Yard>>,
}

/// Owns a block while a buffer uses it.
struct Lent {
    block: Option<Box<[u8]>>,
    yard: Arc<Mutex<Yard>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(mut block) = self.block.take() {
            let end = block.len() - CANARY;
            // Whoever still reads it must not find what was in it.
            block[CANARY..end].fill(POISON);
            self.yard.lock().push(block);
        }
    }
}

impl Guard {
    /// A block with room for `length` bytes between canaries, zeros; where they are.
    fn lend(&self, length: usize) -> (*mut u8, Lent) {
        let mut block = vec![0; length + 2 * CANARY].into_boxed_slice();
        block[..CANARY].fill(SONG);
        block[CANARY + length..].fill(SONG);
        let address = block[CANARY..].as_mut_ptr();
        let lent = Lent {
            block: Some(block),
            yard: self.yard.clone(),
        };
        (address, lent)
    }

    /// Memory to receive into.
    pub(crate) fn target(&self, length: usize) -> BufferMut {
        let (address, owner) = self.lend(length);
        // SAFETY: see the chapter.
        unsafe { BufferMut::from_raw(address, length, owner) }
    }

    /// Memory to send from.
    pub(crate) fn source(&self, bytes: &[u8]) -> Buffer {
        let (address, owner) = self.lend(bytes.len());
        // SAFETY: nobody else has the block yet, and these are its bytes between the canaries.
        unsafe { address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: see the chapter.
        unsafe { Buffer::from_raw(address, bytes.len(), owner) }
    }

    /// Whether some of it has not come back.
    pub(crate) fn is_lent(&self) -> bool {
        // Each block that is out holds the yard.
        Arc::strong_count(&self.yard) > 1
    }

    /// Demands that nobody wrote around a buffer, or into one that had been given back.
    #[track_caller]
    pub(crate) fn check(&self) {
        for block in &*self.yard.lock() {
            let (front, rest) = block.split_at(CANARY);
            let (lent, back) = rest.split_at(rest.len() - CANARY);
            assert!(all_are(lent, POISON), "written after it was given back");
            assert!(
                all_are(front, SONG) && all_are(back, SONG),
                "written around the buffer"
            );
        }
    }
}

#[track_caller]
pub(crate) fn expect_bytes(seed: u64, found: &[u8]) {
    assert!(
        found == bytes(seed, found.len()),
        "bytes of seed {seed} are wrong"
    );
}
