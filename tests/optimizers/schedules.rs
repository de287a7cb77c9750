//! Schedules against the recursions of PyTorch's, in the program and on the host, and what a
//! skipped step does to them.

use crate::{floats, take, update_by_input};
use std::f64::consts::PI;
use tracecast::optim::{OneCycle, Schedule, Sgd};
use tracecast::prelude::*;

/// What each schedule gives for steps 0, 1, …, as PyTorch's chainable forms compute it: each rate
/// from the one before.
fn expected(schedule: &str, count: usize) -> Vec<f64> {
    let by = |start: f64, next: &dyn Fn(usize, f64) -> f64| {
        let mut rates = vec![start];
        (1..count).for_each(|step| rates.push(next(step, rates[step - 1])));
        rates
    };
    let cosine = |steps: usize, least: f64| {
        move |step: usize, before: f64| {
            let at = |step: usize| 1.0 + (PI * step as f64 / steps as f64).cos();
            if step > steps { before } else { at(step) / at(step - 1) * (before - least) + least }
        }
    };
    match schedule {
        "step" => by(0.5, &|step, rate| if step % 4 == 0 { rate * 0.1 } else { rate }),
        "multi_step" => {
            by(0.5, &|step, rate| if [3, 7].contains(&step) { rate * 0.2 } else { rate })
        }
        "exponential" => by(0.5, &|_, rate| rate * 0.9),
        "cosine" => by(0.5, &cosine(12, 0.05)),
        "linear" => (0..count).map(|step| 0.5 * (0.2 + 0.8 * step.min(5) as f64 / 5.0)).collect(),
        "warm_up" => {
            let after = by(0.5, &cosine(12, 0.05));
            let before = (0..5).map(|step| 0.5 * (0.1 + 0.9 * step as f64 / 5.0));
            before.chain(after).take(count).collect()
        }
        _ => unreachable!("{schedule}"),
    }
}

fn schedules() -> Vec<(&'static str, Schedule)> {
    vec![
        ("step", Schedule::step(0.5, 4, 0.1)),
        ("multi_step", Schedule::multi_step(0.5, &[7, 3], 0.2)),
        ("exponential", Schedule::exponential(0.5, 0.9)),
        ("cosine", Schedule::cosine(0.5, 12, 0.05)),
        ("linear", Schedule::linear(0.5, 0.2, 1.0, 5)),
        ("warm_up", Schedule::cosine(0.5, 12, 0.05).warm_up(5, 0.1)),
    ]
}

/// The rates that a program computes.
fn in_program(schedule: &Schedule, count: usize) -> Vec<f64> {
    let schedule = schedule.clone();
    let program =
        jit(Options::new().threads(1), move |t| t.output("rate", schedule.at(t.input("step"))));
    let rate = |step| {
        let out =
            program.run(&mut Store::new(), &[("step", &Tensor::scalar(step as f64))]).unwrap();
        out["rate"].item::<f64>().unwrap()
    };
    (0..count).map(rate).collect()
}

fn close(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-12 * b.abs().max(1e-3), "{name}, step {step}: {a} and {b}");
    }
}

#[test]
fn schedules_follow_their_recursions() {
    for (name, schedule) in schedules() {
        let expected = expected(name, 20);
        close(name, &in_program(&schedule, 20), &expected);
        let host: Vec<f64> = (0..20).map(|step| schedule.rate(step)).collect();
        close(name, &host, &expected);
    }
}

/// Rates of a cycle as PyTorch computes them, phase by phase.
fn cycle(step: usize, steps: usize, rising: f64, three: bool, linear: bool) -> f64 {
    let (top, first, last) = (2.0, 2.0 / 25.0, 2.0 / 25.0 / 1e4);
    let all = steps as f64;
    let mut phases = vec![(rising * all - 1.0, first, top)];
    if three {
        phases.push((2.0 * rising * all - 2.0, top, first));
    }
    phases.push((all - 1.0, phases.last().unwrap().2, last));
    let mut start = 0.0;
    for (i, &(end, from, to)) in phases.iter().enumerate() {
        if step as f64 <= end || i == phases.len() - 1 {
            let done = ((step as f64 - start) / (end - start)).min(1.0);
            return match linear {
                true => (to - from) * done + from,
                false => to + (from - to) / 2.0 * (1.0 + (PI * done).cos()),
            };
        }
        start = end;
    }
    unreachable!("the last phase takes all")
}

#[test]
fn one_cycle_has_two_phases_or_three() {
    for (three, linear, rising) in
        [(false, false, 0.3), (false, true, 0.25), (true, false, 0.3), (true, true, 0.5)]
    {
        let mut settings = OneCycle::new(2.0, 20).rising(rising);
        if three {
            settings = settings.three_phases();
        }
        if linear {
            settings = settings.linear();
        }
        let schedule = Schedule::from(settings);
        let expected: Vec<f64> =
            (0..25).map(|step| cycle(step, 20, rising, three, linear)).collect();
        let name = format!("{schedule:?}");
        close(&name, &in_program(&schedule, 25), &expected);
        close(&name, &(0..25).map(|step| schedule.rate(step)).collect::<Vec<_>>(), &expected);
    }
    let plain = Schedule::one_cycle(2.0, 20);
    assert_eq!(plain.rate(7), Schedule::from(OneCycle::new(2.0, 20)).rate(7));
}

/// How far `w` moves in each step with a gradient of 1, and a bad gradient in every third step.
fn moved(schedule: Schedule) -> Vec<f32> {
    let step = update_by_input(Options::new().threads(1), Sgd::new(schedule));
    let mut store = Store::new().with("w", Tensor::new([1], &[0f32]).unwrap());
    let mut at = 0.0;
    (0..9)
        .map(|i| {
            take(&step, &mut store, &[1.0], if i % 3 == 1 { 1.0 } else { 0.0 });
            let before = std::mem::replace(&mut at, floats(&store, "w")[0]);
            before - at
        })
        .collect()
}

#[test]
fn a_skipped_step_does_not_count_unless_asked() {
    let halves = Schedule::exponential(1.0, 0.5);
    let good = moved(halves.clone());
    assert_eq!(good, [1.0, 0.0, 0.5, 0.25, 0.0, 0.125, 0.0625, 0.0, 0.03125]);
    let all = moved(halves.count_skipped());
    assert_eq!(all, [1.0, 0.0, 0.25, 0.125, 0.0, 0.03125, 0.015625, 0.0, 0.00390625]);
}
