//! [`CpuDevice`]: the CPU as a device of the runtime.

use crate::code::cache::{self, Program};
use crate::code::disk::Disk;
use crate::code::listing;
use crate::error::Error;
use crate::machine::Vectors;
use crate::plan;
use crate::run::{self, Invocation, PackedWeights, Packing, Slots};
use crate::status;
use crate::target::{Target, target};
use crate::threads::Team;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::DType;
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::Kernel;
use tracecast_ir::policy::{DeviceType, PolicySet};
use tracecast_runtime::{
    AmpSupport, Arg, Bound, Device, Error as RuntimeError, HostLoan, HostMemory, Launch,
    MachineCode, Made, Memory, Result,
};

/// How a [`CpuDevice`] computes. Results do not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// How many threads share a kernel's work; as many as the machine runs at once if `None`.
    pub threads: Option<usize>,
    /// The vector instructions to use.
    pub vectors: Vectors,
    /// Keep compiled kernels in this folder, and use those that are there. It is made if it is not there; nobody but the user of this
    /// process may be able to write to it. Beyond 256 MiB those go that were used longest ago.
    pub code_cache: Option<PathBuf>,
    /// Pack weights anew in every run. Otherwise packed copies are kept of those that a program only reads, where that makes it faster.
    pub forget_weights: bool,
}

/// The CPU: compiles kernels to machine code and runs them in the memory of the host.
#[derive(Clone)]
pub struct CpuDevice {
    shared: Arc<Shared>,
}

struct Shared {
    vectors: Vectors,
    forget_weights: bool,
    target: Target,
    team: Team,
    disk: Option<Disk>,
}

impl CpuDevice {
    /// The CPU that the process runs on.
    ///
    /// # Errors
    /// If there is no code generator for it, its threads cannot be started, or the folder for compiled kernels is not this user's alone.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let vectors = if cfg!(feature = "portable") { Vectors::Portable } else { options.vectors };
        let target = target(vectors)?;
        let team = Team::new(options.threads)?;
        let disk = options.code_cache.map(|folder| Disk::open(&folder)).transpose();
        let disk = disk.map_err(RuntimeError::Device)?;
        let forget_weights = options.forget_weights;
        let shared = Shared { vectors, forget_weights, target, team, disk };
        Ok(CpuDevice { shared: Arc::new(shared) })
    }
}

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

    fn amp(&self) -> Option<AmpSupport> {
        Some(AmpSupport {
            device_type: DeviceType::Cpu,
            dtypes: vec![DType::BF16, DType::F16],
            policies: PolicySet::standard(),
        })
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        let mut all = self.load_all(&[kernel])?;
        all.pop().ok_or_else(|| RuntimeError::Device("no kernel".to_owned()))
    }

    fn load_all(&self, kernels: &[&Kernel]) -> Result<Vec<Box<dyn Launch>>> {
        let Shared { target, team, disk, .. } = &*self.shared;
        let programs = cache::load(target, team, disk.as_ref(), kernels)?;
        let launch = |(kernel, (program, made)): (&&Kernel, (Arc<Program>, Made))| {
            let loaded = Loaded {
                kernel: Arc::new((*kernel).clone()),
                program,
                made,
                shared: self.shared.clone(),
            };
            Box::new(loaded) as Box<dyn Launch>
        };
        Ok(kernels.iter().zip(programs).map(launch).collect())
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
}

/// A compiled kernel.
struct Loaded {
    kernel: Arc<Kernel>,
    program: Arc<Program>,
    made: Made,
    shared: Arc<Shared>,
}

impl Loaded {
    /// How a run keeps something for the next, if these inputs last.
    fn packing(&self, lasting: &[usize]) -> Option<Packing> {
        let Shared { target, forget_weights, .. } = &*self.shared;
        (!forget_weights).then(|| run::packing(&self.program, target, lasting)).flatten()
    }
}

impl Launch for Loaded {
    fn bind(&self, args: &[Arg], _: &[i64]) -> Result<Box<dyn Bound>> {
        let kernel = &self.kernel;
        let types = kernel.inputs.iter().chain(kernel.outputs.iter().map(|o| &o.ty));
        let sizes: Vec<usize> = types.map(|t| t.bytes().get()).collect();
        let fits =
            sizes.len() == args.len() && sizes.iter().zip(args).all(|(size, arg)| *size <= arg.len);
        if !fits {
            let found: Vec<usize> = args.iter().map(|a| a.len).collect();
            let message = format!("expected operands of {sizes:?} bytes, found {found:?}");
            return Err(Error::Operands { kernel: kernel.name.clone(), message }.into());
        }
        let places = if args.iter().any(|arg| arg.memory.find::<HostLoan>().is_some()) {
            Places::Lent(args.to_vec(), Mutex::default())
        } else {
            let mut places = Addresses { operands: Slots::of(args)?, prepared: Vec::new() };
            run::prepare(&self.program, &places.operands, &mut places.prepared);
            let memory = args.iter().map(|a| a.memory.clone()).collect();
            Places::Fixed { places, _memory: memory }
        };
        let lasting: Vec<usize> = (0..args.len()).filter(|i| args[*i].lasting).collect();
        let kept =
            self.packing(&lasting).map(|packing| PackedWeights::new(packing, args)).transpose()?;
        Ok(Box::new(BoundKernel {
            kernel: kernel.clone(),
            program: self.program.clone(),
            shared: self.shared.clone(),
            places,
            kept,
        }))
    }

    fn kept_bytes(&self, lasting: &[usize]) -> usize {
        self.packing(lasting).map_or(0, |packing| packing.bytes())
    }

    fn text(&self) -> Option<String> {
        listing::text(&self.shared.target, &self.kernel).ok()
    }

    fn plan(&self, until: Option<&str>) -> Result<Option<String>> {
        let Loaded { kernel, shared, .. } = self;
        Ok(Some(match until {
            Some(name) => plan::text::until(kernel, name)?,
            None => plan::text::finished(kernel, shared.target.vector_loops())?,
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
    program: Arc<Program>,
    shared: Arc<Shared>,
    places: Places,
    kept: Option<PackedWeights>,
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
#[derive(Default)]
struct Addresses {
    operands: Slots,
    prepared: Vec<Slots>,
}

impl Bound for BoundKernel {
    fn is_shared(&self) -> bool {
        run::is_shared(&self.program, &self.shared.team)
    }

    fn run(&self) -> Result<()> {
        match &self.places {
            Places::Fixed { places, .. } => self.run_at(places),
            Places::Lent(args, places) => {
                let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
                let Addresses { operands, prepared } = &mut *places;
                operands.refill(args)?;
                run::prepare(&self.program, operands, prepared);
                self.run_at(&places)
            }
        }
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
        let Shared { target, team, .. } = &*self.shared;
        let program = &*self.program;
        let invocation = Invocation { program, target, team, operands, prepared, status: &status };
        match &self.kept {
            Some(kept) => kept.with(|to| invocation.pack(to), |packed| invocation.run(packed)),
            None => invocation.run(None),
        }
        match status::raised(&status) {
            None => Ok(()),
            Some((check, found)) => Err(RuntimeError::data(&self.kernel, &[], check, found)),
        }
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
        let all: Vec<&Kernel> = kernels.iter().collect();
        let Shared { target, team, .. } = &*device.shared;
        let programs = cache::load(target, team, None, &all).unwrap();
        assert!(
            Arc::ptr_eq(&programs[2].0, &programs[19].0)
                && !Arc::ptr_eq(&programs[0].0, &programs[1].0)
        );
        let again = cache::load(target, team, None, &all[..1]).unwrap();
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
