//! What an atomic operation does to a word.

/// A word that atomic operations work on: `u32` or `u64`, at an address that is a multiple of its size.
pub trait AtomicWord: sealed::Sealed + Copy + Send + Sync + Unpin + 'static {}

impl AtomicWord for u32 {}
impl AtomicWord for u64 {}

pub(crate) mod sealed {
    use super::Width;

    pub trait Sealed {
        const WIDTH: Width;
        fn widen(self) -> u64;
        fn narrow(bits: u64) -> Self;
    }

    impl Sealed for u32 {
        const WIDTH: Width = Width::Four;
        fn widen(self) -> u64 {
            u64::from(self)
        }
        fn narrow(bits: u64) -> Self {
            bits as Self
        }
    }

    impl Sealed for u64 {
        const WIDTH: Width = Width::Eight;
        fn widen(self) -> u64 {
            self
        }
        fn narrow(bits: u64) -> Self {
            bits
        }
    }
}

/// Bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// `u32`.
    Four = 4,
    /// `u64`.
    Eight = 8,
}

impl Width {
    pub(crate) const fn bytes(self) -> usize {
        self as usize
    }

    /// Whether an address is a multiple of it. Without a division, which takes as long as the atomic operation.
    #[inline(always)]
    pub(crate) const fn divides(self, address: u64) -> bool {
        address & (self as u64 - 1) == 0
    }
}

/// What happens to the word. The numbers are those of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add = 1,
    And = 2,
    Or = 3,
    Xor = 4,
    Swap = 5,
    /// Takes the operand if the word is equal to `compare`.
    CompareSwap = 6,
}

/// One atomic operation, without its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicRequest {
    pub(crate) op: AtomicOp,
    pub(crate) width: Width,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

impl AtomicRequest {
    pub(crate) fn new<T: AtomicWord>(op: AtomicOp, operand: T) -> Self {
        Self {
            op,
            width: T::WIDTH,
            operand: operand.widen(),
            compare: 0,
        }
    }

    pub(crate) fn compare_swap<T: AtomicWord>(expected: T, new: T) -> Self {
        Self {
            compare: expected.widen(),
            ..Self::new(AtomicOp::CompareSwap, new)
        }
    }
}
