//! Where values go: to memory, to tables, down columns, into units.

use super::scalar::along;
use super::{Lowered, Lowering, Refused, cell, refuse, row_major, scalar, word};
use crate::isa::{Affine, Columns, Combine, Command, Element, Inst, Reg, Unit, Word};
use tracecast_runtime::ir::DType;
use tracecast_runtime::ir::kernel::{Body, Combine as Way, Reduction, Scalar, Sink, Val};

/// What the sinks of a stage go to.
pub(super) struct Targets<'a> {
    /// The sizes of all axes.
    pub(super) extents: &'a [usize],
    /// The tensor of each slot that is written.
    pub(super) slots: &'a [usize],
    /// The table of each row buffer.
    pub(super) rows: &'a [usize],
    /// The table of the registers that hold one value for a row.
    pub(super) registers: usize,
}

/// What is done around the strips of a stage.
#[derive(Default)]
pub(super) struct Frame {
    /// Once, before anything.
    pub(super) first: Vec<Command>,
    /// Before the strips of each row.
    pub(super) before: Vec<Command>,
    /// Behind them.
    pub(super) behind: Vec<Command>,
    /// Once, at the end.
    pub(super) last: Vec<Command>,
}

impl Lowering {
    /// Adds to `code` what sends its values where they go.
    pub(super) fn sinks(
        &mut self,
        (body, sinks): (&Body, &[Sink]),
        regs: &[Reg],
        code: &mut Vec<Inst>,
        targets: &Targets<'_>,
        frame: &mut Frame,
    ) -> Lowered<()> {
        for sink in sinks {
            let value = |value: &Val| -> Lowered<(Reg, Word)> {
                let reg = regs.get(*value as usize).copied();
                let reg = reg
                    .ok_or_else(|| Refused("a sink takes a value that is not there".to_owned()))?;
                Ok((reg, word(body.ty(*value))?))
            };
            match sink {
                Sink::Store { output, dtype, access, value: of } => {
                    let (reg, from) = value(of)?;
                    let operand = self.written(targets, *output)?;
                    let at = super::affine(access.offset, &access.strides)?;
                    self.store((reg, from), (operand, *dtype, at), code)?;
                }
                Sink::Reduce { reduction, value: of, register } => {
                    let (from, word) = value(of)?;
                    let unit = self.row_unit(*reduction, word)?;
                    code.push(Inst::Reduce { unit, from });
                    frame.before.push(Command::Open { unit });
                    frame
                        .behind
                        .push(Command::Close { unit, to: cell(targets.registers, *register) });
                }
                Sink::Keep { value: of, buffer } => {
                    let table = targets.rows.get(*buffer).copied();
                    let table =
                        table.ok_or_else(|| Refused("there is no such row buffer".to_owned()))?;
                    let to = along(table, targets.extents.len() - 1);
                    code.push(Inst::Poke { from: value(of)?.0, to });
                }
                Sink::Set { value: of, register } => {
                    let to = cell(targets.registers, *register);
                    code.push(Inst::Poke { from: value(of)?.0, to });
                }
                Sink::Column { reduction, value: of, output, dtype, kept } => {
                    let (from, word) = value(of)?;
                    let columns = self.columns(*reduction, word, targets.extents, kept)?;
                    let at = kept_place(targets.extents, kept);
                    code.push(Inst::Down { columns, from, at });
                    let (operand, format) =
                        (self.written(targets, *output)?, self.memories.format(*dtype)?);
                    if format.word() != word {
                        return refuse(format!("columns of {word:?} become {dtype}"));
                    }
                    frame.last.push(Command::Drain { columns, operand, format });
                }
                Sink::Largest { value: of, output } => {
                    let (from, word) = value(of)?;
                    let combine = combine(Reduction::Max, word)?;
                    let unit = self.unit(Unit::All { combine, from: 0 });
                    code.push(Inst::Reduce { unit, from });
                    frame.first.push(Command::Open { unit });
                    let (table, operand) = (self.table(1), self.written(targets, *output)?);
                    let to = self.register();
                    let mut store = vec![Inst::Peek { to, from: cell(table, 0) }];
                    let dtype = body.ty(*of).dtype();
                    self.store((to, word), (operand, dtype, Affine::default()), &mut store)?;
                    frame.last.push(Command::Close { unit, to: cell(table, 0) });
                    frame.last.push(Command::Strips { axis: 0, extent: 1, code: store });
                }
            }
        }
        Ok(())
    }

    /// The tensor of a slot.
    fn written(&self, targets: &Targets<'_>, slot: usize) -> Lowered<usize> {
        let output = targets.slots.get(slot).copied();
        output
            .map(|at| self.inputs + at)
            .ok_or_else(|| Refused("there is no such output".to_owned()))
    }

    /// Stores a value in a dtype.
    fn store(
        &mut self,
        (reg, from): (Reg, Word),
        (operand, dtype, at): (usize, DType, Affine),
        code: &mut Vec<Inst>,
    ) -> Lowered<()> {
        let format = self.memories.format(dtype)?;
        let reg = self.converted(code, reg, from, format.word());
        let to = Element { operand, format, at, indices: Vec::new(), bounds: Vec::new(), fill: 0 };
        code.push(Inst::Store { from: reg, to });
        Ok(())
    }

    fn unit(&mut self, unit: Unit) -> usize {
        self.program.units.push(unit);
        self.program.units.len() - 1
    }

    fn row_unit(&mut self, reduction: Reduction, word: Word) -> Lowered<usize> {
        let unit = match reduction.combines() {
            Way::Position(extreme) => Unit::Argument { extreme, word },
            Way::Value(_) => {
                let from = reduction.identity(scalar_of(word));
                Unit::Row { combine: combine(reduction, word)?, from }
            }
        };
        Ok(self.unit(unit))
    }

    fn columns(
        &mut self,
        reduction: Reduction,
        word: Word,
        extents: &[usize],
        kept: &[bool],
    ) -> Lowered<usize> {
        let kept = extents.iter().zip(kept).filter(|(_, kept)| **kept);
        let count = kept.fold(1usize, |count, (extent, _)| count.saturating_mul(*extent));
        // Three words each, and they are tables like others.
        if count.saturating_mul(3) > super::MOST_WORDS {
            return refuse(format!("it has no room for {count} columns"));
        }
        let (combine, from) = (combine(reduction, word)?, reduction.identity(scalar_of(word)));
        self.program.columns.push(Columns { count, combine, from });
        Ok(self.program.columns.len() - 1)
    }
}

/// The number of the column at a position.
fn kept_place(extents: &[usize], kept: &[bool]) -> Affine {
    let sizes: Vec<usize> =
        extents.iter().zip(kept).filter(|(_, kept)| **kept).map(|(extent, _)| *extent).collect();
    let mut of_kept = row_major(&sizes).into_iter();
    let stride = |kept: &bool| if *kept { of_kept.next().unwrap_or(0) } else { 0 };
    Affine { offset: 0, strides: kept.iter().map(stride).collect() }
}

fn scalar_of(word: Word) -> Scalar {
    match word {
        Word::F32 => Scalar::F32,
        Word::I32 => Scalar::I32,
        Word::I64 => Scalar::I64,
        Word::Bool => Scalar::Bool,
    }
}

/// How a reduction of values, and not to a position, makes one word of two.
fn combine(reduction: Reduction, word: Word) -> Lowered<Combine> {
    let Way::Value(op) = reduction.combines() else {
        return refuse("positions come down no columns");
    };
    let made = match word {
        Word::F32 => scalar::float(op).map(Combine::Float),
        Word::I32 | Word::I64 => scalar::integer(op).map(|op| Combine::Integer(op, word)),
        Word::Bool => scalar::truth(op).map(Combine::Truth),
    };
    made.ok_or_else(|| Refused(format!("it has no {reduction} of {word:?}")))
}
