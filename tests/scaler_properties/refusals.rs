//! Calls and settings of a recorded scaler without meaning: each is an error of the trace with
//! advice, and a line.

use tracecast::amp::{Histogram, LogMax, Nested, ScalerSettings};
use tracecast::prelude::*;

/// The error of a trace with two parameters.
fn refusal(body: impl Fn(&Trace, Var<'_>, Var<'_>)) -> String {
    let ty = || TensorType::new(DType::F32, [2]);
    let traced = trace("refused", |t| body(t, t.param_of("w", ty()), t.param_of("v", ty())));
    let error = traced.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.is_empty() || error.contains("refusals.rs"), "{error}");
    error
}

/// A scaler and two optimizers, one for each parameter, with gradients.
fn with_optimizers(
    body: impl for<'t> Fn(&mut GradScaler<'t>, &mut Recorded<'t, '_>, &mut Recorded<'t, '_>),
) -> String {
    let ty = || TensorType::new(DType::F32, [2]);
    let traced = trace("refused", |t| {
        let (w, v, sgd) = (t.param_of("w", ty()), t.param_of("v", ty()), Sgd::new(0.1));
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        let loss = scaler.scale((w * v).sum(()));
        let mut first = Recorded::named(t, "first", &sgd, &[w]);
        let mut second = Recorded::named(t, "second", &sgd, &[v]);
        first.backward(loss);
        second.backward(loss);
        body(&mut scaler, &mut first, &mut second);
    });
    traced.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn calls_out_of_order_are_refused_with_advice() {
    let cases = [
        (
            with_optimizers(|s, a, _| (s.unscale_(a), s.unscale_(a)).0),
            "once per optimizer and step",
        ),
        (with_optimizers(|s, a, _| (s.step(a), s.unscale_(a)).0), "unscaled before the step"),
        (with_optimizers(|s, a, _| (s.step(a), s.step(a)).0), "once per optimizer and step"),
        (with_optimizers(|s, _, _| s.update()), "call step() before update()"),
        (
            with_optimizers(|s, a, _| (s.step(a), s.update(), s.update()).0),
            "once, after the last step()",
        ),
        (with_optimizers(|s, a, b| (s.step(a), s.update(), s.step(b)).0), "update() comes last"),
        (
            with_optimizers(|s, a, _| assert!(s.step_with_closure(a, || unreachable!()).is_none())),
            "takes no closure",
        ),
    ];
    for (error, advice) in cases {
        assert!(error.contains(advice), "expected `{advice}`, found `{error}`");
    }
    let good = with_optimizers(|s, a, b| {
        s.unscale_(a);
        s.step(a);
        s.step(b);
        s.update();
    });
    assert_eq!(good, "");
}

/// S2: a parameter of two optimizers would be unscaled twice, 64 to 8 to 1 in PyTorch.
#[test]
fn a_parameter_of_two_optimizers_is_refused() {
    let error = refusal(|t, w, v| {
        let sgd = Sgd::new(0.1);
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        let loss = scaler.scale((w * v).sum(()));
        let mut first = Recorded::named(t, "first", &sgd, &[w]);
        let mut second = Recorded::named(t, "second", &sgd, &[v, w]);
        first.backward(loss);
        second.backward(loss);
        scaler.unscale_(&mut first);
        scaler.unscale_(&mut second);
    });
    assert!(error.contains("`w` is in the optimizers `first` and `second`"), "{error}");
}

/// S2 on the graph: an optimizer that steps by itself follows the scaled gradient.
#[test]
fn an_optimizer_that_steps_by_itself_is_refused() {
    let step = jit(Options::new(), |t| {
        let (w, v, sgd) = (t.param("w"), t.param("v"), Sgd::new(0.1));
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        let loss = scaler.scale((w * v).sum(()));
        let mut first = Recorded::named(t, "first", &sgd, &[w]);
        let mut second = Recorded::named(t, "second", &sgd, &[v]);
        first.backward(loss);
        second.backward(loss);
        scaler.step(&mut first);
        second.step();
        scaler.update();
    });
    let ones = || Tensor::new([2], &[1f32; 2]).unwrap();
    let error = step.run(&mut Store::new().with("w", ones()).with("v", ones()), &[]).unwrap_err();
    assert!(
        error.to_string().contains("`v` would move by a gradient of the scaled loss"),
        "{error}"
    );
}

#[test]
fn gradients_of_16_bits_and_numbers_are_refused() {
    let half = refusal(|t, _, _| {
        let (h, sgd) = (t.param_of("h", TensorType::new(DType::F16, [2])), Sgd::new(0.1));
        let mut scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        let mut optimizer = Recorded::new(t, &sgd, &[h]);
        optimizer.backward(scaler.scale(h.sum(())));
        scaler.unscale_(&mut optimizer);
    });
    assert!(half.contains("keep parameters in f32"), "{half}");
    let nothing = refusal(|t, w, _| {
        let scaler = GradScaler::recorded(t, "amp", ScalerOptions::default());
        scaler.scale(Nested::List(vec![Nested::Tensor(w), Nested::Number(3.0)]));
    });
    assert!(nothing.contains("found the number 3"), "{nothing}");
    let nothing = refusal(|t, w, _| {
        let (sgd, mut scaler) =
            (Sgd::new(0.1), GradScaler::recorded(t, "amp", ScalerOptions::default()));
        scaler.step(&mut Recorded::new(t, &sgd, &[w]));
    });
    assert!(nothing.contains("call backward() before step()"), "{nothing}");
}

/// S4: settings with which the scale would not stay finite and positive, or not exact where that is
/// asked for.
#[test]
fn settings_that_end_badly_are_refused() {
    let options = |init_scale, growth_factor, backoff_factor| ScalerOptions {
        init_scale,
        growth_factor,
        backoff_factor,
        ..ScalerOptions::default()
    };
    let refused = |settings: ScalerSettings| {
        refusal(|t, _, _| drop(GradScaler::recorded(t, "amp", settings.clone())))
    };
    let cases = [
        (options(8.0, 1.0, 0.5).into(), "growth factor"),
        (options(8.0, f64::NAN, 0.5).into(), "growth factor"),
        (options(8.0, 2.0, 1.0).into(), "backoff factor"),
        (options(8.0, f64::INFINITY, 0.5).into(), "finite and above 0"),
        (options(8.0, 2.0, 0.0).into(), "finite and above 0"),
        (options(8.0, 2.0, -0.5).into(), "finite and above 0"),
        (options(0.0, 2.0, 0.5).into(), "first scale"),
        (options(-8.0, 2.0, 0.5).into(), "first scale"),
        (options(f64::NAN, 2.0, 0.5).into(), "first scale"),
        (options(1e39, 2.0, 0.5).into(), "first scale"),
        (ScalerSettings::from(options(8.0, 2.0, 0.5)).min_scale(16.0), "at least 1.6e1"),
        (ScalerSettings::default().min_scale(f64::NAN), "the floor"),
        (ScalerSettings::default().min_scale(-1.0), "the floor"),
        (ScalerSettings::from(options(8.0, 3.0, 0.5)).powers_of_two(true), "growth factor"),
        (ScalerSettings::from(options(9.0, 2.0, 0.5)).powers_of_two(true), "first scale"),
        (ScalerSettings::from(options(8.0, 2.0, 0.3)).powers_of_two(true), "backoff factor"),
        (
            ScalerSettings::default().policy(LogMax { deviations: f64::NAN, ..LogMax::default() }),
            "deviations",
        ),
        (
            ScalerSettings::default().policy(LogMax { max_scale: 0.0, ..LogMax::default() }),
            "largest scale",
        ),
        (
            ScalerSettings::default().policy(Histogram { limit: 1.0, ..Histogram::default() }),
            "share",
        ),
    ];
    for (settings, expected) in cases {
        let error = refused(settings);
        assert!(error.contains(expected), "expected `{expected}`, found `{error}`");
    }
    assert_eq!(refused(ScalerSettings::default().powers_of_two(true)), "");
    assert_eq!(refused(ScalerSettings::from(options(8.0, 3.0, 0.0)).parity(true)), "");
}

#[test]
fn inexact_factors_are_warned_about() {
    let step = jit(Options::new(), |t| {
        let options = ScalerOptions { growth_factor: 1.5, ..ScalerOptions::default() };
        let (w, sgd) = (t.param("w"), Sgd::new(0.1));
        let mut scaler = GradScaler::recorded(t, "amp", options);
        let mut optimizer = Recorded::new(t, &sgd, &[w]);
        optimizer.backward(scaler.scale(w.sum(())));
        scaler.step(&mut optimizer);
        scaler.update();
    });
    step.run(&mut Store::new().with("w", Tensor::new([2], &[1f32; 2]).unwrap()), &[]).unwrap();
    let warnings = step.report().unwrap().warnings;
    assert!(
        warnings.iter().any(|w| w.message.contains("growth factor") && w.message.contains("1.5")),
        "{warnings:?}"
    );
}

/// S4 over many overflows: without `parity` the scale stops at 2^-126, whose reciprocal is finite;
/// with it, at zero.
#[test]
fn the_scale_stays_positive() {
    let last = |settings: ScalerSettings| {
        let step = super::policies::stream(settings);
        let mut store = Store::new().with("w", Tensor::new([1], &[0f32]).unwrap());
        for _ in 0..200 {
            let g = Tensor::new([1], &[f32::NAN]).unwrap();
            step.run(&mut store, &[("g", &g)]).unwrap();
        }
        super::number(&store, "amp.scale")
    };
    assert_eq!(last(ScalerSettings::default()), f64::from(f32::MIN_POSITIVE));
    assert_eq!(last(ScalerSettings::default().min_scale(1.0)), 1.0);
    assert_eq!(last(ScalerSettings::default().parity(true)), 0.0);
}

/// The second check sees what the first cannot: an overflow of the division by a scale below one,
/// and what came after it.
#[test]
fn updates_are_checked_on_request() {
    let run = |check: bool, scale: f64, grad: f32, factor: f32| {
        let options = ScalerOptions { init_scale: scale, ..ScalerOptions::default() };
        let settings = ScalerSettings::from(options).check_updates(check);
        let step = jit(Options::new(), move |t| {
            let (w, sgd) = (t.param("w"), Sgd::new(1.0));
            let mut scaler = GradScaler::recorded(t, "amp", settings.clone());
            let mut optimizer = Recorded::new(t, &sgd, &[w]);
            let scale = scaler.get_scale().unwrap();
            optimizer.set_grads(vec![t.input("g") + scale * 0.0]);
            scaler.unscale_(&mut optimizer);
            optimizer.grads_mut()[0] = optimizer.grads()[0] * t.input("factor");
            scaler.step(&mut optimizer);
            scaler.update();
        });
        let mut store = Store::new().with("w", Tensor::new([1], &[1f32]).unwrap());
        let (g, factor) = (Tensor::new([1], &[grad]).unwrap(), Tensor::scalar(factor));
        step.run(&mut store, &[("g", &g), ("factor", &factor)]).unwrap();
        (super::number(&store, "w").is_finite(), super::number(&store, "amp.scale") < scale)
    };
    assert_eq!(run(false, 1e-10, 1e30, 1.0), (false, false), "as PyTorch");
    assert_eq!(run(true, 1e-10, 1e30, 1.0), (true, true));
    assert_eq!(run(false, 4.0, 1.0, f32::NAN), (false, false), "as PyTorch");
    assert_eq!(run(true, 4.0, 1.0, f32::NAN), (true, true));
    assert_eq!(run(true, 4.0, 1.0, 2.0), (true, false));
}
