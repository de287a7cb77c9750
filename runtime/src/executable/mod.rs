//! [`Executable`]: a program whose kernels a device has compiled, ready to run.

mod arenas;
mod away;
mod binding;
mod bytes;
mod command;
mod exchange;
mod family;
mod inputs;
mod kept;
mod load;
mod load_program;
mod queued;
mod results;
mod session;
mod started;
mod timing;
mod workspace;

pub use exchange::ExchangeTiming;
pub use family::Family;
pub use load::FallbackLaunch;
pub use session::Session;
pub use started::Started;
pub use timing::Timing;

use crate::cancel;
use crate::collective::{Collective, OneRank};
use crate::device::{Device, Launch, Made, alloc};
use crate::error::{Error, Result};
use crate::layout::{Abilities, Layout, Place, Step};
use crate::loan::HostLoan;
use crate::memory::Memory;
use crate::output_pool::OutputPool;
use crate::outputs::{Outputs, Values};
use crate::program::Program;
use crate::store::{Spares, Store};
use crate::submitted::Input;
use crate::tensor::Tensor;
use arenas::Arenas;
use away::{Transfer, transfers};
use binding::{Binding, Workspace};
use command::{Command, named};
use exchange::Ranks;
use inputs::{Given, Inputs};
use kept::Kept;
use load::Loaded;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use timing::Clock;
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::{Port, TensorType};

/// A program loaded on a device. Any number of threads may run it at the same time, each with a
/// store of its own.
pub struct Executable {
    program: Program,
    device: Arc<dyn Device>,
    launches: Vec<Arc<dyn Launch>>,
    /// For each kernel why the device refused it, if it did: it runs on the fallback.
    refused: Vec<Option<String>>,
    /// For each kernel the values of its names.
    sizes: Vec<SmallVec<[i64; 4]>>,
    arenas: Arc<Arenas>,
    /// The numbers that the program brings.
    data: Arc<[Memory]>,
    /// What the launches of a step keep for the next run.
    kept_bytes: usize,
    output_names: Arc<[String]>,
    compile_time: Duration,
    /// Who it is.
    token: Arc<()>,
    inputs: Inputs,
    /// What the exchanges of the program go over, once there is something.
    ranks: Option<Arc<Ranks>>,
    pool: Mutex<Pool>,
    /// Memory that no state and no step in flight needs any more.
    spares: Arc<Spares>,
    output_pool: Arc<OutputPool>,
    /// Results are written to the memory of earlier ones that nobody holds.
    reuses_outputs: bool,
}

/// What is kept between runs.
#[derive(Default)]
struct Pool {
    workspaces: Vec<Workspace>,
    /// With room, and nothing in them.
    lists: Vec<Lists>,
}

/// What a run notes down.
#[derive(Default)]
struct Lists {
    states: Vec<Memory>,
    given: Given,
    kept: Kept,
}

/// Where the value of an output comes from.
enum Source {
    /// It is copied to this tensor.
    Copied(Tensor),
    /// Kernels write it to a tensor that is lent to them.
    Lent(usize),
    /// It is that of another output before it.
    Output(usize),
    /// It is that of an input.
    Input(usize),
}

impl Executable {
    pub(crate) fn new(
        mut program: Program,
        device: Arc<dyn Device>,
        fallback: Option<&Arc<dyn Device>>,
    ) -> Result<Self> {
        let kernels: Vec<&Kernel> = program.parts.kernels.iter().map(|kernel| &**kernel).collect();
        let start = Instant::now();
        let loaded = load::load(&device, fallback, &kernels)?;
        let compile_time = start.elapsed();
        program.lay_out(Abilities::of(&*device, loaded.is_partly_away()));
        let sizes = vec![SmallVec::new(); loaded.launches.len()];
        let data = contents_on(&*device, std::mem::take(&mut program.contents))?;
        let memory = (Arc::new(Arenas::of(&device, 0)), data);
        let mut executable = Executable::of(program, device, loaded, sizes, memory);
        executable.compile_time = compile_time;
        Ok(executable)
    }

    /// A program whose kernels are loaded.
    fn of(
        program: Program,
        device: Arc<dyn Device>,
        Loaded { launches, refused }: Loaded,
        sizes: Vec<SmallVec<[i64; 4]>>,
        (arenas, data): (Arc<Arenas>, Arc<[Memory]>),
    ) -> Self {
        let inputs = Inputs::of(&program.parts.ports);
        let output_names = program.parts.outputs.iter().map(|(name, _)| name.clone()).collect();
        // Launches of a kernel share copies of a state: two of one that changes in each run.
        let mut known = HashSet::new();
        let changes = |at: &Place| matches!(at, Place::State(i) if !program.layout.only_read[*i]);
        let keeps = |step: &Step| {
            let lasting = step.operands.iter().enumerate().filter(|(_, operand)| operand.lasting);
            let (lasting, places): (Vec<usize>, Vec<Place>) =
                lasting.map(|(i, operand)| (i, operand.place)).unzip();
            let copies = 1 + usize::from(places.iter().any(changes));
            let kernel = step.work.kernel().filter(|kernel| known.insert((*kernel, places)));
            let kept = |kernel: usize| launches[kernel].kept_bytes(&lasting, &sizes[kernel]);
            kernel.map_or(0, kept).saturating_mul(copies)
        };
        let kept_bytes = program.layout.steps.iter().map(keeps).fold(0, usize::saturating_add);
        let alone = program.ranks() == Some(1);
        let buckets = &program.parts.buckets;
        let one = || Arc::new(Ranks::new(Arc::new(OneRank), 0, buckets, &*device));
        let ranks = alone.then(one);
        Executable {
            ranks,
            program,
            device,
            launches,
            refused,
            sizes,
            arenas,
            data,
            kept_bytes,
            output_names,
            compile_time: Duration::ZERO,
            token: Arc::default(),
            inputs,
            pool: Mutex::default(),
            spares: Arc::default(),
            output_pool: OutputPool::of(true),
            reuses_outputs: true,
        }
    }

    /// The same that refuses inputs which the program does not use, or accepts them, as is the
    /// default.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.inputs.strict = strict;
        self
    }

    /// The same whose results are written to the memory of earlier ones that nobody holds any more,
    /// as is the default, or to new memory.
    #[must_use]
    pub fn reuse_outputs(mut self, reuse: bool) -> Self {
        (self.reuses_outputs, self.output_pool) = (reuse, OutputPool::of(reuse));
        self
    }

    /// The same as one rank of a parallel run: its exchanges with other ranks go over `collective`.
    /// `program` is a number that stands for what all ranks run.
    ///
    /// Of a program with collectives, one run goes on at a time.
    ///
    /// # Errors
    /// If the program is for another number of ranks.
    pub fn on_ranks(mut self, collective: Arc<dyn Collective>, program: u64) -> Result<Self> {
        if let Some(wanted) = self.program.ranks().filter(|wanted| *wanted != collective.size()) {
            let found = collective.size();
            return Err(Error::Parallel(format!(
                "the program is for {wanted} ranks, found {found}"
            )));
        }
        let buckets = &self.program.parts.buckets;
        self.ranks = Some(Arc::new(Ranks::new(collective, program, buckets, &*self.device)));
        self.pool = Mutex::default();
        Ok(self)
    }

    /// Says the number of the next step to other ranks: all have to be at the same. Otherwise runs
    /// are counted from 0.
    pub fn at_step(&self, step: u64) {
        self.ranks.iter().for_each(|ranks| ranks.at_step(step));
    }

    /// What became of the exchanges with other ranks in the last run, in the order in which they
    /// began.
    pub fn exchanges(&self) -> Vec<ExchangeTiming> {
        self.ranks.as_ref().map_or_else(Vec::new, |ranks| ranks.timings())
    }

    /// Runs one step: reads the inputs and the state, gives the outputs, and replaces the state
    /// that the program updates.
    ///
    /// # Errors
    /// If an input is missing, given twice or of another type, or not used by a
    /// [strict](Executable::strict) program; if an entry of the store is missing or of another
    /// type; if the data has no meaning for an op; if another [rank](Executable::on_ranks) fails.
    /// State is then as it was.
    pub fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        self.run_with(store, inputs, Vec::new(), None, &mut || ())
    }

    /// As [`run`](Executable::run). If the device has not got the memory for this step, `make_room`
    /// is called once before it is asked again: whoever keeps memory for later gives it up there.
    /// What steps before it tell is none of that.
    ///
    /// # Errors
    /// As those of [`run`](Executable::run).
    pub fn run_making_room(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        make_room: &mut dyn FnMut(),
    ) -> Result<Outputs> {
        self.run_with(store, inputs, Vec::new(), None, make_room)
    }

    /// As [`run`](Executable::run), with the time that each step of [`Program::steps`] takes.
    ///
    /// # Errors
    /// As those of [`run`](Executable::run).
    pub fn run_timed(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Outputs, Vec<Timing>)> {
        let times = vec![Timing::default(); self.program.layout.steps.len()];
        let mut clock = Clock { origin: Instant::now(), times };
        let outputs = self.run_with(store, inputs, Vec::new(), Some(&mut clock), &mut || ())?;
        Ok((outputs, clock.times))
    }

    fn run_with(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        results: Vec<Option<Tensor>>,
        clock: Option<&mut Clock>,
        make_room: &mut dyn FnMut(),
    ) -> Result<Outputs> {
        if self.ranks.is_none() {
            self.runs_alone()?;
        }
        let _turn = self.ranks.as_ref().map(|ranks| ranks.begin());
        let mut lists = self.pool().lists.pop().unwrap_or_default();
        lists.kept.give(results);
        let result = self.run_in(store, inputs, &mut lists, clock, make_room);
        let result =
            result.and_then(|outputs| outputs.map(|at, value| lists.kept.placed(at, value)));
        lists.kept.give(Vec::new());
        lists.states.clear();
        self.pool().lists.push(lists);
        if result.is_ok() {
            self.ranks.iter().for_each(|ranks| ranks.end());
        }
        result
    }

    /// An error if it has exchanges with other ranks.
    fn runs_alone(&self) -> Result<()> {
        let Some(ranks) = self.program.ranks() else { return Ok(()) };
        Err(Error::Parallel(format!(
            "@{} has collectives for {ranks} ranks and runs alone: run it as a step in parallel, such as `TrainStep::data_parallel`",
            self.program.name()
        )))
    }

    fn run_in(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        Lists { states, given, kept }: &mut Lists,
        clock: Option<&mut Clock>,
        make_room: &mut dyn FnMut(),
    ) -> Result<Outputs> {
        self.inputs.find(&self.program.parts.ports, inputs, given)?;
        cancel::check(|| format!("@{} before it began", self.program.name()))?;
        let _guard = self.device.enter()?;
        if let Some(queue) = self.device.queue() {
            let input = |port: usize| given[port].map(|at| Input::Host(inputs[at].1));
            return self.run_queued(queue, store, &input, clock, make_room);
        }
        // Of steps on other devices.
        store.ended()?;
        let mut workspace = match self.ready(store, states) {
            Err(Error::Fault(fault)) if fault.is_out_of_memory() => {
                make_room();
                self.ready(store, states)?
            }
            ready => ready?,
        };
        let only_read = &self.program.layout.only_read;
        let written = states.iter().zip(only_read).filter(|(_, only_read)| !**only_read);
        let written = written.map(|(state, _)| state).chain(&workspace.fresh);
        written.clone().for_each(Memory::changed);
        let tensor = |port: usize| given[port].map(|at| inputs[at].1);
        let result = self.step(&workspace, kept, &tensor, clock);
        // Steps that read state before it was written may have left copies of this version.
        written.for_each(Memory::changed);
        if result.is_ok() {
            for (fresh, state) in workspace.fresh.iter_mut().zip(&self.program.layout.fresh) {
                let name = &self.program.parts.ports[self.program.layout.states[*state]].name;
                *fresh = store.swap(name, fresh.clone());
            }
        }
        self.arenas.give_back(workspace.arena.take());
        self.pool().workspaces.push(workspace);
        result
    }

    /// The memory of a run.
    fn ready(&self, store: &mut Store, states: &mut Vec<Memory>) -> Result<Workspace> {
        let Layout { states: ports, only_read, .. } = &self.program.layout;
        states.clear();
        for (&port, &only_read) in ports.iter().zip(only_read) {
            let Port { name, ty, .. } = &self.program.parts.ports[port];
            states.push(store.memory(name, ty, &self.device, !only_read)?);
        }
        let short = |error| self.short_of_memory(error);
        let mut workspace = self.workspace(states, None).map_err(short)?;
        self.reserve(&mut workspace).map_err(short)?;
        Ok(workspace)
    }

    /// Everything but the exchange of fresh memory for state.
    fn step<'t>(
        &self,
        workspace: &Workspace,
        kept: &mut Kept,
        tensor: &dyn Fn(usize) -> Option<&'t Tensor>,
        clock: Option<&mut Clock>,
    ) -> Result<Outputs> {
        let layout = &self.program.layout;
        for (port, place) in layout.inputs.iter().enumerate() {
            let Some(tensor) = tensor(port) else { continue };
            match place {
                Some(Place::Arena(at)) => {
                    self.device.upload(tensor.bytes(), workspace.arena(), *at)?;
                }
                Some(Place::Lent(i)) => workspace.loans[*i].get::<HostLoan>()?.lend(tensor),
                _ => {}
            }
        }
        let result = self.launch(workspace, kept, tensor, clock);
        if result.is_err() {
            for loan in &workspace.loans {
                loan.get::<HostLoan>()?.take();
            }
        }
        result
    }

    /// Takes memory for the outputs, runs the kernels, and makes tensors of the outputs.
    fn launch<'t>(
        &self,
        workspace: &Workspace,
        kept: &mut Kept,
        tensor: &dyn Fn(usize) -> Option<&'t Tensor>,
        clock: Option<&mut Clock>,
    ) -> Result<Outputs> {
        let layout = &self.program.layout;
        // Taken before the kernels run: once state is written nothing may fail any more.
        let mut sources: SmallVec<[Source; 8]> = SmallVec::new();
        for (output, place) in layout.outputs.iter().enumerate() {
            sources.push(self.output_source(workspace, kept, output, *place)?);
        }
        let binding = &workspace.bindings[0];
        self.run_steps(binding, clock)?;
        let mut values = Values::new();
        for (output, (source, place)) in sources.into_iter().zip(&layout.outputs).enumerate() {
            let value = match source {
                Source::Copied(mut value) => {
                    let (memory, at) = self.locate(*place, workspace, binding);
                    if let Some(bytes) = value.own_bytes() {
                        self.device.download(memory, at, bytes)?;
                    }
                    self.remember(kept, output, &value);
                    value
                }
                Source::Lent(i) => {
                    let value = workspace.loans[i].get::<HostLoan>()?.take();
                    let value = value.ok_or_else(|| Error::Device("a loan was lost".to_owned()))?;
                    self.remember(kept, output, &value);
                    value
                }
                Source::Output(other) => values[other].clone(),
                Source::Input(port) => tensor(port).cloned().ok_or_else(|| {
                    let name = &self.program.parts.ports[port].name;
                    Error::input(name, "is missing though it was there before the run")
                })?,
            };
            values.push(value);
        }
        for loan in &workspace.loans {
            loan.get::<HostLoan>()?.take();
        }
        Ok(Outputs::new(self.output_names.clone(), values))
    }

    /// Runs the steps, and waits for their end.
    fn run_steps(&self, binding: &Binding, mut clock: Option<&mut Clock>) -> Result<()> {
        let limited = cancel::is_limited();
        let count = self.program.layout.steps.len();
        let check = |i: usize| match limited && i <= self.program.layout.first_write {
            true => cancel::check(|| {
                format!("@{} in front of step {i} of {count}", self.program.name())
            }),
            false => Ok(()),
        };
        let steps = || binding.commands.iter().zip(&self.program.layout.steps);
        if let Some(queue) = self.device.queue() {
            let Some(clock) = clock else {
                return queue.run(&mut |queue| {
                    steps().try_for_each(|(command, step)| command.give(&step.name, queue))
                });
            };
            let one = |(i, (command, step)): (usize, (&Command, &Step))| {
                clock.time(i, || queue.run(&mut |queue| command.give(&step.name, queue)))
            };
            return steps().enumerate().try_for_each(one);
        }
        let mut all = || {
            for (i, (command, step)) in steps().enumerate() {
                check(i)?;
                let done = match &mut clock {
                    Some(clock) => clock.time(i, || command.run()),
                    None => command.run(),
                };
                done.map_err(|error| named(error, &step.name))?;
            }
            Ok(())
        };
        if binding.is_shared { self.device.run_step(&mut all) } else { all() }
    }

    /// Where the bytes of an output will be found.
    fn output_source(
        &self,
        workspace: &Workspace,
        kept: &mut Kept,
        output: usize,
        place: Place,
    ) -> Result<Source> {
        let layout = &self.program.layout;
        let Place::Lent(loan) = place else {
            return Ok(Source::Copied(kept.fresh(output, self.output_type(output))?));
        };
        if let Some(port) = layout.inputs.iter().position(|input| *input == Some(place)) {
            return Ok(Source::Input(port));
        }
        if let Some(other) = layout.outputs[..output].iter().position(|other| *other == place) {
            return Ok(Source::Output(other));
        }
        workspace.loans[loan]
            .get::<HostLoan>()?
            .lend_to_write(kept.fresh(output, self.output_type(output))?);
        Ok(Source::Lent(loan))
    }

    /// Keeps the value of an output for a later run, if results may use memory again.
    fn remember(&self, kept: &mut Kept, output: usize, value: &Tensor) {
        if self.reuses_outputs {
            kept.remember(output, value);
        }
    }

    fn output_type(&self, output: usize) -> &TensorType {
        &self.program.parts.values[self.program.parts.outputs[output].1]
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The number of kernels a step launches. Copies of state that cannot be updated in place are
    /// not among them; see [`Program::copies`].
    pub fn kernels(&self) -> usize {
        self.program.kernels().count()
    }

    /// The launches of a run that happen on the fallback, in order.
    pub fn fallback_launches(&self) -> impl Iterator<Item = FallbackLaunch> {
        self.program.layout.steps.iter().filter_map(|step| {
            let reason = self.refused.get(step.work.kernel()?)?.clone()?;
            let operands = step.operands.iter();
            let places = operands.map(|operand| ((operand.place, operand.bytes), operand.access));
            let bytes = transfers(places).into_iter().map(|transfer| {
                let Transfer { first, is_read, is_written } = transfer;
                step.operands[first].bytes * (usize::from(is_read) + usize::from(is_written))
            });
            Some(FallbackLaunch { kernel: step.name.to_string(), reason, bytes: bytes.sum() })
        })
    }

    /// How long the device took to compile the kernels.
    pub fn compile_time(&self) -> Duration {
        self.compile_time
    }

    /// The kernels, and how their code came to be where the device keeps account of that.
    pub fn made(&self) -> impl Iterator<Item = (&Kernel, Option<&Made>)> {
        let made = self.launches.iter().map(|launch| launch.made());
        self.program.parts.kernels.iter().map(|kernel| &**kernel).zip(made)
    }

    /// How the step of that number computes its product, in one line, if it is one and the device
    /// can tell; see [`Launch::schedule`].
    pub fn schedule(&self, step: usize) -> Option<String> {
        let kernel = self.program.layout.steps.get(step)?.work.kernel()?;
        self.launches[kernel].schedule(&self.sizes[kernel])
    }

    /// The distinct kernels and their code as text, where the device can show it.
    pub fn code(&self) -> impl Iterator<Item = (&Kernel, Option<String>)> {
        self.program
            .parts
            .kernels
            .iter()
            .map(|kernel| &**kernel)
            .zip(&self.launches)
            .map(|(kernel, launch)| (kernel, launch.text()))
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable(@{} on {})", self.program.name(), self.device.name())
    }
}

/// The memory of the numbers that a program brings.
fn contents_on(device: &dyn Device, contents: Vec<Value>) -> Result<Arc<[Memory]>> {
    let _guard = device.enter()?;
    let memory = |value: Value| {
        device.adopt(value.bytes).or_else(|bytes| {
            let memory = alloc(device, bytes.len())?;
            device.upload(&bytes, &memory, 0)?;
            Ok(memory)
        })
    };
    contents.into_iter().map(memory).collect()
}
