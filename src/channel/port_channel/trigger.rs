//! What a producer asks of a proxy, in 16 bytes.
//!
//! ```text
//! first word    0..32  size in bytes         32..64  source offset
//! second word   0..32  destination offset    32..41  source memory   41..50  destination memory
//!              50..53  kind: 1 data, 2 signal, 4 flush              53..63  semaphore            63  the ring's
//! ```
//!
//! The layout is MSCCL++'s `ProxyTrigger`, so that what is known of it carries over.

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    types::text::flags,
};

/// Memories of each side, and semaphores, that a proxy can have: what a trigger has bits for.
pub const MAX_MEMORIES: usize = 1 << 9;
/// See [`MAX_MEMORIES`].
pub const MAX_SEMAPHORES: usize = 1 << 10;

bitflags::bitflags! {
    /// What a trigger asks for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TriggerKind: u8 {
        /// A put.
        #[doc(alias = "TriggerData")]
        const DATA = 1;
        /// A signal, behind the puts before it.
        #[doc(alias = "TriggerFlag")]
        const SIGNAL = 2;
        /// To be told when all before it is done.
        #[doc(alias = "TriggerSync")]
        const FLUSH = 4;
    }
}

flags! { TriggerKind, "kind of trigger": DATA = "data", SIGNAL = "signal", FLUSH = "flush" }

/// One request to a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ProxyTrigger")]
pub struct Trigger {
    /// What to do.
    pub kind: TriggerKind,
    /// Bytes of the put.
    pub size: u32,
    /// Where in the source memory it begins.
    pub source_offset: u32,
    /// Where in the destination memory it goes.
    pub destination_offset: u32,
    /// The source: memory of this rank.
    pub source: u16,
    /// The destination: memory of the peer.
    pub destination: u16,
    /// The semaphore to signal, which also names the channel.
    pub semaphore: u16,
}

impl Trigger {
    /// The two words. Bit 63 of the second is free.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers of memories and semaphores that it has no bits for.
    pub fn to_words(self) -> Result<[u64; 2]> {
        let fits = |number: u16, limit: usize| usize::from(number) < limit;
        if !fits(self.source, MAX_MEMORIES)
            || !fits(self.destination, MAX_MEMORIES)
            || !fits(self.semaphore, MAX_SEMAPHORES)
        {
            let text = "a trigger has no bits for such a number";
            return Err(Error::new(ErrorKind::InvalidArgument, text).during(Operation::Put));
        }
        let first = u64::from(self.size) | u64::from(self.source_offset) << 32;
        let second = u64::from(self.destination_offset)
            | u64::from(self.source) << 32
            | u64::from(self.destination) << 41
            | u64::from(self.kind.bits() & 7) << 50
            | u64::from(self.semaphore) << 53;
        Ok([first, second])
    }

    /// What two words ask for. Any words do; bit 63 of the second is not looked at.
    #[must_use]
    pub fn from_words([first, second]: [u64; 2]) -> Self {
        let bits = |from: u32, count: u32| (second >> from & ((1 << count) - 1)) as u16;
        Self {
            kind: TriggerKind::from_bits_truncate(bits(50, 3) as u8),
            size: first as u32,
            source_offset: (first >> 32) as u32,
            destination_offset: second as u32,
            source: bits(32, 9),
            destination: bits(41, 9),
            semaphore: bits(53, 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bits() {
        let trigger = Trigger {
            kind: TriggerKind::DATA | TriggerKind::FLUSH,
            size: 0x1122_3344,
            source_offset: 0x5566_7788,
            destination_offset: 0x99aa_bbcc,
            source: 0x1ff,
            destination: 1,
            semaphore: 0x3ff,
        };
        let [first, second] = trigger.to_words().expect("fits");
        assert_eq!(first, 0x5566_7788_1122_3344);
        assert_eq!(second, 0x7ff4_03ff_99aa_bbcc);
    }

    proptest! {
        #[test]
        fn go_round(words in any::<[u64; 2]>()) {
            let trigger = Trigger::from_words(words);
            let [first, second] = trigger.to_words().expect("what words hold fits");
            prop_assert_eq!([first, second], [words[0], words[1] & !(1 << 63)]);
        }

        #[test]
        fn numbers_without_bits_are_refused(source: u16, destination: u16, semaphore: u16) {
            let trigger = Trigger { source, destination, semaphore, ..Trigger::default() };
            let fits = source < 512 && destination < 512 && semaphore < 1024;
            prop_assert_eq!(trigger.to_words().is_ok(), fits);
        }
    }
}
