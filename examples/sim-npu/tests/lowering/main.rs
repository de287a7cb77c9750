//! Lowered kernels against the interpreter: the kernels of random programs, on random numbers, bit
//! by bit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../tests/support/dice.rs"]
mod dice;
#[path = "../../../../tests/support/layers.rs"]
mod layers;
#[path = "../../../../tests/support/random.rs"]
mod random;

use dice::Dice;
use sim_npu::lower::{Memories, lower};
use sim_npu::machine;
use std::collections::BTreeMap;
use std::ops::Range;
use tracecast_ir::eval::{self, EvalError, Value};
use tracecast_ir::kernel::Kernel;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{Attr, DType, Graph, TensorType, Tracer};
use tracecast_passes::{PassOptions, standard};

/// The kernels that a program becomes.
fn kernels(graph: Graph) -> Vec<Kernel> {
    let options = PassOptions { forms: Vec::new(), ..PassOptions::default() };
    let fused = standard(&options).run(graph, |_, _, _| ()).unwrap();
    let nodes = fused.nodes().filter_map(|id| match fused.node(id).attrs.get("kernel") {
        Some(Attr::Kernel(kernel)) => Some((**kernel).clone()),
        _ => None,
    });
    nodes.collect()
}

fn value(ty: &TensorType, dice: &mut Dice) -> Value {
    let wild = dice.chance(3);
    let mut one = || match ty.dtype {
        dtype if dtype.is_float() => dice.unit() * 2.0,
        DType::Bool => dice.below(2) as f64,
        // Mostly what may be an index, sometimes what surely is none.
        _ if wild => dice.below(99) as f64 - 40.0,
        _ => dice.below(random::INDEX_LIMIT) as f64,
    };
    let numbers: Vec<f64> = (0..ty.numel().get()).map(|_| one()).collect();
    Value::from_f64s(ty.clone(), &numbers).unwrap()
}

/// Runs a kernel here and there. `Err` is why the chip does not take it.
fn compare(kernel: &Kernel, dice: &mut Dice) -> Result<(), String> {
    let program = lower(kernel, Memories::default()).map_err(|why| why.to_string())?;
    let inputs: Vec<Value> = kernel.inputs.iter().map(|ty| value(ty, dice)).collect();
    let bytes: Vec<&[u8]> = inputs.iter().map(|value| &value.bytes[..]).collect();
    // Tensors with something between them, which nobody may touch.
    let mut memory: Vec<u8> = Vec::new();
    let mut place = |bytes: &[u8]| -> Range<usize> {
        memory.extend([0xa5; 24]);
        let start = memory.len();
        memory.extend(bytes);
        start..memory.len()
    };
    let mut operands: Vec<Range<usize>> = bytes.iter().map(|bytes| place(bytes)).collect();
    for output in &kernel.outputs {
        let own = || vec![0x5a; output.ty.bytes().get()];
        let at = output.update.map_or_else(|| place(&own()), |input| operands[input].clone());
        operands.push(at);
    }
    memory.extend([0xa5; 24]);
    let before = memory.clone();
    let done = machine::run(&program, &mut memory, &operands)
        .unwrap_or_else(|why| panic!("{why}\n{kernel}\n{program}"));
    for (at, (old, new)) in before.iter().zip(&memory).enumerate() {
        let written = operands[kernel.inputs.len()..].iter().any(|range| range.contains(&at));
        assert!(old == new || written, "byte {at} is nobody's\n{kernel}\n{program}");
    }
    match eval::kernel(kernel, &bytes) {
        Ok(wanted) => {
            assert_eq!(done.raised, None, "{kernel}");
            let found = operands[kernel.inputs.len()..].iter();
            for ((output, wanted), at) in kernel.outputs.iter().zip(wanted).zip(found) {
                let wanted = Value { ty: output.ty.clone(), bytes: wanted };
                let found =
                    Value { ty: output.ty.clone(), bytes: memory[at.clone()].to_vec().into() };
                let difference = found.first_difference(&wanted);
                assert!(difference.is_none(), "{difference:?} differs\n{kernel}\n{program}");
            }
        }
        Err(EvalError::Data(raised)) => {
            assert_eq!(done.raised, Some((raised.number as u32, raised.found)), "{kernel}");
            return Err("a check".to_owned());
        }
        Err(other) => panic!("{other}"),
    }
    Ok(())
}

#[test]
fn kernels_of_random_programs_mean_the_same_here() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..600 {
        let mut dice = Dice::new(seed ^ 0x77);
        let graph =
            if seed % 3 == 0 { layers::program(seed, 6) } else { random::program(seed, 12) };
        for kernel in kernels(graph) {
            let what = match compare(&kernel, &mut dice) {
                Ok(()) => kernel.form_name().to_owned(),
                Err(why) => why,
            };
            *counts.entry(what).or_default() += 1;
        }
    }
    let count = |what: &str| counts.get(what).copied().unwrap_or(0);
    assert!(
        count("map") >= 500 && count("rows") >= 250 && count("contraction") >= 150,
        "{counts:#?}"
    );
    assert!(count("a check") >= 3, "{counts:#?}");
    assert_eq!(count("it has no transposed convolutions"), 0, "{counts:#?}");
}

/// What a closure records, as kernels.
fn recorded(record: impl FnOnce(&Tracer)) -> Vec<Kernel> {
    let tracer = Tracer::new("g");
    record(&tracer);
    kernels(tracer.finish().unwrap())
}

/// Why the first kernel that is refused is refused.
fn refused(memories: Memories, record: impl FnOnce(&Tracer)) -> Option<String> {
    let why = |kernel: &Kernel| lower(kernel, memories).err().map(|why| why.to_string());
    recorded(record).iter().find_map(why)
}

#[test]
fn long_rows_and_columns_are_cut_where_the_language_says() {
    let mut dice = Dice::new(5);
    for sizes in [[3, 9000], [700, 5], [1, 1], [4096, 1], [257, 33]] {
        let made = recorded(|t| {
            let x = t.input("x", TensorType::new(DType::F32, sizes));
            t.output("rows", x.sum([1]));
            t.output("columns", x.mul(x).sum([0]));
            t.output("all", x.prod(()));
            t.output("first", x.argmax([1]));
            t.output("product", x.t().matmul(x));
        });
        assert!(made.len() >= 3);
        // A product of 9,000 by 9,000 is none for a chip.
        let fits = made.iter().filter(|kernel| compare(kernel, &mut dice).is_ok()).count();
        assert!(fits == made.len() || sizes[1] == 9000 && fits == made.len() - 1, "{sizes:?}");
    }
}

#[test]
fn what_the_chip_lacks_is_refused_by_name() {
    let f32s = || TensorType::new(DType::F32, [4, 3]);
    let scatter = refused(Memories::default(), |t| {
        let (x, index) = (t.input("x", f32s()), t.input("i", TensorType::new(DType::I64, [4, 3])));
        t.output("y", x.scatter_add(index, x, 0));
    });
    assert_eq!(scatter.unwrap(), "it has no scatters");
    let random = refused(Memories::default(), |t| {
        let rng = t.input("rng", TensorType::new(DType::I64, [2]));
        t.output("y", t.input("x", f32s()).dropout(rng, 0.5, 1));
    });
    assert_eq!(random.unwrap(), "it has no random of I32");
    let scan = refused(Memories::default(), |t| t.output("y", t.input("x", f32s()).cumsum(1)));
    assert_eq!(scan.unwrap(), "it has no scans and orders");
    for dtype in [DType::F16, DType::F64, DType::U8] {
        let other = refused(Memories::default(), |t| {
            t.output("y", t.input("x", TensorType::new(dtype, [4])).add(1.0));
        });
        assert_eq!(other.unwrap(), format!("{dtype} is no dtype of its memory"));
    }
    // Inside of kernels, too.
    let wide = refused(Memories::default(), |t| {
        t.output("y", t.input("x", f32s()).cast(DType::F64).exp().cast(DType::F32));
    });
    assert_eq!(wide.unwrap(), "it does not compute in f64");
    let half =
        refused(Memories::default(), |t| t.output("y", t.input("x", f32s()).round_to(DType::F16)));
    assert_eq!(half.unwrap(), "it has no round of F32");
}

#[test]
fn an_f64_between_two_f32_is_an_f32() {
    let made = recorded(|t| {
        let [x, y] = ["x", "y"].map(|name| t.input(name, TensorType::new(DType::F32, [3000])));
        let [a, b] = [x, y].map(|x| x.cast(DType::F64));
        t.output("sum", a.add(b).cast(DType::F32));
        t.output("quotient", a.div(b).neg().cast(DType::F32));
        t.output("root", a.abs().sqrt().cast(DType::F32));
        t.output("chosen", a.lt(b).choose(a.mul(0.5), b).cast(DType::F32));
        t.output("inverse", b.reciprocal().cast(DType::F32));
        // What is so small that f32 has fewer bits for it.
        let small = x.mul(1e-38).cast(DType::F64);
        t.output("product", small.mul(b).cast(DType::F32));
        t.output("share", small.div(b).cast(DType::F32));
    });
    for kernel in &made {
        assert_eq!(compare(kernel, &mut Dice::new(3)), Ok(()), "{kernel}");
    }
}

#[test]
fn masks_and_indices_may_lie_in_memory_unless_that_is_said() {
    let mask = |t: &Tracer| t.output("y", t.input("x", TensorType::new(DType::F32, [4])).gt(0.0));
    assert_eq!(refused(Memories::default(), mask), None);
    assert_eq!(
        refused(Memories::Numbers, mask).unwrap(),
        "its memory holds numbers only, found bool"
    );
    let numbers = |t: &Tracer| t.output("y", t.input("x", TensorType::new(DType::BF16, [4])).exp());
    assert_eq!(refused(Memories::Numbers, numbers), None);
}
