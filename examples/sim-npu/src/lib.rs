//! A simulated accelerator, as a device of tracecast that lives outside of it.
//!
//! It is what a team with hardware of its own would write: a crate that depends on
//! `tracecast-runtime` alone, registers a [`Driver`] under a name, and gets autocast with its own
//! dtypes and rules, loss scaling, gradients and errors that name it. Nothing in tracecast knows
//! it.
//!
//! | file | owns |
//! |---|---|
//! | `isa` | the instruction set |
//! | `lower` | kernels become programs of it |
//! | `machine`, `alu` | what a program does to memory |
//! | `memory` | the address space of a chip |
//! | `queue` | the thread of a chip, which does one command after another |
//! | `scaling` | how chips without integers count the good steps of a loss scaler |
//! | `faults`, `clock`, `counts` | faults on purpose, virtual time, what a chip was asked for |
//! | `ways` | chips that compute otherwise, or wrongly, on purpose |
//! | `chip`, `device` | what queue and launches share of a chip; a chip as a device |
//!
//! The binary, with the feature `tool`, is the command-line tool of tracecast with these chips.
//!
//! ```
//! use sim_npu::Driver;
//! use tracecast::prelude::*;
//! use tracecast::runtime::Registry;
//!
//! # fn main() -> tracecast::Result<()> {
//! let registry = std::sync::Arc::new(Registry::new());
//! registry.register("npu", std::sync::Arc::new(Driver::default()))?;
//! let options = Options::new().registry(&registry).device("npu:1");
//! let product = jit(options, |t| {
//!     let (x, y) = (t.input("x"), t.input("y"));
//!     t.output("z", autocast(t, "npu", None, || x.matmul(y)));
//! });
//! let x = Tensor::new([1, 2], &[1.0f32, 2.0])?;
//! let y = Tensor::new([2, 1], &[3.0f32, 4.0])?;
//! let out = product.run(&mut Store::new(), &[("x", &x), ("y", &y)])?;
//! assert_eq!((out["z"].dtype(), out["z"].to_f64s()), (DType::BF16, vec![11.0]));
//! # Ok(())
//! # }
//! ```

mod alu;
mod chip;
mod clock;
mod counts;
pub mod device;
pub mod faults;
pub mod isa;
pub mod lower;
pub mod machine;
pub mod memory;
mod queue;
mod scaling;
mod ways;

pub use chip::{current, set_current};
pub use counts::Counts;
pub use device::Npu;
pub use faults::{Injection, Point};
pub use lower::Memories;
pub use memory::Usage;
pub use scaling::CountsInF32;
pub use ways::{Defect, Ways};

use std::sync::Arc;
use std::time::Duration;
use tracecast_runtime::ir::DType;
use tracecast_runtime::ir::policy::{DeviceType, Policy, PolicySet, PolicyTable, Target};
use tracecast_runtime::{AmpSupport, Backend, Base, Device, DeviceId, Result};

/// What chips are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many there are.
    pub count: usize,
    /// The bytes of memory of each.
    pub memory: usize,
    /// The dtypes that may lie there.
    pub memories: Memories,
    /// How many operands a kernel may have.
    pub most_operands: usize,
    /// How they compute.
    pub ways: Ways,
    /// How many steps are given to a chip before the first has ended.
    pub in_flight: usize,
    /// How long a wait may take.
    pub patience: Duration,
}

impl Settings {
    /// The smallest chips: numbers alone in memory, and six operands.
    pub fn strict() -> Self {
        Settings { memories: Memories::Numbers, most_operands: 6, ..Settings::default() }
    }
}

impl Default for Settings {
    /// Two chips of 64 MiB, which take three steps at a time; a minute.
    fn default() -> Self {
        Settings {
            count: 2,
            memory: 64 << 20,
            memories: Memories::default(),
            most_operands: usize::MAX,
            ways: Ways::default(),
            in_flight: 3,
            patience: Duration::from_secs(60),
        }
    }
}

/// The driver: opens chips.
#[derive(Clone, Debug, Default)]
pub struct Driver {
    /// What they are like.
    pub settings: Settings,
}

impl Backend for Driver {
    fn count(&self) -> usize {
        self.settings.count
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Npu::new(id, self.settings.clone())?))
    }

    fn amp(&self) -> Option<AmpSupport> {
        Some(amp_of(&self.settings))
    }
}

/// What autocast does on such chips: [`amp`], and where there are no integers the loss scaler
/// counts in f32.
pub fn amp_of(settings: &Settings) -> AmpSupport {
    let mut amp = match settings.memories {
        Memories::NumbersMasksIndices => amp(),
        Memories::Numbers => amp().recorder(CountsInF32),
    };
    if settings.ways.has(Defect::WrongDefault) {
        (amp.dtypes, amp.default) = (vec![DType::BF16, DType::F16], DType::F16);
    }
    if settings.ways.has(Defect::MissingEntry) {
        amp.base = without_matmul().map_or(Base::Nothing, Base::Table);
    }
    amp
}

/// PyTorch's table for `cuda` without an entry.
fn without_matmul() -> Option<PolicyTable> {
    let policies = PolicySet::standard();
    let text = policies.table(DeviceType::Cuda)?.to_string();
    let kept: Vec<&str> = text.lines().filter(|line| !line.starts_with("\"matmul\" ")).collect();
    PolicyTable::parse(&(kept.join("\n") + "\n")).ok()
}

/// What autocast does on the chips: regions in bf16, PyTorch's table for `cuda`, and two rules of
/// their own. Exponents of a row are taken in f32 whatever it is stored in, so softmax takes and
/// gives bf16; and an absolute loss is no more than a sum, so it does too.
pub fn amp() -> AmpSupport {
    let mine = |op: &str| Target::DeviceOp(op.to_owned());
    AmpSupport::new([DType::BF16])
        .base(Base::Of(DeviceType::Cuda))
        .rule(mine("softmax"), Policy::LowerPrecisionFp)
        .rule(mine("l1_loss"), Policy::LowerPrecisionFp)
}
