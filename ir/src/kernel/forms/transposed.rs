//! Transposed convolutions, as the gradient of a convolution's operand is one: sums are over what
//! windows see that are evenly apart.

use super::loops::{Grouping, Joins, Loops, Operands};
use crate::kernel::cost::Reads;
use crate::kernel::interpret::scalar::{Bits, read, write};
use crate::kernel::interpret::{Failed, Stopped, malformed, room};
use crate::kernel::math::{self, CONTRACT_BLOCK};
use crate::kernel::{Body, Kernel, Scalar, build};
use crate::{DType, Size};
use std::fmt::{self, Formatter};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Nothing,
    operands: Operands::InMemory { why: "windows read it many times" },
    domain: |graph, node| &graph.node(node).results[0].shape,
    build: build::transposed,
};

/// `out[g, p, h] = Σ_c Σ_k in0[g, c, o] * in1[g % period, c, p, k]` over the planes `c` of a group,
/// and in each over the positions `k` of a window, in row-major order, for which there is a whole
/// number `o` along both axes with `h = o * stride + k - low`; where `o` is outside of `in0`, zero
/// is multiplied. An even number of planes of bf16 is gone through two at a time, at each position
/// the one and then the other. Sums are those of a [contraction](super::Contract): chains of fused
/// multiply-adds from zero over blocks of steps, of 16-bit floats in f32.
///
/// If there is one input, it is both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transposed {
    /// Groups of planes, through all examples.
    pub groups: Size,
    /// After how many of them weights come again.
    pub period: Size,
    /// Planes of a group of the operand, and of the result.
    pub planes: [Size; 2],
    /// Rows and columns of a plane of the operand.
    pub from: [Size; 2],
    /// The same of the result.
    pub to: [Size; 2],
    /// How windows move.
    pub moves: [Moves; 2],
}

/// How windows move along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moves {
    /// Positions of a window.
    pub positions: usize,
    /// From a window to the next.
    pub stride: usize,
    /// Positions of the first window before the first element.
    pub low: usize,
}

impl Moves {
    /// Of windows of one position, one beside the other.
    pub const STILL: Moves = Moves { positions: 1, stride: 1, low: 0 };

    /// The first position of a window that element `at` is at, the window of which it is that
    /// position, and how many positions it is at: each a stride behind the one before, in the
    /// window before.
    pub const fn met(self, at: usize) -> (usize, usize, usize) {
        let (window, first) = ((at + self.low) / self.stride, (at + self.low) % self.stride);
        let rest = self.positions.saturating_sub(first);
        (first, window, rest.div_ceil(self.stride))
    }
}

/// What a sum goes through: the elements of a group, its weights, and the plane and the place of
/// the result.
struct Sum<'a> {
    x: &'a [Bits],
    weight: &'a [Bits],
    plane: usize,
    at: [usize; 2],
}

impl Transposed {
    /// Calls `each` for the steps of a sum, with both factors.
    fn each_step(&self, sum: &Sum<'_>, together: usize, mut each: impl FnMut(Bits, Bits)) {
        let Sum { x, weight, plane, at: [row, column] } = *sum;
        let [down, across] = self.moves;
        let [rows, columns] = self.from.map(Size::get);
        let [of_x, of_result] = self.planes.map(Size::get);
        let window = down.positions * across.positions;
        let (first_down, below, count_down) = down.met(row);
        let (first_across, beside, count_across) = across.met(column);
        for first in (0..of_x).step_by(together) {
            for i in 0..count_down {
                for j in 0..count_across {
                    let position = (first_down + i * down.stride) * across.positions;
                    let position = position + first_across + j * across.stride;
                    for c in first..first + together {
                        let x = match (below.checked_sub(i), beside.checked_sub(j)) {
                            (Some(b), Some(a)) if b < rows && a < columns => {
                                x[(c * rows + b) * columns + a]
                            }
                            _ => 0,
                        };
                        each(x, weight[(c * of_result + plane) * window + position]);
                    }
                }
            }
        }
    }
}

macro_rules! chains {
    ($name:ident, $ty:ident, $word:ident, $fma:path) => {
        /// The sum, in blocks.
        fn $name(&self, sum: &Sum<'_>, together: usize) -> Bits {
            let of = |bits: Bits| $ty::from_bits(bits as $word);
            let (mut total, mut chain, mut steps) = (None, 0.0, 0);
            self.each_step(sum, together, |x, w| {
                if steps == CONTRACT_BLOCK {
                    total = Some(total.map_or(chain, |total: $ty| total + chain));
                    (chain, steps) = (0.0, 0);
                }
                chain = $fma(of(w), of(x), chain);
                steps += 1;
            });
            Bits::from(total.map_or(chain, |total| total + chain).to_bits())
        }
    };
}

impl Transposed {
    chains!(sum_f32, f32, u32, math::fma);
    chains!(sum_f64, f64, u64, f64::mul_add);
}

impl Loops for Transposed {
    fn name(&self) -> &'static str {
        "transposed convolution"
    }

    fn evaluate(
        &self,
        kernel: &Kernel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Failed, Stopped> {
        let (Some(ty), Some(output)) = (kernel.inputs.first(), outputs.first_mut()) else {
            return Err(malformed("a transposed convolution has operands and an output"));
        };
        let scalar = Scalar::of(ty.dtype).filter(|scalar| scalar.is_float());
        let scalar = scalar.ok_or_else(|| malformed("a transposed convolution is of floats"))?;
        let all = |bytes: &[u8]| -> Result<Vec<Bits>, Stopped> {
            let count = bytes.len() / ty.dtype.bytes();
            let mut values = room(count)?;
            for i in 0..count {
                let value = read(bytes, ty.dtype, i as i64);
                values.push(value.ok_or_else(|| malformed("an operand is too small"))?);
            }
            Ok(values)
        };
        let (x, weight) = (all(inputs[0])?, all(inputs[inputs.len() - 1])?);
        let [plane, result] = [self.from, self.to].map(|sizes| sizes[0].get() * sizes[1].get());
        let window: usize = self.moves.iter().map(|moves| moves.positions).product();
        let [of_x, of_result] = self.planes.map(Size::get);
        let columns = self.to[1].get();
        let together = if ty.dtype == DType::BF16 && of_x % 2 == 0 { 2 } else { 1 };
        for g in 0..self.groups.get() {
            let part = |all: &[Bits], at: usize, count: usize| {
                let part = all.get(at * count..(at + 1) * count);
                part.map(<[Bits]>::to_vec).ok_or_else(|| malformed("an operand is too small"))
            };
            let x = part(&x, g, of_x * plane)?;
            let weight = part(&weight, g % self.period.get(), of_x * of_result * window)?;
            for i in 0..of_result * result {
                let (plane, at) = (i / result, i % result);
                let at = [at / columns, at % columns];
                let sum = Sum { x: &x, weight: &weight, plane, at };
                let sum = match scalar {
                    Scalar::F32 => self.sum_f32(&sum, together),
                    _ => self.sum_f64(&sum, together),
                };
                write(output, ty.dtype, (g * of_result * result + i) as i64, scalar, sum)
                    .ok_or_else(|| malformed("an output is too small"))?;
            }
        }
        Ok(None)
    }

    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64 {
        kernel.inputs.iter().for_each(|input| reads.add_whole(input.bytes().get()));
        let window: usize = self.moves.iter().map(|moves| moves.positions).product();
        let [of_x, of_result] = self.planes;
        let sizes = [self.groups, of_x, of_result, self.from[0], self.from[1]].map(Size::get);
        sizes.into_iter().fold(2 * window as u64, |all, n| all.saturating_mul(n as u64))
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Transposed { groups, period, planes, from, to, moves: [down, across] } = self;
        let [[of_x, rows, columns], [of_result, height, width]] =
            [[planes[0], from[0], from[1]], [planes[1], to[0], to[1]]];
        writeln!(
            f,
            "  groups {groups} of {period}, {of_x} x {rows} x {columns} to {of_result} x {height} x {width}"
        )?;
        writeln!(
            f,
            "  windows {} x {}, stride {} x {}, low {} x {}",
            down.positions, across.positions, down.stride, across.stride, down.low, across.low
        )
    }

    fn accumulators(&self, kernel: &Kernel, found: &mut dyn FnMut(&str, Scalar, Scalar)) {
        let Some(scalar) = kernel.inputs.first().and_then(|i| Scalar::of(i.dtype)) else { return };
        found("a sum over a window", scalar, scalar);
    }

    fn each_size(&mut self, each: &mut dyn FnMut(&mut Size)) {
        let groups = [&mut self.groups, &mut self.period];
        groups
            .into_iter()
            .chain(&mut self.planes)
            .chain(&mut self.from)
            .chain(&mut self.to)
            .for_each(each);
    }

    fn each_body(&mut self, _: &mut dyn FnMut(&mut Body)) {}
}
