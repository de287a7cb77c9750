//! Attention: values weighed by how queries meet keys, without a matrix of all weights. What is
//! computed, and in which order, stands in [`attention`](crate::kernel::attention).

use super::loops::{Grouping, Joins, Loops, Operands};
use crate::kernel::attention::{Attend, Extents, Pass, Placed};
use crate::kernel::cost::Reads;
use crate::kernel::interpret::{Failed, Stopped};
use crate::kernel::{Body, Kernel, Scalar, build};
use crate::{DType, Size};
use std::fmt::{self, Formatter};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Nothing,
    operands: Operands::SeenInMemory { why: "queries read the keys many times" },
    domain: |graph, node| &graph.node(node).results[0].shape,
    build: build::attention,
};

/// Attention over operands that lie in memory, as their strides say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention(pub Attend);

impl Attention {
    /// For sizes that are numbers.
    fn numbers(&self) -> Result<Attend<i64>, Stopped> {
        let number = |size: Size| size.number().ok_or("a size is a name".to_owned());
        self.0.at(&mut { number }).map_err(Stopped::Malformed)
    }
}

impl Loops for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn evaluate(
        &self,
        kernel: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let inputs: Vec<(&[u8], DType)> =
            inputs.iter().zip(&kernel.inputs).map(|(bytes, ty)| (*bytes, ty.dtype)).collect();
        let mut outputs: Vec<(&mut [u8], DType)> = outputs
            .iter_mut()
            .zip(&kernel.outputs)
            .map(|(bytes, output)| (&mut **bytes, output.ty.dtype))
            .collect();
        self.numbers()?.run(&inputs, &mut outputs).map_err(Stopped::Malformed)?;
        Ok(None)
    }

    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64 {
        kernel.inputs.iter().for_each(|input| reads.add_whole(input.bytes().get()));
        let Extents { batch, heads, queries, keys, width, value, .. } = self.0.extents;
        let count = |size: Size| size.get() as u64;
        let products = match self.0.pass {
            Pass::Forward => count(width).saturating_add(count(value)),
            Pass::Backward => {
                count(width).saturating_mul(3).saturating_add(count(value).saturating_mul(2))
            }
        };
        let sizes = [batch, heads, queries, keys].into_iter().map(count);
        let scores = sizes.fold(2u64, u64::saturating_mul);
        // Of a causal one about half of the scores are asked for.
        scores.saturating_mul(products) / if self.0.causal { 2 } else { 1 }
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Attend { pass, extents, operands, mask, drop, given, causal, .. } = &self.0;
        let Extents { batch, heads, shared, queries, keys, width, value } = extents;
        writeln!(
            f,
            "  batch {batch}, heads {heads} over {shared}, queries {queries}, keys {keys}, width {width}, values {value}"
        )?;
        let backward = if *pass == Pass::Backward { "backward, " } else { "" };
        let causal = if *causal { ", causal" } else { "" };
        writeln!(f, "  {backward}scale {}{causal}", self.0.scale())?;
        let [q, k, v] = operands;
        placed(f, "q", q)?;
        placed(f, "k", k)?;
        placed(f, "v", v)?;
        mask.iter().try_for_each(|mask| placed(f, "mask", mask))?;
        for (name, given) in ["dy", "lse", "less"].into_iter().zip(given.iter().flatten()) {
            placed(f, name, given)?;
        }
        let Some(drop) = drop else { return Ok(()) };
        placed(f, "rng", &drop.rng)?;
        let part = if drop.part { " for a part of a batch" } else { "" };
        writeln!(f, "  drop {} of stream {}{part}", f64::from_bits(drop.p), drop.stream)
    }

    fn accumulators(&self, kernel: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        let input = self.0.operands[0].input;
        let Some(scalar) = kernel.inputs.get(input).and_then(|i| Scalar::of(i.dtype)) else {
            return;
        };
        found("a weighted sum", scalar, scalar);
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        self.0.each_size(each);
    }

    fn each_body(&mut self, _: &mut dyn FnMut(&mut Body)) {}
}

/// Where an operand lies: `  k in1[64 + 8*i0 + i3]`.
fn placed(f: &mut Formatter<'_>, name: &str, of: &Placed) -> fmt::Result {
    write!(f, "  {name} in{}[", of.input)?;
    let mut first = true;
    if of.offset != 0 {
        write!(f, "{}", of.offset)?;
        first = false;
    }
    for (axis, stride) in of.strides.iter().enumerate().filter(|(_, stride)| **stride != 0) {
        let and = if std::mem::take(&mut first) { "" } else { " + " };
        match stride.number() {
            Some(1) => write!(f, "{and}i{axis}")?,
            _ if stride.name().is_some() || stride.number().is_some() => {
                write!(f, "{and}{stride}*i{axis}")?;
            }
            _ => write!(f, "{and}({stride})*i{axis}")?,
        }
    }
    f.write_str(if first { "0]\n" } else { "]\n" })
}
