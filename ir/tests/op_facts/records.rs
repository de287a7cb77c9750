//! What records say beyond equations: where ops round, which operands they cannot do without, and
//! what the language takes them for.

use super::values::{bits, every, has_sign, pairs, some, tensor};
use std::collections::{BTreeMap, HashMap};
use tracecast_ir::eval::{self, Value};
use tracecast_ir::op::{Body, Intrinsic, Lower, Rounds};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::ops::sample::{Sample, parse_sample};
use tracecast_ir::ops::{all, sample};
use tracecast_ir::{Args, Attrs, DType, OpDef, TensorType, Tracer};

/// The results of an op on operands given by value.
fn run(op: &'static OpDef, attrs: &Attrs, operands: &[Value]) -> Vec<Value> {
    let t = Tracer::explicit("record");
    record(&t, op, attrs, operands);
    let graph = t.finish().unwrap_or_else(|e| panic!("{}: {e}", op.name));
    let named = operands.iter().enumerate().map(|(i, v)| (format!("x{i}"), v.clone()));
    let made = eval::graph(&graph, &named.collect()).unwrap_or_else(|e| panic!("{}: {e}", op.name));
    made.outputs.into_iter().map(|(_, v)| v).collect()
}

fn record(t: &Tracer, op: &'static OpDef, attrs: &Attrs, operands: &[Value]) {
    let port = |(i, v): (usize, &Value)| t.input(&format!("x{i}"), v.ty.clone());
    let vars: Vec<_> = operands.iter().enumerate().map(port).collect();
    let mut groups: tracecast_ir::graph::Groups = vars.iter().map(|_| 1).collect();
    groups.resize(op.schema.operands.len(), 0);
    let results = t.apply(op, Args::grouped(&vars, &groups), attrs.clone());
    results.iter().enumerate().for_each(|(i, y)| t.output(&format!("y{i}"), *y));
}

fn samples(op: &'static OpDef, dtype: DType) -> impl Iterator<Item = Sample> {
    let read = move |text: &&str| parse_sample(op, text, dtype).expect("samples are of their op");
    op.domain.samples.iter().map(read)
}

#[test]
fn ops_that_round_nowhere_give_numbers_of_their_dtype() {
    let mut tried = 0;
    for op in all().filter(|op| op.rounding.at == Rounds::Nowhere) {
        let Body::Core { kernel: Lower::Map(_), .. } = op.body else { continue };
        for low in [DType::F16, DType::BF16] {
            if !op.domain.dtypes.contains(&low) {
                continue;
            }
            for sample in samples(op, low) {
                let operands = patterns(&sample, low);
                let wide = |v: &Value| {
                    if v.ty.dtype == low { v.cast(DType::F32).unwrap() } else { v.clone() }
                };
                let narrow = &run(op, &sample.attrs, &operands)[0];
                let exact =
                    &run(op, &sample.attrs, &operands.iter().map(wide).collect::<Vec<_>>())[0];
                let at = wide(narrow).first_difference(exact);
                assert_eq!(at, None, "{} of {low} rounds, {:?}", op.name, sample.attrs);
                tried += 1;
            }
        }
    }
    assert!(tried > 30, "{tried}");
}

/// Operands as a sample has them, with elements of every pattern, or of every pair of some.
fn patterns(sample: &Sample, low: DType) -> Vec<Value> {
    let floats = sample.operands.iter().filter(|(ty, _)| ty.dtype == low).count();
    let [first, second] = if floats == 1 { [every(low), Vec::new()] } else { pairs(&some(low)) };
    let mut lists = [&first, &second].into_iter();
    let operand = |(ty, _): &(TensorType, sample::Range)| {
        if ty.dtype == low {
            return tensor(low, lists.next().expect("one or two floats"));
        }
        let truths: Vec<u64> = (0..first.len() as u64).map(|i| i % 2).collect();
        tensor(ty.dtype, &truths)
    };
    sample.operands.iter().map(operand).collect()
}

#[test]
fn ops_that_take_all_depend_on_each_float_operand() {
    // Whether an operand has made a difference: along an axis of size 1 a softmax is 1 whatever it
    // is of.
    let mut shown: BTreeMap<(&str, usize), bool> = BTreeMap::new();
    for op in all().filter(|op| op.facts.takes_all) {
        for sample in samples(op, DType::F32) {
            let numbers = |seed: usize| {
                let operand = |(i, (ty, _)): (usize, &(TensorType, sample::Range))| {
                    let number = |at: usize| {
                        let word = (at + 97 * i + 1009 * seed + 1).wrapping_mul(0x9e37_79b9);
                        let unit = (word % 1021) as f64 / 1021.0;
                        if ty.dtype.is_float() { 0.25 + unit } else { (at % 2) as f64 }
                    };
                    Value::from_fn(ty.clone(), number).expect("a small tensor")
                };
                sample.operands.iter().enumerate().map(operand).collect::<Vec<Value>>()
            };
            let (base, other) = (numbers(0), numbers(1));
            let before = run(op, &sample.attrs, &base);
            for i in (0..base.len()).filter(|i| base[*i].ty.dtype.is_float()) {
                let mut changed = base.clone();
                changed[i] = other[i].clone();
                let after = run(op, &sample.attrs, &changed);
                *shown.entry((op.name.text(), i)).or_default() |= before != after;
            }
        }
    }
    let missing: Vec<_> = shown.iter().filter(|(_, is_shown)| !**is_shown).collect();
    assert!(missing.is_empty() && shown.len() > 30, "{missing:?} of {}", shown.len());
}

/// The op that the language takes for that.
fn known_as(intrinsic: Intrinsic) -> Vec<&'static OpDef> {
    all().filter(|op| op.facts.intrinsic == Some(intrinsic)).collect()
}

#[test]
fn a_negation_changes_the_sign_and_nothing_else() {
    for op in known_as(Intrinsic::Negation) {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let x = tensor(dtype, &every(dtype));
            let y = &run(op, &Attrs::new(), std::slice::from_ref(&x))[0];
            let numbers = bits(&x).into_iter().zip(bits(y)).zip(x.to_f64s());
            for ((x, y), _) in numbers.filter(|(_, number)| !number.is_nan()) {
                assert_eq!(has_sign(dtype, x), !has_sign(dtype, y), "{} {x:#x}", op.name);
                assert_eq!(x ^ y, 1 << (8 * dtype.bytes() - 1), "{} {x:#x}", op.name);
            }
        }
    }
}

#[test]
fn truth_values_are_chosen_between_and_turned() {
    for op in known_as(Intrinsic::Not) {
        let y = &run(op, &Attrs::new(), &[tensor(DType::Bool, &[0, 1])])[0];
        assert_eq!(bits(y), [1, 0], "{}", op.name);
    }
    for op in known_as(Intrinsic::Choice) {
        for dtype in [DType::Bool, DType::BF16, DType::F64, DType::I64] {
            let [x, y] = pairs(&some(dtype));
            let condition: Vec<u64> = (0..x.len() as u64).map(|i| (i >> 1) & 1).collect();
            let operands = [tensor(DType::Bool, &condition), tensor(dtype, &x), tensor(dtype, &y)];
            let chosen = (0..x.len()).map(|i| if condition[i] == 1 { x[i] } else { y[i] });
            let made = &run(op, &Attrs::new(), &operands)[0];
            assert_eq!(made.first_difference(&tensor(dtype, &chosen.collect::<Vec<_>>())), None);
        }
    }
}

#[test]
fn casts_round_as_values_are_cast() {
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    for from in floats {
        let x = tensor(from, &every(from));
        for to in floats {
            let attrs = Attrs::new().with("to", to);
            let cast = x.cast(to).unwrap();
            for op in known_as(Intrinsic::Cast) {
                let made = &run(op, &attrs, std::slice::from_ref(&x))[0];
                assert_eq!(made.first_difference(&cast), None, "{} {from} to {to}", op.name);
            }
            let narrows = from != to && to.fits_in(from) && to != DType::F64;
            for op in known_as(Intrinsic::RoundTo).into_iter().filter(|_| narrows) {
                // Ops on 16-bit floats do not take part: they have no narrower dtype.
                let made = &run(op, &attrs, std::slice::from_ref(&x))[0];
                let back = cast.cast(from).unwrap();
                assert_eq!(made.first_difference(&back), None, "{} {from} to {to}", op.name);
            }
        }
    }
}

#[test]
fn sums_means_and_what_is_not_finite() {
    let x = Value::from_f64s(TensorType::new(DType::F32, [4]), &[1.0, 2.5, -4.0, 8.5]).unwrap();
    let attrs = Attrs::new().with("dim", &[0_i64][..]);
    let numbers =
        |op, attrs: &Attrs, x: &Value| run(op, attrs, std::slice::from_ref(x))[0].to_f64s();
    for op in known_as(Intrinsic::Total) {
        assert_eq!(numbers(op, &attrs, &x), [8.0], "{}", op.name);
    }
    for op in known_as(Intrinsic::Mean) {
        assert_eq!(numbers(op, &attrs, &x), [2.0], "{}", op.name);
    }
    for op in known_as(Intrinsic::NonFinite) {
        assert_eq!(numbers(op, &Attrs::new(), &x), [0.0], "{}", op.name);
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let x = Value::from_f64s(TensorType::new(DType::F32, [2]), &[1.0, odd]).unwrap();
            assert_eq!(numbers(op, &Attrs::new(), &x), [1.0], "{} of {odd}", op.name);
        }
    }
}

#[test]
fn gradients_are_divided_by_the_scale_in_one_way() {
    let g = tensor(DType::F32, &some(DType::F32));
    let inverse = Value::from_f64s(TensorType::scalar(DType::F32), &[0.125]).unwrap();
    let t = Tracer::explicit("product");
    let (x, by) = (t.input("x", g.ty.clone()), t.input("by", inverse.ty.clone()));
    t.output("y", x.mul(by.expand_to(&g.ty.shape)));
    let inputs = [("x", &g), ("by", &inverse)].map(|(name, v)| (name.to_owned(), v.clone()));
    let product = eval::graph(&t.finish().unwrap(), &HashMap::from(inputs)).unwrap();
    let product = &product.outputs[0].1;
    let operands = [g.clone(), inverse];
    for op in known_as(Intrinsic::Unscale).into_iter().chain(known_as(Intrinsic::UnscaleCheck)) {
        let made = run(op, &Attrs::new(), &operands);
        assert_eq!(made[0].first_difference(product), None, "{}", op.name);
        let is_finite = g.to_f64s().iter().all(|v| v.is_finite());
        if let Some(found) = made.get(1) {
            assert_eq!(found.to_f64s(), [f64::from(!is_finite)], "{}", op.name);
        }
    }
    let all = Value::from_fn(g.ty.clone(), |_| 0.125).unwrap();
    for op in known_as(Intrinsic::Unscaled) {
        let made = &run(op, &Attrs::new(), &[g.clone(), all.clone()])[0];
        assert_eq!(made.first_difference(product), None, "{}", op.name);
    }
}

#[test]
fn numbers_and_positions_are_those_of_the_attributes() {
    let ty = |dtype| Attrs::new().with("dtype", dtype).with("shape", &[2_i64, 3][..]);
    for op in known_as(Intrinsic::Constant) {
        let one = &run(op, &ty(DType::BF16).with("value", 1.5), &[])[0];
        assert_eq!(one.to_f64s(), [1.5; 6], "{}", op.name);
        let data = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let list = &run(op, &ty(DType::I32).with("data", &data[..]), &[])[0];
        assert_eq!(list.to_f64s(), data, "{}", op.name);
    }
    for op in known_as(Intrinsic::Positions) {
        let along = |dim: i64| run(op, &ty(DType::F32).with("dim", dim), &[])[0].to_f64s();
        assert_eq!(along(0), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], "{}", op.name);
        assert_eq!(along(1), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "{}", op.name);
    }
}

#[test]
fn gradients_and_losses_are_what_they_are_called() {
    let is_symbolic = |op: &&OpDef| matches!(op.body, Body::Symbolic(_));
    assert!(known_as(Intrinsic::Gradient).iter().all(is_symbolic));
    for op in known_as(Intrinsic::Loss) {
        assert_eq!(op.schema.results[0], "loss", "{}", op.name);
    }
}
