//! The products of the benches, each with its program; schedules are chosen for them in tests as
//! well.

use tracecast::Graph;
use tracecast::prelude::*;

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Rows, summed axis, columns, and whether the left and the right operand are transposed.
pub(crate) type Shape = (usize, usize, usize, [bool; 2]);

/// The square, layers and their gradients, and sizes without much to do.
pub(crate) const SHAPES: [Shape; 26] = [
    (1024, 1024, 1024, [false, false]),
    (1024, 1024, 1024, [true, false]),
    (1024, 1024, 1024, [false, true]),
    (1024, 1024, 1024, [true, true]),
    (256, 784, 1024, [false, true]),
    (256, 1024, 1024, [false, true]),
    (256, 1024, 1024, [false, false]),
    (1024, 256, 1024, [true, false]),
    (784, 256, 1024, [true, false]),
    (256, 1024, 10, [false, true]),
    (256, 10, 1024, [false, false]),
    (10, 256, 1024, [true, false]),
    (32, 64, 128, [false, true]),
    (32, 128, 10, [false, true]),
    (128, 32, 64, [true, false]),
    (100, 100, 100, [false, false]),
    (768, 64, 768, [false, true]),
    (768, 768, 64, [false, false]),
    (16, 768, 3072, [false, true]),
    (16, 768, 3072, [false, false]),
    (3, 768, 768, [false, false]),
    (1, 768, 768, [false, false]),
    (1, 768, 768, [false, true]),
    (768, 768, 1, [false, false]),
    (768, 3, 768, [false, false]),
    (3072, 768, 16, [false, false]),
];

/// The extents of large contractions.
const EXTENTS: [usize; 7] = [1, 3, 16, 64, 100, 768, 3072];

/// Up to this number of products, tests compare all results of the contractions of these extents
/// with sums in f64.
const TESTED: usize = 1 << 24;

/// Contractions of the [`EXTENTS`] that are not tested.
pub(crate) fn large() -> Vec<Shape> {
    let pairs = EXTENTS.into_iter().flat_map(|m| EXTENTS.map(|k| (m, k)));
    let all = pairs.flat_map(|(m, k)| EXTENTS.map(|n| (m, k, n)));
    let large = all.filter(|(m, k, n)| m * k * n > TESTED).enumerate();
    large.map(|(i, (m, k, n))| (m, k, n, [i % 2 == 1, i / 2 % 2 == 1])).collect()
}

/// Sizes, and `t` for an operand that is transposed.
pub(crate) fn name((m, k, n, [left, right]): Shape) -> String {
    let letter = |transposed| if transposed { 't' } else { 'n' };
    format!("{m}x{k}x{n} {}{}", letter(left), letter(right))
}

/// The product in one dtype.
pub(crate) fn graph((m, k, n, transposed): Shape, dtype: DType) -> Graph {
    fn operand<'t>(t: &'t Trace, name: &str, ty: TensorType, transposed: bool) -> Var<'t> {
        if !transposed {
            return t.state_of(name, ty);
        }
        let [rows, cols] = ty.shape[..] else { unreachable!("operands are matrices") };
        t.state_of(name, TensorType::new(ty.dtype, [cols, rows])).t()
    }
    let [left, right] = [[m, k], [k, n]].map(|shape| TensorType::new(dtype, shape));
    trace("product", |t: &Trace| {
        let a = operand(t, "a", left, transposed[0]);
        let y = a.matmul(operand(t, "b", right, transposed[1]));
        t.update(t.state_of("y", y.ty()), y);
    })
    .expect("a program")
}
