//! Trains a network on exclusive or, and writes it to a file; `load_and_predict` uses it in another
//! process.
//!
//! `cargo run --release --example train_and_save [FOLDER]`
//!
//! After every hundredth step the whole state of the training is saved. End the program at any
//! moment and start it again: it goes on there, and ends with the bits that it would have had.

use std::io::Write;
use std::path::PathBuf;
use tracecast::checkpoint::Load;
use tracecast::nn::{Dropout, Linear, Relu, Sequential};
use tracecast::prelude::*;

fn main() -> tracecast::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let state = folder.join("xor-training.safetensors");
    let mut out = std::io::stdout();
    let mut say = |line: String| writeln!(out, "{line}").expect("standard output is open");

    let model = Sequential::new()
        .named("hidden", Linear::new(2, 16))
        .named("relu", Relu)
        .named("drop", Dropout::new(0.1))
        .named("out", Linear::new(16, 2));
    let step =
        TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(AdamW::new(0.02))
            .autocast("cpu", DType::F16)
            .scaler(ScalerOptions::default())
            .build()?;

    let mut store = Store::new();
    if state.exists() {
        step.load(&mut store, &state, &Load::strict())?;
    } else {
        step.init(&mut store, 0)?;
        // Whatever else is in the store is saved with it.
        store.insert("done", Tensor::scalar(0i64));
    }
    let x = Tensor::new([4, 2], &[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
    let y = Tensor::new([4], &[0i64, 1, 1, 0])?;
    let done = store.get("done")?.item::<i64>()?;
    for number in done + 1..=500 {
        let loss = step.run(&mut store, &[("x", &x), ("y", &y)])?.loss;
        if number % 100 == 0 {
            store.insert("done", Tensor::scalar(number));
            step.save(&store, &state)?;
            say(format!("step {number}  loss {loss:.4}  saved to {}", state.display()));
        }
    }
    let file = folder.join("xor.safetensors");
    step.save_model(&store, &file)?;
    say(format!("the model is in {}", file.display()));
    Ok(())
}
