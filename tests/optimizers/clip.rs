//! Clipping against a plain model of PyTorch's.

use crate::noise;
use tracecast::optim::{Clip, NormKind};
use tracecast::prelude::*;

/// Two clipped gradients, their norm before, and the flag.
fn clipped(clip: Clip, a: &[f32], b: &[f32]) -> (Vec<f32>, Vec<f32>, Option<f32>, Option<f32>) {
    let step = jit(Options::new().threads(1), move |t| {
        let mut grads = [t.input("a"), t.input("b")];
        let found = clip.record(t, &mut grads);
        t.output("a", grads[0]);
        t.output("b", grads[1]);
        if let Some(norm) = found.norm {
            t.output("norm", norm);
        }
        if let Some(flag) = found.nonfinite {
            t.output("flag", flag);
        }
    });
    let inputs = [Tensor::new([a.len()], a).unwrap(), Tensor::new([b.len()], b).unwrap()];
    let out = step.run(&mut Store::new(), &[("a", &inputs[0]), ("b", &inputs[1])]).unwrap();
    let number = |name: &str| out.get(name).ok().map(|x| x.item::<f32>().unwrap());
    let list = |name: &str| out[name].to_vec::<f32>().unwrap();
    (list("a"), list("b"), number("norm"), number("flag"))
}

#[test]
fn norms_are_of_all_gradients_together() {
    let (a, b) = (noise(1, 5000), noise(2, 33));
    let all = || a.iter().chain(&b).map(|v| f64::from(*v));
    for kind in [NormKind::Euclidean, NormKind::Largest] {
        let norm = match kind {
            NormKind::Euclidean => all().map(|v| v * v).sum::<f64>().sqrt(),
            NormKind::Largest => all().fold(0.0, |most, v| v.abs().max(most)),
        };
        for max in [0.0, 0.5, 1e6] {
            let (got, _, found, flag) = clipped(Clip::norm_of(kind, max), &a, &b);
            assert!((f64::from(found.unwrap()) - norm).abs() < 1e-5 * norm && flag.is_none());
            let factor = (max / (norm + 1e-6)).min(1.0);
            for (got, before) in got.iter().zip(&a) {
                let expected = f64::from(*before) * factor;
                assert!(
                    (f64::from(*got) - expected).abs() <= 1e-5 * expected.abs(),
                    "{kind:?} {max}"
                );
            }
        }
        let (same, _, _, _) = clipped(Clip::norm_of(kind, 1e6), &a, &b);
        assert_eq!(same, a, "nothing to clip changes no bit");
    }
}

#[test]
fn values_are_clamped_and_nan_stays() {
    let (a, _, norm, _) =
        clipped(Clip::value(0.5), &[0.25, -3.0, f32::INFINITY, f32::NAN, -0.0], &[1.0]);
    assert_eq!(a[..3], [0.25, -0.5, 0.5]);
    assert!(a[3].is_nan() && a[4].to_bits() == (-0f32).to_bits() && norm.is_none());
}

#[test]
fn a_norm_that_is_not_finite_is_told_and_skips_the_step() {
    // The square of 3e38 is infinite, but a number alone is its own norm.
    for (bad, expected) in [(1.0, 0.0), (f32::NAN, 1.0), (f32::NEG_INFINITY, 1.0), (3e38, 0.0)] {
        let (_, _, _, flag) = clipped(Clip::norm(1.0).skip_if_nonfinite(), &[bad, 3e38], &[1.0]);
        assert_eq!(flag, Some(1.0), "{bad}");
        let step = jit(Options::new().threads(1), move |t| {
            let sgd = Sgd::new(1.0);
            let mut optimizer = Recorded::new(t, &sgd, &[t.param("w")]);
            optimizer.set_grads(vec![t.input("g")]);
            optimizer.clip(&Clip::norm(1.0).skip_if_nonfinite());
            optimizer.step();
        });
        let mut store = Store::new().with("w", Tensor::new([1], &[7f32]).unwrap());
        step.run(&mut store, &[("g", &Tensor::new([1], &[bad]).unwrap())]).unwrap();
        let w = store.get("w").unwrap().to_vec::<f32>().unwrap()[0];
        assert_eq!(w == 7.0, expected == 1.0, "{bad}: {w}");
    }
}
