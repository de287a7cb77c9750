//! Transposed convolutions: lines of a few numbers and of several strips, windows of every kind,
//! and zeros around.

use super::{check, inputs, kernel};
use tracecast_ir::kernel::{Form, Moves, Transposed};
use tracecast_ir::{DType, Size, TensorType};

/// Groups, after how many of them weights come again, and the planes of each, of the operand and of
/// the result.
type Planes = [usize; 4];

/// Groups of one plane, and after how many of them weights come again; rows and columns of the
/// operand, and of the result; positions, stride and zeros in front along rows and along columns.
type Case = ([usize; 2], [usize; 2], [usize; 2], [[usize; 3]; 2]);

const CASES: [Case; 18] = [
    // Convolutions of networks: three positions and five, lines short and long.
    ([6, 3], [7, 7], [14, 14], [[5, 2, 2], [5, 2, 2]]),
    ([3, 3], [14, 14], [28, 28], [[5, 2, 2], [5, 2, 2]]),
    ([4, 2], [28, 28], [56, 56], [[3, 2, 1], [3, 2, 1]]),
    ([1, 1], [5, 112], [10, 224], [[3, 2, 1], [3, 2, 1]]),
    // Odd sizes, and no zeros in front.
    ([4, 4], [3, 4], [5, 7], [[3, 2, 1], [3, 2, 1]]),
    ([5, 5], [7, 8], [15, 17], [[3, 2, 0], [3, 2, 0]]),
    ([2, 1], [4, 41], [9, 83], [[3, 2, 0], [3, 2, 0]]),
    ([2, 2], [3, 200], [5, 399], [[2, 2, 0], [2, 2, 0]]),
    // Windows of an even number of positions, of one, and wider than what they see.
    ([3, 3], [4, 5], [8, 10], [[4, 2, 1], [4, 2, 1]]),
    ([3, 3], [4, 20], [8, 40], [[4, 2, 2], [6, 2, 3]]),
    ([2, 2], [5, 6], [10, 11], [[1, 2, 0], [1, 2, 0]]),
    ([2, 2], [5, 6], [10, 11], [[1, 2, 1], [1, 2, 1]]),
    ([2, 2], [2, 2], [3, 4], [[11, 2, 5], [9, 2, 4]]),
    // One row after the other, a single one, and a single column.
    ([3, 3], [6, 5], [6, 9], [[3, 1, 1], [3, 2, 1]]),
    ([3, 3], [1, 25], [1, 50], [[1, 1, 0], [7, 2, 3]]),
    ([3, 3], [6, 1], [11, 1], [[3, 2, 1], [3, 2, 1]]),
    // More of the result than windows reach, and less.
    ([2, 2], [3, 3], [19, 21], [[3, 2, 1], [3, 2, 1]]),
    ([2, 2], [9, 9], [4, 3], [[3, 2, 4], [5, 2, 7]]),
];

fn transposed(([groups, period], from, to, moves): Case, dtype: DType) {
    several([groups, period, 1, 1], (from, to, moves), dtype);
}

fn several(
    [groups, period, of_x, of_result]: Planes,
    (from, to, moves): ([usize; 2], [usize; 2], [[usize; 3]; 2]),
    dtype: DType,
) {
    let moves = moves.map(|[positions, stride, low]| Moves { positions, stride, low });
    let of = |lead: &[usize], [rows, columns]: [usize; 2]| {
        TensorType::new(dtype, &[lead, &[rows, columns]].concat()[..])
    };
    let window = moves.map(|moves| moves.positions);
    let form = Form::Transposed(Transposed {
        groups: Size::from(groups),
        period: Size::from(period),
        planes: [of_x, of_result].map(Size::from),
        from: from.map(Size::from),
        to: to.map(Size::from),
        moves,
    });
    let operands = vec![of(&[groups, of_x], from), of(&[period, of_x, of_result], window)];
    let k = kernel(operands, vec![of(&[groups, of_result], to)], form);
    for special in [false, true] {
        check(&k, &inputs(&k, 7, special));
    }
}

#[test]
fn planes_of_every_kind() {
    for dtype in DType::FLOATS {
        CASES.into_iter().for_each(|case| transposed(case, dtype));
    }
}

/// Vectors go across planes: fewer than a vector, several and a few more, and more steps than a
/// block.
#[test]
fn several_planes() {
    let three = [[3, 2, 1]; 2];
    for dtype in DType::FLOATS {
        for planes in [[2, 1, 4, 3], [4, 2, 3, 17], [1, 1, 2, 64], [3, 1, 5, 48]] {
            several(planes, ([4, 5], [8, 10], three), dtype);
        }
        several([2, 1, 2, 16], ([7, 7], [14, 14], [[5, 2, 2], [5, 2, 2]]), dtype);
        several([1, 1, 6, 20], ([3, 4], [5, 7], three), dtype);
        several([2, 1, 4, 33], ([5, 6], [10, 11], [[1, 2, 0], [1, 2, 1]]), dtype);
        several([2, 2, 2, 16], ([6, 5], [6, 9], [[3, 1, 1], [3, 2, 1]]), dtype);
        several([1, 1, 7, 18], ([1, 25], [1, 50], [[1, 1, 0], [7, 2, 3]]), dtype);
        several([1, 1, 4, 16], ([3, 3], [11, 13], three), dtype);
        several([1, 1, 4, 16], ([9, 9], [4, 3], [[3, 2, 4], [5, 2, 7]]), dtype);
        several([1, 1, 140, 16], ([2, 3], [4, 5], [[5, 2, 2], [3, 2, 1]]), dtype);
        // Bands of rows.
        several([1, 1, 2, 16], ([40, 90], [80, 180], three), dtype);
    }
}

/// Planes may have no elements, and there may be none.
#[test]
fn nothing() {
    let moves = [[3, 2, 1]; 2];
    for (planes, from, to) in [
        (0, [3, 3], [5, 5]),
        (2, [0, 4], [3, 3]),
        (2, [4, 0], [3, 3]),
        (2, [3, 3], [4, 0]),
        (2, [3, 3], [0, 4]),
    ] {
        transposed(([planes, 1], from, to, moves), DType::F32);
        several([planes, 1, 3, 20], (from, to, moves), DType::F32);
    }
}

/// One input may be both operands.
#[test]
fn an_operand_by_itself() {
    let ty = TensorType::new(DType::F32, [1usize, 3, 3]);
    let sizes = [3, 3].map(Size::from);
    let one = Size::from(1);
    let moves = [Moves { positions: 3, stride: 2, low: 1 }; 2];
    let form = Form::Transposed(Transposed {
        groups: one,
        period: one,
        planes: [one, one],
        from: sizes,
        to: sizes,
        moves,
    });
    let k = kernel(vec![ty.clone()], vec![ty], form);
    check(&k, &inputs(&k, 3, false));
}
