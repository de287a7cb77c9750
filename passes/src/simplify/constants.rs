//! Numbers known in advance: views, casts and arithmetic of tensors of one number, and numbers in place of such tensors.
//!
//! Arithmetic is that of the kernels: 16-bit floats are computed with in f32 and rounded once, integers wrap. An integer that an
//! f64 cannot write is left to the kernel.

use super::{Draft, Recorder};
use smallvec::SmallVec;
use tracecast_ir::kernel::narrow;
use tracecast_ir::op::Lower;
use tracecast_ir::ops::{elementwise, source};
use tracecast_ir::{Args, Attrs, DType, OpDef, TensorType, Tracer, ValueId, Var};

/// The largest integer up to which every integer is an f64.
const EXACT: i64 = 1 << 53;

/// The number that every element holds, if one does and it is known.
pub(crate) fn splat(tracer: &Tracer, v: Var<'_>) -> Option<f64> {
    if v.is_poison() {
        return None;
    }
    tracer.with_graph(|g| {
        let node = g.node(v.id().node);
        if !node.op.is(&source::CONSTANT) {
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

/// What a constant of that dtype holds: the number as its scalar type has it, then as the dtype has it.
fn literal(value: f64, dtype: DType) -> f64 {
    if dtype.is_low() {
        converted(f64::from(value as f32), DType::F32, dtype)
    } else {
        converted(value, DType::F64, dtype)
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
        ([x, y], [_, Some(c)]) => number_for(r, d, *x, *y, *c),
        ([x, y], [Some(c), None]) => number_first(r, d, *x, *y, *c),
        _ => None,
    }
}

/// A cast or reshape of a list of numbers is a list of numbers.
fn whole<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    if !matches!(d.name(), "cast" | "reshape") {
        return None;
    }
    let below = r.made_by(d.x(), &source::CONSTANT)?;
    let (from, data) = (d.x().dtype(), below.attrs.floats("data"));
    if d.name() == "reshape" {
        let sizes = d.attrs.ints("shape");
        if sizes.contains(&-1) {
            return None;
        }
        return Some(
            r.record(below.op.clone(), Args::new(), below.attrs.clone().with("shape", sizes))[0],
        );
    }
    let to = d.attrs.dtype("to")?;
    let data: Vec<f64> = data.iter().map(|v| converted(literal(*v, from), from, to)).collect();
    let attrs = below.attrs.clone().with("dtype", to).with("data", &data[..]);
    Some(r.record(below.op.clone(), Args::new(), attrs)[0])
}

/// The result for operands of one number each.
fn folded<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>, values: &[f64]) -> Option<Var<'t>> {
    let same = values.iter().all(|v| v.to_bits() == values[0].to_bits());
    match d.lowering()? {
        Lower::View(_) => moved(r, d),
        Lower::Cat if same => moved(r, d),
        Lower::Pad
            if literal(d.attrs.float("value")?, d.x().dtype()).to_bits() == values[0].to_bits() =>
        {
            moved(r, d)
        }
        Lower::Map(_) => {
            let x = d.x().ty();
            let value = computed(d, x.dtype, values)?;
            let dtype = match d.name() {
                "cast" => d.attrs.dtype("to")?,
                "eq" | "ne" | "lt" | "le" | "gt" | "ge" => DType::Bool,
                "where" => d.args.vars[1].dtype(),
                _ => x.dtype,
            };
            let is_written = !matches!(dtype, DType::I64) || value.abs() <= EXACT as f64;
            is_written.then(|| r.full(x.with_dtype(dtype), value))
        }
        _ => None,
    }
}

/// The same number in the shape of the result.
fn moved<'t>(r: &mut Recorder<'_, 't>, d: &Draft<'t>) -> Option<Var<'t>> {
    let (groups, attrs) = (&d.args.groups, &d.attrs);
    let types: Vec<TensorType> = d.args.vars.iter().map(|v| v.ty()).collect();
    let inferred =
        (d.op.def().infer)(&tracecast_ir::op::InferCx { types: &types, groups, attrs }).ok()?;
    let below = r.made_by(d.x(), &source::CONSTANT)?;
    let value =
        below.attrs.float("value").or_else(|| below.attrs.floats("data").first().copied())?;
    Some(r.full(inferred.results.first()?.clone(), value))
}

/// One element of an elementwise op.
fn computed(d: &Draft<'_>, dtype: DType, values: &[f64]) -> Option<f64> {
    let x = values[0];
    match (d.name(), values) {
        ("cast", _) => return Some(converted(x, dtype, d.attrs.dtype("to")?)),
        ("round_to", _) => return Some(converted(x, dtype, d.attrs.dtype("to")?)),
        ("logical_not", _) => return Some(1.0 - x),
        ("where", [c, a, b]) => return Some(if *c != 0.0 { *a } else { *b }),
        _ => {}
    }
    // A number in place of an operand is one of the scalar type, which for u8 is i32.
    let scalar_type = if dtype == DType::U8 { DType::I32 } else { dtype.compute() };
    let compares = matches!(d.name(), "eq" | "ne" | "lt" | "le" | "gt" | "ge");
    let scalar = d.scalar().map(|c| {
        let wide = converted(c, DType::F64, scalar_type);
        if compares && dtype.is_low() { converted(wide, scalar_type, dtype) } else { wide }
    });
    let y = values.get(1).copied().or(scalar);
    let truth = |b: bool| Some(f64::from(u8::from(b)));
    match (d.name(), y) {
        ("eq", Some(y)) => truth(x == y),
        ("ne", Some(y)) => truth(x != y),
        ("lt", Some(y)) => truth(x < y),
        ("le", Some(y)) => truth(x <= y),
        ("gt", Some(y)) => truth(x > y),
        ("ge", Some(y)) => truth(x >= y),
        ("logical_and", Some(y)) => truth(x != 0.0 && y != 0.0),
        ("logical_or", Some(y)) => truth(x != 0.0 || y != 0.0),
        ("maximum", Some(y)) => Some(larger(x, y)),
        ("minimum", Some(y)) => Some(-larger(-x, -y)),
        ("relu", None) => Some(larger(0.0, x)),
        _ if dtype.is_float() => float(d.name(), dtype, x, y),
        _ => integer(d.name(), dtype, x as i64, y.map(|y| y as i64)),
    }
}

/// NaN if either is; of two equal numbers the first.
fn larger(x: f64, y: f64) -> f64 {
    match (x.is_nan() || y.is_nan(), y > x) {
        (true, _) => f64::NAN,
        (_, true) => y,
        _ => x,
    }
}

/// Sum, difference, product or quotient, rounded once to the scalar type and once to a 16-bit dtype.
fn float(name: &str, dtype: DType, x: f64, y: Option<f64>) -> Option<f64> {
    // In f64 an f32 sum, difference, product, quotient or root is rounded innocuously: 53 >= 2 * 24 + 2.
    let exact = match (name, y) {
        ("add", Some(y)) => x + y,
        ("sub", Some(y)) => x - y,
        ("rsub", Some(y)) => y - x,
        ("mul", Some(y)) => x * y,
        ("div", Some(y)) => x / y,
        ("neg", None) => -x,
        ("abs", None) => x.abs(),
        ("sqrt", None) => x.sqrt(),
        _ => return None,
    };
    Some(converted(converted(exact, DType::F64, dtype.compute()), dtype.compute(), dtype))
}

/// The same for integers, which wrap.
fn integer(name: &str, dtype: DType, x: i64, y: Option<i64>) -> Option<f64> {
    let exact = match (name, y) {
        ("add", Some(y)) => x.checked_add(y),
        ("sub", Some(y)) => x.checked_sub(y),
        ("rsub", Some(y)) => y.checked_sub(x),
        ("mul", Some(y)) => x.checked_mul(y),
        ("neg", None) => x.checked_neg(),
        ("abs", None) => x.checked_abs(),
        _ => None,
    };
    let exact = exact.filter(|v| v.unsigned_abs() <= EXACT.unsigned_abs())?;
    Some(converted(exact as f64, DType::I64, dtype))
}

/// Ops that take a number in place of the second operand.
fn takes_number(name: &str) -> bool {
    matches!(
        name,
        "add" | "sub" | "mul" | "div" | "div_trunc" | "eq" | "ne" | "lt" | "le" | "gt" | "ge"
    )
}

/// The second operand is one number.
fn number_for<'t>(
    r: &mut Recorder<'_, 't>,
    d: &Draft<'t>,
    x: Var<'t>,
    y: Var<'t>,
    held: f64,
) -> Option<Var<'t>> {
    let fits = takes_number(d.name()) && x.ty() == y.ty();
    fits.then(|| {
        let number = written(r.tracer, y.id(), held);
        r.with_scalar(&d.op, x, number)
    })
}

/// The first operand is one number: the op is turned round.
fn number_first<'t>(
    r: &mut Recorder<'_, 't>,
    d: &Draft<'t>,
    x: Var<'t>,
    y: Var<'t>,
    held: f64,
) -> Option<Var<'t>> {
    let turned: &'static OpDef = match d.name() {
        "add" => &elementwise::ADD,
        "mul" => &elementwise::MUL,
        "sub" => &elementwise::RSUB,
        "eq" => &elementwise::EQ,
        "ne" => &elementwise::NE,
        "lt" => &elementwise::GT,
        "le" => &elementwise::GE,
        "gt" => &elementwise::LT,
        "ge" => &elementwise::LE,
        _ => return None,
    };
    (x.ty() == y.ty()).then(|| {
        let number = written(r.tracer, x.id(), held);
        r.with_scalar(&turned.into(), y, number)
    })
}

/// The number as the program wrote it, if the scalar type makes the same of it as the tensor's dtype; else the number held.
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
