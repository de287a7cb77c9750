//! [`Exported`]: a model from a file: its inputs, its weights, and its program, checked op by op
//! when it is opened.

mod host;
mod record;
mod sizes;

pub use host::{Host, Plain};

use crate::archive::{Archive, Stored};
use crate::program::{Extent, Give, Meta, Operand, Program, Take, meta};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracecast_aten::expression;
use tracecast_ir::policy::matches_name;
use tracecast_ir::{DType, Shape, Size, TensorType, Tracer};
use tracecast_runtime::error::UnrecordedCall;
use tracecast_runtime::{Error, Result, Tensor};

/// A model that PyTorch exported. Copies share the file and the program.
#[derive(Clone)]
pub struct Exported {
    pub(crate) path: PathBuf,
    archive: Arc<Archive>,
    pub(crate) program: Arc<Program>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) states: Vec<State>,
    pub(crate) constants: Vec<Constant>,
    /// The types of results as they were checked.
    outputs: Vec<TensorType>,
    pub(crate) regions: bool,
    warnings: Vec<String>,
}

/// An input of every call.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its type, whose sizes may be names.
    pub ty: TensorType,
    /// The value of the program.
    pub(crate) value: String,
}

/// A parameter or a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// PyTorch's name of it.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Whether it is a parameter that is trained.
    pub is_trained: bool,
    /// Whether the program uses it.
    pub is_used: bool,
    /// Other names of the same tensor.
    pub tied: Vec<String>,
    pub(crate) stored: Stored,
    /// The values of the program.
    pub(crate) values: Vec<String>,
}

/// A tensor that the file has beside the model's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    pub(crate) stored: Stored,
    pub(crate) value: String,
}

impl Exported {
    /// Opens a file: reads its program and checks every call of it. Weights stay in the file.
    ///
    /// # Errors
    /// A file that is no archive of `torch.export`, or all calls of its program that cannot be
    /// recorded here.
    pub fn open(path: impl AsRef<Path>) -> Result<Exported> {
        let path = path.as_ref();
        let wrong = |message| Error::Archive { path: path.to_owned(), message };
        let mut exported = Exported::read(path).map_err(wrong)?;
        exported.check()?;
        Ok(exported)
    }

    fn read(path: &Path) -> std::result::Result<Exported, String> {
        let archive = Archive::open(path)?;
        let program = Program::parse(&archive.program()?)?;
        let weights = stored(&archive, "weights")?;
        let others = stored(&archive, "constants")?;
        let used = used(&program);
        let mut exported = Exported {
            path: path.to_owned(),
            archive: Arc::new(archive),
            inputs: Vec::new(),
            states: Vec::new(),
            constants: Vec::new(),
            outputs: Vec::new(),
            regions: true,
            warnings: program.warnings.clone(),
            program: Arc::new(program),
        };
        let takes = exported.program.takes.clone();
        if takes.len() != exported.program.graph.inputs.len() {
            return Err("has another number of inputs than its signature".to_owned());
        }
        for take in takes {
            match take {
                Take::Parameter { value, name } => {
                    let stored = found(&weights, &name)?;
                    exported.add_state(value, name, stored, true, &used)?;
                }
                Take::Buffer { value, name, persistent } => {
                    let stored = weights.get(&name).or_else(|| others.get(&name));
                    let stored = stored.ok_or_else(|| format!("has no data of `{name}`"))?;
                    let is_written =
                        exported.program.gives.iter().any(
                            |give| matches!(give, Give::Next { name: next, .. } if *next == name),
                        );
                    if persistent || is_written {
                        exported.add_state(value, name, stored, false, &used)?;
                    } else {
                        exported.add_constant(value, name, stored)?;
                    }
                }
                Take::Constant { value, name } => {
                    let stored = found(&others, &name).or_else(|_| found(&weights, &name))?;
                    exported.add_constant(value, name, stored)?;
                }
                Take::Input { value } => {
                    let meta = exported.program.graph.tensors.get(&value);
                    let ty = meta.ok_or_else(|| format!("does not say the type of `{value}`"))?;
                    let ty = type_of(ty).map_err(|why| format!("`{value}`: {why}"))?;
                    exported.inputs.push(Input { name: value.clone(), ty, value });
                }
                Take::Fixed => {}
            }
        }
        Ok(exported)
    }

    fn add_state(
        &mut self,
        value: String,
        name: String,
        stored: &Stored,
        is_parameter: bool,
        used: &HashSet<String>,
    ) -> std::result::Result<(), String> {
        self.archive.check(stored).map_err(|why| format!("`{name}`: {why}"))?;
        let is_used = used.contains(&value);
        if let Some(known) = self.states.iter_mut().find(|known| known.stored == *stored) {
            known.tied.push(name);
            known.values.push(value);
            known.is_used |= is_used;
            return Ok(());
        }
        let ty = stored.ty.clone();
        let grads = self.program.graph.tensors.get(&value).is_none_or(|meta| meta.requires_grad);
        let is_trained = is_parameter && ty.dtype.is_float() && grads;
        let (tied, values, stored) = (Vec::new(), vec![value], stored.clone());
        self.states.push(State { name, ty, is_trained, is_used, tied, stored, values });
        Ok(())
    }

    fn add_constant(
        &mut self,
        value: String,
        name: String,
        stored: &Stored,
    ) -> std::result::Result<(), String> {
        self.archive.check(stored).map_err(|why| format!("`{name}`: {why}"))?;
        let (ty, stored) = (stored.ty.clone(), stored.clone());
        self.constants.push(Constant { name, ty, stored, value });
        Ok(())
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of PyTorch that wrote it.
    pub fn written_by(&self) -> &str {
        &self.program.written_by
    }

    /// The inputs of a call, in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The types of the results, in order, as they are outside of a region of the caller.
    pub fn outputs(&self) -> &[TensorType] {
        &self.outputs
    }

    /// The parameters and buffers, in the order of the file.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The tensors that are neither state nor inputs: numbers of the program, and buffers that
    /// PyTorch does not save.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// What of the file was left out.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Reads the value that a parameter or buffer has in the file.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn tensor(&self, state: &State) -> Result<Tensor> {
        self.archive.read(&state.stored).map_err(|why| Error::Archive {
            path: self.path.clone(),
            message: format!("`{}`: {why}", state.name),
        })
    }

    pub(crate) fn constant(&self, constant: &Constant) -> std::result::Result<Tensor, String> {
        self.archive.read(&constant.stored).map_err(|why| format!("`{}`: {why}", constant.name))
    }

    /// The same with a constant as an input of that name: the labels of a loss that was exported
    /// with the model.
    ///
    /// # Errors
    /// If there is no such constant, or the name is taken.
    pub fn with_input(mut self, constant: &str, name: &str) -> Result<Exported> {
        let Some(at) = self.constants.iter().position(|known| known.name == constant) else {
            let names: Vec<&str> = self.constants.iter().map(|known| known.name.as_str()).collect();
            return Err(absent("with_input", "constant", constant, &names));
        };
        if self.inputs.iter().any(|input| input.name == name) {
            return Err(taken("with_input", name));
        }
        let Constant { ty, value, .. } = self.constants.remove(at);
        self.inputs.push(Input { name: name.to_owned(), ty, value });
        Ok(self)
    }

    /// The same with an input under another name.
    ///
    /// # Errors
    /// If there is no such input, or the name is taken.
    pub fn renamed(mut self, input: &str, name: &str) -> Result<Exported> {
        if self.inputs.iter().any(|known| known.name == name) {
            return Err(taken("renamed", name));
        }
        let names: Vec<String> = self.inputs.iter().map(|known| known.name.clone()).collect();
        match self.inputs.iter_mut().find(|known| known.name == input) {
            Some(found) => found.name = name.to_owned(),
            None => return Err(absent("renamed", "input", input, &names)),
        }
        Ok(self)
    }

    /// The same with parameters that are not trained: those whose names match, where `*` stands for
    /// any run of characters without a dot and `**` for any run.
    ///
    /// # Errors
    /// If none matches.
    pub fn frozen(mut self, pattern: &str) -> Result<Exported> {
        let matching = |state: &&mut State| {
            state.is_trained
                && [&state.name]
                    .into_iter()
                    .chain(&state.tied)
                    .any(|name| matches_name(pattern, name))
        };
        let found =
            self.states.iter_mut().filter(matching).map(|state| state.is_trained = false).count();
        if found == 0 {
            let names: Vec<&str> = self.states.iter().map(|state| state.name.as_str()).collect();
            return Err(absent("frozen", "trained parameter", pattern, &names));
        }
        Ok(self)
    }

    /// The same without the autocast regions of the file.
    #[must_use]
    pub fn without_regions(mut self) -> Exported {
        self.regions = false;
        self
    }

    /// Declares the names of sizes, with the bounds that the file states and the values that it was
    /// exported with.
    ///
    /// # Errors
    /// If the tracer has such a name with other bounds.
    pub fn declare_sizes(&self, t: &Tracer) -> std::result::Result<(), String> {
        for input in &self.inputs {
            for (axis, size) in input.ty.shape.iter().enumerate() {
                let traced = self.hint(&input.value, axis).and_then(|hint| size.solve(hint));
                for name in size.names() {
                    let (least, most) = self.range(name);
                    let traced = traced.map_or(least.max(2), |(_, value)| value);
                    let traced = traced.max(least).min(most.unwrap_or(i64::MAX));
                    if t.with_graph(|graph| graph.sizes().get(name).is_none()) {
                        match most {
                            Some(most) => t.size_at(name, least..=most, traced),
                            None => t.size_at(name, least.., traced),
                        };
                    }
                }
            }
        }
        t.error().map_or(Ok(()), |error| Err(error.to_string()))
    }

    /// The least and the largest value of a name of a size.
    pub(crate) fn range(&self, name: &str) -> (i64, Option<i64>) {
        self.program.ranges.get(name).copied().unwrap_or((0, None))
    }

    fn hint(&self, value: &str, axis: usize) -> Option<i64> {
        match self.program.graph.tensors.get(value)?.sizes.get(axis)? {
            Extent::Number(n) => Some(*n),
            Extent::Expression(_, hint) => *hint,
        }
    }
}

fn taken(option: &'static str, name: &str) -> Error {
    Error::Option { option, message: format!("there is an input `{name}` already") }
}

fn absent(option: &'static str, what: &str, name: &str, known: &[impl AsRef<str>]) -> Error {
    const SHOWN: usize = 12;
    let shown: Vec<&str> = known.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = if known.len() > SHOWN { ", …" } else { "" };
    let message = format!("there is no {what} `{name}`: there are {}{more}", shown.join(", "));
    Error::Option { option, message }
}

/// The values that nodes and results use.
fn used(program: &Program) -> HashSet<String> {
    fn note(operand: &Operand, used: &mut HashSet<String>) {
        match operand {
            Operand::Tensor(name) => drop(used.insert(name.clone())),
            Operand::List(list) => list.iter().for_each(|one| note(one, used)),
            _ => {}
        }
    }
    let mut used = HashSet::new();
    for node in &program.graph.nodes {
        node.inputs.iter().for_each(|(_, operand)| note(operand, &mut used));
    }
    program.graph.outputs.iter().for_each(|operand| note(operand, &mut used));
    used
}

/// The tensors of a folder of the archive, by name.
fn stored(archive: &Archive, folder: &str) -> std::result::Result<HashMap<String, Stored>, String> {
    let Some(config) = archive.config(folder)? else { return Ok(HashMap::new()) };
    let config = config
        .get("config")
        .and_then(Json::as_object)
        .ok_or("a description of tensors has no `config`")?;
    let mut all = HashMap::new();
    for (name, json) in config {
        let entry = || one(folder, json);
        all.insert(name.clone(), entry().map_err(|why| format!("`{name}`: {why}"))?);
    }
    Ok(all)
}

fn one(folder: &str, json: &Json) -> std::result::Result<Stored, String> {
    if json.get("use_pickle").and_then(Json::as_bool).unwrap_or(false) {
        return Err("is a pickle, which is never read".to_owned());
    }
    let file = json.get("path_name").and_then(Json::as_str).ok_or("has no `path_name`")?;
    if file.contains(['/', '\\']) {
        return Err(format!("`{file}` is no name of an entry"));
    }
    let meta = meta(json.get("tensor_meta").ok_or("has no `tensor_meta`")?)?;
    let numbers = |extents: &[Extent]| {
        let number = |extent: &Extent| match extent {
            Extent::Number(n) => usize::try_from(*n).map_err(|_| format!("a size is {n}")),
            Extent::Expression(text, _) => Err(format!("a size is `{text}`")),
        };
        extents.iter().map(number).collect::<std::result::Result<Vec<usize>, String>>()
    };
    let sizes = numbers(&meta.sizes)?;
    let ty =
        TensorType { dtype: computed(&meta)?, shape: sizes.iter().map(|n| size(*n)).collect() };
    ty.check_size()?;
    let strides = numbers(&meta.strides)?;
    let offset = numbers(std::slice::from_ref(&meta.offset))?[0];
    Ok(Stored { entry: format!("data/{folder}/{file}"), ty, strides, offset })
}

fn size(n: usize) -> Size {
    i64::try_from(n).map_or(Size::from(i64::MAX), Size::from)
}

fn computed(meta: &Meta) -> std::result::Result<DType, String> {
    meta.dtype.clone().map_err(|why| format!("has {why}"))
}

/// The type that a graph states of a value.
pub(crate) fn type_of(meta: &Meta) -> std::result::Result<TensorType, String> {
    let extent = |extent: &Extent| match extent {
        Extent::Number(n) if *n < 0 => Err(format!("a size is {n}")),
        Extent::Number(n) => Ok(Size::from(*n)),
        Extent::Expression(text, _) => expression::size(text),
    };
    let shape = meta.sizes.iter().map(extent).collect::<std::result::Result<Shape, String>>()?;
    let ty = TensorType { dtype: computed(meta)?, shape };
    ty.check_size()?;
    Ok(ty)
}

fn found<'a>(
    all: &'a HashMap<String, Stored>,
    name: &str,
) -> std::result::Result<&'a Stored, String> {
    all.get(name).ok_or_else(|| format!("has no data of `{name}`"))
}

pub(crate) fn faults_of(all: Vec<UnrecordedCall>) -> Vec<UnrecordedCall> {
    let mut joined: Vec<UnrecordedCall> = Vec::new();
    for fault in all {
        let alike = |known: &&mut UnrecordedCall| {
            known.target == fault.target && known.message == fault.message
        };
        match joined.iter_mut().find(alike) {
            Some(known) => known.count += 1,
            None => joined.push(fault),
        }
    }
    joined
}
