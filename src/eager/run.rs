//! How [`Eager`] runs ops: records them, compiles the program once per signature, and runs it over
//! tensors.

use crate::compile::compile;
use crate::eager::tensor::{port, with_values};
use crate::eager::{Compiled, DeviceTensor, Eager, Programs};
use crate::error::Result;
use crate::trace::{Trace, trace_with};
use std::sync::{Arc, PoisonError};
use tracecast_ir::{Args, Attrs, Graph, OpDef, Printer, TensorType, Var};
use tracecast_runtime::Error;

impl Eager {
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
        with_values(&all, |store| program.executable.run_making_room(store, &[], &mut make_room))??;
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
                .map(|(i, operand)| t.state_of(&port(i), operand.ty().clone()))
                .collect();
            let operands: Vec<Var<'_>> = places.iter().map(|place| ports[*place]).collect();
            for (i, result) in body(t, &operands).into_iter().enumerate() {
                results.push(result.ty());
                let place = port(distinct.len() + i);
                t.update(t.state_of(&place, result.ty()), result);
            }
        })?;
        Ok((graph, results))
    }
}
