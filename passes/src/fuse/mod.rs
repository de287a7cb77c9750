//! Groups core ops into kernels. Nothing after this pass sees an op, but for constants whose
//! numbers lie in memory.
//!
//! Before: `contract`, `relu`, `cast`. After: one `kernel @contract_relu_cast` whose epilogue
//! applies the others and whose store narrows. Views and casts of things in memory belong to
//! nobody: each kernel that reads them computes them in its loads (`reach`), as it does what costs
//! less bytes and operations so (`rematerialise`). Every other node joins a kernel of one of its
//! operands, or starts one (`grouping`). Kernels that only write state and run the same code become
//! one kernel over segments (`segments`). What ranks do together stays the op that it is: its
//! operand is stored, nothing joins it, and it keeps the order of the program (`exchanges`),
//! however kernels are formed.
//!
//! Fusing never changes a bit: a kernel rounds where the ops rounded, and reductions keep their
//! order. Which kernel runs when is planned for the bytes between them (`order`).

mod between;
mod column;
mod cost;
mod epilogues;
mod exchanges;
mod factors;
mod forecast;
mod grouping;
mod homes;
mod inline;
mod largest;
mod late;
mod memory;
mod needs;
mod order;
mod program;
mod reach;
mod rematerialise;
mod segments;
mod steps;
mod users;
mod within;

pub use cost::{Cost, Prices, Settings, Weighed};
pub(crate) use forecast::{Forecast, Foreseen};
pub use homes::{Home, Homes, Housed, KernelCost, homes};
pub use memory::{Again, Keep, Stored};
pub use order::Peak;
pub(crate) use users::Users;

use crate::pass::Pass;
use exchanges::is_exchange;
use order::Order;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;
use tracecast_ir::hash::FxHashMap;
use tracecast_ir::kernel::build::{self, Built, Context, Group, lowering};
use tracecast_ir::kernel::{Form, Kernel, Nest, Output};
use tracecast_ir::op::Lower;
use tracecast_ir::ops::fused::KERNEL;
use tracecast_ir::{
    Args, Attr, Attrs, Graph, NodeId, Promise, Role, Stage, TraceError, Tracer, ValueId, Verified,
};
use within::Grouped;

/// Core ops become kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fuse {
    settings: Settings,
}

impl Fuse {
    /// The name of the pass.
    pub const NAME: &'static str = "fuse";

    /// The pass with these settings.
    pub fn new(settings: Settings) -> Self {
        Fuse { settings }
    }
}

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn ensures(&self, _: Stage) -> Stage {
        Stage::Fused
    }

    fn promise(&self) -> Promise {
        Promise::Lowers
    }

    fn run(&self, graph: &Verified) -> Result<Graph, TraceError> {
        if graph.stage() == Stage::Fused {
            return Ok(Graph::clone(graph));
        }
        let forecast = Forecast::known(graph, &self.settings);
        record(graph, Fused::of(graph, &forecast)?)
    }
}

/// What becomes of a graph.
struct Fused<'f> {
    /// In no order.
    kernels: Vec<Built>,
    /// Their order in the program.
    order: Vec<usize>,
    /// What is in memory between them when that takes the most bytes.
    peak: Peak,
    /// The nodes behind each kernel, and what they store; kernels that run the same code share one
    /// with others.
    groups: Vec<(Cow<'f, Group>, Vec<ValueId>)>,
    /// What kernels compute again where they need it.
    inline: &'f [bool],
    weighed: &'f FxHashMap<NodeId, Weighed>,
    /// Members of groups that were taken apart, and why.
    apart: FxHashMap<NodeId, String>,
}

impl<'f> Fused<'f> {
    fn of(graph: &Graph, forecast: &'f Forecast) -> Result<Self, TraceError> {
        let mut apart = FxHashMap::default();
        let made = kernels(graph, forecast, &mut apart)?;
        let made = within::within(graph, forecast, made, &mut apart)
            .map_err(|(node, message)| error(graph, node, message))?;
        let made = needed(graph, made);
        let (groups, kernels): (Vec<_>, Vec<_>) =
            made.into_iter().map(|(group, k)| ((group, k.outputs.clone()), k)).unzip();
        let Forecast { inline, weighed, settings, .. } = forecast;
        let kernels = segments::merge(graph, kernels, settings);
        let Order { kernels: order, peak } = Order::of(graph, &kernels, settings);
        Ok(Fused { kernels, order, peak, groups, inline, weighed, apart })
    }

    /// The names of the kernels: the first of several of one name keeps it.
    fn names(&self) -> Vec<String> {
        let mut names = vec![String::new(); self.kernels.len()];
        let mut seen: FxHashMap<&str, usize> = FxHashMap::default();
        for &i in &self.order {
            let name = &self.kernels[i].kernel.name;
            let count = seen.entry(name).or_default();
            *count += 1;
            names[i] = if *count > 1 { format!("{name}_{count}") } else { name.clone() };
        }
        names
    }
}

/// The kernel of every group. A group that no kernel holds is taken apart: `apart` gets its members
/// and the reason.
fn kernels<'f>(
    graph: &Graph,
    forecast: &'f Forecast,
    apart: &mut FxHashMap<NodeId, String>,
) -> Result<Vec<Grouped<'f>>, TraceError> {
    let inline = |n: NodeId| forecast.inline[n.index()];
    let needed = |n: NodeId| forecast.is_stored(n);
    let mut out = Vec::with_capacity(forecast.groups.len());
    for group in &forecast.groups {
        if let [n] = group.members[..]
            && is_exchange(graph, n)
        {
            out.push((Cow::Borrowed(group), exchange(graph, n)));
            continue;
        }
        match build::kernel(&Context { graph, inline: &inline, stored: &needed }, group) {
            Ok(built) => out.push((Cow::Borrowed(group), built)),
            Err(why) => {
                for &m in &group.members {
                    apart.insert(m, why.clone());
                    let domain = build::domain(graph, m).clone();
                    let alone = Group { members: vec![m], domain };
                    let built = build::kernel(
                        &Context { graph, inline: &inline, stored: &|_| true },
                        &alone,
                    )
                    .map_err(|message| error(graph, m, message))?;
                    out.push((Cow::Owned(alone), built));
                }
            }
        }
    }
    Ok(out)
}

/// What ranks do together, among kernels: its operand, its result, and no loops.
fn exchange(graph: &Graph, n: NodeId) -> Built {
    let (node, operand) = (graph.node(n), graph.args(n)[0]);
    let kernel = Kernel {
        name: node.op.name().to_string(),
        inputs: vec![graph.ty(operand).clone()],
        outputs: vec![Output { ty: node.results[0].clone(), update: None }],
        when: None,
        checks: Vec::new(),
        arguments: Vec::new(),
        names: Vec::new(),
        form: Form::Nest(Nest {
            segments: Vec::new(),
            loads: Vec::new(),
            registers: Vec::new(),
            buffers: Vec::new(),
            stages: Vec::new(),
        }),
    };
    let outputs = vec![ValueId { node: n, result: 0 }];
    Built { kernel, begins: n, inputs: vec![operand], outputs }
}

/// The kernels that a result or another kernel reads: one that is launched under a flag does not
/// read the condition made of the flag.
fn needed<'f>(graph: &Graph, mut kernels: Vec<Grouped<'f>>) -> Vec<Grouped<'f>> {
    loop {
        let mut read = vec![false; graph.len()];
        let inputs = kernels.iter().flat_map(|(_, k)| k.inputs.iter().copied());
        inputs.chain(graph.roots()).for_each(|v| read[v.node.index()] = true);
        let before = kernels.len();
        kernels.retain(|(_, k)| k.outputs.iter().any(|v| read[v.node.index()]));
        if kernels.len() == before {
            return kernels;
        }
    }
}

fn error(graph: &Graph, node: NodeId, message: String) -> TraceError {
    let n = graph.node(node);
    TraceError {
        op: n.op.name().to_string(),
        message,
        source_line: n.source.to_string(),
        scope: n.scope.to_string(),
    }
}

/// For each node whether it is part of a gradient or made of one, as the next value of a parameter
/// is.
fn behind_gradients(graph: &Graph) -> Vec<bool> {
    let mut later: Vec<bool> = Vec::with_capacity(graph.len());
    for id in graph.nodes() {
        let made_of = graph.args(id).iter().any(|arg| later[arg.node.index()]);
        later.push(graph.node(id).origin.backward || made_of);
    }
    later
}

/// Records ports and kernels.
fn record(graph: &Graph, fused: Fused<'_>) -> Result<Graph, TraceError> {
    let (mut names, later) = (fused.names(), behind_gradients(graph));
    let mut kernels: Vec<Option<Built>> = fused.kernels.into_iter().map(Some).collect();
    let tracer = Tracer::explicit(graph.name());
    tracer.take_sizes(graph);
    let mut made: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for port in graph.ports() {
        let source = graph.node(port.node).source.clone();
        let var = tracer.at(source, || {
            tracer.port(&port.name, port.ty.clone(), port.role, port.grad, port.device)
        });
        made.insert(ValueId { node: port.node, result: 0 }, var.id());
    }
    record_data(graph, &tracer, &kernels, &mut made);
    for i in fused.order {
        let Some(Built { kernel, begins, inputs, outputs }) = kernels[i].take() else { continue };
        let kernel = Kernel { name: std::mem::take(&mut names[i]), ..kernel };
        let node = graph.node(begins);
        let vars: SmallVec<[_; 4]> = inputs.iter().map(|v| tracer.var(made[v])).collect();
        let groups = SmallVec::from_elem(vars.len() as u16, 1);
        let attrs = Attrs::new().with("kernel", Attr::Kernel(Arc::new(kernel)));
        let apply = || match is_exchange(graph, begins) {
            true => tracer.again(node, Args { vars, groups }),
            false => tracer.apply(&KERNEL, Args { vars, groups }, attrs),
        };
        // A kernel that gives something of the forward part as well is part of that.
        let is_later = outputs.iter().all(|v| later[v.node.index()]);
        let apply = || match is_later {
            true => tracer.gradient_of(&node.origin, apply),
            false => apply(),
        };
        let apply = || tracer.scope_path(&node.scope, apply);
        let results = tracer.at(node.source.clone(), apply);
        if let Some(error) = tracer.error() {
            return Err(error);
        }
        for (old, new) in outputs.iter().zip(results) {
            made.insert(*old, new.id());
        }
    }
    for (name, value) in graph.outputs() {
        tracer.output(name, tracer.var(made[value]));
    }
    for (port, value) in graph.updates() {
        let port = &graph.ports()[*port];
        debug_assert!(port.role != Role::Input, "the verifier refuses updates of inputs");
        tracer.update(
            tracer.var(made[&ValueId { node: port.node, result: 0 }]),
            tracer.var(made[value]),
        );
    }
    tracer.finish()
}

/// Records the numbers in memory that a kernel reads or a result is.
fn record_data(
    graph: &Graph,
    tracer: &Tracer,
    kernels: &[Option<Built>],
    made: &mut FxHashMap<ValueId, ValueId>,
) {
    let read = kernels.iter().flatten().flat_map(|built| built.inputs.iter().copied());
    let mut data: Vec<ValueId> = read
        .chain(graph.roots())
        .filter(|v| matches!(lowering(graph, v.node), Some(Lower::Data)))
        .collect();
    data.sort_unstable();
    data.dedup();
    for value in data {
        let node = graph.node(value.node);
        let again = || tracer.again(node, Args::new());
        let again = tracer.at(node.source.clone(), || tracer.scope_path(&node.scope, again));
        made.insert(value, again[0].id());
    }
}

#[cfg(test)]
mod tests {
    use super::{Forecast, Fused, Keep, Settings, memory};
    use tracecast_ir::text::parse;

    #[test]
    fn a_group_that_no_kernel_holds_is_taken_apart_for_a_reason() {
        let text = "graph @g(%x: f32[4, 4], %w: f32[4, 4]) {
          %0 = contract %x, %w : f32[4, 4]
          %1 = permute %0 {dims = [1, 0]} : f32[4, 4]
          %2 = add %0, %1 : f32[4, 4]
          return y = %2
        }";
        let graph = parse(text).unwrap();
        let mut forecast = Forecast::of(&graph, &Settings::default());
        // An epilogue has one element of the sums and none of its neighbours.
        let sum = forecast.groups.pop().unwrap();
        forecast.groups[0].members.extend(sum.members);
        let fused = Fused::of(&graph, &forecast).unwrap();
        let (stored, _) = memory::memory(&graph, &fused, &fused.names());
        let why: Vec<_> = stored.iter().map(|stored| &stored.why).collect();
        let Keep::Apart(reason) = why[0] else { panic!("{why:?}") };
        assert_eq!(reason, "an epilogue reads its contraction elsewhere");
        assert_eq!(why[1..], [&Keep::Result]);
    }
}
