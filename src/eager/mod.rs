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
mod tensor;

pub use optimizer::{EagerOptimizer, Scaling};
pub use parameter::{Gradient, Parameter, clip_grad_norm};
pub use tensor::DeviceTensor;

use crate::compile::compile;
use crate::error::Result;
use crate::options::Options;
use crate::trace::{Trace, trace_with};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::{Args, Attrs, DType, Graph, OpDef, Printer, TensorType, Var};
use tracecast_runtime::{Device, Error, Executable, Tensor};

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

    /// The results of one op whose operands are single values.
    ///
    /// # Errors
    /// An op that does not take these operands, one of which may live elsewhere; a device that
    /// failed.
    pub fn apply(
        &self,
        op: &'static OpDef,
        operands: &[&DeviceTensor],
        attrs: Attrs,
    ) -> Result<Vec<DeviceTensor>> {
        let label = attrs.iter().fold(format!("op {}", op.name), |label, (name, attr)| {
            format!("{label} {name}={attr}")
        });
        self.run(&label, operands, |t, x| t.tracer().apply(op, Args::of(x), attrs).to_vec())
    }

    /// Runs a program over tensors: `body` records new values for some of them, and says the
    /// results. The label stands for everything that the body depends on, but for the types of the
    /// operands.
    pub(crate) fn run(
        &self,
        label: &str,
        operands: &[&DeviceTensor],
        body: impl for<'t> FnOnce(&'t Trace, &[Var<'t>]) -> Vec<Var<'t>>,
    ) -> Result<Vec<DeviceTensor>> {
        self.run_from(&self.0.programs, label, operands, body)
    }

    /// The same with programs that are kept elsewhere.
    pub(crate) fn run_from(
        &self,
        programs: &Programs,
        label: &str,
        operands: &[&DeviceTensor],
        body: impl for<'t> FnOnce(&'t Trace, &[Var<'t>]) -> Vec<Var<'t>>,
    ) -> Result<Vec<DeviceTensor>> {
        let (distinct, places) = self.distinct(operands)?;
        let types = places.iter().map(|place| format!(" {place}:{}", distinct[*place].ty()));
        let key = format!("{label}{}", types.collect::<String>());
        let program = self.program(programs, key, || self.traced(&distinct, &places, body))?;
        self.run_program(programs, &program, distinct)
    }

    /// Runs whatever `body` records of these tensors, at once: several ops are one program, in
    /// which they are fused. It is recorded with each call, and compiled once for what it records.
    ///
    /// ```
    /// use tracecast::eager::Eager;
    /// use tracecast::prelude::*;
    ///
    /// let eager = Eager::new(Options::new().device("reference"))?;
    /// let (x, w) = (eager.tensor(Tensor::from([[1.0f32, -2.0]])), eager.tensor(Tensor::from([[3.0f32], [4.0]])));
    /// let y = eager.call(&[&x, &w], |_, x| vec![x[0].matmul(x[1]).relu(), x[0].softmax(-1)])?;
    /// assert_eq!(y[0].to_host()?.to_vec::<f32>()?, [0.0]);
    /// # Ok::<(), tracecast::Error>(())
    /// ```
    ///
    /// # Errors
    /// An op that cannot be recorded, a tensor that lives elsewhere, a device that failed.
    pub fn call(
        &self,
        operands: &[&DeviceTensor],
        body: impl for<'t> FnOnce(&'t Trace, &[Var<'t>]) -> Vec<Var<'t>>,
    ) -> Result<Vec<DeviceTensor>> {
        let (distinct, places) = self.distinct(operands)?;
        let (graph, results) = self.traced(&distinct, &places, body)?;
        let printer = Printer { sources: false, ..Printer::FULL };
        let key = format!("call {}", printer.show(&graph));
        let programs = &self.0.programs;
        let program = self.program(programs, key, || Ok((graph, results)))?;
        self.run_program(programs, &program, distinct)
    }

    /// The results of a program over these tensors.
    fn run_program(
        &self,
        programs: &Programs,
        program: &Arc<Compiled>,
        distinct: Vec<&DeviceTensor>,
    ) -> Result<Vec<DeviceTensor>> {
        let reserved = |ty: &TensorType| DeviceTensor::reserved(self.clone(), ty.clone());
        let results: Vec<DeviceTensor> = program.results.iter().map(reserved).collect();
        let all: Vec<&DeviceTensor> = distinct.into_iter().chain(&results).collect();
        // Programs that are not in use keep memory for their next run.
        let mut make_room = || {
            self.0.programs.keep_only(program);
            programs.keep_only(program);
        };
        tensor::with_values(&all, |store| {
            program.executable.run_making_room(store, &[], &mut make_room)
        })??;
        Ok(results)
    }

    /// The different ones among some tensors, and for each of those its place among these.
    fn distinct<'a>(
        &self,
        operands: &[&'a DeviceTensor],
    ) -> Result<(Vec<&'a DeviceTensor>, Vec<usize>)> {
        let mut distinct: Vec<&DeviceTensor> = Vec::new();
        let mut places = Vec::new();
        for operand in operands {
            operand.check()?;
            if !self.same_device(operand.eager()) {
                return Err(Error::Device(format!(
                    "expected all tensors on one device: {} is on {}, others are on {}",
                    operand.ty(),
                    operand.eager().device().name(),
                    self.device().name()
                )));
            }
            let place = distinct.iter().position(|known| known.is(operand));
            places.push(place.unwrap_or(distinct.len()));
            if place.is_none() {
                distinct.push(operand);
            }
        }
        Ok((distinct, places))
    }

    fn program(
        &self,
        programs: &Programs,
        key: String,
        traced: impl FnOnce() -> Result<(Graph, Vec<TensorType>)>,
    ) -> Result<Arc<Compiled>> {
        let device = Arc::as_ptr(&self.0.device);
        let key = format!("{device:p} {key}");
        let mut kept = programs.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = kept.get(&key) {
            return Ok(program);
        }
        let (graph, results) = traced()?;
        let executable = compile(graph, &self.0.options)?;
        let program = Arc::new(Compiled { executable, results });
        kept.insert(key, program.clone());
        Ok(program)
    }

    /// What `body` records of these tensors, and the types of its results.
    fn traced(
        &self,
        distinct: &[&DeviceTensor],
        places: &[usize],
        body: impl for<'t> FnOnce(&'t Trace, &[Var<'t>]) -> Vec<Var<'t>>,
    ) -> Result<(Graph, Vec<TensorType>)> {
        let mut results = Vec::new();
        let graph = trace_with("eager", &self.0.options, |t| {
            let ports: Vec<Var<'_>> = distinct
                .iter()
                .enumerate()
                .map(|(i, operand)| t.state_of(&tensor::port(i), operand.ty().clone()))
                .collect();
            let operands: Vec<Var<'_>> = places.iter().map(|place| ports[*place]).collect();
            for (i, result) in body(t, &operands).into_iter().enumerate() {
                results.push(result.ty());
                let place = tensor::port(distinct.len() + i);
                t.update(t.state_of(&place, result.ty()), result);
            }
        })?;
        Ok((graph, results))
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
