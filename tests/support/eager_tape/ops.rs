//! One op of the table by itself: what it computes, its gradient, and its parts.

use super::tape::{Entry, Groups};
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::{Body, ExpandCx, Func, GradCx, GradFn, InferCx, Inside};
use tracecast_ir::ops::cast::Cast;
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{Args, Attrs, Graph, Must, OpRef, Role, Sizes, TensorType, Tracer, Var};

/// Values from outside, named by a letter and their numbers.
fn ports<'t>(t: &'t Tracer, letter: char, types: &[TensorType]) -> Vec<Var<'t>> {
    let port = |(i, ty): (usize, &TensorType)| {
        t.port(&format!("{letter}{i}"), ty.clone(), Role::Input, false, DeviceType::Cpu)
    };
    types.iter().enumerate().map(port).collect()
}

fn finished(t: Tracer) -> Result<Graph, String> {
    t.finish().map_err(|error| error.to_string())
}

/// The results of an op for these operands, promoted and broadcast as its rule of types says.
pub(super) fn alone(
    op: &OpRef,
    attrs: &Attrs,
    groups: &Groups,
    operands: &[&Value],
) -> Result<Vec<Value>, String> {
    let t = Tracer::explicit("alone");
    let types: Vec<TensorType> = operands.iter().map(|value| value.ty.clone()).collect();
    let vars = ports(&t, 'x', &types);
    for (i, y) in
        t.apply(op.clone(), Args::grouped(&vars, groups), attrs.clone()).iter().enumerate()
    {
        t.output(&format!("y{i}"), *y);
    }
    let named =
        operands.iter().enumerate().map(|(i, value)| (format!("x{i}"), Value::clone(value)));
    let inputs: HashMap<String, Value> = named.collect();
    let out = eval::graph(&finished(t)?, &inputs).map_err(|error| error.to_string())?;
    Ok(out.outputs.into_iter().map(|(_, value)| value).collect())
}

/// What the gradients of an op's operands are made of, and whose they are. The ports are the
/// operands, the results, and the gradients of the results that have one.
pub(super) fn gradient(
    rule: &Func<GradFn>,
    entry: &Entry,
    operands: &[TensorType],
    results: &[TensorType],
    given: &[bool],
) -> Result<(Graph, Vec<usize>), String> {
    let t = Tracer::explicit("gradient");
    let mut which = Vec::new();
    {
        let (given_as, outs) = (ports(&t, 'x', operands), ports(&t, 'y', results));
        let with_one: Vec<TensorType> = results
            .iter()
            .zip(given)
            .filter(|(_, given)| **given)
            .map(|(ty, _)| ty.clone())
            .collect();
        let mut arriving = ports(&t, 'd', &with_one).into_iter();
        let dys: Vec<Option<Var<'_>>> =
            given.iter().map(|given| given.then(|| arriving.next().expect("one each"))).collect();
        let args = computed_with(entry, &given_as)?;
        let cx = GradCx {
            tracer: &t,
            args: &args,
            groups: &entry.groups,
            outs: &outs,
            dys: &dys,
            attrs: &entry.attrs,
        };
        let answers = rule(&cx);
        if answers.len() != operands.len() {
            return Err(format!("{} gradients for {} operands", answers.len(), operands.len()));
        }
        for (i, (answer, ty)) in answers.into_iter().zip(operands).enumerate() {
            let Some(gradient) = answer.filter(|_| ty.dtype.is_float()) else { continue };
            // As the engine does: what was broadcast is summed first, then the dtype is that of the
            // operand.
            t.output(&format!("g{i}"), gradient.sum_to(&ty.shape).to(ty.dtype));
            which.push(i);
        }
    }
    Ok((finished(t)?, which))
}

/// The operands as the op computes with them: promoted, then broadcast.
fn computed_with<'t>(entry: &Entry, operands: &[Var<'t>]) -> Result<Vec<Var<'t>>, String> {
    let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
    let numbers = Sizes::default();
    let must = Must::proven(&numbers);
    let (groups, attrs) = (&entry.groups, &entry.attrs);
    let cx = InferCx { types: &types, groups, attrs, must: &must };
    let inferred = (entry.op.def().infer)(&cx)?;
    let promoted = |(i, x): (usize, &Var<'t>)| {
        let x = inferred.casts.get(i).copied().flatten().map_or(*x, |dtype| x.cast(dtype));
        inferred.shapes.get(i).and_then(Option::as_ref).map_or(x, |shape| x.expand_to(shape))
    };
    Ok(operands.iter().enumerate().map(promoted).collect())
}

/// What a composite is made of. The ports are its operands.
pub(super) fn parts(
    entry: &Entry,
    operands: &[TensorType],
    results: &[TensorType],
) -> Result<Graph, String> {
    let Body::Composite { expand, inside, .. } = &entry.op.def().body else {
        return Err("is not made of other ops".to_owned());
    };
    let t = Tracer::explicit("parts");
    {
        let mut args = computed_with(entry, &ports(&t, 'x', operands))?;
        if *inside == Inside::F32 {
            args.iter_mut().for_each(|x| *x = x.to(x.dtype().compute()));
        }
        let (groups, attrs) = (&entry.groups, &entry.attrs);
        let cx = ExpandCx { tracer: &t, args: &args, groups, attrs, results };
        for (i, (part, ty)) in expand(&cx).into_iter().zip(results).enumerate() {
            t.output(&format!("y{i}"), part.to(ty.dtype));
        }
    }
    finished(t)
}
