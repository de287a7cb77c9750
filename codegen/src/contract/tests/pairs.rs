//! bf16 multiplied in pairs that an image holds: an odd last step, and subnormal sums.

use super::super::im2col::{Axis, Bound, MOST_BOUNDS, Seen};
use super::super::{Correlation, Cpu, Elements, Image, Scratch, Source};
use super::{Tensor, check, images, sum, through_windows, windows_over};
use tracecast_ir::DType;

/// Rows of the left operands, and such that are vectors across rows.
const M: usize = 17;
const ACROSS: usize = 32;

/// Compares the sums of a correlation, with windows in two parts, with `want`, on every CPU.
fn compare(
    [a, b]: [Source<'_>; 2],
    [m, k, n, windows]: [usize; 4],
    want: impl Fn(usize) -> u64,
    what: &str,
    scratch: &mut Scratch,
) {
    for cpu in &Cpu::all() {
        let work = Correlation {
            across: (m == ACROSS).then_some([0, m]),
            pairs: cpu.pairs,
            ..images::correlation(cpu, [m, k], [a, b])
        };
        let parts = [0..windows / 3, windows / 3..windows].map(|part| (0..1, part));
        let found = images::handed_on(&work, parts, &|_| [0, 0], [m, n], scratch);
        for (i, bits) in found.into_iter().enumerate() {
            assert_eq!(bits.map(u64::from), Some(want(i)), "{what}, at {i}, {cpu:?}");
        }
    }
}

#[test]
fn pairs_in_images_have_the_sums_of_windows() {
    let mut scratch = Scratch::default();
    let ways = [(1, 1), (2, 1), (1, 2), (2, -1)];
    let cases = ways.into_iter().flat_map(|way| [(7, 0), (7, -65), (60, -65)].map(|c| (way, c)));
    for ((stride, dilation), (channels, exponent)) in cases {
        let (x, _, all, [_, n]) = through_windows(DType::BF16, None, stride, dilation);
        let (x, k) = (x.scaled(exponent), channels * 9);
        let seen = windows_over(channels, stride, dilation);
        let base = x.bytes.as_ptr().wrapping_offset(-2 * (21 + 1) * 2);
        let b =
            Source::Windows { of: Elements { base, dtype: DType::BF16, round: None }, seen: &seen };
        let left = Tensor::new(DType::BF16, M * k, 46, (k as isize, 1)).scaled(exponent);
        let image = Image::of(&seen, None).expect("windows of a convolution");
        let windows = image.windows()[0];
        assert_eq!(image.interleaved().map(|image| image.depth()), Some(2), "has few blocks");
        let want = |i: usize| {
            let right = |p: usize| all[p * n + i % n] * 2f64.powi(exponent);
            sum(DType::F32, k, |p| left.get(i / n, p), right)
        };
        let what = format!("{channels} channels, by {stride}, {dilation} apart");
        compare([left.source(), b], [M, k, n, windows], want, &what, &mut scratch);
    }
}

/// Lines of blocks that are narrower than a vector: nothing is written into the next block.
#[test]
fn narrow_blocks_of_pairs() {
    let mut scratch = Scratch::default();
    let axis =
        |extent: usize, stride: usize| Axis { extent, stride: stride as isize, ..Axis::default() };
    for ([height, width], [down, across]) in
        [([40, 16], [2, 2]), ([60, 8], [2, 1]), ([37, 21], [1, 2])]
    {
        let (planes, plane) = (3, height * width);
        let [lines, columns] = [(height - 3) / down + 1, (width - 3) / across + 1];
        let (k, n) = (planes * 9, lines * columns);
        let rows = [axis(planes, plane), axis(3, width), axis(3, 1)];
        let of_columns = [axis(lines, down * width), axis(columns, across)];
        let seen = Seen::new(&rows, &of_columns, [Bound::default(); MOST_BOUNDS]);
        let x = Tensor::new(DType::BF16, planes * plane, 47, (1, 1));
        let b = Source::Windows {
            of: Elements { base: x.bytes.as_ptr(), dtype: DType::BF16, round: None },
            seen: &seen,
        };
        let left = Tensor::new(DType::BF16, M * k, 48, (k as isize, 1));
        let image = Image::of(&seen, None).expect("windows of a convolution");
        let windows = image.windows()[0];
        assert_eq!(image.interleaved().map(|image| image.depth()), Some(2), "has few blocks");
        let want = |i: usize| {
            let right = |p: usize| {
                let (row, column) =
                    (i % n / columns * down + p % 9 / 3, i % columns * across + p % 3);
                x.get(p / 9 * plane + row * width + column, 0)
            };
            sum(DType::F32, k, |p| left.get(i / n, p), right)
        };
        let what = format!("planes of {height} by {width}, by {down} and {across}");
        compare([left.source(), b], [M, k, n, windows], want, &what, &mut scratch);
    }
}

#[test]
fn pairs_of_channels_are_one_image() {
    let mut scratch = Scratch::default();
    // With 60 channels, the second block of steps begins within a pair of channels.
    let cases =
        [(1, 1), (2, 1), (1, 2), (2, -1)].into_iter().flat_map(|way| [2, 8, 60].map(|c| (way, c)));
    let cases = cases.flat_map(|case| [M, ACROSS].map(|m| (case, m)));
    for (((stride, dilation), channels), m) in cases {
        let (x, _, all, [_, n]) = through_windows(DType::BF16, None, stride, dilation);
        let k = channels * 9;
        let plain = windows_over(channels, stride, dilation);
        let [planes, down, across] = plain.rows[..] else { panic!("{:?}", plain.rows) };
        let axis = |extent, stride| Axis { extent, stride, ..Axis::default() };
        let [of_two, two] = [axis(channels / 2, 2 * planes.stride), axis(2, planes.stride)];
        let seen = Seen::new(&[of_two, down, across, two], &plain.columns, plain.bounds);
        let weights = [axis(channels / 2, 18), axis(9, 1), axis(2, 9)];
        let weights = Seen::new(&[axis(m, k as isize)], &weights, [Bound::default(); MOST_BOUNDS]);
        let base = x.bytes.as_ptr().wrapping_offset(-2 * (21 + 1) * 2);
        let b =
            Source::Windows { of: Elements { base, dtype: DType::BF16, round: None }, seen: &seen };
        let left = Tensor::new(DType::BF16, m * k, 46, (k as isize, 1));
        let a = Source::Windows {
            of: Elements { base: left.bytes.as_ptr(), dtype: DType::BF16, round: None },
            seen: &weights,
        };
        let image = Image::of(&seen, None).expect("windows of a convolution").in_pairs();
        assert_eq!(image.depth(), 2);
        let windows = image.windows()[0];
        let in_memory = |p: usize| p / 18 * 18 + p % 2 * 9 + p % 18 / 2;
        let want = |i: usize| {
            let right = |p: usize| all[in_memory(p) * n + i % n];
            sum(DType::F32, k, |p| left.get(i / n, in_memory(p)), right)
        };
        let what = format!("{m} rows, {channels} channels, by {stride}, {dilation} apart");
        compare([a, b], [m, k, n, windows], want, &what, &mut scratch);
    }
}

#[test]
fn tiny_numbers_of_bf16() {
    for (scale_a, scale_b) in [(-120, 0), (-60, -70), (-45, -40), (-63, -63), (-130, 3)] {
        let scaled = |seed, scale: i32, strides| {
            Tensor::new(DType::BF16, 40 * 70, seed, strides).scaled(scale)
        };
        check(
            DType::F32,
            (40, 40, 70),
            &scaled(24, scale_a, (70, 1)),
            &scaled(25, scale_b, (1, 70)),
        );
        // Few rows, which read columns in place.
        let rows = scaled(24, scale_a, (70, 1));
        check(DType::F32, (20, 40, 70), &rows, &scaled(25, scale_b, (40, 1)));
        // The sums of a block are added to those of the one before.
        let long =
            |seed, scale, strides| Tensor::new(DType::BF16, 32 * 600, seed, strides).scaled(scale);
        let rows = long(34, scale_a, (600, 1));
        check(DType::F32, (20, 32, 600), &rows, &long(35, scale_b, (32, 1)));
    }
    // A few products are tiny, and no sum is.
    let some = |seed, strides| Tensor::new(DType::BF16, 32 * 600, seed, strides).scaled(-55);
    check(DType::F32, (20, 32, 600), &some(36, (600, 1)), &some(37, (32, 1)));
}
