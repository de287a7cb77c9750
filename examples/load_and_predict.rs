//! Loads the network that `train_and_save` has written, in a process of its own, and asks it about
//! exclusive or.
//!
//! `cargo run --release --example load_and_predict [FOLDER]`

use std::io::Write;
use std::path::PathBuf;
use tracecast::checkpoint::{Load, load_model};
use tracecast::nn::{Context, Dropout, Linear, Module, Relu, Sequential};
use tracecast::prelude::*;

fn main() -> tracecast::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    // The same description; the file has the values.
    let model = Sequential::new()
        .named("hidden", Linear::new(2, 16))
        .named("relu", Relu)
        .named("drop", Dropout::new(0.1))
        .named("out", Linear::new(16, 2));
    let mut store = Store::new();
    load_model(&model, &mut store, folder.join("xor.safetensors"), &Load::strict())?;

    let predict = jit(Options::new(), move |t| {
        let scores = model.forward(&Context::evaluation(t), t.input("x"));
        t.output("class", scores.argmax(1));
    });
    let questions = [[0.0f32, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]];
    let x = Tensor::new([4, 2], questions.as_flattened())?;
    let classes = predict.run(&mut store, &[("x", &x)])?["class"].to_vec::<i64>()?;
    let mut out = std::io::stdout();
    for ([a, b], class) in questions.iter().zip(classes) {
        writeln!(out, "{a} xor {b} = {class}").expect("standard output is open");
    }
    Ok(())
}
