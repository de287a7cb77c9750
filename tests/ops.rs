//! Every op of the table, in every dtype of its domain: compiled code against the interpreter, bit
//! by bit, forward and (for differentiable samples) backward; and the text of its program
//! round-trips.

mod support;

use std::collections::HashMap;
use support::dice::Dice;
use tracecast_ir::eval::Value;
use tracecast_ir::op::Body;
use tracecast_ir::ops::sample::{Range, Sample, parse_sample};
use tracecast_ir::{DType, Graph, OpDef, TensorType, Tracer, text};

/// The op on its sample; with the gradients of the sum of its floating point results, if it has
/// any.
fn program(op: &'static OpDef, sample: &Sample) -> Graph {
    let tracer = Tracer::new("sample");
    support::sampled(&tracer, op, sample, |y| y.ty().numel() != 0);
    tracer.finish().unwrap_or_else(|e| panic!("{}: {e}", op.name))
}

#[test]
fn compiled_ops_agree_with_the_interpreter() {
    assert_eq!(compare(support::value), 0, "programs are refused in their domain");
}

/// Zeros of both signs, ones, infinities, NaN, the smallest and the largest numbers, wherever
/// samples let floats lie.
#[test]
fn compiled_ops_agree_with_the_interpreter_at_the_ends_of_their_domains() {
    let refused = compare(|ty, range, dice| {
        let plain = support::value(ty, range, dice);
        if !ty.dtype.is_float() {
            return plain;
        }
        let least = if ty.dtype == DType::F64 { 5e-324 } else { 1e-45 };
        let ends = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, least, 3e38];
        let mut numbers = plain.to_f64s();
        for x in &mut numbers {
            if dice.chance(40) {
                *x = dice.pick(&ends);
            }
        }
        Value::from_f64s(ty.clone(), &numbers).expect("the same type")
    });
    assert!(refused > 0, "no check is met");
}

/// Runs every op in every dtype on such numbers: how many runs end with the same error everywhere.
fn compare(value: impl Fn(&TensorType, Range, &mut Dice) -> Value) -> usize {
    let cpus = support::cpus();
    let (mut compared, mut refused, mut failures) = (0, 0, Vec::new());
    for op in tracecast_ir::ops::all() {
        if matches!(op.body, Body::Symbolic(_)) {
            continue;
        }
        for &dtype in op.domain.dtypes {
            for text in op.domain.samples {
                let sample = parse_sample(op, text, dtype).unwrap_or_else(|e| panic!("{e}"));
                let graph = program(op, &sample);
                let mut dice = Dice::new(3);
                let inputs: HashMap<_, _> = (0..sample.operands.len())
                    .map(|i| {
                        (
                            format!("x{i}"),
                            value(&sample.operands[i].0, sample.operands[i].1, &mut dice),
                        )
                    })
                    .collect();
                let what = format!("{} {text} with T = {dtype}", op.name);
                let (reference, fused) =
                    support::lowered(graph).unwrap_or_else(|e| panic!("{what}: {e}"));
                let wanted = support::expected(&reference, &inputs);
                for (cpu, device) in &cpus {
                    let found = support::computed(&fused, device.clone(), &inputs);
                    let difference = match (&found, &wanted) {
                        (Ok(found), Ok(wanted)) => support::difference(found, wanted),
                        // A check of the op, which both name in the same words.
                        (Err(found), Err(wanted)) if same_check(found, wanted) => {
                            refused += 1;
                            None
                        }
                        (found, wanted) => Some(format!(
                            "{:?}, expected {:?}",
                            found.as_ref().err(),
                            wanted.as_ref().err()
                        )),
                    };
                    failures.extend(difference.map(|d| format!("{what} on {cpu}: {d}")));
                    compared += 1;
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {compared} differ:\n{}",
        failures.len(),
        failures[..failures.len().min(40)].join("\n")
    );
    assert!(compared > 2000, "only {compared} programs were compared");
    refused
}

/// True if two errors are of the same check.
fn same_check(found: &str, wanted: &str) -> bool {
    found.contains(wanted) || wanted.contains(found)
}

#[test]
fn samples_round_trip_through_text() {
    for op in tracecast_ir::ops::all() {
        if matches!(op.body, Body::Symbolic(_)) {
            continue;
        }
        for &dtype in op.domain.dtypes {
            for sample in op.domain.samples {
                let sample = parse_sample(op, sample, dtype).unwrap_or_else(|e| panic!("{e}"));
                let printed = program(op, &sample).to_string();
                let again =
                    text::parse(&printed).unwrap_or_else(|e| panic!("{}: {e}\n{printed}", op.name));
                assert_eq!(again.to_string(), printed, "{}", op.name);
            }
        }
    }
}
