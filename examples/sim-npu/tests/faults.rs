//! A thousand runs with a fault each: one launch, copy, allocation or check of those that the run
//! issues, drawn by a seed. Each tells which device, what it was doing and why, once; the store has
//! the last complete step, bit for bit, and goes on from there; and all memory comes back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{Contents, PATIENCE, chips, contents, eventually, f32s, on, settings, twin};
use sim_npu::{Counts, Injection, Npu, Point, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tracecast::ir::Verified;
use tracecast::passes::standard;
use tracecast::prelude::*;
use tracecast::runtime::{Error, Fault, FaultKind, Input, Program, Submitted};
use tracecast::{Executable, Graph, trace_with};

/// The most steps that are in flight.
const STEPS: usize = 3;

/// A step of gradient descent with momentum, in bf16 where autocast says so, whose labels may be
/// out of range; two values that change places, of an odd number of bytes; and a count.
fn program(options: &Options, outputs: bool) -> Graph {
    let traced = trace_with("step", options, |t| {
        let x = t.input_of("x", f32s(&[4, 6]));
        let labels = t.input_of("labels", TensorType::new(DType::I64, [4]));
        let (w, momentum) = (t.param_of("w", f32s(&[3, 6])), t.state_of("momentum", f32s(&[3, 6])));
        let scores = autocast(t, "npu", None, || x.linear(w, None::<Var<'_>>));
        let loss = scores.cross_entropy(labels);
        let next = momentum * 0.9 + t.grad(loss, &[w])[0];
        t.update(momentum, next);
        t.update(w, w - next * 0.1);
        let [left, right] =
            ["left", "right"].map(|name| t.state_of(name, TensorType::new(DType::BF16, [5])));
        t.update(left, right);
        t.update(right, left);
        let count = t.state_of("count", TensorType::scalar(DType::I32));
        t.update(count, count + 1.0);
        if outputs {
            t.output("loss", loss);
            t.output("scores", scores);
        }
    });
    traced.unwrap()
}

fn store() -> Store {
    let five = |seed| Tensor::randn([5], seed).unwrap().cast(DType::BF16).unwrap();
    Store::new()
        .with("w", Tensor::randn([3, 6], 1).unwrap())
        .with("momentum", Tensor::new([3, 6], &[0.0f32; 18]).unwrap())
        .with("left", five(2))
        .with("right", five(3))
        .with("count", Tensor::scalar(0i32))
}

fn batch(step: usize) -> [Tensor; 2] {
    let labels = [0, 1, 2, step as i64 % 3];
    [Tensor::randn([4, 6], 10 + step as u64).unwrap(), Tensor::new([4], &labels).unwrap()]
}

fn give(
    program: &Executable,
    store: &mut Store,
    step: usize,
) -> tracecast::runtime::Result<Submitted> {
    let [x, labels] = batch(step);
    program.submit(store, &[("x", Input::from(&x)), ("labels", Input::from(&labels))])
}

/// A program, and what there is to know of it.
struct Case {
    fused: Verified,
    outputs: bool,
    /// What the store holds after a number of steps, by the interpreter.
    after: Vec<Contents>,
    /// What was issued up to the end of a number of steps, one waited for after another.
    issued: Vec<Counts>,
}

impl Case {
    fn new(outputs: bool, options: &Options, chip: &Arc<Npu>) -> Self {
        let interpreted = tracecast::compile(program(&twin(), outputs), &twin()).unwrap();
        let mut known = store();
        let mut after = vec![contents(&known)];
        for step in 0..=STEPS {
            let [x, labels] = batch(step);
            interpreted.run(&mut known, &[("x", &x), ("labels", &labels)]).unwrap();
            after.push(contents(&known));
        }
        let passes = standard(&options.passes());
        let fused = passes.run(program(options, outputs), |_, _, _| ()).unwrap();
        let mut case = Case { fused, outputs, after, issued: Vec::new() };
        let (executable, mut store) = (case.load(chip), store());
        let before = chip.counts();
        for step in 0..STEPS {
            case.issued.push(chip.counts().since(before));
            give(&executable, &mut store, step).unwrap();
            store.synchronize().unwrap();
        }
        case.issued.push(chip.counts().since(before));
        case
    }

    fn load(&self, chip: &Arc<Npu>) -> Executable {
        Program::plan(&self.fused).unwrap().load(chip.clone()).unwrap()
    }

    /// How many steps end before the command that fails.
    fn complete(&self, injection: Injection, steps: usize) -> usize {
        let ended =
            |step: &usize| counted(&self.issued[*step], injection.point) <= injection.number;
        (0..=steps).rev().find(ended).unwrap()
    }
}

/// The commands of a kind among those of a queue.
fn counted(counts: &Counts, point: Point) -> u64 {
    match point {
        Point::Launch => counts.launches,
        Point::Copy => counts.uploads + counts.downloads + counts.copies,
        Point::Check => counts.checked,
        Point::Allocation => counts.allocations,
        Point::Lost => counts.launches + counts.uploads + counts.downloads + counts.copies,
    }
}

/// What a run ends with: what it told, and how many steps are complete.
struct Ended {
    told: Option<Error>,
    steps: usize,
    given: usize,
    store: Store,
}

/// Gives steps, all before the first begins unless the host waits for one, and reads their outputs.
fn run(case: &Case, executable: &Executable, chip: &Npu, steps: usize) -> Ended {
    let (mut store, waits) = (store(), chip.counts().waits);
    let (mut told, mut out) = (None, Vec::new());
    let is_given = AtomicBool::new(false);
    chip.pause();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let goes_on = || is_given.load(Ordering::SeqCst) || chip.counts().waits > waits;
            eventually("steps are given", goes_on);
            chip.resume();
        });
        for step in 0..steps {
            match give(executable, &mut store, step) {
                Ok(submitted) => out.push(submitted),
                Err(error) => {
                    told = Some(error);
                    break;
                }
            }
        }
        is_given.store(true, Ordering::SeqCst);
    });
    let ended = store.synchronize();
    assert!(ended.is_ok() || told.is_none(), "it is told twice");
    let given = out.len();
    told = told.or(ended.err());
    if case.outputs && told.is_none() {
        told = out.iter().find_map(|out| out.get("loss").err());
    }
    store.synchronize().unwrap();
    Ended { told, steps, given, store }
}

fn kind(fault: &Fault) -> Point {
    match fault.kind {
        FaultKind::Launch => Point::Launch,
        FaultKind::Copy => Point::Copy,
        FaultKind::Check => Point::Check,
        FaultKind::OutOfMemory { .. } => Point::Allocation,
        FaultKind::Lost => Point::Lost,
        _ => panic!("{fault}"),
    }
}

fn says(fault: &Fault) -> bool {
    let text = fault.to_string();
    let (what, why) = match kind(fault) {
        Point::Launch => ("kernel @", "the vector unit does not answer"),
        Point::Copy => ("load of", "the link does not answer"),
        Point::Check => ("kernel @", "out of range"),
        Point::Allocation => ("out of memory", "in use"),
        Point::Lost => ("npu", "it was pulled out"),
    };
    let copies = fault.kind == FaultKind::Copy && text.contains("copy of");
    (text.contains(what) || copies) && text.contains(why) && text.contains("npu:0")
}

#[test]
fn a_thousand_runs_with_a_fault_each() {
    let (registry, chips) = chips(&Settings { in_flight: STEPS + 1, ..settings() });
    let chip = &chips[0];
    let options = on(&registry, "npu:0");
    let cases = [true, false].map(|outputs| Case::new(outputs, &options, chip));
    // What each kind of run issues when nothing fails.
    let mut issued = BTreeMap::new();
    for (which, case) in cases.iter().enumerate() {
        for steps in 1..=STEPS {
            let executable = case.load(chip);
            let before = chip.counts();
            let ended = run(case, &executable, chip, steps);
            let counts = chip.counts().since(before);
            assert!(ended.told.is_none() && contents(&ended.store) == case.after[steps]);
            assert_eq!(counts.launches, case.issued[steps].launches);
            issued.insert((which, steps), counts);
        }
    }
    let mut found: BTreeMap<Point, usize> = BTreeMap::new();
    let mut texts = Vec::new();
    for seed in (0..1000).chain(0..40) {
        let (which, steps) = (seed as usize % 2, 1 + seed as usize / 2 % STEPS);
        let case = &cases[which];
        let injection = Injection::drawn(seed, &issued[&(which, steps)]).unwrap();
        let what = format!("seed {seed}: {injection:?} in {steps} steps");
        eventually("memory comes back", || chip.usage().in_use == 0);
        let (executable, struck, begun) = (case.load(chip), chip.struck(), Instant::now());
        chip.inject(injection);
        let ended = run(case, &executable, chip, steps);
        assert_eq!(chip.struck(), struck + 1, "{what}");
        chip.mend();
        let fault = match ended.told {
            Some(Error::Fault(fault)) => Some(fault),
            // A step that finds no memory takes that of steps which have ended: there may be
            // enough.
            None if injection.point == Point::Allocation && ended.given == steps => None,
            other => panic!("{what}: {other:?}"),
        };
        if let Some(fault) = &fault {
            assert!(kind(fault) == injection.point && says(fault), "{what}: {fault}");
        }
        let complete = match injection.point {
            Point::Allocation => ended.given,
            _ => case.complete(injection, ended.steps),
        };
        let mut store = ended.store;
        assert!(contents(&store) == case.after[complete], "{what}: expected {complete} complete");
        give(&executable, &mut store, complete).unwrap();
        assert!(contents(&store) == case.after[complete + 1], "{what}: it does not go on");
        assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", begun.elapsed());
        *found.entry(injection.point).or_default() += usize::from(fault.is_some());
        texts.push(fault.map(|fault| fault.to_string()));
    }
    assert!(found.len() == 4 && found.values().all(|count| *count >= 100), "{found:?}");
    assert_eq!(texts[..40], texts[1000..], "a seed is a fault");
    eventually("memory comes back", || chip.usage().in_use == 0);
    assert_eq!(chip.counts().strangers, 0);
}
