//! What other mixed-precision rewriters were seen to get wrong, each as a test that this one does
//! not: dtypes that a default takes the place of, rules that stop at the edge of a part, casts of
//! the user's that are taken for one's own, values with several uses, numbers that are bent into
//! range, and roundings that are cancelled.

use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::{DeviceType, Policy, PolicySet, Region, Target};
use tracecast_ir::{DType, Graph, TensorType, Tracer, Var, Verified};
use tracecast_passes::{
    Autocast, Autodiff, Decompose, Fuse, PassOptions, Place, Simplify, standard,
};

use DType::{BF16, F16, F32};

fn region(device: DeviceType, low: DType) -> Region {
    Region::default().with_device(device, true, low).with_scope(1)
}

fn lowered(graph: Graph, last: &str) -> Verified {
    let pipeline = standard(&PassOptions::default()).up_to(last).expect("a standard pass");
    pipeline.run(graph, |_, _, _| ()).unwrap_or_else(|e| panic!("{e}"))
}

/// A program of one input `x` of that type.
fn of_x(ty: TensorType, body: impl for<'t> FnOnce(&'t Tracer, Var<'t>) -> Var<'t>) -> Graph {
    let t = Tracer::new("test");
    let y = body(&t, t.input("x", ty));
    t.output("y", y);
    t.finish().expect("a test program is well formed")
}

/// What a program gives for these numbers, as recorded and behind every pass: always the same.
fn values(graph: Graph, ty: TensorType, numbers: &[f64]) -> Vec<f64> {
    let inputs = [("x".to_owned(), Value::from_f64s(ty, numbers).expect("as many as elements"))];
    let inputs: HashMap<String, Value> = inputs.into();
    let wanted = eval::graph(&graph, &inputs).expect("runs");
    for last in [Autocast::NAME, Simplify::NAME, Place::NAME, Fuse::NAME] {
        let found = eval::graph(&lowered(graph.clone(), last), &inputs).expect("runs");
        assert_eq!(found, wanted, "after {last}");
    }
    wanted.outputs[0].1.to_f64s()
}

/// Every dtype that a value of the program has.
fn dtypes(graph: &Graph) -> Vec<DType> {
    let all = graph.nodes().flat_map(|id| graph.node(id).results.iter().map(|ty| ty.dtype));
    all.collect()
}

/// Intel Neural Compressor built its patterns for bf16 with f16, the default.
#[test]
fn the_default_low_dtype_of_a_device_takes_no_place_of_the_region_s() {
    for device in [DeviceType::Cpu, DeviceType::Cuda, DeviceType::Xpu, DeviceType::Mps] {
        for (low, other) in [(BF16, F16), (F16, BF16)] {
            let t = Tracer::new("test");
            let square = TensorType::new(F32, [4, 4]);
            let x = t.port("x", square.clone(), tracecast_ir::Role::Input, false, device);
            let w = t.port("w", square, tracecast_ir::Role::Param, false, device);
            let loss = t.in_region(&region(device, low), || {
                x.linear(w, None).relu().matmul(w).softmax(-1).linear(w, None).sum(())
            });
            t.output("g", t.grad(loss, &[w])[0]);
            let graph = t.finish().expect("records");
            for last in [Autocast::NAME, Autodiff::NAME, Decompose::NAME, Place::NAME, Fuse::NAME] {
                let dtypes = dtypes(&lowered(graph.clone(), last));
                assert!(!dtypes.contains(&other), "{device}, {low}, {last}");
                assert!(dtypes.contains(&low), "{device}, {low}, {last}");
            }
        }
    }
}

/// tract did not hand its filter on to loop bodies.
#[test]
fn a_rule_reaches_modules_within_modules_and_the_parts_of_ops() {
    let mut policies = PolicySet::standard();
    policies.add_rule(Target::Module("encoder*".into()), None, Policy::Fp32);
    let t = Tracer::with_policies("test", Arc::new(policies));
    let x = t.input("x", TensorType::new(F32, [4, 4]));
    let y = t.in_region(&region(DeviceType::Cpu, BF16), || {
        let inside = t.scope("encoder", || {
            t.scope("0", || t.scope("attention", || x.matmul(x).linear(x, None)))
        });
        assert_eq!(inside.dtype(), F32);
        let outside = t.scope("head", || inside.matmul(x));
        assert_eq!(outside.dtype(), BF16);
        outside
    });
    t.output("y", y);
    let graph = lowered(t.finish().expect("records"), Decompose::NAME);
    let low: Vec<_> = graph
        .nodes()
        .filter(|id| graph.node(*id).scope.starts_with("encoder"))
        .flat_map(|id| graph.node(id).results.to_vec())
        .filter(|ty| ty.dtype.is_low())
        .collect();
    assert!(low.is_empty(), "{}", *graph);
}

/// tract turned casts to f32 inside converted regions into casts to f16.
#[test]
fn a_cast_that_the_program_writes_keeps_its_dtype_in_a_region() {
    let square = TensorType::new(F32, [2, 2]);
    let graph = of_x(square.clone(), |t, x| {
        t.in_region(&region(DeviceType::Cpu, F16), || {
            let wide = x.matmul(x).cast(F32);
            assert_eq!(wide.dtype(), F32);
            // One more than the largest f16, so it is clear what this was computed in.
            wide.add(65_536.0)
        })
    });
    let y = values(graph, square, &[1.0, 0.0, 0.0, 1.0]);
    assert_eq!(y, [65_537.0, 65_536.0, 65_536.0, 65_537.0]);
}

/// onnxconverter-common tested the wrong numbers for dtypes, so its branch for several consumers
/// never ran.
#[test]
fn a_value_with_several_uses_is_cast_for_those_that_ask_for_it() {
    let square = TensorType::new(F32, [2, 2]);
    let third = 1.0 + 2.0_f64.powi(-12);
    let graph = of_x(square.clone(), |t, x| {
        t.in_region(&region(DeviceType::Cpu, BF16), || {
            let h = x.mul(1.0);
            let low = h.matmul(x).cast(F32).mul(0.0);
            // This use asks for no cast: it sees all digits.
            low.add(h)
        })
    });
    assert_eq!(values(graph, square, &[third, 0.0, 0.0, third]), [third, 0.0, 0.0, third]);
}

/// onnxconverter-common clamps weights beyond 1e4, ModelOpt pushes what is too small up to the
/// smallest subnormal number.
#[test]
fn numbers_are_rounded_and_not_bent_into_range() {
    let smallest = 2.0_f64.powi(-24);
    let cases = [
        (20_000.0, 20_000.0),
        (10_001.0, 10_000.0),
        (65_504.0, 65_504.0),
        (65_519.0, 65_504.0),
        (65_520.0, f64::INFINITY),
        (-1e30, f64::NEG_INFINITY),
        (smallest, smallest),
        (smallest / 2.0, 0.0),
        (smallest * 0.51, smallest),
        (1e-30, 0.0),
    ];
    let ty = TensorType::new(F32, [cases.len()]);
    let numbers = cases.map(|(number, _)| number);
    let graph = of_x(ty.clone(), |_, x| x.cast(F16).cast(F32));
    assert_eq!(values(graph, ty, &numbers), cases.map(|(_, wanted)| wanted));
}

/// ModelOpt puts dtypes in one line with f16 above bf16 and takes a cast through f16 for one that
/// loses nothing.
#[test]
fn neither_16_bit_float_holds_the_other() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let ty = |dtype| TensorType::new(dtype, [all.len()]);
    let bytes: Vec<u8> = all.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    for (from, by, differ) in [(BF16, F16, 56_576), (F16, BF16, 54_784)] {
        let graph = of_x(ty(from), |_, x| x.cast(by).cast(from));
        let graph = lowered(graph, Fuse::NAME);
        let x = Value { ty: ty(from), bytes: bytes.clone().into() };
        let out = eval::graph(&graph, &[("x".to_owned(), x.clone())].into()).expect("runs");
        let (before, after) = (x.to_f64s(), out.outputs[0].1.to_f64s());
        let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let changed = before.iter().zip(&after).filter(|(a, b)| !same(a, b)).count();
        assert_eq!(changed, differ, "{from} by way of {by}");
    }
    // f32 to bf16 by way of f16: 1 + 2^-8 + 2^-14 is above the middle of two bf16, and on it when
    // f16 has rounded.
    let above = 1.0 + 2.0_f64.powi(-8) + 2.0_f64.powi(-14);
    let one = TensorType::new(F32, [1]);
    let twice = of_x(one.clone(), |_, x| x.cast(F16).cast(BF16).cast(F32));
    let once = of_x(one.clone(), |_, x| x.cast(BF16).cast(F32));
    assert_eq!(values(twice, one.clone(), &[above]), [1.0]);
    assert_eq!(values(once, one, &[above]), [1.0 + 2.0_f64.powi(-7)]);
}

/// TVM's Relay remembered, with a cast, its inverse: widening gave back the number as it was
/// before.
#[test]
fn widening_does_not_bring_back_what_narrowing_has_rounded() {
    let ty = TensorType::new(F32, [2]);
    for low in [F16, BF16] {
        let graph = of_x(ty.clone(), |_, x| x.cast(low).cast(F32).sub(x));
        let errors = values(graph, ty.clone(), &[0.1, 1.0 / 3.0]);
        assert!(errors.iter().all(|e| *e != 0.0), "{low}: {errors:?}");
        // The same where a policy narrows and a promotion widens.
        let square = TensorType::new(F32, [1, 1]);
        let graph = of_x(square.clone(), |t, x| {
            t.in_region(&region(DeviceType::Cpu, low), || {
                let one = t.full(TensorType::new(F32, [1, 1]), 1.0);
                x.matmul(one).sub(x)
            })
        });
        let errors = values(graph, square, &[0.1]);
        assert!(errors[0] != 0.0, "{low}: {errors:?}");
    }
}
