//! Training on many ranks against training on one: gradients, losses, skipped steps, settings, and
//! what is refused.

use crate::programs::DEADLINE;
use std::sync::Arc;
use tracecast::nn::{Dropout, Linear, Module, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, threads};
use tracecast::{DataParallel, Error, StepResult, TrainStepBuilder};

const ROWS: usize = 24;
const WIDTH: usize = 20;

pub(crate) fn model() -> Sequential {
    Sequential::new()
        .named("a", Linear::new(WIDTH, 32))
        .named("relu", Relu)
        .named("drop", Dropout::new(0.25))
        .named("b", Linear::new(32, 5))
}

fn builder(module: impl Module + 'static) -> TrainStepBuilder {
    TrainStep::new(module, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
        .options(Options::new().threads(1))
}

/// A batch of all ranks; every step has another one.
fn batch(step: usize) -> (Tensor, Tensor) {
    let x = Tensor::rand([ROWS, WIDTH], 10 + step as u64).unwrap();
    let y: Vec<i64> = (0..ROWS).map(|i| ((i * 7 + step * 3) % 5) as i64).collect();
    (x, Tensor::new([ROWS], &y).unwrap())
}

/// The rows of one of several ranks.
fn part((x, y): (Tensor, Tensor), rank: usize, size: usize) -> (Tensor, Tensor) {
    let rows = ROWS / size * rank..ROWS / size * (rank + 1);
    (x.slice(0, rows.clone()).unwrap(), y.slice(0, rows).unwrap())
}

/// What every rank says, each on a thread.
fn on_ranks<R: Send>(size: usize, body: impl Fn(Group) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks = threads(size, DEADLINE).into_iter();
        let started: Vec<_> = ranks.map(|rank| scope.spawn(move || body(rank))).collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The parameters and everything else, as bits.
fn bits(store: &Store) -> Vec<(String, Vec<u8>)> {
    let entry = |entry: tracecast::Result<(&str, Tensor)>| {
        let (name, value) = entry.unwrap();
        (name.to_owned(), value.bytes().to_vec())
    };
    store.iter().map(entry).collect()
}

/// Trains; the results of all steps, and what the store holds.
fn train(step: &DataParallel, steps: usize) -> (Vec<StepResult>, Store) {
    let mut store = Store::new();
    step.init(&mut store, 3).unwrap();
    let results = (0..steps).map(|at| {
        let (x, y) = part(batch(at), step.rank(), step.size());
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap()
    });
    (results.collect(), store)
}

/// The step in f32, or in 16 bits: f16 with a scaled loss.
fn in_dtype(step: TrainStepBuilder, dtype: DType) -> TrainStepBuilder {
    match dtype {
        DType::F16 => step.autocast("cpu", dtype).scaler(ScalerOptions::default()),
        DType::BF16 => step.autocast("cpu", dtype),
        _ => step,
    }
}

/// With plain gradient descent at a rate of 1, the step that parameters take is the gradient.
#[test]
fn the_first_gradients_are_those_of_the_whole_batch() {
    let bounds = [(DType::F32, 1e-6), (DType::F16, 1.0 / 256.0), (DType::BF16, 1.0 / 256.0)];
    for (dtype, bound) in bounds {
        let step = in_dtype(builder(model()).optimizer(Sgd::new(1.0)), dtype).build().unwrap();
        let mut start = Store::new();
        step.init(&mut start, 3).unwrap();
        let mut alone = start.try_clone().unwrap();
        let (x, y) = batch(0);
        let wanted = step.run(&mut alone, &[("x", &x), ("y", &y)]).unwrap();
        // With a third of the rows, gradients of rows are three times as large, and rounded to
        // other 16 bits.
        let sizes: &[usize] = if dtype == DType::F32 { &[2, 3, 4] } else { &[2, 4] };
        for &size in sizes {
            let found = on_ranks(size, |rank| train(&step.data_parallel(rank), 1));
            for (results, store) in &found {
                assert!((results[0].loss - wanted.loss).abs() < 1e-5 * wanted.loss, "{size} ranks");
                assert_eq!(bits(store), bits(&found[0].1));
                for name in step.parameters() {
                    let values = |store: &Store| store.get(&name).unwrap().to_vec::<f32>().unwrap();
                    let (w, one, many) = (values(&start), values(&alone), values(store));
                    let gradient = |new: &[f32]| -> Vec<f32> {
                        w.iter().zip(new).map(|(w, n)| w - n).collect()
                    };
                    let (one, many) = (gradient(&one), gradient(&many));
                    let largest = one.iter().fold(0f32, |a, b| a.max(b.abs()));
                    assert!(largest > 0.0, "{name} has a gradient");
                    for (a, b) in one.iter().zip(&many) {
                        // A parameter near 1 rounds its difference to 2^-24.
                        let bound = bound * largest + 1.2e-7;
                        assert!((a - b).abs() <= bound, "{dtype}, {name} on {size}: {a} {b}");
                    }
                }
            }
        }
    }
}

/// What ranks add up is not rounded to 16 bits before, so that in these losses differ from those of
/// one rank no more than in f32 is allowed.
#[test]
fn an_epoch_has_the_losses_of_one_rank_and_the_same_bits_each_time() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let step = in_dtype(builder(model()).optimizer(AdamW::new(1e-2)), dtype);
        let step = step.clip(tracecast::optim::Clip::norm(1.0)).ema(0.9).build().unwrap();
        let mut alone = Store::new();
        step.init(&mut alone, 3).unwrap();
        let losses: Vec<f32> = (0..12)
            .map(|at| {
                let (x, y) = batch(at);
                step.run(&mut alone, &[("x", &x), ("y", &y)]).unwrap().loss
            })
            .collect();
        let once = |size| on_ranks(size, |rank| train(&step.data_parallel(rank), 12));
        for size in [2, 4] {
            let (first, again) = (once(size), once(size));
            let off = |(result, wanted): (&StepResult, &f32)| (result.loss - wanted).abs() / wanted;
            let most = first[0].0.iter().zip(&losses).map(off).fold(0f32, f32::max);
            println!("{dtype} on {size} ranks: losses differ by {most:.1e} of one rank's at most");
            for (rank, (results, store)) in first.iter().enumerate() {
                for (at, result) in results.iter().enumerate() {
                    let (found, wanted) = (result.loss, losses[at]);
                    assert!(
                        (found - wanted).abs() < 1e-3 * wanted,
                        "{dtype}, step {at}: {found} for {wanted}"
                    );
                    assert_eq!(found.to_bits(), first[0].0[at].loss.to_bits());
                    assert_eq!(found.to_bits(), again[rank].0[at].loss.to_bits());
                }
                assert_eq!(bits(store), bits(&first[0].1), "all ranks have the same");
                assert_eq!(bits(store), bits(&again[rank].1), "so they have each time");
            }
        }
    }
}

const NAMES: [&str; 5] = ["kept", "turned", "two", "three", "four"];

#[test]
fn what_is_drawn_is_what_a_run_with_all_rows_draws() {
    // The loss is the number of what was kept: with the rows divided, each rank keeps its own.
    let step = TrainStep::new(
        Sequential::new().named("lin", Linear::new(WIDTH, 1)).named("drop", Dropout::new(0.5)),
        |t, model| {
            let ones = t.ones_like(t.input("x"));
            let kept = Dropout::new(0.5).forward(&tracecast::nn::Context::training(t), ones);
            t.output("kept", kept);
            // Rows on the second axis.
            let turned = Dropout::new(0.25)
                .forward(&tracecast::nn::Context::training(t), ones.permute([1, 0]));
            t.output("turned", turned.permute([1, 0]));
            // Weights of attention, of rows as queries and of rows as batches, with heads and
            // without.
            let rng = t.constant(DType::I64, &[2], &[5.0, 6.0]);
            let (rows, none) = (ones.size(0), None::<Var<'_>>);
            let of_rows = ones.slice(1, 0, 2, 1);
            let keys = t.ones(TensorType::new(DType::F32, [5, 2]));
            let batch =
                of_rows.reshape(sizes![rows, 1, 2]).expand_to(&Shape::new(&sizes![rows, 5, 2]));
            let heads =
                batch.reshape(sizes![rows, 1, 5, 2]).expand_to(&Shape::new(&sizes![rows, 3, 5, 2]));
            for (name, q, k) in
                [("two", of_rows, keys), ("three", batch, batch), ("four", heads, heads)]
            {
                let y = q.scaled_dot_product_attention(k, k, none, rng, 0.5, false, None, false, 9);
                t.output(name, y);
            }
            (model.forward(t.input("x")) * 0.0).sum(())
        },
    )
    .optimizer(Sgd::new(0.1))
    .options(Options::new().threads(1))
    .build()
    .unwrap();
    let mut alone = Store::new();
    step.init(&mut alone, 3).unwrap();
    let (x, _) = batch(0);
    let wanted = step.run(&mut alone, &[("x", &x)]).unwrap();
    for size in [2, 3] {
        let found = on_ranks(size, |rank| {
            let step = step.data_parallel(rank);
            let mut store = Store::new();
            step.init(&mut store, 3).unwrap();
            let (x, _) = part(batch(0), step.rank(), size);
            let out = step.run(&mut store, &[("x", &x)]).unwrap();
            NAMES.map(|name| out.outputs[name].to_vec::<f32>().unwrap())
        });
        for (at, name) in NAMES.into_iter().enumerate() {
            let all: Vec<f32> = found.iter().flat_map(|of| of[at].iter().copied()).collect();
            assert_eq!(
                all,
                wanted.outputs[name].to_vec::<f32>().unwrap(),
                "{name} on {size} ranks"
            );
        }
    }
}

#[test]
fn an_inf_on_one_rank_skips_the_step_on_all() {
    let step = builder(model())
        .optimizer(AdamW::new(1e-2))
        .autocast("cpu", DType::F16)
        .scaler(ScalerOptions::default())
        .build()
        .unwrap();
    for bad in 0..3 {
        let found = on_ranks(3, |rank| {
            let step = step.data_parallel(rank);
            let mut store = Store::new();
            step.init(&mut store, 3).unwrap();
            let mut told = Vec::new();
            for at in 0..4 {
                let (mut x, y) = part(batch(at), step.rank(), 3);
                if step.rank() == bad && at % 2 == 1 {
                    let mut numbers = x.to_vec::<f32>().unwrap();
                    numbers[7] = f32::INFINITY;
                    x = Tensor::new([8, WIDTH], &numbers).unwrap();
                }
                let before = store.get("a.weight").ok();
                let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
                assert_eq!(done.skipped, before == store.get("a.weight").ok());
                told.push((done.skipped, store.get("amp.scale").unwrap().item::<f32>().unwrap()));
            }
            (told, bits(&store))
        });
        for (told, bits) in &found {
            let expected = [(false, 65536.0), (true, 32768.0), (false, 32768.0), (true, 16384.0)];
            assert_eq!(told[..], expected, "an inf on rank {bad}");
            assert_eq!(*bits, found[0].1);
        }
    }
}

#[test]
fn a_parameter_that_no_loss_uses_gets_zeros() {
    let unused =
        Sequential::new().named("a", Linear::new(WIDTH, 5)).named("unused", Linear::new(3, 3));
    let step = TrainStep::new(unused, |t, model| {
        let y = t.input("x").linear(t.param("a.weight"), t.param("a.bias"));
        let _ = model;
        let _ = (t.param("unused.weight"), t.param("unused.bias"));
        y.cross_entropy(t.input("y"))
    })
    .optimizer(Sgd::new(0.5))
    .options(Options::new().threads(1))
    .build()
    .unwrap();
    let found = on_ranks(2, |rank| {
        let step = step.data_parallel(rank);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        let before = store.get("unused.weight").unwrap();
        let (x, y) = part(batch(0), step.rank(), 2);
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        before == store.get("unused.weight").unwrap()
    });
    assert_eq!(found, [true, true]);
}

#[test]
fn micro_batches_exchange_their_sum_alone() {
    let step =
        builder(model()).optimizer(AdamW::new(1e-2)).micro_batches(2, &["x", "y"]).build().unwrap();
    let whole = builder(model()).optimizer(AdamW::new(1e-2)).build().unwrap();
    let reduced = |step: &TrainStep| {
        let of_rank = |rank| {
            let results = train(&step.data_parallel(rank), 2).0;
            results[1].exchanges.iter().map(|exchange| exchange.bytes).sum::<usize>()
        };
        on_ranks(2, of_rank)[0]
    };
    assert_eq!(reduced(&step), reduced(&whole));
    let parameters = WIDTH * 32 + 32 + 32 * 5 + 5;
    assert_eq!(reduced(&step), 4 * (parameters + 1), "and the loss");
}

#[test]
fn uneven_batches_are_an_error_unless_asked_for() {
    let step = builder(Linear::new(WIDTH, 5)).optimizer(Sgd::new(1.0)).build().unwrap();
    let rows = |rank: usize| if rank == 0 { 0..16 } else { 16..24 };
    let run = |rank: Group, uneven: bool| {
        let step = step.data_parallel(rank).uneven(uneven);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        let rows = rows(step.rank());
        let (x, y) = batch(0);
        let (x, y) = (x.slice(0, rows.clone()).unwrap(), y.slice(0, rows).unwrap());
        let result = step.run(&mut store, &[("x", &x), ("y", &y)]);
        (result.map(|r| r.loss), bits(&store))
    };
    for (result, _) in on_ranks(2, |rank| run(rank, false)) {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains(
                "disagree on the input `x`: rank 0 has f32[16, 20], rank 1 has f32[8, 20]"
            ),
            "{error}"
        );
    }
    let mut alone = Store::new();
    step.init(&mut alone, 3).unwrap();
    let (x, y) = batch(0);
    let wanted = step.run(&mut alone, &[("x", &x), ("y", &y)]).unwrap().loss;
    let found = on_ranks(2, |rank| run(rank, true));
    for (loss, bits) in &found {
        let loss = loss.as_ref().unwrap();
        assert!((loss - wanted).abs() < 1e-5 * wanted, "{loss} for {wanted}");
        assert_eq!(*bits, found[0].1);
    }
    for ((name, a), (_, b)) in found[0].1.iter().zip(&bits(&alone)) {
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        for (a, b) in floats(a).iter().zip(&floats(b)) {
            assert!((a - b).abs() < 1e-6, "{name}: {a} for {b}");
        }
    }
}

#[test]
fn a_batch_that_changes_on_one_rank_is_told() {
    let step = builder(Linear::new(WIDTH, 5)).optimizer(Sgd::new(1.0)).build().unwrap();
    let found = on_ranks(2, |rank| {
        let step = step.data_parallel(rank);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        let (x, y) = part(batch(0), step.rank(), 2);
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        let before = bits(&store);
        let rows = if step.rank() == 1 { 0..7 } else { 0..12 };
        let (x, y) = (x.slice(0, rows.clone()).unwrap(), y.slice(0, rows).unwrap());
        let error = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err();
        assert_eq!(bits(&store), before, "a failed step leaves the store as it was");
        error
    });
    for (rank, error) in found.iter().enumerate() {
        let Error::Rank { rank: named, step: 1, .. } = error else { panic!("{error}") };
        assert_eq!(*named, 1 - rank, "{error}");
        assert!(error.to_string().contains("runs another program here"), "{error}");
    }
}

#[test]
fn ranks_that_disagree_are_told_before_the_first_step() {
    let refused = |change: &(dyn Fn(usize, &mut Store) + Sync), rate: fn(usize) -> f64| {
        let found = on_ranks(2, |rank| {
            let at = tracecast::runtime::Collective::rank(&rank);
            let step = builder(model()).optimizer(Sgd::new(rate(at))).build().unwrap();
            let step = step.data_parallel(rank);
            let mut store = Store::new();
            step.init(&mut store, 3).unwrap();
            change(at, &mut store);
            let (x, y) = part(batch(0), at, 2);
            step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string()
        });
        assert_eq!(found[0], found[1]);
        found[0].clone()
    };
    let error = refused(&|_, _| (), |rank| 0.1 + rank as f64);
    assert!(error.contains("disagree on the program"), "{error}");
    let other = |rank: usize, store: &mut Store| {
        if rank == 1 {
            store.insert("b.bias", Tensor::rand([5], 9).unwrap());
        }
    };
    let error = refused(&other, |_| 0.1);
    assert!(error.contains("disagree on the value of `b.bias`"), "{error}");
    let seed = |rank: usize, store: &mut Store| {
        store.insert("rng", Tensor::new([2], &[rank as i64, 0]).unwrap());
    };
    let error = refused(&seed, |_| 0.1);
    assert!(error.contains("disagree on the value of `rng`"), "{error}");
}

#[test]
fn a_state_goes_on_with_another_number_of_ranks() {
    let folder = std::env::temp_dir().join(format!("tracecast-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = Arc::new(folder.join("state.safetensors"));
    let step = builder(model()).optimizer(AdamW::new(1e-2)).build().unwrap();
    let saved = on_ranks(2, |rank| {
        let step = step.data_parallel(rank);
        let (_, store) = train(&step, 2);
        step.save(&store, &*file).unwrap();
        let (x, y) = part(batch(2), step.rank(), 2);
        let mut store = store;
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        bits(&store)
    });
    // The same number goes on bit for bit, another one as closely as sums in another order are.
    let resumed = |size: usize| {
        on_ranks(size, |rank| {
            let step = step.data_parallel(rank).from_step(2);
            let mut store = Store::new();
            step.load(&mut store, &*file, &tracecast::checkpoint::Load::strict()).unwrap();
            let (x, y) = part(batch(2), step.rank(), size);
            let done = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
            (bits(&store), done.loss)
        })
    };
    let two = resumed(2);
    assert_eq!(two[0].0, saved[0]);
    for (_, loss) in resumed(4) {
        assert!((loss - two[0].1).abs() < 1e-5, "{loss} for {}", two[0].1);
    }
    // A file that cannot be written is told on all ranks.
    let nowhere = folder.join("no/such/folder/state");
    for error in on_ranks(2, |rank| {
        let step = step.data_parallel(rank);
        let (_, store) = train(&step, 1);
        step.save(&store, &nowhere).unwrap_err().to_string()
    }) {
        assert!(error.contains("no/such/folder"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn numbers_of_evaluations_are_means_over_rows() {
    let step = builder(Linear::new(WIDTH, 5)).optimizer(Sgd::new(1.0)).build().unwrap();
    let found = on_ranks(3, |rank| {
        let step = step.data_parallel(rank);
        let own = step.rank() as f64;
        (step.mean(&[own, 1.0], step.rank() + 1).unwrap(), step.mean(&[1.0], 0).unwrap_err())
    });
    for (mean, nothing) in found {
        assert_eq!(mean, [8.0 / 6.0, 1.0]);
        assert!(nothing.to_string().contains("no rows"), "{nothing}");
    }
}

/// Otherwise the others would wait, and take its next batch for this one.
#[test]
fn a_rank_that_fails_by_itself_ends_the_others() {
    let step = builder(model()).optimizer(Sgd::new(0.1)).build().unwrap();
    let found = on_ranks(3, |rank| {
        let step = step.data_parallel(rank);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        let (x, mut y) = part(batch(0), step.rank(), step.size());
        step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        let before = bits(&store);
        if step.rank() == 1 {
            y = Tensor::new([ROWS / 3], &[5i64; ROWS / 3]).unwrap();
        }
        let start = std::time::Instant::now();
        let first = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string();
        assert!(start.elapsed() < DEADLINE / 2, "{:?}", start.elapsed());
        assert_eq!(bits(&store), before);
        let (x, y) = part(batch(1), step.rank(), step.size());
        let again = step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap_err().to_string();
        (first, again)
    });
    for (rank, (first, again)) in found.into_iter().enumerate() {
        assert!(
            first.contains('5') && (rank == 1 || first.contains("rank 1 has failed")),
            "{first}"
        );
        assert!(again.contains("rank 1 has failed"), "{again}");
    }
}

#[test]
fn uneven_ranks_disagree_on_the_program_or_on_rows() {
    let run = |rates: [f64; 2], rows: [usize; 2]| {
        on_ranks(2, |rank| {
            let at = rank.rank();
            let step = builder(model()).optimizer(Sgd::new(rates[at])).build().unwrap();
            let step = step.data_parallel(rank).uneven(true);
            let mut store = Store::new();
            step.init(&mut store, 3).unwrap();
            let (x, y) = batch(0);
            let (x, y) = (x.slice(0, ..rows[at]).unwrap(), y.slice(0, ..rows[at]).unwrap());
            step.run(&mut store, &[("x", &x), ("y", &y)]).map(drop).map_err(|e| e.to_string())
        })
    };
    assert_eq!(run([0.1, 0.1], [5, 9]), [Ok(()), Ok(())]);
    for error in run([0.1, 0.2], [5, 9]) {
        let error = error.unwrap_err();
        assert!(error.contains("the ranks disagree on the program"), "{error}");
    }
    for error in run([0.1, 0.1], [5, 0]) {
        assert_eq!(error.unwrap_err(), "ranks: rank 1 has no rows of a batch of 5");
    }
}

#[test]
fn a_rank_without_rows_adds_nothing_to_a_mean() {
    let step = builder(model()).optimizer(Sgd::new(0.1)).build().unwrap();
    let means = on_ranks(2, |rank| {
        let (number, rows) = [(2.5, 4), (f64::NAN, 0)][rank.rank()];
        step.data_parallel(rank).mean(&[number], rows).unwrap()
    });
    assert_eq!(means, [[2.5], [2.5]]);
}

/// Running means, say: the program for a last batch of another size is compared when they differ
/// already.
#[test]
fn state_that_ranks_write_from_their_own_rows_is_not_compared() {
    let step = TrainStep::new(Linear::new(WIDTH, 5), |t, model| {
        let start = tracecast::Start::Constant(0.0);
        let ty = TensorType::new(DType::F32, [WIDTH]);
        let seen = t.state_from(tracecast::Entry::state("seen", ty, start));
        let x = t.input("x");
        t.update(seen, seen * 0.9 + x.mean(0) * 0.1);
        model.forward(x).cross_entropy(t.input("y"))
    })
    .optimizer(Sgd::new(0.1))
    .options(Options::new().threads(1))
    .build()
    .unwrap();
    let found = on_ranks(2, |rank| {
        let step = step.data_parallel(rank);
        let mut store = Store::new();
        step.init(&mut store, 3).unwrap();
        for rows in [12, 4] {
            let (x, y) = part(batch(0), step.rank(), 2);
            let (x, y) = (x.slice(0, ..rows).unwrap(), y.slice(0, ..rows).unwrap());
            step.run(&mut store, &[("x", &x), ("y", &y)]).unwrap();
        }
        let warnings = step.report().unwrap().warnings;
        let told = warnings.iter().filter(|warning| warning.message.contains("`seen`")).count();
        (store.get("seen").unwrap(), store.get("weight").unwrap(), told)
    });
    assert_ne!(found[0].0, found[1].0);
    assert_eq!(found[0].1, found[1].1);
    assert_eq!([found[0].2, found[1].2], [1, 1]);
}
