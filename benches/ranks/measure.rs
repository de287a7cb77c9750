//! Steps and reductions, measured on threads.

use crate::model::{Bucket, Step};
use crate::transformer::Shapes;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};
use tracecast::ir::ops::collective::Collectives;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, OneRank, threads};
use tracecast::{DataParallel, StepResult, TrainStep};

/// How long a rank waits for another one.
const DEADLINE: Duration = Duration::from_secs(60);

/// A step, made anew for a number of threads, and its batch.
pub(crate) struct Training {
    make: Box<dyn Fn(usize) -> TrainStep + Sync>,
    inputs: Vec<(&'static str, Tensor)>,
    /// How often it is taken to be measured, and how often before.
    steps: usize,
    warm: usize,
    /// True if ranks have parts of the batch, and not each the whole.
    divides: bool,
}

impl Training {
    /// The workload `mlp-train` of the peers bench: 784, 1024, 1024, 10 wide, 256 rows, gradient
    /// descent with momentum.
    pub(crate) fn mlp(dtype: DType) -> Self {
        let make = move |threads: usize| {
            let model = Sequential::new()
                .named("0", Linear::new(784, 1024))
                .named("relu0", Relu)
                .named("1", Linear::new(1024, 1024))
                .named("relu1", Relu)
                .named("2", Linear::new(1024, 10));
            let step = TrainStep::new(model, |t, model| {
                model.forward(t.input("x")).cross_entropy(t.input("y"))
            });
            let step = step.optimizer(Sgd::new(0.1).momentum(0.9));
            let step = step.options(Options::new().threads(threads));
            let step = if dtype == DType::F32 { step } else { step.autocast("cpu", dtype) };
            step.build().expect("there is an optimizer")
        };
        let classes: Vec<i64> = (0..256).map(|i| i * 7 % 10).collect();
        let x = Tensor::rand([256, 784], 1).expect("a shape");
        let y = Tensor::new([256], &classes).expect("as many labels");
        Training {
            make: Box::new(make),
            inputs: vec![("x", x), ("y", y)],
            steps: 20,
            warm: 3,
            divides: true,
        }
    }

    /// A transformer, each rank on a batch of its own.
    pub(crate) fn of_tokens(shapes: Shapes) -> Self {
        let make = move |threads: usize| shapes.step(Options::new().threads(threads));
        let inputs = vec![("x", shapes.tokens()), ("y", shapes.tokens())];
        Training { make: Box::new(make), inputs, steps: 3, warm: 1, divides: false }
    }

    /// The inputs of one of several ranks.
    fn part(&self, rank: usize, ranks: usize) -> Vec<(&'static str, Tensor)> {
        let of = |tensor: &Tensor| {
            let rows = tensor.shape()[0].get();
            match self.divides {
                true => tensor.slice(0, rows * rank / ranks..rows * (rank + 1) / ranks),
                false => Ok(tensor.clone()),
            }
        };
        let part = self.inputs.iter().map(|(name, x)| (*name, of(x).expect("rows of the batch")));
        part.collect()
    }

    /// The step of median length of one rank.
    fn run(&self, step: &DataParallel, part: (usize, usize), gate: &Gate) -> Step {
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters");
        self.median(part, gate, |inputs| step.run(&mut store, inputs).expect("a step"))
    }

    fn median(
        &self,
        part: (usize, usize),
        gate: &Gate,
        mut take: impl FnMut(&[(&str, &Tensor)]) -> StepResult,
    ) -> Step {
        let inputs = self.part(part.0, part.1);
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let mut all: Vec<Vec<Bucket>> = Vec::new();
        for _ in 0..self.warm + self.steps {
            gate.wait();
            let done = take(&inputs);
            gate.wait();
            let bucket = |exchange: &tracecast::runtime::ExchangeTiming| Bucket {
                bytes: exchange.bytes as f64,
                ready: exchange.flight.start.as_secs_f64(),
                needed: exchange.wait.start.as_secs_f64(),
            };
            all.push(done.exchanges.iter().map(bucket).collect());
        }
        let times = gate.times();
        let step = |(time, buckets)| Step { time, buckets };
        let mut all: Vec<Step> = times.into_iter().zip(all).map(step).skip(self.warm).collect();
        all.sort_by(|a, b| a.time.total_cmp(&b.time));
        all.swap_remove(all.len() / 2)
    }
}

/// Where ranks meet in front of a step and behind it. A step begins and ends when the last of them
/// comes: who has to share a processor may look at the clock later.
struct Gate {
    barrier: Barrier,
    /// When the last came, each time.
    passed: Mutex<Vec<Instant>>,
}

impl Gate {
    fn new(ranks: usize) -> Self {
        Gate { barrier: Barrier::new(ranks), passed: Mutex::default() }
    }

    fn wait(&self) {
        if self.barrier.wait().is_leader() {
            self.passed.lock().expect("no rank panics").push(Instant::now());
        }
    }

    /// How long each step took, in seconds.
    fn times(&self) -> Vec<f64> {
        // Until the last has noted when the step was over.
        self.barrier.wait();
        let passed = self.passed.lock().expect("no rank panics");
        let steps = passed.as_chunks::<2>().0.iter();
        steps.map(|[start, end]| (*end - *start).as_secs_f64()).collect()
    }
}

/// What the first of several threads says.
fn first<R: Send, T: Send>(ranks: Vec<T>, body: impl Fn(T) -> R + Sync) -> R {
    std::thread::scope(|scope| {
        let body = &body;
        let started: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        let mut all: Vec<R> =
            started.into_iter().map(|rank| rank.join().expect("a rank")).collect();
        all.swap_remove(0)
    })
}

/// The median step of a rank while as many as `ranks` take steps, each with its part of the batch,
/// and exchange nothing.
pub(crate) fn alone(training: &Training, ranks: usize) -> Step {
    let step = (training.make)(1);
    let gate = Gate::new(ranks);
    first((0..ranks).collect(), |rank| {
        training.run(&step.data_parallel(OneRank), (rank, ranks), &gate)
    })
}

/// The median time of a step on `ranks` ranks of one thread, in seconds.
pub(crate) fn on_ranks(training: &Training, ranks: usize) -> f64 {
    let step = (training.make)(1);
    let gate = Gate::new(ranks);
    let body = |rank: Group| {
        let at = rank.rank();
        training.run(&step.data_parallel(rank), (at, ranks), &gate).time
    };
    first(threads(ranks, DEADLINE), body)
}

/// The median times of one rank with 2 threads and of 2 ranks with one thread, each measured
/// several times in turn.
pub(crate) fn in_turn(training: &Training) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        let step = (training.make)(2);
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters");
        let take = |inputs: &[(&str, &Tensor)]| step.run(&mut store, inputs).expect("a step");
        times[0].push(training.median((0, 1), &Gate::new(1), take).time);
        times[1].push(on_ranks(training, 2));
    }
    let [one, two] = times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    (one, two)
}

/// Reductions of several sizes between threads, as programs have them: bytes, and the median time
/// in seconds.
pub(crate) fn reductions(ranks: usize) -> Vec<(f64, f64)> {
    let wait = Barrier::new(ranks);
    first(threads(ranks, DEADLINE), |rank: Group| {
        let rank = Arc::new(rank);
        let of_size = |elements: usize| {
            let graph = trace("reduction", |t| {
                let x = t.input_of("x", TensorType::new(DType::F32, [elements]));
                t.output("y", (x * 2.0).all_reduce(Some("sum"), ranks as i64));
            });
            let program = compile(graph.expect("a program"), &Options::new().threads(1));
            let program = program.expect("code").on_ranks(rank.clone(), 1).expect("as many ranks");
            let (mut store, x) = (Store::new(), Tensor::rand([elements], 1).expect("a shape"));
            let mut times: Vec<f64> = Vec::new();
            for _ in 0..30 {
                wait.wait();
                program.run(&mut store, &[("x", &x)]).expect("no rank fails");
                times.push(program.exchanges()[0].flight.time.as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            (4.0 * elements as f64, times[times.len() / 2])
        };
        [1 << 10, 16 << 10, 256 << 10, 1 << 20].map(of_size).to_vec()
    })
}
