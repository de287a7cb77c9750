//! Runs straight-line code at one position.

use super::scalar::{Bits, apply, read};
use super::{Failed, Stopped, malformed};
use crate::Size;
use crate::kernel::{Access, Body, Guard, Load, ScalarOp, Val};

/// The state of a kernel's run that scalar code can see.
pub(crate) struct Machine<'a> {
    /// The kernel's inputs.
    pub(crate) inputs: &'a [&'a [u8]],
    /// For each input slot, the kernel's input.
    pub(crate) slots: Vec<usize>,
    /// Where the loops are.
    pub(crate) position: Vec<i64>,
    /// The accumulator of a contraction.
    pub(crate) acc: Bits,
    /// One value per row each.
    pub(crate) registers: Vec<Bits>,
    /// One value per position of the row each.
    pub(crate) rows: Vec<Vec<Bits>>,
    /// The least of the checks raised so far.
    pub(crate) failed: Failed,
}

impl<'a> Machine<'a> {
    /// A machine for loops with that many axes.
    pub(crate) fn new(inputs: &'a [&'a [u8]], axes: usize) -> Self {
        Machine {
            inputs,
            slots: (0..inputs.len()).collect(),
            position: vec![0; axes],
            acc: 0,
            registers: Vec::new(),
            rows: Vec::new(),
            failed: None,
        }
    }

    /// Computes every value of a body at the current position.
    pub(crate) fn run(
        &mut self,
        body: &Body,
        loads: &[Load],
        values: &mut Vec<Bits>,
    ) -> Result<(), Stopped> {
        values.clear();
        for inst in &body.insts {
            let mut args = [0; 3];
            let mut count = 0;
            for (to, arg) in args.iter_mut().zip(&inst.args) {
                *to = *values
                    .get(*arg as usize)
                    .ok_or_else(|| malformed("an operand is used before it is computed"))?;
                count += 1;
            }
            let args = &args[..count];
            let value = match inst.op {
                ScalarOp::Load(n) => {
                    let load =
                        loads.get(n as usize).ok_or_else(|| malformed("there is no such load"))?;
                    self.load(load, &inst.args, values)?
                }
                ScalarOp::Index(axis) => self
                    .position
                    .get(axis as usize)
                    .copied()
                    .map(|p| p as Bits)
                    .ok_or_else(|| malformed("no such axis"))?,
                ScalarOp::Row(b) => {
                    let at = self.position.last().copied().unwrap_or(0) as usize;
                    self.rows
                        .get(b as usize)
                        .and_then(|r| r.get(at))
                        .copied()
                        .ok_or_else(|| malformed("no such row buffer"))?
                }
                ScalarOp::Register(r) => {
                    *self.registers.get(r as usize).ok_or_else(|| malformed("no such register"))?
                }
                ScalarOp::Acc => self.acc,
                ScalarOp::Check(n) => {
                    let holds = args.first().copied().unwrap_or(0);
                    if holds == 0 {
                        let this = (n, args.get(1).map(|found| *found as i64));
                        self.failed = Some(self.failed.map_or(this, |f| f.min(this)));
                    }
                    holds
                }
                op => {
                    let from = inst
                        .args
                        .get(usize::from(matches!(op, ScalarOp::Select)))
                        .map_or(inst.ty, |a| body.ty(*a));
                    apply(op, inst.ty, from, args)
                        .ok_or_else(|| malformed(&format!("no {op:?} of {}", inst.ty.name())))?
                }
            };
            values.push(value);
        }
        Ok(())
    }

    fn load(&self, load: &Load, indices: &[Val], values: &[Bits]) -> Result<Bits, Stopped> {
        let Some(at) = self.place(&load.access, indices, values) else {
            return Ok(load.access.fill);
        };
        let input = self
            .slots
            .get(load.input)
            .and_then(|i| self.inputs.get(*i))
            .ok_or_else(|| malformed("no such input"))?;
        match read(input, load.dtype, at) {
            Some(bits) => Ok(bits),
            // An index whose check was raised may lead anywhere; the run has failed already.
            None if self.failed.is_some() => Ok(0),
            None => Err(malformed(&format!("element {at} is outside of input {}", load.input))),
        }
    }

    /// The element an access means at the current position, unless a guard fails.
    pub(crate) fn place(&self, access: &Access, indices: &[Val], values: &[Bits]) -> Option<i64> {
        let number = |size: Size| size.number().expect("kernels are run with numbers for names");
        let affine = |offset: Size, strides: &[Size]| {
            strides
                .iter()
                .zip(&self.position)
                .fold(number(offset), |sum, (s, p)| sum.wrapping_add(number(*s).wrapping_mul(*p)))
        };
        let holds = |g: &Guard| (0..number(g.extent)).contains(&affine(g.offset, &g.strides));
        if !access.guards.iter().all(holds) {
            return None;
        }
        let index = |v: &Val| values.get(*v as usize).copied().unwrap_or(0) as i64;
        let indirect = access.indirect.iter().map(|stride| number(*stride));
        let dynamic = indirect.zip(indices).map(|(s, v)| s.wrapping_mul(index(v)));
        Some(dynamic.fold(affine(access.offset, &access.strides), i64::wrapping_add))
    }
}

/// Counts row-major through positions; the last axis runs fastest.
pub(crate) fn each_position(
    extents: &[usize],
    mut body: impl FnMut(&[i64]) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    if extents.contains(&0) {
        return Ok(());
    }
    let mut position = vec![0i64; extents.len()];
    loop {
        body(&position)?;
        let Some(axis) = (0..extents.len()).rev().find(|&a| position[a] + 1 < extents[a] as i64)
        else {
            return Ok(());
        };
        position[axis] += 1;
        position[axis + 1..].fill(0);
    }
}
