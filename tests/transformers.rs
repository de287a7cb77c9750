//! What transformers are made of: PyTorch's attention kernel for the CPU under its own name, rotary positions and gated layers, against their definitions and against differences.

use tracecast::numerics::check_gradients;
use tracecast::prelude::*;
use tracecast::runtime::Outputs;

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
                    let at = |axis| t.tracer().iota(DType::I64, &scores.shape(), axis);
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
