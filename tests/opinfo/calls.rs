//! A recorded call with the ops of the table.
//!
//! An ATen op is the op of the same name. Its tensors are the operands in order, or those of the same name; its other arguments the
//! attributes of the same name. The few ops that have another form here are listed in [`translated`]. So an op that is new in the
//! table is compared without a change here.

use crate::cases::{Arg, Case};
use tracecast_ir::op::{AttrKind, Body, OpDef, OperandKind};
use tracecast_ir::ops::find;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Args, Attr, Attrs, DType, Tracer, Var};

/// A call in the making.
pub(crate) struct Call<'c, 't> {
    t: &'t Tracer,
    case: &'c Case,
    /// The tensors that a gradient is asked for, by the path of their argument.
    pub(crate) leaves: Vec<(String, Var<'t>)>,
}

/// An argument whose tensors are inputs of the program.
enum Bound<'c, 't> {
    Tensors(Vec<Var<'t>>),
    Plain(&'c Arg),
}

impl<'c, 't> Call<'c, 't> {
    pub(crate) fn new(t: &'t Tracer, case: &'c Case) -> Self {
        Call { t, case, leaves: Vec::new() }
    }

    /// The results. `Err` tells why there is no such call here.
    pub(crate) fn record(&mut self) -> Result<Vec<Var<'t>>, String> {
        let case = self.case;
        let mut bound = Vec::new();
        for arg in &case.args {
            bound.push((arg.name.as_deref(), self.bind(&arg.path, &arg.is)));
        }
        if let Some(results) = translated(self.t, case, &bound) {
            return results;
        }
        let name = case.aten.as_deref().unwrap_or(&case.op);
        let name = name.split('.').next().unwrap_or(name);
        let op = find(name).filter(|op| !matches!(op.body, Body::Symbolic(_)));
        let op = op.ok_or_else(|| format!("no op `{name}`"))?;
        let (args, attrs) = form(op, &bound)?;
        Ok(self.t.apply(op, args, attrs).into_vec())
    }

    /// Makes inputs of the tensors of an argument, named by their path.
    fn bind(&mut self, path: &str, arg: &'c Arg) -> Bound<'c, 't> {
        match arg {
            Arg::Tensor(value, grad) => {
                let v = self.t.input(path, value.ty.clone());
                self.leaves.extend(grad.then(|| (path.to_owned(), v)));
                Bound::Tensors(vec![v])
            }
            Arg::List(list) if list.iter().any(|arg| matches!(arg, Arg::Tensor(..))) => {
                let each = list.iter().enumerate().map(|(i, arg)| {
                    match self.bind(&format!("{path}/{i}"), arg) {
                        Bound::Tensors(vars) => vars,
                        Bound::Plain(_) => Vec::new(),
                    }
                });
                Bound::Tensors(each.collect::<Vec<_>>().concat())
            }
            plain => Bound::Plain(plain),
        }
    }
}

type Bounds<'a, 'c, 't> = &'a [(Option<&'c str>, Bound<'c, 't>)];

/// Calls whose form here is another one than PyTorch's.
fn translated<'t>(
    t: &'t Tracer,
    case: &Case,
    bound: Bounds<'_, '_, 't>,
) -> Option<Result<Vec<Var<'t>>, String>> {
    let tensor = |i: usize| match &bound.get(i)?.1 {
        Bound::Tensors(vars) => vars.first().copied(),
        Bound::Plain(_) => None,
    };
    let x = tensor(0)?;
    let results = match case.aten.as_deref()? {
        "to.dtype" => vec![x.cast(match case.op.as_str() {
            "float" => DType::F32,
            "double" => DType::F64,
            "half" => DType::F16,
            "bfloat16" => DType::BF16,
            "int" => DType::I32,
            "long" => DType::I64,
            "byte" => DType::U8,
            "bool" => DType::Bool,
            other => return Some(Err(format!("no dtype `{other}`"))),
        })],
        "fill.Scalar" => match bound.get(1)?.1 {
            Bound::Plain(Arg::Int(n)) => vec![t.full(x.ty(), *n as f64)],
            Bound::Plain(Arg::Float(v)) => vec![t.full(x.ty(), *v)],
            Bound::Plain(Arg::Bool(b)) => vec![t.full(x.ty(), f64::from(u8::from(*b)))],
            _ => return None,
        },
        "true_divide.Tensor" => vec![x.div(tensor(1)?, None)],
        "rsub.Tensor" => vec![tensor(1)?.sub(x, None)],
        "max.other" => vec![x.maximum(tensor(1)?)],
        "min.other" => vec![x.minimum(tensor(1)?)],
        "where.self" => vec![tensor(1)?.choose(x, tensor(2)?)],
        _ => return None,
    };
    Some(Ok(results))
}

/// Operands and attributes of an op, from arguments in PyTorch's order and under its names.
fn form<'t>(op: &OpDef, bound: Bounds<'_, '_, 't>) -> Result<(Args<'t>, Attrs), String> {
    let mut operands: Vec<Option<&[Var<'t>]>> = vec![None; op.schema.operands.len()];
    let mut attrs = Attrs::new();
    for (name, arg) in bound {
        let wanted = name.unwrap_or("an argument without a name");
        match arg {
            Bound::Tensors(vars) => {
                let own = op.schema.operands.iter().position(|o| Some(o.name) == *name);
                let free = operands.iter().position(Option::is_none);
                let at = own.filter(|at| operands[*at].is_none()).or(free);
                let at = at.ok_or_else(|| format!("`{}` has no operand `{wanted}`", op.name))?;
                operands[at] = Some(vars);
            }
            Bound::Plain(Arg::None) => {}
            Bound::Plain(plain) => {
                let of = |wanted: &str| op.schema.attrs.iter().find(|def| def.name == wanted);
                let def = of(wanted).or_else(|| of("scalar").filter(|_| wanted == "other"));
                let attr = def.and_then(|def| Some((def.name, attribute(plain, def.kind)?)));
                let (name, attr) =
                    attr.ok_or_else(|| format!("`{}` has no attribute `{wanted}`", op.name))?;
                attrs.set(name, attr);
            }
        }
    }
    let mut args = Args::new();
    for (operand, vars) in op.schema.operands.iter().zip(operands) {
        match (vars, operand.kind) {
            (Some(vars), _) => args.push(vars),
            (None, OperandKind::Optional) => args.push(None),
            (None, _) => return Err(format!("`{}` takes an operand `{}`", op.name, operand.name)),
        }
    }
    Ok((args, attrs))
}

fn attribute(arg: &Arg, kind: AttrKind) -> Option<Attr> {
    let int = |arg: &Arg| match arg {
        Arg::Int(n) => Some(*n),
        _ => None,
    };
    Some(match (kind, arg) {
        (AttrKind::Bool, Arg::Bool(b)) => Attr::Bool(*b),
        (AttrKind::Int | AttrKind::OptInt, Arg::Int(n)) => Attr::Int(*n),
        (AttrKind::Float | AttrKind::OptFloat, Arg::Int(n)) => Attr::Float(*n as f64),
        (AttrKind::Float | AttrKind::OptFloat, Arg::Float(v)) => Attr::Float(*v),
        (AttrKind::DType | AttrKind::OptDType, Arg::DType(dtype)) => Attr::DType(*dtype),
        (AttrKind::Ints, Arg::Int(n)) => Attr::from(&[*n][..]),
        (AttrKind::Ints, Arg::List(list)) => {
            Attr::from(&list.iter().map(int).collect::<Option<Vec<i64>>>()?[..])
        }
        (AttrKind::OptStr, Arg::Text(text)) => Attr::Str(text.as_str().into()),
        _ => return None,
    })
}
