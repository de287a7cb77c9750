//! Ranks that are late, leave, or do something else: the others end with an error that names them,
//! and state is as it was.

use crate::programs::DEADLINE;
use crate::support;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracecast_ir::op::Across;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, TensorType, Tracer, Verified};
use tracecast_runtime::collective::{Collective, Group, Label, Transfer, agree, threads};
use tracecast_runtime::{Error, Executable, Program, Store, Tensor};

const SUM: Transfer = Transfer::Reduce { across: Across::Sum, dtype: DType::F32 };

/// Two reductions, and state that moves by the second.
fn step(ranks: i64) -> Verified {
    let tracer = Tracer::new("step");
    {
        let t = &tracer;
        let (x, w) = (
            t.input("x", TensorType::new(DType::F32, [8])),
            t.param("w", TensorType::new(DType::F32, [8])),
        );
        let a = x.mul(w).all_reduce(Some("sum"), ranks);
        let b = a.exp().all_reduce(Some("sum"), ranks);
        t.update(w, w.sub(b));
        t.output("a", a);
    }
    support::lowered(tracer.finish().unwrap()).unwrap().1
}

fn loaded(fused: &Verified) -> Executable {
    Program::plan(fused).unwrap().load(support::cpu(1)).unwrap()
}

fn store() -> Store {
    Store::new().with("w", Tensor::rand([8], 3).unwrap())
}

/// Takes two steps; the second is not to succeed.
fn two_steps(rank: Group) -> (Error, Duration) {
    let program = loaded(&step(3)).on_ranks(Arc::new(rank), 1).unwrap();
    program.at_step(10);
    let (mut store, x) = (store(), Tensor::rand([8], 4).unwrap());
    program.run(&mut store, &[("x", &x)]).unwrap();
    let before = store.get("w").unwrap();
    let start = Instant::now();
    let error = program.run(&mut store, &[("x", &x)]).unwrap_err();
    assert_eq!(store.get("w").unwrap(), before, "a failed step leaves state as it was");
    (error, start.elapsed())
}

/// Takes part in the first step, and in `more` transfers of the second.
fn first_step_only(rank: &dyn Collective, more: u64) {
    for at in 0..2 + more {
        let label = Label { program: 1, step: 10 + at / 2, bucket: at % 2 };
        let data = [0.5f32; 8].map(f32::to_le_bytes).concat();
        rank.wait(rank.start(SUM, label, data).unwrap()).unwrap();
    }
}

#[test]
fn a_late_rank_is_named_within_the_deadline() {
    let deadline = Duration::from_millis(600);
    for (more, bucket) in [(0, 0), (1, 1)] {
        let mut ranks = threads(3, deadline);
        let late = ranks.remove(1);
        std::thread::scope(|scope| {
            let others: Vec<_> = ranks.into_iter().map(|r| scope.spawn(|| two_steps(r))).collect();
            first_step_only(&late, more);
            for other in others {
                let (error, time) = other.join().unwrap();
                let Error::Rank { rank, step, bucket: at, .. } = &error else { panic!("{error}") };
                assert_eq!((*rank, *step, *at), (1, 11, bucket), "{error}");
                assert!(error.to_string().contains("has not answered"), "{error}");
                assert!(time < deadline + Duration::from_secs(2), "{time:?}");
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_ends_the_others_at_once() {
    let mut ranks = threads(3, DEADLINE);
    let leaves = ranks.remove(2);
    std::thread::scope(|scope| {
        let others: Vec<_> = ranks.into_iter().map(|r| scope.spawn(|| two_steps(r))).collect();
        first_step_only(&leaves, 0);
        drop(leaves);
        for other in others {
            let (error, time) = other.join().unwrap();
            assert_eq!(error.to_string(), "rank 2 has left; in step 11, bucket 0");
            assert!(time < Duration::from_secs(5), "{time:?}");
        }
    });
}

#[test]
fn ranks_that_do_something_else_are_told_apart() {
    let other = |label: Label, transfer: Transfer, len: usize| {
        let ranks = threads(2, DEADLINE);
        let (a, b) = (&ranks[0], &ranks[1]);
        let a = a.start(SUM, Label::default(), vec![0; 32]).unwrap();
        let b = b.start(transfer, label, vec![0; len]).unwrap();
        assert!(b.wait().is_err());
        a.wait().unwrap_err().to_string()
    };
    let same = Label::default();
    let found = other(Label { program: 2, ..same }, SUM, 32);
    assert!(found.starts_with("rank 1 runs another program here"), "{found}");
    assert_eq!(
        other(Label { step: 4, ..same }, SUM, 32),
        "rank 1 has another step here: expected 0, found 4; in step 0, bucket 0"
    );
    assert!(other(same, SUM, 16).contains("expected 32, found 16"));
    assert!(other(same, Transfer::Gather, 32).contains("another kind"));
}

#[test]
fn ranks_say_what_they_disagree_on() {
    let ranks = threads(3, DEADLINE);
    let facts = |seed: u64| {
        [("the program", 5), ("the seed", seed)].map(|(w, v)| (w.to_owned(), v.to_string()))
    };
    std::thread::scope(|scope| {
        let found: Vec<_> = ranks
            .iter()
            .map(|rank| {
                scope.spawn(move || {
                    agree(rank, Label::default(), &facts(1)).unwrap();
                    agree(rank, Label::default(), &facts(rank.rank() as u64 / 2)).unwrap_err()
                })
            })
            .collect();
        for error in found {
            let said = error.join().unwrap().to_string();
            assert_eq!(said, "ranks: the ranks disagree on the seed: rank 0 has 0, rank 2 has 1");
        }
    });
}

#[test]
fn a_collective_runs_in_a_parallel_step_only() {
    let x = Tensor::rand([8], 4).unwrap();
    let error = loaded(&step(3)).run(&mut store(), &[("x", &x)]).unwrap_err().to_string();
    assert!(error.contains("collectives for 3 ranks and runs alone"), "{error}");
    let two = threads(2, DEADLINE).remove(0);
    let error = loaded(&step(3)).on_ranks(Arc::new(two), 0).unwrap_err().to_string();
    assert_eq!(error, "ranks: the program is for 3 ranks, found 2");
    // For one rank it runs anywhere.
    let out = loaded(&step(1)).run(&mut store(), &[("x", &x)]).unwrap();
    let product = |(x, w): (&f32, &f32)| x * w;
    let (x, w) = (x.to_vec::<f32>().unwrap(), store().get("w").unwrap().to_vec::<f32>().unwrap());
    assert_eq!(
        out["a"].to_vec::<f32>().unwrap(),
        x.iter().zip(&w).map(product).collect::<Vec<_>>()
    );
}
