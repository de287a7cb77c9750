//! Transposed depthwise convolutions, as the gradient of a depthwise convolution's operand is one: each plane is multiplied with a window of its own, and sums
//! are evenly apart.

use super::{Grouping, Joins, Loops, Operands};
use crate::Size;
use crate::kernel::cost::Reads;
use crate::kernel::interpret::scalar::{Bits, read, write};
use crate::kernel::interpret::{Failed, Stopped, malformed, room};
use crate::kernel::{Body, Kernel, Scalar, build};
use std::fmt::{self, Formatter};

pub(super) const GROUPING: Grouping = Grouping {
    joins: Joins::Nothing,
    operands: Operands::InMemory { why: "windows read it many times" },
    domain: |graph, node| &graph.node(node).results[0].shape,
    build: build::transposed,
};

/// `out[p, h] = Σ_k in0[p, o] * in1[p % channels, k]` over the positions `k` of a window, in row-major order, for which there is a whole number `o` along both axes with
/// `h = o * stride + k - low`; where `o` is outside of `in0`, zero is multiplied. A sum is a chain of fused multiply-adds from zero, of 16-bit floats in f32.
///
/// If there is one input, it is both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transposed {
    /// Planes of the operand and of the result.
    pub planes: Size,
    /// After how many of them windows come again.
    pub channels: Size,
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

    /// The first position of a window that element `at` is at, the window of which it is that position, and how many positions it is at: each a stride behind the
    /// one before, in the window before.
    pub const fn met(self, at: usize) -> (usize, usize, usize) {
        let (window, first) = ((at + self.low) / self.stride, (at + self.low) % self.stride);
        let rest = self.positions.saturating_sub(first);
        (first, window, rest.div_ceil(self.stride))
    }
}

impl Transposed {
    /// The sum for an element of a plane, whose operand and whose window these are.
    fn sum<T: Copy>(
        &self,
        [row, column]: [usize; 2],
        (plane, window): (&[T], &[T]),
        zero: T,
        term: impl Fn(T, T, T) -> T,
    ) -> T {
        let [down, across] = self.moves;
        let [rows, columns] = self.from.map(Size::get);
        let (first_down, below, count_down) = down.met(row);
        let (first_across, beside, count_across) = across.met(column);
        let mut sum = zero;
        for i in 0..count_down {
            for j in 0..count_across {
                let at = (below.checked_sub(i), beside.checked_sub(j));
                let x = match at {
                    (Some(y), Some(x)) if y < rows && x < columns => plane[y * columns + x],
                    _ => zero,
                };
                let position = (first_down + i * down.stride) * across.positions;
                sum = term(x, window[position + first_across + j * across.stride], sum);
            }
        }
        sum
    }
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
        let columns = self.to[1].get();
        let part = |all: &[Bits], at: usize, count: usize| {
            let part = all.get(at * count..(at + 1) * count);
            part.map(<[Bits]>::to_vec).ok_or_else(|| malformed("an operand is too small"))
        };
        for p in 0..self.planes.get() {
            let x = part(&x, p, plane)?;
            let weight = part(&weight, p % self.channels.get(), window)?;
            for i in 0..result {
                let at = [i / columns, i % columns];
                let sum = match scalar {
                    Scalar::F32 => self.sum(at, (&x, &weight), 0, |x, w, sum| {
                        let of = |bits: Bits| f32::from_bits(bits as u32);
                        Bits::from(of(w).mul_add(of(x), of(sum)).to_bits())
                    }),
                    _ => self.sum(at, (&x, &weight), 0, |x, w, sum| {
                        let of = f64::from_bits;
                        of(w).mul_add(of(x), of(sum)).to_bits()
                    }),
                };
                write(output, ty.dtype, (p * result + i) as i64, scalar, sum)
                    .ok_or_else(|| malformed("an output is too small"))?;
            }
        }
        Ok(None)
    }

    fn cost(&self, kernel: &Kernel, reads: &mut Reads) -> u64 {
        kernel.inputs.iter().for_each(|input| reads.add_whole(input.bytes().get()));
        let window: usize = self.moves.iter().map(|moves| moves.positions).product();
        let sizes = [self.planes, self.from[0], self.from[1]].map(Size::get);
        sizes.into_iter().fold(2 * window as u64, |all, n| all.saturating_mul(n as u64))
    }

    fn show(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Transposed { planes, channels, from, to, moves: [down, across] } = self;
        let [[rows, columns], [height, width]] = [from, to];
        writeln!(
            f,
            "  planes {planes} of {channels} channels, {rows} x {columns} to {height} x {width}"
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
        let planes = [&mut self.planes, &mut self.channels];
        planes.into_iter().chain(&mut self.from).chain(&mut self.to).for_each(each);
    }

    fn each_body(&mut self, _: &mut dyn FnMut(&mut Body)) {}
}
