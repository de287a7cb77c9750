//! [`CpuDevice`]: the CPU as a device of the runtime.

use crate::code::cache::{self, Program};
use crate::code::disk::Disk;
use crate::code::listing;
use crate::error::{Error, no_scratch, with_memory};
use crate::machine::{Cpu, Machine, Vectors};
use crate::plan::numbers::Numbers;
use crate::plan::{self, BoundDispatch};
use crate::run::{self, AllPacked, Driver, Invocation, Need, PackedWeights, Packing, Slots};
use crate::status;
use crate::target::{Target, target};
use crate::threads::Team;
use smallvec::SmallVec;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::{FormKind, Kernel};
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{NamedSize, Values};
use tracecast_runtime::{
    Arg, Bound, Capabilities, Device, Error as RuntimeError, HostLoan, HostMemory, Launch,
    MachineCode, Made, Memory, Merging, Result,
};

/// How a [`CpuDevice`] computes. Results do not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// How many threads share a kernel's work; as many as the machine runs at once if `None`.
    pub threads: Option<usize>,
    /// The vector instructions to use.
    pub vectors: Vectors,
    /// Keep compiled kernels in this folder, and use those that are there. It is made if it is not
    /// there; nobody but the user of this process may be able to write to it. Beyond 256 MiB those
    /// go that were used longest ago.
    pub code_cache: Option<PathBuf>,
    /// Pack weights anew in every run. Otherwise packed copies are kept of those that a program
    /// only reads, where that makes it faster.
    pub forget_weights: bool,
    /// How many threads compile kernels, at most; all of them if `None`.
    pub compile_threads: Option<usize>,
}

/// The CPU: compiles kernels to machine code and runs them in the memory of the host.
#[derive(Clone)]
pub struct CpuDevice {
    shared: Arc<Shared>,
}

struct Shared {
    vectors: Vectors,
    forget_weights: bool,
    compile_threads: usize,
    target: Target,
    machine: Machine,
    team: Team,
    disk: Option<Disk>,
    /// Weights that bindings of all kernels keep packed.
    packed: AllPacked,
    /// What has been reserved on all threads of the team.
    reserved: Mutex<Need>,
}

impl CpuDevice {
    /// The CPU that the process runs on.
    ///
    /// # Errors
    /// If there is no code generator for it, its threads cannot be started, or the folder for
    /// compiled kernels is not this user's alone.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let vectors = if cfg!(feature = "portable") { Vectors::Portable } else { options.vectors };
        let target = target(vectors)?;
        let team = Team::new(options.threads)?;
        let disk = options.code_cache.map(|folder| Disk::open(&folder)).transpose();
        let disk = disk.map_err(RuntimeError::Device)?;
        let forget_weights = options.forget_weights;
        let compile_threads = options.compile_threads.unwrap_or(usize::MAX);
        let shared = Shared {
            vectors,
            forget_weights,
            compile_threads,
            machine: Machine { cpu: Cpu::fast(target.instructions), threads: team.threads() },
            target,
            team,
            disk,
            packed: AllPacked::default(),
            reserved: Mutex::default(),
        };
        Ok(CpuDevice { shared: Arc::new(shared) })
    }

    /// Compiles the kernels of one program.
    ///
    /// # Errors
    /// If there is no code for one of them.
    pub(crate) fn loaded(&self, kernels: &[&Kernel]) -> Result<Vec<Loaded>> {
        let Shared { target, team, compile_threads, disk, .. } = &*self.shared;
        // Names have their numbers for names, so that equal layers share code. The first class is
        // that of the traced sizes.
        let renumbered = |kernel: &&Kernel| match kernel.names.is_empty() {
            true => Arc::new((*kernel).clone()),
            false => Arc::new(kernel.renumbered()),
        };
        let kernels: Vec<Renumbered<'_>> = kernels
            .iter()
            .map(|kernel| (*kernel, renumbered(kernel)))
            .map(|(named, kernel)| (named, kernel.clone(), kernel.hints()))
            .collect();
        let wanted: Vec<_> = kernels.iter().map(|(_, kernel, sizes)| (&**kernel, sizes)).collect();
        let programs = cache::load(target, (team, *compile_threads), disk.as_ref(), &wanted)?;
        let launch = |((named, kernel, _), (program, made)): (Renumbered<'_>, _)| Loaded {
            names: named.names.clone(),
            kernel,
            programs: Mutex::new(vec![program]),
            made,
            shared: self.shared.clone(),
        };
        Ok(kernels.into_iter().zip(programs).map(launch).collect())
    }
}

/// A kernel, the same whose names are numbered, and the sizes that it was traced with.
type Renumbered<'k> = (&'k Kernel, Arc<Kernel>, Values);

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { team, vectors, .. } = &*self.shared;
        write!(f, "CpuDevice({} threads, {vectors} vectors)", team.threads())
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        "cpu"
    }

    fn serves(&self) -> Option<DeviceType> {
        Some(DeviceType::Cpu)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sizes: FormKind::ALL.to_vec(),
            forms: FormKind::ALL.to_vec(),
            ..Capabilities::default()
        }
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        let mut all = self.load_all(&[kernel])?;
        all.pop().ok_or_else(|| RuntimeError::Device("no kernel".to_owned()))
    }

    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn Launch>>> {
        let launch = |loaded| Box::new(loaded) as Box<dyn Launch>;
        Ok(self.loaded(kernels)?.into_iter().map(launch).collect())
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        Ok(Memory::new(HostMemory::new(bytes)?))
    }

    fn adopt(&self, bytes: Bytes) -> std::result::Result<Memory, Bytes> {
        HostMemory::adopt(bytes).map(Memory::new)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        to.get::<HostMemory>()?.write(at, from)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        from.get::<HostMemory>()?.read(at, to)
    }

    fn bind_copy(&self, from: &Arg, to: &Arg) -> Result<Option<Box<dyn Bound>>> {
        let copy = run::BoundCopy::new(from, to)?;
        Ok(Some(Box::new(Copying { copy, shared: self.shared.clone() })))
    }

    fn run_step(&self, body: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        self.shared.team.wake();
        body()
    }

    fn launches_are_infallible(&self) -> bool {
        true
    }

    fn takes_loans(&self) -> bool {
        true
    }

    fn merges(&self) -> bool {
        true
    }

    fn merge(
        &self,
        from: &[(&Memory, usize)],
        to: &[(&Memory, usize)],
        len: usize,
        with: &mut Merging<'_>,
    ) -> Result<()> {
        crate::run::merge(from, to, len, with)
    }
}

/// A compiled kernel.
pub(crate) struct Loaded {
    /// Its names as they are called where it comes from, with their bounds.
    names: Vec<NamedSize>,
    /// The kernel, whose names have their numbers for names.
    kernel: Arc<Kernel>,
    /// Its code for the classes of sizes that have been met.
    programs: Mutex<Vec<Arc<Program>>>,
    made: Made,
    shared: Arc<Shared>,
}

impl Loaded {
    fn wrong_sizes(&self, why: String) -> RuntimeError {
        Error::Sizes { kernel: self.kernel.name.clone(), why }.into()
    }

    /// The values of the kernel's names. Code relies on their bounds.
    fn values(&self, sizes: &[i64]) -> Result<Values> {
        let (expected, found) = (self.names.len(), sizes.len());
        if found != expected {
            return Err(self.wrong_sizes(format!("{found} values for {expected} names of sizes")));
        }
        let wrong = self.names.iter().zip(sizes).find(|(name, value)| !name.admits(**value));
        match wrong {
            Some((name, value)) => {
                let why = format!("`{}` is {value}, expected {}", name.name, name.bounds());
                Err(self.wrong_sizes(why))
            }
            None => Ok(self.kernel.values(sizes)),
        }
    }

    /// The code for the class of these sizes, which is compiled if it has not been met.
    fn program(&self, values: &Values) -> Result<Arc<Program>> {
        let programs = || self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |program: &&Arc<Program>| program.fits(&Numbers::new(values));
        let known = programs().iter().find(fits).cloned();
        if let Some(program) = known {
            return Ok(program);
        }
        // Without the lock: sizes that are known wait for no code.
        let Shared { target, team, disk, .. } = &*self.shared;
        let wanted = (&*self.kernel, values);
        let loaded = cache::load(target, (team, 1), disk.as_ref(), &[wanted])?.pop();
        let (program, _) = loaded.ok_or_else(|| self.wrong_sizes("no code".to_owned()))?;
        let mut programs = programs();
        if !programs.iter().any(|known| Arc::ptr_eq(known, &program)) {
            programs.push(program.clone());
        }
        Ok(program)
    }

    /// Memory of a binding.
    fn room(&self, bytes: usize) -> Result<HostMemory> {
        HostMemory::new(bytes).map_err(|error| {
            let message =
                format!("kernel @{}: {bytes} bytes of scratch: {error}", self.kernel.name);
            RuntimeError::Device(message)
        })
    }

    /// How a run keeps something for the next, if these inputs last.
    fn packing(&self, dispatch: &BoundDispatch, lasting: &[usize]) -> Option<Packing> {
        let Shared { machine, forget_weights, .. } = &*self.shared;
        (!forget_weights).then(|| run::packing(dispatch, machine, lasting)).flatten()
    }

    /// Errors unless there is an operand for each of the kernel's, with as many bytes.
    fn check_operands(&self, args: &[Arg], sizes: &Numbers<'_>) -> Result<()> {
        let kernel = &self.kernel;
        let types = kernel.inputs.iter().chain(kernel.outputs.iter().map(|o| &o.ty));
        let bytes = types.map(|ty| sizes.count(ty.bytes())).collect::<std::result::Result<_, _>>();
        let bytes: Vec<usize> = bytes.map_err(|why| self.wrong_sizes(why))?;
        let fits =
            bytes.len() == args.len() && bytes.iter().zip(args).all(|(size, arg)| *size <= arg.len);
        if fits {
            return Ok(());
        }
        let found: Vec<usize> = args.iter().map(|a| a.len).collect();
        let message = format!("expected operands of {bytes:?} bytes, found {found:?}");
        Err(Error::Operands { kernel: kernel.name.clone(), message }.into())
    }
}

impl Loaded {
    /// Its code for these sizes, and how a run is cut; `None` if there is none.
    fn at(&self, sizes: &[i64]) -> Option<(Arc<Program>, BoundDispatch)> {
        let values = self.values(sizes).ok()?;
        let program = self.program(&values).ok()?;
        let dispatch = program.dispatch.at(&Numbers::new(&values)).ok()?;
        Some((program, dispatch))
    }
}

impl Launch for Loaded {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        let names = SmallVec::from_slice(sizes);
        let values = self.values(sizes)?;
        let program = self.program(&values)?;
        let sizes = Numbers::new(&values);
        self.check_operands(args, &sizes)?;
        let wrong = |why| self.wrong_sizes(why);
        let dispatch = program.dispatch.at(&sizes).map_err(wrong)?;
        let operands = Slots::with_sizes(&program.table.bits(&self.kernel, &sizes).map_err(wrong)?);
        let mut places = Addresses { operands, prepared: Vec::new() };
        let places = if args.iter().any(|arg| arg.memory.find::<HostLoan>().is_some()) {
            Places::Lent(args.to_vec(), Mutex::new(places))
        } else {
            places.operands.refill(args)?;
            run::prepare(&dispatch, &places.operands, &mut places.prepared);
            let memory = args.iter().map(|a| a.memory.clone()).collect();
            Places::Fixed { places, _memory: memory }
        };
        let lasting: Vec<usize> = (0..args.len()).filter(|i| args[*i].lasting).collect();
        let packing = self.packing(&dispatch, &lasting);
        let code = Arc::as_ptr(&program).addr();
        let machine = &self.shared.machine;
        let need = Need::of(&program, &dispatch, machine, packing.as_ref());
        let room = run::room(&dispatch, machine).map(|bytes| self.room(bytes)).transpose()?;
        let driver = run::driver(&dispatch, machine);
        let kept = packing.map(|packing| self.shared.packed.of(packing, (code, &names), args));
        Ok(Box::new(BoundKernel {
            kernel: self.kernel.clone(),
            sizes: names,
            program,
            dispatch,
            driver,
            shared: self.shared.clone(),
            places,
            kept,
            room,
            need,
        }))
    }

    fn kept_bytes(&self, lasting: &[usize], sizes: &[i64]) -> usize {
        let Some((_, dispatch)) = self.at(sizes) else { return 0 };
        let packed = self.packing(&dispatch, lasting).map_or(0, |packing| packing.bytes());
        packed.saturating_add(run::room(&dispatch, &self.shared.machine).unwrap_or(0))
    }

    fn scratch_bytes(&self, sizes: &[i64]) -> usize {
        let Some((program, dispatch)) = self.at(sizes) else { return 0 };
        // More than it takes without packed weights.
        let all: Vec<usize> = (0..self.kernel.inputs.len()).collect();
        let packing = self.packing(&dispatch, &all);
        let machine = &self.shared.machine;
        let need = Need::of(&program, &dispatch, machine, packing.as_ref());
        need.bytes(if run::is_shared(&dispatch, machine) { machine.threads } else { 1 })
    }

    fn schedule(&self, sizes: &[i64]) -> Option<String> {
        run::schedule(&self.at(sizes)?.1, &self.shared.machine)
    }

    fn text(&self) -> Option<String> {
        // What is precompiled has no code of its own.
        listing::text(&self.shared.target, &self.kernel).ok().filter(|text| !text.is_empty())
    }

    fn plan(&self, until: Option<&str>) -> Result<Option<String>> {
        let Loaded { kernel, shared, .. } = self;
        Ok(Some(match until {
            Some(name) => plan::text::until(kernel, name)?,
            None => {
                let schedule = run::schedule_text(kernel, &shared.machine)?;
                let line = schedule.map_or(String::new(), |line| format!("schedule {line}\n"));
                line + &plan::text::finished(kernel, shared.target.vector_loops())?
            }
        }))
    }

    fn machine_code(&self) -> Vec<MachineCode> {
        listing::machine_code(&self.shared.target, &self.kernel).unwrap_or_default()
    }

    fn made(&self) -> Option<&Made> {
        Some(&self.made)
    }
}

/// A compiled kernel with the addresses of its operands.
struct BoundKernel {
    kernel: Arc<Kernel>,
    /// The values of its names.
    sizes: SmallVec<[i64; 4]>,
    program: Arc<Program>,
    dispatch: BoundDispatch,
    driver: Option<Driver>,
    shared: Arc<Shared>,
    places: Places,
    kept: Option<PackedWeights>,
    /// What threads share during a run, if that is much.
    room: Option<HostMemory>,
    /// What its runs take on each thread besides.
    need: Need,
}

/// Where the operands are.
enum Places {
    Fixed {
        places: Addresses,
        /// Keeps the addresses valid.
        _memory: Vec<Memory>,
    },
    /// Some of them in another place in each run; there is room for the addresses.
    Lent(Vec<Arg>, Mutex<Addresses>),
}

/// The addresses of operands, and what a run makes of them.
struct Addresses {
    operands: Slots,
    prepared: Vec<Slots>,
}

impl Bound for BoundKernel {
    fn is_shared(&self) -> bool {
        run::is_shared(&self.dispatch, &self.shared.machine)
    }

    fn reserve(&self) -> Result<()> {
        let missing = |bytes: usize| no_scratch(&self.kernel.name, bytes);
        self.need.reserve().map_err(missing)?;
        if !self.is_shared() {
            return Ok(());
        }
        let mut reserved = self.shared.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let all = reserved.max(self.need);
        if all != *reserved {
            let failed = Mutex::new(None);
            self.shared.team.on_others(|| {
                if let Err(bytes) = all.reserve() {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
                }
            });
            let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
            failed.map_or(Ok(()), |bytes| Err(missing(bytes)))?;
            *reserved = all;
        }
        Ok(())
    }

    fn run(&self) -> Result<()> {
        let run = || match &self.places {
            Places::Fixed { places, .. } => self.run_at(places),
            Places::Lent(args, places) => {
                let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
                let Addresses { operands, prepared } = &mut *places;
                operands.refill(args)?;
                run::prepare(&self.dispatch, operands, prepared);
                self.run_at(&places)
            }
        };
        with_memory(&self.kernel.name, || self.need.held_to(run))
    }
}

/// A copy, on the threads of the device.
struct Copying {
    copy: run::BoundCopy,
    shared: Arc<Shared>,
}

impl Bound for Copying {
    fn is_shared(&self) -> bool {
        self.copy.is_shared(&self.shared.team)
    }

    fn run(&self) -> Result<()> {
        self.copy.run(&self.shared.team)
    }
}

impl BoundKernel {
    fn run_at(&self, places: &Addresses) -> Result<()> {
        let Addresses { operands, prepared } = places;
        if let Some(when) = self.kernel.when
            && operands.read_f32(when) != 0.0
        {
            return Ok(());
        }
        let status = status::fine();
        let Shared { machine, team, .. } = &*self.shared;
        let program = &*self.program;
        let (dispatch, status) = (&self.dispatch, &status);
        let (driver, room) = (self.driver.as_ref(), self.room.as_ref());
        let invocation =
            Invocation { program, dispatch, machine, team, operands, prepared, room, status };
        match &self.kept {
            Some(kept) => {
                kept.with(|to| invocation.pack(to), |packed| invocation.run(driver, packed))
            }
            None => invocation.run(driver, None),
        }
        match status::raised(status) {
            None => Ok(()),
            Some((check, found)) => {
                Err(RuntimeError::data(&self.kernel, &self.sizes, check, found))
            }
        }
    }
}

#[cfg(test)]
impl CpuDevice {
    /// How many packed copies of operands its bindings share.
    pub(crate) fn packed_copies(&self) -> usize {
        self.shared.packed.count()
    }
}

#[cfg(test)]
impl Loaded {
    /// For how many classes of sizes there is code.
    pub(crate) fn classes(&self) -> usize {
        self.programs.lock().unwrap().len()
    }

    /// True if the first class of both has the same code.
    pub(crate) fn shares_code_with(&self, other: &Loaded) -> bool {
        let first = |of: &Loaded| of.programs.lock().unwrap()[0].clone();
        Arc::ptr_eq(&first(self), &first(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{gelu, inputs, place};

    #[test]
    fn equal_kernels_share_their_code_and_text_has_names() {
        let device =
            CpuDevice::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
        let sizes: Vec<usize> = (0..20).map(|i| 5000 + i % 17).collect();
        let mut kernels: Vec<Kernel> = sizes.iter().map(|n| gelu(*n)).collect();
        kernels[19].name = "another".to_owned();
        let none = Values::default();
        let all: Vec<_> = kernels.iter().map(|kernel| (kernel, &none)).collect();
        let Shared { target, team, .. } = &*device.shared;
        let programs = cache::load(target, (team, 8), None, &all).unwrap();
        assert!(
            Arc::ptr_eq(&programs[2].0, &programs[19].0)
                && !Arc::ptr_eq(&programs[0].0, &programs[1].0)
        );
        let again = cache::load(target, (team, 8), None, &all[..1]).unwrap();
        assert!(Arc::ptr_eq(&programs[0].0, &again[0].0));
        let text = device.load(&kernels[0]).unwrap().text().unwrap();
        assert!(text.contains("@tanh_tile") || text.contains("vfmaddps"), "{text}");
    }

    #[test]
    fn operands_that_do_not_fit_are_an_error() {
        let device =
            CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let kernel = gelu(100);
        let memory = device.alloc(256).unwrap();
        let arg = |len| Arg {
            memory: memory.clone(),
            offset: 0,
            len,
            access: tracecast_runtime::Access::Read,
            lasting: false,
        };
        let launch = device.load(&kernel).unwrap();
        assert!(launch.bind(&[arg(256), arg(256)], &[]).is_err());
        assert!(launch.bind(&[arg(400), arg(400)], &[]).is_err());
        assert!(launch.bind(&[], &[]).is_err());
        let foreign = Arg { memory: Memory::new(5), ..arg(400) };
        assert!(launch.bind(&[foreign.clone(), foreign], &[]).is_err());
    }

    #[test]
    fn code_outlives_the_device_and_the_launch() {
        let kernel = gelu(40);
        let device =
            CpuDevice::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let placed = place(&device, &kernel, &inputs(&kernel, 1, false));
        drop(device);
        placed.bound.run().unwrap();
    }
}
