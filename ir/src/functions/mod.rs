//! PyTorch's functions that are other ops under a name of their own: methods on [`Var`] that record
//! those ops, under the caller's line.
//!
//! A function stands here, and not in the op table, where autocast decides nothing about it and its
//! result is not rounded: it only moves elements, chooses among them, or counts. So programs hold
//! ops that passes know already, and [`ops`](mod@crate::ops) has no entry for it. Dims may count
//! from the end everywhere. Results are values of their own: nothing here is a view of memory.

mod activation;
mod attention;
mod binary;
mod create;
mod diagonal;
mod index;
mod indexing;
mod join;
mod loss;
mod masked_fill;
mod multi_head;
mod norm;
mod number;
mod operand_or_number;
mod order;
mod pad;
mod pool;
mod product;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod reversed_ops;
mod search;
mod split;
mod view;
mod windows;

pub use crate::ops::padding::PadMode;
pub use indexing::Pick;
pub use join::{
    block_diag, broadcast_tensors, column_stack, dstack, hstack, meshgrid, stack, vstack,
};
pub use multi_head::MultiHead;
pub use product::{diff, einsum, multi_dot};
pub use recurrent::{Carried, Cell, Recurrent};
pub use reversed_ops::{
    bitwise_left_shift, bitwise_right_shift, float_power, floor_divide, pow, remainder, xlog1py,
    xlogy,
};

use crate::{Shape, Size, Var, unknown};

/// What a function makes, or why it cannot.
type Made<T> = Result<T, String>;

/// Records a function of `x` with the line of its caller; every error names it, and the operand.
#[track_caller]
fn named<'t>(x: Var<'t>, name: &'static str, body: impl FnOnce() -> Made<Var<'t>>) -> Var<'t> {
    recorded(x, name, body).unwrap_or_else(|failed| failed)
}

/// As [`named`], of a function with several results: one failed value if it cannot.
#[track_caller]
fn named_all<'t>(
    x: Var<'t>,
    name: &'static str,
    body: impl FnOnce() -> Made<Vec<Var<'t>>>,
) -> Vec<Var<'t>> {
    recorded(x, name, body).unwrap_or_else(|failed| vec![failed])
}

/// As [`named_all`], of a function with `count` results, also if it cannot. Where the count is not
/// known without sizes, user code that goes on with the list is wrong about it.
#[track_caller]
fn named_parts<'t>(
    x: Var<'t>,
    name: &'static str,
    count: Option<usize>,
    body: impl FnOnce() -> Made<Vec<Var<'t>>>,
) -> Vec<Var<'t>> {
    match (recorded(x, name, body), count) {
        (Ok(parts), _) => parts,
        (Err(failed), Some(count)) => vec![failed; count],
        (Err(failed), None) => {
            unknown::asked();
            vec![failed]
        }
    }
}

/// What a function of `x` makes, or the value that stands for what failed.
#[track_caller]
fn recorded<'t, T>(
    x: Var<'t>,
    name: &'static str,
    body: impl FnOnce() -> Made<T>,
) -> Result<T, Var<'t>> {
    if x.is_poison() {
        return Err(x);
    }
    let _library = unknown::exempt();
    let t = x.tracer();
    let _line = t.come_to_caller();
    let _function = t.enter_function(name, Some(x.ty()));
    body().map_err(|why| cannot(x, name, &why))
}

/// The value that stands for a function of `x` that failed. Apart from [`recorded`], which is
/// compiled once for every function.
#[inline(never)]
fn cannot<'t>(x: Var<'t>, name: &'static str, why: &str) -> Var<'t> {
    x.tracer().fail(name, format!("{why}, of {}", x.ty()))
}

/// An axis that there is: a tensor without axes has none.
fn axis(x: Var<'_>, dim: i64) -> Made<usize> {
    let shape = x.shape();
    if shape.rank() == 0 {
        return Err(format!("axis {dim} is out of range: there are no axes"));
    }
    shape.axis(dim)
}

/// The size of an axis as a number.
fn size(x: Var<'_>, axis: usize) -> Made<i64> {
    let size = x.size(axis);
    size.number()
        .ok_or_else(|| format!("axis {axis} is {size}, and has to be a number: pin the size"))
}

/// More parts, or more steps, are not recorded: each is an op or two of the program.
const MOST_PARTS: i64 = 1 << 16;

/// More numbers are not written into a program.
const MOST_NUMBERS: i64 = 1 << 24;

/// The number of parts or steps, if they are not too many for a program.
fn few(count: i64, what: &str) -> Made<i64> {
    if count > MOST_PARTS {
        return Err(format!("makes {count} {what}, of which a program has at most {MOST_PARTS}"));
    }
    Ok(count)
}

/// The shape with another size along an axis.
fn resized(shape: &Shape, axis: usize, size: impl Into<Size>) -> Shape {
    let mut sizes = shape.to_vec();
    sizes[axis] = size.into();
    Shape::new(&sizes)
}
