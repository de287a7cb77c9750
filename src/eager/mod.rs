//! Eager tensors: [`Eager`] runs ops at once on [`DeviceTensor`]s, each a small program that is
//! compiled once per signature.
//!
//! It is for loops that keep their own order of calls, such as those around an
//! [`EagerScaler`](crate::amp::EagerScaler): the ops are the ones that a recorded step uses, on any
//! device. A whole step as one program ([`crate::jit()`]) is faster.

mod methods;
mod optimizer;
mod parameter;
mod replicas;
mod run;
mod tensor;

pub use optimizer::{EagerOptimizer, Scaling};
pub use parameter::{Gradient, Parameter, clip_grad_norm};
pub use tensor::DeviceTensor;

use crate::error::Result;
use crate::options::Options;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::{DType, TensorType};
use tracecast_runtime::{Device, Executable, Tensor};

/// How many programs are kept; then the one that was used longest ago is forgotten, and compiled
/// anew when it is needed.
const MOST_PROGRAMS: usize = 1024;

/// Where eager tensors live, and the programs that were compiled for them. A clone is the same.
///
/// ```
/// use tracecast::eager::Eager;
/// use tracecast::ir::Attrs;
/// use tracecast::ir::ops::elementwise::MUL;
/// use tracecast::{Options, Tensor};
///
/// let eager = Eager::new(Options::new().device("reference"))?;
/// let x = eager.tensor(Tensor::new([2], &[3.0f32, 4.0])?);
/// let y = eager.apply(&MUL, &[&x, &x], Attrs::new())?;
/// assert_eq!(y[0].to_host()?.to_vec::<f32>()?, [9.0, 16.0]);
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone)]
pub struct Eager(Arc<Context>);

struct Context {
    options: Options,
    device: Arc<dyn Device>,
    programs: Programs,
}

/// Compiled programs by what they do, the types of their operands and their device.
#[derive(Default)]
pub(crate) struct Programs(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    programs: HashMap<String, (Arc<Compiled>, u64)>,
    /// How often a program was asked for; programs have the count of their last time.
    asked: u64,
}

impl Programs {
    /// Forgets all programs but this one.
    fn keep_only(&self, program: &Arc<Compiled>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.programs.retain(|_, (known, _)| Arc::ptr_eq(known, program));
    }
}

impl Kept {
    fn get(&mut self, key: &str) -> Option<Arc<Compiled>> {
        self.asked += 1;
        let (program, used) = self.programs.get_mut(key)?;
        *used = self.asked;
        Some(program.clone())
    }

    fn insert(&mut self, key: String, program: Arc<Compiled>) {
        if self.programs.len() >= MOST_PROGRAMS {
            let oldest = self.programs.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.programs.remove(&key);
            }
        }
        self.programs.insert(key, (program, self.asked));
    }
}

/// A program and the types of its results. Results are state of the program like its operands, so
/// they stay on the device: only a caller that asks for numbers waits for them.
struct Compiled {
    executable: Executable,
    results: Vec<TensorType>,
}

impl Eager {
    /// Tensors on the device of these options.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn new(options: Options) -> Result<Self> {
        let device = options.target()?;
        Ok(Eager(Arc::new(Context { options, device, programs: Programs::default() })))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// True if both have the same device.
    pub fn same_device(&self, other: &Eager) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0.device), Arc::as_ptr(&other.0.device))
    }

    /// The dtype in which a loss scaler counts good steps here; `None` if the device keeps no
    /// scale.
    pub(crate) fn tracker(&self) -> Result<Option<DType>> {
        Ok(self.0.options.home()?.tracker())
    }

    /// One on the interpreter of the host, with the same policies.
    pub(crate) fn on_host(&self) -> Result<Eager> {
        Eager::new(self.0.options.clone().device("reference"))
    }

    /// A tensor with this value.
    pub fn tensor(&self, value: Tensor) -> DeviceTensor {
        DeviceTensor::new(self.clone(), value)
    }

    /// A parameter with this value and no gradient.
    pub fn parameter(&self, value: Tensor) -> Parameter {
        Parameter::new(self.tensor(value))
    }

    /// How many programs are compiled and kept.
    pub fn programs(&self) -> usize {
        self.0.programs.0.lock().unwrap_or_else(PoisonError::into_inner).programs.len()
    }
}

impl fmt::Debug for Eager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eager({}, {} programs)", self.device().name(), self.programs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_ir::Attrs;
    use tracecast_ir::ops::elementwise::NEG;

    #[test]
    fn programs_in_use_stay_when_there_are_too_many() {
        let eager = Eager::new(Options::new().device("reference")).unwrap();
        let run = |size: usize| {
            let zeros = Tensor::zeros(TensorType::new(DType::F32, [size])).unwrap();
            eager.apply(&NEG, &[&eager.tensor(zeros)], Attrs::new()).unwrap();
            let kept = eager.0.programs.0.lock().unwrap();
            kept.programs
                .values()
                .map(|(program, _)| program.results[0].numel().get())
                .collect::<Vec<_>>()
        };
        for size in 1..MOST_PROGRAMS + 20 {
            run(size);
            run(1);
        }
        let mut kept = run(1);
        kept.sort_unstable();
        assert_eq!(kept.len(), MOST_PROGRAMS);
        assert_eq!(kept[..2], [1, 21]);
    }
}
