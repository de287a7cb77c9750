//! Learns what houses cost from a table: reads it, scales it, trains on four fifths of the rows and
//! is judged by the others.
//!
//! `cargo run --release --example regression [FILE.csv]`: the last column is told from those before
//! it.

use std::error::Error;
use std::{env, fs, io::Write};
use tracecast::data::Dataset;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/houses.csv");
    let text = fs::read_to_string(env::args().nth(1).unwrap_or(path.to_owned()))?;
    // Numbers between commas, below a line of titles; for anything else there is the crate `csv`.
    let numbers = |line: &str| line.split(',').map(|cell| cell.trim().parse()).collect();
    let rows: Vec<Vec<f32>> = text.lines().skip(1).map(numbers).collect::<Result<_, _>>()?;
    let all = Dataset::new([("table", Tensor::from_rows(&rows)?)])?.shuffled(7);
    let (train, test) = all.split_at(all.len() * 4 / 5)?;

    // Each column with mean 0 and deviation 1, in the rows to train on.
    let scale = jit(Options::new(), |t| {
        let (train, test) = (t.input("train"), t.input("test"));
        let mean = train.mean([0].keep());
        let deviation = ((train - mean) * (train - mean)).mean([0].keep()).sqrt();
        t.output("train", (train - mean) / deviation);
        t.output("test", (test - mean) / deviation);
    });
    let tables = [("train", &train["table"]), ("test", &test["table"])];
    let scaled = scale.run(&mut Store::new(), &tables)?;
    let columns = rows[0].len() - 1;
    let examples = |name: &str| -> tracecast::Result<Dataset> {
        let (x, y) = (scaled[name].slice(1, ..columns)?, scaled[name].slice(1, columns..)?);
        Dataset::new([("x", x), ("y", y)])
    };
    let (train, test) = (examples("train")?, examples("test")?);

    let layers = Sequential::new().then(Linear::new(columns, 32)).then(Relu);
    let step = TrainStep::new(layers.then(Linear::new(32, 1)), |t, model| {
        model.forward(t.input("x")).mean_squared_error(t.input("y"))
    });
    let step = step.optimizer(AdamW::new(0.01)).build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;
    for epoch in 0..40 {
        for done in step.run_batches(&mut store, train.shuffled(epoch).batches(32)?) {
            done?;
        }
    }

    let evaluate = step.evaluation(|t, model| {
        let (y, answer) = (t.input("y"), model.forward(t.input("x")));
        let spread = y.mean_squared_error(y.mean(()).expand(&y.shape()));
        t.output("r2", 1.0 - answer.mean_squared_error(y) / spread);
    });
    let r2 = evaluate.run(&mut store, &test.inputs())?["r2"].item::<f32>()?;
    writeln!(std::io::stdout(), "R² of {} rows held out: {r2:.3}", test.len())?;
    Ok(())
}
