//! Policies for the next scale: fewer skipped steps than with back-off, and a scale that follows
//! the gradients.

use super::number;
use tracecast::amp::{Histogram, LogMax, ScalePolicy, ScalerSettings};
use tracecast::prelude::*;

/// A step whose gradient is the input `g` times the scale in f16, as it comes out of a backward
/// pass in f16.
pub(crate) fn stream(settings: ScalerSettings) -> Jit {
    jit(Options::new().threads(1), move |t| {
        let (w, sgd) = (t.param("w"), Sgd::new(0.0));
        let mut scaler = GradScaler::recorded(t, "amp", settings.clone());
        let mut optimizer = Recorded::new(t, &sgd, &[w]);
        let narrow = scaler.scale(t.input("g")).cast(DType::F16);
        optimizer.set_grads(vec![narrow.cast(DType::F32)]);
        scaler.step(&mut optimizer);
        scaler.update();
        t.output("skipped", scaler.found().unwrap());
    })
}

/// Gradients of 64 elements whose size is distributed log-normally and drifts by a factor of 2^8.
fn gradients(count: usize) -> Vec<Tensor> {
    (0..count)
        .map(|step| {
            let drift = 4.0 * (step as f32 / count as f32 * std::f32::consts::TAU).sin();
            let normal = Tensor::randn([65], step as u64).unwrap().to_vec::<f32>().unwrap();
            let size = (drift - 4.0 + 0.5 * normal[64]).exp2();
            let elements: Vec<f32> = normal[..64].iter().map(|v| v * size).collect();
            Tensor::new([64], &elements).unwrap()
        })
        .collect()
}

/// The number of skipped steps, and the mean of log2 of the scale.
fn skips(settings: ScalerSettings, gradients: &[Tensor]) -> (usize, f64) {
    let step = stream(settings);
    let mut store = Store::new().with("w", Tensor::new([64], &[0f32; 64]).unwrap());
    let (mut skipped, mut scales) = (0, 0.0);
    for g in gradients {
        let out = step.run(&mut store, &[("g", g)]).unwrap();
        skipped += usize::from(out["skipped"].item::<f32>().unwrap() != 0.0);
        scales += number(&store, "amp.scale").log2();
    }
    (skipped, scales / gradients.len() as f64)
}

#[test]
fn looking_at_gradients_skips_fewer_steps_than_waiting_for_overflows() {
    let gradients = gradients(3000);
    let settings = |policy: ScalePolicy| {
        let options = ScalerOptions { growth_interval: 20, ..ScalerOptions::default() };
        ScalerSettings::from(options).policy(policy)
    };
    let (back_off, usual) = skips(settings(ScalePolicy::BackOff), &gradients);
    let (log_max, by_size) = skips(settings(LogMax::default().into()), &gradients);
    let (histogram, by_share) = skips(settings(Histogram::default().into()), &gradients);
    eprintln!(
        "skipped: back-off {back_off} (mean log2 scale {usual:.1}), LogMax {log_max} ({by_size:.1}), histogram {histogram} ({by_share:.1})"
    );
    assert!(back_off > 60, "the stream is hard enough: {back_off}");
    assert!(
        log_max * 4 < back_off && histogram * 4 < back_off,
        "{log_max}, {histogram}, {back_off}"
    );
    // The price is a smaller scale: three deviations of a size that drifts.
    assert!(by_size > usual - 6.0 && by_share > usual - 4.0, "{by_size} and {by_share}, {usual}");
}

#[test]
fn scales_stay_powers_of_two_within_bounds() {
    let bounded = |policy: ScalePolicy| ScalerSettings::default().policy(policy).min_scale(16.0);
    let policies: [ScalePolicy; 2] = [
        LogMax { max_scale: 4096.0, ..LogMax::default() }.into(),
        Histogram { max_scale: 4096.0, ..Histogram::default() }.into(),
    ];
    for policy in policies {
        let step = stream(bounded(policy));
        let mut store = Store::new().with("w", Tensor::new([2], &[0f32; 2]).unwrap());
        for number_of in 0..300 {
            let size = [0.0, 1e-30, 1.0, f32::NAN, 1e30, 3e38, f32::INFINITY][number_of * 5 % 7];
            let g = Tensor::new([2], &[size, -size]).unwrap();
            step.run(&mut store, &[("g", &g)]).unwrap();
            let scale = number(&store, "amp.scale");
            assert!((16.0..=4096.0).contains(&scale) && scale.log2().fract() == 0.0, "{scale}");
            for name in store.names() {
                let all = store.get(name).unwrap().to_f64s();
                assert!(all.iter().all(|v| v.is_finite()), "{name}: {all:?}");
            }
        }
    }
}
