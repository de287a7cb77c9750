//! The trainings of `examples/loss_scaling` in short: what loss scaling is for, and that skipped
//! steps do no harm.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/loss_scaling/figures.rs"]
mod figures;

use figures::{Digits, Precision, tiny_loss};

#[test]
fn a_tiny_loss_trains_in_f16_only_if_it_is_scaled() {
    let loss = |precision| tiny_loss(precision, 120).unwrap();
    let (first, exact) = loss(Precision::F32);
    assert!(exact < 0.6 * first, "f32: {first} to {exact}");
    let (first, lost) = loss(Precision::F16);
    assert!(lost > 0.9 * first, "f16 without scaling: {first} to {lost}");
    let (_, scaled) = loss(Precision::F16Scaled);
    assert!((scaled - exact).abs() < 0.02 * exact, "f16 with scaling: {scaled}, f32: {exact}");
}

#[test]
fn digits_are_learned_alike_in_every_precision() {
    let digits = Digits::load();
    let mean = |precision, poison| {
        let outcomes = [0, 1].map(|seed| digits.train(precision, seed, 8, poison).unwrap());
        for outcome in outcomes {
            assert_eq!(outcome.skipped, outcome.poisoned, "{precision:?}");
            assert!(poison == 0 || outcome.poisoned > 3, "{outcome:?}");
        }
        outcomes.iter().map(|outcome| outcome.accuracy).sum::<f64>() / 2.0
    };
    let exact = mean(Precision::F32, 0);
    assert!(exact > 93.0, "{exact}");
    for (precision, poison) in
        [(Precision::Bf16, 0), (Precision::F16Scaled, 0), (Precision::F16Scaled, 20)]
    {
        let found = mean(precision, poison);
        assert!((found - exact).abs() <= 0.5, "{precision:?}: {found}, f32: {exact}");
    }
}
