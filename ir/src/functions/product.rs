//! Products that are products of matrices after axes are put in order.

use super::{axis, few, named, size};
use crate::ops::einsum::EINSUM;
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::Products;
use crate::ops::listed::Listed;
use crate::ops::view::{Views, cat};
use crate::{Args, Attrs, Size, Var};

impl<'t> Var<'t> {
    /// Each element of a vector times each of another:
    /// [`torch.outer`](https://docs.pytorch.org/docs/stable/generated/torch.outer.html).
    #[track_caller]
    pub fn outer(self, other: Var<'t>) -> Var<'t> {
        named(self, "outer", || {
            if self.rank() != 1 || other.rank() != 1 {
                return Err(format!("takes two vectors, found {}", other.ty()));
            }
            Ok(self.unsqueeze(1).mul(other.unsqueeze(0)))
        })
    }

    /// The products of the vectors along the last axes of both:
    /// [`torch.inner`](https://docs.pytorch.org/docs/stable/generated/torch.inner.html).
    #[track_caller]
    pub fn inner(self, other: Var<'t>) -> Var<'t> {
        named(self, "inner", || {
            if self.rank() == 0 || other.rank() == 0 {
                return Ok(self.mul(other));
            }
            Ok(self.tensordot(other, &[-1], &[-1]))
        })
    }

    /// The products summed over axes of both, which are taken in pairs:
    /// [`torch.tensordot`](https://docs.pytorch.org/docs/stable/generated/torch.tensordot.html). An
    /// axis of size 1 goes with one of any size. Autocast decides about it by its name.
    ///
    /// ```
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("tensordot");
    /// let x = t.input("x", TensorType::new(DType::F32, [2, 3, 5]));
    /// let y = t.input("y", TensorType::new(DType::F32, [5, 3, 4]));
    /// assert_eq!(x.tensordot(y, &[1, 2], &[1, 0]).ty().to_string(), "f32[2, 4]");
    /// ```
    #[track_caller]
    pub fn tensordot(self, other: Var<'t>, mine: &[i64], theirs: &[i64]) -> Var<'t> {
        Listed::tensordot(self, other, mine, theirs)
    }

    /// The matrix to that power:
    /// [`torch.linalg.matrix_power`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.matrix_power.html)
    /// for powers that are not negative.
    #[track_caller]
    pub fn matrix_power(self, n: i64) -> Var<'t> {
        named(self, "matrix_power", || {
            let rank = self.rank();
            if rank < 2 || self.size(rank - 1) != self.size(rank - 2) {
                return Err("takes square matrices".to_owned());
            }
            if n < 0 && self.ty().numel() != 0 {
                return Err(format!("the inverse for the power of {n} is not here"));
            }
            let side = size(self, rank - 1)?;
            let one = self.tracer().eye(side, side, self.dtype()).expand_to(&self.shape());
            let (mut rest, mut square, mut y) = (n.unsigned_abs(), self, None);
            while rest > 0 {
                if rest % 2 == 1 {
                    y = Some(y.map_or(square, |y: Var<'t>| y.matmul(square)));
                }
                rest /= 2;
                if rest > 0 {
                    square = square.matmul(square);
                }
            }
            Ok(y.unwrap_or(one))
        })
    }

    /// Each element times all of another tensor:
    /// [`torch.kron`](https://docs.pytorch.org/docs/stable/generated/torch.kron.html).
    #[track_caller]
    pub fn kron(self, other: Var<'t>) -> Var<'t> {
        named(self, "kron", || {
            let rank = self.rank().max(other.rank());
            let filled = |x: Var<'t>| {
                let fresh = vec![Size::from(1); rank - x.rank()];
                fresh.into_iter().chain(x.shape().iter().copied()).collect::<Vec<Size>>()
            };
            let (a, b) = (filled(self), filled(other));
            let one = Size::from(1);
            let left: Vec<Size> = a.iter().flat_map(|n| [*n, one]).collect();
            let right: Vec<Size> = b.iter().flat_map(|n| [one, *n]).collect();
            let whole: Vec<Size> = a.iter().zip(&b).map(|(a, b)| *a * *b).collect();
            Ok(self.reshape(&left).mul(other.reshape(&right)).reshape(&whole))
        })
    }

    /// The vector products along an axis of size 3:
    /// [`torch.cross`](https://docs.pytorch.org/docs/stable/generated/torch.cross.html). Autocast
    /// decides about it by its name.
    #[track_caller]
    pub fn cross(self, other: Var<'t>, dim: i64) -> Var<'t> {
        Listed::cross(self, other, dim)
    }

    /// `Σ x1[.., i] * weight[k, i, j] * x2[.., j] + bias[k]`:
    /// [`torch.nn.functional.bilinear`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.bilinear.html).
    /// Autocast decides about it by its name.
    #[track_caller]
    pub fn bilinear(self, other: Var<'t>, weight: Var<'t>, bias: Option<Var<'t>>) -> Var<'t> {
        Listed::bilinear(self, other, weight, bias)
    }
}

/// The product of matrices in the order that costs least, the first and the last of which may be
/// vectors:
/// [`torch.linalg.multi_dot`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.multi_dot.html).
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn multi_dot<'t>(xs: &[Var<'t>]) -> Var<'t> {
    let first = *xs.first().expect("takes at least one tensor");
    named(first, "multi_dot", || {
        if xs.len() < 2 {
            return Err("takes at least two tensors".to_owned());
        }
        let ends = [0, xs.len() - 1];
        let fits = |(i, x): (usize, &Var<'t>)| x.rank() == 2 || x.rank() == 1 && ends.contains(&i);
        if !xs.iter().enumerate().all(fits) {
            return Err("takes matrices between two vectors or matrices".to_owned());
        }
        Ok(in_cheapest_order(xs))
    })
}

/// A chain of products; from left to right if a size is a name.
fn in_cheapest_order<'t>(xs: &[Var<'t>]) -> Var<'t> {
    let count = xs.len();
    let sides = xs.iter().enumerate().flat_map(|(i, x)| match (x.rank(), i) {
        (1, 0) => [Some(1), x.size(0).number()],
        (1, _) => [x.size(0).number(), Some(1)],
        _ => [x.size(0).number(), x.size(1).number()],
    });
    let Some(sides) = sides.collect::<Option<Vec<i64>>>() else {
        return xs[1..].iter().fold(xs[0], |y, x| y.matmul(*x));
    };
    let side = |i: usize| if i < count { sides[2 * i] as f64 } else { sides[2 * count - 1] as f64 };
    // The cost of each part of the chain, and behind which factor it is cut.
    let mut best = vec![vec![(0.0, 0); count]; count];
    for length in 1..count {
        for from in 0..count - length {
            let to = from + length;
            let cost = |cut: usize| {
                let both = best[from][cut].0 + best[cut + 1][to].0;
                (both + side(from) * side(cut + 1) * side(to + 1), cut)
            };
            // Of equal costs the first cut; of three factors the last, as PyTorch does.
            let cheaper = |a: (f64, usize), b: (f64, usize)| {
                let takes_last = count == 3 && b.0 == a.0;
                if b.0 < a.0 || takes_last { b } else { a }
            };
            let least = (from..to).map(cost).reduce(cheaper);
            best[from][to] = least.unwrap_or_default();
        }
    }
    product_of(xs, 0, count - 1, &|from, to| best[from][to].1)
}

fn product_of<'t>(
    xs: &[Var<'t>],
    from: usize,
    to: usize,
    cut: &dyn Fn(usize, usize) -> usize,
) -> Var<'t> {
    if from == to {
        return xs[from];
    }
    let at = cut(from, to);
    product_of(xs, from, at, cut).matmul(product_of(xs, at + 1, to, cut))
}

/// Sums of products, as an equation says it:
/// [`torch.einsum`](https://docs.pytorch.org/docs/stable/generated/torch.einsum.html). Autocast
/// decides about it by its name.
///
/// Two operands at a time become one by a batch of products of matrices, from left to right.
///
/// ```
/// use tracecast_ir::functions::einsum;
/// use tracecast_ir::{DType, TensorType, Tracer};
/// let t = Tracer::new("einsum");
/// let x = t.input("x", TensorType::new(DType::F32, [2, 3, 5]));
/// let y = t.input("y", TensorType::new(DType::F32, [2, 5, 4]));
/// assert_eq!(einsum("bij,bjk->bki", &[x, y]).ty().to_string(), "f32[2, 4, 3]");
/// ```
///
/// # Panics
/// If there are no tensors.
#[track_caller]
pub fn einsum<'t>(equation: &str, xs: &[Var<'t>]) -> Var<'t> {
    let first = *xs.first().expect("takes at least one tensor");
    let mut args = Args::new();
    args.push(xs.iter().copied());
    first.tracer().apply(&EINSUM, args, Attrs::new().with("equation", equation))[0]
}

/// The differences of neighbours along an axis, `n` times:
/// [`torch.diff`](https://docs.pytorch.org/docs/stable/generated/torch.diff.html), with tensors put
/// before and behind first.
#[track_caller]
pub fn diff<'t>(
    x: Var<'t>,
    n: i64,
    dim: i64,
    before: Option<Var<'t>>,
    behind: Option<Var<'t>>,
) -> Var<'t> {
    named(x, "diff", || {
        let axis = axis(x, dim)?;
        if n < 0 {
            return Err(format!("{n} times"));
        }
        if n == 0 {
            return Ok(x);
        }
        let all: Vec<Var<'t>> = before.into_iter().chain([x]).chain(behind).collect();
        let mut y = if all.len() > 1 { cat(&all, axis as i64) } else { x };
        if n >= size(y, axis)? {
            return Ok(y.slice(axis as i64, 0, 0, 1));
        }
        for _ in 0..few(n, "steps")? {
            let whole = size(y, axis)?;
            let part = |from: i64, to: i64| y.slice(axis as i64, from, to, 1);
            let (next, first) = (part(1, whole), part(0, whole - 1));
            let is_bool = y.dtype() == crate::DType::Bool;
            y = if is_bool { next.ne(first) } else { next.sub(first) };
        }
        Ok(y)
    })
}
