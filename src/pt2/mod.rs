//! Models that PyTorch has exported: programs of `torch.export` archives, trained, explained and
//! run here.
//!
//! [`open`] reads a file and checks every op of it. What comes of it is a [`Model`] with PyTorch's
//! names: a [`Module`] beside others, a program by [`Model::jit`], or a training step by
//! [`TrainStep::from_exported`](crate::TrainStep::from_exported). `docs/pytorch.md` says how to
//! export, what is kept and what is refused.
//!
//! ```
//! use tracecast::prelude::*;
//! use tracecast::pt2;
//!
//! let model = pt2::open("tests/data/pt2/net_vae.eval.pt2")?.renamed("args_0", "x")?;
//! let mut store = model.store()?;
//! let program = model.jit(Options::new());
//! let x = Tensor::rand([2, 64], 0)?;
//! let out = program.run(&mut store, &[("x", &x)])?;
//! assert_eq!(out["output.0"].shape()[..], [2, 64]);
//! # Ok::<(), tracecast::Error>(())
//! ```

mod host;
mod train;

pub use tracecast_pt2::{Constant, Exported, Input, State};

use crate::amp::Autocast;
use crate::entry::{Entry, Reader, Start};
use crate::error::Result;
use crate::jit::{Jit, jit};
use crate::nn::{Context, Module, Tie};
use crate::options::Options;
use crate::trace::{Trace, Traced, Types};
use host::InContext;
use std::fmt;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use tracecast_ir::{Graph, Var};
use tracecast_runtime::Store;

/// Opens a file that `torch.export.save` has written.
///
/// # Errors
/// If it is no such file, or its program has calls that cannot be recorded here: all of them, each
/// with its Python line.
pub fn open(path: impl AsRef<Path>) -> Result<Model> {
    Ok(Exported::open(path)?.into())
}

/// A model from a file. Copies share what was read.
#[derive(Clone)]
pub struct Model {
    exported: Arc<Exported>,
    /// Its parameters and buffers. Their values stay in the file until a store wants them.
    entries: Arc<[Entry]>,
}

impl From<Exported> for Model {
    fn from(exported: Exported) -> Self {
        let exported = Arc::new(exported);
        let entry = |at: usize| {
            let State { name, ty, is_trained, is_used, .. } = exported.states()[at].clone();
            let from = Arc::clone(&exported);
            let read = Reader::new(move || from.tensor(&from.states()[at]));
            let entry = Entry::param(name, ty, Start::Read(read));
            // What no op uses is state, so that no optimizer changes it.
            if is_trained && is_used { entry } else { entry.frozen() }
        };
        let entries = (0..exported.states().len()).map(entry).collect();
        Model { exported, entries }
    }
}

impl Model {
    /// What the file has: inputs, results, states and constants.
    pub fn exported(&self) -> &Exported {
        &self.exported
    }

    fn changed(self, change: impl FnOnce(Exported) -> Result<Exported>) -> Result<Model> {
        Ok(change(Arc::unwrap_or_clone(self.exported))?.into())
    }

    /// The same with a constant of the file as an input of that name: the labels of a loss that was
    /// exported with the model.
    ///
    /// # Errors
    /// If there is no such constant, or the name is taken.
    pub fn with_input(self, constant: &str, name: &str) -> Result<Model> {
        self.changed(|exported| exported.with_input(constant, name))
    }

    /// The same with an input under another name.
    ///
    /// # Errors
    /// If there is no such input, or the name is taken.
    pub fn renamed(self, input: &str, name: &str) -> Result<Model> {
        self.changed(|exported| exported.renamed(input, name))
    }

    /// The same with parameters that are not trained: those whose names match `pattern`, where `*`
    /// stands for any run of characters without a dot and `**` for any run.
    ///
    /// # Errors
    /// If no trained parameter matches.
    pub fn frozen(self, pattern: &str) -> Result<Model> {
        self.changed(|exported| exported.frozen(pattern))
    }

    /// The same without the autocast regions of the file.
    #[must_use]
    pub fn without_regions(self) -> Model {
        Arc::unwrap_or_clone(self.exported).without_regions().into()
    }

    /// The parameters and buffers with the values of the file.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn store(&self) -> Result<Store> {
        let mut store = Store::new();
        for entry in &*self.entries {
            entry.put(&mut store, 0)?;
        }
        Ok(store)
    }

    /// Records the model at a place of a program; the results in the order of the file.
    #[track_caller]
    pub fn call<'t>(&self, cx: &Context<'t>, inputs: &[Var<'t>]) -> Vec<Var<'t>> {
        let t = cx.trace();
        if inputs.len() != self.exported.inputs().len() {
            let names: Vec<&str> = self.exported.inputs().iter().map(|i| i.name.as_str()).collect();
            let message = format!(
                "takes {} inputs ({}), found {}",
                names.len(),
                names.join(", "),
                inputs.len()
            );
            return vec![t.fail("exported model", message); self.exported.outputs().len().max(1)];
        }
        for (input, given) in self.exported.inputs().iter().zip(inputs) {
            if !given.is_poison() && given.dtype() != input.ty.dtype && !given.dtype().is_float() {
                let message =
                    format!("takes {} for `{}`, found {}", input.ty, input.name, given.ty());
                return vec![
                    t.fail("exported model", message);
                    self.exported.outputs().len().max(1)
                ];
            }
        }
        self.exported.record(&InContext { cx, line: Location::caller() }, inputs)
    }

    /// The same with inputs that a run gives under the names that the file has for them.
    #[track_caller]
    pub fn call_on_inputs<'t>(&self, cx: &Context<'t>) -> Vec<Var<'t>> {
        let t = cx.trace();
        if let Err(message) = self.exported.declare_sizes(t.tracer()) {
            t.fail("exported model", message);
        }
        let inputs = self.exported.inputs().iter();
        let inputs: Vec<Var<'t>> =
            inputs.map(|input| t.input_of(&input.name, input.ty.clone())).collect();
        self.call(cx, &inputs)
    }

    fn output(&self, t: &Trace, region: Option<&Autocast>) {
        let cx = Context::evaluation(t);
        let record = || self.call_on_inputs(&cx);
        let results = match region {
            Some(region) => region.run(t, record),
            None => record(),
        };
        for (at, y) in results.into_iter().enumerate() {
            t.output(&format!("output.{at}"), y);
        }
    }

    /// The model as a program of its own, with inputs by the file's names and the results
    /// `output.0`, `output.1` and so on.
    pub fn jit(&self, options: Options) -> Jit {
        let model = self.clone();
        jit(options, move |t| model.output(t, None)).named(self.name())
    }

    /// The same inside an autocast region.
    pub fn jit_in(&self, options: Options, region: Autocast) -> Jit {
        let model = self.clone();
        jit(options, move |t| model.output(t, Some(&region))).named(self.name())
    }

    /// The program of the file as it is recorded, inside a region if one is given. What was left
    /// out of it is logged.
    ///
    /// # Errors
    /// The first op that could not be recorded.
    pub fn graph(&self, options: &Options, region: Option<&Autocast>) -> Result<Graph> {
        Ok(self.traced(options, region)?.graph)
    }

    /// The same, and a store with all that it reads.
    ///
    /// # Errors
    /// As [`graph`](Model::graph), or if the file cannot be read any more.
    pub fn program(&self, options: &Options, region: Option<&Autocast>) -> Result<(Graph, Store)> {
        let Traced { graph, starts, .. } = self.traced(options, region)?;
        let mut store = self.store()?;
        for entry in
            starts.iter().filter(|entry| graph.ports().iter().any(|port| port.name == entry.name))
        {
            if !store.contains(&entry.name) {
                entry.put(&mut store, 0)?;
            }
        }
        Ok((graph, store))
    }

    fn traced(&self, options: &Options, region: Option<&Autocast>) -> Result<Traced> {
        let trace = Trace::new(&self.name(), options, Types::default())?;
        trace.run(|t| self.output(t, region))?;
        let traced = trace.finish()?;
        traced.warnings.iter().for_each(|warning| log::warn!(target: "tracecast", "{warning}"));
        Ok(traced)
    }

    /// The name of the file without its ending.
    fn name(&self) -> String {
        let stem = self.exported.path().file_stem().unwrap_or_default().to_string_lossy();
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    }
}

/// A model of one result. The first input is the operand; others are inputs of the run, by the
/// file's names.
impl Module for Model {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        if cx.is_declaring() {
            self.entries.iter().for_each(|entry| host::declare(cx, entry));
            return cx.unknown();
        }
        let t = cx.trace();
        let mut inputs = self.exported.inputs().iter();
        if inputs.next().is_none() {
            return t.fail("exported model", "takes no inputs");
        }
        if let Err(message) = self.exported.declare_sizes(t.tracer()) {
            t.fail("exported model", message);
        }
        let others = inputs.map(|input| t.input_of(&input.name, input.ty.clone()));
        let all: Vec<Var<'t>> = [x].into_iter().chain(others).collect();
        match self.call(cx, &all)[..] {
            [y] => y,
            ref several => t.fail(
                "exported model",
                format!("has {} results: use `Model::call`", several.len()),
            ),
        }
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        Ok(self.entries.to_vec())
    }

    fn ties(&self) -> Result<Vec<Tie>> {
        Ok(Vec::new())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("path", &self.exported.path())
            .field("inputs", &self.exported.inputs())
            .field("outputs", &self.exported.outputs())
            .finish_non_exhaustive()
    }
}
