//! Recording: errors that wait, names of nodes, rules that single nodes out.

use std::sync::Arc;
use tracecast_ir::op::{Dispatch, Domain, FLOATS, Rounding, composite};
use tracecast_ir::ops::infer;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Region, Target};
use tracecast_ir::{DType, Size, TensorType, Tracer, Var};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

#[test]
fn the_first_error_waits_with_its_line() {
    let t = Tracer::new("g");
    let x = t.input("x", f32s(&[8, 4]));
    let w = t.input("w", f32s(&[5, 2]));
    let y = x.matmul(w); // this line
    let line = line!() - 1;
    t.output("z", y.relu().sum(7));
    let error = t.finish().expect_err("inner sizes differ");
    assert_eq!(
        (error.op.as_str(), error.message.as_str()),
        ("matmul", "inner sizes differ, 4 and 5\n  given x: f32[8, 4], other: f32[5, 2]")
    );
    assert!(error.source_line.contains(&format!("tracing.rs:{line}:")), "{}", error.source_line);
}

tracecast_ir::ops! { trait Parted;

/// An op made of others, which its type rule lets pass.
PARTED = parted(x) -> (y) {
    dispatch: Dispatch::Expands,
    infer: &infer::same,
    body: composite(None, &|cx| [cx.args[0].expand([2, 5])].into_iter().collect()),
    rounding: Rounding::NOWHERE,
    domain: Domain { dtypes: FLOATS, samples: &["T[3]"] },
}
}

#[test]
fn an_error_names_what_was_called_and_then_its_part() {
    let told = |call: fn(Var<'_>) -> Var<'_>| {
        let t = Tracer::new("g");
        call(t.input("x", f32s(&[2, 3])));
        let error = t.finish().expect_err("does not fit");
        (error.op, error.message)
    };
    let (op, message) = told(|x| x.repeat(&[1 << 40, 1 << 40]));
    assert_eq!(op, "repeat");
    assert!(message.ends_with("\n  where `repeat` of f32[2, 3] records `expand`"), "{message}");
    let (op, message) = told(|x| x.parted());
    assert_eq!(op, "parted");
    assert!(message.ends_with("\n  where `parted` records `expand`"), "{message}");
    // Of a function in a function, and of an op in one, the user knows the outer one.
    let (op, message) = told(|x| x.tile(&[1 << 40, 1 << 40]));
    assert_eq!(op, "tile");
    assert!(message.ends_with("\n  where `tile` of f32[2, 3] records `expand`"), "{message}");
    let (op, message) = told(|x| x.limited(-1.0, 1.0));
    assert_eq!(op, "limited");
    assert!(message.starts_with("`p` is -1 and `maxnorm` 1, expected above 0"), "{message}");
    assert_eq!(told(|x| x.relu6().normalize(2.0, 9, 1e-6)).0, "normalize");
}

#[test]
fn values_of_another_trace_are_refused() {
    let (a, b) = (Tracer::new("a"), Tracer::new("b"));
    let (x, y) = (a.input("x", f32s(&[2])), b.input("y", f32s(&[2])));
    a.output("z", x.add(y));
    assert!(a.finish().expect_err("foreign").message.contains("another trace"));
}

#[test]
fn sizes_that_overflow_are_refused() {
    let t = Tracer::new("g");
    let x = t.input("x", f32s(&[1]));
    t.output("y", x.expand([i64::MAX, i64::MAX]));
    assert!(t.finish().expect_err("too large").message.contains("too many elements"));
    let t = Tracer::new("g");
    t.output("y", t.input("x", f32s(&[1])).mul(Size::from(i64::MIN) - 1));
    assert!(t.finish().expect_err("beyond 64 bits").message.contains("a size out of range"));
}

#[test]
fn a_rule_can_single_out_a_node() {
    let mut policies = PolicySet::standard();
    policies.add_rule(Target::Node("head/matmul#1".to_owned()), None, Policy::Fp32);
    let t = Tracer::with_policies("g", Arc::new(policies));
    let x = t.input("x", f32s(&[3, 3]));
    let region =
        Region::default().enter(DeviceType::Cpu, Some(DType::BF16), true, None).expect("bf16").0;
    t.in_region(&region, || {
        t.scope("head", || {
            t.output("first", x.matmul(x));
            t.output("second", x.matmul(x));
        });
    });
    let graph = t.finish().expect("well typed");
    let dtypes: Vec<DType> = graph.outputs().iter().map(|(_, v)| graph.ty(*v).dtype).collect();
    assert_eq!(dtypes, [DType::BF16, DType::F32]);
    assert_eq!(graph.names()[2], "head/matmul#1");
}
