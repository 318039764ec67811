//! Buffers that notice who writes where it must not: canaries around them, and a look at their memory after they were given back.
//!
//! # Safety
//! The bytes lent to a buffer lie in a heap block that its owner keeps, and are used through that buffer alone until the owner is dropped.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use wharf::{Buffer, BufferMut};

const CANARY: usize = 64;
const SONG: u8 = 0xc5;
const POISON: u8 = 0xdd;

/// Memory that was lent to an operation and came back.
#[derive(Default)]
struct Yard {
    returned: Vec<Box<[u8]>>,
    /// What was in it then.
    then: Vec<Vec<u8>>,
}

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
            let mut yard = self.yard.lock();
            yard.then.push(block.to_vec());
            yard.returned.push(block);
        }
    }
}

impl Guard {
    fn lend(&self, bytes: &[u8]) -> (*mut u8, usize, Lent) {
        let mut block = vec![SONG; bytes.len() + 2 * CANARY].into_boxed_slice();
        block[CANARY..CANARY + bytes.len()].copy_from_slice(bytes);
        let address = block[CANARY..].as_mut_ptr();
        let lent = Lent {
            block: Some(block),
            yard: self.yard.clone(),
        };
        (address, bytes.len(), lent)
    }

    /// Memory to receive into.
    pub(crate) fn target(&self, length: usize) -> BufferMut {
        let (address, length, owner) = self.lend(&vec![0; length]);
        // SAFETY: see the chapter.
        unsafe { BufferMut::from_raw(address, length, owner) }
    }

    /// Memory to send from.
    pub(crate) fn source(&self, bytes: &[u8]) -> Buffer {
        let (address, length, owner) = self.lend(bytes);
        // SAFETY: see the chapter.
        unsafe { Buffer::from_raw(address, length, owner) }
    }

    /// Whether some of it has not come back.
    pub(crate) fn is_lent(&self) -> bool {
        // Each block that is out holds the yard.
        Arc::strong_count(&self.yard) > 1
    }

    /// Demands that nobody wrote around a buffer, or into one that had been given back.
    #[track_caller]
    pub(crate) fn check(&self) {
        let yard = self.yard.lock();
        for (now, then) in yard.returned.iter().zip(&yard.then) {
            assert!(**now == **then, "written after it was given back");
            let (front, rest) = now.split_at(CANARY);
            let back = &rest[rest.len() - CANARY..];
            assert!(
                front.iter().chain(back).all(|&byte| byte == SONG),
                "written around the buffer"
            );
        }
    }
}

const PERIOD: usize = 65_521;

/// `length` bytes that `seed` makes.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let period = BYTES.get_or_init(|| {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        (0..PERIOD).map(|_| next()).collect()
    });
    let mut bytes = Vec::with_capacity(length);
    let mut place = seed.wrapping_mul(7919) as usize % PERIOD;
    while bytes.len() < length {
        let piece = &period[place..PERIOD.min(place + length - bytes.len())];
        bytes.extend_from_slice(piece);
        place = 0;
    }
    bytes
}

#[track_caller]
pub(crate) fn expect_bytes(seed: u64, found: &[u8]) {
    assert!(
        found == bytes(seed, found.len()),
        "bytes of seed {seed} are wrong"
    );
}
