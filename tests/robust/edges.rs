//! Every op at the edges of its domain: sizes of 0 and 1, attributes of any size, operands of any
//! type.

use crate::outcome::{Outcome, caught, follow};
use crate::support::dice::Dice;
use crate::support::sampled;
use std::sync::Arc;
use tracecast_ir::op::Body;
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::{Attr, Attrs, DType, Graph, OpDef, Shape, Size, TraceError, Tracer};
use tracecast_runtime::Device;

const INTS: [i64; 14] = [
    0,
    1,
    -1,
    2,
    3,
    -2,
    i32::MAX as i64,
    i32::MIN as i64 - 1,
    u32::MAX as i64,
    1 << 53,
    i64::MAX / 8,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
];
const FLOATS: [f64; 12] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    255.5,
    1e-320,
    1e39,
    f64::MAX,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];
const TEXTS: [&str; 8] = ["", "sum", "mean", "none", "max", "argmax", "tanh", "é\n\""];

/// The op on a sample, with the gradients of its floating point results.
pub(crate) fn record(op: &'static OpDef, sample: &Sample, grad: bool) -> Result<Graph, TraceError> {
    let tracer = Tracer::new("edge");
    sampled(&tracer, op, sample, |_| grad && tracer.error().is_none());
    tracer.finish()
}

/// The ops that are recorded, and their samples in some dtypes.
pub(crate) fn samples(dtypes: usize) -> impl Iterator<Item = (&'static OpDef, Sample)> {
    let ops = tracecast_ir::ops::all().filter(|op| !matches!(op.body, Body::Symbolic(_)));
    ops.flat_map(move |op| {
        let of = move |dtype| {
            op.domain
                .samples
                .iter()
                .map(move |s| (op, parse_sample(op, s, dtype).unwrap_or_else(|e| panic!("{e}"))))
        };
        op.domain.dtypes.iter().copied().take(dtypes).flat_map(of)
    })
}

/// The sample with every size `from` written as `to`, in shapes and in attributes.
pub(crate) fn resized(sample: &Sample, from: usize, to: usize) -> Sample {
    let mut out = sample.clone();
    for (ty, range) in &mut out.operands {
        let sizes = ty.shape.numbers();
        ty.shape = sizes.iter().map(|&n| if n == from { to } else { n }).collect();
        if let Range::Between(low, high) = range
            && *low == 0.0
            && *high == from as f64
        {
            *range = Range::Between(0.0, to.max(1) as f64);
        }
    }
    let mut attrs = Attrs::new();
    for (name, attr) in sample.attrs.iter() {
        let swap = |n: i64| if n == from as i64 { to as i64 } else { n };
        let value = match (name, attr) {
            ("shape" | "normalized_shape", Attr::Ints(list)) => {
                Attr::Ints(list.iter().map(|n| swap(*n)).collect())
            }
            ("rows" | "classes" | "end" | "high", Attr::Int(n)) => Attr::Int(swap(*n)),
            _ => attr.clone(),
        };
        attrs.set(name.to_owned(), value);
    }
    out.attrs = attrs;
    out
}

/// One random change of operands or attributes.
pub(crate) fn stretched(dice: &mut Dice, op: &OpDef, sample: &Sample) -> Sample {
    let mut out = sample.clone();
    let names: Vec<&str> = op.schema.attrs.iter().map(|a| a.name).collect();
    if !names.is_empty() && dice.chance(50) {
        let name = dice.pick(&names);
        let value = attr(dice, out.attrs.get(name));
        out.attrs.set(name, value);
    } else if !out.operands.is_empty() {
        let at = dice.below(out.operands.len());
        let (ty, range) = &mut out.operands[at];
        *range = Range::Any;
        let mut sizes: Vec<Size> = ty.shape.to_vec();
        match dice.below(6) {
            0 => ty.dtype = dice.pick(&DType::COMPUTABLE),
            1 => ty.dtype = dice.pick(&DType::ALL),
            2 => sizes.insert(
                dice.below(sizes.len() + 1),
                dice.pick(&[0, 1, 2, 1 << 20, 1 << 40, usize::MAX]).into(),
            ),
            3 if !sizes.is_empty() => drop(sizes.remove(dice.below(sizes.len()))),
            4 => sizes = vec![Size::from(1); dice.pick(&[0, 5, 9, 70])],
            _ if !sizes.is_empty() => {
                let axis = dice.below(sizes.len());
                sizes[axis] = dice
                    .pick(&[0, 1, 2, 3, 17, 1 << 31, 1 << 33, 1 << 61, usize::MAX / 2, usize::MAX])
                    .into();
            }
            _ => {}
        }
        ty.shape = Shape::new(&sizes);
    }
    out
}

fn attr(dice: &mut Dice, old: Option<&Attr>) -> Attr {
    let kind = match old {
        Some(Attr::Int(_)) => 0,
        Some(Attr::Float(_)) => 1,
        Some(Attr::DType(_)) => 2,
        Some(Attr::Ints(_)) => 3,
        Some(Attr::Floats(_)) => 4,
        Some(Attr::Str(_)) => 5,
        _ => dice.below(7),
    };
    match if dice.chance(90) { kind } else { dice.below(7) } {
        0 => Attr::Int(dice.pick(&INTS)),
        1 => Attr::Float(dice.pick(&FLOATS)),
        2 => Attr::DType(dice.pick(&DType::ALL)),
        3 => {
            let mut list = match old {
                Some(Attr::Ints(list)) => list.clone(),
                _ => (0..dice.below(4)).map(|_| dice.pick(&INTS)).collect(),
            };
            match (list.len(), dice.below(4)) {
                (n, 0..=2) if n > 0 => list[dice.below(n)] = dice.pick(&INTS),
                (n, 3) if n > 0 => drop(list.pop()),
                _ => list.push(dice.pick(&INTS)),
            }
            Attr::Ints(list)
        }
        4 => Attr::Floats((0..dice.below(4)).map(|_| dice.pick(&FLOATS)).collect()),
        5 => Attr::Str(Arc::from(dice.pick(&TEXTS))),
        _ => Attr::Bool(dice.chance(50)),
    }
}

/// Records a sample and follows it to its end.
///
/// # Errors
/// What is wrong about it.
pub(crate) fn tried(
    op: &'static OpDef,
    sample: &Sample,
    devices: &[Arc<dyn Device>],
    dice: &mut Dice,
) -> Result<Outcome, String> {
    let grad = dice.chance(60);
    let what = format!(
        "{}{} {:?} {}",
        op.name,
        if grad { " with gradients" } else { "" },
        sample.operands,
        sample.attrs
    );
    let end = caught(|| match record(op, sample, grad) {
        Ok(graph) => follow(&graph, devices, dice).map_err(|e| format!("{e}\n{graph}")),
        Err(error) => {
            assert!(
                error.source_line.contains("edges.rs") || error.source_line.contains("sample.rs"),
                "{error}"
            );
            Ok(Outcome::Refused(error.to_string()))
        }
    });
    end.and_then(|r| r).map_err(|e| format!("{what}: {e}\n"))
}
