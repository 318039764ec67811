//! Copies of bytes, of lengths that messages and their parts have.
//!
//! The C library copies 4 KiB to some hundreds of them by `rep movsb`. Where the target lies a few bytes further into its page than the source, as a `Vec` of
//! some size does beside memory that begins at a page, that takes twenty times as long on AMD's Zen 3: 2.1 GB/s for any length from 4 to 512 KiB, where a
//! loop of vector moves has 26 to 45 (glibc 2.36, 26 November 2026); and half as long again for memory in the nearest caches elsewhere. So such a loop is what is
//! used here, where the processor has the vectors. By those of 64 bytes 4 KiB that lie in caches take four fifths of the time on a Zen 5 (28 November 2026). A Zen 4
//! moves them in two halves each, and takes 37 ns with them, 42 where the source lies across lines, where those of 32 bytes take 35 in both cases; an Intel one of
//! the fifth generation of Xeons takes 22 and 28 by the wide ones, 25 and 34 by the others (30 November 2026): so only a processor that is known to gain uses them.
//!
//! What another processor has read or written last may be copied in other ways ([`Across`]), between which its caller chooses by what they take:
//!
//! * `rep movsb` has no such trap on later processors of AMD's, and takes whole lines over from another processor without reading them first: two processors of
//!   a Zen 5 that copy 64 KiB in and out of common memory take 2.3 us where they take 7.3 with the loop while a line takes 270 ns from one to the other, 1.04
//!   and 1.2 us while it takes 55 (28 November 2026). Below 8 KiB it takes half the time in the first case (300 ns instead of 610, 4 KiB) and up to a tenth
//!   more in the second. Not where it reads what another processor wrote, which is no faster: some byte streams, whose targets begin anywhere, took twice as
//!   long; why was not found out.
//! * Stores past the caches leave the bytes in memory, from where their reader has them without asking this processor. Two of a Zen 4 that copy 32 KiB at a time
//!   in and out of common memory do 2.1 GB/s by the loop and by `rep movsb` alike while a line takes 200 to 300 ns from one to the other, and 15 to 20 so
//!   (4 KiB: 2.1 and 11); while it takes 75 to 90, 18 to 20 and 16 (30 November 2026).
//!
//! # Safety
//! [`copy`] is `ptr::copy_nonoverlapping`, and asks the same of its caller.
#![allow(unsafe_code)]

use std::ptr;
#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use bytes::BufMut;

/// Not in builds that look for mistakes: sanitizers see what the C library's copy is given, and the loop is slow unoptimised.
const IN_USE: bool = cfg!(not(any(debug_assertions, fuzzing, miri)));
/// From this length on the loop is used: a shorter copy is made by vectors in the C library too.
const LOOP: usize = 1024;
/// Bytes that processors give each other at a time.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
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

/// How bytes go to memory whose lines another processor has read or written last. Its reader has them once the next store with release is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Across {
    /// As [`copy`].
    Plain,
    /// By `rep movsb`, where the target begins with a line.
    String,
    /// Past the caches.
    Past,
}

impl Across {
    /// Whether this processor has it; and for `rep movsb`, whether it is one that is known to do it well.
    pub(crate) fn is_here(self) -> bool {
        match self {
            Self::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Self::String => IN_USE && *BY_STRING,
            #[cfg(target_arch = "x86_64")]
            Self::Past => IN_USE && is_x86_feature_detected!("avx"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// As [`copy`], in one of several ways.
///
/// # Safety
/// As for [`copy`]; and the way [is here](Across::is_here).
#[inline]
pub(crate) unsafe fn copy_across(from: *const u8, to: *mut u8, length: usize, how: Across) {
    // SAFETY: the caller's promise.
    unsafe {
        match how {
            Across::Plain => copy(from, to, length),
            how => copy_lines(from, to, length, how),
        }
    }
}

/// As [`copy_across`], not the plain way.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn copy_lines(from: *const u8, to: *mut u8, length: usize, how: Across) {
    #[cfg(target_arch = "x86_64")]
    {
        let before = to.align_offset(LINE);
        if how == Across::String && before == 0 {
            // SAFETY: the caller's promise.
            return unsafe { by_string(from, to, length) };
        }
        if how == Across::Past && length >= LOOP {
            // SAFETY: the caller's promise; the way is here, and no more is left out in front than a line, and than there is.
            return unsafe {
                ptr::copy_nonoverlapping(from, to, before);
                past_caches(from.add(before), to.add(before), length - before);
            };
        }
    }
    let _ = how;
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, length) }
}

/// Copies past the caches, and waits until that is seen before what is stored after it.
///
/// # Safety
/// As for [`copy`], to where a line begins. The processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn past_caches(from: *const u8, to: *mut u8, length: usize) {
    use std::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    let whole = length / LINE * LINE;
    let mut at = 0;
    while at < whole {
        // SAFETY: a line is left of both, and begins here in the target.
        unsafe {
            let (from, to) = (from.add(at).cast(), to.add(at).cast());
            let (first, second) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, first);
            _mm256_stream_si256(to.add(1), second);
        }
        at += LINE;
    }
    // SAFETY: what is left of both.
    unsafe { ptr::copy_nonoverlapping(from.add(whole), to.add(whole), length - whole) };
    #[allow(
        unused_unsafe,
        reason = "Rust 1.91 has this as unsafe, without a condition"
    )]
    // SAFETY: every processor with the instructions above has it.
    unsafe {
        _mm_sfence();
    }
}

/// As [`copy`], of a length for the loop. Not in line: who copies a few bytes has nothing to keep for it.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if *BY_WIDE && is_x86_feature_detected!("avx512f") {
            // SAFETY: the caller's promise; the processor has the vectors, and there are no fewer bytes than the loop takes at a time.
            return unsafe { by_wide_vectors(from, to, length) };
        }
        if is_x86_feature_detected!("avx") {
            // SAFETY: as above.
            return unsafe { by_vectors(from, to, length) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, length) }
}

/// Whether the processor is one of this maker's, by the name that it gives.
#[cfg(target_arch = "x86_64")]
fn is_by(maker: &[u8; 12]) -> bool {
    // SAFETY: every processor with 64 bits has it. Later compilers know.
    #[allow(unused_unsafe)]
    let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() == maker
}

#[cfg(target_arch = "x86_64")]
const AMD: &[u8; 12] = b"AuthenticAMD";
#[cfg(target_arch = "x86_64")]
const INTEL: &[u8; 12] = b"GenuineIntel";

/// Whether [`by_string`] is at its best: AMD's processors from the one on that brought this instruction (Zen 4). Others have not been looked at.
#[cfg(target_arch = "x86_64")]
static BY_STRING: LazyLock<bool> =
    LazyLock::new(|| is_by(AMD) && is_x86_feature_detected!("avx512vbmi2"));

/// Whether [`by_wide_vectors`] is: AMD's from the one on that brought one instruction (Zen 5; those of its family that move such vectors in halves have not
/// been looked at), Intel's from the one on that brought another (Ice Lake: earlier ones run slower while they use such vectors).
#[cfg(target_arch = "x86_64")]
static BY_WIDE: LazyLock<bool> = LazyLock::new(|| {
    is_by(AMD) && is_x86_feature_detected!("avx512vp2intersect")
        || is_by(INTEL) && is_x86_feature_detected!("avx512vbmi2")
});

/// Copies by one instruction.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn by_string(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, as everywhere between functions. It writes in any order, but before all that is
    // written after it.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Makes a copy by vectors of one kind, four of them at a time, for no fewer bytes than these.
///
/// Word by word, not by iterators: those are not made for the vectors, and whether they are compiled into this depends on how the program is built.
#[cfg(target_arch = "x86_64")]
macro_rules! by_fours {
    ($(#[$about:meta])* $name:ident, $feature:literal, $vector:ident, $load:ident, $store:ident) => {
        $(#[$about])*
        ///
        /// # Safety
        /// As for [`copy`], of no fewer bytes than four vectors. The processor has them.
        #[target_feature(enable = $feature)]
        unsafe fn $name(from: *const u8, to: *mut u8, length: usize) {
            use std::arch::x86_64::{$load, $store, $vector};

            const BLOCK: usize = 4 * size_of::<$vector>();
            const _: () = assert!(BLOCK <= LOOP);
            let block = |at: usize| {
                // SAFETY: the caller's promise: there is room for four vectors from here on. Neither need be aligned.
                unsafe {
                    let (from, to) = (from.add(at).cast::<$vector>(), to.add(at).cast::<$vector>());
                    let (first, second) = ($load(from), $load(from.add(1)));
                    let (third, fourth) = ($load(from.add(2)), $load(from.add(3)));
                    $store(to, first);
                    $store(to.add(1), second);
                    $store(to.add(2), third);
                    $store(to.add(3), fourth);
                }
            };
            let mut at = 0;
            while at + BLOCK <= length {
                block(at);
                at += BLOCK;
            }
            // The last ones, and some a second time.
            block(length - BLOCK);
        }
    };
}

#[cfg(target_arch = "x86_64")]
by_fours! {
    /// Copies by vectors of 32 bytes.
    by_vectors, "avx", __m256i, _mm256_loadu_si256, _mm256_storeu_si256
}

#[cfg(target_arch = "x86_64")]
by_fours! {
    /// Copies by vectors of 64 bytes.
    by_wide_vectors, "avx512f", __m512i, _mm512_loadu_si512, _mm512_storeu_si512
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

/// As [`copy_slice`], a part of so many bytes: past the caches where those would not stay there, as the C library copies as many at once. Two processors of a
/// Zen 4 that copy 32 KiB at a time through common memory into 32 MiB do 10 to 11 GB/s else, and 18 to 22 so (30 November 2026).
///
/// # Panics
/// As there.
#[inline]
pub(crate) fn copy_part(from: &[u8], to: &mut [u8], whole: usize) {
    assert_eq!(from.len(), to.len(), "two slices of one length");
    let how = match whole >= LONG && Across::Past.is_here() {
        true => Across::Past,
        false => Across::Plain,
    };
    // SAFETY: both are that long, and one is borrowed alone; the way is here.
    unsafe { copy_across(from.as_ptr(), to.as_mut_ptr(), from.len(), how) }
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

    #[test]
    fn a_copy_of_any_length_copies_all_and_nothing_else() {
        copies_all_and_nothing_else(copy);
        #[cfg(target_arch = "x86_64")]
        {
            if !cfg!(miri) {
                copies_all_and_nothing_else(by_string);
            }
            if is_x86_feature_detected!("avx") {
                copies_all_and_nothing_else(by_vectors);
            }
            if is_x86_feature_detected!("avx512f") {
                copies_all_and_nothing_else(by_wide_vectors);
            }
            if is_x86_feature_detected!("avx") && !cfg!(miri) {
                // SAFETY: the promise of whoever calls it.
                copies_all_and_nothing_else(|from, to, length| unsafe {
                    copy_lines(from, to, length, Across::Past);
                });
            }
        }
    }

    fn copies_all_and_nothing_else(long: unsafe fn(*const u8, *mut u8, usize)) {
        let lengths = (0..300).chain(LOOP - 3..LOOP + 300);
        let lengths = lengths.chain([5000, 65_535, 65_536, LONG - 1, LONG]);
        let from: Vec<u8> = (0..LONG + 16).map(|at| (at % 251) as u8).collect();
        let mut to = vec![0; LONG + 64];
        for (round, length) in lengths.enumerate() {
            let (source, place) = (&from[round % 16..][..length], round * 7 % 32);
            to[..place + length + 32].fill(255);
            let target = &mut to[place..place + length];
            match length >= LOOP {
                // SAFETY: the processor has the vectors; both are that long, and two.
                true => unsafe { long(source.as_ptr(), target.as_mut_ptr(), length) },
                false => copy_slice(source, target),
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
