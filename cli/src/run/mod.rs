//! `tracecast run`: a program on arrays from a file.

mod numerics;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use tracecast::{Graph, Outputs, Store, Tensor};
use tracecast_ir::{NamedSize, Port, Role};
use tracecast_runtime::npz;

use crate::failure::{Failure, note};
use crate::program::ProgramFile;
use crate::run::numerics::Look;
use crate::target::Target;

/// Compiles a program and runs it once on arrays from a file
///
/// Every port of the program, state included, is an array of the same name and type, but for what
/// an archive or --weights has; names of sizes are worth what the arrays have. numpy has no bf16:
/// for a bf16 port the array may be f32, and a bf16 result is written as f32 with a note that this
/// tool reads. What is written are the results, and the state that the program gives a next value,
/// each under its name.
#[derive(clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    program: ProgramFile,

    /// The arrays to run on
    #[arg(long, value_name = "FILE.npz")]
    inputs: PathBuf,

    /// Where the results go; without it they are printed only
    #[arg(long, value_name = "FILE.npz")]
    outputs: Option<PathBuf>,

    #[command(flatten)]
    sizes: SizeValues,

    #[command(flatten)]
    look: Look,

    #[command(flatten)]
    target: Target,
}

impl Run {
    /// Runs the program; writes what it wrote where.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let (graph, mut store) = self.program.read_with_values()?;
        let updated = self.updated(&graph)?;
        let (graph, mut arrays) = self.sizes.open(graph, &self.inputs, &store)?;
        let mut inputs = Vec::new();
        for port in graph.ports() {
            if let Some(tensor) = arrays.read(port)? {
                keep(port, tensor, &mut inputs, &mut store);
            }
        }
        let inputs: Vec<(&str, &Tensor)> =
            inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let options = self.target.options().with_policies(self.program.policies()?);
        let made = self.look.execute(&graph, &options, &store, &inputs, out)?;
        if self.outputs.is_some() || !self.look.is_asked() {
            let (executable, _) = self.target.compile(graph, self.program.policies()?)?;
            let outputs = executable.run(&mut store, &inputs)?;
            write(self.outputs.as_deref(), &outputs, &updated, &store, out)?;
        }
        match made {
            0 => Ok(()),
            made => {
                let ops = if made == 1 { "op makes" } else { "ops make" };
                let message = format!("{made} {ops} an inf or a NaN");
                Err(Failure::in_file(self.program.path(), message))
            }
        }
    }

    /// The state that the program gives a next value.
    fn updated(&self, graph: &Graph) -> Result<Vec<String>, Failure> {
        let updated = graph.updates().iter().map(|(port, _)| graph.ports()[*port].name.clone());
        let updated: Vec<_> = updated.collect();
        match graph.outputs().iter().find(|(name, _)| updated.contains(name)) {
            Some((name, _)) => {
                let message = format!(
                    "`{name}` is a result and the name of state too: only one fits into a file"
                );
                Err(Failure::in_file(self.program.path(), message))
            }
            None => Ok(updated),
        }
    }
}

/// Writes results and updated state to a file, if there is one, and what they are.
fn write(
    file: Option<&Path>,
    outputs: &Outputs,
    updated: &[String],
    store: &Store,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let state = updated.iter().map(|name| Ok((name.as_str(), store.get(name)?)));
    let state = state.collect::<Result<Vec<_>, Failure>>()?;
    let written: Vec<_> =
        outputs.iter().chain(state.iter().map(|(name, tensor)| (*name, tensor))).collect();
    if let Some(file) = file {
        npz::write(file, written.iter().copied())?;
    }
    for (name, tensor) in written {
        writeln!(out, "{name} = {tensor}")?;
    }
    Ok(())
}

/// Values for the names of sizes.
#[derive(clap::Args)]
pub(crate) struct SizeValues {
    /// Values for names of sizes that stand alone on no axis of an array
    #[arg(long, value_name = "NAME=SIZE,…", value_delimiter = ',', value_parser = named_size)]
    sizes: Vec<(String, i64)>,
}

/// `batch=8`
fn named_size(text: &str) -> Result<(String, i64), String> {
    let (name, size) = text.split_once('=').ok_or("expected NAME=SIZE, such as batch=8")?;
    let size = size.trim().parse().map_err(|_| "expected a whole number behind `=`")?;
    Ok((name.trim().to_owned(), size))
}

impl SizeValues {
    /// The arrays of a file, and the program for their sizes.
    pub(crate) fn open<'f>(
        &self,
        graph: Graph,
        file: &'f Path,
        store: &Store,
    ) -> Result<(Graph, Arrays<'f>), Failure> {
        let mut arrays = Arrays::open(file, graph.ports(), store)?;
        let given: Vec<&Port> = graph.ports().iter().filter(|port| arrays.has(port)).collect();
        let types = given.into_iter().map(|port| Ok((&*port.name, arrays.archive.ty(&port.name)?)));
        let types = types.collect::<Result<HashMap<_, _>, Failure>>()?;
        let values = graph.values(&|name| types.get(name), &self.given());
        let values = values.map_err(|error| Failure::in_file(file, error))?;
        let graph = graph.at(&values)?;
        graph.ports().iter().try_for_each(|port| arrays.check(port))?;
        Ok((graph, arrays))
    }

    /// The program for these sizes, and for those it was traced with where none is given.
    pub(crate) fn as_traced(&self, graph: &Graph) -> Result<Graph, Failure> {
        let given = self.given();
        let known = |name: &str| graph.sizes().get(name).is_some();
        if let Some((name, _)) = given.iter().find(|(name, _)| !known(name)) {
            return Err(Failure::Usage(format!("--sizes {name}: no size has this name")));
        }
        let value = |size: &NamedSize| {
            let given = given.iter().rfind(|(name, _)| *name == size.name);
            (size.name, given.map_or(size.hint, |(_, value)| *value))
        };
        Ok(graph.at(&graph.sizes().names().iter().map(value).collect())?)
    }

    fn given(&self) -> Vec<(&str, i64)> {
        self.sizes.iter().map(|(name, value)| (&**name, *value)).collect()
    }
}

/// The arrays of a file, each of them that of a port.
pub(crate) struct Arrays<'f> {
    file: &'f Path,
    archive: npz::Archive,
}

impl<'f> Arrays<'f> {
    /// The arrays of the file; each has to belong to a port, and each port has one that the store
    /// lacks. None of them is unpacked yet.
    fn open(file: &'f Path, ports: &[Port], store: &Store) -> Result<Self, Failure> {
        let arrays = Arrays { file, archive: npz::Archive::open(file)? };
        let known = |name: &&str| ports.iter().any(|port| port.name == **name);
        if let Some(name) = arrays.archive.names().find(|name| !known(name)) {
            let message = format!("no port is called `{name}`: the program has {}", listed(ports));
            return Err(Failure::in_file(file, message));
        }
        let lacking = ports.iter().find(|port| !arrays.has(port) && !store.contains(&port.name));
        if let Some(Port { name, ty, .. }) = lacking {
            let message = format!("there is no array `{name}`: expected {ty}");
            return Err(Failure::in_file(file, message));
        }
        Ok(arrays)
    }

    fn has(&self, port: &Port) -> bool {
        self.archive.names().any(|known| known == port.name)
    }

    /// Errors unless the array of the port, if there is one, has its type or that in which numpy
    /// holds it.
    fn check(&mut self, port: &Port) -> Result<(), Failure> {
        let Port { name, ty, .. } = port;
        if !self.has(port) {
            return Ok(());
        }
        let found = self.archive.ty(name)?;
        if found == *ty || found == ty.with_dtype(npz::stored_as(ty.dtype)) {
            return Ok(());
        }
        let message = format!("array `{name}`: expected {ty}, found {found}");
        Err(Failure::in_file(self.file, message))
    }

    /// The array of a port, in its dtype, if there is one.
    pub(crate) fn read(&mut self, port: &Port) -> Result<Option<Tensor>, Failure> {
        if !self.has(port) {
            return Ok(None);
        }
        let tensor = self.archive.read(&port.name)?;
        if tensor.dtype() == port.ty.dtype {
            Ok(Some(tensor))
        } else {
            narrow(tensor, port).map(Some)
        }
    }
}

/// What an archive holds as the port has it, with a word about it if that changes a number.
fn narrow(tensor: Tensor, port: &Port) -> Result<Tensor, Failure> {
    let (wide, low) = (tensor.dtype(), port.ty.dtype);
    let narrow = tensor.cast(low)?;
    if narrow.cast(wide)?.bytes() != tensor.bytes() {
        note("note", format!("`{}` is rounded from {wide} to {low}", port.name));
    }
    Ok(narrow)
}

/// Sorts a port's tensor into inputs and state.
pub(crate) fn keep(
    port: &Port,
    tensor: Tensor,
    inputs: &mut Vec<(String, Tensor)>,
    store: &mut Store,
) {
    match port.role {
        Role::Input => inputs.push((port.name.clone(), tensor)),
        Role::Param | Role::State => store.insert(&port.name, tensor),
    }
}

fn listed(ports: &[Port]) -> String {
    if ports.is_empty() {
        return "none".to_owned();
    }
    ports.iter().map(|port| format!("`{}`", port.name)).collect::<Vec<_>>().join(", ")
}
