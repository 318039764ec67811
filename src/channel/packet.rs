//! Packets: words that carry a flag beside their data, so that whoever polls them knows of each whether it has come, without a signal.
//!
//! ```text
//! 8 bytes (LL8)    data 4 │ flag 4
//! 16 bytes (LL16)  data 4 │ flag 4 │ data 4 │ flag 4
//! ```
//!
//! All little-endian. A packet of 16 bytes is two words of 8, each with its flag; so every word is whole by itself, and is written and read by one
//! atomic access of 8 bytes. Half of the bytes are data. The last packet is filled up with zeros.
//!
//! # Safety
//! [`store`] and [`load`] reach words by address, as atomics; who calls them vouches for the address.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::text::words;

/// Bytes of a word: data and its flag.
pub(super) const WORD: usize = 8;
/// Of those, data.
const DATA: usize = 4;

/// How wide packets are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PacketWidth {
    /// 8 bytes, 4 of them data: `LL8`.
    #[doc(alias = "LL8Packet")]
    Eight,
    /// 16 bytes, 8 of them data: `LL16`.
    #[default]
    #[doc(alias = "LL16Packet")]
    Sixteen,
}

words! { PacketWidth, "packet width": Eight = "8", Sixteen = "16" }

impl PacketWidth {
    /// Bytes of a packet.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }

    /// Bytes of packets that hold `length` bytes of data. `None`: more than there are addresses.
    #[must_use]
    pub const fn packed(self, length: usize) -> Option<usize> {
        length.div_ceil(self.bytes() / 2).checked_mul(self.bytes())
    }
}

/// One word.
const fn word(data: [u8; DATA], flag: u32) -> u64 {
    (flag as u64) << 32 | u32::from_le_bytes(data) as u64
}

/// The words of `data`, filled up to whole packets: `bytes` of them.
fn words(data: &[u8], flag: u32, bytes: usize) -> impl Iterator<Item = u64> {
    (0..bytes / WORD).map(move |at| {
        let rest = data.get(at * DATA..).unwrap_or(&[]);
        let mut four = [0; DATA];
        match rest.first_chunk() {
            Some(whole) => four = *whole,
            None => four[..rest.len()].copy_from_slice(rest),
        }
        word(four, flag)
    })
}

/// Packets as bytes, for where they are not written word by word.
pub(super) fn encode(data: &[u8], flag: u32, bytes: usize) -> Vec<u8> {
    let mut packets = Vec::with_capacity(bytes);
    for word in words(data, flag, bytes) {
        packets.extend_from_slice(&word.to_le_bytes());
    }
    packets
}

/// Writes packets, `bytes` of them.
///
/// # Safety
/// `target` must be a multiple of 8 and valid for `bytes` bytes; whoever else uses them meanwhile must do so by atomics of 8 bytes, or be content with
/// torn words.
pub(super) unsafe fn store(target: *mut u8, data: &[u8], flag: u32, bytes: usize) {
    for (at, word) in words(data, flag, bytes).enumerate() {
        let address = target.wrapping_add(at * WORD).cast();
        // SAFETY: within `bytes`, by the caller's promise.
        let slot = unsafe { AtomicU64::from_ptr(address) };
        slot.store(word.to_le(), Ordering::Release);
    }
}

/// Reads the data of packets into `data`, up to the first word without this flag. How many bytes of data.
///
/// # Safety
/// As [`store`], for the packets of `data`.
pub(super) unsafe fn load(source: *mut u8, data: &mut [u8], flag: u32) -> usize {
    let mut done = 0;
    for (at, four) in data.chunks_mut(DATA).enumerate() {
        let address = source.wrapping_add(at * WORD).cast();
        // SAFETY: a word of the packets, by the caller's promise.
        let slot = unsafe { AtomicU64::from_ptr(address) };
        let word = u64::from_le(slot.load(Ordering::Acquire));
        if (word >> 32) as u32 != flag {
            break;
        }
        four.copy_from_slice(&word.to_le_bytes()[..four.len()]);
        done += four.len();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(bytes: usize) -> Vec<u64> {
        vec![0; bytes / WORD + 1]
    }

    #[test]
    fn the_layout() {
        let packets = encode(b"abcdef", 0x0102_0304, 16);
        assert_eq!(packets, b"abcd\x04\x03\x02\x01ef\0\0\x04\x03\x02\x01");
        assert_eq!(PacketWidth::Eight.packed(9), Some(24));
        assert_eq!(PacketWidth::Sixteen.packed(9), Some(32));
        assert_eq!(PacketWidth::Sixteen.packed(0), Some(0));
        assert_eq!(PacketWidth::Eight.packed(usize::MAX), None);
    }

    #[test]
    fn go_round_and_stop_at_what_has_not_come() {
        for width in [PacketWidth::Eight, PacketWidth::Sixteen] {
            for length in 0..70 {
                let data: Vec<u8> = (1..=length as u8).collect();
                let bytes = width.packed(length).expect("few");
                let mut there = room(bytes);
                let address = there.as_mut_ptr().cast::<u8>();
                // SAFETY: there is room for `bytes`, aligned to 8, and nobody else uses it.
                unsafe { store(address, &data, 7, bytes) };
                let mut got = vec![0; length];
                // SAFETY: as above.
                assert_eq!(unsafe { load(address, &mut got, 7) }, length);
                assert_eq!(got, data);
                // SAFETY: as above.
                assert_eq!(unsafe { load(address, &mut got, 8) }, 0);
                let encoded = encode(&data, 7, bytes);
                let stored: Vec<u8> = there.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(encoded, stored[..bytes]);
                if length > 4 {
                    there[1] = 0;
                    // SAFETY: as above; the address is taken anew.
                    let loaded = unsafe { load(there.as_mut_ptr().cast(), &mut got, 7) };
                    assert_eq!(loaded, 4);
                }
            }
        }
    }
}
