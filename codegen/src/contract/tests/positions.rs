//! Weight gradients, contractions over positions, have the bits of their definition.

use super::super::{
    Axis, Bound, Channels, Cpu, Driver, Elements, Positions, Scratch, Seen, Source, Split,
    can_be_shared, shared_bytes,
};
use super::{Tensor, sum};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::math::CONTRACT_BLOCK;

/// The input of a convolution, with `k` over examples and positions of outputs: its sizes are
/// `[examples, channels, height, width]`, then the kernel's, then stride, dilation and padding.
fn over_positions(
    dtype: DType,
    [examples, channels, height, width]: [usize; 4],
    kernel: [usize; 2],
    [stride, dilation, around]: [isize; 3],
) -> (Tensor, Seen, Vec<f64>, [usize; 2]) {
    let x = Tensor::new(dtype, examples * channels * height * width, 43, (width as isize, 1));
    let count = |size: usize, kernel: usize| {
        (size as isize + 2 * around - dilation * (kernel as isize - 1) - 1) / stride + 1
    };
    let (down, across) = (count(height, kernel[0]), count(width, kernel[1]));
    let w = width as isize;
    let plane = height as isize * w;
    let axis = |extent: isize, stride: isize, bounded: [isize; 2]| {
        let bounded = if around == 0 { [0; 3] } else { [bounded[0], bounded[1], 0] };
        Axis { extent: extent as usize, stride, bounded }
    };
    let rows = [
        axis(examples as isize, plane * channels as isize, [0, 0]),
        axis(down, stride * w, [stride, 0]),
        axis(across, stride, [0, stride]),
    ];
    let columns = [
        axis(channels as isize, plane, [0, 0]),
        axis(kernel[0] as isize, dilation * w, [dilation, 0]),
        axis(kernel[1] as isize, dilation, [0, dilation]),
    ];
    let bound = |extent: usize| match around {
        0 => Bound::default(),
        _ => Bound { offset: -around, extent: extent as isize },
    };
    let seen = Seen::new(&rows, &columns, [bound(height), bound(width), Bound::default()]);
    let (k, n) = (examples * (down * across) as usize, channels * kernel[0] * kernel[1]);
    let mut all = Vec::new();
    for p in 0..k as isize {
        let (example, place) = (p / (down * across), p % (down * across));
        for j in 0..n as isize {
            let taps = (kernel[0] * kernel[1]) as isize;
            let (channel, tap) = (j / taps, j % taps);
            let y = place / across * stride + tap / kernel[1] as isize * dilation - around;
            let x_at = place % across * stride + tap % kernel[1] as isize * dilation - around;
            let there = (0..height as isize).contains(&y) && (0..w).contains(&x_at);
            let row = (example * channels as isize + channel) * height as isize + y;
            all.push(if there { x.get(row as usize, x_at as usize) } else { 0.0 });
        }
    }
    (x, seen, all, [k, n])
}

/// The left operand with the rows of each example back to back: sizes are rows, steps of an
/// example, examples.
fn example_by_example(left: &Tensor, [rows, each, examples]: [usize; 3]) -> (Tensor, Seen) {
    let (dtype, width) = (left.dtype, left.dtype.bytes());
    let mut apart = Tensor::new(dtype, rows * each * examples, 44, (each as isize, 1));
    for (at, element) in apart.bytes.chunks_mut(width).enumerate() {
        let (example, row, step) = (at / each / rows, at / each % rows, at % each);
        let from = ((row * examples + example) * each + step) * width;
        element.copy_from_slice(&left.bytes[from..from + width]);
    }
    let axis =
        |extent: usize, stride: usize| Axis { extent, stride: stride as isize, bounded: [0; 3] };
    let columns = [axis(examples, rows * each), axis(each, 1)];
    (apart, Seen::new(&[axis(rows, each)], &columns, [Bound::default(); 3]))
}

/// Stores the sums of some rows and columns of a result with `n` columns.
fn taken(found: &mut [Option<u32>], n: usize, [rows, columns]: [Range<usize>; 2], sums: *const u8) {
    for i in 0..rows.len() * columns.len() {
        // SAFETY: the epilogue gets a sum for each of these rows and columns.
        let sum = unsafe { sums.cast::<f32>().wrapping_add(i).read() };
        let place = (rows.start + i / columns.len()) * n + columns.start + i % columns.len();
        assert!(found[place].replace(sum.to_bits()).is_none(), "comes twice");
    }
}

#[test]
fn gradients_of_weights_have_the_sums_of_windows() {
    let mut scratch = Scratch::default();
    let shapes = [
        ([3, 5, 9, 8], [3, 3], [1, 1, 1]),
        ([2, 40, 7, 7], [3, 3], [2, 1, 1]),
        ([1, 3, 30, 31], [7, 5], [2, 1, 3]),
        ([40, 2, 6, 5], [3, 2], [1, 2, 2]),
        ([5, 3, 7, 7], [3, 3], [1, 1, 1]),
        ([30, 2, 7, 7], [3, 3], [1, 1, 1]),
        ([2, 4, 12, 12], [3, 3], [1, 1, 0]),
        ([3, 2, 11, 9], [2, 3], [2, 1, 0]),
        ([3, 20, 7, 9], [1, 1], [1, 1, 0]),
        ([5, 6, 8, 6], [1, 1], [1, 1, 0]),
        ([40, 3, 6, 6], [1, 1], [1, 1, 0]),
        ([40, 3, 7, 7], [1, 1], [1, 1, 0]),
        ([2, 9, 17, 11], [1, 1], [2, 1, 0]),
        ([1, 9, 17, 11], [1, 1], [2, 1, 0]),
        ([2, 3, 5, 33], [1, 1], [2, 1, 0]),
        ([2, 3, 50, 47], [3, 3], [2, 1, 1]),
        ([2, 2, 48, 50], [3, 5], [2, 2, 2]),
        ([1, 4, 33, 41], [3, 3], [1, 1, 1]),
        ([1, 3, 29, 24], [3, 3], [1, 1, 0]),
    ];
    for (sizes, kernel, moves) in shapes {
        for (dtype, exponent) in
            [(DType::F32, 0), (DType::BF16, 0), (DType::F16, 0), (DType::BF16, -65)]
        {
            let (x, seen, mut all, [k, n]) = over_positions(dtype, sizes, kernel, moves);
            let scaled = |x: Tensor| if exponent == 0 { x } else { x.scaled(exponent) };
            let x = scaled(x);
            all.iter_mut().for_each(|x| *x *= 2f64.powi(exponent));
            let outside = moves[2] * (sizes[3] as isize + 1) * dtype.bytes() as isize;
            let base = x.bytes.as_ptr().wrapping_offset(-outside);
            let b = Source::Windows { of: Elements { base, dtype, round: None }, seen: &seen };
            for m in [8, 33, 140] {
                let channels = Channels::of(&seen, [m, k]).expect("the gradient of a weight");
                assert_eq!(channels.count * channels.taps, n);
                let left = scaled(Tensor::new(dtype, m * k, 44, (k as isize, 1)));
                let (apart, seen_apart) = example_by_example(&left, [m, k / sizes[0], sizes[0]]);
                let base = apart.bytes.as_ptr();
                let apart = Source::Windows {
                    of: Elements { base, dtype, round: None },
                    seen: &seen_apart,
                };
                let want: Vec<u64> = (0..m * n)
                    .map(|at| {
                        let right = |p: usize| all[p * n + at % n];
                        sum(DType::F32, k, |p| left.get(at / n, p), right)
                    })
                    .collect();
                for (cpu, a) in
                    Cpu::all().iter().flat_map(|cpu| [(cpu, left.source()), (cpu, apart)])
                {
                    let acc = DType::F32;
                    let all = Positions {
                        cpu,
                        acc,
                        a,
                        b,
                        at: &|_| [0; 2],
                        channels: &channels,
                        is_traded: false,
                        batches: 0..1,
                        rows: 0..m,
                        part: 0..channels.count,
                        m,
                        k,
                        split: None,
                    };
                    let mut found = vec![None; m * n];
                    let check = |found: &mut Vec<Option<u32>>| {
                        for (at, want) in want.iter().enumerate() {
                            let found = found[at].take().map(u64::from);
                            assert_eq!(found, Some(*want), "{sizes:?} {dtype} {m} {at} {cpu:?}");
                        }
                    };
                    let mut hand = |rows: Range<usize>, columns: Range<usize>, sums: *const u8| {
                        taken(&mut found, n, [rows, columns], sums)
                    };
                    let (rows, middle) = (m / 3, channels.count / 2);
                    for (rows, part) in [
                        (0..rows, 0..channels.count),
                        (rows..m, 0..middle),
                        (rows..m, middle..channels.count),
                    ] {
                        let work = Positions { rows, part, ..all.clone() };
                        // SAFETY: the tests' tensors hold what their strides span.
                        unsafe { work.run(&mut scratch, &mut hand) };
                    }
                    check(&mut found);
                    let blocks = k.div_ceil(CONTRACT_BLOCK);
                    let can_be_shared = can_be_shared([m, n], acc);
                    for first in (1..blocks).filter(|_| can_be_shared) {
                        let bytes = shared_bytes([m, n], acc, blocks - first);
                        let mut sums = vec![f32::NAN; bytes / size_of::<f32>()];
                        let sums = sums.as_mut_ptr().cast();
                        let split = |steps| {
                            let split = Some(Split { steps, sums, first, threads: 2 });
                            Positions { split, ..all.clone() }
                        };
                        for part in [first..blocks, 0..first] {
                            let steps =
                                part.start * CONTRACT_BLOCK..k.min(part.end * CONTRACT_BLOCK);
                            // SAFETY: as above; there is room for the sums.
                            unsafe { split(steps).run(&mut scratch, &mut |_, _, _| {}) };
                        }
                        let mut hand =
                            |rows: Range<usize>, columns: Range<usize>, sums: *const u8| {
                                taken(&mut found, n, [rows, columns], sums)
                            };
                        // SAFETY: the sums of all steps are there.
                        unsafe { split(0..0).run(&mut scratch, &mut hand) };
                        check(&mut found);
                    }
                }
            }
        }
    }
}

#[test]
fn odd_lines_are_multiplied_in_pairs() {
    let (x, seen, _, [k, _]) = over_positions(DType::BF16, [3, 2, 7, 7], [3, 3], [1, 1, 1]);
    let channels = Channels::of(&seen, [8, k]).expect("the gradient of a weight");
    // To the next place, and across the ends of a line and of an example.
    assert_eq!((channels.distances.as_ref().map(|all| all.len()), channels.copies), (Some(3), 3));
    let left = Tensor::new(DType::BF16, 8 * k, 44, (k as isize, 1));
    let b = Source::Windows {
        of: Elements { base: x.bytes.as_ptr(), dtype: x.dtype, round: None },
        seen: &seen,
    };
    for cpu in &Cpu::all() {
        let work = Positions {
            cpu,
            acc: DType::F32,
            a: left.source(),
            b,
            at: &|_| [0; 2],
            channels: &channels,
            is_traded: false,
            batches: 0..1,
            rows: 0..8,
            part: 0..2,
            m: 8,
            k,
            split: None,
        };
        assert_eq!(work.in_pairs(), cpu.pairs, "{cpu:?}");
    }
}

#[test]
fn windows_of_convolutions_are_no_gradients_of_weights() {
    let axis = |extent: usize, stride: isize| Axis { extent, stride, bounded: [0; 3] };
    let bounds = [Bound::default(); 3];
    let seen = |rows: &[Axis], columns: &[Axis]| Seen::new(rows, columns, bounds);
    // Three positions of 512 channels at stride two; and single ones of a plane at stride two.
    let lines = seen(&[axis(512, 16_000), axis(3, 1)], &[axis(7_999, 2)]);
    assert_eq!(Channels::of(&lines, [512, 1_536]), None);
    let planes = seen(&[axis(64, 196)], &[axis(7, 28), axis(7, 2)]);
    assert_eq!(Channels::of(&planes, [64, 64]), None);
}
