//! Tiles of Philox words.

use tracecast_ir::kernel::philox::{philox, random_bits};

/// How many quads are computed side by side.
const QUADS: usize = 8;

/// Portable [`RandomFn`](super::RandomFn).
pub(super) unsafe extern "C" fn in_a_row(
    dst: *mut u8,
    n: usize,
    key: i64,
    step: i64,
    stream: u32,
    start: u64,
) {
    // SAFETY: the caller's contract is that of `fill`.
    unsafe { fill(dst, n, (key, step, stream), start, quads) }
}

/// Writes the words of `n` elements from `start` on.
///
/// # Safety
///
/// `dst` must be writable for `n` u32.
#[inline(always)]
pub(super) unsafe fn fill(
    dst: *mut u8,
    n: usize,
    (key, step, stream): (i64, i64, u32),
    start: u64,
    quads: impl Fn([u32; 2], [u32; 4]) -> [u32; 4 * QUADS],
) {
    let put = |i: usize, word: u32| {
        // SAFETY: called with `i < n` only.
        unsafe { dst.cast::<u32>().wrapping_add(i).write_unaligned(word) };
    };
    let head = (start.wrapping_neg() % 4).min(n as u64) as usize;
    for i in 0..head {
        put(i, random_bits(key, step, stream, start.wrapping_add(i as u64)));
    }
    let mut i = head;
    while n - i >= 4 * QUADS {
        let quad = start.wrapping_add(i as u64) / 4;
        // The lanes' counters differ in the low word alone, which must not wrap among them.
        if quad as u32 > u32::MAX - QUADS as u32 {
            break;
        }
        let words = quads(halves(key), counter(step, stream, quad));
        let to = dst.wrapping_add(4 * i).cast::<[u32; 4 * QUADS]>();
        // SAFETY: that many elements remain.
        unsafe { to.write_unaligned(words) };
        i += 4 * QUADS;
    }
    while i < n {
        let element = start.wrapping_add(i as u64);
        let four = philox(counter(step, stream, element / 4), halves(key));
        for (w, word) in four.into_iter().enumerate().take(n - i) {
            put(i + w, word);
        }
        i += 4;
    }
}

fn halves(key: i64) -> [u32; 2] {
    [key as u32, (key >> 32) as u32]
}

#[inline(always)]
fn counter(step: i64, stream: u32, quad: u64) -> [u32; 4] {
    [quad as u32, (quad >> 32) as u32, step as u32, stream]
}

/// The words of consecutive quads from a counter on.
#[inline(always)]
fn quads(key: [u32; 2], first: [u32; 4]) -> [u32; 4 * QUADS] {
    let mut words = [0; 4 * QUADS];
    for (lane, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *four = philox([first[0] + lane as u32, first[1], first[2], first[3]], key);
    }
    words
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    //! The same with AVX2: a quad's word in each 64-bit lane, since the rounds multiply 32 bits
    //! into 64.

    use super::QUADS;
    use core::arch::x86_64 as x86;
    use tracecast_ir::kernel::philox::{MULTIPLIERS, ROUNDS, next_key};

    /// [`RandomFn`](super::super::RandomFn) for AVX2.
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
}
