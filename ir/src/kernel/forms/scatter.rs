//! Scatters: values put, added or otherwise combined with what is there, at computed places.

use super::loops::{Grouping, Joins, Loops, Operands, numbers, scalar, sizes_of, sizes_of_loads};
use crate::Size;
use crate::kernel::build;
use crate::kernel::code::Code;
use crate::kernel::cost::{Reads, arithmetic, product};
use crate::kernel::interpret::scalar::{Bits, apply, convert, read, write};
use crate::kernel::interpret::{Failed, Machine, Stopped, each_position, malformed, of, room};
use crate::kernel::scalar_text::commas;
use crate::kernel::{Access, Body, Kernel, Load, Scalar, ScalarOp, Val};
use smallvec::SmallVec;
use std::fmt::{self, Formatter};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Nothing,
    operands: Operands::BaseAndSources,
    domain: |graph, node| &graph.ty(graph.args(node)[1]).shape,
    build: build::scatter,
};

/// What becomes of an element of the output and of a value that meets it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combiner {
    /// The value takes the element's place: the last one of a place stays.
    Set,
    /// Their sum; of truth values whether either holds.
    Add,
    /// Their product; of truth values whether both hold.
    Mul,
    /// The larger; NaN if either is NaN.
    Max,
    /// The smaller; NaN if either is NaN.
    Min,
}

impl Combiner {
    /// Every combiner.
    pub const ALL: [Combiner; 5] =
        [Combiner::Set, Combiner::Add, Combiner::Mul, Combiner::Max, Combiner::Min];

    /// The name used in text.
    pub const fn name(self) -> &'static str {
        match self {
            Combiner::Set => "set",
            Combiner::Add => "add",
            Combiner::Mul => "mul",
            Combiner::Max => "max",
            Combiner::Min => "min",
        }
    }

    /// The instruction that takes the element and the value, both of `ty`, to what becomes of them;
    /// `None` if that is the value itself.
    ///
    /// ```
    /// use tracecast_ir::kernel::{Combiner, Scalar, ScalarOp};
    /// assert_eq!(Combiner::Mul.combines(Scalar::F32), Some(ScalarOp::Mul));
    /// assert_eq!(Combiner::Max.combines(Scalar::Bool), Some(ScalarOp::Or));
    /// assert_eq!(Combiner::Set.combines(Scalar::F32), None);
    /// ```
    pub const fn combines(self, ty: Scalar) -> Option<ScalarOp> {
        let truths = matches!(ty, Scalar::Bool);
        Some(match self {
            Combiner::Set => return None,
            Combiner::Add | Combiner::Max if truths => ScalarOp::Or,
            Combiner::Mul | Combiner::Min if truths => ScalarOp::And,
            Combiner::Add => ScalarOp::Add,
            Combiner::Mul => ScalarOp::Mul,
            Combiner::Max => ScalarOp::Max,
            Combiner::Min => ScalarOp::Min,
        })
    }

    /// True if what becomes of them may be a third number, which is rounded: then what is
    /// accumulated is to be no narrower than f32.
    pub const fn accumulates(self) -> bool {
        matches!(self, Combiner::Add | Combiner::Mul)
    }
}

/// `out = base`, then for every source position in row-major order the combiner takes `out[place]`
/// and the value to a new `out[place]`; sums and products of 16-bit floats in f32, with one
/// rounding at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// Sizes of the source's axes.
    pub extents: Vec<Size>,
    /// What the body loads.
    pub loads: Vec<Load>,
    /// The scalar code over the source's axes.
    pub body: Body,
    /// What meets the elements of the output.
    pub value: Val,
    /// What becomes of both.
    pub combiner: Combiner,
    /// The place in the output: affine in the source's axes, plus `place.indirect[i] * index[i]`.
    pub place: Access,
    /// The indices (i64, already checked) that go with `place.indirect`.
    pub index: SmallVec<[Val; 1]>,
    /// The input that holds the initial contents, of the output's type; zeros if `None`.
    pub base: Option<usize>,
}

impl Loops for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn evaluate(
        &self,
        kernel: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let s = self;
        let (Some(declared), Some(output)) = (kernel.outputs.first(), outputs.first_mut()) else {
            return Err(malformed("a scatter has no output"));
        };
        let dtype = declared.ty.dtype;
        let scalar = Scalar::of(dtype)
            .ok_or_else(|| malformed("no kernels exist for the dtype of a scatter"))?;
        let base = |i: usize| match s.base {
            None => Ok(0),
            Some(b) => inputs
                .get(b)
                .and_then(|b| read(b, dtype, i as i64))
                .ok_or_else(|| malformed("a base is too small")),
        };
        let mut elements: Vec<Bits> = room(declared.ty.numel().get())?;
        for i in 0..declared.ty.numel().get() {
            elements.push(base(i)?);
        }
        let mut machine = Machine::new(inputs, s.extents.len());
        let mut values = Vec::new();
        each_position(&numbers(&s.extents), |position| {
            machine.position.copy_from_slice(position);
            machine.run(&s.body, &s.loads, &mut values)?;
            let at = machine
                .place(&s.place, &s.index, &values)
                .ok_or_else(|| malformed("a scatter is guarded"))?;
            let Some(element) = usize::try_from(at).ok().and_then(|at| elements.get_mut(at)) else {
                return if machine.failed.is_some() {
                    Ok(())
                } else {
                    Err(malformed("a scatter leads outside of its output"))
                };
            };
            let value = convert(of(&values, s.value)?, s.body.ty(s.value), scalar);
            *element = match s.combiner.combines(scalar) {
                None => value,
                Some(op) => apply(op, scalar, scalar, &[*element, value])
                    .ok_or_else(|| malformed("no such combination"))?,
            };
            Ok(())
        })?;
        for (i, element) in elements.into_iter().enumerate() {
            write(output, dtype, i as i64, scalar, element)
                .ok_or_else(|| malformed("an output is too small"))?;
        }
        Ok(machine.failed)
    }

    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64 {
        if let Some(base) = self.base {
            reads.add_whole(kernel.inputs[base].bytes().get());
        }
        let extents = numbers(&self.extents);
        self.loads.iter().for_each(|load| reads.add(load, load.input, &extents));
        (arithmetic(&self.body) + 1).saturating_mul(product(&extents))
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Scatter { extents, loads, body, value, combiner, place, index, base } = self;
        let axes: Vec<String> = (0..extents.len()).map(|i| format!("i{i}")).collect();
        f.write_str("  loop ")?;
        commas(f, axes.iter().zip(extents), |f, (axis, extent)| write!(f, "{axis} {extent}"))?;
        match base {
            Some(input) => writeln!(f, "\n  base in{input}")?,
            None => f.write_str("\n  base zeros\n")?,
        }
        let code = Code { axes, loads, inputs: None, outputs: None, letter: 's' };
        f.write_str("  stage\n")?;
        code.body(f, body, true)?;
        write!(f, "    {} out0", combiner.name())?;
        code.scalars().access(f, place, index, Scalar::I64)?;
        writeln!(f, ", s{value}")
    }

    fn accumulators(&self, kernel: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        if !self.combiner.accumulates() {
            return;
        }
        let acc = kernel.outputs.first().and_then(|o| Scalar::of(o.ty.dtype));
        if let (Some(acc), Some(term)) = (acc, scalar(&self.body, self.value)) {
            found("a scattered sum", acc, term);
        }
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        self.extents.iter_mut().for_each(&mut *each);
        sizes_of_loads(&mut self.loads, each);
        sizes_of(&mut self.place, each);
    }

    fn each_body(&mut self, each: &mut dyn FnMut(&mut Body)) {
        each(&mut self.body);
    }
}
