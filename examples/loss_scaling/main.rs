//! What loss scaling is for, in figures: `cargo run --release --example loss_scaling`.
//!
//! A loss multiplied by 2^-20 does not train in f16 unless it is scaled; digits over five seeds in
//! three precisions; and the same with one of fifty steps spoiled by infinity or NaN.

#![allow(clippy::print_stdout, reason = "an example prints")]

mod figures;

use figures::{Digits, Precision, tiny_loss};

const SEEDS: u64 = 5;
const EPOCHS: usize = 30;

fn main() -> tracecast::Result<()> {
    println!("a loss multiplied by 2^-20, SGD, 300 steps: first and last loss");
    for precision in [Precision::F32, Precision::F16, Precision::F16Scaled] {
        let (first, last) = tiny_loss(precision, 300)?;
        println!("  {:10} {first:.4} {last:.4}", format!("{precision:?}"));
    }
    let digits = Digits::load();
    println!(
        "digits, {EPOCHS} epochs, {SEEDS} seeds: mean accuracy in percent, skipped steps, spoiled steps"
    );
    let rows = [
        (Precision::F32, 0),
        (Precision::Bf16, 0),
        (Precision::F16Scaled, 0),
        (Precision::F16Scaled, 20),
    ];
    for (precision, poison) in rows {
        let (mut accuracy, mut skipped, mut poisoned) = (0.0, 0, 0);
        for seed in 0..SEEDS {
            let outcome = digits.train(precision, seed, EPOCHS, poison)?;
            accuracy += outcome.accuracy / SEEDS as f64;
            skipped += outcome.skipped;
            poisoned += outcome.poisoned;
        }
        println!("  {:10} {accuracy:.2} {skipped} {poisoned}", format!("{precision:?}"));
    }
    Ok(())
}
