//! Functions whose gradient is given: their values, orders of differentiation, precision as with
//! PyTorch's `custom_fwd` and `custom_bwd`, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tracecast::ir::{Stage, text, verify};
use tracecast::nn::Linear;
use tracecast::passes::{self, Decompose, Pipeline};
use tracecast::prelude::*;
use tracecast::{Graph, Outputs};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Runs a graph compiled and interpreted, which have to agree, on these inputs.
fn run(graph: &Graph, inputs: &[(&str, &[f32])]) -> Outputs {
    let tensors: Vec<_> = inputs
        .iter()
        .map(|(name, numbers)| (*name, Tensor::new([numbers.len()], numbers).unwrap()))
        .collect();
    let given: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let on = |device: &str| {
        let program = compile(graph.clone(), &Options::new().device(device)).unwrap();
        program.run(&mut Store::new(), &given).unwrap()
    };
    let (compiled, interpreted) = (on("cpu"), on("reference"));
    for (name, _) in graph.outputs() {
        assert_eq!(compiled[name].to_f64s(), interpreted[name].to_f64s(), "{name}");
    }
    compiled
}

/// `exp` with its result in backward, times `factor`.
fn exp_times<'t>(t: &'t Trace, x: Var<'t>, factor: f64) -> Var<'t> {
    let forward = |[x]: [Var<'t>; 1]| {
        let y = x.exp();
        (y, y)
    };
    custom_grad(t, [x], forward, |y, dy| [Some(dy * y * factor)])
}

#[test]
fn the_given_gradient_counts_in_every_order() {
    // With g(x) = 2·eˣ in the place of the derivative of eˣ, and the same function in backward, the
    // second derivative is 4·eˣ.
    let graph = trace("orders", |t| {
        let x = t.tracer().port(
            "x",
            f32s(&[2]),
            tracecast::ir::Role::Input,
            true,
            tracecast::ir::policy::DeviceType::Cpu,
        );
        let first = t.grad(exp_times(t, x, 2.0).sum(()), &[x])[0];
        let second = t.grad(first.sum(()), &[x])[0];
        t.output("third", t.grad(second.sum(()), &[x])[0]);
        t.output("first", first);
        t.output("second", second);
    });
    let out = run(&graph.unwrap(), &[("x", &[0.0, 0.0])]);
    let all = |name: &str| out[name].to_f64s();
    assert_eq!(
        (all("first"), all("second"), all("third")),
        (vec![2.0; 2], vec![4.0; 2], vec![8.0; 2])
    );
}

#[test]
fn several_inputs_and_results_have_each_their_own_gradient() {
    let graph = trace("pair", |t| {
        let [x, w] = ["x", "w"].map(|name| t.input_of(name, f32s(&[2])));
        let index = t.input_of("i", TensorType::new(DType::F32, [2]));
        // The second result is not used, so its gradient is zero; the third input has none.
        let [sum, product] = CustomGrad::new().apply(
            t,
            [x, w, index],
            |[x, w, _]| ([x + w, x * w], (x, w)),
            |(x, w), [ds, dp]| [Some(ds * 10.0 + dp * w), Some(ds * 100.0 + dp * x), None],
        );
        let gradients = t.grad(sum.sum(()), &[x, w, index]);
        for (name, gradient) in ["dx", "dw", "di"].into_iter().zip(gradients) {
            t.output(name, gradient);
        }
        let both = t.grad((sum + product).sum(()), &[x]);
        t.output("both", both[0]);
    });
    let out = run(&graph.unwrap(), &[("x", &[1.0, 2.0]), ("w", &[3.0, 4.0]), ("i", &[0.0, 1.0])]);
    let all = |name: &str| out[name].to_f64s();
    assert_eq!((all("dx"), all("dw"), all("di")), (vec![10.0; 2], vec![100.0; 2], vec![0.0; 2]));
    assert_eq!(all("both"), [13.0, 14.0]);
}

#[test]
fn one_function_inside_the_other() {
    // Backward of the outer one calls the inner one, whose own gradient counts in the second order.
    let graph = trace("nested", |t| {
        let x = t.input_of("x", f32s(&[1]));
        let y = custom_grad(t, [x], |[x]| (x * x, x), |x, dy| [Some(dy * exp_times(t, x, 3.0))]);
        let first = t.grad(y.sum(()), &[x])[0];
        t.output("first", first);
        t.output("second", t.grad(first.sum(()), &[x])[0]);
    });
    let out = run(&graph.unwrap(), &[("x", &[0.0])]);
    assert_eq!((out["first"].to_f64s(), out["second"].to_f64s()), (vec![1.0], vec![3.0]));
}

#[test]
fn a_plain_result_costs_nothing() {
    let graph = trace("forward", |t| {
        let x = t.input_of("x", f32s(&[2]));
        t.output("y", exp_times(t, x, 2.0));
    });
    let core = passes::standard(&passes::PassOptions::default()).up_to(Decompose::NAME).unwrap();
    let graph = core.run(graph.unwrap(), |_, _, _| ()).unwrap();
    assert_eq!(graph.len(), 2, "{}", *graph);
}

#[test]
fn text_keeps_the_gradient() {
    let graph = trace("kept", |t| {
        let x = t.input_of("x", f32s(&[2]));
        t.output("dx", t.grad(exp_times(t, x, 2.0).sum(()), &[x])[0]);
    })
    .unwrap();
    let again = text::parse(&graph.to_string()).unwrap();
    assert_eq!(again.to_string(), graph.to_string());
    assert_eq!(run(&again, &[("x", &[0.0, 0.0])])["dx"].to_f64s(), [2.0; 2]);
}

/// The dtypes of forward's product, of backward's product, and of the gradient, for a product in a
/// region.
fn dtypes(custom: &CustomGrad, region: &Autocast) -> [DType; 3] {
    let mut seen = [DType::F64; 3];
    let graph = trace("dtypes", |t| {
        let (x, w) = (t.param_of("x", f32s(&[2, 2])), t.param_of("w", f32s(&[2, 2])));
        let (mut forward, mut backward) = (DType::F64, DType::F64);
        let [y] = region.run(t, || {
            custom.apply(
                t,
                [x, w],
                |[x, w]| {
                    let y = x.matmul(w);
                    forward = y.dtype();
                    ([y], (x, w))
                },
                |(x, w), [dy]| {
                    let dx = dy.matmul(w.permute([1, 0]));
                    backward = dx.dtype();
                    [Some(dx), Some(x.permute([1, 0]).matmul(dy))]
                },
            )
        });
        let gradient = t.grad(y.sum(()), &[x])[0];
        seen = [forward, backward, gradient.dtype()];
        t.output("dx", gradient);
    });
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    compile(graph, &Options::new()).unwrap();
    seen
}

#[test]
fn backward_runs_under_the_state_of_forward() {
    use DType::{BF16, F16, F32};
    let plain = CustomGrad::new();
    assert_eq!(dtypes(&plain, &Autocast::new("cpu")), [BF16, BF16, F32]);
    assert_eq!(dtypes(&plain, &Autocast::new("cpu").dtype(F16)), [F16, F16, F32]);
    assert_eq!(dtypes(&plain, &Autocast::new("cpu").enabled(false)), [F32, F32, F32]);
    let wide = CustomGrad::new().cast_inputs(F32);
    assert_eq!(dtypes(&wide, &Autocast::new("cpu")), [F32, F32, F32]);
    let narrow = CustomGrad::new().cast_inputs(F16);
    assert_eq!(dtypes(&narrow, &Autocast::new("cpu")), [F16, F16, F32]);
    assert_eq!(dtypes(&narrow, &Autocast::new("cpu").enabled(false)), [F32, F32, F32]);
    assert_eq!(dtypes(&narrow, &Autocast::new("cuda")), [F32, F32, F32], "nothing lives on cuda");
    let on_cuda = CustomGrad::new().device("cuda").cast_inputs(F16);
    assert_eq!(dtypes(&on_cuda, &Autocast::new("cuda")), [F32, F32, F32]);
}

#[test]
fn cast_inputs_takes_floats_of_the_device_alone() {
    let graph = trace("eligible", |t| {
        let inputs = [
            t.input_of("f32", f32s(&[2])),
            t.input_of("bf16", TensorType::new(DType::BF16, [2])),
            t.input_of("f64", TensorType::new(DType::F64, [2])),
            t.input_of("i64", TensorType::new(DType::I64, [2])),
        ];
        let mut seen = Vec::new();
        autocast(t, "cpu", DType::BF16, || {
            CustomGrad::new().cast_inputs(DType::F16).apply(
                t,
                inputs,
                |inputs| {
                    seen = inputs.iter().map(|x| x.dtype()).collect();
                    assert!(t.tracer().region().is_off());
                    ([inputs[0]], ())
                },
                |(), [dy]| [Some(dy), None, None, None],
            )
        });
        assert_eq!(seen, [DType::F16, DType::F16, DType::F64, DType::I64]);
        assert!(t.tracer().region().is_off());
    });
    graph.unwrap();
}

#[test]
fn regions_inside_backward_are_outermost_ones() {
    let graph = trace("scopes", |t| {
        let w = t.param_of("w", f32s(&[2, 2]));
        let mut scopes = Vec::new();
        autocast(t, "cpu", DType::BF16, || {
            scopes.push(t.tracer().region().scope());
            custom_grad(
                t,
                [w],
                |[w]| (w.matmul(w), ()),
                |(), dy| {
                    scopes.push(t.tracer().region().scope());
                    autocast(t, "cpu", DType::F16, || scopes.push(t.tracer().region().scope()));
                    [Some(dy)]
                },
            );
            scopes.push(t.tracer().region().scope());
        });
        assert_eq!(scopes, [1, 2, 2, 1]);
    });
    graph.unwrap();
}

fn block<'t>(x: Var<'t>, w: Var<'t>) -> Var<'t> {
    x.reshape([1, 4]).matmul(w).tanh().matmul(w)
}

#[test]
fn a_checkpointed_block_is_recomputed_under_the_same_autocast() {
    // Backward runs the block again from its input; nothing of the first run is kept, and the
    // gradients are the same bits.
    let record = |t: &Trace, checkpointed: bool| {
        let (x, w) = (t.input_of("x", f32s(&[4])), t.param_of("w", f32s(&[4, 4])));
        let y = autocast(t, "cpu", DType::BF16, || {
            if !checkpointed {
                return block(x, w);
            }
            custom_grad(
                t,
                [x, w],
                |[x, w]| (block(x, w), (x, w)),
                |(x, w), dy| {
                    let again = block(x, w);
                    assert_eq!(again.dtype(), DType::BF16);
                    let both = t.grad((again * dy).sum(().dtype(DType::F32)), &[x, w]);
                    [Some(both[0]), Some(both[1])]
                },
            )
        });
        let gradients = t.grad(y.sum(().dtype(DType::F32)), &[x, w]);
        t.output("dx", gradients[0]);
        t.output("dw", gradients[1]);
    };
    let values = |checkpointed| {
        let graph = trace("block", |t| record(t, checkpointed)).unwrap();
        let w: Vec<f32> = (0..16).map(|i| (i as f32 - 7.3) / 9.0).collect();
        let mut store = Store::new().with("w", Tensor::new([4, 4], &w).unwrap());
        let x = Tensor::new([4], &[0.3f32, -1.7, 0.9, 2.1]).unwrap();
        let out = compile(graph, &Options::new()).unwrap().run(&mut store, &[("x", &x)]).unwrap();
        (out["dx"].to_f64s(), out["dw"].to_f64s())
    };
    assert_eq!(values(true), values(false));
}

#[test]
fn a_training_step_uses_it() {
    // A gradient of zero from here on: no parameter moves, though the loss is not zero.
    let step = TrainStep::new(Linear::new(2, 1), |t, model| {
        let y = model.forward(t.input("x"));
        let frozen = custom_grad(t, [y], |[y]| (y, ()), |(), dy| [Some(dy * 0.0)]);
        frozen.mean_squared_error(t.input("y"))
    });
    let step = step.optimizer(Sgd::new(0.5)).autocast("cpu", DType::BF16).build().unwrap();
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let all = |store: &Store| ["weight", "bias"].map(|name| store.get(name).unwrap().to_f64s());
    let before = all(&store);
    let x = Tensor::new([1, 2], &[1.0f32, 2.0]).unwrap();
    let y = Tensor::new([1, 1], &[7.0f32]).unwrap();
    let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
    assert!(done.loss > 0.0);
    assert_eq!(all(&store), before);
}

#[test]
fn what_does_not_fit_is_named_with_the_line_of_the_call() {
    let message = |body: fn(&Trace, Var<'_>)| {
        let graph = trace("bad", |t| body(t, t.input_of("x", f32s(&[2]))));
        let message = graph.unwrap_err().to_string();
        assert!(message.contains(file!()), "{message}");
        message
    };
    fn given<'t>(t: &'t Trace, x: Var<'t>, gradient: impl FnOnce(Var<'t>) -> Option<Var<'t>>) {
        let y = custom_grad(t, [x], |[x]| (x * 2.0, ()), |(), dy| [gradient(dy)]);
        t.output("y", y);
    }
    let shape = message(|t, x| given(t, x, |dy| Some(dy.sum(()))));
    assert!(shape.contains("the gradient of input 0 is f32[], expected f32[2]"), "{shape}");
    let truth = message(|t, x| given(t, x, |dy| Some(dy.gt(0.0))));
    assert!(truth.contains("the gradient of input 0 is bool[2], expected f32[2]"), "{truth}");
    let count = message(|t, x| {
        CustomGrad::new().apply_list(t, &[x], |x| (vec![x[0]], ()), |(), _| vec![]);
    });
    assert!(count.contains("backward gives 0 gradients for 1 inputs"), "{count}");
    let whole = message(|t, _| {
        let i = t.input_of("i", TensorType::new(DType::I64, [2]));
        custom_grad(t, [i], |[i]| (i.cast(DType::F32), ()), |(), dy| [Some(dy)]);
    });
    assert!(whole.contains("i64[2] is not floating point"), "{whole}");
    let result = message(|t, x| {
        custom_grad(t, [x], |[x]| (x.gt(0.0), ()), |(), _| [None]);
    });
    assert!(result.contains("takes floating point, found bool[2]"), "{result}");
    let device = message(|t, x| {
        CustomGrad::new().device("gpu").apply(t, [x], |[x]| ([x], ()), |(), [dy]| [Some(dy)]);
    });
    assert!(device.contains("unknown device type `gpu`"), "{device}");
    // What is wrong inside backward is named with its own line.
    let inside = message(|t, x| given(t, x, |dy| Some(dy.matmul(dy.reshape([1, 2])))));
    assert!(inside.contains("matmul"), "{inside}");
}

#[test]
fn text_that_does_not_fit_is_refused() {
    let graph = |line: &str| {
        format!("graph @g(%x: f32[2], %w: f32[3]) {{\n  {line}\n  return y = %0\n}}\n")
    };
    for (line, says) in [
        ("%0 = custom_grad [], [], [], [] : f32[2]", "at least one output"),
        ("%0 = custom_grad [%x], [], [], [] : f32[2]", "one cotangent for each output"),
        (
            "%0 = custom_grad [%x], [%w], [%x], [%x] : f32[2]",
            "gradient 0 is f32[2], expected f32[3]",
        ),
    ] {
        let error = text::parse(&graph(line)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let fine = text::parse(&graph("%0 = custom_grad [%x], [%w], [%x], [%w] : f32[2]")).unwrap();
    let fine = verify(fine, Stage::Traced).unwrap().into_graph();
    let out = Pipeline::new().then(passes::Decompose::default()).run(fine, |_, _, _| ()).unwrap();
    assert_eq!(out.len(), 2, "only the ports are left");
}
