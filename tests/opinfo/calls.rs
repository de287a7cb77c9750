//! A recorded call with the ops of the table, or with the functions made of them.
//!
//! An ATen op is the op of the same name. Its tensors are the operands in order, or those of the
//! same name; its other arguments the attributes of the same name. What has another form here is
//! listed in `functions`. So an op that is new in the table is compared without a change here.

use crate::arguments::{Arguments, Bound, integers, number};
use crate::cases::Arg;
use crate::functions;
use tracecast_ir::op::{AttrKind, Body, OpDef, OperandKind};
use tracecast_ir::ops::find;
use tracecast_ir::{Args, Attr, Attrs, Var};

/// What a call comes to: its results, or why there is no such call here.
pub(crate) type Called<'t> = Result<Vec<Var<'t>>, String>;

/// Records the call.
pub(crate) fn record<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let case = a.case;
    let name = case.aten.as_deref().unwrap_or(&case.op);
    let name = name.split('.').next().filter(|_| case.aten.is_some()).unwrap_or(name);
    if let Some(results) = functions::call(&case.op, a).or_else(|| functions::call(name, a)) {
        let results = results?;
        return match a.left() {
            Some(left) => Err(format!("`{}` takes no {left}", case.op)),
            None => Ok(results),
        };
    }
    let known = |name: &str| find(name).filter(|op| !matches!(op.body, Body::Symbolic(_)));
    let op = known(&case.op.replace('.', "_")).or_else(|| known(name));
    let op = op.ok_or_else(|| format!("no op `{}`", case.op))?;
    let (args, attrs) = form(op, a)?;
    Ok(a.t.apply(op, args, attrs).into_vec())
}

/// Operands and attributes of an op, from arguments in PyTorch's order and under its names.
fn form<'t>(op: &OpDef, a: &Arguments<'_, 't>) -> Result<(Args<'t>, Attrs), String> {
    let mut operands: Vec<Option<Vec<Var<'t>>>> = vec![None; op.schema.operands.len()];
    let mut attrs = Attrs::new();
    for (at, given) in a.list.iter().enumerate() {
        let name = given.name;
        let wanted = name.unwrap_or("an argument without a name");
        if let Some(vars) = given.is.tensors().filter(|_| !is_plain(&given.is)) {
            let own = op.schema.operands.iter().position(|o| Some(o.name) == name);
            let free = operands.iter().position(Option::is_none);
            let at = own.filter(|at| operands[*at].is_none()).or(free);
            let at = at.ok_or_else(|| format!("`{}` has no operand `{wanted}`", op.name))?;
            operands[at] = Some(vars);
            continue;
        }
        if at == 0 && name == Some("self") && is_plain(&given.is) {
            operands[0] = Some(vec![a.x()?]);
            continue;
        }
        let Bound::Plain(plain) = &given.is else {
            return Err(format!("`{}` takes no list `{wanted}`", op.name));
        };
        if matches!(plain, Arg::None | Arg::Other) {
            continue;
        }
        let of = |wanted: &str| op.schema.attrs.iter().find(|def| def.name == wanted);
        let placed = || op.schema.attrs.get(at.checked_sub(1)?).filter(|_| name.is_none());
        let second = |name: &&str| matches!(*name, "other" | "exponent");
        let def = of(wanted).or_else(|| of("scalar").filter(|_| name.as_ref().is_some_and(second)));
        let def = def.or_else(placed);
        let attr = def.and_then(|def| Some((def.name, attribute(plain, def.kind)?)));
        let (name, attr) =
            attr.ok_or_else(|| format!("`{}` has no attribute `{wanted}`", op.name))?;
        attrs.set(name, attr);
    }
    for def in op.schema.attrs.iter().filter(|def| def.kind == AttrKind::Ints) {
        if attrs.get(def.name).is_none() {
            attrs.set(def.name, &[][..] as &[i64]);
        }
    }
    let mut args = Args::new();
    for (operand, vars) in op.schema.operands.iter().zip(operands) {
        match (vars, operand.kind) {
            (Some(vars), _) => args.push(vars.iter().copied()),
            (None, OperandKind::Optional) => args.push(None),
            (None, _) => return Err(format!("`{}` takes an operand `{}`", op.name, operand.name)),
        }
    }
    Ok((args, attrs))
}

fn is_plain(bound: &Bound<'_, '_>) -> bool {
    matches!(bound, Bound::Plain(_))
}

fn attribute(arg: &Arg, kind: AttrKind) -> Option<Attr> {
    Some(match (kind, arg) {
        (AttrKind::Bool, Arg::Bool(b)) => Attr::Bool(*b),
        (AttrKind::Int | AttrKind::OptInt, Arg::Int(n)) => Attr::Int(*n),
        (AttrKind::Float | AttrKind::OptFloat | AttrKind::OptNumber, arg) => {
            Attr::Float(number(arg)?)
        }
        (AttrKind::DType | AttrKind::OptDType, Arg::DType(dtype)) => Attr::DType(*dtype),
        (AttrKind::Ints | AttrKind::Sizes, arg) => Attr::from(&integers(arg)?[..]),
        (AttrKind::OptStr, Arg::Text(text)) => Attr::Str(text.as_str().into()),
        _ => return None,
    })
}
