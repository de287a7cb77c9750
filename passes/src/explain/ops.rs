//! [`OpNote`]: the precision of an op, and why it has it.

use super::casts::CastNote;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;
use tracecast_ir::op::{Body, Lower};
use tracecast_ir::policy::{Decision, DeviceType, Policy, RuleId};
use tracecast_ir::text::Names;
use tracecast_ir::{DType, Graph, NodeId, OpName, TensorType};

/// One op of the traced program.
#[derive(Clone, Debug, PartialEq)]
pub struct OpNote {
    /// The node.
    pub node: NodeId,
    /// Its first result as the text of the program calls it, such as `%3`.
    pub value: String,
    /// What a text that was written by hand calls its results, such as `%hidden`.
    pub written: Vec<String>,
    /// Its operands, in order, as the text calls them.
    pub operands: Vec<String>,
    /// Its name across traces, such as `encoder.0/linear#0`; what rules about nodes match.
    pub name: String,
    /// The op.
    pub op: &'static str,
    /// The op that the program recorded, if this one is a part of it.
    pub part_of: Option<&'static str>,
    /// The types of its results.
    pub results: SmallVec<[TensorType; 1]>,
    /// How wide its results are.
    pub width: Width,
    /// Why.
    pub why: Why,
    /// What policies decided, for an op that they see.
    pub policy: Option<Policy>,
    /// The rule that decided.
    pub rule: Option<RuleId>,
    /// The region: its number in the text, 0 outside of all.
    pub region: u32,
    /// True if autocast is on there for some device.
    pub is_on: bool,
    /// The module path.
    pub scope: String,
    /// The line that recorded it.
    pub source: String,
    /// The number of casts that are made for it, its gradient included.
    pub casts: usize,
}

impl OpNote {
    /// True for the name of one of its results, such as `%3` or `%hidden`.
    pub fn has_value(&self, name: &str) -> bool {
        let number = |value: &str| value.strip_prefix('%')?.parse::<usize>().ok();
        match (number(&self.value), number(name)) {
            (Some(first), Some(asked)) => (first..first + self.results.len()).contains(&asked),
            _ => self.value == name || self.written.iter().any(|written| written == name),
        }
    }
}

/// How wide the results of an op are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One of them is a 16-bit float.
    Low(DType),
    /// The floats among them are of this wider dtype.
    Wide(DType),
    /// None of them is a float.
    NoFloat,
}

/// Why an op has the precision that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A policy casts operands to this dtype.
    Cast(DType),
    /// A policy gives the op this `dtype`.
    Argument(DType),
    /// A policy speaks of it, and asks for nothing more: the operands have the dtype already, or
    /// the op was given a `dtype`.
    Already,
    /// A policy would cast, but only floats other than f64 on the device of the region, and no
    /// operand is one: these are.
    Ineligible(Vec<DType>),
    /// No policy casts its operands: it computes in their dtype, that of this operand.
    Unlisted(Option<(String, DType)>),
    /// A rule over the tables leaves it as it is: it computes in the dtype of its operands, that of
    /// this one.
    Exempt(Option<(String, DType)>),
    /// Autocast is on, but not for the devices of its operands.
    Elsewhere {
        /// Where it is on.
        on: Vec<DeviceType>,
        /// Where the operands are.
        operands: Vec<DeviceType>,
    },
    /// It lies in a region that is off; switched off for these devices of its operands.
    Off(Vec<DeviceType>),
    /// It lies in no region.
    Outside,
    /// It is recorded with this dtype as what it is to give.
    Written(DType),
    /// Policies never see it: it computes in the dtype of its operands, that of this one.
    Unseen(Option<(String, DType)>),
}

impl Why {
    /// The name of the kind of reason, for machines.
    pub const fn name(&self) -> &'static str {
        match self {
            Why::Cast(_) => "cast",
            Why::Argument(_) => "dtype-argument",
            Why::Already => "already",
            Why::Ineligible(_) => "ineligible",
            Why::Unlisted(_) => "unlisted",
            Why::Exempt(_) => "exempt",
            Why::Elsewhere { .. } => "elsewhere",
            Why::Off(_) => "region-off",
            Why::Outside => "no-region",
            Why::Written(_) => "written",
            Why::Unseen(_) => "unseen",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Cast(to) => write!(f, "operands are cast to {to}"),
            Why::Argument(to) => write!(f, "it is given dtype = {to}"),
            Why::Already => f.write_str("nothing to cast"),
            Why::Ineligible(found) => {
                write!(f, "no operand can be cast: ")?;
                join(f, found)?;
                f.write_str(if found.len() == 1 { " is left alone" } else { " are left alone" })
            }
            Why::Unlisted(operand) => {
                f.write_str("not listed, computes in the dtype of its operands")?;
                of_operand(f, operand)
            }
            Why::Exempt(operand) => {
                f.write_str("a rule leaves it as it is, it computes in the dtype of its operands")?;
                of_operand(f, operand)
            }
            Why::Elsewhere { on, operands } => {
                f.write_str("autocast is on for ")?;
                join(f, on)?;
                f.write_str(", its operands are on ")?;
                join(f, operands)
            }
            Why::Off(devices) if devices.is_empty() => f.write_str("in a region that is off"),
            Why::Off(devices) => {
                f.write_str("autocast is switched off for ")?;
                join(f, devices)
            }
            Why::Outside => f.write_str("in no region"),
            Why::Written(dtype) => write!(f, "it is asked for in {dtype}"),
            Why::Unseen(operand) => {
                f.write_str("not for policies, computes in the dtype of its operands")?;
                of_operand(f, operand)
            }
        }
    }
}

fn of_operand(f: &mut fmt::Formatter<'_>, operand: &Option<(String, DType)>) -> fmt::Result {
    match operand {
        Some((name, dtype)) => write!(f, ": {name} is {dtype}"),
        None => Ok(()),
    }
}

fn join<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { " and " })?;
        write!(f, "{item}")?;
    }
    Ok(())
}

/// Notes about every op but ports.
pub(super) fn notes(
    graph: &Graph,
    decisions: &[Option<Decision>],
    casts: &[CastNote],
) -> Vec<OpNote> {
    let (names, stable, devices) = (Names::new(graph), graph.names(), graph.devices());
    let is_port = |id: NodeId| matches!(graph.node(id).op.def().body, Body::Source(Lower::Port));
    let mut written: HashMap<NodeId, Vec<String>> = HashMap::new();
    for (value, name) in graph.written() {
        written.entry(value.node).or_default().push(format!("%{name}"));
    }
    let mut count = vec![0; graph.len()];
    casts.iter().for_each(|cast| count[cast.node.index()] += 1);
    graph
        .nodes()
        .filter(|id| !is_port(*id))
        .map(|id| {
            let node = graph.node(id);
            let decision = decisions[id.index()].as_ref();
            let at = At { graph, names: &names, devices: &devices, id };
            let asked = decision.filter(|_| !graph.region(id).is_off());
            OpNote {
                node: id,
                value: names.node(id).to_string(),
                written: written.get(&id).cloned().unwrap_or_default(),
                operands: graph.args(id).iter().map(|a| names.value(*a).to_string()).collect(),
                name: stable[id.index()].clone(),
                op: node.op.name().text(),
                part_of: node.part_of.map(OpName::text),
                results: node.results.clone(),
                width: width(&node.results),
                why: at.why(decision),
                policy: asked.map(|d| d.policy.clone()),
                rule: asked.map(|d| d.rule.clone()),
                region: node.region,
                is_on: !graph.region(id).is_off(),
                scope: node.scope.to_string(),
                source: node.source.to_string(),
                casts: count[id.index()],
            }
        })
        .collect()
}

fn width(results: &[TensorType]) -> Width {
    let floats = || results.iter().map(|ty| ty.dtype).filter(|dtype| dtype.is_float());
    match floats().find(|dtype| dtype.is_low()) {
        Some(low) => Width::Low(low),
        None => floats().next().map_or(Width::NoFloat, Width::Wide),
    }
}

/// A node of a traced program.
struct At<'a> {
    graph: &'a Graph,
    names: &'a Names<'a>,
    devices: &'a [Option<DeviceType>],
    id: NodeId,
}

impl At<'_> {
    fn why(&self, decision: Option<&Decision>) -> Why {
        let region = self.graph.region(self.id);
        if region.is_off() {
            let is_outside = self.graph.node(self.id).region == 0;
            return if is_outside { Why::Outside } else { Why::Off(self.switched_off()) };
        }
        let attrs = &self.graph.node(self.id).attrs;
        let written = attrs.dtype("to").or(attrs.dtype("dtype"));
        let Some(decision) = decision else {
            return written.map_or_else(|| Why::Unseen(self.widest()), Why::Written);
        };
        if decision.rule == RuleId::ELSEWHERE {
            let off = self.switched_off();
            if !off.is_empty() {
                return Why::Off(off);
            }
            let on = DeviceType::ALL.into_iter().filter(|d| region.is_enabled(*d)).collect();
            return Why::Elsewhere { on, operands: self.operand_devices() };
        }
        if let Some(to) = decision.casts.iter().flatten().next() {
            return Why::Cast(*to);
        }
        if let Some(to) = decision.dtype_arg {
            return Why::Argument(to);
        }
        match (written, &decision.policy) {
            (Some(dtype), _) => Why::Written(dtype),
            (None, Policy::Fallthrough) if decision.rule.is_laid_over() => {
                Why::Exempt(self.widest())
            }
            (None, Policy::Fallthrough) => Why::Unlisted(self.widest()),
            (None, _) => self.left_alone(),
        }
    }

    /// A policy speaks of the node and does nothing: there is nothing to do, or nothing that it may
    /// do.
    fn left_alone(&self) -> Why {
        let region = self.graph.region(self.id);
        let mut dtypes: Vec<DType> = Vec::new();
        let devices = self.graph.operand_devices(self.devices, self.id);
        for (arg, device) in self.graph.args(self.id).into_iter().zip(devices) {
            let dtype = self.graph.ty(arg).dtype;
            if dtype.is_float() && dtype != DType::F64 && region.is_enabled(device) {
                return Why::Already;
            }
            if !dtypes.contains(&dtype) {
                dtypes.push(dtype);
            }
        }
        Why::Ineligible(dtypes)
    }

    /// The devices of operands that its region has switched off.
    fn switched_off(&self) -> Vec<DeviceType> {
        let mut devices = self.operand_devices();
        devices.retain(|device| self.graph.region(self.id).is_switched_off(*device));
        devices
    }

    fn operand_devices(&self) -> Vec<DeviceType> {
        let mut devices: Vec<DeviceType> = Vec::new();
        for device in self.graph.operand_devices(self.devices, self.id) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    /// The first of the widest floats among the operands: it decides about an op that nobody casts.
    fn widest(&self) -> Option<(String, DType)> {
        let args = self.graph.args(self.id);
        let floats = args.iter().filter(|a| self.graph.ty(**a).dtype.is_float());
        let widest = floats.rev().max_by_key(|a| self.graph.ty(**a).dtype.bytes())?;
        Some((self.names.value(*widest).to_string(), self.graph.ty(*widest).dtype))
    }
}
