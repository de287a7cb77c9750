//! A network that tells the next character from the sixteen before it: one process learns a text,
//! another one goes on with it: `cargo run --release --example characters train [FILE]`, then
//! `… generate [FILE]`.

use std::{env, io::Write, path::Path};
use tracecast::checkpoint::{Load, load_model};
use tracecast::data::Dataset;
use tracecast::nn::{Context, Embedding, Flatten, Linear, Relu, Sequential};
use tracecast::prelude::*;

const CONTEXT: usize = 16;

/// From the codes of ASCII characters to a score for each code.
fn model() -> Sequential {
    let row = Sequential::new().then(Embedding::new(128, 8)).then(Flatten::new());
    row.then(Linear::new(CONTEXT * 8, 128)).then(Relu).then(Linear::new(128, 128))
}

fn train(text: &[i64], file: &Path) -> tracecast::Result<String> {
    let step = TrainStep::new(model(), |t, m| m.forward(t.input("x")).cross_entropy(t.input("y")));
    let step = step.optimizer(AdamW::new(0.005)).build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;
    let windows = Tensor::from_rows(text.windows(CONTEXT).take(text.len() - CONTEXT))?;
    let data = Dataset::new([("x", windows), ("y", Tensor::from(&text[CONTEXT..]))])?;
    for epoch in 0..30 {
        for batch in data.shuffled(epoch).batches(64)? {
            step.run(&mut store, &batch.inputs())?;
        }
    }
    step.save_model(&store, file).map(|()| format!("saved to {}", file.display()))
}

fn generate(start: &[i64], file: &Path) -> tracecast::Result<String> {
    let mut store = Store::new();
    load_model(&model(), &mut store, file, &Load::strict())?;
    let next = jit(Options::new(), |t| {
        let scores = model().forward(&Context::evaluation(t), t.input("x"));
        // The largest is at each character as often as that is likely at a temperature of one half.
        let noise = (-t.input("random").log()).log();
        t.output("next", (scores / 0.5 - noise).argmax(1));
    });
    let mut text = start.to_vec();
    for seed in 0..200 {
        let x = Tensor::from_rows([&text[text.len() - CONTEXT..]])?;
        let random = ("random", &Tensor::rand([1, 128], seed)?);
        text.push(next.run(&mut store, &[("x", &x), random])?["next"].item()?);
    }
    Ok(text.iter().map(|code| char::from(*code as u8)).collect())
}

fn main() -> tracecast::Result<()> {
    let file = env::temp_dir().join("characters.safetensors");
    let file = env::args().nth(2).map_or(file, Into::into);
    let text: Vec<i64> = include_str!("characters.txt").bytes().map(i64::from).collect();
    let learns = env::args().nth(1).as_deref() != Some("generate");
    let said = if learns { train(&text, &file) } else { generate(&text[..CONTEXT], &file) }?;
    writeln!(std::io::stdout(), "{said}").expect("standard output is open");
    Ok(())
}
