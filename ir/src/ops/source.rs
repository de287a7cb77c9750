//! Values that come from outside or from attributes alone: `input`, `constant`, `iota`.

use super::elementwise::{MAXIMUM, MINIMUM};
use super::infer;
use crate::graph::{Graph, Groups, Node, ValueId};
use crate::kernel::ScalarOp;
use crate::op::{
    ANY, AttrDef, AttrKind, Body, Dispatch, Domain, Facts, Func, Inferred, Intrinsic, Lower, MapCx,
    NUMBERS, OpDef, OpName, Rounding, Schema, map,
};
use crate::{Args, Attrs, DType, Must, Number, Shape, Size, TensorType, Tracer, Var};

/// A value from outside: a port of the graph.
pub static INPUT: OpDef = OpDef {
    name: OpName::new("input"),
    doc: "A value from outside: a port of the graph.",
    schema: Schema { operands: &[], attrs: &[], results: &["value"] },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&|_| Err("stands for a port and is not recorded as an op".to_owned())),
    body: Body::Source(Lower::Port),
    rounding: Rounding::NOWHERE,
    facts: Facts::new(),
    domain: Domain { dtypes: ANY, samples: &[] },
};

/// Numbers known when tracing.
pub static CONSTANT: OpDef = OpDef {
    name: OpName::new("constant"),
    doc: "A tensor of type `dtype` and shape `shape`, every element `value`, or the elements `data` in row-major order.\n\nIntegers beyond 2^53 cannot be written.",
    schema: Schema {
        operands: &[],
        attrs: &[
            AttrDef { name: "dtype", kind: AttrKind::DType },
            AttrDef { name: "shape", kind: AttrKind::Sizes },
            AttrDef { name: "value", kind: AttrKind::OptNumber },
            AttrDef { name: "data", kind: AttrKind::OptFloats },
        ],
        results: &["value"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&|cx| {
        let ty = declared(cx.must, cx.attrs)?;
        held(&ty, cx.attrs)?;
        match (cx.attrs.number("value"), cx.attrs.get("data")) {
            (Some(_), None) => Ok(Inferred::one(ty)),
            (None, Some(_)) if ty.numel() == cx.attrs.floats("data").len() => Ok(Inferred::one(ty)),
            (None, Some(_)) => Err(format!(
                "{ty} takes {} numbers, found {}",
                ty.numel(),
                cx.attrs.floats("data").len()
            )),
            _ => Err("takes either `value` or `data`".to_owned()),
        }
    }),
    body: Body::Source(map(&|cx, _| constant(cx))),
    rounding: Rounding::result("to its dtype"),
    facts: Facts::new().intrinsic(Intrinsic::Constant),
    domain: Domain {
        dtypes: ANY,
        samples: &[
            "{dtype = T, shape = [2, 3], value = 1.0}",
            "{dtype = T, shape = [3], data = [0.0, 1.0, 2.0]}",
        ],
    },
};

/// Positions along an axis.
pub static IOTA: OpDef = OpDef {
    name: OpName::new("iota"),
    doc: "The position of each element along axis `dim`: `arange` in the given shape.",
    schema: Schema {
        operands: &[],
        attrs: &[
            AttrDef { name: "dtype", kind: AttrKind::DType },
            AttrDef { name: "shape", kind: AttrKind::Sizes },
            AttrDef { name: "dim", kind: AttrKind::Int },
        ],
        results: &["value"],
    },
    dispatch: Dispatch::Internal,
    infer: Func::Static(&|cx| {
        let ty = declared(cx.must, cx.attrs)?;
        infer::need_number(&ty)?;
        let axis = ty.shape.axis(cx.attrs.int("dim").unwrap_or(0))?;
        let size = ty.shape.get(axis).and_then(|size| size.number());
        let last = size.map_or(0, |size| size.saturating_sub(1).max(0));
        infer::need_held(ty.dtype, "the last position", last as f64)?;
        Ok(Inferred::one(ty))
    }),
    body: Body::Source(map(&|cx, _| {
        let axis =
            cx.result.shape.axis(cx.attrs.int("dim").unwrap_or(0)).expect("checked by infer");
        let (ty, rank) = (cx.scalar(), cx.result.shape.rank());
        let at = if rank == 0 {
            cx.body.constant(crate::kernel::Scalar::I64, 0.0)
        } else {
            cx.position(axis)
        };
        cx.body.convert(at, ty)
    })),
    rounding: Rounding::result("to its dtype"),
    facts: Facts::new().intrinsic(Intrinsic::Positions),
    domain: Domain {
        dtypes: NUMBERS,
        samples: &["{dtype = T, shape = [2, 5], dim = 1}", "{dtype = T, shape = [3, 2], dim = 0}"],
    },
};

/// The ops of this family.
pub static OPS: &[&OpDef] = &[&INPUT, &CONSTANT, &IOTA];

/// The type named by the attributes `dtype` and `shape`.
fn declared(must: &Must<'_>, attrs: &Attrs) -> Result<TensorType, String> {
    let ty = TensorType {
        dtype: attrs.dtype("dtype").expect("required"),
        shape: infer::sizes(must, &attrs.sizes("shape"))?,
    };
    ty.check_size()?;
    if !ty.dtype.is_computable() {
        return Err(format!("no kernels exist for dtype {}", ty.dtype));
    }
    Ok(ty)
}

/// Fails unless the dtype holds the numbers of the attributes; of truth values any number but 0 is
/// the true one.
fn held(ty: &TensorType, attrs: &Attrs) -> Result<(), String> {
    if ty.dtype == DType::Bool {
        return Ok(());
    }
    if let Some(value) = attrs.number("value") {
        infer::need_held_for_all(ty.dtype, "`value`", value)?;
    }
    if ty.dtype.is_float() {
        return Ok(());
    }
    attrs
        .floats("data")
        .iter()
        .try_for_each(|v| infer::need_held(ty.dtype, "a number of `data`", *v))
}

/// A constant of this number of elements, or fewer, is code: a kernel that needs it finds the
/// number by halving.
const MOST_IN_CODE: usize = 8;

/// True for a constant whose numbers lie in memory, one after another, before a program runs: code
/// for all of them would do the work of all at every position.
pub fn is_data(node: &Node) -> bool {
    node.op.intrinsic() == Some(Intrinsic::Constant)
        && node.attrs.floats("data").len() > MOST_IN_CODE
}

/// True if all elements are known when tracing to be positions of an axis of that size: as numbers,
/// or because they are kept within.
pub fn are_positions(graph: &Graph, value: ValueId, size: Size) -> bool {
    let Some(size) = size.number() else { return false };
    let [low, high] = bounds(graph, value, CLAMPS);
    low >= 0.0 && high < size as f64
}

/// How deep extremes of extremes are looked through.
const CLAMPS: usize = 3;

/// The least and the greatest that an element of integers may be.
fn bounds(graph: &Graph, mut value: ValueId, depth: usize) -> [f64; 2] {
    while let Body::Core { kernel: Lower::View(_), .. } = &graph.node(value.node).op.def().body {
        value = graph.args(value.node)[0];
    }
    let node = graph.node(value.node);
    let extreme = [(&MINIMUM, f64::min as fn(f64, f64) -> f64), (&MAXIMUM, f64::max)];
    let extreme = extreme.into_iter().find(|(op, _)| depth > 0 && node.op.name() == op.name);
    if let Some((_, pick)) = extreme {
        let args = graph.args(value.node);
        let [a, b] = [0, 1].map(|i| bounds(graph, args[i], depth - 1));
        return [0, 1].map(|i| pick(a[i], b[i]));
    }
    if node.op.intrinsic() == Some(Intrinsic::Positions) {
        let axis = node.results[0].shape.axis(node.attrs.int("dim").unwrap_or(0));
        let size = axis.ok().and_then(|axis| node.results[0].shape.get(axis)?.number());
        return [0.0, size.map_or(f64::INFINITY, |size| (size - 1) as f64)];
    }
    let (one, data) = (node.attrs.float("value"), node.attrs.floats("data"));
    if node.op.intrinsic() != Some(Intrinsic::Constant) || one.is_none() && data.is_empty() {
        return [f64::NEG_INFINITY, f64::INFINITY];
    }
    let all = || data.iter().copied().chain(one);
    [all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)]
}

/// One number, or a search for the element's number by halving.
fn constant(cx: &mut MapCx<'_>) -> crate::kernel::Val {
    if let Some(value) = cx.attrs.number("value") {
        let ty = cx.scalar();
        return cx.number_of(ty, value);
    }
    let data = cx.attrs.floats("data").to_vec();
    let at = cx.element();
    pick(cx, &data, 0, at)
}

fn pick(
    cx: &mut MapCx<'_>,
    data: &[f64],
    from: usize,
    at: crate::kernel::Val,
) -> crate::kernel::Val {
    if data.len() <= 1 {
        return cx.constant(data.first().copied().unwrap_or(0.0));
    }
    let half = data.len() / 2;
    let low = pick(cx, &data[..half], from, at);
    let high = pick(cx, &data[half..], from + half, at);
    let middle =
        cx.body.push(ScalarOp::Const((from + half) as u64), &[], crate::kernel::Scalar::I64);
    let below = cx.body.cmp(crate::kernel::Cmp::Lt, at, middle);
    cx.body.select(below, low, high)
}

impl Tracer {
    /// A tensor of the given numbers in row-major order.
    #[track_caller]
    pub fn constant(&self, dtype: DType, shape: &[usize], data: &[f64]) -> Var<'_> {
        let attrs = Attrs::new().with("dtype", dtype).with("shape", shape).with("data", data);
        self.apply(&CONSTANT, Args { vars: Default::default(), groups: Groups::new() }, attrs)[0]
    }

    /// A size, or a number that depends on one, as a tensor without axes: the count in a mean, the
    /// width in `1 / sqrt(width)`.
    ///
    /// The size is computed exactly, and rounded once to `dtype`.
    #[track_caller]
    pub fn number(&self, number: impl Into<Number>, dtype: DType) -> Var<'_> {
        self.full(TensorType::scalar(dtype), number)
    }

    /// The position of each element along axis `dim`.
    #[track_caller]
    pub fn iota(&self, dtype: DType, shape: impl Into<Shape>, dim: usize) -> Var<'_> {
        let shape: Shape = shape.into();
        let attrs =
            Attrs::new().with("dtype", dtype).with("shape", &shape[..]).with("dim", dim as i64);
        self.apply(&IOTA, Args::new(), attrs)[0]
    }
}
