//! Steps and reductions, measured on threads.

use crate::model::{Bucket, Step};
use crate::transformer::Shapes;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use tracecast::ir::op::Across;
use tracecast::nn::{Linear, Relu, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Group, Label, OneRank, Transfer, threads};
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
    /// The workload `mlp-train` of the peers bench: 784, 1024, 1024, 10 wide, 256 rows, gradient descent with momentum.
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
    fn run(&self, step: &DataParallel, part: (usize, usize), wait: &Barrier) -> Step {
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters");
        self.median(part, wait, |inputs| step.run(&mut store, inputs).expect("a step"))
    }

    fn median(
        &self,
        part: (usize, usize),
        wait: &Barrier,
        mut take: impl FnMut(&[(&str, &Tensor)]) -> StepResult,
    ) -> Step {
        let inputs = self.part(part.0, part.1);
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, x)| (*name, x)).collect();
        let mut all: Vec<Step> = Vec::new();
        for at in 0..self.warm + self.steps {
            wait.wait();
            let start = Instant::now();
            let done = take(&inputs);
            // A step is over when it is over everywhere.
            wait.wait();
            let time = start.elapsed().as_secs_f64();
            let bucket = |exchange: &tracecast::runtime::ExchangeTiming| Bucket {
                bytes: exchange.bytes as f64,
                ready: exchange.flight.start.as_secs_f64(),
                needed: exchange.wait.start.as_secs_f64(),
            };
            if at >= self.warm {
                all.push(Step { time, buckets: done.exchanges.iter().map(bucket).collect() });
            }
        }
        all.sort_by(|a, b| a.time.total_cmp(&b.time));
        all.swap_remove(all.len() / 2)
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

/// The median step of a rank while as many as `ranks` take steps, each with its part of the batch, and exchange nothing.
pub(crate) fn alone(training: &Training, ranks: usize) -> Step {
    let step = (training.make)(1);
    let wait = Barrier::new(ranks);
    first((0..ranks).collect(), |rank| {
        training.run(&step.data_parallel(OneRank), (rank, ranks), &wait)
    })
}

/// The median time of a step on so many ranks of one thread, in seconds.
pub(crate) fn on_ranks(training: &Training, ranks: usize) -> f64 {
    let step = (training.make)(1);
    let wait = Barrier::new(ranks);
    let body = |rank: Group| {
        let at = rank.rank();
        training.run(&step.data_parallel(rank), (at, ranks), &wait).time
    };
    first(threads(ranks, DEADLINE), body)
}

/// The median times of one rank with 2 threads and of 2 ranks with one thread, each measured several times in turn.
pub(crate) fn in_turn(training: &Training) -> (f64, f64) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        let step = (training.make)(2);
        let mut store = Store::new();
        step.init(&mut store, 0).expect("parameters");
        let take = |inputs: &[(&str, &Tensor)]| step.run(&mut store, inputs).expect("a step");
        times[0].push(training.median((0, 1), &Barrier::new(1), take).time);
        times[1].push(on_ranks(training, 2));
    }
    let [one, two] = times.map(|mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    (one, two)
}

/// Reductions of several sizes between so many threads: bytes, and the median time in seconds.
pub(crate) fn reductions(ranks: usize) -> Vec<(f64, f64)> {
    let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F32 };
    first(threads(ranks, DEADLINE), |rank: Group| {
        let mut step = 0;
        let of_size = |bytes: usize| {
            let mut data = vec![0u8; bytes];
            let mut times: Vec<f64> = Vec::new();
            for _ in 0..30 {
                step += 1;
                let start = Instant::now();
                let label = Label { program: 1, step, bucket: 0 };
                let pending = rank.start(sum, label, data).expect("no rank fails");
                data = rank.wait(pending).expect("no rank fails").data;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            (bytes as f64, times[times.len() / 2])
        };
        [4 << 10, 64 << 10, 1 << 20, 4 << 20].map(of_size).to_vec()
    })
}
