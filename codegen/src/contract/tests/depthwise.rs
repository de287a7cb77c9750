//! Depthwise convolutions, which may read their input in place.

use super::super::{Axis, Bound, Correlation, Cpu, Elements, Scratch, Seen, SideBySide, Source};
use super::{Tensor, images, sum};
use tracecast_ir::DType;
use tracecast_ir::kernel::half;

/// Channels, and examples of each.
const CHANNELS: usize = 19;
const EXAMPLES: usize = 3;

#[test]
fn depthwise_convolutions_have_the_sums_of_windows() {
    for dtype in [DType::F32, DType::BF16] {
        for taps in [3, 5] {
            for (step, dilation) in [(1, 1), (2, 1), (1, -1)] {
                for [height, width] in [[7, 7], [9, 14], [6, 16], [5, 20], [8, 41]] {
                    depthwise(dtype, taps, [step, dilation], [height, width]);
                }
            }
        }
    }
}

fn depthwise(dtype: DType, taps: usize, [step, dilation]: [isize; 2], size: [usize; 2]) {
    let around = taps as isize / 2;
    let [height, width] = size.map(|size| size as isize);
    let counts = size.map(|size| ((size as isize - 1) / step + 1) as usize);
    let axis = |extent: usize, stride: isize, bounded: [isize; 3]| Axis { extent, stride, bounded };
    let rows =
        [axis(taps, dilation * width, [dilation, 0, 0]), axis(taps, dilation, [0, dilation, 0])];
    let columns =
        [axis(counts[0], step * width, [step, 0, 0]), axis(counts[1], step, [0, step, 0])];
    // The first position of the first window.
    let first = -around * dilation;
    let bound = |extent: usize| Bound { offset: first, extent: extent as isize };
    let seen = Seen::new(&rows, &columns, [bound(size[0]), bound(size[1]), Bound::default()]);
    let (plane, k, n) = (size[0] * size[1], taps * taps, counts[0] * counts[1]);
    let x = Tensor::new(dtype, EXAMPLES * CHANNELS * plane, 21, (plane as isize, 1));
    let left = Tensor::new(dtype, CHANNELS * k, 22, (k as isize, 1));
    let base = x.bytes.as_ptr().wrapping_offset(first * (width + 1) * dtype.bytes() as isize);
    let (a, b) =
        (left.source(), Source::Windows { of: Elements { base, dtype, round: None }, seen: &seen });
    let at = |batch: usize| [(batch % CHANNELS * k) as isize, (batch * plane) as isize];
    let (all, lines) = (EXAMPLES * CHANNELS, counts[0]);
    let mut scratch = Scratch::default();
    let side = SideBySide { count: CHANNELS, stride: plane as isize, few: false };
    let all_cpus = Cpu::all();
    let ways = all_cpus.iter().flat_map(|cpu| [(cpu, None), (cpu, Some(side))]);
    for (cpu, beside) in ways {
        let work =
            Correlation { period: CHANNELS, beside, ..images::correlation(cpu, [1, k], [a, b]) };
        let parts = [
            (0..1, 0..lines),
            (1..all - 2, 0..2),
            (1..all - 2, 2..lines),
            (all - 2..all, 0..lines),
        ];
        let found = images::handed_on(&work, parts, &at, [all, n], &mut scratch);
        let each = [0..lines / 2, lines / 2..lines];
        let stored = images::stored(&work, (0..all, each), &at, n, &mut scratch);
        assert_eq!(found, stored, "stored as they are by {cpu:?}");
        for (i, bits) in found.iter().enumerate() {
            let (batch, column) = (i / n, i % n);
            let right = |p: usize| {
                let [y, z] = [column / counts[1], column % counts[1]];
                let [t, c] = [p / taps, p % taps];
                let place = |window: usize, tap: usize| {
                    first + window as isize * step + tap as isize * dilation
                };
                let [y, z] = [place(y, t), place(z, c)];
                let is_there = (0..height).contains(&y) && (0..width).contains(&z);
                if is_there { x.get(batch, (y * width + z) as usize) } else { 0.0 }
            };
            let want = sum(DType::F32, k, |p| left.get(batch % CHANNELS, p), right);
            assert_eq!(
                bits.map(u64::from),
                Some(want),
                "{dtype} {taps} {step} {dilation} {size:?}, {batch}, {column}, {cpu:?}"
            );
        }
        if work.is_depthwise() && work.rounds() {
            let rounded = images::rounded(&work, (0..all, 0..lines), &at, n, &mut scratch);
            let want =
                found.iter().map(|bits| half::f32_to_bf16(f32::from_bits(bits.expect("a sum"))));
            assert_eq!(rounded, want.collect::<Vec<_>>(), "rounded by {cpu:?}");
        }
    }
}
