//! An eager loop with parameters on two chips: however many there are, the scale and the flags
//! cross between chips once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{chips, eventually, on, settings};
use sim_npu::Counts;
use tracecast::amp::EagerScaler;
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::ir::Attrs;
use tracecast::ir::ops::elementwise::MUL;
use tracecast::prelude::*;

/// What each chip was asked for in a step, and the parameters afterwards.
fn stepped(count: usize, fused: bool) -> ([Counts; 2], Vec<Vec<f64>>) {
    let (registry, chips) = chips(&settings());
    let [home, away] = ["npu:0", "npu:1"].map(|name| Eager::new(on(&registry, name)).unwrap());
    // The last one is not where the scale is, and with it half of the others.
    let eager = |i: usize| if (count - i) % 2 == 1 { &away } else { &home };
    let value = |i: usize| Tensor::new([3], &[1.0f32, 2.0 + i as f32, -0.5]).unwrap();
    let params: Vec<Parameter> = (0..count).map(|i| eager(i).parameter(value(i))).collect();
    let mut optimizer = EagerOptimizer::new(Sgd::new(0.25), &params).fused(fused);
    let mut scaler =
        EagerScaler::new(ScalerOptions { init_scale: 4.0, ..ScalerOptions::default() });
    let scaler = scaler.as_mut().unwrap();
    let loss = home.tensor(Tensor::scalar(1.0f32));
    let factors = [&home, &away].map(|eager| eager.tensor(Tensor::scalar(4.0f32)));
    let infinite = home.tensor(Tensor::scalar(f32::INFINITY));
    // A command is counted when its turn comes.
    let counts = || {
        chips.iter().for_each(|chip| eventually("what was given", || chip.is_idle()));
        [0, 1].map(|chip: usize| chips[chip].counts())
    };
    let mut before = [Counts::default(); 2];
    for step in 0..4 {
        scaler.scale(&loss).unwrap();
        for (i, param) in params.iter().enumerate() {
            // The gradient of half of the square, scaled; once one of them is infinite.
            let factor = match (eager(i).same_device(&home), step) {
                (true, 1) => &infinite,
                (true, _) => &factors[0],
                (false, _) => &factors[1],
            };
            let scaled = eager(i).apply(&MUL, &[param.value(), factor], Attrs::new()).unwrap();
            param.set_grad(scaled[0].clone()).unwrap();
        }
        before = counts();
        if !fused {
            scaler.unscale_(&optimizer).unwrap();
        }
        let taken = scaler.step(&mut optimizer).unwrap();
        assert!(fused || taken == (step != 1 || count == 1), "step {step}");
        scaler.update().unwrap();
        if step == 1 && count > 1 {
            // The scale fell: gradients are too large by two from here on, which takes nothing from
            // what is counted.
            assert_eq!(scaler.get_scale().unwrap(), 2.0);
        }
        optimizer.zero_grad();
    }
    let after = counts();
    let counts = [0, 1].map(|chip: usize| after[chip].since(before[chip]));
    let values = params.iter().map(|param| param.value().to_host().unwrap().to_f64s()).collect();
    assert!(chips.iter().all(|chip| chip.counts().strangers == 0));
    drop((optimizer, params, loss, factors, infinite, home, away));
    *scaler = EagerScaler::new(ScalerOptions::default()).unwrap();
    for chip in &chips {
        eventually("memory comes back", || chip.usage().in_use == 0);
    }
    (counts, values)
}

#[test]
fn the_scale_and_the_flags_cross_once_whatever_the_number_of_parameters() {
    for fused in [false, true] {
        for count in [1, 8, 64] {
            let ([home, away], values) = stepped(count, fused);
            let what = format!("{count} parameters, fused {fused}: {home:?}, {away:?}");
            // From home the inverse, and the flag to whoever decides, host or chip; a fused step
            // takes the scale besides. From away its flag.
            let most = if fused { 3 } else { 2 };
            assert!(home.downloads <= most && away.downloads <= 1, "{what}");
            // A flag of a fused step that is alone is read where it is: home sends the inverse and
            // the scale, and away takes them.
            if fused && count == 1 {
                assert!(home.downloads <= 1 && away.uploads <= 2, "{what}");
            }
            // Each copy lands once, beside the numbers that flags and factors start from.
            assert!(away.uploads <= 4 && home.uploads <= 4, "{what}");
            // One and the same parameter had one and the same steps.
            let last = &values[count - 1];
            let shrunk = if count == 1 { 0.75f64.powi(4) } else { 0.75 * 0.5 * 0.5 };
            assert_eq!(last[0], shrunk, "{what}");
        }
    }
}
