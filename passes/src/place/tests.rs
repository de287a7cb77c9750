//! All ways to choose between narrow copies and values as they are, tried on random programs: none
//! is cheaper in the model than that of the minimum cut, and few are in the kernels that `fuse`
//! makes.

#[path = "../../../tests/support/dice.rs"]
pub(super) mod dice;

use super::copies::{Takes, choices};
use super::demand::demands;
use super::{Place, Precision, placed_with, relax};
use crate::fuse::{Forecast, Prices, Settings};
use crate::{Pass, Simplify};
use dice::Dice;
use std::sync::Arc;
use tracecast_ir::kernel::KernelLimits;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Stage, TensorType, Tracer, Verified, verify};

/// Values made of each other by what hands elements on, mostly, with uses in 16 bits and in f32.
fn program(dice: &mut Dice) -> Verified {
    let t = Tracer::explicit("choices");
    let low = dice.pick(&[DType::BF16, DType::F16]);
    let square = TensorType::new(DType::F32, [16, 16]);
    let (x, w) = (t.input("x", square.clone()), t.input("w", square.with_dtype(low)));
    let mut values = vec![x.tanh()];
    for _ in 0..3 + dice.below(9) {
        let [a, b] = [0, 1].map(|_| values[values.len() - 1 - dice.below(values.len().min(4))]);
        values.push(match dice.below(9) {
            0 => a.relu(),
            1 => a.neg(),
            2 => a.abs(),
            3..=5 => a.permute([1, 0]),
            6 => a.gt(b).choose(a, b),
            7 => a.slice(0, 0, 8, 1).pad([0, 0], [8, 0], dice.unit()),
            _ => a.tanh(),
        });
    }
    for (i, value) in values.iter().enumerate() {
        for use_ in 0..dice.below(3) {
            let rounded = value.cast(low);
            let y = match dice.below(6) {
                0 => rounded.contract(w, None),
                1 => rounded.cast(DType::F32).reduce_row(Some("sum")),
                2 => rounded,
                3 => rounded.cast(DType::F32).permute([1, 0]).exp(),
                4 => *value,
                _ => value.exp(),
            };
            t.output(&format!("y{i}_{use_}"), y);
        }
    }
    t.output("last", values[values.len() - 1].cast(low));
    let graph = verify(t.finish().expect("records"), Stage::Core).expect("well formed");
    verify(Simplify.run(&graph).expect("runs"), Stage::Core).expect("well formed")
}

/// As `Settings::default`.
const FUSION: Settings = Settings {
    prices: Prices::CPU,
    store_all: false,
    plan_memory: true,
    limits: KernelLimits::NONE,
};

#[test]
fn no_other_choice_of_copies_is_cheaper() {
    let (mut programs, mut ways, mut mixed) = (0, 0, 0);
    for seed in 0..1500 {
        let graph = program(&mut Dice::new(seed));
        let forecast = Forecast::of(&graph, &FUSION);
        let (choices, _) = choices(&graph, &demands(&graph), || &forecast);
        if !(1..=12).contains(&choices.choices.len()) {
            continue;
        }
        let cheapest = choices.cheapest();
        let least = choices.cost(|i| cheapest[i]);
        for way in 0..1_u32 << cheapest.len() {
            let other = choices.cost(|i| way >> i & 1 == 1);
            assert!(least <= other, "seed {seed}, {way:b}: {other:?} and {least:?}\n{}", *graph);
            ways += 1;
        }
        programs += 1;
        mixed += usize::from(cheapest.contains(&true) && cheapest.contains(&false));
    }
    assert!(
        programs > 1000 && ways > 4000 && mixed > 100,
        "{programs} programs, {ways} ways, {mixed} mixed"
    );
}

#[test]
fn the_best_choice_for_the_kernels_is_hardly_better() {
    for precision in Precision::ALL {
        let (mut ours, mut best, mut better, mut programs) = (0, 0, 0, 0);
        for seed in 0..400 {
            let graph = program(&mut Dice::new(seed));
            let (demands, forecast) = (demands(&graph), Forecast::of(&graph, &FUSION));
            let (_, takers) = choices(&graph, &demands, || &forecast);
            if !(1..=6).contains(&takers.len()) {
                continue;
            }
            let moved = |way: u32| {
                let takes = takers.iter().enumerate().map(|(i, taker)| {
                    let copies = taker.choice.is_some() && way >> i & 1 == 1;
                    (taker.node, Takes { copies, views: taker.views.clone() })
                });
                let placed = placed_with(&graph, &demands, &takes.collect()).expect("records");
                let graph = match precision {
                    Precision::Exact => placed,
                    Precision::Optimised => {
                        let forecast = Arc::new(Forecast::of(&placed, &FUSION));
                        relax::relaxed(placed, forecast, &FUSION).expect("records")
                    }
                };
                Forecast::of(&graph, &FUSION).moved
            };
            let own = Place::new(precision).run(&graph).expect("runs");
            let own = Forecast::of(&own, &FUSION).moved;
            let least = (0..1_u32 << takers.len()).map(moved).min().expect("a way");
            (ours, best) = (ours + own, best + least.min(own));
            better += usize::from(least < own);
            programs += 1;
        }
        let found = format!("{better} of {programs} could be better, {best} bytes, not {ours}");
        assert!(programs > 200 && better <= 3, "{precision}: {found}");
        assert!(ours * 1000 < best * 1001, "{precision}: {found}");
    }
}

#[test]
fn what_is_foretold_of_a_program_stays_with_it() {
    let mut moved = 0;
    for precision in Precision::ALL {
        for seed in 0..300 {
            let graph = program(&mut Dice::new(seed));
            let placed = Place::new(precision).run(&graph).expect("runs");
            let Some(kept) = placed.note::<Forecast>() else { continue };
            let now = Forecast::of(&placed, &FUSION);
            assert_eq!(kept.kernel, now.kernel, "{precision}, seed {seed}\n{placed}");
            assert_eq!(kept.inline, now.inline, "{precision}, seed {seed}\n{placed}");
            assert_eq!(kept.stored, now.stored, "{precision}, seed {seed}\n{placed}");
            assert_eq!(kept.moved, now.moved, "{precision}, seed {seed}\n{placed}");
            moved += usize::from(placed.to_string() != graph.to_string());
        }
    }
    assert!(moved > 300, "{moved} of the programs are others than before");
}
