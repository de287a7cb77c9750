//! How much faster another schedule would be than the one that is chosen.
//!
//! 200 random products and convolutions, forward and both gradients, in f32 and bf16, on one
//! thread, for which more than one schedule is correct. Each choice that prefers a schedule by its
//! cost is switched off in turn; results must keep their bits. The chosen schedule and the fastest
//! are then timed again in turn, five rounds. *Regret* is the least ratio of the rounds: a schedule
//! that loses in one of them is not worse.
//!
//! `cargo bench --bench regret --features regret [-- COUNT [SEED]]`; `VECTORS=avx2` takes other
//! instructions than the machine's best.

#[path = "support/convolution.rs"]
#[allow(dead_code, reason = "the sizes are random here")]
mod convolution;
#[path = "support/operands.rs"]
mod operands;
#[path = "support/product.rs"]
#[allow(dead_code, reason = "the sizes are random here")]
mod product;
#[path = "support/vectors.rs"]
mod vectors;

use convolution::DIRECTIONS;
use tracecast::prelude::*;
use tracecast::runtime::{Outputs, Timing};
use tracecast::{Executable, Graph, compile};
use tracecast_codegen::{Choice, choose_without};

/// Cases unless the command line says otherwise.
const COUNT: usize = 200;
/// Rounds in turn of the chosen schedule and the fastest.
const ROUNDS: usize = 5;
/// Seconds of a round, about.
const ROUND: f64 = 5e-3;

/// What is switched off for each candidate.
const CANDIDATES: [&[Choice]; 7] = [
    &[],
    &[Choice::Drivers],
    &[Choice::Packing],
    &[Choice::Packing, Choice::Channels],
    &[Choice::Gemv],
    &[Choice::InPlace],
    &[Choice::Swap],
];

/// A generator of sizes (Knuth's linear congruences).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len())]
    }

    /// A size up to `2^bits`, each power of two as often.
    fn size(&mut self, bits: usize) -> usize {
        let most = 1 << (1 + self.below(bits));
        1 + self.below(most)
    }
}

/// A random case: its name, its program, and its dtype.
fn case(random: &mut Random) -> (String, Graph, DType) {
    let dtype = random.of(&[DType::F32, DType::BF16]);
    if random.below(3) == 0 {
        let sizes = [10, 10, 10].map(|bits| random.size(bits));
        let shape = (sizes[0], sizes[1], sizes[2], [random.below(2) == 0, random.below(2) == 0]);
        return (format!("{} {dtype}", product::name(shape)), product::graph(shape, dtype), dtype);
    }
    let kernel = random.of(&[1, 1, 3, 3, 5]);
    let channels = [random.size(8), random.size(8)];
    let (channels, groups) = match random.below(4) {
        0 => ([channels[0]; 2], channels[0]),
        _ => (channels, 1),
    };
    let shape = convolution::Shape {
        network: "random",
        channels,
        size: random.of(&[7, 14, 28, 56]),
        kernel,
        stride: random.of(&[1, 1, 2]),
        padding: kernel / 2,
        groups,
    };
    let (batch, direction) = (random.of(&[1, 4]), random.of(&DIRECTIONS));
    let name = format!("{} {direction} {dtype}", shape.name(batch));
    (name, shape.graph(batch, direction, dtype), dtype)
}

/// A program under one candidate.
struct Candidate {
    without: &'static [Choice],
    program: Executable,
    store: Store,
    inputs: Vec<(String, Tensor)>,
}

impl Candidate {
    fn new(graph: &Graph, dtype: DType, without: &'static [Choice]) -> Self {
        choose_without(without);
        let (store, inputs) = operands::random(graph, dtype);
        let options = Options::new().threads(1).keep_weights(false).vectors(vectors::named());
        let program = compile(graph.clone(), &options).expect("code");
        Candidate { without, program, store, inputs }
    }

    /// The schedules of its products.
    fn schedules(&self) -> Vec<String> {
        choose_without(self.without);
        let steps = 0..self.program.program().steps().count();
        steps.filter_map(|step| self.program.schedule(step)).collect()
    }

    /// Seconds in the kernels, on average over a number of runs.
    fn run(&mut self, times: usize) -> f64 {
        let one = |_| {
            let (_, timings) = self.once();
            timings.iter().map(|timing| timing.time.as_secs_f64()).sum::<f64>()
        };
        (0..times).map(one).sum::<f64>() / times as f64
    }

    fn once(&mut self) -> (Outputs, Vec<Timing>) {
        choose_without(self.without);
        let inputs: Vec<(&str, &Tensor)> =
            self.inputs.iter().map(|(name, x)| (name.as_str(), x)).collect();
        self.program.run_timed(&mut self.store, &inputs).expect("a run")
    }

    /// What it computes: results, and state.
    fn results(&mut self) -> Vec<Tensor> {
        let outputs = self.once().0;
        let results = outputs.iter().map(|(_, value)| value.clone());
        let state = self.store.iter().map(|entry| entry.expect("state").1);
        results.chain(state).collect()
    }
}

/// The regret of a case, with the chosen schedules and the fastest; `None` if there is but one.
fn regret(name: &str, graph: &Graph, dtype: DType) -> Option<(f64, [Vec<String>; 2])> {
    let mut candidates: Vec<(Candidate, Vec<String>)> = Vec::new();
    for without in CANDIDATES {
        let candidate = Candidate::new(graph, dtype, without);
        let schedules = candidate.schedules();
        if candidates.iter().all(|(_, known)| *known != schedules) {
            candidates.push((candidate, schedules));
        }
    }
    let [(chosen, own), others @ ..] = &mut candidates[..] else { return None };
    let results = chosen.results();
    let once = (0..3).map(|_| chosen.run(1)).fold(f64::INFINITY, f64::min);
    let times = ((ROUND / once).ceil() as usize).clamp(1, 2000);
    let mut timed = others.iter_mut().map(|(other, schedules)| {
        let found = other.results();
        assert!(found == results, "{name}: {:?} has other bits", other.without);
        ((0..3).map(|_| other.run(times)).fold(f64::INFINITY, f64::min), other, schedules)
    });
    let first = timed.next()?;
    let (_, fastest, schedules) = timed.fold(first, |a, b| if b.0 < a.0 { b } else { a });
    let rounds = (0..ROUNDS).map(|_| chosen.run(times) / fastest.run(times));
    Some((rounds.fold(f64::INFINITY, f64::min), [own.clone(), schedules.clone()]))
}

#[allow(clippy::print_stdout, reason = "the table is what a bench is for")]
fn main() {
    let words: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let count = words.first().map_or(COUNT, |count| *count as usize);
    let mut random = Random(words.get(1).copied().unwrap_or(1));
    let mut all: Vec<f64> = Vec::new();
    while all.len() < count {
        let (name, graph, dtype) = case(&mut random);
        let Some((regret, schedules)) = regret(&name, &graph, dtype) else { continue };
        if regret > 1.1 {
            let [chosen, fastest] = schedules.map(|lines| lines.join(" | "));
            println!("{regret:.2}  {name}\n  chosen  {chosen}\n  fastest {fastest}");
        }
        all.push(regret);
    }
    for most in [1.0, 1.1, 1.25] {
        let within = all.iter().filter(|regret| **regret <= most).count();
        println!("at most {most}: {:.1} % of {count}", 100.0 * within as f64 / count as f64);
    }
}
