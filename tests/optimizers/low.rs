//! Moments in 16 bits: stochastic rounding is unbiased and exact at its ends, its numbers are
//! predicated, and training goes on.

use crate::{floats, noise, take, update_by_input};
use tracecast::optim::{AdamW, LowMoments, Sgd, stochastic_round};
use tracecast::prelude::*;

/// Each of `x` rounded with each of `units`.
fn rounded(x: &[f32], units: &[f32], dtype: DType) -> Vec<f64> {
    let program = jit(Options::new().threads(1), move |t| {
        t.output("y", stochastic_round(t.input("x"), t.input("u"), dtype));
    });
    let (x, u) = (Tensor::new([x.len()], x).unwrap(), Tensor::new([units.len()], units).unwrap());
    let out = program.run(&mut Store::new(), &[("x", &x), ("u", &u)]).unwrap();
    assert_eq!(out["y"].dtype(), dtype);
    out["y"].to_f64s()
}

/// The next number below and above in a float of 16 bits, from those around by bit patterns.
fn neighbours(x: f32, dtype: DType) -> (f64, f64) {
    let near = Tensor::new([1], &[x]).unwrap().cast(dtype).unwrap();
    let bits = u16::from_le_bytes([near.bytes()[0], near.bytes()[1]]);
    let value = |bits: u16| {
        Tensor::from_bytes(TensorType::new(dtype, [1]), bits.to_le_bytes().to_vec())
            .unwrap()
            .to_f64s()[0]
    };
    let at = value(bits);
    let up = |bits: u16| {
        if bits == 0x8000 {
            1
        } else if bits >> 15 == 1 {
            bits - 1
        } else {
            bits + 1
        }
    };
    let down = |bits: u16| {
        if bits == 0 {
            0x8001
        } else if bits >> 15 == 1 {
            bits + 1
        } else {
            bits - 1
        }
    };
    let x = f64::from(x);
    if at == x {
        (at, at)
    } else if at < x {
        (at, value(up(bits)))
    } else {
        (value(down(bits)), at)
    }
}

#[test]
fn one_of_the_two_neighbours_with_the_right_odds() {
    const DRAWS: usize = 1024;
    let units: Vec<f32> = (0..DRAWS).map(|i| i as f32 / DRAWS as f32).collect();
    let mut values = noise(3, 60);
    values.extend(noise(4, 20).iter().map(|v| v * 1e-20));
    values.extend([
        1.0, -2.0, 1.003, 0.999_999, 2.0001, -1.999_99, 65_000.0, 0.0, 3.1e-5, -7e-7, 1e-8,
    ]);
    for dtype in [DType::BF16, DType::F16] {
        for &x in &values {
            let (low, high) = neighbours(x, dtype);
            let found = rounded(&[x; DRAWS], &units, dtype);
            let mean = found.iter().sum::<f64>() / DRAWS as f64;
            assert!(found.iter().all(|v| *v == low || *v == high), "{dtype} {x}: {low} {high}");
            let gap = high - low;
            assert!(
                (mean - f64::from(x)).abs() <= gap / DRAWS as f64 + 1e-300,
                "{dtype} {x}: {mean}"
            );
        }
    }
}

#[test]
fn numbers_of_the_dtype_and_those_without_neighbours_stay() {
    let kept = [0.0, -0.0, 1.0, -1.5, f32::INFINITY, f32::NEG_INFINITY, 1e-40];
    let kept: Vec<f32> = kept
        .iter()
        .map(|v| Tensor::new([1], &[*v]).unwrap().cast(DType::BF16).unwrap().to_f64s()[0] as f32)
        .collect();
    for unit in [0.0, 0.5, 1.0 - 1.0 / 16_777_216.0] {
        let found = rounded(&kept, &vec![unit; kept.len()], DType::BF16);
        for (a, b) in found.iter().zip(&kept) {
            assert_eq!(*a, f64::from(*b), "{unit}");
        }
        assert!(rounded(&[f32::NAN], &[unit], DType::BF16)[0].is_nan());
        assert_eq!(rounded(&[f32::MAX], &[unit], DType::BF16), [f64::INFINITY]);
    }
}

#[test]
fn random_numbers_stand_still_in_a_skipped_step() {
    let run = |skips: &[bool]| {
        let rule = LowMoments::new(AdamW::new(0.01));
        let step = update_by_input(Options::new().threads(1), rule);
        let mut store = Store::new().with("w", Tensor::new([50], &noise(1, 50)).unwrap());
        let mut seed = 10;
        for skip in skips {
            take(&step, &mut store, &noise(seed, 50), f32::from(u8::from(*skip)));
            seed += u64::from(!skip);
        }
        assert_eq!(store.get("optim.w.exp_avg").unwrap().dtype(), DType::BF16);
        let rng = store.get("optim.rng").unwrap().to_vec::<i64>().unwrap();
        let moment = store.get("optim.w.exp_avg_sq").unwrap().bytes().to_vec();
        (floats(&store, "w"), moment, rng)
    };
    let straight = run(&[false; 3]);
    assert_eq!(straight, run(&[true, false, true, false, true, false, true]));
    assert_eq!(straight.2[1], 3);
}

#[test]
fn a_small_average_is_not_lost() {
    // A momentum of 0.999 of a constant gradient: each step moves the average by less than bf16 can
    // tell near its end.
    let average = |low: bool| {
        let rule = Sgd::new(0.0).momentum(0.999);
        let options = Options::new().threads(1);
        let step = match low {
            true => update_by_input(options, LowMoments::new(rule)),
            false => update_by_input(options, rule),
        };
        let mut store = Store::new().with("w", Tensor::new([400], &[0f32; 400]).unwrap());
        for _ in 0..1200 {
            take(&step, &mut store, &[1.0; 400], 0.0);
        }
        let buffer = store.get("optim.w.momentum_buffer").unwrap().to_f64s();
        buffer.iter().sum::<f64>() / 400.0
    };
    let (wide, low) = (average(false), average(true));
    assert!((wide - low).abs() < 0.005 * wide, "{wide} and {low}");
    // Rounded to nearest, the sum would stop at 256, where bf16 counts by two.
    assert!(wide > 600.0);
}
