//! The numbers of a program: where the first inf or NaN comes from, how values use the range of
//! their dtypes, and whether gradients are those that differences give.
//!
//! A program runs here op by op in the interpreter, behind the passes that decide about casts,
//! gradients and loss scaling and before those that move casts and fuse. Compiled code keeps no
//! value between two ops of a kernel, so a device has nothing to show; and what it computes is
//! defined by the interpreter, bit for bit but for the sums in products of matrices. So an op that
//! overflows here overflows there. It takes long: it is meant for one step of a program that went
//! wrong.
//!
//! ```
//! use tracecast::numerics::check_finite;
//! use tracecast::prelude::*;
//!
//! let graph = trace("ratio", |t| {
//!     let x = t.input_of("x", TensorType::new(DType::F32, [3]));
//!     t.output("y", (x - 1.0).log().exp());
//! })?;
//! let x = Tensor::new([3], &[3.0f32, 1.0, 2.0])?;
//! let found = check_finite(&graph, &Options::new(), &Store::new(), &[("x", &x)])?;
//! assert_eq!((found[0].place.op, found[0].first, &found[0].position[..]), ("log", f64::NEG_INFINITY, &[1][..]));
//! assert_eq!(found[0].operands[0].numbers.range, Some((0.0, 2.0)));
//! # Ok::<(), tracecast::Error>(())
//! ```

mod finite;
mod gradients;
mod stats;

pub use finite::{NonFinite, Operand, check_finite};
pub use gradients::{WrongGradient, check_gradients};
pub use stats::{Numbers, Stats, ValueStats, stats};

use crate::compile::refused;
use crate::error::Result;
use crate::options::Options;
use std::collections::HashMap;
use std::fmt;
use tracecast_ir::eval::{self, EvalError, Seen, Value};
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId, Port, Role};
use tracecast_passes::{Decompose, standard};
use tracecast_runtime::{Error, Store, Tensor};

/// What computes a value, and where the program asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// What the text of the traced program calls the op that it is for, such as `%3`, or the port,
    /// such as `%x`.
    pub value: String,
    /// The op; `input`, `param` or `state` for what comes from outside.
    pub op: &'static str,
    /// The op that the program recorded, if this one is a part of it.
    pub part_of: Option<&'static str>,
    /// True if it is part of the gradient of that op.
    pub backward: bool,
    /// The module path; empty at the top.
    pub scope: String,
    /// The line that recorded it; empty if not known.
    pub source: String,
}

/// `%3 exp, part of softmax, in its gradient, at model.rs:12:5 in encoder`
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())?;
        if !self.source.is_empty() {
            write!(f, ", at {}", self.source)?;
        }
        if !self.scope.is_empty() {
            write!(f, " in {}", self.scope)?;
        }
        Ok(())
    }
}

impl Place {
    fn of(names: &Written<'_>, graph: &Graph, id: NodeId) -> Place {
        let node = graph.node(id);
        let port = graph.port_of(id);
        let op = port.map_or(node.op.name().text(), |port| role(port.role));
        let value = match (port, node.origin.node) {
            (Some(port), _) => format!("%{}", port.name),
            (None, Some(traced)) => names.name(traced),
            (None, None) => String::new(),
        };
        Place {
            value,
            op,
            part_of: node.part_of.map(|op| op.text()),
            backward: node.origin.backward,
            scope: node.scope.to_string(),
            source: node.source.to_string(),
        }
    }

    /// The value and the op, without line and module.
    fn short(&self) -> String {
        let mut out = self.value.clone();
        if !self.value.is_empty() {
            out.push(' ');
        }
        out.push_str(self.op);
        if let Some(whole) = self.part_of.filter(|whole| *whole != self.op) {
            out += &format!(", part of {whole}");
        }
        if self.backward {
            out.push_str(", in its gradient");
        }
        out
    }
}

/// What a text calls the nodes of a traced program.
struct Written<'a> {
    names: Names<'a>,
    /// The names that a text written by hand gives.
    own: HashMap<NodeId, &'a str>,
}

impl<'a> Written<'a> {
    fn new(graph: &'a Graph) -> Self {
        let own = graph.written().iter().rev().map(|(value, name)| (value.node, name.as_str()));
        Written { names: Names::new(graph), own: own.collect() }
    }

    fn name(&self, id: NodeId) -> String {
        self.own.get(&id).map_or_else(|| self.names.node(id).to_string(), |own| format!("%{own}"))
    }
}

const fn role(role: Role) -> &'static str {
    match role {
        Role::Input => "input",
        Role::Param => "param",
        Role::State => "state",
    }
}

/// Runs a traced program op by op, and shows each op.
fn run(
    graph: &Graph,
    options: &Options,
    store: &Store,
    inputs: &[(&str, &Tensor)],
    mut see: impl FnMut(&Seen<'_>, Place),
) -> Result<()> {
    let given_type =
        |name: &str| inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.ty());
    let values = graph.values(&given_type, &[]).map_err(refused)?;
    let graph = &graph.at(&values)?;
    let pipeline = standard(&options.passes()).up_to(Decompose::NAME);
    let pipeline = pipeline.expect("the standard pipeline decomposes");
    let core = pipeline.run(graph.clone(), |_, _, _| ())?;
    let mut values = HashMap::new();
    for port in core.ports() {
        values.insert(port.name.clone(), given(port, store, inputs)?);
    }
    let names = Written::new(graph);
    let see = &mut |seen: &Seen<'_>| see(seen, Place::of(&names, seen.graph, seen.node));
    eval::watched(&core, &values, see).map(drop).map_err(failed)
}

/// The value of a port.
fn given(port: &Port, store: &Store, inputs: &[(&str, &Tensor)]) -> Result<Value> {
    let (name, ty) = (port.name.clone(), &port.ty);
    let wrong = |found: &str| format!("expected {ty}, found {found}");
    if port.role != Role::Input {
        let found = store.get(&name)?;
        return match found.ty() == ty {
            true => Ok(found.value().clone()),
            false => Err(Error::State { name, message: wrong(&found.ty().to_string()) }),
        };
    }
    match inputs.iter().find(|(input, _)| **input == name) {
        Some((_, found)) if found.ty() == ty => Ok(found.value().clone()),
        Some((_, found)) => Err(Error::Input { name, message: wrong(&found.ty().to_string()) }),
        None => Err(Error::Input { name, message: format!("is missing: expected {ty}") }),
    }
}

fn failed(error: EvalError) -> Error {
    match error {
        EvalError::Data(raised) => Error::Data {
            op: raised.check.op.clone(),
            message: raised.check.says(raised.found),
            source_line: raised.check.source.clone(),
            kernel: raised.kernel,
        },
        error => Error::Device(format!("interpreter: {error}")),
    }
}
