//! Lines: operands read in place, and what is done along an axis of them.

use super::{Built, Context, Group, finish, lowering, value_of};
use crate::Size;
use crate::kernel::emit::Collected;
use crate::kernel::{Form, Lines};
use crate::op::Lower;
use crate::ops::lines::work;

/// The kernel of one node.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let node = group.members[0];
    let args = cx.graph.args(node);
    let attrs = &cx.graph.node(node).attrs;
    let (x, y) = (&cx.graph.ty(args[0]).shape, &cx.graph.node(node).results[0].shape);
    let axis = x.axis(attrs.int("dim").unwrap_or(0))?;
    let one = Size::from(1);
    let mut collected = Collected::default();
    for operand in args.iter().copied() {
        if (cx.inline)(operand.node) {
            return Err("an operand of lines does not lie in memory".to_owned());
        }
        collected.inputs.number(operand);
    }
    let Some(Lower::Lines(along)) = lowering(cx.graph, node) else {
        return Err("lines are begun by an op along an axis".to_owned());
    };
    let form = Lines {
        work: work(*along, attrs)?,
        outer: x.iter().take(axis).product(),
        length: x.get(axis).copied().unwrap_or(one),
        inner: x.iter().skip(axis + 1).product(),
        kept: y.get(axis).copied().unwrap_or(one),
    };
    Ok(finish(cx, group, collected, vec![value_of(node)], Form::Lines(form)))
}
