//! Learns to tell two spirals apart, in f16 with a scaled loss.
//!
//! `cargo run --release --example spirals`

use std::f32::consts::TAU;
use std::io::Write;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;

/// `rows` points of two spirals, and which one each is on.
fn spirals(rows: usize) -> tracecast::Result<(Tensor, Tensor)> {
    let point = |i: usize| {
        let (along, arm) = ((i / 2) as f32 / (rows / 2) as f32, (i % 2) as f32);
        let (radius, angle) = (0.2 + along, TAU * (1.2 * along + 0.5 * arm));
        [radius * angle.cos(), radius * angle.sin()]
    };
    let points: Vec<f32> = (0..rows).flat_map(point).collect();
    let arms: Vec<i64> = (0..rows as i64).map(|i| i % 2).collect();
    Ok((Tensor::new([rows, 2], &points)?, Tensor::new([rows], &arms)?))
}

fn main() -> tracecast::Result<()> {
    let model = Sequential::new()
        .then(Linear::new(2, 64))
        .then(Relu)
        .then(Linear::new(64, 64))
        .then(Relu)
        .then(Linear::new(64, 2));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(AdamW::new("rate"))
            .autocast("cpu", DType::F16)
            .scaler(ScalerOptions::default())
            .build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;

    let (x, y) = spirals(256)?;
    let mut out = std::io::stdout();
    for number in 0..600 {
        let rate = Tensor::scalar(if number < 400 { 1e-2f32 } else { 1e-3 });
        let done = step.run(&mut store, &[("x", &x), ("y", &y), ("rate", &rate)])?;
        if number % 100 == 99 {
            writeln!(out, "step {:3}  loss {:.4}  scale {}", number + 1, done.loss, done.scale)
                .expect("standard output is open");
        }
    }

    let evaluate =
        step.evaluation(|t, model| t.output("arm", model.forward(t.input("x")).argmax(1)));
    let arms = evaluate.run(&mut store, &[("x", &x)])?["arm"].to_vec::<i64>()?;
    let right = arms.iter().zip(y.to_vec::<i64>()?).filter(|(a, b)| **a == *b).count();
    writeln!(out, "{right} of {} points right", arms.len()).expect("standard output is open");
    Ok(())
}
