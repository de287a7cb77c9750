//! Every op of the table with names for the sizes of its operands: at the sizes of its samples and
//! at others, 0 and 1 among them, types, values and gradients are those of the program with
//! numbers, in two named ops but for the order of sums where a name is 1.

use crate::support::dice::Dice;
use crate::support::{difference, expected, sampled, value};
use std::collections::{BTreeSet, HashMap};
use tracecast_ir::eval::Outputs;
use tracecast_ir::op::{AttrKind, Body};
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::{Attr, DType, Graph, OpDef, Size, Stage, TraceError, Tracer, Values, verify};
use tracecast_passes::{Autodiff, PassOptions, Simplify, standard};

/// The op on its operands, with the gradients of the sum of its first floating point result.
fn program(op: &'static OpDef, sample: &Sample, names: &Values) -> Result<Graph, TraceError> {
    let tracer = Tracer::new("sample");
    for (name, value) in names.iter() {
        tracer.size_at(name, 0.., value);
    }
    sampled(&tracer, op, sample, |_| true);
    tracer.finish()
}

/// The sample with another size in the place of every size that `with` knows, in types and in
/// attributes that are sizes.
fn with_sizes(op: &OpDef, sample: &Sample, with: &dyn Fn(usize) -> Size) -> Sample {
    let mut out = sample.clone();
    let of = |n: i64| usize::try_from(n).map_or(Size::from(n), with);
    for (ty, range) in &mut out.operands {
        ty.shape = ty.shape.numbers().iter().map(|n| with(*n)).collect();
        if let Range::Between(low, high) = range
            && *low == 0.0
            && let Some(to) = with(*high as usize).number()
        {
            *range = Range::Between(0.0, to.max(1) as f64);
        }
    }
    for def in op.schema.attrs {
        let sized = match (def.kind, sample.attrs.get(def.name)) {
            (AttrKind::Size, Some(Attr::Int(n))) => Attr::from(of(*n)),
            (AttrKind::Sizes, Some(Attr::Ints(list))) => {
                Attr::from(&list.iter().map(|n| of(*n)).collect::<Vec<Size>>()[..])
            }
            _ => continue,
        };
        out.attrs.set(def.name, sized);
    }
    out
}

/// The program behind the passes up to one.
fn behind(graph: Graph, pass: &str) -> Result<Graph, String> {
    let pipeline = standard(&PassOptions::default()).up_to(pass).unwrap();
    pipeline.run(graph, |_, _, _| {}).map(|graph| graph.into_graph()).map_err(|e| e.to_string())
}

/// What has been compared, and what was different.
#[derive(Default)]
struct Tally {
    compared: usize,
    guarded: usize,
    wrong: Vec<String>,
    /// The ops of [`SUMMED_IN_ANOTHER_ORDER`] that were.
    other_order: BTreeSet<String>,
}

impl Tally {
    /// Compares the program with names, at these values, with the one of numbers.
    fn compare(&mut self, op: &'static OpDef, sample: &Sample, named: &Graph, values: &Values) {
        let number = |n: usize| values.get(&format!("n{n}")).map_or(Size::from(n), Size::from);
        let sample = with_sizes(op, sample, &number);
        let what = format!("{} at {values}", op.name);
        let at = match named.at(values) {
            Ok(at) => at,
            Err(error) => {
                self.guarded += 1;
                if !error.message.contains("the program needs") {
                    self.wrong.push(format!("{what}: {error}"));
                }
                return;
            }
        };
        let numbers = program(op, &sample, &Values::default()).map_err(|e| e.to_string());
        let numbers = numbers.and_then(|graph| behind(graph, Autodiff::NAME));
        let at = verify(at, Stage::Core).map_err(|e| e.to_string());
        let (numbers, at) = match (numbers, at) {
            (Ok(numbers), Ok(at)) => (numbers, at),
            (numbers, at) => {
                let (numbers, at) = (numbers.err(), at.err());
                return self
                    .wrong
                    .push(format!("{what}: {numbers:?} with numbers, {at:?} at them"));
            }
        };
        let mut dice = Dice::new(3);
        let inputs = sample.operands.iter().enumerate();
        let inputs: HashMap<_, _> = inputs
            .map(|(i, (ty, range))| (format!("x{i}"), value(ty, *range, &mut dice)))
            .collect();
        match (expected(&at, &inputs), expected(&numbers, &inputs)) {
            (Ok(found), Ok(wanted)) => {
                self.compared += 1;
                let same = difference(&found, &wanted);
                let is_one = values.iter().any(|(_, value)| value == 1);
                let may_differ = is_one
                    && SUMMED_IN_ANOTHER_ORDER.iter().any(|name| op.name.to_string() == *name);
                let in_order_alone = may_differ && differ_in_order_alone(&found, &wanted);
                if in_order_alone && same.is_some() {
                    self.other_order.insert(op.name.to_string());
                }
                let wrong = same.filter(|_| !in_order_alone);
                self.wrong.extend(wrong.map(|d| format!("{what}: {d}")));
            }
            (found, wanted) if found.is_err() && wanted.is_err() => {}
            (found, wanted) => {
                let (found, wanted) = (found.err(), wanted.err());
                self.wrong.push(format!("{what}: {found:?}, expected {wanted:?}"));
            }
        }
    }
}

/// Ops whose gradients have sums of another order where a name is 1. The gradient of an operand
/// sums over every axis of which it has a written 1, also over one of 1, and not over one whose
/// name is 1 (`Var::sum_to`): there a row has other axes.
const SUMMED_IN_ANOTHER_ORDER: [&str; 2] = ["batch_norm_backward", "expand"];

/// True if results differ by what another order of a sum makes of it.
fn differ_in_order_alone(found: &Outputs, wanted: &Outputs) -> bool {
    let near =
        |a: f64, b: f64| a == b || (a - b).abs() <= 1e-6 * a.abs() || a.is_nan() && b.is_nan();
    found.outputs.len() == wanted.outputs.len()
        && found.outputs.iter().zip(&wanted.outputs).all(|((name, a), (_, b))| {
            let is_sum = name.starts_with('g') && a.ty.dtype == DType::F32;
            let (found, wanted) = (a.to_f64s(), b.to_f64s());
            let nears = found.iter().zip(&wanted).all(|(a, b)| near(*a, *b));
            a.ty == b.ty && (is_sum && nears || a.first_difference(b).is_none())
        })
}

#[test]
fn ops_with_names_are_the_ops_with_their_numbers() {
    let mut tally = Tally::default();
    for op in tracecast_ir::ops::all().filter(|op| !matches!(op.body, Body::Symbolic(_))) {
        let Some(&dtype) = op.domain.dtypes.first() else { continue };
        for text in op.domain.samples {
            let sample = parse_sample(op, text, dtype).unwrap_or_else(|e| panic!("{e}"));
            let mut sizes: Vec<usize> =
                sample.operands.iter().flat_map(|(ty, _)| ty.shape.numbers()).collect();
            sizes.sort_unstable();
            sizes.dedup();
            // A 1 that is written stretches, one that is a name does not; the state of random
            // numbers has as many numbers as it has.
            let split = op.schema.operands.iter().zip(&sample.groups);
            let names = split.flat_map(|(operand, n)| vec![operand.name; usize::from(*n)]);
            let operands = names.zip(&sample.operands);
            let seeds = operands.filter(|(operand, _)| *operand == "rng");
            let seeds: Vec<usize> = seeds.flat_map(|(_, (ty, _))| ty.shape.numbers()).collect();
            sizes.retain(|n| *n > 1 && !seeds.contains(n));
            let names = |of: &dyn Fn(usize) -> i64| -> Values {
                let name = |n: &usize| Size::named(&format!("n{n}")).name().unwrap();
                sizes.iter().map(|n| (name(n), of(*n))).collect()
            };
            let name = |n: usize| {
                if sizes.contains(&n) { Size::named(&format!("n{n}")) } else { Size::from(n) }
            };
            let hints = names(&|n| n as i64);
            let named = program(op, &with_sizes(op, &sample, &name), &hints);
            let named = named.map_err(|e| e.to_string());
            let named = match named.and_then(|graph| behind(graph, Simplify::NAME)) {
                Ok(named) => named,
                Err(error) if NUMBERS_ONLY.iter().any(|why| error.contains(why)) => continue,
                Err(error) => {
                    tally.wrong.push(format!("{} {text}: {error}", op.name));
                    continue;
                }
            };
            let compared = tally.compared;
            tally.compare(op, &sample, &named, &hints);
            if tally.compared == compared {
                tally.wrong.push(format!("{} {text}: not compared at its own sizes", op.name));
            }
            let others: [&dyn Fn(usize) -> i64; 4] =
                [&|_| 0, &|_| 1, &|n| n as i64 + 1, &|n| (n as i64 * 7) % 5];
            for other in others {
                tally.compare(op, &sample, &named, &names(other));
            }
        }
    }
    let Tally { compared, guarded, wrong, other_order } = tally;
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
    assert!(other_order.iter().eq(SUMMED_IN_ANOTHER_ORDER.iter()), "only {other_order:?} differ");
    assert!(compared > 300 && guarded > 20, "{compared} compared, {guarded} guarded");
}

/// What an op may say that cannot do with names.
const NUMBERS_ONLY: [&str; 1] = ["needs numbers there: pin the size"];
