//! What transformers are made of: PyTorch's attention kernel for the CPU under its own name, rotary
//! positions, gated layers, and the layer of attention, against their definitions and against
//! differences.

use tracecast::Result;
use tracecast::nn::{Attend, Context, Layer, MultiheadAttention};
use tracecast::numerics::check_gradients;
use tracecast::prelude::*;
use tracecast::runtime::{Outputs, ReferenceDevice};

/// Numbers between -1 and 1 that look alike for no two names.
fn numbers(seed: u64, shape: &[usize]) -> Tensor {
    let uniform = Tensor::rand(shape, seed).expect("a shape").to_f64s();
    let numbers: Vec<f64> = uniform.iter().map(|x| 2.0 * x - 1.0).collect();
    Tensor::new(shape, &numbers).expect("as many")
}

fn run(inputs: &[(&str, &Tensor)], body: impl Fn(&Trace) + Send + Sync + 'static) -> Outputs {
    jit(Options::new(), body).run(&mut Store::new(), inputs).expect("runs")
}

fn of(outputs: &Outputs, name: &str) -> Vec<f64> {
    outputs[name].to_f64s()
}

fn close(found: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (found - wanted).abs() < 1e-12 * (1.0 + wanted.abs()),
            "{what} {i}: {found}, {wanted}"
        );
    }
}

/// Two batches of two heads, three queries, four keys.
fn operands() -> [Tensor; 5] {
    let shapes: [&[usize]; 5] =
        [&[2, 2, 3, 4], &[2, 2, 4, 4], &[2, 2, 4, 4], &[3, 4], &[2, 2, 3, 4]];
    let mut seed = 0;
    shapes.map(|shape| {
        seed += 1;
        numbers(seed, shape)
    })
}

#[test]
fn pytorchs_kernel_gives_means_and_logarithms_of_sums() {
    let [q, k, v, mask, _] = operands();
    for (causal, scale) in [(false, None), (true, None), (false, Some(0.3))] {
        let inputs = [("q", &q), ("k", &k), ("v", &v), ("mask", &mask)];
        let found = run(&inputs, move |t| {
            let [q, k, v] = ["q", "k", "v"].map(|name| t.input(name));
            let mask = (!causal).then(|| t.input("mask"));
            let (y, lse) = q.scaled_dot_product_flash_attention_for_cpu(k, v, mask, causal, scale);
            t.output("y", y);
            t.output("lse", lse);
        });
        let [q, k, v, mask] = [&q, &k, &v, &mask].map(Tensor::to_f64s);
        let (mut means, mut logarithms) = (Vec::new(), Vec::new());
        for (head, query) in (0..4).flat_map(|head| (0..3).map(move |query| (head, query))) {
            let score = |key: usize| {
                let products =
                    (0..4).map(|i| q[(head * 3 + query) * 4 + i] * k[(head * 4 + key) * 4 + i]);
                let hidden = if causal && key > query { f64::NEG_INFINITY } else { 0.0 };
                let mask = if causal { hidden } else { mask[query * 4 + key] };
                products.sum::<f64>() * scale.unwrap_or(0.5) + mask
            };
            let weights = [0, 1, 2, 3].map(|key| score(key).exp());
            let sum: f64 = weights.iter().sum();
            logarithms.push(sum.ln());
            means.extend((0..4).map(|i| {
                let all =
                    weights.iter().enumerate().map(|(key, w)| w * v[(head * 4 + key) * 4 + i]);
                all.sum::<f64>() / sum
            }));
        }
        close(&of(&found, "y"), &means, "means");
        close(&of(&found, "lse"), &logarithms, "logarithms");
    }
}

#[test]
fn pytorchs_backward_kernel_gives_the_gradients() {
    let [q, k, v, mask, dy] = operands();
    for causal in [false, true] {
        let inputs = [("q", &q), ("k", &k), ("v", &v), ("mask", &mask), ("dy", &dy)];
        let found = run(&inputs, move |t| {
            let of @ [q, k, v] = ["q", "k", "v"].map(|name| t.input(name));
            let (mask, dy) = ((!causal).then(|| t.input("mask")), t.input("dy"));
            let (y, lse) = q.scaled_dot_product_flash_attention_for_cpu(k, v, mask, causal, None);
            let back = dy.scaled_dot_product_flash_attention_for_cpu_backward(
                q, k, v, y, lse, mask, causal, None,
            );
            // What softmax and products differentiate to.
            let scores = q.mul(0.5).matmul(k.t());
            let seen = match mask {
                Some(mask) => scores.add(mask),
                None => {
                    let at = |axis| t.tracer().iota(DType::I64, scores.shape(), axis);
                    let never = t.full(TensorType::scalar(DType::F64), f64::NEG_INFINITY);
                    at(3).gt(at(2)).choose(never, scores)
                }
            };
            let plain = t.grad(seen.softmax(-1).matmul(v).mul(dy).sum(()), &of);
            for (i, (back, plain)) in back.into_iter().zip(plain).enumerate() {
                t.output(&format!("back{i}"), back);
                t.output(&format!("plain{i}"), plain);
            }
        });
        for i in 0..3 {
            let wanted = of(&found, &format!("plain{i}"));
            assert!(wanted.iter().any(|x| x.abs() > 1e-3));
            close(&of(&found, &format!("back{i}")), &wanted, "gradients");
        }
    }
}

#[test]
fn gradients_through_pytorchs_kernel_are_differences() {
    let [q, k, v, mask, _] = operands();
    let inputs = [("q", &q), ("k", &k), ("v", &v), ("mask", &mask)];
    let wrong = check_gradients(&Options::new(), &inputs, |t| {
        let [q, k, v, mask] = ["q", "k", "v", "mask"].map(|name| t.input(name));
        let (y, lse) = q.scaled_dot_product_flash_attention_for_cpu(k, v, Some(mask), false, None);
        y.mul(lse.unsqueeze(3))
    });
    assert_eq!(wrong.expect("runs"), []);
}

#[test]
fn rotary_turns_pairs_by_their_positions() {
    let (x, at) = (numbers(7, &[2, 3, 6]), numbers(8, &[3]));
    let inputs = [("x", &x), ("at", &at)];
    let found = run(&inputs, |t| t.output("y", t.input("x").rotary(t.input("at"), 50.0)));
    let (numbers, positions) = (x.to_f64s(), at.to_f64s());
    let turned = |i: usize| {
        let (row, column) = (i / 6 * 6, i % 6);
        let angle = positions[i / 6 % 3] / 50f64.powf(2.0 * (column % 3) as f64 / 6.0);
        let (a, b) = (numbers[row + column % 3], numbers[row + column % 3 + 3]);
        if column < 3 {
            a * angle.cos() - b * angle.sin()
        } else {
            b * angle.cos() + a * angle.sin()
        }
    };
    close(&of(&found, "y"), &(0..36).map(turned).collect::<Vec<_>>(), "turned");
    let wrong =
        check_gradients(&Options::new(), &inputs, |t| t.input("x").rotary(t.input("at"), 50.0));
    assert_eq!(wrong.expect("runs"), []);
}

#[test]
fn sixteen_bits_are_rounded_once() {
    let [x, gate] =
        [9, 10].map(|seed| numbers(seed, &[2, 3, 6]).cast(DType::BF16).expect("floats"));
    let found = run(&[("x", &x), ("gate", &gate)], |t| {
        let [x, gate] = ["x", "gate"].map(|name| t.input(name));
        let at = t.arange(0.0, 3.0, 1.0, DType::I64);
        let [wide, wide_gate] = [x, gate].map(|x| x.to(DType::F32));
        for (name, narrow, wide) in [
            ("rotary", x.rotary(at, 50.0), wide.rotary(at, 50.0)),
            ("swiglu", x.swiglu(gate), wide.swiglu(wide_gate)),
        ] {
            assert_eq!(narrow.dtype(), DType::BF16);
            t.output(name, narrow);
            t.output(&format!("{name} wide"), wide.to(DType::BF16));
        }
    });
    for name in ["rotary", "swiglu"] {
        assert_eq!(of(&found, name), of(&found, &format!("{name} wide")), "{name}");
    }
}

#[test]
fn swiglu_gates_with_silu() {
    let (x, gate) = (numbers(11, &[5, 4]), numbers(12, &[5, 4]));
    let inputs = [("x", &x), ("gate", &gate)];
    let found = run(&inputs, |t| t.output("y", t.input("x").swiglu(t.input("gate"))));
    let both = x.to_f64s().into_iter().zip(gate.to_f64s());
    let wanted: Vec<f64> = both.map(|(x, gate)| x * gate / (1.0 + (-gate).exp())).collect();
    close(&of(&found, "y"), &wanted, "gated");
    let wrong = check_gradients(&Options::new(), &inputs, |t| t.input("x").swiglu(t.input("gate")));
    assert_eq!(wrong.expect("runs"), []);
}

#[test]
fn what_they_do_not_take_is_refused_by_name() {
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let refused =
        |body: &dyn Fn(&Trace)| trace("refused", body).expect_err("is refused").to_string();
    let odd = refused(&|t| {
        t.output(
            "y",
            t.input_of("x", ty(&[3, 5])).rotary(t.arange(0.0, 3.0, 1.0, DType::F32), 50.0),
        );
    });
    assert!(odd.contains("rotary") && odd.contains("5 numbers") && odd.contains(file!()), "{odd}");
    let apart = refused(&|t| {
        t.output("y", t.input_of("x", ty(&[3, 5])).swiglu(t.input_of("gate", ty(&[3, 4]))));
    });
    assert!(apart.contains("swiglu") && apart.contains("f32[3, 4]"), "{apart}");
    let rows = refused(&|t| {
        t.output(
            "y",
            t.input_of("x", ty(&[3, 4])).rotary(t.arange(0.0, 2.0, 1.0, DType::F32), 50.0),
        );
    });
    assert!(rows.contains("rotary: takes a position for each of [3], found f32[2]"), "{rows}");
    let mask = refused(&|t| {
        let (x, mask) = (t.input_of("x", ty(&[1, 2, 3, 4])), t.input_of("mask", ty(&[5])));
        t.output(
            "y",
            x.scaled_dot_product_flash_attention_for_cpu(x, x, Some(mask), false, None).0,
        );
    });
    assert!(mask.contains("f32[5], and does not broadcast to [1, 2, 3, 3]"), "{mask}");
    let three = refused(&|t| {
        let x = t.input_of("x", ty(&[2, 3, 4]));
        t.output("y", x.scaled_dot_product_flash_attention_for_cpu(x, x, None, false, None).0);
    });
    let name = "_scaled_dot_product_flash_attention_for_cpu";
    assert!(three.contains(name) && three.contains("four axes"), "{three}");
}

/// What a layer gives for `x`, a result and weights, or why not. `given` adds masks.
fn attended(
    layer: &MultiheadAttention,
    inputs: &[(&str, &Tensor)],
    given: impl for<'t> Fn(&'t Trace, Attend<'t>) -> Attend<'t> + Send + Sync + 'static,
) -> Result<Outputs> {
    let (mut store, layer) = (Store::new(), layer.clone());
    layer.init(&mut store, 7)?;
    let body = move |t: &Trace| {
        let cx = Context::evaluation(t);
        let (y, weights) = layer.forward(&cx, given(t, Attend::from(t.input("x"))));
        t.output("y", y);
        weights.into_iter().for_each(|weights| t.output("weights", weights));
    };
    jit(Options::new(), body).run(&mut store, inputs)
}

/// A batch of two sequences of five numbers times four, and what hides the ends of both.
fn padded() -> [Tensor; 2] {
    let hidden: Vec<bool> = (0..10).map(|i| [4, 8, 9].contains(&i)).collect();
    [numbers(21, &[2, 5, 4]), Tensor::new([2, 5], &hidden).expect("fits")]
}

#[test]
fn attention_with_weights_is_attention_without_them() {
    let [x, padding] = padded();
    let inputs = [("x", &x), ("padding", &padding)];
    let layer = MultiheadAttention::new(4, 2).dtype(DType::F64).batch_first();
    for layer in [layer.clone(), layer.bias_kv().zero_attn()] {
        let found = |layer: MultiheadAttention| {
            attended(&layer, &inputs, |t, attend| attend.causal().key_padding(t.input("padding")))
                .expect("runs")
        };
        let (with, without) = (found(layer.clone()), found(layer.clone().without_weights()));
        close(&of(&without, "y"), &of(&with, "y"), "results");
        assert!(without.get("weights").is_err());
        let (mean, heads) = (of(&with, "weights"), of(&found(layer.weights_per_head()), "weights"));
        let rows = mean.len() / 2;
        let means = (0..mean.len()).map(|i| {
            let head = |head: usize| heads[(i / rows * 2 + head) * rows + i % rows];
            (head(0) + head(1)) / 2.0
        });
        close(&mean, &means.collect::<Vec<_>>(), "means of heads");
    }
}

#[test]
fn masks_of_booleans_and_of_numbers_go_together() {
    let (x, layer) = (numbers(22, &[2, 3, 4]), MultiheadAttention::new(4, 2).dtype(DType::F64));
    let layer = layer.batch_first();
    let hidden = [false, true, false, false, false, true, false, true, false];
    let (mask, padding) = (hidden, [false, false, true, false, true, false]);
    let added = |hidden: &[bool]| -> Vec<f64> {
        hidden.iter().map(|hidden| if *hidden { f64::NEG_INFINITY } else { 0.0 }).collect()
    };
    let masks = [Tensor::new([3, 3], &mask), Tensor::new([3, 3], &added(&mask))];
    let paddings = [Tensor::new([2, 3], &padding), Tensor::new([2, 3], &added(&padding))];
    let [masks, paddings] = [masks, paddings].map(|both| both.map(|x| x.expect("fits")));
    for layer in [layer.clone(), layer.without_weights()] {
        let mut all = Vec::new();
        for (mask, padding) in masks.iter().flat_map(|m| paddings.iter().map(move |p| (m, p))) {
            let inputs = [("x", &x), ("mask", mask), ("padding", padding)];
            let out = attended(&layer, &inputs, |t, attend| {
                attend.mask(t.input("mask")).key_padding(t.input("padding"))
            });
            all.push(of(&out.expect("runs"), "y"));
        }
        all[1..].iter().for_each(|y| close(y, &all[0], "masks of other dtypes"));
    }
}

/// Zeros, and so nothing but the last bias, which starts as zero; PyTorch has NaN where weights are
/// asked for. Of no keys there is nothing either.
#[test]
fn queries_that_see_no_key_have_weights_of_zero() {
    let x = Tensor::new([2, 3, 4], &[0.5f32; 24]).expect("fits");
    let layer = MultiheadAttention::new(4, 2);
    let padding = Tensor::new([3, 2], &[true; 6]).expect("fits");
    let inputs = [("x", &x), ("padding", &padding)];
    let hidden = |layer: &MultiheadAttention| {
        attended(layer, &inputs, |t, attend| attend.key_padding(t.input("padding"))).expect("runs")
    };
    let out = hidden(&layer);
    for name in ["y", "weights"] {
        assert!(of(&out, name).iter().all(|x| *x == 0.0), "{name}");
    }
    assert_eq!(of(&hidden(&layer.clone().without_weights()), "y"), [0.0; 24]);
    let sizes: [[usize; 3]; 3] = [[0, 3, 2], [2, 3, 0], [2, 0, 3]];
    for (layer, [queries, batch, keys]) in
        [layer.clone(), layer.without_weights()].iter().flat_map(|l| sizes.map(|s| (l, s)))
    {
        let [x, key] =
            [queries, keys].map(|n| Tensor::full(TensorType::new(DType::F32, [n, batch, 4]), 1.0));
        let [x, key] = [x, key].map(|x| x.expect("fits"));
        let out = attended(layer, &[("x", &x), ("key", &key)], |t, _| {
            Attend::new(t.input("x"), t.input("key"), t.input("key"))
        });
        let out = out.unwrap_or_else(|why| panic!("{queries} x {batch} over {keys}: {why}"));
        assert_eq!(out["y"].shape()[..], [queries, batch, 4]);
        assert_eq!(of(&out, "y"), vec![0.0; queries * batch * 4]);
        if let Ok(weights) = out.get("weights") {
            assert_eq!(weights.shape()[..], [batch, queries, keys]);
        }
    }
}

#[test]
fn what_attention_does_not_take_is_refused_with_what_it_expected() {
    let refused = |layer: MultiheadAttention, given: &[(&'static str, DType, &[usize])]| {
        let tensors: Vec<_> = given
            .iter()
            .map(|(_, d, s)| Tensor::zeros(TensorType::new(*d, *s)).expect("fits"))
            .collect();
        let names: Vec<&'static str> = given.iter().map(|(name, ..)| *name).collect();
        let inputs: Vec<_> = names.iter().copied().zip(&tensors).collect();
        let has = |name| names.contains(&name);
        let (masked, padded, keyed) = (has("mask"), has("padding"), has("key"));
        let out = attended(&layer, &inputs, move |t, attend| {
            let x = t.input("x");
            let attend = if keyed { Attend::new(x, t.input("key"), x) } else { attend };
            let attend = if masked { attend.mask(t.input("mask")) } else { attend };
            if padded { attend.key_padding(t.input("padding")) } else { attend }
        });
        let error = out.expect_err("is refused").to_string();
        assert!(error.contains("MultiheadAttention: ") && error.contains(file!()), "{error}");
        error
    };
    let layer = || MultiheadAttention::new(4, 2);
    let (f32, bool) = (DType::F32, DType::Bool);
    let (x, alone): ((_, _, &[usize]), (_, _, &[usize])) =
        (("x", f32, &[3, 2, 4]), ("x", f32, &[3, 4]));
    let cases: [(_, (_, _, &[usize]), &str); 9] = [
        (x, ("mask", bool, &[1, 3]), "the mask is bool[1, 3], expected [3, 3] or [4, 3, 3]"),
        (x, ("mask", bool, &[3, 1]), "the mask is bool[3, 1], expected [3, 3]"),
        (x, ("mask", f32, &[2, 3, 3]), "the mask is f32[2, 3, 3], expected [3, 3] or [4, 3, 3]"),
        (x, ("mask", f32, &[3]), "the mask is f32[3], expected [3, 3] or [4, 3, 3]"),
        (alone, ("mask", f32, &[4, 3, 3]), "expected [3, 3] or [2, 3, 3]"),
        (x, ("padding", bool, &[1, 3]), "the padding is bool[1, 3], expected [2, 3]"),
        (x, ("padding", bool, &[3]), "the padding is bool[3], expected [2, 3]"),
        (alone, ("padding", bool, &[1, 3]), "the padding is bool[1, 3], expected [3]"),
        (x, ("mask", DType::I64, &[3, 3]), "bool or floating point, found i64[3, 3]"),
    ];
    for (x, other, says) in cases {
        for layer in [layer(), layer().without_weights()] {
            let error = refused(layer, &[x, other]);
            assert!(error.contains(says), "{error}");
        }
    }
    for other in [[3, 1, 4], [4, 2, 4], [3, 2, 3]] {
        let error = refused(layer(), &[x, ("key", f32, &other)]);
        assert!(error.contains(&format!("{other:?}")), "{error}");
    }
    for (layer, says) in [
        (MultiheadAttention::new(4, 0), "0 heads do not divide 4"),
        (MultiheadAttention::new(4, 3), "3 heads do not divide 4"),
        (layer().dropout(1.5), "the probability of dropout is 1.5, expected 0 to 1"),
        (layer().dropout(-0.5), "the probability of dropout is -0.5, expected 0 to 1"),
        (layer().dropout(f64::NAN), "the probability of dropout is NaN, expected 0 to 1"),
    ] {
        let error = refused(layer, &[x]);
        assert!(error.contains(says), "{error}");
    }
}

/// Layers over tokens have a batch in front of the product's rows, and one weight for all batches.
/// Each closure makes another left factor, right factor or epilogue of the product.
#[test]
fn layers_over_tokens_have_the_bits_of_the_definition() {
    type Body = fn(&Trace, Var<'_>, Var<'_>, Var<'_>);
    let bodies: [(&str, Body); 7] = [
        ("an epilogue of rows", |t, x, w, r| {
            t.output("y", r + (x.matmul(w) + 0.5).gelu(Some("tanh")));
        }),
        ("tokens in another order", |t, x, w, r| {
            t.output("y", x.transpose(0, 1).matmul(w) + r.transpose(0, 1));
        }),
        ("heads that become rows", |t, x, w, _| {
            let heads = x.unflatten(-1, &[4, 10]).transpose(1, 2);
            t.output("y", heads.transpose(1, 2).flatten(2, -1).matmul(w));
        }),
        ("an epilogue that repeats from batch to batch", |t, x, w, r| {
            t.output("y", x.matmul(w) + r.narrow(0, 0, 1));
        }),
        ("computed factors", |t, x, w, r| t.output("y", x.exp().matmul(w.sin()) + r)),
        ("low precision", |t, x, w, r| {
            let [x, w] = [x, w].map(|x| x.cast(DType::BF16));
            t.output("y", x.matmul(w).cast(DType::F32) + r);
        }),
        ("gradients", |t, x, w, r| {
            let y = (x.matmul(w) + w.narrow(0, 0, 1)).relu() * r;
            let loss = y.sum(());
            for (i, gradient) in t.grad(loss, &[x, w, r]).into_iter().enumerate() {
                t.output(&format!("d{i}"), gradient);
            }
        }),
    ];
    for batch in [1, 3] {
        let f32s = |shape: &[usize], seed| {
            let numbers: Vec<f32> =
                numbers(seed, shape).to_f64s().iter().map(|x| *x as f32).collect();
            Tensor::new(shape, &numbers).expect("as many")
        };
        let [x, r] = [(40, 1), (70, 2)].map(|(width, seed)| f32s(&[batch, 37, width], seed));
        let w = f32s(&[40, 70], 3);
        for (what, body) in bodies {
            let of = |options: Options| {
                let body = move |t: &Trace| body(t, t.input("x"), t.input("w"), t.input("r"));
                let program = jit(options, body);
                let inputs = [("x", &x), ("w", &w), ("r", &r)];
                program.run(&mut Store::new(), &inputs).expect("runs")
            };
            let wanted = of(Options::new().on(std::sync::Arc::new(ReferenceDevice)));
            for threads in [1, 2, 8] {
                let found = of(Options::new().threads(threads));
                for (name, wanted) in wanted.iter() {
                    let [found, wanted] = [&found[name], wanted].map(Tensor::to_f64s);
                    assert_eq!(found, wanted, "{what}, {name}, {batch} batches, {threads} threads");
                }
            }
        }
    }
}
