//! Transposed convolutions of several channels have the bits of their definition, for any blocking.

use super::super::{Cpu, Driver, Scratch, Transposed};
use super::{Tensor, sum};
use tracecast_ir::DType;
use tracecast_ir::kernel::Moves;

const WINDOW: usize = 9;

#[test]
fn weights_in_parts_of_planes() {
    // Weights fill more than half of a small L2 cache, some sums have more steps than a block, and
    // the last part has fewer planes.
    for (dtype, planes) in
        [(DType::F32, [141, 40]), (DType::BF16, [142, 33]), (DType::F64, [30, 17])]
    {
        // Only weights that are used once are packed in parts.
        [1, 2].into_iter().for_each(|groups| transposed(dtype, planes, groups, [[2, 3], [4, 6]]));
    }
}

#[test]
fn results_smaller_than_a_stride_and_bands_of_one_row() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        for (from, to) in [([1, 3], [1, 6]), ([3, 1], [6, 1]), ([1, 1], [1, 1])] {
            transposed(dtype, [6, 20], 2, [from, to]);
        }
        // Caches are small enough for bands, the last of one row.
        transposed(dtype, [140, 40], 1, [[3, 6], [5, 12]]);
        (5..9).for_each(|rows| transposed(dtype, [16, 33], 2, [[rows, 9], [2 * rows - 1, 17]]));
    }
}

fn transposed(
    dtype: DType,
    [of_x, of_result]: [usize; 2],
    groups: usize,
    [from, to]: [[usize; 2]; 2],
) {
    let moves = [Moves { positions: 3, stride: 2, low: 1 }; 2];
    let ([rows, columns], [height, width]) = (from, to);
    let x = Tensor::new(dtype, groups * of_x * rows * columns, 3, (1, 1));
    let weight = Tensor::new(dtype, of_x * of_result * WINDOW, 5, (1, 1));
    let acc = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let want = |plane: usize, [row, column]: [usize; 2]| {
        let ((top, first_row, above), (left, first_column, beside)) =
            (moves[0].met(row), moves[1].met(column));
        let seen = above * beside;
        // Numbers of two planes alternate where they are bf16.
        let together = if dtype == DType::BF16 { 2 } else { 1 };
        let step = |p: usize| {
            let (pair, nth) = (p / (seen * together), p % (seen * together));
            let position = nth / together;
            (pair * together + nth % together, position / beside, position % beside)
        };
        let left_of = |p: usize| {
            let (channel, i, j) = step(p);
            let at = (top + 2 * i) * 3 + left + 2 * j;
            weight.get((channel * of_result + plane % of_result) * WINDOW + at, 0)
        };
        let right_of = |p: usize| {
            let (channel, i, j) = step(p);
            let at = [first_row.wrapping_sub(i), first_column.wrapping_sub(j)];
            if at[0] >= rows || at[1] >= columns {
                return 0.0;
            }
            let plane = plane / of_result * of_x + channel;
            x.get((plane * rows + at[0]) * columns + at[1], 0)
        };
        sum(acc, of_x * seen, left_of, right_of)
    };
    for cpu in &Cpu::all() {
        let mut found = 0;
        let mut hand = |planes: std::ops::Range<usize>,
                        of: std::ops::Range<usize>,
                        sums: *const u8| {
            let all = planes.clone().flat_map(|plane| {
                of.clone().flat_map(move |row| (0..width).map(move |column| (plane, [row, column])))
            });
            for (at, (plane, place)) in all.enumerate() {
                let bits = if acc == DType::F64 {
                    // SAFETY: a sum that the epilogue gets.
                    unsafe { sums.cast::<u64>().wrapping_add(at).read() }
                } else {
                    // SAFETY: as above.
                    u64::from(unsafe { sums.cast::<u32>().wrapping_add(at).read() })
                };
                assert_eq!(
                    bits,
                    want(plane, place),
                    "{dtype}, {groups} groups, plane {plane} at {place:?}, by {cpu:?}"
                );
                found += 1;
            }
        };
        let work = Transposed {
            cpu,
            dtype,
            period: 1,
            planes: [of_x, of_result],
            from,
            to,
            moves,
            operands: [x.bytes.as_ptr(), weight.bytes.as_ptr()],
            sums: std::ptr::null_mut(),
            groups: 0..groups,
            part: 0..of_result,
        };
        // SAFETY: the CPU is this one, and operands have elements for all groups.
        unsafe { work.run(&mut Scratch::default(), &mut hand) };
        assert_eq!(found, groups * of_result * height * width);
    }
}
