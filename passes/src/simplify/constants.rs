//! Numbers known in advance: views, casts and arithmetic of tensors of one number, and numbers in
//! place of such tensors.
//!
//! An op of known numbers is folded by running its own code on them ([`eval::element`]), so the
//! number is the kernel's. An integer that an f64 cannot write is left to the kernel.

use super::recorder::{Draft, Recorder};
use smallvec::SmallVec;
use tracecast_ir::kernel::narrow;
use tracecast_ir::op::{Intrinsic, Lower, View};
use tracecast_ir::ops::source;
use tracecast_ir::{Args, Attrs, DType, OpRef, TensorType, Tracer, ValueId, Var, eval};

/// The number that every element holds, if one does and it is known.
pub(crate) fn splat(tracer: &Tracer, v: Var<'_>) -> Option<f64> {
    if v.is_poison() {
        return None;
    }
    tracer.with_graph(|g| {
        let node = g.node(v.id().node);
        if node.op.intrinsic() != Some(Intrinsic::Constant) {
            return None;
        }
        let data = node.attrs.floats("data");
        let one = data
            .first()
            .filter(|first| data.iter().all(|v| v.to_bits() == first.to_bits()))
            .copied();
        node.attrs.float("value").or(one).map(|value| literal(value, node.results[0].dtype))
    })
}

/// What a constant of that dtype holds: the number as its scalar type has it, then as the dtype has
/// it.
fn literal(value: f64, dtype: DType) -> f64 {
    match dtype {
        _ if dtype.is_low() => converted(f64::from(value as f32), DType::F32, dtype),
        DType::U8 => converted(converted(value, DType::F64, DType::I32), DType::I32, dtype),
        _ => converted(value, DType::F64, dtype),
    }
}

/// A number that `from` holds, cast to another dtype.
pub(crate) fn converted(value: f64, from: DType, to: DType) -> f64 {
    let wrap_u8 = |v: i32| f64::from(v as u8);
    match to {
        DType::F32 => f64::from(value as f32),
        _ if to.is_low() && from == DType::F64 => narrow::round_f64(to, value),
        _ if to.is_low() => f64::from(narrow::round(to, value as f32)),
        DType::I32 if from == DType::I64 => f64::from(value as i64 as i32),
        DType::U8 if from == DType::I64 => wrap_u8(value as i64 as i32),
        DType::I32 => f64::from(value as i32),
        DType::U8 if from.is_float() => f64::from(value as u8),
        DType::U8 => wrap_u8(value as i32),
        DType::I64 => value as i64 as f64,
        DType::Bool => f64::from(u8::from(value != 0.0)),
        _ => value,
    }
}

impl<'t> Recorder<'_, 't> {
    /// A tensor of equal numbers, found if it is there.
    pub(crate) fn full(&mut self, ty: TensorType, value: f64) -> Var<'t> {
        let attrs =
            Attrs::new().with("dtype", ty.dtype).with("shape", &ty.shape[..]).with("value", value);
        self.record((&source::CONSTANT).into(), Args::new(), attrs)[0]
    }
}

/// Simplifies ops of known numbers.
pub(super) fn rule<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let values: SmallVec<[Option<f64>; 4]> =
        d.args.vars.iter().map(|v| splat(r.tracer, *v)).collect();
    if values.iter().all(Option::is_none) {
        return whole(r, d);
    }
    let all = values.iter().copied().collect::<Option<SmallVec<[f64; 4]>>>();
    if let Some(v) = all.and_then(|all| folded(r, d, &all)) {
        return Some(v);
    }
    match (d.args.vars.as_slice(), values.as_slice()) {
        ([x, y], [_, Some(c)]) => number_for(r, &d.op, *x, *y, *c),
        // The op with its operands exchanged, if there is one.
        ([x, y], [Some(c), None]) => number_for(r, &d.op.swapped()?, *y, *x, *c),
        _ => None,
    }
}

/// A cast or reshape of a list of numbers is a list of numbers.
fn whole<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let is_cast = d.op.intrinsic() == Some(Intrinsic::Cast);
    if !is_cast && !matches!(d.lowering()?, Lower::View(View::Reshape)) {
        return None;
    }
    let below = r.made_as(d.x(), Intrinsic::Constant)?;
    if !is_cast {
        let sizes = d.attrs.ints("shape");
        if sizes.contains(&-1) || d.attrs.has_names() {
            return None;
        }
        let attrs = below.attrs.with("shape", sizes);
        return Some(r.record(below.op, Args::new(), attrs)[0]);
    }
    // A size rounds to the dtype when it has a number.
    below.attrs.get("data")?;
    let (from, to) = (d.x().dtype(), d.attrs.dtype("to")?);
    let data = below.attrs.floats("data").iter();
    let data: Vec<f64> = data.map(|v| converted(literal(*v, from), from, to)).collect();
    let attrs = below.attrs.with("dtype", to).with("data", &data[..]);
    Some(r.record(below.op, Args::new(), attrs)[0])
}

/// The result for operands of one number each.
fn folded<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, values: &[f64]) -> Option<Var<'t>> {
    let is = |value: f64| values.iter().all(|v| v.to_bits() == value.to_bits());
    match d.lowering()? {
        Lower::View(_) => moved(r, d),
        Lower::Cat if is(values[0]) => moved(r, d),
        Lower::Pad if is(literal(d.attrs.float("value")?, d.x().dtype())) => moved(r, d),
        Lower::Map(_) => computed(r, d, values),
        _ => None,
    }
}

/// The same number in the shape of the result.
fn moved<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let result = d.result()?;
    let below = r.made_as(d.x(), Intrinsic::Constant)?;
    let value =
        below.attrs.float("value").or_else(|| below.attrs.floats("data").first().copied())?;
    Some(r.full(result, value))
}

/// The number that the op's own code gives, everywhere.
fn computed<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, values: &[f64]) -> Option<Var<'t>> {
    let operands = d.args.vars.iter().zip(values).map(|(v, value)| (v.dtype(), *value));
    let operands: SmallVec<[(DType, f64); 4]> = operands.collect();
    // A number that depends on names has no value yet.
    let result = d.result().filter(|_| !d.attrs.has_names())?;
    let value = eval::element(d.op.def(), &d.attrs, &operands, &result)?;
    Some(r.full(result, value))
}

/// The op with a number in the place of its second operand `y`, all of whose elements are it.
fn number_for<'t>(
    r: &mut Recorder<'_, 't>,
    op: &OpRef,
    x: Var<'t>,
    y: Var<'t>,
    held: f64,
) -> Option<Var<'t>> {
    // Beside a number truth values are integers, and so is what becomes of them unless they are
    // compared.
    let stays = x.dtype() != DType::Bool || op.facts().compares.is_some();
    let fits = op.facts().takes_number && stays && x.ty() == y.ty();
    fits.then(|| {
        let number = written(r.tracer, y.id(), held);
        r.with_scalar(op, x, number)
    })
}

/// The number as the program wrote it, if the scalar type makes the same of it as the tensor's
/// dtype; else the number held.
fn written(tracer: &Tracer, constant: ValueId, held: f64) -> f64 {
    tracer.with_graph(|g| {
        let node = g.node(constant.node);
        let compute = node.results[0].dtype.compute();
        let same = |v: &f64| {
            compute.is_float() && converted(*v, DType::F64, compute).to_bits() == held.to_bits()
        };
        node.attrs.float("value").filter(same).unwrap_or(held)
    })
}
