//! What the records of elementwise ops say about the elements that they hand on is true; passes
//! rely on it for ops that they do not know.

use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::kernel::ScalarOp;
use tracecast_ir::op::{
    Body, Dispatch, Domain, Elements, FLOATS, Grad, Lower, Map, Rounding, chosen, core,
};
use tracecast_ir::ops::infer;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Args, Attrs, DType, Graph, OpDef, Stage, TensorType, Tracer, Var, ops, verify};
use tracecast_passes::{Pass, Place};

tracecast_ir::ops! { trait Mine;

/// The operand where it is negative, else zero.
NEGATIVE_PART = negative_part(x) -> (y) {
    dispatch: Dispatch::Internal,
    infer:    &infer::float,
    body:     core(Grad::Zero, chosen(0, &|cx, x| {
        let zero = cx.constant(0.0);
        cx.body.binary(ScalarOp::Min, zero, x[0])
    })),
    rounding: Rounding::NOWHERE,
    domain:   Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

/// Zeros of both signs, ties of both 16-bit floats and their neighbours, the ends of their ranges,
/// infinities and NaN.
const NUMBERS: [f64; 20] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.003_906_25,
    -1.003_906_25,
    1.003_906_369_209_289_6,
    1.000_488_281_25,
    -1.000_488_281_25,
    0.1,
    -0.1,
    1e-8,
    -1e-8,
    1e-45,
    -1e-45,
    65_519.0,
    -65_520.0,
    3.4e38,
    f64::INFINITY,
    f64::NAN,
];

fn maps() -> impl Iterator<Item = (&'static OpDef, &'static Map)> {
    ops::all().filter_map(|op| match &op.body {
        Body::Core { kernel: Lower::Map(map), .. } => Some((op, map)),
        _ => None,
    })
}

/// A program of that op on operands of one dtype, the first ones bool, that go through one cast
/// before it and through one behind.
fn program(op: &'static OpDef, bools: usize, casts: [DType; 3]) -> Graph {
    let t = Tracer::explicit("elements");
    let side = NUMBERS.len();
    let vars: Vec<Var<'_>> = (0..op.schema.operands.len())
        .map(|i| {
            let dtype = if i < bools { DType::Bool } else { casts[0] };
            let x = t.input(&format!("x{i}"), TensorType::new(dtype, [side, side]));
            if i < bools || casts[1] == casts[0] { x } else { x.cast(casts[1]) }
        })
        .collect();
    let y = t.apply(op, Args::of(&vars), Attrs::new())[0];
    t.output("y", if y.dtype() == casts[2] { y } else { y.cast(casts[2]) });
    t.finish().unwrap_or_else(|e| panic!("{}: {e}", op.name))
}

/// Every pair of numbers.
fn result(graph: &Graph) -> Value {
    let side = NUMBERS.len();
    let inputs: HashMap<String, Value> = graph
        .ports()
        .iter()
        .enumerate()
        .map(|(i, port)| {
            let number = |at: usize| match (port.ty.dtype, i) {
                (DType::Bool, _) => (at % 3 % 2) as f64,
                (_, 0) => NUMBERS[at / side],
                _ => NUMBERS[at % side],
            };
            let numbers: Vec<f64> = (0..side * side).map(number).collect();
            (port.name.clone(), Value::from_f64s(port.ty.clone(), &numbers).expect("as many"))
        })
        .collect();
    eval::graph(graph, &inputs).expect("runs").outputs.remove(0).1
}

#[test]
fn rounding_before_a_choice_is_rounding_behind_it() {
    let mut checked = 0;
    for (op, map) in maps() {
        let Elements::Chosen { from } = map.elements() else { continue };
        for low in [DType::BF16, DType::F16] {
            let before = result(&program(op, from, [DType::F32, low, low]));
            let behind = result(&program(op, from, [DType::F32, DType::F32, low]));
            assert_eq!(before.first_difference(&behind), None, "{} in {low}", op.name);
            checked += 1;
        }
    }
    assert_eq!(checked, 8, "relu, neg, abs and where");
}

#[test]
fn numbers_handed_on_are_as_narrow_as_they_were() {
    let mut checked = 0;
    for (op, map) in maps() {
        let Some(from) = map.handed_on_from() else { continue };
        for low in [DType::BF16, DType::F16] {
            let narrow = result(&program(op, from, [low, low, DType::F32]));
            let wide = result(&program(op, from, [low, DType::F32, DType::F32]));
            assert_eq!(narrow.first_difference(&wide), None, "{} in {low}", op.name);
            checked += 1;
        }
    }
    assert_eq!(checked, 12, "the choices, maximum and minimum");
}

#[test]
fn what_makes_new_numbers_rounds_otherwise() {
    let differs = |op: &'static OpDef| {
        let low = DType::BF16;
        let before = result(&program(op, 0, [DType::F32, low, low]));
        let behind = result(&program(op, 0, [DType::F32, DType::F32, low]));
        before.first_difference(&behind).is_some()
    };
    let new: Vec<&str> = maps()
        .filter(|(op, map)| {
            let takes_floats = op.domain.dtypes.first() == Some(&DType::F32);
            let is_plain = op.schema.attrs.iter().all(|attr| attr.name == "scalar");
            let required = !matches!(op.name.text(), "rsub" | "round_to");
            let floats = !matches!(op.name.text(), "eq" | "ne" | "lt" | "le" | "gt" | "ge");
            map.elements() == Elements::New && takes_floats && is_plain && required && floats
        })
        .map(|(op, _)| {
            assert!(differs(op), "{} hands its operands on", op.name);
            op.name.text()
        })
        .collect();
    assert!(new.len() > 12 && new.contains(&"add") && new.contains(&"sin"), "{new:?}");
}

#[test]
fn an_op_of_another_crate_is_placed_by_what_its_record_says() {
    let t = Tracer::explicit("mine");
    let x = t.input("x", TensorType::new(DType::F32, [NUMBERS.len(), NUMBERS.len()]));
    let y = x.sqrt().negative_part();
    t.output("y", y.cast(DType::BF16).negative_part());
    t.output("z", y.cast(DType::BF16).contract(y.cast(DType::BF16), None));
    let graph = verify(t.finish().expect("records"), Stage::Core).expect("is well formed");
    let placed = Place::default().run(&graph).expect("runs");
    let mine =
        placed.nodes().map(|id| placed.node(id)).filter(|n| n.op.name() == NEGATIVE_PART.name);
    let dtypes: Vec<DType> = mine.map(|node| node.results[0].dtype).collect();
    assert_eq!(dtypes, [DType::BF16; 2], "{placed}");
    assert_eq!(result(&graph).first_difference(&result(&placed)), None, "{placed}");
}
