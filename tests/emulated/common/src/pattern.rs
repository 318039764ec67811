//! The bytes that an emulated device writes for a test, and how the test knows them again.

/// Byte `index` of the pattern `seed`: the highest byte of `(seed + index) × 0x9E3779B97F4A7C15`, wrapping.
pub const fn byte(seed: u64, index: u64) -> u8 {
    (seed.wrapping_add(index).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Fills `bytes` with the pattern from `index` on.
pub fn fill(bytes: &mut [u8], seed: u64, index: u64) {
    for (byte_at, place) in (index..).zip(bytes) {
        *place = byte(seed, byte_at);
    }
}

/// FNV-1a of `bytes`, going on from `state`; begin with [`EMPTY`].
pub fn digest(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The digest of no bytes.
pub const EMPTY: u64 = 0xCBF2_9CE4_8422_2325;
