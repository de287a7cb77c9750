//! `einsum`: sums of products, as an equation says it.
//!
//! Two operands at a time become one by a batch of products of matrices, from left to right. As the
//! ops of `listed` it is asked for by its name, and where no policy speaks of it by those of its
//! parts.

use super::elementwise::Elementwise;
use super::infer;
use super::linalg::one_number;
use super::products::MatrixProducts;
use super::reduce::Reductions;
use super::view::Views;
use crate::op::{
    AttrDef, AttrKind, Dispatch, Domain, ExpandCx, Func, InferCx, Inferred, NUMBERS, OpDef, OpName,
    Operand, OperandKind, Rounding, Schema, composite_own,
};
use crate::{DType, IntoDims, Shape, Size, TensorType, Var};
use smallvec::smallvec;

const DOC: &str = "Sums of products, as an equation says it: [`torch.einsum`](https://docs.pytorch.org/docs/stable/generated/torch.einsum.html).";

/// Sums of products, as an equation says it:
/// [`torch.einsum`](https://docs.pytorch.org/docs/stable/generated/torch.einsum.html).
pub static EINSUM: OpDef = OpDef {
    name: OpName::new("einsum"),
    doc: DOC,
    schema: Schema {
        operands: &[Operand { name: "xs", kind: OperandKind::List }],
        attrs: &[AttrDef { name: "equation", kind: AttrKind::OptStr }],
        results: &["y"],
    },
    dispatch: Dispatch::ListedOrExpands { overload: "" },
    infer: Func::Static(&|cx| {
        let ranks: Vec<usize> = cx.types.iter().map(|t| t.shape.rank()).collect();
        let equation = Equation::read(cx.attrs.str("equation"), &ranks)?;
        let sizes = equation.sizes(cx)?;
        let size = |c: &char| sizes.iter().find(|(label, _)| label == c).map(|(_, n)| *n);
        let shape: Option<Shape> = equation.output.iter().map(size).collect();
        let shape = shape.ok_or("the result has an axis that no tensor has")?;
        Ok(Inferred::one(TensorType { dtype: equation.dtype(cx)?, shape }))
    }),
    body: composite_own(None, &|cx| {
        let y = summed_up(cx).unwrap_or_else(|why| cx.tracer.fail("einsum", why));
        smallvec![y]
    }),
    rounding: Rounding::parts("the product of two operands, and each further one"),
    facts: crate::op::Facts::new(),
    domain: Domain {
        dtypes: NUMBERS,
        samples: &[
            "[T[3, 5], T[5, 4]] {equation = \"ij,jk->ki\"}",
            "[T[2, 3, 5], T[2, 5], T[3]] {equation = \"bij,bj,i\"}",
            "[T[4, 4]] {equation = \"ii->\"}",
        ],
    },
};

/// The op with a list of operands, apart from any family's methods.
pub static EINSUM_OPS: &[&OpDef] = &[&EINSUM];

/// The labels of the axes of each operand and of the result.
struct Equation {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}

impl Equation {
    fn read(equation: Option<&str>, ranks: &[usize]) -> Result<Equation, String> {
        let equation = equation.ok_or("takes an `equation`")?;
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, output) =
            text.split_once("->").map_or((&text[..], None), |(a, b)| (a, Some(b)));
        let labels: Vec<&str> = inputs.split(',').collect();
        if labels.len() != ranks.len() {
            let (named, found) = (labels.len(), ranks.len());
            return Err(format!("{equation:?} is of {named} tensors, found {found}"));
        }
        let most = |l: &str, rank: usize| rank.saturating_sub(l.replace("...", "").len());
        let both = || labels.iter().zip(ranks);
        let dots = both().filter(|(l, _)| l.contains("...")).map(|(l, rank)| most(l, *rank)).max();
        let dots = dots.unwrap_or(0);
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
        let label = |(l, rank): (&&str, &usize)| {
            let label = full(l, dots, most(l, *rank))?;
            let named = label.len();
            if named == *rank {
                Ok(label)
            } else {
                Err(format!("{l:?} names {named} axes, the tensor has {rank}"))
            }
        };
        let inputs: Vec<Vec<char>> = both().map(label).collect::<Result<_, String>>()?;
        if let Some(c) = output.iter().find(|c| !inputs.iter().any(|l| l.contains(c))) {
            return Err(format!("the result has {c:?}, which no tensor has"));
        }
        if let Some(i) = (1..output.len()).find(|i| output[..*i].contains(&output[*i])) {
            return Err(format!("the result has {:?} twice", output[i]));
        }
        Ok(Equation { inputs, output })
    }

    /// The size of each label: that of all axes that have it, those of size 1 aside.
    fn sizes(&self, cx: &InferCx<'_>) -> Result<Vec<(char, Size)>, String> {
        let mut sizes: Vec<(char, Size)> = Vec::new();
        for (labels, x) in self.inputs.iter().zip(cx.types) {
            for (axis, (&c, &n)) in labels.iter().zip(x.shape.iter()).enumerate() {
                // Of a label that comes twice the diagonal is taken.
                if labels.iter().filter(|l| **l == c).count() > 1 {
                    infer::pinned(x, axis)?;
                }
                match sizes.iter_mut().find(|(label, _)| *label == c) {
                    None => sizes.push((c, n)),
                    Some((_, known)) if *known == 1 => *known = n,
                    Some((_, known)) if n == 1 || cx.must.equal(*known, n) => {}
                    Some((_, known)) => return Err(format!("{c:?} is {known} and {n}, of {x}")),
                }
            }
        }
        Ok(sizes)
    }

    /// The dtype of the result: a product of matrices takes one dtype, a product of elements
    /// promotes, and integers that are summed alone become i64.
    fn dtype(&self, cx: &InferCx<'_>) -> Result<DType, String> {
        let mut whole = cx.types[0].dtype;
        let mut seen = self.inputs[0].clone();
        for (i, (labels, x)) in self.inputs.iter().zip(cx.types).enumerate().skip(1) {
            let later = &self.inputs[i + 1..];
            let is_needed =
                |c: &char| self.output.contains(c) || later.iter().any(|l| l.contains(c));
            whole = alone(whole, &seen, &|c| is_needed(c) || labels.contains(c));
            let other = alone(x.dtype, labels, &|c| is_needed(c) || seen.contains(c));
            whole = if seen.iter().any(|c| labels.contains(c) && !is_needed(c)) {
                let types = [whole, other].map(TensorType::scalar);
                one_number(&types[0], &types[1])?
            } else {
                let both = DType::promote(whole, other);
                both.ok_or_else(|| format!("{whole} and {other} have no common dtype"))?
            };
            seen.extend(labels);
            seen.retain(is_needed);
        }
        Ok(alone(whole, &seen, &|c| self.output.contains(c)))
    }
}

/// The dtype of a tensor once the axes that nobody needs are summed.
fn alone(dtype: DType, label: &[char], is_needed: &dyn Fn(&char) -> bool) -> DType {
    if dtype.is_float() || label.iter().all(is_needed) { dtype } else { DType::I64 }
}

/// The parts.
fn summed_up<'t>(cx: &ExpandCx<'_, 't>) -> Result<Var<'t>, String> {
    let ranks: Vec<usize> = cx.args.iter().map(|x| x.rank()).collect();
    let Equation { inputs, output } = Equation::read(cx.attrs.str("equation"), &ranks)?;
    let mut terms = Vec::new();
    for (label, x) in inputs.iter().zip(cx.args) {
        terms.push(term(label, *x)?);
    }
    let mut terms = terms.into_iter();
    let mut y = terms.next().ok_or("no tensors")?;
    let mut rest: Vec<(Vec<char>, Var<'t>)> = terms.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let is_needed = |c: &char| output.contains(c) || rest.iter().any(|(l, _)| l.contains(c));
        y = joined(y, next, &is_needed)?;
    }
    let (label, x) = summed(y, &|c| output.contains(c));
    let place = |c: &char| label.iter().position(|l| l == c).map(|i| i as i64);
    let order: Option<Vec<i64>> = output.iter().map(place).collect();
    Ok(x.permute(&order.ok_or("an axis is missing")?))
}

/// The labels of axes, with digits from the end for what dots stand for.
fn full(label: &str, dots: usize, own: usize) -> Result<Vec<char>, String> {
    let digits: String = ('0'..='9').take(dots).collect();
    let own = digits.get(dots.saturating_sub(own)..).ok_or("too many axes for dots")?;
    let all: Vec<char> = label.replace("...", own).chars().collect();
    let wrong = all.iter().find(|c| !c.is_ascii_alphanumeric());
    wrong.map_or(Ok(all.clone()), |c| Err(format!("{c:?} is no label")))
}

/// An operand with each of its labels once: of repeated ones the diagonal.
fn term<'t>(label: &[char], x: Var<'t>) -> Result<(Vec<char>, Var<'t>), String> {
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
    let y = x.sum((&gone).dtype(alone(x.dtype(), &label, is_needed)));
    (label.into_iter().filter(|c| is_needed(c)).collect(), y)
}

/// Two operands as one: `[batch, rows, inner] · [batch, inner, columns]`.
fn joined<'t>(
    a: (Vec<char>, Var<'t>),
    b: (Vec<char>, Var<'t>),
    is_needed: &dyn Fn(&char) -> bool,
) -> Result<(Vec<char>, Var<'t>), String> {
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

#[cfg(test)]
mod tests {
    use crate::functions::einsum;
    use crate::{DType, TensorType, Tracer};

    #[test]
    fn integers_that_are_summed_alone_are_of_64_bits() {
        use DType::{Bool, I32, I64};
        let result = |equation: &str, dtype: DType| {
            let t = Tracer::new("g");
            let count = equation.matches(',').count() + 1;
            let xs: Vec<_> = (0..count)
                .map(|i| t.input(&format!("x{i}"), TensorType::new(dtype, [3, 3])))
                .collect();
            let y = einsum(equation, &xs);
            t.error().map_or(Ok(y.dtype()), |error| Err(error.message))
        };
        assert_eq!(result("ij->ji", I32), Ok(I32));
        assert_eq!(result("ij->i", I32), Ok(I64));
        assert_eq!(result("ij,kj->ik", I32), Ok(I32));
        assert_eq!(result("ij,kl->ik", I32), Ok(I64));
        assert_eq!(result("ij,ij->ij", Bool), Ok(Bool));
        assert_eq!(result("ii,jj,kk->", Bool), Ok(I64));
        assert!(result("ij,jk->ik", Bool).is_err());
    }
}
