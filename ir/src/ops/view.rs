//! The same elements elsewhere, without arithmetic: `reshape`, `permute`, `expand`, `slice`, `cat`,
//! `pad`.

use super::infer;
use super::reduce::Reductions;
use crate::op::{
    ANY, AttrDef, AttrKind, Dispatch, Domain, Facts, Inferred, Lower, OpDef, OpName, Operand,
    OperandKind, Rounding, Schema, View, core, rule,
};
use crate::{Args, Attrs, Must, Shape, Size, TensorType, Var};
use smallvec::{SmallVec, smallvec};

crate::ops! { trait Views;

/// The elements in row-major order under another shape; one size may be -1 and is worked out.
RESHAPE = reshape(x; shape: Sizes) -> (y) {
    infer:    &|cx| {
        let (x, wanted) = (cx.operand(0), cx.attrs.sizes("shape"));
        let shape = resolve(cx.must, x, &wanted)?;
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().reshape_to(&cx.args[0].shape()))]),
        Lower::View(View::Reshape),
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 6] {shape = [3, 4]}", "T[2, 3] {shape = [-1]}", "T[1] {shape = []}"] },
}

/// The axes in another order: axis `i` of the result is axis `dims[i]` of `x`.
PERMUTE = permute(x; dims: Ints) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let dims = permutation(x, cx.attrs.ints("dims"))?;
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape: dims.iter().map(|&d| x.shape[d]).collect() }))
    },
    body:     core(
        rule(&|cx| {
            let dims = permutation(&cx.args[0].ty(), cx.attrs.ints("dims")).expect("checked when recorded");
            let mut back: SmallVec<[i64; 4]> = smallvec![0; dims.len()];
            for (i, &d) in dims.iter().enumerate() {
                back[d] = i as i64;
            }
            smallvec![Some(cx.dy().permute(&back))]
        }),
        Lower::View(View::Permute),
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 3, 4] {dims = [2, 0, 1]}", "T[3, 5] {dims = [1, 0]}"] },
}

/// Axes of size 1, and new axes in front, repeated to `shape`; -1 keeps a size.
///
/// The gradient is summed over the repeated axes.
EXPAND = expand(x; shape: Sizes) -> (y) {
    infer:    &|cx| {
        let (x, wanted) = (cx.operand(0), cx.attrs.sizes("shape"));
        if wanted.len() < x.shape.rank() {
            return Err(format!("{x} has more axes than shape {wanted:?}"));
        }
        let fresh = wanted.len() - x.shape.rank();
        let kept = wanted.iter().enumerate().map(|(i, &n)| if n == -1 && i >= fresh { x.shape[i - fresh] } else { n });
        let shape = infer::sizes(cx.must, &kept.collect::<Vec<_>>())?;
        let fits = |(&from, &to)| from == 1 || cx.must.equal(from, to) || from.has_names() && cx.must.equal(from, 1.into());
        if !x.shape.iter().zip(&shape[fresh..]).all(fits) {
            return Err(format!("{x} does not expand to {shape}"));
        }
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
    },
    body:     core(
        rule(&|cx| smallvec![Some(cx.dy().sum_to(&cx.args[0].shape()))]),
        Lower::View(View::Expand),
    ),
    rounding: Rounding::nowhere("nowhere forward; the gradient once, at the sum"),
    domain:   Domain { dtypes: ANY, samples: &["T[3, 1] {shape = [2, 3, 4]}", "T[] {shape = [3]}"] },
}

/// Every `step`-th position of axis `dim`, from `start` up to and without `end`.
SLICE = slice(x; dim: Int, start: Size, end: Size, step: Int) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let s = Slicing::of(cx.must, x, cx.attrs)?;
        let sizes = x.shape.iter().enumerate().map(|(i, &n)| if i == s.axis { s.count } else { n });
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape: sizes.collect() }))
    },
    body:     core(
        rule(&|cx| {
            let x = cx.args[0].ty();
            let s = Slicing::recorded(&x, cx.attrs).expect("checked when recorded");
            smallvec![Some(spread(cx.dy(), &x, &s))]
        }),
        Lower::View(View::Slice),
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[4, 6] {dim = 1, start = 1, end = 5, step = 1}", "T[7, 2] {dim = 0, start = 0, end = 7, step = 3}"] },
}

/// Surrounded by `value`: `low[i]` positions before and `high[i]` after axis `i`.
PAD = pad(x; low: Sizes, high: Sizes, value: Float) -> (y) {
    infer:    &|cx| {
        let x = cx.operand(0);
        let (low, high) = (infer::sizes(cx.must, &cx.attrs.sizes("low"))?, infer::sizes(cx.must, &cx.attrs.sizes("high"))?);
        if low.rank() != x.shape.rank() || high.rank() != x.shape.rank() {
            return Err(format!("{x} takes {} sizes in `low` and `high`, found {} and {}", x.shape.rank(), low.rank(), high.rank()));
        }
        if x.dtype.is_int() {
            infer::need_held(x.dtype, "`value`", cx.attrs.float("value").expect("required"))?;
        }
        let shape: Shape = (0..x.shape.rank()).map(|i| x.shape[i] + low[i] + high[i]).collect();
        if shape.iter().any(|n| n.is_out_of_range()) {
            return Err("padded size overflows".to_owned());
        }
        Ok(Inferred::one(TensorType { dtype: x.dtype, shape }))
    },
    body:     core(
        rule(&|cx| {
            let (x, low) = (cx.args[0].shape(), cx.attrs.sizes("low"));
            let mut dx = cx.dy();
            for (i, &n) in x.iter().enumerate() {
                dx = dx.slice(i as i64, low[i], low[i] + n, 1);
            }
            smallvec![Some(dx)]
        }),
        Lower::Pad,
    ),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: ANY, samples: &["T[2, 3] {low = [1, 0], high = [0, 2], value = 1.0}", "T[5] {low = [0], high = [3], value = 0.0}"] },
}
}

/// The operands one after another along axis `dim`.
pub static CAT: OpDef = OpDef {
    name: OpName::new("cat"),
    doc: "The operands one after another along axis `dim`. Their dtypes are promoted to one; their other sizes agree. It is the function `ops::view::cat(&[x, y], dim)`.",
    schema: Schema {
        operands: &[Operand { name: "xs", kind: OperandKind::List }],
        attrs: &[AttrDef { name: "dim", kind: AttrKind::Int }],
        results: &["y"],
    },
    dispatch: Dispatch::Listed { overload: "" },
    infer: crate::op::Func::Static(&|cx| {
        let dtype = infer::promote(cx.types.iter())?;
        let first = &cx.types[0];
        let axis = first.shape.axis(cx.attrs.int("dim").expect("required"))?;
        if first.shape.rank() == 0 {
            return Err("operands need at least one axis".to_owned());
        }
        let mut total = Size::from(0);
        for t in cx.types {
            let fits = t.shape.rank() == first.shape.rank()
                && (0..t.shape.rank())
                    .all(|i| i == axis || cx.must.equal(t.shape[i], first.shape[i]));
            if !fits {
                return Err(format!("{first} and {t} differ elsewhere than along axis {axis}"));
            }
            total += t.shape[axis];
        }
        if total.is_out_of_range() {
            return Err("the total size overflows".to_owned());
        }
        let shape = first
            .shape
            .iter()
            .enumerate()
            .map(|(i, &n)| if i == axis { total } else { n })
            .collect();
        let casts = cx.types.iter().map(|t| (t.dtype != dtype).then_some(dtype)).collect();
        Ok(Inferred { casts, ..Inferred::one(TensorType { dtype, shape }) })
    }),
    body: core(
        rule(&|cx| {
            let axis = cx.args[0]
                .shape()
                .axis(cx.attrs.int("dim").expect("required"))
                .expect("checked when recorded");
            let mut start = Size::from(0);
            let slice = |x: &Var<'_>, start: &mut Size| {
                let (from, n) = (*start, x.size(axis));
                *start += n;
                (from, from + n)
            };
            cx.args
                .iter()
                .map(|x| {
                    let (from, to) = slice(x, &mut start);
                    Some(cx.dy().slice(axis as i64, from, to, 1))
                })
                .collect()
        }),
        Lower::Cat,
    ),
    rounding: Rounding::NOWHERE,
    facts: Facts::new(),
    domain: Domain {
        dtypes: ANY,
        samples: &["[T[2, 3], T[2, 1], T[2, 4]] {dim = 1}", "[T[2], T[3]] {dim = 0}"],
    },
};

/// The op with a list of operands, apart from the family's methods.
pub static CAT_OPS: &[&OpDef] = &[&CAT];

/// Records [`CAT`]. As in PyTorch, operands of shape `[0]` among others of more axes add nothing
/// but their dtype.
///
/// # Panics
/// If there are no operands: then there is no tracer to record with.
#[track_caller]
pub fn cat<'t>(xs: &[Var<'t>], dim: i64) -> Var<'t> {
    let first = xs.first().expect("cat takes at least one operand");
    if let Some(poison) = xs.iter().find(|x| x.is_poison()) {
        return *poison;
    }
    let is_nothing = |x: &Var<'t>| x.rank() == 1 && x.size(0) == 0;
    let mut args = Args::new();
    if xs.iter().any(|x| x.rank() > 1) && xs.iter().any(is_nothing) {
        let types: Vec<TensorType> = xs.iter().map(|x| x.ty()).collect();
        let dtype = infer::promote(types.iter()).unwrap_or(first.dtype());
        let left = xs.iter().filter(|x| !is_nothing(x)).map(|x| x.to(dtype));
        args.push(left);
    } else {
        args.push(xs.iter().copied());
    }
    first.tracer().apply(&CAT, args, Attrs::new().with("dim", dim))[0]
}

/// The shape that a `reshape` asks for.
fn resolve(must: &Must<'_>, x: &TensorType, wanted: &[Size]) -> Result<Shape, String> {
    let known: Vec<Size> = wanted.iter().copied().filter(|n| *n != -1).collect();
    let rest = infer::sizes(must, &known)?.numel();
    if rest.is_out_of_range() {
        return Err("the element count overflows".to_owned());
    }
    let total = x.numel();
    let shape: Shape = match wanted.len() - known.len() {
        0 => Shape::new(wanted),
        1 if must.hold(total.multiple_of(rest)) => {
            wanted.iter().map(|&n| if n == -1 { total / rest } else { n }).collect()
        }
        1 => return Err(format!("{x} has {total} elements, which {wanted:?} does not divide")),
        _ => return Err(format!("{wanted:?} leaves more than one size open")),
    };
    let count = shape.numel();
    // What is left by a division that a guard makes exact is a floor division, and multiplied again
    // it is the total for those values.
    if wanted.len() > known.len() || must.equal(count, total) {
        Ok(shape)
    } else {
        Err(format!("{x} has {total} elements, {shape} has {count}"))
    }
}

/// The axes that a `permute` puts in order.
pub(crate) fn permutation(x: &TensorType, dims: &[i64]) -> Result<SmallVec<[usize; 4]>, String> {
    let resolved =
        dims.iter().map(|&d| x.shape.axis(d)).collect::<Result<SmallVec<[usize; 4]>, _>>()?;
    let mut sorted = resolved.clone();
    sorted.sort_unstable();
    if sorted.len() != x.shape.rank() || sorted.iter().enumerate().any(|(i, &d)| i != d) {
        return Err(format!("{dims:?} is not an order of the {} axes of {x}", x.shape.rank()));
    }
    Ok(resolved)
}

/// What a `slice` takes.
pub(crate) struct Slicing {
    pub(crate) axis: usize,
    pub(crate) start: Size,
    pub(crate) step: i64,
    pub(crate) count: Size,
}

impl Slicing {
    /// As the type rule sees it.
    fn of(must: &Must<'_>, x: &TensorType, attrs: &Attrs) -> Result<Self, String> {
        let slicing = Slicing::recorded(x, attrs)?;
        let (start, end) = (attrs.size("start"), attrs.size("end"));
        let (start, end, size) =
            (start.expect("required"), end.expect("required"), x.shape[slicing.axis]);
        let fits = [start.at_least(0), end.at_least(start), size.at_least(end)];
        if !fits.into_iter().all(|claim| must.hold(claim)) {
            let (axis, step) = (slicing.axis, slicing.step);
            return Err(misfit(x, axis, start, end, step));
        }
        Ok(slicing)
    }

    /// Of a slice that was recorded, whose bounds fit.
    pub(crate) fn recorded(x: &TensorType, attrs: &Attrs) -> Result<Self, String> {
        let get = |name| attrs.size(name).expect("required");
        if x.shape.rank() == 0 {
            return Err("a tensor without axes cannot be sliced".to_owned());
        }
        let axis = x.shape.axis(attrs.int("dim").expect("required"))?;
        let (start, end, step) = (get("start"), get("end"), attrs.int("step").expect("required"));
        if step < 1 {
            return Err(misfit(x, axis, start, end, step));
        }
        let count = match (end - start).number() {
            Some(0) => Size::from(0),
            Some(span) => Size::from((span - 1).div_euclid(step) + 1),
            None if step == 1 => end - start,
            None => (end - start - 1) / step + 1,
        };
        // A step beyond the only position leads nowhere, and may be too large to multiply with.
        let step = if matches!(count.number(), Some(..=1)) { 1 } else { step };
        Ok(Slicing { axis, start, step, count })
    }
}

fn misfit(x: &TensorType, axis: usize, start: Size, end: Size, step: i64) -> String {
    format!("start {start}, end {end}, step {step} do not fit axis {axis} of {x}")
}

/// The gradient of a slice: `dy` at the positions it was taken from, zeros elsewhere.
fn spread<'t>(dy: Var<'t>, x: &TensorType, s: &Slicing) -> Var<'t> {
    let rank = x.shape.rank();
    let (mut dy, mut taken) = (dy, s.count);
    let size = x.shape[s.axis];
    if s.step > 1 && s.count != 0 {
        let (Some(count), Some(behind)) = (s.count.number(), (size - s.start).number()) else {
            let message = format!(
                "the gradient of a slice with step {} along axis {} of {x} needs numbers there: pin the size",
                s.step, s.axis
            );
            return dy.tracer().fail("slice", message);
        };
        let mut split: Vec<Size> = x.shape.to_vec();
        split[s.axis] = s.count;
        split.insert(s.axis + 1, Size::from(1));
        let mut high = vec![Size::from(0); rank + 1];
        high[s.axis + 1] = Size::from(s.step - 1);
        let mut merged = split.clone();
        merged.remove(s.axis + 1);
        merged[s.axis] = s.count * s.step;
        dy = dy.reshape(&split).pad(&vec![Size::from(0); rank + 1], &high, 0.0).reshape(&merged);
        taken = Size::from((count * s.step).min(behind));
        dy = dy.slice(s.axis as i64, 0, taken, 1);
    }
    let mut low = vec![Size::from(0); rank];
    let mut high = low.clone();
    low[s.axis] = s.start;
    high[s.axis] = size - s.start - taken;
    dy.pad(&low, &high, 0.0)
}

impl<'t> Var<'t> {
    /// The elements under another shape.
    #[track_caller]
    pub fn reshape_to(self, shape: &Shape) -> Var<'t> {
        if self.is_poison() || self.shape() == *shape {
            return self;
        }
        self.reshape(shape)
    }

    /// Repeated to another shape.
    #[track_caller]
    pub fn expand_to(self, shape: &Shape) -> Var<'t> {
        if self.is_poison() || self.shape() == *shape {
            return self;
        }
        self.expand(shape)
    }

    /// With an axis of size 1 at `dim`, which may be one beyond the last or count from the end:
    /// [`torch.unsqueeze`](https://docs.pytorch.org/docs/stable/generated/torch.unsqueeze.html).
    #[track_caller]
    pub fn unsqueeze(self, dim: i64) -> Var<'t> {
        if self.is_poison() {
            return self;
        }
        let axes = self.rank() as i64 + 1;
        if !(-axes..axes).contains(&dim) {
            let message = format!("axis {dim} is out of range for {axes} axes, of {}", self.ty());
            return self.tracer().fail("unsqueeze", message);
        }
        let mut sizes: SmallVec<[Size; 4]> = self.shape().iter().copied().collect();
        sizes.insert(dim.rem_euclid(axes) as usize, Size::from(1));
        self.reshape_to(&Shape::new(&sizes))
    }

    /// The last two axes exchanged.
    #[track_caller]
    pub fn t(self) -> Var<'t> {
        let rank = if self.is_poison() { 0 } else { self.rank() };
        if rank < 2 {
            return self;
        }
        let mut dims: SmallVec<[i64; 4]> = (0..rank as i64).collect();
        dims.swap(rank - 1, rank - 2);
        self.permute(&dims)
    }

    /// Summed over the axes along which `shape` would have to be repeated to become this shape.
    #[track_caller]
    pub fn sum_to(self, shape: &Shape) -> Var<'t> {
        if self.is_poison() {
            return self;
        }
        let mine = self.shape();
        if mine == *shape {
            return self;
        }
        let fresh = mine.rank() - shape.rank().min(mine.rank());
        // An axis of size 1 that becomes one is summed too, so that the order of accumulation does
        // not depend on the values of names.
        let is_summed = |i: usize| {
            i < fresh
                || shape[i - fresh] == 1
                || !self.tracer().proves(mine[i].equals(shape[i - fresh]))
        };
        let axes: SmallVec<[i64; 4]> =
            (0..mine.rank()).filter(|&i| is_summed(i)).map(|i| i as i64).collect();
        if axes.is_empty() { self.reshape_to(shape) } else { self.sum(&axes[..]).reshape_to(shape) }
    }
}
