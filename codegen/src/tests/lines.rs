//! Scans of lines: rows, columns and what lies between, of every dtype, in pieces and side by side.

use super::{check, inputs, kernel};
use tracecast_ir::kernel::line::{Scan, Work};
use tracecast_ir::kernel::{Form, Lines};
use tracecast_ir::{DType, Size, TensorType};

/// Positions before the axis, elements of a line, positions behind: fewer lines than lie side by
/// side and more, lines of one element, of a piece, and of several.
const LAYOUTS: [[usize; 3]; 12] = [
    [1, 1, 1],
    [1, 700, 1],
    [3, 129, 1],
    [4, 128, 1],
    [16, 5, 1],
    [37, 260, 1],
    [2, 9, 3],
    [5, 140, 7],
    [1, 130, 16],
    [2, 33, 45],
    [1, 131, 150],
    [3, 1, 64],
];

fn scan(scan: Scan, reverse: bool, dtype: DType, [outer, length, inner]: [usize; 3]) {
    let work = Work::Scan { scan, reverse };
    let ty = |dtype| TensorType::new(dtype, [outer, length, inner]);
    let operands = if work.takes_two() { 2 } else { 1 };
    let output = ty(if work.is_position() { DType::I64 } else { dtype });
    let [outer, length, inner] = [outer, length, inner].map(Size::from);
    let form = Form::Lines(Lines { work, outer, length, inner, kept: length });
    let k = kernel(vec![ty(dtype); operands], vec![output], form);
    for special in [false, true] {
        check(&k, &inputs(&k, 7, special));
    }
}

#[test]
fn scans_of_every_kind() {
    for dtype in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::U8,
        DType::Bool,
    ] {
        for (i, how) in Scan::ALL.into_iter().enumerate() {
            if how == Scan::LogSumExp && !dtype.is_float() {
                continue;
            }
            for (j, layout) in LAYOUTS.into_iter().enumerate() {
                let reverse = (i + j) % 2 == 0;
                scan(how, reverse, dtype, layout);
                if dtype == DType::F32 {
                    scan(how, !reverse, dtype, layout);
                }
            }
        }
    }
}

/// One input may be both operands, and lines may have no elements.
#[test]
fn scans_of_one_operand_twice_and_of_nothing() {
    let [outer, length, inner] = [20, 40, 1].map(Size::from);
    let work = Work::Scan { scan: Scan::Recurrence, reverse: true };
    let ty = TensorType::new(DType::F32, [20usize, 40]);
    let form = Form::Lines(Lines { work, outer, length, inner, kept: length });
    let k = kernel(vec![ty.clone()], vec![ty], form);
    check(&k, &inputs(&k, 3, false));
    for layout in [[0, 5, 3], [4, 0, 3], [30, 0, 1], [4, 5, 0]] {
        scan(Scan::Sum, false, DType::F32, layout);
    }
}
