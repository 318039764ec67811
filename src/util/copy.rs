//! Copies of bytes, of lengths that messages and their parts have.
//!
//! The C library copies 4 KiB to some hundreds of them by `rep movsb`. Where the target lies a few bytes further into its page than the source, as a `Vec` of
//! some size does beside memory that begins at a page, that takes twenty times as long on AMD's Zen 3: 2.1 GB/s for any length from 4 to 512 KiB, where a
//! loop of vector moves has 26 to 45 (glibc 2.36, 26 November 2026); and half as long again for memory in the nearest caches elsewhere. So such a loop is what is
//! used here, where the processor has the vectors.
//!
//! # Safety
//! [`copy`] is `ptr::copy_nonoverlapping`, and asks the same of its caller.
#![allow(unsafe_code)]

use std::ptr;

use bytes::BufMut;

/// Not in builds that look for mistakes: sanitizers see what the C library's copy is given, and the loop is slow unoptimised.
const IN_USE: bool = cfg!(not(any(debug_assertions, fuzzing, miri)));
/// From this length on the loop is used: a shorter copy is made by vectors in the C library too.
const LOOP: usize = 1024;
/// From this length on the C library writes past the caches.
const LONG: usize = 8 << 20;

/// Copies a few bytes, those of the commonest lengths without a call into the C library.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy_small(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; constant lengths become plain moves.
    unsafe {
        match length {
            0 => {}
            8 => ptr::copy_nonoverlapping(from, to, 8),
            16 => ptr::copy_nonoverlapping(from, to, 16),
            length => copy(from, to, length),
        }
    }
}

/// Longest that [`copy_short`] takes.
pub(crate) const SHORTEST: usize = 48;

/// Copies at most [`SHORTEST`] bytes without a call: by moves from both ends, which meet or overlap in the middle.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`]; and `length` is at most [`SHORTEST`].
#[inline(always)]
pub(crate) unsafe fn copy_short(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise. Of each pair of moves the first begins at the begin and the second ends at the end, and the length is no less
    // than one of them; the third, of the second 16 bytes, is made where there are more than 32.
    unsafe {
        let moved = |at: usize, bytes: usize| {
            ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes);
        };
        match length {
            0 => {}
            8 => moved(0, 8),
            9..16 => {
                moved(0, 8);
                moved(length - 8, 8);
            }
            16.. => {
                moved(0, 16);
                if length > 32 {
                    moved(16, 16);
                }
                moved(length - 16, 16);
            }
            4.. => {
                moved(0, 4);
                moved(length - 4, 4);
            }
            _ => {
                moved(0, 1);
                moved(length / 2, 1);
                moved(length - 1, 1);
            }
        }
    }
}

/// Copies `length` bytes.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match IN_USE && (LOOP..LONG).contains(&length) {
            true => copy_long(from, to, length),
            false => ptr::copy_nonoverlapping(from, to, length),
        }
    }
}

/// As [`copy`], of a length for the loop. Not in line: who copies a few bytes has nothing to keep for it.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise; the processor has the vectors, and there are no fewer bytes than the loop takes at a time.
        return unsafe { by_vectors(from, to, length) };
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, length) }
}

/// Bytes of each turn of the loop, in four vectors.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 128;

/// Copies no fewer bytes than a turn of the loop takes.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn by_vectors(from: *const u8, to: *mut u8, length: usize) {
    const _: () = assert!(BLOCK <= LOOP);
    let mut at = 0;
    while at + BLOCK <= length {
        // SAFETY: the caller's promise: there is room for a block from here on.
        unsafe { copy_block(from.add(at), to.add(at)) };
        at += BLOCK;
    }
    let last = length - BLOCK;
    // SAFETY: as above. The last ones, and some a second time.
    unsafe { copy_block(from.add(last), to.add(last)) };
}

/// Copies one block. Word by word, not by iterators: those are not made for the vectors, and whether they are compiled into this depends on how the
/// program is built.
///
/// # Safety
/// As for [`copy`], of a block.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
unsafe fn copy_block(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};

    let (from, to) = (from.cast::<__m256i>(), to.cast::<__m256i>());
    // SAFETY: the caller's promise: four vectors each. Neither need be aligned.
    unsafe {
        let first = _mm256_loadu_si256(from);
        let second = _mm256_loadu_si256(from.add(1));
        let third = _mm256_loadu_si256(from.add(2));
        let fourth = _mm256_loadu_si256(from.add(3));
        _mm256_storeu_si256(to, first);
        _mm256_storeu_si256(to.add(1), second);
        _mm256_storeu_si256(to.add(2), third);
        _mm256_storeu_si256(to.add(3), fourth);
    }
}

/// Fills a slice with another of the same length.
///
/// # Panics
/// They have different lengths.
#[inline]
pub(crate) fn copy_slice(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "two slices of one length");
    // SAFETY: both are that long, and one is borrowed alone.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len()) }
}

/// The bytes in memory of their own.
#[inline]
pub(crate) fn copied(from: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(from.len());
    append(&mut bytes, from);
    bytes
}

/// Puts bytes behind others, where there is room for them: else it grows by little at a time.
#[inline]
pub(crate) fn append(to: &mut impl BufMut, from: &[u8]) {
    let mut rest = from;
    while !rest.is_empty() {
        let room = to.chunk_mut();
        let count = room.len().min(rest.len());
        // SAFETY: there is room for as many, and it is borrowed alone.
        unsafe { copy(rest.as_ptr(), room.as_mut_ptr(), count) };
        // SAFETY: they were written just now.
        unsafe { to.advance_mut(count) };
        rest = &rest[count..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_of_any_length_copies_all_and_nothing_else() {
        let lengths = (0..300).chain(LOOP - 3..LOOP + 300);
        let lengths = lengths.chain([5000, 65_535, 65_536, LONG - 1, LONG]);
        let from: Vec<u8> = (0..LONG + 16).map(|at| (at % 251) as u8).collect();
        let mut to = vec![0; LONG + 64];
        for (round, length) in lengths.enumerate() {
            let (source, place) = (&from[round % 16..][..length], round * 7 % 32);
            to[..place + length + 32].fill(255);
            match length >= LOOP && is_x86_feature_detected!("avx") {
                // SAFETY: the processor has the vectors; both are that long, and two.
                true => unsafe { by_vectors(source.as_ptr(), to[place..].as_mut_ptr(), length) },
                false => copy_slice(source, &mut to[place..place + length]),
            }
            assert_eq!(to[place..place + length], *source);
            let around = to[..place].iter().chain(&to[place + length..][..32]);
            assert!(around.copied().all(|byte| byte == 255), "{length} bytes");
            assert_eq!(copied(source), source);
        }
    }

    #[test]
    fn a_short_copy_copies_all_and_nothing_else() {
        let from: Vec<u8> = (1..=SHORTEST as u8).collect();
        for length in 0..=SHORTEST {
            // Exactly as long as it may read, for miri and address sanitizers.
            let source = from[..length].to_vec();
            let mut to = vec![0; length + 1];
            // SAFETY: both are that long, and two.
            unsafe { copy_short(source.as_ptr(), to.as_mut_ptr(), length) };
            assert_eq!(to[..length], source[..]);
            assert_eq!(to[length], 0);
        }
    }
}
