//! [`Profile`]: where the time of a program goes, kernel by kernel, and how far each kernel is from
//! what the machine can do.

use crate::error::{Error, Result};
use std::fmt;
use std::time::{Duration, Instant};
use tracecast_ir::kernel::{Cost, Kernel};
use tracecast_runtime::{ExchangeTiming, Executable, Limits, Store, Tensor, Timing};

/// One step of a program: a kernel, or a copy of state.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelProfile {
    /// The name of the kernel.
    pub name: String,
    /// The form, such as `map`, `rows` or `contraction`.
    pub form: &'static str,
    /// The path of the module that records the op it begins with, such as `layer1.0.conv1`; empty
    /// outside of modules and for copies.
    pub module: String,
    /// The line of the user's program that records it, `FILE:LINE:COLUMN`, with `grad of` in front
    /// for gradients; empty where it is not known.
    pub source_line: String,
    /// How a product is computed: its schedule, blocking, threads and workspace. `None` for other
    /// kernels, and on devices that do not tell.
    pub schedule: Option<String>,
    /// The median of its times, launch included.
    pub time: Duration,
    /// Bytes and operations of one run.
    pub cost: Cost,
    /// When it began and how long it took in the run of median length.
    pub typical: Timing,
}

/// The form of what begins an exchange with other ranks, or waits for one.
const EXCHANGE: &str = "exchange";

/// What stands for the form of a copy.
const COPY: &str = "copy";

/// The share of the peak of fused multiply-adds that well blocked products reach: the rest goes to
/// packing, edges and loads.
const OF_PEAK: f64 = 0.85;

/// The share of memory's rate that sweeps over several arrays reach.
const OF_RATE: f64 = 0.8;

impl KernelProfile {
    /// Billions of floating-point operations per second.
    pub fn gflops(&self) -> f64 {
        self.cost.flops as f64 / self.seconds() / 1e9
    }

    /// Billions of bytes per second.
    pub fn gbytes(&self) -> f64 {
        self.cost.bytes() as f64 / self.seconds() / 1e9
    }

    /// The time that a good kernel of this cost takes on a machine of these limits: its operations
    /// at 85 % of the peak of fused multiply-adds, or its bytes at 80 % of memory's rate, whichever
    /// takes longer.
    pub fn attainable(&self, limits: Limits) -> Duration {
        let compute = self.cost.flops as f64 / (OF_PEAK * limits.flops);
        let memory = self.cost.bytes() as f64 / (OF_RATE * limits.bytes);
        Duration::try_from_secs_f64(compute.max(memory)).unwrap_or(Duration::MAX)
    }

    /// The least time by the limits over the time it took: 1 is as fast as the machine allows. Data
    /// in a cache can come faster than from memory, so a kernel on little data may exceed 1.
    pub fn of_limit(&self, limits: Limits) -> f64 {
        let compute = self.cost.flops as f64 / limits.flops;
        let memory = self.cost.bytes() as f64 / limits.bytes;
        compute.max(memory) / self.seconds()
    }

    fn seconds(&self) -> f64 {
        self.time.as_secs_f64().max(1e-9)
    }
}

/// An exchange with other ranks in the run of median length.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeProfile {
    /// When it was on its way, and when the run waited for it.
    pub timing: ExchangeTiming,
    /// The kernels that ran meanwhile: what it hides behind.
    pub behind: Vec<String>,
}

/// From when it was ready to begin until it was done, and what is left of that for the run to wait.
impl fmt::Display for ExchangeProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeTiming { name, bytes, flight, wait } = &self.timing;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (start, end) = (us(flight.start), us(flight.start + flight.time));
        let kib = *bytes as f64 / 1024.0;
        write!(f, "{name}: {kib:.1} KiB, starts at {start:.2} µs, ends at {end:.2} µs, ")?;
        write!(f, "waited for {:.2} µs; hides behind ", us(wait.time))?;
        match &self.behind[..] {
            [] => f.write_str("nothing"),
            [first, .., last] if self.behind.len() > 3 => {
                write!(f, "{} kernels from {first} to {last}", self.behind.len())
            }
            few => f.write_str(&few.join(", ")),
        }
    }
}

/// Where the time of a program goes. Printing gives a table.
///
/// ```
/// use tracecast::prelude::*;
/// use tracecast::Profile;
///
/// let graph = trace("square", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [1000]));
///     t.output("y", x * x);
/// })?;
/// let program = compile(graph, &Options::new())?;
/// let x = Tensor::rand([1000], 0)?;
/// let profile = Profile::of(&program, &mut Store::new(), &[("x", &x)], 5, None)?;
/// assert_eq!((profile.kernels.len(), profile.kernels[0].cost.bytes()), (1, 8000));
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The steps in order.
    pub kernels: Vec<KernelProfile>,
    /// What ranks exchanged, in the order in which it began; nothing in a program without
    /// collectives.
    pub exchanges: Vec<ExchangeProfile>,
    /// The median time of a whole run, with what comes before and after the kernels.
    pub run: Duration,
    /// The number of runs that were timed.
    pub runs: usize,
    /// The limits of the machine, if they were measured.
    pub limits: Option<Limits>,
}

impl Profile {
    /// Runs a program that many times, after one run that is not timed. State changes as in any
    /// run.
    ///
    /// # Errors
    /// Those of a run; if `runs` is 0.
    pub fn of(
        program: &Executable,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        runs: usize,
        limits: Option<Limits>,
    ) -> Result<Self> {
        Profile::with(program, store, inputs, runs, limits, &Kernel::cost)
    }

    /// The same where `cost` gives the cost of a kernel, whose sizes may be names.
    pub(crate) fn with(
        program: &Executable,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        runs: usize,
        limits: Option<Limits>,
        cost: &dyn Fn(&Kernel) -> Cost,
    ) -> Result<Self> {
        if runs == 0 {
            let message = "expected at least one run, found 0".to_owned();
            return Err(Error::Option { option: "runs", message });
        }
        program.run(store, inputs)?;
        let mut all: Vec<(Duration, Vec<Timing>, Vec<ExchangeTiming>)> = Vec::with_capacity(runs);
        for _ in 0..runs {
            let start = Instant::now();
            let (_, times) = program.run_timed(store, inputs)?;
            all.push((start.elapsed(), times, program.exchanges()));
        }
        all.sort_by_key(|(time, ..)| *time);
        let (run, typical, exchanged) = &all[runs / 2];
        let kernels = program.program().steps().enumerate().map(|(step, (name, kernel))| {
            let mut times: Vec<Duration> =
                all.iter().map(|(_, times, _)| times[step].time).collect();
            times.sort();
            let copied = program.program().copied_bytes(step);
            let other = if copied.is_some() { COPY } else { EXCHANGE };
            let bytes = copied.unwrap_or(0) as u64;
            let moved = || Cost { read: bytes, written: bytes, flops: 0 };
            let (module, source) = program.program().recorded_at(step);
            KernelProfile {
                name: name.to_owned(),
                form: kernel.map_or(other, Kernel::form_name),
                module: module.to_owned(),
                source_line: source.to_string(),
                schedule: program.schedule(step),
                time: times[runs / 2],
                cost: kernel.map_or_else(moved, cost),
                typical: typical[step],
            }
        });
        let kernels: Vec<KernelProfile> = kernels.collect();
        let exchanges = exchanged.iter().map(|timing| {
            let (from, to) = (timing.flight.start, timing.flight.start + timing.flight.time);
            let meanwhile = |k: &&KernelProfile| {
                k.form != EXCHANGE
                    && k.typical.start < to
                    && k.typical.start + k.typical.time > from
            };
            let behind = kernels.iter().filter(meanwhile).map(|k| k.name.clone()).collect();
            ExchangeProfile { timing: timing.clone(), behind }
        });
        let exchanges = exchanges.collect();
        Ok(Profile { kernels, exchanges, run: *run, runs, limits })
    }

    /// The time that the kernels take where each is as fast as a good one on this machine: the sum
    /// of [`KernelProfile::attainable`]. `None` if the limits were not measured.
    pub fn attainable(&self) -> Option<Duration> {
        let limits = self.limits?;
        Some(self.kernels.iter().map(|kernel| kernel.attainable(limits)).sum())
    }

    /// The time in kernels: the sum of their medians.
    pub fn in_kernels(&self) -> Duration {
        self.kernels.iter().map(|kernel| kernel.time).sum()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.kernels.iter().map(|k| k.name.len()).max().unwrap_or(0).clamp(6, 60);
        writeln!(
            f,
            "{:<width$}  {:<11}  {:>9}  {:>5}  {:>8}  {:>8}  {:>7}  {:>8}  recorded at",
            "kernel", "form", "µs", "share", "KiB", "GFLOP/s", "GB/s", "of limit"
        )?;
        let total = self.in_kernels().as_secs_f64().max(1e-9);
        for kernel in &self.kernels {
            let share = 100.0 * kernel.time.as_secs_f64() / total;
            let limit = self.limits.map(|c| format!("{:.0} %", 100.0 * kernel.of_limit(c)));
            writeln!(
                f,
                "{:<width$}  {:<11}  {:>9.2}  {:>3.0} %  {:>8.1}  {:>8.2}  {:>7.2}  {:>8}  {}{}{}",
                kernel.name,
                kernel.form,
                kernel.time.as_secs_f64() * 1e6,
                share,
                kernel.cost.bytes() as f64 / 1024.0,
                kernel.gflops(),
                kernel.gbytes(),
                limit.unwrap_or_else(|| "–".to_owned()),
                kernel.module,
                if kernel.module.is_empty() || kernel.source_line.is_empty() { "" } else { ", " },
                kernel.source_line,
            )?;
            kernel.schedule.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        write!(
            f,
            "{} step{}: {:.2} µs in kernels, {:.2} µs a run (medians of {})",
            self.kernels.len(),
            if self.kernels.len() == 1 { "" } else { "s" },
            self.in_kernels().as_secs_f64() * 1e6,
            self.run.as_secs_f64() * 1e6,
            self.runs
        )?;
        if let Some(Limits { flops, bytes }) = self.limits {
            write!(f, "; limits {:.1} GFLOP/s, {:.1} GB/s", flops / 1e9, bytes / 1e9)?;
        }
        if let Some(time) = self.attainable() {
            let (peak, rate) = (100.0 * OF_PEAK, 100.0 * OF_RATE);
            let us = time.as_secs_f64() * 1e6;
            write!(f, "; {us:.2} µs at {peak:.0} % and {rate:.0} % of them")?;
        }
        writeln!(f)?;
        self.exchanges.iter().try_for_each(|exchange| writeln!(f, "{exchange}"))
    }
}
