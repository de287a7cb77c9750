//! Contractions have the bits of their definition, for every shape, stride, dtype, CPU and
//! blocking.

#[cfg(target_arch = "x86_64")]
mod depthwise;
mod direct;
mod few_steps;
mod images;
mod over_lines;
mod pairs;
mod phases;
mod positions;
mod stored;

use super::{
    Axis, Bound, Correlation, Cpu, Driver, Elements, PIECE, Panels, Prefetch, Product, Scratch,
    Seen, SideBySide, Source, keep,
};
use crate::machine::{InstructionSet, Vectors};
use few_steps::{few_steps, windows_over};
use std::ops::Range;
use tracecast_ir::DType;
use tracecast_ir::kernel::half;
use tracecast_ir::kernel::math::{self, CONTRACT_BLOCK};

/// An operand: its elements in memory, and how they are read.
struct Tensor {
    bytes: Vec<u8>,
    dtype: DType,
    round: Option<DType>,
    row: isize,
    col: isize,
}

impl Tensor {
    /// `len` elements that differ in size and sign.
    fn new(dtype: DType, len: usize, seed: u32, (row, col): (isize, isize)) -> Tensor {
        let mut state = seed;
        let mut bytes = Vec::new();
        for _ in 0..len.max(1) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f64::from((state >> 8) as i32 - (1 << 23)) / f64::from(1 << 23);
            match dtype {
                DType::F32 => bytes.extend((x as f32).to_ne_bytes()),
                DType::F64 => bytes.extend(x.to_ne_bytes()),
                DType::F16 => bytes.extend(half::f64_to_f16(x).to_ne_bytes()),
                _ => bytes.extend(half::f64_to_bf16(x).to_ne_bytes()),
            }
        }
        Tensor { bytes, dtype, round: None, row, col }
    }

    /// The same of bf16 times a power of two.
    fn scaled(mut self, exponent: i32) -> Tensor {
        for element in self.bytes.as_chunks_mut::<2>().0 {
            let x = f64::from(half::bf16_to_f32(u16::from_ne_bytes(*element)));
            *element = half::f64_to_bf16(x * 2f64.powi(exponent)).to_ne_bytes();
        }
        self
    }

    fn get(&self, i: usize, j: usize) -> f64 {
        let at = (i as isize * self.row + j as isize * self.col) as usize;
        let b = &self.bytes[at * self.dtype.bytes()..][..self.dtype.bytes()];
        let x = match self.dtype {
            DType::F32 => f64::from(f32::from_ne_bytes(b.try_into().unwrap())),
            DType::F64 => f64::from_ne_bytes(b.try_into().unwrap()),
            DType::F16 => f64::from(half::f16_to_f32(u16::from_ne_bytes(b.try_into().unwrap()))),
            _ => f64::from(half::bf16_to_f32(u16::from_ne_bytes(b.try_into().unwrap()))),
        };
        match self.round {
            Some(DType::BF16) => half::round_to_bf16_f64(x),
            Some(_) => half::round_to_f16_f64(x),
            None => x,
        }
    }

    /// True if every value is one of bf16.
    fn is_bf16(&self) -> bool {
        self.round.unwrap_or(self.dtype) == DType::BF16
    }

    fn source(&self) -> Source<'_> {
        Source::Matrix {
            of: Elements { base: self.bytes.as_ptr(), dtype: self.dtype, round: self.round },
            row: self.row,
            col: self.col,
        }
    }
}

/// The definition, as bits.
fn sum(acc: DType, k: usize, a: impl Fn(usize) -> f64, b: impl Fn(usize) -> f64) -> u64 {
    macro_rules! chain {
        ($t:ty, $fma:path) => {{
            let mut total: $t = 0.0;
            for block in (0..k).step_by(CONTRACT_BLOCK) {
                let mut acc: $t = 0.0;
                for p in block..k.min(block + CONTRACT_BLOCK) {
                    acc = $fma(a(p) as $t, b(p) as $t, acc);
                }
                total = if block == 0 { acc } else { total + acc };
            }
            u64::from(total.to_bits())
        }};
    }
    if acc == DType::F64 { chain!(f64, f64::mul_add) } else { chain!(f32, math::fma) }
}

/// Contracts a range and returns the bits of the sums, checking that each comes once.
fn run(
    cpu: &Cpu,
    acc: DType,
    (rows, cols, k): (Range<usize>, Range<usize>, usize),
    (a, b): (&Source<'_>, &Source<'_>),
    scratch: &mut Scratch,
) -> Vec<u64> {
    let mut out = vec![None; rows.len() * cols.len()];
    let (r0, c0, n) = (rows.start, cols.start, cols.len());
    let mut epilogue = |rows: Range<usize>, cols: Range<usize>, sums: *const u8| {
        let (row, count, col, width) = (rows.start, rows.len(), cols.start, cols.len());
        for i in 0..count * width {
            let at = sums.wrapping_add(i * acc.bytes());
            let bits = if acc == DType::F64 {
                // SAFETY: the epilogue gets `count` by `width` sums.
                unsafe { at.cast::<u64>().read() }
            } else {
                // SAFETY: as above.
                u64::from(unsafe { at.cast::<u32>().read() })
            };
            let (row, col) = (row + i / width, col + i % width);
            let place = &mut out[(row - r0) * n + col - c0];
            assert!(place.replace(bits).is_none(), "({row}, {col}) comes twice");
        }
    };
    // Any address can be prefetched.
    let prefetched = [Prefetch { base: std::ptr::null(), row: 4096, cell: 2 }];
    let mut product = Product::new(cpu, acc, [rows.clone(), cols.clone()], k, [*a, *b]);
    product.prefetched = &prefetched;
    // SAFETY: the tests' tensors hold what their ranges and strides span.
    unsafe { product.run(scratch, &mut epilogue) };
    let out: Vec<u64> = out.into_iter().map(|bits| bits.expect("every sum comes")).collect();
    let all = (rows, cols, k);
    if acc == DType::F32 {
        let found = stored::rounded(cpu, all.clone(), (a, b), scratch);
        let want = out.iter().map(|bits| half::f32_to_bf16(f32::from_bits(*bits as u32)));
        assert!(found.into_iter().eq(want), "rounded sums");
    }
    assert_eq!(stored::bits(cpu, acc, all, (a, b), scratch), out, "stored sums");
    out
}

fn check(acc: DType, (m, n, k): (usize, usize, usize), a: &Tensor, b: &Tensor) {
    let mut scratch = Scratch::default();
    let filled = |t: &Tensor| if t.is_bf16() { DType::BF16 } else { acc };
    let (as_a, as_b) = (filled(a), filled(b));
    let (fill_a, fill_b) = (fill(a, as_a), fill(b, as_b));
    let (i0, j0) = (m / 3, n / 4);
    for cpu in &Cpu::all() {
        let whole = run(cpu, acc, (0..m, 0..n, k), (&a.source(), &b.source()), &mut scratch);
        for i in 0..m {
            for j in 0..n {
                let want = sum(acc, k, |p| a.get(i, p), |p| b.get(p, j));
                assert_eq!(whole[i * n + j], want, "{m}x{n}x{k} at ({i}, {j}) with {cpu:?}");
            }
        }
        let computed = (
            &Source::Fill { fill: &fill_a, dtype: as_a },
            &Source::Fill { fill: &fill_b, dtype: as_b },
        );
        assert_eq!(
            run(cpu, acc, (0..m, 0..n, k), computed, &mut scratch),
            whole,
            "{m}x{n}x{k} filled"
        );
        for b_again in [&b.source(), computed.1] {
            let values = [a, b].map(|t| t.round.unwrap_or(t.dtype));
            let panels = Panels::new(cpu, acc, values, [k, n]);
            let mut room = vec![f64::NAN; panels.bytes().div_ceil(8)];
            let kept = kept(cpu, &panels, n, b_again, &mut scratch, &mut room);
            let found = run(cpu, acc, (0..m, 0..n, k), (&a.source(), &kept), &mut scratch);
            assert_eq!(found, whole, "{m}x{n}x{k} of kept columns with {cpu:?}");
            for start in (0..n).step_by(PIECE) {
                let cols = start..n.min(start + PIECE);
                let found =
                    run(cpu, acc, (i0..m, cols.clone(), k), (computed.0, &kept), &mut scratch);
                let want = (i0..m).flat_map(|i| whole[i * n..][cols.clone()].to_vec());
                assert!(want.eq(found), "{m}x{n}x{k}, kept columns {cols:?} with {cpu:?}");
            }
        }
        let part = run(cpu, acc, (i0..m, j0..n, k), (&a.source(), computed.1), &mut scratch);
        let want: Vec<u64> =
            (i0..m).flat_map(|i| whole[i * n + j0..(i + 1) * n].to_vec()).collect();
        assert_eq!(part, want, "{m}x{n}x{k} in part");
    }
}

/// Packs a right operand piece by piece, the last piece first.
fn kept<'a>(
    cpu: &Cpu,
    panels: &Panels,
    columns: usize,
    b: &Source<'_>,
    scratch: &mut Scratch,
    room: &mut [f64],
) -> Source<'a> {
    let base = room.as_mut_ptr().cast::<u8>();
    let mut least = u16::MAX;
    for start in (0..columns).step_by(PIECE).rev() {
        let piece = start..columns.min(start + PIECE);
        // SAFETY: the tests' tensors hold what their strides span; there is room for all columns.
        least = least.min(unsafe { keep(cpu, panels, piece, b, scratch, base) });
    }
    Source::Packed { base, panels: *panels, least }
}

fn fill(t: &Tensor, dtype: DType) -> impl Fn(usize, usize, usize, usize, *mut u8) + Sync {
    move |row, rows, col, cols, out| {
        for i in 0..rows {
            for j in 0..cols {
                let (x, at) =
                    (t.get(row + i, col + j), out.wrapping_add((i * cols + j) * dtype.bytes()));
                if dtype == DType::BF16 {
                    // SAFETY: the block has `rows * cols` numbers.
                    unsafe { at.cast::<u16>().write(half::f64_to_bf16(x)) };
                } else if dtype == DType::F64 {
                    // SAFETY: the block has `rows * cols` numbers.
                    unsafe { at.cast::<f64>().write(x) };
                } else {
                    // SAFETY: as above.
                    unsafe { at.cast::<f32>().write(x as f32) };
                }
            }
        }
    }
}

const SHAPES: [(usize, usize, usize); 19] = [
    (1, 1, 1),
    (1, 33, 40),
    (33, 1, 40),
    (5, 4, 9),
    (7, 17, 0),
    (6, 16, 8),
    (13, 10, 77),
    (12, 24, 65),
    (97, 35, 20),
    (3, 530, 11),
    (14, 20, 513),
    (2, 9, 1030),
    (25, 3, 520),
    (32, 64, 128),
    (64, 32, 128),
    (32, 10, 128),
    (41, 70, 600),
    (9, 100, 300),
    (260, 97, 5),
];

#[test]
fn row_major_operands() {
    for (m, n, k) in SHAPES {
        let a = Tensor::new(DType::F32, m * k, 1, (k as isize, 1));
        let b = Tensor::new(DType::F32, k * n, 2, (n as isize, 1));
        check(DType::F32, (m, n, k), &a, &b);
    }
}

#[test]
fn transposed_operands() {
    for (m, n, k) in SHAPES {
        let a = Tensor::new(DType::F32, m * k, 3, (1, m as isize));
        let b = Tensor::new(DType::F32, k * n, 4, (1, k as isize));
        check(DType::F32, (m, n, k), &a, &b);
    }
}

#[test]
fn strided_and_broadcast_operands() {
    for (m, n, k) in [(13, 21, 30), (20, 3, 530), (2, 40, 17)] {
        let a = Tensor::new(DType::F32, 3 * m * k, 5, (3 * k as isize, 2));
        let b = Tensor::new(DType::BF16, 3 * k * n, 6, (2, 2 * k as isize));
        check(DType::F32, (m, n, k), &a, &b);
        let a = Tensor::new(DType::F16, k, 7, (0, 1));
        let b = Tensor::new(DType::F32, k, 8, (1, 0));
        check(DType::F32, (m, n, k), &a, &b);
    }
}

#[test]
fn sixteen_bit_operands() {
    for (m, n, k) in SHAPES {
        let (k_, m_, n_) = (k as isize, m as isize, n as isize);
        let a = Tensor::new(DType::BF16, m * k, 9, (k_, 1));
        let b = Tensor::new(DType::F16, k * n, 10, (1, k_));
        check(DType::F32, (m, n, k), &a, &b);
        let a = Tensor::new(DType::F16, m * k, 11, (1, m_));
        let b = Tensor::new(DType::BF16, k * n, 12, (n_, 1));
        check(DType::F32, (m, n, k), &a, &b);
    }
}

#[test]
fn operands_of_bf16() {
    for (m, n, k) in SHAPES {
        let (k_, m_, n_) = (k as isize, m as isize, n as isize);
        let a = Tensor::new(DType::BF16, m * k, 16, (k_, 1));
        let b = Tensor::new(DType::BF16, k * n, 17, (n_, 1));
        check(DType::F32, (m, n, k), &a, &b);
        let round = Some(DType::BF16);
        let a = Tensor { round, ..Tensor::new(DType::F32, m * k, 18, (1, m_)) };
        let b = Tensor { round, ..Tensor::new(DType::F32, k * n, 19, (1, k_)) };
        check(DType::F32, (m, n, k), &a, &b);
    }
    let a = Tensor::new(DType::BF16, 2 * 20 * 31, 20, (2 * 31, 2));
    let b = Tensor { round: Some(DType::BF16), ..Tensor::new(DType::F32, 31 * 3, 21, (3, 0)) };
    check(DType::F32, (20, 40, 31), &a, &b);
}

#[test]
fn operands_rounded_to_f16() {
    for (m, n, k) in [(13, 21, 30), (20, 3, 530), (40, 70, 17)] {
        let round = Some(DType::F16);
        let a = Tensor { round, ..Tensor::new(DType::F32, m * k, 22, (k as isize, 1)) };
        let b = Tensor { round, ..Tensor::new(DType::F32, k * n, 23, (1, k as isize)) };
        check(DType::F32, (m, n, k), &a, &b);
    }
}

#[test]
fn few_rows_by_columns_along_k() {
    const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
    let sizes = [1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 100];
    for (i, n) in sizes.into_iter().enumerate() {
        let (m, k) = (12 - i, [1, 15, 16, 17, 31, 33, 64, 511, 513, 545, 1030][i * 7 % 11]);
        for (left, right) in DTYPES.into_iter().flat_map(|l| DTYPES.map(|r| (l, r))) {
            let a = Tensor::new(left, m * k, 26, (k as isize, 1));
            let b = Tensor::new(right, n * (k + 3), 27, (1, k as isize + 3));
            check(DType::F32, (m, n, k), &a, &b);
            // Many rows by a few columns: the operands are exchanged.
            let a = Tensor::new(right, n * k, 28, (k as isize, 1));
            let b = Tensor::new(left, k * m, 29, (m as isize, 1));
            check(DType::F32, (n, m, k), &a, &b);
        }
    }
    for (m, right) in (1..5).flat_map(|m| [(m, DType::F32), (m, DType::BF16)]) {
        let a = Tensor::new(DType::F32, m * 545, 32, (545, 1));
        let b = Tensor::new(right, 45 * 545, 33, (1, 545));
        check(DType::F32, (m, 45, 545), &a, &b);
    }
    // In several groups, passed on in one piece.
    let a = Tensor::new(DType::F16, 2100 * 20, 30, (20, 1));
    let b = Tensor::new(DType::BF16, 20 * 3, 31, (3, 1));
    check(DType::F32, (2100, 3, 20), &a, &b);
}

/// Products and sums of bf16 that are subnormal, and operands that are.
#[test]
fn f64_accumulators() {
    for (m, n, k) in SHAPES {
        let a = Tensor::new(DType::F64, m * k, 13, (k as isize, 1));
        let b = Tensor::new(DType::F64, k * n, 14, (1, k as isize));
        check(DType::F64, (m, n, k), &a, &b);
        let b = Tensor::new(DType::F32, k * n, 15, (n as isize, 1));
        check(DType::F64, (m, n, k), &a, &b);
    }
}

#[test]
fn a_steady_state_allocates_nothing() {
    let (a, b) = (
        Tensor::new(DType::BF16, 100 * 600, 1, (600, 1)),
        Tensor::new(DType::BF16, 600 * 40, 2, (40, 1)),
    );
    let mut scratch = Scratch::default();
    let cpu = Cpu::with(InstructionSet::of(Vectors::Native));
    let mut once = || {
        run(&cpu, DType::F32, (0..100, 0..40, 600), (&a.source(), &b.source()), &mut scratch);
        scratch.bytes()
    };
    let first = once();
    assert_eq!(first, once());
}

/// Inputs of convolutions: the first one, and those that begin one, two and more channels behind
/// it.
const SEEN: usize = 20;

/// Convolutions of 3 × 3 over channels of 5 × 21, with padding two and this stride and dilation:
/// the inputs, and what the windows read of all channels.
fn through_windows(
    dtype: DType,
    round: Option<DType>,
    stride: isize,
    dilation: isize,
) -> (Tensor, Seen, Vec<f64>, [usize; 2]) {
    let (channels, height, width, around) = (60, 5, 21, 2);
    let seen = windows_over(channels, stride, dilation);
    let x = Tensor {
        round,
        ..Tensor::new(dtype, (channels + SEEN) * height * width, 40, (width as isize, 1))
    };
    let reach = |size: isize| (size + 2 * around - 2 * dilation.abs() - 1) / stride + 1;
    let (down, across) = (reach(height as isize), reach(width as isize));
    let w = width as isize;
    let (k, n) = (channels * 9, (down * across) as usize);
    let mut all = Vec::new();
    for p in 0..(k + SEEN * 9) as isize {
        for j in 0..down * across {
            let y = j / across * stride + p / 3 % 3 * dilation - around;
            let x_at = j % across * stride + p % 3 * dilation - around;
            let there = (0..height as isize).contains(&y) && (0..w).contains(&x_at);
            let row = p / 9 * height as isize + y;
            all.push(if there { x.get(row as usize, x_at as usize) } else { 0.0 });
        }
    }
    (x, seen, all, [k, n])
}

#[test]
fn operands_seen_through_windows() {
    let dtypes = [
        (DType::F32, None),
        (DType::BF16, None),
        (DType::F16, None),
        (DType::F32, Some(DType::BF16)),
        (DType::F32, Some(DType::F16)),
    ];
    let mut scratch = Scratch::default();
    let ways = [(1, 1, 5), (2, 1, 2), (1, 2, 1), (3, 2, 1)];
    for (stride, dilation, dtypes) in ways.map(|(s, d, count)| (s, d, &dtypes[..count])) {
        for (dtype, round) in dtypes.iter().copied() {
            let (x, seen, all, [k, n]) = through_windows(dtype, round, stride, dilation);
            // The first element that a window reads is before the tensor.
            let base = x.bytes.as_ptr().wrapping_offset(-2 * (21 + 1) * dtype.bytes() as isize);
            let through = Source::Windows { of: Elements { base, dtype, round }, seen: &seen };
            let as_b = if x.is_bf16() { DType::BF16 } else { DType::F32 };
            let fill = |row: usize, rows: usize, col: usize, cols: usize, out: *mut u8| {
                for i in 0..rows * cols {
                    let value = all[(row + i / cols) * n + col + i % cols];
                    let at = out.wrapping_add(i * as_b.bytes());
                    if as_b == DType::BF16 {
                        // SAFETY: the block has `rows * cols` numbers.
                        unsafe { at.cast::<u16>().write(half::f64_to_bf16(value)) };
                    } else {
                        // SAFETY: as above.
                        unsafe { at.cast::<f32>().write(value as f32) };
                    }
                }
            };
            let filled = Source::Fill { fill: &fill, dtype: as_b };
            for m in [1, 9] {
                let a = Tensor::new(
                    if x.is_bf16() { DType::BF16 } else { DType::F32 },
                    m * k,
                    41,
                    (k as isize, 1),
                );
                for cpu in &Cpu::all() {
                    for cols in [0..n, n / 3..n / 3 + n / 2] {
                        let size = (0..m, cols.clone(), k);
                        let want = run(
                            cpu,
                            DType::F32,
                            size.clone(),
                            (&a.source(), &filled),
                            &mut scratch,
                        );
                        let found =
                            run(cpu, DType::F32, size, (&a.source(), &through), &mut scratch);
                        assert!(
                            want == found,
                            "{dtype} {round:?} by {stride}, {dilation} apart, {m} rows, {cols:?}, {cpu:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn places_are_in_order_where_windows_are_near() {
    for (stride, near) in [(1, true), (2, true), (3, true), (1000, false), (1 << 40, false)] {
        let axis = |extent, stride| Axis { extent, stride, bounded: [stride, 0, 0] };
        let bound = Bound { offset: 0, extent: 3 * stride + 3 };
        let bounds = [bound, Bound::default(), Bound::default()];
        let seen = Seen::new(&[axis(3, 1)], &[axis(4, stride)], bounds);
        let image = super::Image::of(&seen, None).expect("windows of a convolution");
        assert_eq!(image.is_near(), near, "windows of 3, {stride} apart");
    }
}

#[test]
fn images_have_the_sums_of_windows() {
    let dtypes = [
        (DType::F32, None),
        (DType::BF16, None),
        (DType::F16, None),
        (DType::F32, Some(DType::BF16)),
        (DType::F32, Some(DType::F16)),
    ];
    let mut scratch = Scratch::default();
    for (stride, dilation) in [(1, 1), (2, 1), (1, 2), (3, 2), (1, -1), (2, -1)] {
        for (dtype, round) in dtypes {
            let (x, seen, all, [k, n]) = through_windows(dtype, round, stride, dilation);
            let base = x.bytes.as_ptr().wrapping_offset(-2 * (21 + 1) * dtype.bytes() as isize);
            let b = Source::Windows { of: Elements { base, dtype, round }, seen: &seen };
            let windows =
                super::Image::of(&seen, None).expect("windows of a convolution").windows();
            few_steps(&x, &all, [k, n], [stride, dilation], &mut scratch);
            beside(&x, b, &all, [k, n], [0..1, 1..1]);
            let middle = windows[0] / 3;
            beside(&x, b, &all, [k, n], [0..middle, middle..windows[0]]);
            for (m, across) in [(1, None), (9, None), (20, None), (32, Some([0, 32]))] {
                // Two left operands for three batches, one right operand for all.
                let left = Tensor::new(dtype, 2 * m * k, 41, (k as isize, 1));
                let a = left.source();
                let interleaved = super::Image::of(&seen, None).and_then(super::Image::interleaved);
                let of_bf16 = m > 1 && a.is_bf16() && b.is_bf16();
                let at = |batch: usize| [(batch % 2 * m * k) as isize, 0];
                for cpu in &Cpu::all() {
                    let work = Correlation {
                        period: 2,
                        across,
                        pairs: cpu.pairs && of_bf16 && interleaved.is_some() && across.is_none(),
                        ..images::correlation(cpu, [m, k], [a, b])
                    };
                    let middle = windows[0] / 3;
                    let parts = [0..middle, middle..windows[0]];
                    let each = parts.clone().map(|part| (0..3, part));
                    let found = images::handed_on(&work, each, &at, [3 * m, n], &mut scratch);
                    let each = images::stored(&work, (0..3, parts), &at, n, &mut scratch);
                    assert_eq!(found, each, "stored as they are by {cpu:?}");
                    for (at, bits) in found.into_iter().enumerate() {
                        let (row, column) = (at / n, at % n);
                        let row = row / m % 2 * m + row % m;
                        let want =
                            sum(DType::F32, k, |p| left.get(row, p), |p| all[p * n + column]);
                        assert_eq!(
                            bits.map(u64::from),
                            Some(want),
                            "{dtype} {round:?} by {stride}, {dilation} apart, {m} rows at {at}, {cpu:?}"
                        );
                    }
                }
            }
        }
    }
}

/// The same of batches side by side: all windows as a single part, or some after the others.
fn beside(x: &Tensor, b: Source<'_>, all: &[f64], [k, n]: [usize; 2], windows: [Range<usize>; 2]) {
    let left = Tensor::new(x.dtype, SEEN * k, 42, (k as isize, 1));
    let few = windows[1].is_empty();
    let side = SideBySide { count: SEEN, stride: 5 * 21, few };
    let at = |batch: usize| [(batch * k) as isize, (batch * 5 * 21) as isize];
    let mut scratch = Scratch::default();
    for cpu in &Cpu::all() {
        let work = Correlation {
            period: SEEN,
            beside: Some(side),
            ..images::correlation(cpu, [1, k], [left.source(), b])
        };
        let parts = [0..3, 3..SEEN].into_iter();
        let parts = parts.flat_map(|some| windows.clone().map(|windows| (some.clone(), windows)));
        let found = images::handed_on(&work, parts, &at, [SEEN, n], &mut scratch);
        let each = images::stored(&work, (0..SEEN, windows.clone()), &at, n, &mut scratch);
        assert_eq!(found, each, "stored as they are by {cpu:?}");
        for (i, bits) in found.into_iter().enumerate() {
            let (batch, column) = (i / n, i % n);
            let right = |p: usize| all[(p + batch * 9) * n + column];
            let want = sum(DType::F32, k, |p| left.get(batch, p), right);
            assert_eq!(bits.map(u64::from), Some(want), "batch {batch}, {column}, {cpu:?}");
        }
    }
}
