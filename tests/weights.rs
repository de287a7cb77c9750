//! Packed weights that are kept from run to run do not show: results are those of the weights as
//! they are, whatever changed them, and what is kept is counted and can be switched off.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::sync::Arc;
use tracecast::nn::{Context, Frozen, Linear, Lstm, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::npz;
use tracecast::{Jit, Vectors, jit};

const INPUTS: usize = 70;
const OUTPUTS: usize = 130;

fn weight(seed: u64) -> Tensor {
    Tensor::randn([OUTPUTS, INPUTS], seed).unwrap()
}

/// A linear layer, in f32 or under autocast.
fn layer(options: &Options, dtype: DType) -> Jit {
    jit(options.clone(), move |t| {
        let (x, w) =
            (t.input("x"), t.param_of("w", TensorType::new(DType::F32, [OUTPUTS, INPUTS])));
        let y = || x.linear(w, None);
        t.output("y", if dtype == DType::F32 { y() } else { autocast(t, "cpu", dtype, y) });
    })
}

/// A program that gives the weight another value.
fn update(options: Options, by: f64) -> Jit {
    jit(options, move |t| {
        let w = t.param("w");
        t.update(w, w * by + 0.25);
    })
}

fn run(program: Jit, store: &mut Store) {
    program.run(store, &[]).unwrap();
}

/// Programs that only read the weight, each with one that forgets it and has a store of its own.
struct Readers {
    options: Options,
    pairs: Vec<(Jit, Jit, Tensor)>,
}

impl Readers {
    fn new(options: Options) -> Self {
        let forgets = options.clone().keep_weights(false);
        let pair = |(dtype, rows): (DType, usize)| {
            let x = Tensor::randn([rows, INPUTS], rows as u64).unwrap();
            (layer(&options, dtype), layer(&forgets, dtype), x)
        };
        let kinds = [
            (DType::F32, 1),
            (DType::F32, 20),
            (DType::BF16, 1),
            (DType::BF16, 9),
            (DType::F16, 9),
        ];
        let pairs = kinds.into_iter().map(pair).collect();
        Readers { options, pairs }
    }

    /// Runs all, more often than it takes to keep something.
    fn check(&self, store: &mut Store, after: &str) {
        for (keeps, forgets, x) in &self.pairs {
            let mut copy = Store::new().with("w", store.get("w").unwrap());
            let want = forgets.run(&mut copy, &[("x", x)]).unwrap();
            for run in 0..6 {
                let found = keeps.run(store, &[("x", x)]).unwrap();
                let here = format!("run {run} after {after}, {:?}", self.options);
                assert_eq!(found["y"].bytes(), want["y"].bytes(), "{here}");
            }
        }
    }
}

/// Everything that changes a weight, or puts another one under its name.
type Change = Box<dyn Fn(&mut Store, &Options)>;

fn changes() -> Vec<(&'static str, Change)> {
    fn named(
        name: &'static str,
        change: impl Fn(&mut Store, &Options) + 'static,
    ) -> (&'static str, Change) {
        (name, Box::new(change))
    }
    vec![
        named("set", |store, _| store.set("w", &weight(10)).unwrap()),
        named("insert", |store, _| store.insert("w", weight(11))),
        named("remove and insert", |store, _| {
            let w = store.remove("w").unwrap();
            let doubled: Vec<f32> = w.to_vec::<f32>().unwrap().iter().map(|w| w * 2.0).collect();
            store.insert("w", Tensor::new([OUTPUTS, INPUTS], &doubled).unwrap());
        }),
        named("an entry of another store in its place", |store, options| {
            let mut other = Store::new().with("v", weight(12));
            // It lives on the device when it comes.
            let half = jit(options.clone(), |t| t.output("y", t.param("v") * 0.5));
            run(half, &mut other);
            other.transfer("v", store, "w").unwrap();
        }),
        named("going to another store and coming back changed", |store, options| {
            let mut other = Store::new();
            store.transfer("w", &mut other, "w").unwrap();
            run(update(options.clone(), 0.5), &mut other);
            other.transfer("w", store, "w").unwrap();
        }),
        named("an update by another program", |store, options| {
            run(update(options.clone(), -1.5), store);
        }),
        named("two such updates in a row", |store, options| {
            let update = update(options.clone(), 0.75);
            (0..2).for_each(|_| drop(update.run(store, &[]).unwrap()));
        }),
        named("an exchange of two entries", |store, options| {
            store.insert("v", weight(13));
            let exchange = jit(options.clone(), |t| {
                let (v, w) = (t.param("v"), t.param("w"));
                t.update(v, w);
                t.update(w, v);
            });
            run(exchange, store);
        }),
        named("an update on other threads", |store, options| {
            run(update(options.clone().threads(3), -0.5), store);
        }),
        named("an update by the interpreter", move |store, _| {
            run(update(Options::new().device("reference"), -1.25), store);
        }),
        named("an optimizer's step", |store, options| {
            let step = jit(options.clone(), |t| {
                let (x, w) = (t.input("x"), t.param("w"));
                let rule = Sgd::new(0.1);
                let mut optimizer = Recorded::new(t, &rule, &[w]);
                optimizer.backward(x.linear(w, None).mean(()));
                optimizer.step();
            });
            let x = Tensor::randn([6, INPUTS], 14).unwrap();
            step.run(store, &[("x", &x)]).unwrap();
        }),
        named("a step that fails", |store, options| {
            let step = jit(options.clone(), |t| {
                let (w, table) = (t.param("w"), t.input("table"));
                t.output("rows", table.embedding(t.input("at")));
                t.update(w, w * 3.0);
            });
            let at = Tensor::new([1], &[99i64]).unwrap();
            let inputs = [("table", &Tensor::randn([4, 2], 1).unwrap()), ("at", &at)];
            assert!(step.run(store, &inputs).is_err());
        }),
        named("a file", |store, _| {
            let path = std::env::temp_dir().join(format!("weights-{}.npz", std::process::id()));
            npz::write(&path, [("w", &weight(15))]).unwrap();
            let read = npz::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            read.iter().for_each(|(name, value)| store.set(name, value).unwrap());
        }),
    ]
}

#[test]
fn every_change_of_a_weight_is_noticed() {
    let settings = [
        (1, Vectors::Native),
        (2, Vectors::Native),
        (8, Vectors::Native),
        (2, Vectors::Avx2),
        (2, Vectors::Portable),
    ];
    for options in settings.map(|(n, vectors)| Options::new().threads(n).vectors(vectors)) {
        let readers = Readers::new(options.clone());
        let mut store = Store::new().with("w", weight(1));
        readers.check(&mut store, "the start");
        for (name, change) in changes() {
            let before = store.get("w").unwrap();
            change(&mut store, &options);
            let is_other = store.get("w").unwrap() != before;
            assert_eq!(is_other, name != "a step that fails", "{name}");
            readers.check(&mut store, name);
        }
    }
}

/// One program, several stores in turn: each has what belongs to it.
#[test]
fn stores_do_not_share_what_is_kept() {
    let readers = Readers::new(Options::new().threads(1));
    let mut stores: Vec<Store> = (0..3).map(|seed| Store::new().with("w", weight(seed))).collect();
    for round in 0..3 {
        for store in &mut stores {
            readers.check(store, "another store");
        }
        stores[round].set("w", &weight(20 + round as u64)).unwrap();
    }
}

/// Threads with a store each run one program at the same time, and change their weights.
#[test]
fn threads_do_not_share_what_is_kept() {
    let readers = Arc::new(Readers::new(Options::new().threads(2)));
    let one = |seed: u64| {
        let readers = readers.clone();
        std::thread::spawn(move || {
            let mut store = Store::new().with("w", weight(seed));
            for round in 0..4 {
                readers.check(&mut store, "another thread");
                store.set("w", &weight(100 * seed + round)).unwrap();
            }
        })
    };
    (1..4).map(one).collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_is_kept_is_counted() {
    let store = Store::new().with("w", weight(1));
    let x = Tensor::randn([9, INPUTS], 1).unwrap();
    let report =
        |options: Options| layer(&options, DType::BF16).prepare(&store, &[("x", &x)]).unwrap();
    let (keeps, forgets) = (report(Options::new()), report(Options::new().keep_weights(false)));
    let values = OUTPUTS * INPUTS;
    assert!((2 * values..6 * values).contains(&keeps.kept_bytes), "{}", keeps.kept_bytes);
    assert_eq!((forgets.kept_bytes, forgets.peak_bytes), (0, keeps.peak_bytes));
    assert!(keeps.to_string().contains("kept") && !forgets.to_string().contains("kept"));
}

/// A step keeps the weights of layers that are frozen, and nothing of those that it trains.
#[test]
fn frozen_layers_are_kept() {
    let kept = |model: Sequential| {
        let step = TrainStep::new(model, |t, model| {
            model.forward(t.input("x")).cross_entropy(t.input("y"))
        })
        .optimizer(Sgd::new(0.1))
        .build()
        .unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let x = Tensor::randn([8, 32], 1).unwrap();
        let y = Tensor::new([8], &[1i64; 8]).unwrap();
        (0..6).for_each(|_| drop(step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap()));
        step.jit().report().unwrap().kept_bytes
    };
    let (first, second) = (Linear::new(32, 48), Linear::new(48, 10));
    let trained =
        Sequential::new().named("a", first.clone()).named("r", Relu).named("b", second.clone());
    let frozen = Sequential::new().named("a", Frozen(first)).named("r", Relu).named("b", second);
    assert_eq!(kept(trained), 0);
    assert!((32 * 48 * 4..=32 * 64 * 4).contains(&kept(frozen)));
}

struct Recurrent;

impl Module for Recurrent {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        cx.apply("lstm", &Lstm::new(24, 40).batch_first(), x).0
    }
}

/// A training step reads the weights of a recurrent layer at every position, and keeps them until
/// it updates them. Programs that read them between the steps find what they are.
#[test]
fn recurrent_weights_are_kept_within_a_step() {
    let evaluation = jit(Options::new(), |t| {
        t.output("y", Recurrent.forward(&Context::evaluation(t), t.input("x")));
    });
    let trained = |options: Options, dtype: DType| {
        let step = TrainStep::new(Recurrent, |t, model| {
            model.forward(t.input("x")).mse_loss(t.input("y"), None)
        });
        let step = step.optimizer(Sgd::new(0.5)).options(options);
        let step = if dtype == DType::F32 { step } else { step.autocast("cpu", dtype) };
        let step = step.build().unwrap();
        let mut store = Store::new();
        step.init(&mut store, 0).unwrap();
        let x = Tensor::randn([12, 48, 24], 1).unwrap();
        let y = Tensor::randn([12, 48, 40], 2).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap().loss);
            // Often enough for a copy of its own.
            for _ in 0..5 {
                let y = evaluation.run(&mut store, &[("x", &x)]).unwrap()["y"].clone();
                seen.push(y.to_f64s().iter().sum::<f64>() as f32);
            }
        }
        (seen, step.jit().report().unwrap().kept_bytes)
    };
    for dtype in [DType::F32, DType::BF16] {
        let (keeps, kept) = trained(Options::new(), dtype);
        let (forgets, none) = trained(Options::new().keep_weights(false), dtype);
        assert_eq!(keeps, forgets, "{dtype}");
        assert!(kept > 0 && none == 0, "{dtype}: {kept}, {none}");
    }
}

/// A module that is evaluated while it is trained is evaluated as it is.
#[test]
fn training_and_evaluation_in_turn() {
    let model = || {
        Sequential::new()
            .named("a", Linear::new(24, 40))
            .named("r", Relu)
            .named("b", Linear::new(40, 6))
    };
    let step =
        TrainStep::new(model(), |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
            .optimizer(Sgd::new(0.5))
            .build()
            .unwrap();
    let evaluation = |options: Options| {
        let model = model();
        jit(options, move |t| t.output("y", model.forward(&Context::evaluation(t), t.input("x"))))
    };
    let (keeps, forgets) =
        (evaluation(Options::new()), evaluation(Options::new().keep_weights(false)));
    let mut store = Store::new();
    step.init(&mut store, 0).unwrap();
    let x = Tensor::randn([12, 24], 1).unwrap();
    let y = Tensor::new([12], &[2i64; 12]).unwrap();
    let mut last = None;
    for epoch in 0..7 {
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        let copies = store.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>();
        let mut copy: Store = copies.into_iter().collect();
        let want = forgets.run(&mut copy, &[("x", &x)]).unwrap()["y"].clone();
        for _ in 0..=epoch {
            assert_eq!(keeps.run(&mut store, &[("x", &x)]).unwrap()["y"], want);
        }
        assert_ne!(last.replace(want.clone()), Some(want));
    }
}
