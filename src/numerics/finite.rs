//! [`check_finite`]: the ops that make an inf or a NaN.

use super::stats::{Numbers, short};
use super::{Place, run};
use crate::error::Result;
use crate::options::Options;
use std::fmt;
use tracecast_ir::eval::{Seen, Value};
use tracecast_ir::op::Body;
use tracecast_ir::{Graph, NodeId, Size, TensorType};
use tracecast_runtime::{Store, Tensor};

/// An op that makes an inf or a NaN of operands that had none, or a port that holds one.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    /// What makes it.
    pub place: Place,
    /// The type of the value.
    pub ty: TensorType,
    /// The first one: an infinity or NaN.
    pub first: f64,
    /// Where it is.
    pub position: Vec<usize>,
    /// The numbers of the value.
    pub numbers: Numbers,
    /// The operands, in order.
    pub operands: Vec<Operand>,
}

/// An operand of an op that made an inf or a NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Operand {
    /// What computed it.
    pub place: Place,
    /// Its type.
    pub ty: TensorType,
    /// Its numbers.
    pub numbers: Numbers,
    /// Its number at the position of the first inf or NaN, if it has the shape of the result.
    pub there: Option<f64>,
}

/// Runs a traced program op by op on these inputs and the state of the store, which stays as it is,
/// and finds what makes an inf or a NaN, the first one first. The list is empty if every number is
/// finite.
///
/// An op is named if it makes an infinity of numbers that are all finite, or a NaN where no operand
/// has one: what follows from an infinity that was made before is not told again. Infinities that
/// the program was written with, as in a mask, are no finding; a port that holds an inf or a NaN is
/// one. Where data without meaning ends a run early, what was found until then is the answer.
///
/// The [module](super) says how programs run for this.
///
/// # Errors
/// An input or an entry of the store that is missing or of another type, a pass that could not
/// finish, data without meaning.
pub fn check_finite(
    graph: &Graph,
    options: &Options,
    store: &Store,
    inputs: &[(&str, &Tensor)],
) -> Result<Vec<NonFinite>> {
    let mut places: Vec<Option<Place>> = Vec::new();
    let mut found = Vec::new();
    let done = run(graph, options, store, inputs, |seen, place| {
        places.resize(places.len().max(seen.node.index() + 1), None);
        places[seen.node.index()] = Some(place.clone());
        let is_written = matches!(seen.graph.node(seen.node).op.def().body, Body::Source(_))
            && seen.graph.port_of(seen.node).is_none();
        if !is_written {
            found.extend(made(seen, &place, &places));
        }
    });
    match done {
        Err(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// What an op has made, if it has made something.
fn made(seen: &Seen<'_>, place: &Place, places: &[Option<Place>]) -> Option<NonFinite> {
    let has = |value: &Value, what: fn(&f64) -> bool| value.to_f64s().iter().any(what);
    let value = seen
        .results
        .iter()
        .find(|value| value.ty.dtype.is_float() && has(value, |number| !number.is_finite()))?;
    let numbers = value.to_f64s();
    let had_nan = seen.operands.iter().any(|value| has(value, |number| number.is_nan()));
    let had_any = had_nan || seen.operands.iter().any(|v| has(v, |number| !number.is_finite()));
    let is_new = |number: &f64| match had_any {
        true => !had_nan && number.is_nan(),
        false => !number.is_finite(),
    };
    let at = numbers.iter().position(is_new)?;
    let place_of = |id: NodeId| places.get(id.index()).cloned().flatten();
    let args = seen.graph.args(seen.node);
    let operands = args.iter().zip(seen.operands).filter_map(|(arg, operand)| {
        let there = (operand.ty.shape == value.ty.shape).then(|| operand.to_f64s()[at]);
        let numbers = Numbers::of_value(operand);
        Some(Operand { place: place_of(arg.node)?, ty: operand.ty.clone(), numbers, there })
    });
    Some(NonFinite {
        place: place.clone(),
        ty: value.ty.clone(),
        first: numbers[at],
        position: position(&value.ty, at),
        numbers: Numbers::of_value(value),
        operands: operands.collect(),
    })
}

/// The row-major position of an element along each axis.
fn position(ty: &TensorType, mut at: usize) -> Vec<usize> {
    let strides = ty.shape.strides();
    let step = |stride: &Size| {
        let stride = stride.get();
        let here = at / stride;
        at %= stride;
        here
    };
    strides.iter().map(step).collect()
}

/// The op and its line, then a line for each operand.
impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.first.is_nan() { "NaN".to_owned() } else { self.first.to_string() };
        write!(f, "{first} at {:?} of {}", self.position, self.ty)?;
        write!(f, ", {} of {} numbers are inf or NaN", self.numbers.nonfinite, self.numbers.count)?;
        write!(f, "\n  {}", self.place)?;
        for Operand { place, ty, numbers, there } in &self.operands {
            write!(f, "\n  of {}: {ty}", place.short())?;
            match numbers.range {
                Some((least, most)) => write!(f, ", {} to {}", short(least), short(most))?,
                None => f.write_str(", no finite number")?,
            }
            if numbers.nonfinite > 0 {
                write!(f, ", {} inf or NaN", numbers.nonfinite)?;
            }
            if let Some(there) = there {
                write!(f, ", {} there", short(*there))?;
            }
        }
        Ok(())
    }
}
