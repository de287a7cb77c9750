//! Training steps with AdamW, in f32 and under bf16 autocast.

use crate::answers::{Answers, folder, json, models, named};
use tracecast::prelude::*;
use tracecast::{Result, pt2};

fn losses(model: &pt2::Model, inputs: &[Tensor], count: usize, low: bool) -> Result<Vec<f64>> {
    let step = TrainStep::from_exported_loss(model.clone()).optimizer(AdamW::new(1e-3));
    let step = if low { step.autocast("cpu", DType::BF16) } else { step }.build()?;
    let mut store = Store::new();
    step.init(&mut store, 0)?;
    let named = named(model, inputs);
    let inputs: Vec<(&str, &Tensor)> = named.iter().map(|(name, x)| (name.as_str(), *x)).collect();
    (0..count).map(|_| Ok(f64::from(step.run(&mut store, &inputs)?.loss))).collect()
}

#[test]
fn steps_of_adamw_follow_pytorchs() {
    let steps = json("steps.json");
    let mut wrong = Vec::new();
    for name in models() {
        let answers = Answers::of(&name);
        let model = pt2::open(folder().join(format!("{name}.loss.pt2"))).unwrap();
        let recorded = |key: &str| -> Vec<f64> {
            steps[&name][key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
        };
        let (full, low) = (recorded("f32"), recorded("bf16"));
        let inputs = answers.numbered("in");
        let ours = losses(&model, &inputs, full.len(), false);
        let ours_low = losses(&model, &inputs, low.len(), true);
        let (ours, ours_low) = match (ours, ours_low) {
            (Ok(ours), Ok(low)) => (ours, low),
            (Err(error), _) | (_, Err(error)) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let far = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs();
        let most = ours.iter().zip(&full).map(far).fold(0.0, f64::max);
        if most > 1e-4 {
            wrong.push(format!("{name}: f32 {ours:?}, PyTorch {full:?}"));
        }
        let mut share: f64 = 0.0;
        for ((a, b), full) in ours_low.iter().zip(&low).zip(&full) {
            let bound = f64::max(2e-3 * b.abs(), 1.5 * (b - full).abs());
            share = share.max((a - b).abs() / bound);
        }
        if share > 1.0 {
            wrong.push(format!("{name}: bf16 {ours_low:?}, PyTorch {low:?}, in f32 {full:?}"));
        }
        println!("{name}: f32 {most:.1e}, bf16 {share:.2} of the bound");
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
