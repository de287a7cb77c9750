//! [`Parts`]: a fused graph as the planner sees it, before its steps have an order and its values a
//! place.

use crate::buckets::{Bucket, Filling, Work};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;
use tracecast_ir::eval::{Value, data};
use tracecast_ir::kernel::Kernel;
use tracecast_ir::ops::source::is_data;
use tracecast_ir::{Attr, Port, Role, Source, TensorType, ValueId, Values, Verified};

/// The graph as the planner sees it. Values are numbered: the ports come first.
///
/// Every update is the result of a step of its own, and no output is a state that an update
/// replaces: where the graph says otherwise a copy stands between.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) name: String,
    /// Distinct but for their names.
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(crate) ports: Vec<Port>,
    pub(crate) values: Vec<TensorType>,
    /// The values that are numbers of the program: they lie in memory before it runs.
    pub(crate) data: Vec<usize>,
    /// The bytes of each value, with the traced values of names.
    pub(crate) bytes: Vec<usize>,
    pub(crate) steps: Vec<Part>,
    /// What ranks exchange, in the order in which it begins.
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) outputs: Vec<(String, usize)>,
    /// Ports and their next values.
    pub(crate) updates: Vec<(usize, usize)>,
}

/// One step.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) work: Work,
    pub(crate) name: String,
    pub(crate) line: Line,
    pub(crate) inputs: Vec<usize>,
    pub(crate) outputs: Vec<usize>,
}

/// Where the user's program records what a step computes: the module path and the source line, both
/// empty for copies and exchanges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    /// The module path.
    pub(crate) module: Arc<str>,
    /// The source line.
    pub(crate) source: Source,
}

impl Parts {
    /// The parts, and the contents of `data`.
    pub(crate) fn of(graph: &Verified, most: usize) -> Result<(Self, Vec<Value>)> {
        let mut contents = Vec::new();
        let mut parts = Parts {
            name: graph.name().to_owned(),
            kernels: Vec::new(),
            ports: graph.ports().to_vec(),
            values: Vec::new(),
            data: Vec::new(),
            bytes: Vec::new(),
            steps: Vec::new(),
            buckets: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
        };
        let mut numbers: HashMap<ValueId, usize> = HashMap::new();
        for (i, port) in graph.ports().iter().enumerate() {
            parts.value(&port.ty, graph.hint(port.ty.bytes()));
            numbers.insert(ValueId { node: port.node, result: 0 }, i);
        }
        let mut known = Known::default();
        let mut filling = Filling::new(most);
        let live = graph.live();
        for id in graph.nodes().filter(|id| live[id.index()] && graph.port_of(*id).is_none()) {
            let node = graph.node(id);
            if is_data(node) {
                contents.push(data(node).map_err(Error::Plan)?);
                let number = parts.value(&node.results[0], graph.hint(node.results[0].bytes()));
                numbers.insert(ValueId { node: id, result: 0 }, number);
                parts.data.push(number);
                continue;
            }
            let inputs = graph
                .args(id)
                .iter()
                .map(|v| parts.number(&numbers, *v))
                .collect::<Result<Vec<_>>>()?;
            let first = parts.values.len();
            for (result, ty) in node.results.iter().enumerate() {
                let number = parts.value(ty, graph.hint(ty.bytes()));
                numbers.insert(ValueId { node: id, result: result as u16 }, number);
            }
            let outputs: Vec<usize> = (first..parts.values.len()).collect();
            let Some(Attr::Kernel(kernel)) = node.attrs.get("kernel") else {
                let operand = (inputs[0], parts.bytes[inputs[0]]);
                filling.take(node, operand, outputs[0], parts.steps.len())?;
                continue;
            };
            filling.pass(&inputs, &outputs);
            if node.results.iter().any(|ty| ty.bytes() != 0) {
                let number = known.intern(&mut parts.kernels, kernel);
                parts.steps.push(Part {
                    work: Work::Kernel(number),
                    name: kernel.name.clone(),
                    line: Line { module: node.scope.clone(), source: node.source.clone() },
                    inputs,
                    outputs,
                });
            }
        }
        parts.exchange(filling);
        Ok((parts.take_results(graph, &numbers)?, contents))
    }

    /// Puts the steps that begin and finish exchanges in their places.
    fn exchange(&mut self, filling: Filling) {
        let inputs: Vec<&[usize]> = self.steps.iter().map(|step| &step.inputs[..]).collect();
        let (buckets, works) = filling.end(&inputs);
        let step = |work: Work| {
            let (number, begins) = match work {
                Work::Begin(number) => (number, true),
                Work::Finish(number) => (number, false),
                Work::Kernel(_) | Work::Copy => return None,
            };
            let members = buckets[number].members.iter();
            let (inputs, outputs, what) = match begins {
                true => (members.map(|(operand, _)| *operand).collect(), Vec::new(), "begin"),
                false => (Vec::new(), members.map(|(_, result)| *result).collect(), "wait"),
            };
            let name = format!("{}.{what}", buckets[number].name);
            Some(Part { work, name, line: Line::default(), inputs, outputs })
        };
        let mut works = works.into_iter().peekable();
        let mut kernels = std::mem::take(&mut self.steps).into_iter();
        for place in 0..=kernels.len() {
            while let Some((_, work)) = works.next_if(|(at, _)| *at == place) {
                self.steps.extend(step(work));
            }
            self.steps.extend(kernels.next());
        }
        self.buckets = buckets;
    }

    /// A new value.
    fn value(&mut self, ty: &TensorType, bytes: usize) -> usize {
        self.values.push(ty.clone());
        self.bytes.push(bytes);
        self.values.len() - 1
    }

    fn number(&self, numbers: &HashMap<ValueId, usize>, value: ValueId) -> Result<usize> {
        numbers
            .get(&value)
            .copied()
            .ok_or_else(|| Error::Plan("a value is neither a port nor a kernel's".to_owned()))
    }

    /// Outputs and updates, with copies where they are needed.
    fn take_results(mut self, graph: &Verified, numbers: &HashMap<ValueId, usize>) -> Result<Self> {
        // What is no kernel's result is not the place of new state.
        let mut taken = vec![false; self.values.len()];
        self.data.iter().for_each(|value| taken[*value] = true);
        for (port, value) in graph.updates() {
            let mut value = self.number(numbers, *value)?;
            if value == *port || self.bytes[value] == 0 {
                continue;
            }
            if value < self.ports.len() || taken[value] {
                value = self.copy_of(value);
                taken.resize(self.values.len(), false);
            }
            taken[value] = true;
            self.updates.push((*port, value));
        }
        let mut replaced = vec![false; self.ports.len()];
        self.updates.iter().for_each(|(port, _)| replaced[*port] = true);
        for (name, value) in graph.outputs() {
            let mut value = self.number(numbers, *value)?;
            if replaced.get(value) == Some(&true) {
                value = self.copy_of(value);
            }
            self.outputs.push((name.clone(), value));
        }
        Ok(self)
    }

    /// A new value that a step copies from another.
    fn copy_of(&mut self, value: usize) -> usize {
        let to = self.value(&self.values[value].clone(), self.bytes[value]);
        self.steps.push(Part {
            work: Work::Copy,
            name: String::new(),
            line: Line::default(),
            inputs: vec![value],
            outputs: vec![to],
        });
        to
    }

    /// The same with these values for names: of types, and of the kernels that are not `kept` as
    /// they are.
    ///
    /// # Errors
    /// A size that has no number, or is negative.
    pub(crate) fn at(&self, values: &Values, kept: &[bool]) -> Result<Self> {
        let mut parts = self.clone();
        let number = |ty: &mut TensorType| {
            if !ty.shape.has_names() {
                return Ok(());
            }
            for size in ty.shape.iter_mut() {
                *size = size.at(&|name| values.get(name))?.into();
            }
            ty.check_numbers()
        };
        for (ty, bytes) in parts.values.iter_mut().zip(&mut parts.bytes) {
            number(ty).map_err(Error::Plan)?;
            *bytes = ty.bytes().get();
        }
        for (port, ty) in parts.ports.iter_mut().zip(&parts.values) {
            port.ty = ty.clone();
        }
        for (kernel, kept) in parts.kernels.iter_mut().zip(kept) {
            if !kept && !kernel.names.is_empty() {
                *kernel = Arc::new(kernel.at(values).map_err(Error::Plan)?);
            }
        }
        Ok(parts)
    }

    /// The kernel of a step.
    pub(crate) fn kernel_of(&self, step: &Part) -> Option<&Kernel> {
        step.work.kernel().map(|kernel| &*self.kernels[kernel])
    }

    /// True if the port lives in the store.
    pub(crate) fn is_state(&self, value: usize) -> bool {
        self.ports.get(value).is_some_and(|p| p.role != Role::Input)
    }
}

/// Finds equal kernels quickly: by the types of their operands.
#[derive(Default)]
struct Known(HashMap<(Vec<TensorType>, Vec<TensorType>), Vec<usize>>);

impl Known {
    fn intern(&mut self, kernels: &mut Vec<Arc<Kernel>>, kernel: &Arc<Kernel>) -> usize {
        let outputs = kernel.outputs.iter().map(|o| o.ty.clone()).collect();
        let alike = self.0.entry((kernel.inputs.clone(), outputs)).or_default();
        let equal = alike.iter().copied().find(|i| same_but_for_name(&kernels[*i], kernel));
        equal.unwrap_or_else(|| {
            kernels.push(kernel.clone());
            alike.push(kernels.len() - 1);
            kernels.len() - 1
        })
    }
}

fn same_but_for_name(a: &Kernel, b: &Kernel) -> bool {
    a.outputs == b.outputs
        && a.when == b.when
        && a.checks == b.checks
        && a.arguments == b.arguments
        && a.names == b.names
        && a.form == b.form
}
