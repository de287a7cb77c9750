//! Convolutions whose lines are whole vectors store sums line by line, rounded or not.

use super::super::{Axis, Bound, Correlation, Cpu, Elements, Image, Scratch, Seen, Source};
use super::{Tensor, images};
use tracecast_ir::DType;
use tracecast_ir::kernel::{half, math};

const EXAMPLES: usize = 3;
const HEIGHT: usize = 7;
/// Lanes of f32 in the widest vectors.
const MOST_LANES: usize = 16;

#[test]
fn sums_stored_line_by_line_are_those_handed_on() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (channels, step) in [(3, 1), (4, 1), (3, 2)] {
            // Some of these are whole vectors of each CPU, of one of them, or of none.
            for width in [16, 24, 48, 21] {
                [2, 17].into_iter().for_each(|m| lines(dtype, [m, channels, width], (3, step)));
            }
            // Lines of 1 × 1 windows are contiguous: all columns of a band are whole vectors, or
            // not.
            for width in [8, 12, 9] {
                [2, 17].into_iter().for_each(|m| lines(dtype, [m, channels, width], (1, step)));
            }
        }
    }
}

#[test]
fn lines_that_overlap_beside_a_gap() {
    // Lines of 40 windows have stride 24, since their ends read zeros alone, and planes have stride
    // 96: as many numbers as if none were computed in vain.
    let axis = |extent: usize, stride: isize, bounded: [isize; 3]| Axis { extent, stride, bounded };
    let (channels, m, n) = (16, 17, 2 * 2 * 40);
    let rows = [axis(channels, 64, [0; 3]), axis(3, 8, [1, 0, 0])];
    let columns = [axis(2, 32, [0; 3]), axis(2, 8, [1, 0, 0]), axis(40, 1, [0, 1, 0])];
    let bound = |offset, extent| Bound { offset, extent };
    let seen = Seen::new(&rows, &columns, [bound(0, 4), bound(-16, 8), Bound::default()]);
    let k = channels * 3;
    for dtype in [DType::F32, DType::BF16] {
        let x = Tensor::new(dtype, channels * 64, 23, (8, 1));
        let left = Tensor::new(dtype, m * k, 24, (k as isize, 1));
        let base = x.bytes.as_ptr().wrapping_offset(-16 * dtype.bytes() as isize);
        let (a, b) = (
            left.source(),
            Source::Windows { of: Elements { base, dtype, round: None }, seen: &seen },
        );
        let image = Image::of(&seen, None).expect("windows of a convolution");
        let [windows, _] = image.windows();
        let mut scratch = Scratch::default();
        for cpu in &Cpu::all() {
            let work = images::correlation(cpu, [m, k], [a, b]);
            let found =
                images::handed_on(&work, [(0..1, 0..windows)], &|_| [0; 2], [m, n], &mut scratch);
            for (i, found) in found.iter().enumerate() {
                let (row, column) = (i / n, i % n);
                let [plane, line, at] = [column / 80, column / 40 % 2, column % 40];
                let mut want = 0f32;
                for p in 0..k {
                    let place = [p / 3 * 64, plane * 32, (line + p % 3) * 8].iter().sum::<usize>();
                    let is_there = (16..24).contains(&at);
                    let seen = if is_there { x.get(0, place + at - 16) } else { 0.0 };
                    want = math::fma(left.get(row, p) as f32, seen as f32, want);
                }
                assert_eq!(*found, Some(want.to_bits()), "row {row}, column {column}, {cpu:?}");
            }
            let all = (0..1, [0..windows, windows..windows]);
            let stored = images::stored(&work, all, &|_| [0; 2], n, &mut scratch);
            assert_eq!(found, stored, "{dtype} by {cpu:?}");
        }
    }
}

fn lines(dtype: DType, sizes: [usize; 3], windows: (usize, isize)) {
    lines_scaled((dtype, 0), sizes, windows);
    // Sums that may be subnormal.
    if dtype == DType::BF16 {
        lines_scaled((dtype, -65), sizes, windows);
    }
}

fn lines_scaled(
    (dtype, exponent): (DType, i32),
    [m, channels, width]: [usize; 3],
    (taps, step): (usize, isize),
) {
    let width = width * step as usize;
    let plane = (HEIGHT * width) as isize;
    let counts = [HEIGHT.div_ceil(step as usize), width / step as usize];
    let axis = |extent: usize, stride: isize, bounded: [isize; 3]| Axis { extent, stride, bounded };
    let w = width as isize;
    let (is_single, edge) = (taps == 1, taps as isize / 2);
    let moves = |bounded: [isize; 3]| if is_single { [0; 3] } else { bounded };
    let rows = [axis(channels, plane, [0; 3]), axis(3, w, [1, 0, 0]), axis(3, 1, [0, 1, 0])];
    let rows = if is_single { &rows[..1] } else { &rows[..] };
    let down = axis(counts[0], step * w, moves([step, 0, 0]));
    let across = axis(counts[1], step, moves([0, step, 0]));
    let bound = |extent: usize| match is_single {
        true => Bound::default(),
        false => Bound { offset: -1, extent: extent as isize },
    };
    let seen = Seen::new(rows, &[down, across], [bound(HEIGHT), bound(width), Bound::default()]);
    let (k, n) = (channels * taps * taps, counts[0] * counts[1]);
    let size = channels * HEIGHT * width;
    let scaled = |x: Tensor| if exponent == 0 { x } else { x.scaled(exponent) };
    let x = scaled(Tensor::new(dtype, EXAMPLES * size, 21, (w, 1)));
    let left = scaled(Tensor::new(dtype, m * k, 22, (k as isize, 1)));
    let base = x.bytes.as_ptr().wrapping_offset(-(w + 1) * edge * dtype.bytes() as isize);
    let (a, b) =
        (left.source(), Source::Windows { of: Elements { base, dtype, round: None }, seen: &seen });
    let at = |batch: usize| [0, (batch * size) as isize];
    let image = Image::of(&seen, None).expect("windows of a convolution");
    let [windows, _] = image.windows();
    let has_pairs = m > 1 && a.is_bf16() && b.is_bf16() && image.interleaved().is_some();
    let mut scratch = Scratch::default();
    for cpu in &Cpu::all() {
        let pairs = cpu.pairs && has_pairs;
        let work = Correlation { pairs, ..images::correlation(cpu, [m, k], [a, b]) };
        let parts = || [0..2, 2..windows];
        let each = parts().map(|part| (0..EXAMPLES, part));
        let found = images::handed_on(&work, each, &at, [EXAMPLES * m, n], &mut scratch);
        let stored = images::stored(&work, (0..EXAMPLES, parts()), &at, n, &mut scratch);
        assert_eq!(found, stored, "{m} rows, {width} wide, by {cpu:?}");
        let columns = if is_single { n } else { counts[1] };
        if columns.is_multiple_of(MOST_LANES) {
            let all = (0..EXAMPLES, 0..windows);
            let rounded = images::rounded(&work, all, &at, n, &mut scratch);
            let want =
                found.iter().map(|bits| half::f32_to_bf16(f32::from_bits(bits.expect("a sum"))));
            assert_eq!(rounded, want.collect::<Vec<_>>(), "{m} rows, {width} wide, by {cpu:?}");
        }
    }
}
