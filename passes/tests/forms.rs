//! What a device without code for a form computes in place of it: the same bits.

#[path = "../../tests/support/dice.rs"]
mod dice;

use dice::Dice;
use std::collections::HashMap;
use tracecast_ir::eval::{self, Value};
use tracecast_ir::kernel::FormKind;
use tracecast_ir::ops::conv::transpose::ConvolutionTranspose;
use tracecast_ir::{Attr, DType, Graph, Size, TensorType, Tracer, Verified};
use tracecast_passes::{PassOptions, standard};

/// The kernels of a program for a device with code for these forms.
fn fused(graph: &Graph, forms: &[FormKind]) -> Verified {
    let options = PassOptions { forms: forms.to_vec(), ..PassOptions::default() };
    standard(&options).run(graph.clone(), |_, _, _| ()).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

fn forms(graph: &Graph) -> Vec<FormKind> {
    let kernels = graph.nodes().filter_map(|id| match graph.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some(kernel.form.kind()),
        _ => None,
    });
    kernels.collect()
}

/// A transposed convolution over one axis or two, of windows, places and sizes at random.
fn transposed(dice: &mut Dice, dtype: DType) -> Graph {
    let axes = 1 + dice.below(2);
    let (batch, groups) = (1 + dice.below(2), 1 + dice.below(3));
    // Now and then more steps than a block of a sum has.
    let many = dice.chance(10);
    let planes = if many { 130 + dice.below(5) } else { dice.below(6) };
    let of_result = 1 + dice.below(3);
    let mut axis = |most: usize, least: usize| -> Vec<usize> {
        (0..axes).map(|_| least + dice.below(most)).collect()
    };
    let (kernel, size) = (axis(5, 1), axis(if many { 4 } else { 11 }, 0));
    let (from, low) = (axis(if many { 3 } else { 5 }, 0), axis(6, 0));
    let mut stride = vec![2; axes];
    stride[0] = if axes == 2 { 1 + dice.below(2) as i64 } else { 2 };
    let t = Tracer::new("transposed");
    let x = TensorType::new(dtype, &*[vec![batch, groups * planes], from].concat());
    let weight = TensorType::new(dtype, &*[vec![groups * planes, of_result], kernel].concat());
    let size: Vec<Size> = size.into_iter().map(Size::from).collect();
    let low: Vec<i64> = low.into_iter().map(|n| n as i64).collect();
    let (x, weight) = (t.input("x", x), t.input("w", weight));
    t.output("y", x.convolution_transpose(weight, groups as i64, &size, stride, low));
    t.finish().expect("a program")
}

fn inputs(graph: &Graph, dice: &mut Dice) -> HashMap<String, Value> {
    // What is large cancels here and there, so that results in 16 bits show in which order they
    // were added up.
    let one = |dice: &mut Dice| match dice.below(40) {
        0 => 0.0,
        1 => -0.0,
        2..12 => dice.pick(&[4096.0, -4096.0]),
        _ => dice.unit(),
    };
    let value = |ty: &TensorType, dice: &mut Dice| {
        let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| one(dice)).collect();
        Value::from_f64s(ty.clone(), &numbers).expect("floats")
    };
    graph.ports().iter().map(|p| (p.name.clone(), value(&p.ty, dice))).collect()
}

#[test]
fn phases_of_a_transposed_convolution_have_its_bits() {
    let mut contractions = 0;
    for seed in 0..1000 {
        let mut dice = Dice::new(seed);
        let dtype = dice.pick(&[DType::F32, DType::BF16, DType::BF16, DType::F16, DType::F64]);
        let graph = transposed(&mut dice, dtype);
        let (whole, phases) = (fused(&graph, &FormKind::ALL), fused(&graph, &[]));
        assert_eq!(forms(&whole), [FormKind::Transposed], "{graph}");
        let kinds = forms(&phases);
        assert!(!kinds.contains(&FormKind::Transposed), "{}", *phases);
        contractions += kinds.iter().filter(|kind| **kind == FormKind::Contract).count();
        let inputs = inputs(&graph, &mut dice);
        let [wanted, found] = [&whole, &phases].map(|program| {
            let out = eval::graph(program, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
            out.outputs[0].1.clone()
        });
        assert_eq!(found.ty, wanted.ty, "{graph}");
        if let Some(at) = found.first_difference(&wanted) {
            let [found, wanted] = [found, wanted].map(|value| value.to_f64s()[at]);
            panic!("seed {seed}: [{at}] is {found:?}, expected {wanted:?}\n{graph}");
        }
    }
    assert!(contractions > 1000, "{contractions} contractions");
}
