//! The numbers of a constant in their layout in memory.

use super::Value;
use crate::graph::Node;
use crate::ops::source::is_data;

/// The numbers of a constant that [lies in memory](is_data): the bits that code for them would
/// give.
///
/// # Errors
/// If there is not enough memory, or the node is another.
pub fn data(node: &Node) -> Result<Value, String> {
    let (ty, numbers) = (&node.results[0], node.attrs.floats("data"));
    if !is_data(node) || ty.numel() != numbers.len() {
        return Err(format!("{} of type {ty} has no numbers in memory", node.op.name()));
    }
    // Code computes in f32 and narrows what it has.
    let is_low = ty.dtype.is_low();
    let held = |number: f64| if is_low { f64::from(number as f32) } else { number };
    Value::from_fn(ty.clone(), |i| held(numbers[i]))
}
