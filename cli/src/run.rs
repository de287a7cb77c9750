//! `tracecast run`: a program on arrays from a file.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use tracecast::{Graph, Store, Tensor};
use tracecast_ir::{Port, Role};
use tracecast_runtime::npz;

use crate::failure::{Failure, note};
use crate::program::ProgramFile;
use crate::target::Target;

/// Compiles a program and runs it once on arrays from a file
///
/// Every port of the program, state included, is an array of the same name and type. numpy has no bf16: for a bf16 port the array is
/// f32. What is written are the results, and the state that the program gives a next value, each under its name.
#[derive(clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    program: ProgramFile,

    /// The arrays to run on
    #[arg(long, value_name = "FILE.npz")]
    inputs: PathBuf,

    /// Where the results go
    #[arg(long, value_name = "FILE.npz")]
    outputs: PathBuf,

    #[command(flatten)]
    target: Target,
}

impl Run {
    /// Runs the program; writes what it wrote where.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        let graph = self.program.read_one()?;
        self.program.warn_of_idle_choices(std::slice::from_ref(&graph))?;
        let updated = self.updated(&graph)?;
        let mut arrays = Arrays::read(&self.inputs, graph.ports())?;
        let mut store = Store::new();
        let mut inputs = Vec::new();
        for port in graph.ports() {
            keep(port, arrays.take(port)?, &mut inputs, &mut store);
        }
        let (executable, _) = self.target.compile(graph, self.program.policies()?)?;
        let inputs: Vec<(&str, &Tensor)> =
            inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let outputs = executable.run(&mut store, &inputs)?;
        let state = updated.iter().map(|name| Ok((name.as_str(), store.get(name)?)));
        let state = state.collect::<Result<Vec<_>, Failure>>()?;
        let written: Vec<_> =
            outputs.iter().chain(state.iter().map(|(name, tensor)| (*name, tensor))).collect();
        npz::write(&self.outputs, written.iter().copied())?;
        for (name, tensor) in written {
            writeln!(out, "{name} = {tensor}")?;
        }
        Ok(())
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

/// The arrays of a file by name.
pub(crate) struct Arrays<'f> {
    file: &'f Path,
    arrays: HashMap<String, Tensor>,
}

impl<'f> Arrays<'f> {
    /// The arrays of the file; each has to belong to a port.
    pub(crate) fn read(file: &'f Path, ports: &[Port]) -> Result<Self, Failure> {
        let mut arrays = HashMap::new();
        for (name, tensor) in npz::read(file)? {
            if !ports.iter().any(|port| port.name == name) {
                let message =
                    format!("no port is called `{name}`: the program has {}", listed(ports));
                return Err(Failure::in_file(file, message));
            }
            if arrays.insert(name.clone(), tensor).is_some() {
                return Err(Failure::in_file(file, format!("two arrays are called `{name}`")));
            }
        }
        Ok(Arrays { file, arrays })
    }

    /// The array of a port, in its dtype.
    pub(crate) fn take(&mut self, port: &Port) -> Result<Tensor, Failure> {
        let tensor = self.arrays.remove(&port.name).ok_or_else(|| {
            let message = format!("there is no array `{}`: expected {}", port.name, port.ty);
            Failure::in_file(self.file, message)
        })?;
        let held = npz::stored_as(port.ty.dtype);
        let is_wide = port.ty.dtype != held && tensor.dtype() == held;
        let tensor = if is_wide { narrow(tensor, port)? } else { tensor };
        if *tensor.ty() == port.ty {
            return Ok(tensor);
        }
        let message = format!("array `{}`: expected {}, found {}", port.name, port.ty, tensor.ty());
        Err(Failure::in_file(self.file, message))
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
