//! Every optimizer over many steps against its formula, compiled against interpreted, and what a
//! skipped step leaves.

use crate::model::{self, Formula, Number, Settings};
use crate::{floats, noise, take, update_by_input};
use std::collections::BTreeMap;
use tracecast::optim::{Adagrad, Adam, AdamW, Lion, Optimizer, RmsProp, Sgd};
use tracecast::prelude::*;

struct Case {
    name: &'static str,
    rule: Make,
    formula: Formula,
    settings: Settings,
}

macro_rules! case {
    ($rule:expr, $formula:ident, { $($field:ident: $value:expr),* $(,)? }) => {
        Case {
            name: stringify!($rule),
            rule: || Box::new($rule),
            formula: model::$formula,
            settings: Settings { $($field: $value,)* ..Settings::default() },
        }
    };
}

fn cases() -> Vec<Case> {
    vec![
        case!(Sgd::new(0.1), sgd, { rate: 0.1 }),
        case!(Sgd::new(0.1).weight_decay(0.2).maximize(), sgd, { rate: 0.1, decay: 0.2, maximize: true }),
        case!(Sgd::new(0.05).momentum(0.9), sgd, { rate: 0.05, momentum: 0.9 }),
        case!(Sgd::new(0.05).momentum(0.9).dampening(0.5), sgd, { rate: 0.05, momentum: 0.9, dampening: 0.5 }),
        case!(Sgd::new(0.05).momentum(0.8).nesterov().weight_decay(0.01), sgd, { rate: 0.05, momentum: 0.8, nesterov: true, decay: 0.01 }),
        case!(Adam::new(0.01), adam, { rate: 0.01, betas: (0.9, 0.999), eps: 1e-8 }),
        case!(Adam::new(0.01).weight_decay(0.1).maximize(), adam, { rate: 0.01, betas: (0.9, 0.999), eps: 1e-8, decay: 0.1, maximize: true }),
        case!(Adam::new(0.01).betas(0.3, 0.0).eps(1e-3), adam, { rate: 0.01, betas: (0.3, 0.0), eps: 1e-3 }),
        case!(Adam::new(0.01).amsgrad(), adam, { rate: 0.01, betas: (0.9, 0.999), eps: 1e-8, amsgrad: true }),
        case!(AdamW::new(0.01), adamw, { rate: 0.01, betas: (0.9, 0.999), eps: 1e-8, decay: 0.01 }),
        case!(AdamW::new(0.01).weight_decay(0.0).betas(0.5, 0.9).amsgrad(), adamw, { rate: 0.01, betas: (0.5, 0.9), eps: 1e-8, amsgrad: true }),
        case!(Adagrad::new(0.1), adagrad, { rate: 0.1, eps: 1e-10 }),
        case!(Adagrad::new(0.1).rate_decay(0.1).weight_decay(0.1).initial_sum(0.5).eps(1e-4), adagrad, { rate: 0.1, eps: 1e-4, rate_decay: 0.1, decay: 0.1, start: 0.5 }),
        case!(Adagrad::new(0.1).maximize(), adagrad, { rate: 0.1, eps: 1e-10, maximize: true }),
        case!(RmsProp::new(0.01), rmsprop, { rate: 0.01, alpha: 0.99, eps: 1e-8 }),
        case!(RmsProp::new(0.01).momentum(0.9).weight_decay(0.1), rmsprop, { rate: 0.01, alpha: 0.99, eps: 1e-8, momentum: 0.9, decay: 0.1 }),
        case!(RmsProp::new(0.01).centered().alpha(0.4).eps(1e-2), rmsprop, { rate: 0.01, alpha: 0.4, eps: 1e-2, centered: true }),
        case!(RmsProp::new(0.01).centered().momentum(0.5).maximize().eps(1e-2), rmsprop, { rate: 0.01, alpha: 0.99, eps: 1e-2, centered: true, momentum: 0.5, maximize: true }),
        case!(Lion::new(0.01), lion, { rate: 0.01, betas: (0.9, 0.99) }),
        case!(Lion::new(0.01).betas(0.7, 0.8).weight_decay(0.3), lion, { rate: 0.01, betas: (0.7, 0.8), decay: 0.3 }),
    ]
}

/// Makes an optimizer.
pub(crate) type Make = fn() -> Box<dyn Optimizer>;

/// All of them with their settings.
pub(crate) fn all() -> Vec<(&'static str, Make)> {
    cases().into_iter().map(|case| (case.name, case.rule)).collect()
}

/// An optimizer that was chosen at run time.
pub(crate) struct Chosen(pub(crate) Box<dyn Optimizer>);

impl Optimizer for Chosen {
    fn moments(&self) -> &'static [&'static str] {
        self.0.moments()
    }

    fn counts_steps(&self) -> bool {
        self.0.counts_steps()
    }

    fn rule_for(&self, _: &str) -> Option<&dyn Optimizer> {
        Some(self.0.as_ref())
    }

    fn prepare<'t>(
        &self,
        t: &'t Trace,
        clock: tracecast::optim::Clock<'t>,
    ) -> tracecast::optim::Shared<'t> {
        self.0.prepare(t, clock)
    }

    fn advance<'t>(
        &self,
        shared: &tracecast::optim::Shared<'t>,
        param: Var<'t>,
        grad: Var<'t>,
        moments: &[Var<'t>],
    ) -> tracecast::optim::Next<'t> {
        self.0.advance(shared, param, grad, moments)
    }
}

const SIZE: usize = 37;
const STEPS: u64 = 60;

#[test]
fn many_steps_follow_the_formula() {
    for Case { name, rule, formula, settings } in cases() {
        let step = update_by_input(Options::new().threads(1), Chosen(rule()));
        let start = noise(1, SIZE);
        let mut store = Store::new().with("w", Tensor::new([SIZE], &start).unwrap());
        let mut numbers: Vec<Number> =
            start.iter().map(|w| Number { param: f64::from(*w), ..Number::default() }).collect();
        for seed in 0..STEPS {
            let grad = noise(seed + 100, SIZE);
            take(&step, &mut store, &grad, 0.0);
            for (number, grad) in numbers.iter_mut().zip(&grad) {
                formula(&settings, number, f64::from(*grad));
            }
        }
        for (found, number) in floats(&store, "w").iter().zip(&numbers) {
            let error = (f64::from(*found) - number.param).abs();
            assert!(error < 2e-5, "{name}: {found} and {}", number.param);
        }
    }
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.names().map(|name| (name.to_owned(), store.get(name).unwrap().bytes().to_vec())).collect()
}

#[test]
fn compiled_and_interpreted_steps_agree_to_the_bit() {
    let options =
        [Options::new().threads(1), Options::new().threads(2), Options::new().device("reference")];
    for Case { name, rule, .. } in cases() {
        let runs: Vec<_> = options
            .iter()
            .map(|options| {
                let step = update_by_input(options.clone(), Chosen(rule()));
                let mut store =
                    Store::new().with("w", Tensor::new([SIZE], &noise(2, SIZE)).unwrap());
                for seed in 0..5 {
                    take(&step, &mut store, &noise(seed + 7, SIZE), 0.0);
                }
                contents(&store)
            })
            .collect();
        assert!(runs[0] == runs[1] && runs[0] == runs[2], "{name}");
    }
}

#[test]
fn a_skipped_step_leaves_every_byte() {
    for Case { name, rule, .. } in cases() {
        let step = update_by_input(Options::new().threads(1), Chosen(rule()));
        let mut store = Store::new().with("w", Tensor::new([SIZE], &noise(3, SIZE)).unwrap());
        take(&step, &mut store, &noise(4, SIZE), 0.0);
        let before = contents(&store);
        take(&step, &mut store, &[f32::NAN; SIZE], 1.0);
        assert_eq!(before, contents(&store), "{name}");
        take(&step, &mut store, &noise(5, SIZE), 0.0);
        assert_ne!(before["w"], contents(&store)["w"], "{name}");
    }
}
