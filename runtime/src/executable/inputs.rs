//! [`Inputs`]: the inputs of a program by name, and which tensor of a run is which of them.

use crate::error::{Error, Result};
use crate::submitted::Input;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use tracecast_ir::{Port, Role, TensorType};

/// The ports of a program by name.
pub(super) struct Inputs {
    /// There if there are many: few are found sooner by comparing them all.
    places: Option<HashMap<String, usize>>,
    /// True if inputs that the program does not use are refused.
    pub(super) strict: bool,
}

/// For each port, which of the tensors of a run it is; `None` for state.
pub(super) type Given = Vec<Option<usize>>;

/// What a run may be given.
pub(super) trait Typed {
    /// Its type.
    fn ty(&self) -> &TensorType;
}

impl Typed for &Tensor {
    fn ty(&self) -> &TensorType {
        Tensor::ty(self)
    }
}

impl Typed for Input<'_> {
    fn ty(&self) -> &TensorType {
        Input::ty(self)
    }
}

/// The most names that are compared one by one.
const FEW: usize = 32;

impl Inputs {
    /// Those of these ports.
    pub(super) fn of(ports: &[Port]) -> Self {
        let places =
            || ports.iter().enumerate().map(|(at, port)| (port.name.clone(), at)).collect();
        Inputs { places: (ports.len() > FEW).then(places), strict: false }
    }

    /// Finds the inputs of a run, and checks them.
    ///
    /// # Errors
    /// If one is missing, given twice, of another type, or unknown to a strict program.
    pub(super) fn find<T: Typed>(
        &self,
        ports: &[Port],
        inputs: &[(&str, T)],
        given: &mut Given,
    ) -> Result<()> {
        given.clear();
        given.resize(ports.len(), None);
        let mut others: HashSet<&str> = HashSet::new();
        for (i, (name, tensor)) in inputs.iter().enumerate() {
            let place = match &self.places {
                Some(places) => places.get(*name).copied(),
                None => ports.iter().position(|port| port.name == *name),
            };
            let Some(at) = place else {
                if !others.insert(name) {
                    return Err(Error::input(name, "is given twice"));
                }
                self.unknown(ports, name)?;
                continue;
            };
            let port = &ports[at];
            if port.role != Role::Input {
                return Err(Error::input(name, "is state: it belongs into the store"));
            }
            if given[at].replace(i).is_some() {
                return Err(Error::input(name, "is given twice"));
            }
            if tensor.ty() != &port.ty {
                return Err(Error::input(name, Error::expected(&port.ty, tensor.ty())));
            }
        }
        let missing =
            |(port, given): &(&Port, &Option<usize>)| port.role == Role::Input && given.is_none();
        match ports.iter().zip(&*given).find(missing) {
            Some((port, _)) => {
                let given = listed(inputs.iter().map(|(name, _)| *name));
                let message = format!("is missing: expected {}, found {given}", port.ty);
                Err(Error::input(&port.name, message))
            }
            None => Ok(()),
        }
    }

    /// An input that the program does not use.
    fn unknown(&self, ports: &[Port], name: &str) -> Result<()> {
        if !self.strict {
            return Ok(());
        }
        let inputs = ports.iter().filter(|port| port.role == Role::Input);
        let known = listed(inputs.map(|port| port.name.as_str()));
        let message = format!("is unknown: the inputs are {known}, and the program is strict");
        Err(Error::input(name, message))
    }
}

/// `` `x`, `y` ``, or `none`.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
