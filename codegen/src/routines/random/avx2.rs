//! The same with AVX2: a quad's word in each 64-bit lane, since the rounds multiply 32 bits
//! into 64.

use super::QUADS;
use core::arch::x86_64 as x86;
use tracecast_ir::kernel::philox::{MULTIPLIERS, ROUNDS, next_key};

/// [`RandomFn`](super::super::tiles::RandomFn) for AVX2.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe extern "C" fn in_a_row(
    dst: *mut u8,
    n: usize,
    key: i64,
    step: i64,
    stream: u32,
    start: u64,
) {
    let side_by_side = |key, first| quads(key, first);
    // SAFETY: the caller's contract is that of `fill`.
    unsafe { super::fill(dst, n, (key, step, stream), start, side_by_side) }
}

#[target_feature(enable = "avx2")]
fn quads(key: [u32; 2], first: [u32; 4]) -> [u32; 4 * QUADS] {
    let all = |w: u32| x86::_mm256_set1_epi64x(i64::from(w));
    let mut sets = [[all(first[0]), all(first[1]), all(first[2]), all(first[3])]; QUADS / 4];
    for (s, c) in sets.iter_mut().enumerate() {
        let at = 4 * s as i64;
        c[0] = x86::_mm256_add_epi64(c[0], x86::_mm256_setr_epi64x(at, at + 1, at + 2, at + 3));
    }
    let multipliers = MULTIPLIERS.map(all);
    let mut key = key;
    for _ in 0..ROUNDS {
        let k = key.map(all);
        for c in &mut sets {
            let p0 = x86::_mm256_mul_epu32(multipliers[0], c[0]);
            let p1 = x86::_mm256_mul_epu32(multipliers[1], c[2]);
            let (high0, high1) =
                (x86::_mm256_srli_epi64::<32>(p0), x86::_mm256_srli_epi64::<32>(p1));
            // What is in the high halves of the low products is never read.
            c[0] = x86::_mm256_xor_si256(x86::_mm256_xor_si256(high1, c[1]), k[0]);
            c[2] = x86::_mm256_xor_si256(x86::_mm256_xor_si256(high0, c[3]), k[1]);
            (c[1], c[3]) = (p1, p0);
        }
        key = next_key(key);
    }
    let mut words = [0; 4 * QUADS];
    for (c, sixteen) in sets.iter().zip(words.as_chunks_mut::<16>().0) {
        // Words 0 and 1 of each quad side by side, words 2 and 3, then whole quads.
        let low = x86::_mm256_blend_epi32::<0xaa>(c[0], x86::_mm256_slli_epi64::<32>(c[1]));
        let high = x86::_mm256_blend_epi32::<0xaa>(c[2], x86::_mm256_slli_epi64::<32>(c[3]));
        let even = x86::_mm256_unpacklo_epi64(low, high);
        let odd = x86::_mm256_unpackhi_epi64(low, high);
        let halves = [
            x86::_mm256_permute2x128_si256::<0x20>(even, odd),
            x86::_mm256_permute2x128_si256::<0x31>(even, odd),
        ];
        for (half, eight) in halves.into_iter().zip(sixteen.as_chunks_mut::<8>().0) {
            // SAFETY: eight words, unaligned.
            unsafe { x86::_mm256_storeu_si256(eight.as_mut_ptr().cast(), half) };
        }
    }
    words
}
