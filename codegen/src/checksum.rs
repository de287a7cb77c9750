//! A hash of bytes that stays the same from process to process: names and checks files of compiled
//! code, and identifies targets.

/// The 128-bit hash FNV-1a: <http://www.isthe.com/chongo/tech/comp/fnv/>. Every change of a single
/// byte changes it.
pub(crate) fn checksum(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
