//! The smallest chips train a classifier: what they have no memory or no registers for runs on the
//! fallback, and nothing else does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{chips, contents, given, on, settings};
use sim_npu::Settings;
use tracecast::nn::{Context, Linear};
use tracecast::prelude::*;

struct Classifier;

impl Module for Classifier {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let x = cx.call("hidden", &Linear::new(16, 32), x).relu();
        let x = cx.call("middle", &Linear::new(32, 16), x).relu();
        cx.call("out", &Linear::new(16, 4), x)
    }
}

/// The class of a row is the quarter with its largest sum.
fn batch(seed: u64) -> Vec<(&'static str, Tensor)> {
    let x = Tensor::randn([12, 16], seed).unwrap();
    let label = |row: &[f64]| {
        let sums = row.chunks(4).map(|part| part.iter().sum::<f64>()).enumerate();
        sums.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0 as i64
    };
    let labels: Vec<i64> = x.to_f64s().chunks(16).map(label).collect();
    vec![("x", x), ("labels", Tensor::new([12], &labels).unwrap())]
}

fn step(options: Options) -> TrainStep {
    let step = TrainStep::new(Classifier, |t, model| {
        model.forward(t.input("x")).cross_entropy_loss(t.input("labels"), None, None, None, None)
    });
    step.optimizer(AdamW::new(0.01)).options(options).build().unwrap()
}

#[test]
fn only_what_reads_labels_and_counts_runs_on_the_fallback() {
    let (registry, chips) = chips(&Settings { memory: 8 << 20, ..Settings::strict() });
    assert_eq!(settings().most_operands, usize::MAX);
    let options = on(&registry, "npu:1").fallback("reference");
    let (mine, theirs) = (step(options), step(Options::new().device("reference")));
    let (mut store, mut known) = (Store::new(), Store::new());
    mine.init(&mut store, 5).unwrap();
    theirs.init(&mut known, 5).unwrap();
    let first = batch(0);
    let explained = mine.jit().explain(&store, &given(&first)).unwrap();
    let fallback = explained.fallback.as_ref().unwrap();
    for note in &fallback.launches {
        let reasons = ["memory holds f32, bf16 only", "does not compute in f64"];
        assert!(reasons.iter().any(|reason| note.reason.contains(reason)), "{fallback}");
        // No product, and no part of the optimizer but the factors of Adam.
        assert!(
            !["contract", "sqrt", "div"].iter().any(|op| note.kernel.contains(op)),
            "{fallback}"
        );
    }
    let launches = fallback.launches.len() as u64;
    let (mut losses, mut before) = (Vec::new(), chips[1].counts());
    for number in 0..40 {
        let batch = batch(number % 8);
        let done = mine.run(&mut store, &given(&batch)).unwrap();
        let wanted = theirs.run(&mut known, &given(&batch)).unwrap();
        assert_eq!(done.loss.to_bits(), wanted.loss.to_bits(), "step {number}");
        losses.push(done.loss);
        if number == 0 {
            before = chips[1].counts();
        }
    }
    assert_eq!(contents(&store), contents(&known));
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    assert!(mean(&losses[32..]) < 0.8 * mean(&losses[..8]), "{losses:?}");
    let counts = chips[1].counts().since(before);
    assert!((1..=8).contains(&launches) && counts.launches / 39 > launches, "{counts:?}");
    // Without a fallback the error names each kernel.
    let refused = step(on(&registry, "npu:1")).run(&mut Store::new(), &given(&first));
    let refused = refused.unwrap_err().to_string();
    assert!(fallback.launches.iter().all(|note| refused.contains(&note.kernel)), "{refused}");
}
