//! A trained network that eight threads ask at once: each has a store of its own, and gets the bits
//! that one thread alone would get.
//!
//! `cargo run --release --example threads`

use std::{io::Write, thread};
use tracecast::nn::{Linear, Sequential, Tanh};
use tracecast::prelude::*;

fn main() -> tracecast::Result<()> {
    // Whether a point lies within a circle.
    let model = Sequential::new().then(Linear::new(2, 32)).then(Tanh).then(Linear::new(32, 2));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(AdamW::new(0.02))
            // Kernels run on the thread that calls: eight callers are parallel enough.
            .options(Options::new().threads(1))
            .build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;
    for seed in 0..300 {
        let x = Tensor::randn([64, 2], seed)?;
        let inside = |p: Vec<f32>| i64::from(p[0].hypot(p[1]) < 1.2);
        let y: Vec<i64> = x.to_rows::<f32>()?.into_iter().map(inside).collect();
        step.run(&mut store, &[("x", &x), ("y", &Tensor::from(y))])?;
    }

    let program = step.evaluation(|t, model| t.output("p", model.forward(t.input("x")).softmax(1)));
    let batches = (1000..1064).map(|seed| Tensor::randn([8, 2], seed));
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let mut ask = |x: &Tensor| Ok(program.run(&mut store, &[("x", x)])?["p"].clone());
    let alone = batches.iter().map(&mut ask).collect::<tracecast::Result<Vec<_>>>()?;

    // Each thread has eight batches, and a copy of the weights.
    let program = &program;
    thread::scope(|scope| {
        let shares = batches.chunks(8).zip(alone.chunks(8));
        let workers = shares.map(|(batches, alone)| {
            let mut own = store.try_clone()?;
            Ok(scope.spawn(move || {
                for (x, expected) in batches.iter().zip(alone) {
                    assert_eq!(program.run(&mut own, &[("x", x)])?["p"], *expected);
                }
                tracecast::Result::Ok(())
            }))
        });
        let workers = workers.collect::<tracecast::Result<Vec<_>>>()?;
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    writeln!(std::io::stdout(), "{} batches on 8 threads, the bits of one", alone.len())
        .expect("standard output is open");
    Ok(())
}
