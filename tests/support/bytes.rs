//! Bytes that tests move. Where it is not optimised, a loop over them takes longer than all else: these are made and compared as memory.

use std::sync::OnceLock;

/// A prime: at places that are powers of two apart are other bytes.
const PERIOD: usize = 65_521;
const LONGEST: usize = 8 << 20;

/// One period of the bytes of a seed, behind which they begin anew. They are others for each seed below 65,521.
pub(crate) fn period(seed: u64) -> &'static [u8] {
    static TWICE: OnceLock<Vec<u8>> = OnceLock::new();
    let twice = TWICE.get_or_init(|| {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let period: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        period.repeat(2)
    });
    &twice[place(seed)..][..PERIOD]
}

/// Where in the first period the bytes of a seed begin.
fn place(seed: u64) -> usize {
    seed.wrapping_mul(7919) as usize % PERIOD
}

/// `length` bytes of a seed, at most 8 MiB.
pub(crate) fn bytes(seed: u64, length: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| period(0).repeat(1 + LONGEST.div_ceil(PERIOD)));
    &bytes[place(seed)..][..length]
}

/// The same in memory of their own, and as many as there may be.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let period = period(seed);
    if length <= PERIOD {
        return period[..length].to_vec();
    }
    let mut bytes = period.repeat(length.div_ceil(PERIOD));
    bytes.truncate(length);
    bytes
}

/// Whether each byte is this one.
pub(crate) fn all_are(bytes: &[u8], byte: u8) -> bool {
    bytes.first().is_none_or(|first| *first == byte)
        && bytes
            .get(1..)
            .is_none_or(|rest| *rest == bytes[..rest.len()])
}
