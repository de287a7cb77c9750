//! Interprets a [`Contract`]: every sum in the order the language fixes, then the epilogue, position by position.

use super::EvalError;
use super::body::{Failed, Machine, each_position, malformed};
use super::bytes::Bytes;
use super::kernel::{column, finish, kept_place, of};
use super::reduce::Column;
use super::scalar::{Bits, write};
use crate::kernel::{Contract, Factor, Reduction, Scalar, Sink, math};

/// Runs a contraction.
pub(super) fn contract(
    c: &Contract,
    inputs: &[&[u8]],
    outputs: &mut [Bytes],
) -> Result<Failed, EvalError> {
    let axes = c.batch.len();
    let mut run = Run::new(c, inputs);
    let mut values = Vec::new();
    each_position(&c.batch, |batch| {
        let machine = &mut run.machine;
        machine.position[..axes].copy_from_slice(batch);
        let a = factor(machine, &c.a, axes, [c.m, c.k])?;
        let b = factor(machine, &c.b, axes, [c.k, c.n])?;
        for i in 0..c.m {
            for j in 0..c.n {
                let machine = &mut run.machine;
                machine.position[axes..].copy_from_slice(&[i as i64, j as i64]);
                let left = &a[i * c.k..(i + 1) * c.k];
                machine.acc = match c.acc {
                    Scalar::F32 => dot_f32(left, &b, j, c.n),
                    Scalar::F64 => dot_f64(left, &b, j, c.n),
                    _ => return Err(malformed("a contraction accumulates floats")),
                };
                machine.run(&c.epilogue.body, &c.loads, &mut values)?;
                run.sinks(&values, outputs)?;
            }
        }
        Ok(())
    })?;
    run.finish(outputs)?;
    Ok(run.machine.failed)
}

/// A run of a contraction's epilogue.
struct Run<'a> {
    c: &'a Contract,
    machine: Machine<'a>,
    /// Sizes of the axes of the result.
    extents: Vec<usize>,
    /// For each sink, the largest value so far; zero for other sinks.
    largest: Vec<Bits>,
    /// For each sink, what has come down each column, row-major over the kept axes; nothing for other sinks.
    columns: Vec<Vec<Column>>,
}

impl<'a> Run<'a> {
    fn new(c: &'a Contract, inputs: &'a [&'a [u8]]) -> Self {
        let extents: Vec<usize> = c.batch.iter().copied().chain([c.m, c.n]).collect();
        let (body, sinks) = (&c.epilogue.body, &c.epilogue.sinks);
        let columns = sinks.iter().map(|sink| column(body, sink, &extents).unwrap_or_default());
        Run {
            c,
            machine: Machine::new(inputs, extents.len()),
            largest: vec![0; sinks.len()],
            columns: columns.collect(),
            extents,
        }
    }

    /// What becomes of the results at one position.
    fn sinks(&mut self, values: &[Bits], outputs: &mut [Bytes]) -> Result<(), EvalError> {
        let body = &self.c.epilogue.body;
        for (number, sink) in self.c.epilogue.sinks.iter().enumerate() {
            match sink {
                Sink::Store { output, dtype, access, value } => {
                    let at = self
                        .machine
                        .place(access, &[], &[])
                        .ok_or_else(|| malformed("a store is guarded"))?;
                    let to = outputs.get_mut(*output).ok_or_else(|| malformed("no such output"))?;
                    write(to, *dtype, at, body.ty(*value), of(values, *value)?)
                        .ok_or_else(|| malformed("a store is outside of its output"))?;
                }
                Sink::Largest { value, .. } => {
                    let largest = &mut self.largest[number];
                    *largest =
                        Reduction::Max.combine(body.ty(*value), *largest, of(values, *value)?);
                }
                Sink::Column { value, kept, .. } => {
                    let at = kept_place(&self.extents, &self.machine.position, kept);
                    self.columns[number][at].push(of(values, *value)?);
                }
                _ => return Err(malformed("an epilogue does what only rows can do")),
            }
        }
        Ok(())
    }

    /// Stores what is known after the last position.
    fn finish(&self, outputs: &mut [Bytes]) -> Result<(), EvalError> {
        for (number, sink) in self.c.epilogue.sinks.iter().enumerate() {
            let (output, dtype, value) = match sink {
                Sink::Largest { value, output } => {
                    (output, self.c.epilogue.body.ty(*value).dtype(), value)
                }
                Sink::Column { value, output, dtype, .. } => (output, *dtype, value),
                _ => continue,
            };
            let ty = self.c.epilogue.body.ty(*value);
            let to = outputs.get_mut(*output).ok_or_else(|| malformed("no such output"))?;
            if let Sink::Largest { .. } = sink {
                write(to, dtype, 0, ty, self.largest[number])
                    .ok_or_else(|| malformed("an output is too small"))?;
            } else {
                finish(to, (dtype, ty), self.columns[number].iter())?;
            }
        }
        Ok(())
    }
}

/// All elements of a factor in one batch, row-major.
fn factor(
    machine: &mut Machine<'_>,
    factor: &Factor,
    axes: usize,
    sizes: [usize; 2],
) -> Result<Vec<Bits>, EvalError> {
    let mut all = Vec::with_capacity(sizes[0] * sizes[1]);
    let mut values = Vec::new();
    each_position(&sizes, |position| {
        machine.position[axes..].copy_from_slice(position);
        machine.run(&factor.body, &factor.loads, &mut values)?;
        all.push(of(&values, factor.value)?);
        Ok(())
    })?;
    Ok(all)
}

macro_rules! dot {
    ($name:ident, $ty:ident, $word:ident) => {
        /// A row of the left factor by column `j` of the right one, in blocks.
        fn $name(left: &[Bits], right: &[Bits], j: usize, n: usize) -> Bits {
            let at = |b: Bits| $ty::from_bits(b as $word);
            let block = |(number, block): (usize, &[Bits])| {
                let first = number * math::CONTRACT_BLOCK;
                let term = |acc: $ty, (p, a): (usize, &Bits)| {
                    at(*a).mul_add(at(right[(first + p) * n + j]), acc)
                };
                block.iter().enumerate().fold(0.0, term)
            };
            let blocks = left.chunks(math::CONTRACT_BLOCK).enumerate().map(block);
            Bits::from(blocks.reduce(|a, b| a + b).unwrap_or(0.0).to_bits())
        }
    };
}

dot!(dot_f32, f32, u32);
dot!(dot_f64, f64, u64);
