//! Memory of what was read, kept for what comes.

use bytes::{Bytes, BytesMut};

/// Memory of frames that have been read, for those that come: a long one arrives in memory of its own, and where the allocator gives that back to the
/// system each time, its pages are made anew for each frame, which takes longer than copying it. Of one size alone, and for frames of more than half of
/// that: who leaves short frames unread must not have long memory kept for them. 512 KiB in all.
#[derive(Default)]
pub(in crate::worker) struct Spares(Vec<BytesMut>);

impl Spares {
    /// Frames in a stream's window, if they are as long as those of a socket.
    const MOST: usize = 8;
    /// Bytes of each.
    const SIZE: usize = 64 << 10;

    /// Room for so many bytes, of which none is there.
    pub(in crate::worker) fn take(&mut self, length: usize) -> BytesMut {
        if !(Self::SIZE / 2 + 1..=Self::SIZE).contains(&length) {
            return BytesMut::with_capacity(length);
        }
        let spare = self.0.pop();
        spare.unwrap_or_else(|| BytesMut::with_capacity(Self::SIZE))
    }

    /// Keeps what was read, unless somebody else has a part of it.
    pub(in crate::worker) fn keep(&mut self, read: Bytes) {
        if self.0.len() < Self::MOST
            && let Ok(mut spare) = read.try_into_mut()
        {
            spare.clear();
            if spare.try_reclaim(Self::SIZE) && !spare.try_reclaim(Self::SIZE + 1) {
                self.0.push(spare);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    #[test]
    fn what_was_read_leaves_its_memory_to_what_comes() {
        const LENGTH: usize = Spares::SIZE - 100;
        let address = |memory: &mut BytesMut| memory.spare_capacity_mut().as_ptr();
        let mut spares = Spares::default();
        let mut memory = spares.take(LENGTH);
        let first = address(&mut memory);
        memory.extend_from_slice(&[1; LENGTH]);
        let mut read = memory.freeze();
        read.advance(LENGTH / 2);
        spares.keep(read);
        let mut memory = spares.take(LENGTH);
        assert_eq!(address(&mut memory), first);
        assert!(memory.is_empty());
        // Who has a part of it keeps it.
        memory.extend_from_slice(&[2; LENGTH]);
        let read = memory.freeze();
        let part = read.slice(..8);
        spares.keep(read);
        assert_ne!(address(&mut spares.take(LENGTH)), first);
        assert_eq!(part[..], [2; 8]);
        // There is an end to what is kept, and it is of one size, however much of it was read first.
        for _ in 0..2 * Spares::MOST {
            spares.keep(Bytes::from(vec![3; Spares::SIZE]));
        }
        assert_eq!(spares.0.len(), Spares::MOST);
        spares.0.clear();
        for size in [100, Spares::SIZE - 1, Spares::SIZE + 1, 8 * Spares::SIZE] {
            let mut read = Bytes::from(vec![3; size]);
            read.advance(size / 2);
            spares.keep(read);
        }
        assert!(spares.0.is_empty());
    }

    #[test]
    fn short_frames_do_not_hold_the_memory_of_long_ones() {
        let mut spares = Spares::default();
        spares.keep(Bytes::from(vec![1; Spares::SIZE]));
        for length in [1, Spares::SIZE / 2, Spares::SIZE + 1] {
            assert!(spares.take(length).capacity() < 2 * length.max(64));
        }
        assert_eq!(spares.0.len(), 1);
    }
}
