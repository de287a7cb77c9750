//! Settings that PyTorch's constructors refuse are refused when a step is recorded.

use crate::{noise, update_by_input};
use tracecast::optim::{
    Adagrad, Adam, AdamW, Clip, Groups, Lion, LowMoments, OneCycle, Optimizer, RmsProp, Schedule,
    Sgd,
};
use tracecast::prelude::*;

/// The error of a step with that rule.
fn refused(rule: impl Optimizer + 'static) -> String {
    let step = update_by_input(Options::new(), rule);
    let mut store = Store::new().with("w", Tensor::new([3], &noise(0, 3)).unwrap());
    let (g, found) = (Tensor::new([3], &[0f32; 3]).unwrap(), Tensor::scalar(0f32));
    step.run(&mut store, &[("g", &g), ("found", &found)]).unwrap_err().to_string()
}

#[test]
fn numbers_out_of_range_are_named() {
    let cases: Vec<(String, &str)> = vec![
        (refused(Sgd::new(-0.1)), "learning rate is -0.1"),
        (refused(Sgd::new(f64::NAN)), "learning rate is NaN"),
        (refused(Sgd::new(0.1).momentum(-1.0)), "momentum is -1"),
        (refused(Sgd::new(0.1).weight_decay(-1.0)), "weight decay is -1"),
        (refused(Sgd::new(0.1).nesterov()), "Nesterov"),
        (refused(Sgd::new(0.1).momentum(0.9).dampening(0.1).nesterov()), "no dampening"),
        (refused(Sgd::new(0.1).momentum(0.9).dampening(f64::NAN)), "dampening is NaN"),
        (refused(Adam::new(-1.0)), "learning rate"),
        (refused(Adam::new(0.1).betas(1.0, 0.9)), "betas are 1 and 0.9"),
        (refused(AdamW::new(0.1).betas(0.9, -0.1)), "betas are 0.9 and -0.1"),
        (refused(AdamW::new(0.1).betas(0.9, f64::NAN)), "betas"),
        (refused(AdamW::new(0.1).eps(-1e-8)), "eps is -0.00000001"),
        (refused(AdamW::new(0.1).weight_decay(f64::NAN)), "weight decay is NaN"),
        (refused(Adagrad::new(0.1).rate_decay(-1.0)), "decay of the learning rate is -1"),
        (refused(Adagrad::new(0.1).initial_sum(-1.0)), "first sum is -1"),
        (refused(RmsProp::new(0.1).alpha(-0.5)), "alpha is -0.5"),
        (refused(RmsProp::new(0.1).momentum(-0.5)), "momentum is -0.5"),
        (refused(Lion::new(0.1).betas(0.9, 1.0)), "betas"),
        (refused(Lion::new(0.1).weight_decay(-1.0)), "weight decay"),
        (refused(Groups::new(Sgd::new(0.1)).of(&["x"], Sgd::new(-2.0))), "learning rate is -2"),
        (refused(LowMoments::new(AdamW::new(-3.0))), "learning rate is -3"),
        (refused(LowMoments::new(AdamW::new(0.1)).dtype(DType::F32)), "expected a 16-bit float"),
        (refused(Sgd::new(Schedule::step(0.1, 0, 0.5))), "0 steps"),
        (refused(Sgd::new(Schedule::exponential(0.1, 0.0))), "factor of a schedule is 0"),
        (refused(Sgd::new(Schedule::cosine(0.1, 10, -1.0))), "learning rate is -1"),
        (refused(Sgd::new(Schedule::constant(0.1).warm_up(0, 0.1))), "0 steps"),
        (refused(Sgd::new(Schedule::from(OneCycle::new(0.1, 10).rising(1.5)))), "rises in 1.5"),
        (refused(Sgd::new(Schedule::from(OneCycle::new(0.1, 10).divisors(0.0, 1.0)))), "divisor"),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found:?} does not say {expected:?}");
    }
}

#[test]
fn clips_out_of_range_are_named() {
    for (clip, expected) in [
        (Clip::norm(-1.0), "clipped to -1"),
        (Clip::value(f64::NAN), "clipped to NaN"),
        (Clip::value(1.0).skip_if_nonfinite(), "no norm"),
    ] {
        let step = jit(Options::new(), move |t| {
            let mut grads = [t.input("g")];
            clip.record(t, &mut grads);
            t.output("g", grads[0]);
        });
        let g = Tensor::new([1], &[1f32]).unwrap();
        let error = step.run(&mut Store::new(), &[("g", &g)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
