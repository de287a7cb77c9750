//! Every routine gives the bits of its scalar definition, for every length and every 16-bit input.

use super::narrow_float::{narrow, narrow_f64, round, round_f64, widen};
use super::{ElementSize, NarrowFloat, Tiles, one};
use crate::machine::{InstructionSet, Vectors};
use tracecast_ir::DType;
use tracecast_ir::kernel::{Function, half, philox};

fn float(dtype: DType) -> NarrowFloat {
    NarrowFloat::of(dtype).unwrap()
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Runs a tile at an odd address.
fn run<T: Copy + Default, U: Copy + Default>(tile: super::TileFn, input: &[T]) -> Vec<U> {
    let n = input.len();
    let bytes = size_of_val(input);
    let mut src = vec![0u8; bytes + 1];
    let mut dst = vec![0u8; n * size_of::<U>() + 1];
    // SAFETY: both hold `bytes` bytes.
    unsafe { src.as_mut_ptr().wrapping_add(1).copy_from(input.as_ptr().cast(), bytes) };
    // SAFETY: both hold `n` elements.
    unsafe { tile(src.as_ptr().wrapping_add(1), dst.as_mut_ptr().wrapping_add(1), n) };
    let mut out = vec![U::default(); n];
    let to = out.as_mut_ptr().cast::<u8>();
    // SAFETY: both hold `n` elements.
    unsafe { to.copy_from(dst.as_ptr().wrapping_add(1), n * size_of::<U>()) };
    out
}

/// The routines of every kind.
fn kinds() -> [(Vectors, &'static Tiles); Vectors::ALL.len()] {
    Vectors::ALL.map(|vectors| (vectors, Tiles::of(InstructionSet::of(vectors))))
}

/// Numbers of all magnitudes, with the special ones among them.
fn numbers(step: usize) -> Vec<f32> {
    let special = [
        0.0,
        -0.0,
        1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-45,
        -1e-45,
        131_072.0,
        1e30,
    ];
    (0..=u32::MAX).step_by(step).map(f32::from_bits).chain(special).collect()
}

#[test]
fn functions_have_the_bits_of_their_definition() {
    let input = numbers(65_521);
    let special = [5e-324, -5e-324, 2e-308, 1e300, f64::MAX, 745.2, -745.2, 1.0e6, -999_999.9];
    let spread = (0..=u64::MAX).step_by(0x0001_2345_6789_abcd).map(f64::from_bits);
    let near = input.iter().map(|x| f64::from(*x));
    let doubles: Vec<f64> = near.chain(special).chain(spread).collect();
    for (vectors, tiles) in kinds() {
        for f in Function::ALL {
            let routine = tiles.function(f);
            for (&x, y) in input.iter().zip(run::<f32, f32>(routine.tile, &input)) {
                assert!(
                    same(y, f.of_f32(x)),
                    "{f:?}({x:e}) of {vectors} vectors: {y:e}, not {:e}",
                    f.of_f32(x)
                );
                // SAFETY: `InstructionSet::of` has checked the CPU.
                let y = unsafe { (routine.one)(x) };
                assert!(same(y, f.of_f32(x)), "{f:?}({x:e})");
            }
            let tile = run::<f64, f64>(routine.tile_f64, &doubles);
            for (&x, in_tile) in doubles.iter().zip(tile) {
                // SAFETY: as above.
                let one = unsafe { (routine.one_f64)(x) };
                let want = f.of_f64(x);
                for y in [one, in_tile] {
                    let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
                    assert!(same, "{f:?}({x:e}) of {vectors} vectors: {y:e}, not {want:e}");
                }
            }
        }
    }
}

#[test]
fn every_length_is_whole_and_nothing_more() {
    let input: Vec<f32> = (0..40).map(|i| (i as f32 - 20.0) * 7.3).collect();
    for (_, tiles) in kinds() {
        for f in Function::ALL {
            for n in 0..=40 {
                let mut data = input.clone();
                let at = data.as_mut_ptr().cast::<u8>();
                // SAFETY: in place, over `n` of 40 elements.
                unsafe { (tiles.function(f).tile)(at, at, n) };
                for i in 0..40 {
                    let want = if i < n { f.of_f32(input[i]) } else { input[i] };
                    assert!(same(data[i], want), "{f:?}, {n} elements, element {i}");
                }
            }
        }
        for n in 0..=9 {
            let doubles: Vec<f64> = input[..n].iter().map(|x| f64::from(*x)).collect();
            let wide: Vec<f64> = run(tiles.function(Function::Exp).tile_f64, &doubles);
            assert!(doubles.iter().zip(wide).all(|(x, y)| Function::Exp.of_f64(*x) == y));
        }
        for n in 0..=40 {
            let narrow: Vec<u16> = run(tiles.f32_to_f16, &input[..n]);
            assert_eq!(narrow, input[..n].iter().map(|x| half::f32_to_f16(*x)).collect::<Vec<_>>());
            let narrow: Vec<u16> = run(tiles.f32_to_bf16, &input[..n]);
            assert_eq!(
                narrow,
                input[..n].iter().map(|x| half::f32_to_bf16(*x)).collect::<Vec<_>>()
            );
            let wide: Vec<f32> = run(tiles.f16_to_f32, &narrow);
            assert!(wide.iter().zip(&narrow).all(|(w, b)| same(*w, half::f16_to_f32(*b))));
        }
    }
}

#[test]
fn widening_covers_all_bits() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for (_, tiles) in kinds() {
        let wide =
            [run::<u16, f32>(tiles.f16_to_f32, &all), run::<u16, f32>(tiles.bf16_to_f32, &all)];
        for bits in all.iter().copied() {
            let i = usize::from(bits);
            assert!(
                same(wide[0][i], half::f16_to_f32(bits))
                    && same(wide[1][i], half::bf16_to_f32(bits))
            );
            assert!(same(wide[0][i], widen(float(DType::F16))(bits.into())));
        }
    }
}

#[test]
fn narrowing_has_the_bits_of_its_definition() {
    // All bf16 with all patterns of interest below, so that ties of both formats occur.
    let tails = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff];
    let input: Vec<f32> = (0..=u16::MAX)
        .flat_map(|h| tails.map(|t| f32::from_bits(u32::from(h) << 16 | t)))
        .collect();
    for (_, tiles) in kinds() {
        let f16: Vec<u16> = run(tiles.f32_to_f16, &input);
        let bf16: Vec<u16> = run(tiles.f32_to_bf16, &input);
        let round_f16: Vec<f32> = run(tiles.round_f16, &input);
        let round_bf16: Vec<f32> = run(tiles.round_bf16, &input);
        for (i, x) in input.iter().copied().enumerate() {
            if x.is_nan() {
                assert!(half::f16_to_f32(f16[i]).is_nan() && half::bf16_to_f32(bf16[i]).is_nan());
                assert!(round_f16[i].is_nan() && round_bf16[i].is_nan());
                continue;
            }
            assert_eq!((f16[i], bf16[i]), (half::f32_to_f16(x), half::f32_to_bf16(x)), "{x:e}");
            assert!(
                same(round_f16[i], half::round_to_f16(x))
                    && same(round_bf16[i], half::round_to_bf16(x))
            );
        }
    }
    for (dtype, one) in [(DType::F16, 0x3c00), (DType::BF16, 0x3f80)] {
        let float = float(dtype);
        assert_eq!((narrow(float)(1.0), narrow_f64(float)(1.0)), (one, one));
        assert_eq!((round(float)(1.0001), round_f64(float)(1.0001)), (1.0, 1.0));
    }
}

#[test]
fn one_f16_is_converted_as_in_its_definition() {
    for (vectors, tiles) in kinds() {
        let one = &tiles.one_f16;
        for bits in 0..=u16::MAX {
            // What is above the low half is of no concern.
            // SAFETY: `kinds` has what this CPU can run.
            let wide = unsafe { (one.widen)(u32::from(bits) | 0xabcd_0000) };
            assert!(same(wide, half::f16_to_f32(bits)), "{vectors}: {bits:#x}");
        }
        for x in numbers(977) {
            // SAFETY: as above.
            let narrow = unsafe { (one.narrow)(x) };
            // SAFETY: as above.
            let round = unsafe { (one.round)(x) };
            assert!(same(round, half::round_to_f16(x)), "{vectors}: {x:e}");
            match x.is_nan() {
                true => assert!(half::f16_to_f32(narrow as u16).is_nan() && narrow <= 0xffff),
                false => assert_eq!(narrow, u32::from(half::f32_to_f16(x)), "{vectors}: {x:e}"),
            }
        }
    }
}

#[test]
fn random_words_depend_on_the_element_alone() {
    let (key, step, stream) = (0x1234_5678_9abc_def0, 77, 3);
    for (_, tiles) in kinds() {
        for start in [0, 1, 2, 3, (1 << 34) - 5] {
            for n in (0..=40).chain([127, 128, 129, 300]) {
                let mut row = vec![0u32; n + 1];
                // SAFETY: `row` holds `n` elements and one more, which must stay.
                unsafe { (tiles.random)(row.as_mut_ptr().cast(), n, key, step, stream, start) };
                let elements: Vec<u64> = (0..n as u64).map(|i| start + i).collect();
                let want: Vec<u32> =
                    elements.iter().map(|e| philox::random_bits(key, step, stream, *e)).collect();
                assert_eq!((&row[..n], row[n]), (&want[..], 0), "{n} from {start}");
            }
        }
    }
    assert_eq!(one::random(key, step, stream, 6), philox::random_bits(key, step, stream, 6));
}

/// Rows of elements of one size, each the bytes of its number.
fn gathers<const SIZE: usize>(routine: super::GatherFn, n: usize, rows: usize, step: isize) {
    let ld = n + 3;
    let first = if step < 0 { (n - 1) * step.unsigned_abs() } else { 0 };
    let mut src = vec![0u8; (n * step.unsigned_abs() + rows + 1) * SIZE + 1];
    (0..src.len()).for_each(|i| src[i] = (i * 7 + i / 251) as u8);
    let mut dst = vec![0xa5u8; rows * ld * SIZE + 1];
    let bytes = step * SIZE as isize;
    let from = src.as_ptr().wrapping_add(1 + first * SIZE);
    // SAFETY: both have room for that many rows and positions.
    unsafe { routine(from, dst.as_mut_ptr().wrapping_add(1), n, rows, bytes, ld) };
    let elements = |bytes: &[u8], at: usize| bytes[1 + at * SIZE..][..SIZE].to_vec();
    for r in 0..rows {
        for p in 0..ld {
            let found = elements(&dst, r * ld + p);
            let wanted = match p < n {
                true => elements(&src, (first as isize + p as isize * step) as usize + r),
                false => vec![0xa5; SIZE],
            };
            assert_eq!(found, wanted, "row {r}, position {p} of {rows} x {n}, {SIZE} bytes");
        }
    }
}

#[test]
fn rows_are_gathered() {
    for (_, tiles) in kinds() {
        for n in [1, 7, 8, 9, 40] {
            for rows in [1, 2, 7, 8, 16, 21, 32, 64] {
                for step in [rows as isize + 2, -3, 2] {
                    gathers::<1>(tiles.gather_rows(ElementSize::One), n, rows, step);
                    gathers::<2>(tiles.gather_rows(ElementSize::Two), n, rows, step);
                    gathers::<4>(tiles.gather_rows(ElementSize::Four), n, rows, step);
                    gathers::<8>(tiles.gather_rows(ElementSize::Eight), n, rows, step);
                }
            }
        }
    }
}

/// A row of elements of one size, some of which are there.
fn gathers_within<const SIZE: usize>(size: ElementSize, n: usize, there: [usize; 2], step: isize) {
    let [low, high] = there;
    let src: Vec<u8> = (0..3 * n * SIZE + 1).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut dst = vec![0xa5u8; (n + 1) * SIZE + 1];
    let routine = super::gather_within::of_size(size);
    let from = src.as_ptr().wrapping_add(1);
    let fill = 0x1122_3344_5566_7788u64;
    let to = dst.as_mut_ptr().wrapping_add(1);
    // SAFETY: both have room for that number of positions.
    unsafe { routine(from, to, n, low, high, step * SIZE as isize, fill) };
    for p in 0..=n {
        let wanted = match p {
            p if p == n => [0xa5; SIZE].to_vec(),
            p if (low..high).contains(&p) => src[1 + p * step as usize * SIZE..][..SIZE].to_vec(),
            _ => fill.to_le_bytes()[..SIZE].to_vec(),
        };
        assert_eq!(dst[1 + p * SIZE..][..SIZE], wanted, "position {p} of {n}, {there:?}");
    }
}

#[test]
fn elements_that_are_not_there_are_filled() {
    for n in [1, 5, 16, 40] {
        for there in [[0, n], [0, 0], [n, n], [1, n], [n / 3, n / 2], [n / 2, n / 2]] {
            for step in [1, 2, 3] {
                gathers_within::<1>(ElementSize::One, n, there, step);
                gathers_within::<2>(ElementSize::Two, n, there, step);
                gathers_within::<4>(ElementSize::Four, n, there, step);
                gathers_within::<8>(ElementSize::Eight, n, there, step);
            }
        }
    }
}
