//! What training on ranks costs: the workload `mlp-train` on 2 ranks of one thread beside one rank
//! of 2 threads, measured in turn; and a model of a step's time, checked against 2 and 4 ranks and
//! carried to 1,024 (`docs/scaling.md`).
//!
//! ```text
//! cargo bench --bench ranks                  the first two
//! cargo bench --bench ranks -- gpt2          the model carried to a model of the size of GPT-2 as well, which takes 6 GB and minutes
//! ```

#![allow(clippy::print_stdout, reason = "the table is what the bench is for")]

mod measure;
mod model;
#[path = "../support/transformer.rs"]
#[allow(dead_code, reason = "other benches use more of it")]
mod transformer;

use measure::{Training, alone, in_turn, on_ranks, reductions};
use model::{Network, Step, carried};
use tracecast::DType;
use transformer::Shapes;

/// The largest error of the model, as a share of what is measured.
const BOUND: f64 = 0.25;

fn main() {
    let wants = |what: &str| std::env::args().any(|argument| argument == what);
    if wants("--test") {
        return;
    }
    for dtype in [DType::F32, DType::BF16] {
        let (one, two) = in_turn(&Training::mlp(dtype));
        println!(
            "mlp-train, {dtype}: one rank of 2 threads {:.2} ms, 2 ranks of one thread {:.2} ms: {:.2} times as long",
            1e3 * one,
            1e3 * two,
            two / one
        );
    }
    let mlp = Training::mlp(DType::F32);
    let mut off: Vec<String> = Vec::new();
    for ranks in [2, 4] {
        let network = Network::fitted(&reductions(ranks));
        let step = alone(&mlp, ranks);
        let (foretold, found) = (step.shared(&network), on_ranks(&mlp, ranks));
        println!(
            "{ranks} ranks: a reduction takes {:.0} us and {:.3} ms for each MiB; {} buckets; a step without exchanges {:.2} ms, foretold {:.2} ms, found {:.2} ms: {:+.0} %",
            1e6 * network.latency,
            1e3 * network.per_byte * f64::from(1 << 20),
            step.buckets.len(),
            1e3 * step.time,
            1e3 * foretold,
            1e3 * found,
            100.0 * (foretold / found - 1.0)
        );
        if (foretold / found - 1.0).abs() > BOUND {
            off.push(format!("{ranks} ranks: foretold {foretold:.5} s, found {found:.5} s"));
        }
    }
    table("mlp-train, f32, 256 rows a rank", &alone(&mlp, 1));
    if wants("gpt2") {
        let gpt2 = Training::of_tokens(Shapes::gpt2());
        table("GPT-2 of 124 million parameters, bf16, 256 tokens a rank", &alone(&gpt2, 1));
    }
    assert!(off.is_empty(), "the model is off by more than {BOUND}: {off:?}");
}

/// Prints how a step gets longer with ranks and buckets.
fn table(what: &str, step: &Step) {
    let bytes: f64 = step.buckets.iter().map(|bucket| bucket.bytes).sum();
    println!("{what}: {:.1} ms alone, {:.1} MB reduced", 1e3 * step.time, bytes / 1e6);
    println!(
        "  ranks  bucket, MiB  step, ms  of it waiting, ms  share of the time that is not waiting"
    );
    for ranks in [2, 8, 64, 256, 1024] {
        for mebibytes in [1.0, 16.0, 64.0] {
            let time = carried(step, ranks, mebibytes * f64::from(1 << 20));
            println!(
                "  {ranks:5}  {mebibytes:11}  {:8.1}  {:17.1}  {:.3}",
                1e3 * time,
                1e3 * (time - step.time),
                step.time / time
            );
        }
    }
}
