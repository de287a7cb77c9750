//! Depthwise weight gradients have the bits of their definition.

use super::super::{
    Axis, Bound, Cpu, Driver, Elements, LinesOfWindows, MOST_BOUNDS, OverLines, Scratch, Seen,
    Source,
};
use super::{Tensor, sum};
use std::ops::Range;
use tracecast_ir::DType;

/// Channels, which are lines of batches.
const CHANNELS: usize = 3;

/// How windows move over planes.
#[derive(Clone, Copy, Debug)]
struct Moves {
    examples: usize,
    /// Rows and columns of a plane, and lines and windows of each.
    size: [usize; 2],
    counts: [usize; 2],
    step: usize,
    /// Padding before the first row and column.
    low: [isize; 2],
    /// Stride of elements.
    apart: isize,
}

#[test]
fn lines_of_windows_have_the_sums_of_their_chains() {
    let all = [
        // One vector and more of all widths, a window more than these, and lines that fill none.
        ([4, 16], [4, 16], 1, [1, 1]),
        ([5, 33], [5, 33], 1, [1, 1]),
        ([7, 28], [5, 26], 1, [0, 0]),
        ([9, 50], [4, 24], 2, [0, 0]),
        ([8, 56], [4, 28], 2, [1, 1]),
        ([11, 41], [6, 21], 2, [1, 1]),
        // Lines that are shorter than a vector, and rows as short as a window.
        ([7, 7], [7, 7], 1, [1, 1]),
        ([14, 14], [7, 7], 2, [1, 1]),
        ([5, 3], [5, 2], 1, [1, 0]),
        ([4, 1], [4, 3], 1, [1, 2]),
        // Padding that differs by axis, and lines and windows that read nothing else.
        ([2, 17], [9, 40], 1, [3, 11]),
        ([3, 16], [8, 40], 2, [7, 35]),
        // Blocks of steps that end within a plane.
        ([150, 18], [150, 18], 1, [1, 1]),
    ];
    let dtypes = [
        (DType::F32, None, DType::F32),
        (DType::BF16, None, DType::F32),
        (DType::F16, None, DType::F32),
        (DType::F32, Some(DType::BF16), DType::F32),
        (DType::F64, None, DType::F64),
    ];
    for (size, counts, step, low) in all {
        for ((dtype, round, acc), (examples, apart)) in
            dtypes.into_iter().flat_map(|of| [(1, 1), (4, 1), (2, 3)].map(|how| (of, how)))
        {
            let moves = Moves { examples, size, counts, step, low, apart };
            over_lines(moves, (dtype, round), acc);
        }
    }
}

fn over_lines(moves: Moves, (dtype, round): (DType, Option<DType>), acc: DType) {
    let Moves { examples, size: [height, width], counts: [lines, windows], step, low, apart } =
        moves;
    let axis = |extent: usize, stride: usize, bounded: [isize; MOST_BOUNDS]| Axis {
        extent,
        stride: stride as isize * apart,
        bounded,
    };
    let by = step as isize;
    let [plane, result] = [height * width, lines * windows];
    let rows = [axis(examples, CHANNELS * plane, [0; 3]), axis(lines, step * width, [by, 0, 0])];
    let columns = [axis(3, width, [1, 0, 0]), axis(3, 1, [0, 1, 0])];
    let bound = |low: isize, extent: usize| Bound { offset: -low, extent: extent as isize };
    let bounds = [bound(low[0], height), bound(low[1], width), Bound::default()];
    let seen = Seen::new(&rows, &columns, bounds);
    let lines_of_left = [axis(examples, CHANNELS * result, [0; 3]), axis(lines, windows, [0; 3])];
    let seen_left =
        Seen::new(&[axis(1, 0, [0; 3])], &lines_of_left, [Bound::default(); MOST_BOUNDS]);
    let tensor = |elements: usize, seed: u32| {
        let len = examples * CHANNELS * elements * apart as usize;
        Tensor { round, ..Tensor::new(dtype, len, seed, (0, apart)) }
    };
    let (x, dy) = (tensor(plane, 51), tensor(result, 52));
    let outside = (low[0] * width as isize + low[1]) * apart * dtype.bytes() as isize;
    let base = x.bytes.as_ptr().wrapping_offset(-outside);
    let b = Source::Windows { of: Elements { base, dtype, round }, seen: &seen };
    let a = Source::Windows {
        of: Elements { base: dy.bytes.as_ptr(), dtype, round },
        seen: &seen_left,
    };
    let k = examples * lines;
    let across = (axis(windows, step, [0, by, 0]), apart);
    let of = LinesOfWindows::of(&a, &seen, k, across).expect("lines of windows");
    let at = |line: usize| [result, plane].map(|each| (line * each) as isize * apart);
    let want = |window: usize, channel: usize, tap: usize| {
        let place = |p: usize, each: usize| ((p / lines * CHANNELS) + channel) * each;
        let left = |p: usize| dy.get(0, place(p, result) + p % lines * windows + window);
        let right = |p: usize| {
            let y = (p % lines * step + tap / 3) as isize - low[0];
            let z = (window * step + tap % 3) as isize - low[1];
            let is_there = (0..height as isize).contains(&y) && (0..width as isize).contains(&z);
            let at = place(p, plane) as isize + y * width as isize + z;
            if is_there { x.get(0, at as usize) } else { 0.0 }
        };
        sum(acc, k, left, right)
    };
    let mut scratch = Scratch::default();
    for cpu in &Cpu::all() {
        let mut run = |own: Range<usize>| {
            let mut sink = |rows: Range<usize>, _: Range<usize>, sums: *const u8| {
                assert_eq!(rows.len(), own.len());
                let window = rows.start / CHANNELS;
                for (i, channel) in own.clone().enumerate() {
                    for tap in 0..9 {
                        let sum = sums.wrapping_add((i * 9 + tap) * acc.bytes());
                        let found = match acc {
                            // SAFETY: the epilogue gets nine sums of each channel.
                            DType::F64 => unsafe { sum.cast::<u64>().read() },
                            // SAFETY: as above.
                            _ => u64::from(unsafe { sum.cast::<u32>().read() }),
                        };
                        let want = want(window, channel, tap);
                        assert_eq!(
                            found, want,
                            "{moves:?} {dtype} {round:?} {window} {channel} {tap} {cpu:?}"
                        );
                    }
                }
            };
            let (part, count) = (own.clone(), CHANNELS);
            let work = OverLines { cpu, acc, a, b, lines: &of, at: &at, part, count };
            // SAFETY: the tests' tensors hold what their strides span.
            unsafe { work.run(&mut scratch, &mut sink) };
        };
        run(0..1);
        run(1..CHANNELS);
    }
}
