//! `tracecast serve-bench`: how fast a program serves several threads from one set of weights, and
//! how much memory that takes.

mod latency;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tracecast::{Session, SizedProgram, Store, Tensor, Weights, compile_sized};
use tracecast_ir::{Graph, Port, Role, Values};

use crate::devices;
use crate::failure::Failure;
use crate::program::ProgramFile;
use latency::Latencies;

/// Runs a program from several threads for a while: throughput, latency, memory
///
/// All threads share one set of weights and run the program on one thread each, on arrays of their
/// own: floats evenly distributed from 0 to 1, integers 0, but for what an archive or --weights
/// has. A program that replaces state runs on a store for each thread.
#[derive(clap::Args)]
pub(crate) struct ServeBench {
    #[command(flatten)]
    program: ProgramFile,

    /// Threads that run it at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// How long
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,

    /// Values for the names of sizes; given several times, the threads take turns among them
    #[arg(long, value_name = "NAME=SIZE,…")]
    sizes: Vec<String>,

    /// Prints the figures as JSON
    #[arg(long)]
    json: bool,

    /// The device: `cpu` runs machine code, `reference` interprets
    #[arg(long, value_name = "DEVICE", default_value = devices::FIRST, value_parser = devices::named)]
    device: String,
}

/// What was measured.
struct Figures {
    threads: usize,
    runs: u64,
    time: Duration,
    latencies: Latencies,
    compile: Duration,
    weights: usize,
    /// The bytes of memory of the process: when it began, and at the end of the runs.
    resident: Option<(usize, usize)>,
}

/// The inputs of a run, in one of the sets of sizes.
type Inputs = Vec<(String, Tensor)>;

impl ServeBench {
    /// Runs the program; writes the figures.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        if !(self.seconds > 0.0 && self.seconds <= 1e6) {
            let message =
                format!("--seconds: expected a number up to 1000000, found {}", self.seconds);
            return Err(Failure::Usage(message));
        }
        let before = resident();
        let (graph, known) = self.program.read_with_values()?;
        let sets = self.sets(&graph)?;
        let (inputs, state) = arrays(&graph, &sets, &known)?;
        let replaces = !graph.updates().is_empty();
        let options = devices::options().device(&self.device).threads(1);
        let start = Instant::now();
        let program = compile_sized(graph, &options.with_policies(self.program.policies()?))?;
        for values in &sets {
            program.at(values)?;
        }
        let compile = start.elapsed();
        let bytes = state.iter().map(|(_, value)| value.bytes().len()).sum();
        let weights = state.into_iter().collect::<Store>().snapshot();
        let mut figures = self.serve(&program, &weights, &inputs, replaces)?;
        (figures.compile, figures.weights) = (compile, bytes);
        figures.resident = before.zip(resident());
        if self.json {
            writeln!(out, "{}", figures.json())?
        } else {
            figures.write(out)?
        }
        Ok(())
    }

    /// Runs on all threads until the time is over.
    fn serve(
        &self,
        program: &SizedProgram,
        weights: &Weights,
        inputs: &[Inputs],
        replaces: bool,
    ) -> Result<Figures, Failure> {
        let threads = usize::from(self.threads);
        let (ready, time) = (Barrier::new(threads), Duration::from_secs_f64(self.seconds));
        let one = |first: usize| {
            let mut caller = Caller::new(program, weights, replaces);
            // Everything is there before the clock starts: code, memory, packed weights.
            let warm = (0..8).try_for_each(|_| inputs.iter().try_for_each(|set| caller.run(set)));
            ready.wait();
            warm?;
            let (start, mut latencies) = (Instant::now(), Latencies::default());
            let mut turn = first;
            while start.elapsed() < time {
                let begun = Instant::now();
                caller.run(&inputs[turn % inputs.len()])?;
                latencies.note(begun.elapsed());
                turn += 1;
            }
            Ok::<_, Failure>((latencies, start.elapsed()))
        };
        let done = thread::scope(|scope| {
            let callers: Vec<_> =
                (0..threads).map(|first| scope.spawn(move || one(first))).collect();
            let joined = callers.into_iter().map(|caller| {
                caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<_>, Failure>>()
        })?;
        let mut latencies = Latencies::default();
        done.iter().for_each(|(own, _)| latencies.add(own));
        let time = done.iter().map(|(_, time)| *time).max().unwrap_or_default();
        let runs = latencies.count();
        let (compile, weights, resident) = (Duration::ZERO, 0, None);
        Ok(Figures { threads, runs, time, latencies, compile, weights, resident })
    }

    /// The sets of values for the names of sizes.
    fn sets(&self, graph: &Graph) -> Result<Vec<Values>, Failure> {
        let names = graph.sizes().names();
        let known = || {
            let names: Vec<&str> = names.iter().map(|name| name.name).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let set = |text: &String| {
            let wrong = |why: &str| {
                Failure::Usage(format!("--sizes {text}: {why}; the names are {}", known()))
            };
            let mut given = BTreeMap::new();
            for part in text.split(',') {
                let (name, size) =
                    part.split_once('=').ok_or_else(|| wrong("expected NAME=SIZE"))?;
                let size =
                    size.trim().parse::<i64>().map_err(|_| wrong("expected a whole number"))?;
                if given.insert(name.trim(), size).is_some() {
                    return Err(wrong("a name stands there twice"));
                }
            }
            let value = |name: &'static str| given.remove(name).map(|value| (name, value));
            let values: Option<Values> = names.iter().map(|known| known.name).map(value).collect();
            match values {
                Some(values) if given.is_empty() => Ok(values),
                Some(_) => Err(wrong("the program has no such name")),
                None => Err(wrong("a name is missing")),
            }
        };
        match (self.sizes.is_empty(), names.is_empty()) {
            (true, true) => Ok(vec![Values::default()]),
            (true, false) => {
                let message = format!("--sizes NAME=SIZE is missing: the names are {}", known());
                Err(Failure::Usage(message))
            }
            (false, _) => self.sizes.iter().map(set).collect(),
        }
    }
}

/// One that runs the program again and again.
struct Caller<'p> {
    program: &'p SizedProgram,
    weights: &'p Weights,
    session: Session,
    /// If the program replaces state.
    store: Option<Store>,
}

impl<'p> Caller<'p> {
    fn new(program: &'p SizedProgram, weights: &'p Weights, replaces: bool) -> Self {
        let store = replaces.then(|| weights.to_store());
        Caller { program, weights, session: Session::new(), store }
    }

    fn run(&mut self, inputs: &Inputs) -> Result<(), Failure> {
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, x)| (n.as_str(), x)).collect();
        match &mut self.store {
            Some(store) => self.program.run(store, &inputs)?,
            None => self.program.run_on(self.weights, &mut self.session, &inputs)?,
        };
        Ok(())
    }
}

/// Inputs for each set of sizes, and state: what is known of it, and other numbers.
fn arrays(graph: &Graph, sets: &[Values], known: &Store) -> Result<(Vec<Inputs>, Inputs), Failure> {
    let array = |(place, port): (usize, &Port)| {
        if known.contains(&port.name) {
            return Ok((port.name.clone(), known.get(&port.name)?));
        }
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(place as u64 + 1);
        let value = Tensor::from_fn(port.ty.clone(), |_| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if port.ty.dtype.is_float() { (dice >> 40) as f64 / f64::from(1 << 24) } else { 0.0 }
        });
        Ok::<_, Failure>((port.name.clone(), value?))
    };
    let (mut inputs, mut state) = (Vec::new(), Vec::new());
    for values in sets {
        let failed = |error| Failure::Input(format!("{error}"));
        let graph = graph.at(values).map_err(failed)?;
        let ports = || graph.ports().iter().enumerate();
        let of =
            |wanted: bool| ports().filter(move |(_, port)| (port.role == Role::Input) == wanted);
        inputs.push(of(true).map(array).collect::<Result<_, _>>()?);
        if state.is_empty() {
            state = of(false).map(array).collect::<Result<_, _>>()?;
        }
    }
    Ok((inputs, state))
}

impl Figures {
    fn rate(&self) -> f64 {
        self.runs as f64 / self.time.as_secs_f64()
    }

    fn write(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Figures { threads, runs, latencies, .. } = self;
        let (seconds, rate) = (self.time.as_secs_f64(), self.rate());
        let s = if *threads == 1 { "" } else { "s" };
        writeln!(out, "{threads} thread{s}, {seconds:.1} s: {runs} runs, {rate:.1} a second")?;
        let at = |part: f64| latencies.at(part).as_secs_f64() * 1e3;
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        let longest = latencies.longest().as_secs_f64() * 1e3;
        writeln!(
            out,
            "latency: p50 {p50:.3} ms, p99 {p99:.3} ms, p99.9 {p999:.3} ms, longest {longest:.3} ms"
        )?;
        if let Some((before, after)) = self.resident {
            let mb = |bytes: usize| bytes as f64 / 1e6;
            let more = after.saturating_sub(before);
            let weights = mb(self.weights);
            writeln!(
                out,
                "memory: {:.1} MB more than at the start, weights are {weights:.1} MB",
                mb(more)
            )?;
        }
        writeln!(out, "compiled in {:.1} ms", self.compile.as_secs_f64() * 1e3)?;
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let at = |part: f64| self.latencies.at(part).as_secs_f64();
        json!({
            "threads": self.threads,
            "seconds": self.time.as_secs_f64(),
            "runs": self.runs,
            "runs_per_second": self.rate(),
            "latency_seconds": {
                "p50": at(0.5),
                "p99": at(0.99),
                "p99.9": at(0.999),
                "longest": self.latencies.longest().as_secs_f64(),
            },
            "compile_seconds": self.compile.as_secs_f64(),
            "weights_bytes": self.weights,
            "resident_bytes_before": self.resident.map(|(before, _)| before),
            "resident_bytes_after": self.resident.map(|(_, after)| after),
        })
    }
}

/// The bytes of memory that the process has, where the system tells.
fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}
