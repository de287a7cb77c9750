//! Tiles of Philox words.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;

use tracecast_ir::kernel::philox::{philox, random_bits};

/// How many quads are computed side by side.
const QUADS: usize = 8;

/// Portable [`RandomFn`](super::tiles::RandomFn).
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
