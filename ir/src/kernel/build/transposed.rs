//! Transposed convolutions: operands read in place.

use super::{Built, Context, Group, finish, value_of};
use crate::Size;
use crate::kernel::emit::Collected;
use crate::kernel::{Form, Transposed};
use crate::ops::conv::transpose::{LEAD, groups_of, moves};

/// The kernel of one node.
pub(in crate::kernel) fn build(cx: &Context<'_>, group: &Group) -> Result<Built, String> {
    let node = group.members[0];
    let args = cx.graph.args(node);
    let mut collected = Collected::default();
    for operand in args.iter().copied() {
        if (cx.inline)(operand.node) {
            return Err("an operand of a transposed convolution does not lie in memory".to_owned());
        }
        collected.inputs.number(operand);
    }
    let (x, y) = (&cx.graph.ty(args[0]).shape, &cx.graph.node(node).results[0].shape);
    let weight = &cx.graph.ty(args[1]).shape;
    let moves = moves(weight, &cx.graph.node(node).attrs)?;
    let groups = Size::from(groups_of(&cx.graph.node(node).attrs));
    // Of a single axis there is one row.
    let plane = |sizes: &[Size]| match sizes[LEAD..] {
        [rows, columns] => [rows, columns],
        _ => [Size::from(1), sizes[LEAD]],
    };
    let form = Transposed {
        groups: x[0] * groups,
        period: groups,
        planes: [x[1] / groups, weight[1]],
        from: plane(x),
        to: plane(y),
        moves,
    };
    Ok(finish(cx, group, collected, vec![value_of(node)], Form::Transposed(form)))
}
