//! Products that are products of matrices after axes are put in order.

use super::{Made, axis, few, named, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::linalg::{Products, product};
use crate::ops::products::MatrixProducts;
use crate::ops::reduce::Reductions;
use crate::ops::view::{Views, cat};
use crate::{IntoDims, Shape, Size, Var};

impl<'t> Var<'t> {
    /// Each element of a vector times each of another: [`torch.outer`](https://docs.pytorch.org/docs/stable/generated/torch.outer.html).
    #[track_caller]
    pub fn outer(self, other: Var<'t>) -> Var<'t> {
        named(self, "outer", || {
            if self.rank() != 1 || other.rank() != 1 {
                return Err(format!("takes two vectors, found {}", other.ty()));
            }
            Ok(self.unsqueeze(1).mul(other.unsqueeze(0)))
        })
    }

    /// The products of the vectors along the last axes of both: [`torch.inner`](https://docs.pytorch.org/docs/stable/generated/torch.inner.html).
    #[track_caller]
    pub fn inner(self, other: Var<'t>) -> Var<'t> {
        named(self, "inner", || {
            if self.rank() == 0 || other.rank() == 0 {
                return Ok(self.mul(other));
            }
            Ok(self.tensordot(other, &[-1], &[-1]))
        })
    }

    /// The products summed over axes of both, which are taken in pairs: [`torch.tensordot`](https://docs.pytorch.org/docs/stable/generated/torch.tensordot.html).
    /// An axis of size 1 goes with one of any size.
    #[track_caller]
    pub fn tensordot(self, other: Var<'t>, mine: &[i64], theirs: &[i64]) -> Var<'t> {
        named(self, "tensordot", || {
            if mine.len() != theirs.len() {
                return Err(format!("{mine:?} and {theirs:?} are not as many axes"));
            }
            if let Some((x, y)) = self.with_axes_as(mine, other, theirs)? {
                return Ok(x.tensordot(y, mine, theirs));
            }
            let resolved = |x: Var<'t>, dims: &[i64]| {
                dims.iter().map(|d| axis(x, *d)).collect::<Made<Vec<usize>>>()
            };
            let (a, b) = (resolved(self, mine)?, resolved(other, theirs)?);
            let rest = |x: Var<'t>, taken: &[usize]| {
                (0..x.rank()).filter(|i| !taken.contains(i)).collect::<Vec<usize>>()
            };
            let (rows, columns) = (rest(self, &a), rest(other, &b));
            let order = |axes: &[usize], more: &[usize]| {
                axes.iter().chain(more).map(|i| *i as i64).collect::<Vec<i64>>()
            };
            let sizes =
                |x: Var<'t>, axes: &[usize]| axes.iter().map(|i| x.size(*i)).collect::<Vec<Size>>();
            let count = |sizes: &[Size]| sizes.iter().product::<Size>();
            let (outer, more, inner) =
                (sizes(self, &rows), sizes(other, &columns), sizes(self, &a));
            if inner != sizes(other, &b) {
                return Err(format!("the axes {mine:?} and {theirs:?} differ, of {}", other.ty()));
            }
            if count(&outer) == 1 && count(&more) == 1 {
                // One number: autocast has no word about it.
                let y = other.permute(order(&b, &columns)).reshape([count(&inner)]);
                let x = self.permute(order(&a, &rows)).reshape([count(&inner)]);
                let y = x.mul(y);
                let shape = outer.iter().chain(&more).copied().collect();
                return Ok(y.sum(().dtype(y.dtype())).reshape_to(&shape));
            }
            let x = self.permute(order(&rows, &a)).reshape([count(&outer), count(&inner)]);
            let y = other.permute(order(&b, &columns)).reshape([count(&inner), count(&more)]);
            Ok(x.mm(y).reshape_to(&outer.iter().chain(&more).copied().collect()))
        })
    }

    /// Both with axes that go in pairs, of which one is summed where the other has size 1; `None` if they do as they are.
    fn with_axes_as(
        self,
        mine: &[i64],
        other: Var<'t>,
        theirs: &[i64],
    ) -> Made<Option<(Var<'t>, Var<'t>)>> {
        let (mut x, mut y, mut are_summed) = (self, other, false);
        for (mine, theirs) in mine.iter().zip(theirs) {
            let (a, b) = (x.size(axis(x, *mine)?), y.size(axis(y, *theirs)?));
            if a == 1 && b != 1 {
                y = y.sum([*theirs].keep().dtype(y.dtype()));
            } else if b == 1 && a != 1 {
                x = x.sum([*mine].keep().dtype(x.dtype()));
            }
            are_summed |= a != b && (a == 1 || b == 1);
        }
        Ok(are_summed.then_some((x, y)))
    }

    /// The matrix to that power: [`torch.linalg.matrix_power`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.matrix_power.html)
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

    /// Each element times all of another tensor: [`torch.kron`](https://docs.pytorch.org/docs/stable/generated/torch.kron.html).
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

    /// The vector products along an axis of size 3: [`torch.linalg.cross`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.cross.html).
    #[track_caller]
    pub fn cross(self, other: Var<'t>, dim: i64) -> Var<'t> {
        named(self, "cross", || {
            if self.rank() != other.rank() {
                return Err(format!("takes as many axes as {}", other.ty()));
            }
            let axis = axis(self, dim)?;
            if self.size(axis) != 3 || other.size(axis) != 3 {
                return Err(format!("axis {dim} is not of size 3, beside {}", other.ty()));
            }
            let turned = |x: Var<'t>, by: i64| x.roll(&[-by], &[axis as i64]);
            let first = turned(self, 1).mul(turned(other, 2));
            Ok(first.sub(turned(self, 2).mul(turned(other, 1))))
        })
    }

    /// `Σ x1[.., i] * weight[k, i, j] * x2[.., j] + bias[k]`: [`torch.nn.functional.bilinear`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.bilinear.html).
    #[track_caller]
    pub fn bilinear(self, other: Var<'t>, weight: Var<'t>, bias: Option<Var<'t>>) -> Var<'t> {
        named(self, "bilinear", || {
            let (inner, own) = (self.rank() as i64 - 1, other.rank() as i64 - 1);
            if weight.rank() != 3 || inner != own || inner < 0 {
                return Err(format!("takes a weight of three axes, found {}", weight.ty()));
            }
            // [.., out, in2] and then along in2 with the second operand. Autocast has no word about it.
            let (out, own, second) = (weight.size(0), weight.size(1), weight.size(2));
            let table = weight.permute([1, 0, 2]).reshape([own, out * second]);
            let outer = self.shape()[..self.rank() - 1].to_vec();
            let rows = self.reshape([outer.iter().product::<Size>(), own]);
            let shape: Shape = outer.iter().chain([&out, &second]).copied().collect();
            let half = product(rows, table).reshape_to(&shape);
            let y = half.mul(other.unsqueeze(-2)).sum([-1].dtype(half.dtype()));
            Ok(bias.map_or(y, |bias| y.add(bias)))
        })
    }
}

/// The product of matrices in the order that costs least, the first and the last of which may be vectors: [`torch.linalg.multi_dot`](https://docs.pytorch.org/docs/stable/generated/torch.linalg.multi_dot.html).
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

/// Sums of products, as an equation says it: [`torch.einsum`](https://docs.pytorch.org/docs/stable/generated/torch.einsum.html).
///
/// Two operands at a time become one by a batch of products of matrices, from left to right.
///
/// # Panics
/// If there are no tensors.
#[track_caller]
pub fn einsum<'t>(equation: &str, xs: &[Var<'t>]) -> Var<'t> {
    let first = *xs.first().expect("takes at least one tensor");
    named(first, "einsum", || {
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) =
            text.split_once("->").map_or((&text[..], None), |(a, b)| (a, Some(b)));
        let labels: Vec<&str> = inputs.split(',').collect();
        if labels.len() != xs.len() {
            return Err(format!("{equation:?} is of {} tensors, found {}", labels.len(), xs.len()));
        }
        let most = |l: &&str, x: &Var<'t>| x.rank().saturating_sub(l.replace("...", "").len());
        let dots = labels.iter().zip(xs).filter(|(l, _)| l.contains("..."));
        let dots = dots.map(|(l, x)| most(l, x)).max().unwrap_or(0);
        let written = labels.concat().replace("...", "");
        let output = match output {
            Some(output) => full(output, dots, dots)?,
            None => {
                let mut once: Vec<char> = written.chars().collect();
                once.sort_unstable();
                once.retain(|c| written.matches(*c).count() == 1);
                full(&format!("...{}", once.into_iter().collect::<String>()), dots, dots)?
            }
        };
        let mut terms = Vec::new();
        for (label, x) in labels.iter().zip(xs) {
            terms.push(term(&full(label, dots, most(label, x))?, *x)?);
        }
        let mut terms = terms.into_iter();
        let mut y = terms.next().ok_or("no tensors")?;
        let mut rest: Vec<(Vec<char>, Var<'t>)> = terms.collect();
        while !rest.is_empty() {
            let next = rest.remove(0);
            let is_needed =
                |c: &char| output.contains(c) || rest.iter().any(|(l, _)| l.contains(c));
            y = joined(y, next, &is_needed)?;
        }
        let (label, x) = summed(y, &|c| output.contains(c));
        if let Some(c) = output.iter().find(|c| !label.contains(c)) {
            return Err(format!("the result has {c:?}, which no tensor has"));
        }
        let place = |c: &char| label.iter().position(|l| l == c).map(|i| i as i64);
        let order: Option<Vec<i64>> = output.iter().map(place).collect();
        Ok(x.permute(&order.ok_or("an axis is missing")?))
    })
}

/// The labels of axes, with digits from the end for what dots stand for.
fn full(label: &str, dots: usize, own: usize) -> Made<Vec<char>> {
    let digits: String = ('0'..='9').take(dots).collect();
    let own = digits.get(dots.saturating_sub(own)..).ok_or("too many axes for dots")?;
    let all: Vec<char> = label.replace("...", own).chars().collect();
    let wrong = all.iter().find(|c| !c.is_ascii_alphanumeric());
    wrong.map_or(Ok(all.clone()), |c| Err(format!("{c:?} is no label")))
}

/// An operand with each of its labels once: of repeated ones the diagonal.
fn term<'t>(label: &[char], x: Var<'t>) -> Made<(Vec<char>, Var<'t>)> {
    if label.len() != x.rank() {
        return Err(format!("{} axes are named of {}", label.len(), x.ty()));
    }
    let (mut label, mut x) = (label.to_vec(), x);
    while let Some(second) = (1..label.len()).find(|i| label[..*i].contains(&label[*i])) {
        let c = label[second];
        let first = label.iter().position(|l| *l == c).ok_or("a label is missing")?;
        x = x.diagonal(0, first as i64, second as i64);
        label.remove(second);
        label.remove(first);
        label.push(c);
    }
    Ok((label, x))
}

/// Without the axes that nobody needs.
fn summed<'t>(
    term: (Vec<char>, Var<'t>),
    is_needed: &dyn Fn(&char) -> bool,
) -> (Vec<char>, Var<'t>) {
    let (label, x) = term;
    let gone: Vec<i64> =
        (0..label.len()).filter(|i| !is_needed(&label[*i])).map(|i| i as i64).collect();
    if gone.is_empty() {
        return (label, x);
    }
    let y = x.sum((&gone).dtype(x.dtype()));
    (label.into_iter().filter(|c| is_needed(c)).collect(), y)
}

/// Two operands as one: `[batch, rows, inner] · [batch, inner, columns]`.
fn joined<'t>(
    a: (Vec<char>, Var<'t>),
    b: (Vec<char>, Var<'t>),
    is_needed: &dyn Fn(&char) -> bool,
) -> Made<(Vec<char>, Var<'t>)> {
    let other = b.0.clone();
    let a = summed(a, &|c| is_needed(c) || other.contains(c));
    let mine = a.0.clone();
    let b = summed(b, &|c| is_needed(c) || mine.contains(c));
    let of = |list: &[char], holds: &dyn Fn(&char) -> bool| -> Vec<char> {
        list.iter().copied().filter(|c| holds(c)).collect()
    };
    let batch = of(&a.0, &|c| b.0.contains(c) && is_needed(c));
    let inner = of(&a.0, &|c| b.0.contains(c) && !is_needed(c));
    let rows = of(&a.0, &|c| !b.0.contains(c));
    let columns = of(&b.0, &|c| !a.0.contains(c));
    let size_of = |c: &char| {
        let find = |(label, x): &(Vec<char>, Var<'t>)| {
            label.iter().position(|l| l == c).map(|i| x.size(i))
        };
        let sizes = [find(&a), find(&b)];
        sizes.into_iter().flatten().find(|n| *n != 1).unwrap_or(Size::from(1))
    };
    let sizes = |list: &[char]| list.iter().map(size_of).collect::<Vec<Size>>();
    let count = |list: &[char]| sizes(list).iter().product::<Size>();
    let shaped = |(label, x): &(Vec<char>, Var<'t>), groups: [&[char]; 3]| {
        let names = groups.concat();
        let place = |c: &char| label.iter().position(|l| l == c).map(|i| i as i64);
        let order: Option<Vec<i64>> = names.iter().map(place).collect();
        let x = x.permute(&order.ok_or("a label is missing")?).expand(&sizes(&names));
        Ok::<_, String>(x.reshape(groups.map(count)))
    };
    if inner.is_empty() {
        // Nothing is summed: no product of matrices, and autocast has no word about it.
        let one = |list: [Size; 3]| list.to_vec();
        let x = shaped(&a, [&batch, &rows, &[]])?;
        let y = shaped(&b, [&batch, &[], &columns])?;
        let x = x.reshape(&one([count(&batch), count(&rows), 1.into()]));
        let y = y.reshape(&one([count(&batch), 1.into(), count(&columns)]));
        let label = [batch, rows, columns].concat();
        let shape: Shape = sizes(&label).into_iter().collect();
        return Ok((label, x.mul(y).reshape_to(&shape)));
    }
    let x = shaped(&a, [&batch, &rows, &inner])?;
    let y = shaped(&b, [&batch, &inner, &columns])?;
    let label = [batch, rows, columns].concat();
    let shape: Shape = sizes(&label).into_iter().collect();
    Ok((label, x.bmm(y).reshape_to(&shape)))
}

/// The differences of neighbours along an axis, `n` times: [`torch.diff`](https://docs.pytorch.org/docs/stable/generated/torch.diff.html), with
/// tensors put before and behind first.
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
