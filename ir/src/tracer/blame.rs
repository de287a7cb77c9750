//! What an error says beyond the type rule: the types of the operands, who gave each its dtype, and
//! what can be done.

use super::Tracer;
use crate::args::Args;
use crate::graph::names::Names;
use crate::graph::residence::{beside, of_result};
use crate::graph::{Graph, Groups, NodeId, Role};
use crate::op::{InferCx, OpDef};
use crate::policy::{Decision, DeviceType, Region};
use crate::{Attr, Attrs, DType, Must, Sizes, TensorType};
use std::fmt::Write;

/// How many operands or numbers of a list a message names.
const NAMED: usize = 8;

/// The message of an op that is refused, with what it was given as its second line.
pub(crate) fn with_operands(
    mut message: String,
    def: &OpDef,
    groups: &Groups,
    types: &[TensorType],
    attrs: &Attrs,
) -> String {
    let name = |i| operand_name(def, groups, i).replace('`', "");
    let operands = types.iter().take(NAMED).enumerate();
    let mut given: Vec<String> = operands.map(|(i, ty)| format!("{}: {ty}", name(i))).collect();
    if types.len() > NAMED {
        given.push(format!("{} more", types.len() - NAMED));
    }
    given.extend(attrs.iter().map(|(name, attr)| match attr {
        Attr::Floats(list) if list.len() > NAMED => format!("{name} = {} numbers", list.len()),
        Attr::Ints(list) if list.len() > NAMED => format!("{name} = {} integers", list.len()),
        attr => format!("{name} = {attr}"),
    }));
    if !given.is_empty() {
        let first = message.find('\n').unwrap_or(message.len());
        message.insert_str(first, &format!("\n  given {}", given.join(", ")));
    }
    message
}

/// An op whose type rule refuses its operands.
pub(super) struct Refused<'a, 't> {
    pub(super) def: &'a OpDef,
    pub(super) args: &'a Args<'t>,
    pub(super) attrs: &'a Attrs,
    /// The types of the operands, as the decision leaves them.
    pub(super) types: &'a [TensorType],
    pub(super) decision: Option<&'a Decision>,
}

impl Refused<'_, '_> {
    /// True if the rule would take the operands were their floats of one dtype.
    fn is_about_dtypes(&self) -> bool {
        let floats = || self.types.iter().map(|ty| ty.dtype).filter(|dtype| dtype.is_float());
        if floats().all(|dtype| floats().next() == Some(dtype)) {
            return false;
        }
        let alike = |ty: &TensorType| match ty.dtype.is_float() {
            true => ty.clone().with_dtype(DType::F32),
            false => ty.clone(),
        };
        let types: Vec<TensorType> = self.types.iter().map(alike).collect();
        let none = Sizes::default();
        let must = Must::proven(&none);
        let groups = &self.args.groups;
        let cx = InferCx { types: &types, groups, attrs: self.attrs, must: &must };
        (self.def.infer)(&cx).is_ok()
    }
}

impl Tracer {
    /// The message of a type rule; if operands do not fit together by their dtypes, with a line for
    /// each that says who gave it its dtype, and a line of advice.
    pub(super) fn with_provenance(&self, refused: &Refused<'_, '_>, mut message: String) -> String {
        if self.explicit || !refused.is_about_dtypes() {
            return message;
        }
        let state = self.state.borrow();
        let graph = &state.graph;
        let (names, region) = (Names::new(graph), &graph.regions[state.region as usize]);
        let homes = || refused.args.vars.iter().map(|v| state.devices[v.id.node.index()]);
        let together = of_result(homes());
        let (mut away, mut wide) = (None, None);
        for (i, (var, home)) in refused.args.vars.iter().zip(homes()).enumerate() {
            let ty = &refused.types[i];
            if !ty.dtype.is_float() {
                continue;
            }
            let operand = operand_name(refused.def, &refused.args.groups, i);
            let _ = write!(message, "\n  {operand} is {}: ", ty.dtype);
            let device = beside(home, together);
            match refused.decision.filter(|d| d.casts.get(i).is_some_and(Option::is_some)) {
                Some(d) => {
                    let (from, rule) = (var.id, &d.rule);
                    let from = graph.ty(from).dtype;
                    let _ = write!(
                        message,
                        "{} is {from}, and {rule} casts it in region #{}",
                        names.value(var.id),
                        state.region
                    );
                }
                None => {
                    message += &given(graph, &names, var.id.node);
                    if let Some(on) = off_for(region, device) {
                        let _ = write!(
                            message,
                            "; it is not cast here, since it lives on {device} and autocast is on for {on}"
                        );
                        away.get_or_insert((operand, on));
                    } else if ty.dtype == DType::F64 && !region.is_off() {
                        message += "; autocast never casts f64";
                        wide.get_or_insert(operand);
                    }
                }
            }
        }
        let advice = match (away, wide) {
            (Some((operand, on)), _) => format!("or say that {operand} lives on {on}"),
            (None, Some(operand)) => format!("or make {operand} of f32, which autocast casts"),
            (None, None) if region.is_off() => {
                format!("or record `{}` in an autocast region that casts them", refused.def.name)
            }
            (None, None) => {
                format!("or lay a rule over the tables that casts them for `{}`", refused.def.name)
            }
        };
        let _ = write!(message, "\n  cast one of them to the dtype of the other, {advice}");
        message
    }
}

/// Who gave the results of a node their dtype.
fn given(graph: &Graph, names: &Names<'_>, id: NodeId) -> String {
    let name = names.node(id);
    if let Some(port) = graph.port_of(id) {
        let what = match port.role {
            Role::Input => "an input",
            Role::Param => "a parameter",
            Role::State => "state",
        };
        return format!("{name} is {what} of that dtype");
    }
    let node = graph.node(id);
    let mut text = format!("`{}` gives {name}", node.op.name());
    let source = node.source.to_string();
    if !source.is_empty() {
        let _ = write!(text, " at {source}");
    }
    if let Some(decision) = &node.decision {
        let _ = write!(text, ", decided by {} in region #{}", decision.rule, node.region);
    }
    text
}

/// The devices that a region is on for, if the one at hand is none of them.
fn off_for(region: &Region, device: DeviceType) -> Option<String> {
    let on = || DeviceType::ALL.into_iter().filter(|d| region.is_enabled(*d));
    let names: Vec<&str> = on().map(DeviceType::name).collect();
    (!names.is_empty() && on().all(|d| d != device)).then(|| names.join(" and "))
}

/// `` `x` ``, or `` `xs[1]` `` for an item of a list.
pub(super) fn operand_name(def: &OpDef, groups: &Groups, flat: usize) -> String {
    let mut first = 0;
    for (operand, &count) in def.schema.operands.iter().zip(groups) {
        let count = usize::from(count);
        if flat < first + count {
            let is_list = operand.kind == crate::op::OperandKind::List;
            let item = if is_list { format!("[{}]", flat - first) } else { String::new() };
            return format!("`{}{item}`", operand.name);
        }
        first += count;
    }
    format!("operand {flat}")
}
