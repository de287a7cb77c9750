//! Straight-line code of one position becomes vector code: a register for each of its values.

use super::narrow::{Narrow, narrow};
use super::{Lowered, Lowering, Refused, refuse, word};
use crate::alu;
use crate::isa::{Affine, Cell, FloatOp, Inst, IntegerOp, Reg, TruthOp, Word};
use tracecast_runtime::ir::DType;
use tracecast_runtime::ir::kernel::{Body, Inst as Instruction, Load, Scalar, ScalarOp};

/// What the code of a stage sees besides memory.
pub(super) struct Around<'a> {
    /// What it loads.
    pub(super) loads: &'a [Load],
    /// The tensor of each slot.
    pub(super) slots: &'a [usize],
    /// The table of each row buffer.
    pub(super) rows: &'a [usize],
    /// The axis that row buffers lie along.
    pub(super) row: usize,
    /// The table of the registers that hold one value for a row.
    pub(super) registers: usize,
    /// Where the sum of products is.
    pub(super) sum: Option<Reg>,
}

impl Lowering {
    /// The code, and the register of each value.
    pub(super) fn code(
        &mut self,
        body: &Body,
        around: &Around<'_>,
    ) -> Lowered<(Vec<Inst>, Vec<Reg>)> {
        let mut regs: Vec<Reg> = Vec::with_capacity(body.insts.len());
        let mut code = Vec::with_capacity(body.insts.len());
        let narrow = narrow(body);
        for (inst, narrow) in body.insts.iter().zip(narrow) {
            if narrow == Narrow::No {
                return refuse("it does not compute in f64");
            }
            let args = inst.args.iter().map(|arg| regs.get(*arg as usize).copied());
            let args: Option<Vec<Reg>> = args.collect();
            let args =
                args.ok_or_else(|| Refused("an operand comes before its value".to_owned()))?;
            let operand = inst.args.get(usize::from(inst.op == ScalarOp::Select));
            let from = operand.map_or(inst.ty, |arg| body.ty(*arg));
            let (inst, to) = self.inst(inst, narrowed(from)?, &args, around)?;
            code.extend(inst);
            regs.push(to);
        }
        Ok((code, regs))
    }

    /// The instruction, and the register of its result. The result of a check is what is checked;
    /// an f64 is an f32 here.
    fn inst(
        &mut self,
        inst: &Instruction,
        from: Word,
        args: &[Reg],
        around: &Around<'_>,
    ) -> Lowered<(Option<Inst>, Reg)> {
        let into = narrowed(inst.ty)?;
        let arg = |i: usize| args.get(i).copied().unwrap_or(0);
        match inst.op {
            ScalarOp::Acc => match around.sum {
                Some(sum) => return Ok((None, sum)),
                None => return refuse("a sum is asked for where there is none"),
            },
            ScalarOp::Convert if from == into => return Ok((None, arg(0))),
            ScalarOp::Round(DType::F32) => return Ok((None, arg(0))),
            ScalarOp::Check(number) => {
                let found = args.get(1).copied();
                return Ok((Some(Inst::Check { number, holds: arg(0), found }), arg(0)));
            }
            _ => {}
        }
        let to = self.register();
        let made = match inst.op {
            ScalarOp::Const(word) if inst.ty == Scalar::F64 => {
                Inst::Splat { to, word: alu::of_float(f64::from_bits(word) as f32) }
            }
            ScalarOp::Const(word) => Inst::Splat { to, word },
            ScalarOp::Load(number) => {
                let load = around.loads.get(number as usize);
                let slot = load.and_then(|load| around.slots.get(load.input));
                let (Some(load), Some(operand)) = (load, slot) else {
                    return refuse("there is no such load");
                };
                Inst::Load { to, from: self.element(load, *operand, args)? }
            }
            ScalarOp::Index(axis) => Inst::Position { to, axis: axis as usize },
            ScalarOp::Row(buffer) => match around.rows.get(buffer as usize) {
                Some(table) => Inst::Peek { to, from: along(*table, around.row) },
                None => return refuse("there is no such row buffer"),
            },
            ScalarOp::Register(at) => {
                Inst::Peek { to, from: super::cell(around.registers, at as usize) }
            }
            ScalarOp::Cmp(cmp) => Inst::Compare { cmp, word: from, to, args: [arg(0), arg(1)] },
            ScalarOp::Select => Inst::Select { to, args: [arg(0), arg(1), arg(2)] },
            ScalarOp::Convert => Inst::Convert { from, into, to, arg: arg(0) },
            op => arithmetic(op, into, to, [arg(0), arg(1), arg(2)])
                .ok_or_else(|| Refused(format!("it has no {} of {into:?}", op.name())))?,
        };
        Ok((Some(made), to))
    }

    /// A value in another word.
    pub(super) fn converted(
        &mut self,
        code: &mut Vec<Inst>,
        reg: Reg,
        from: Word,
        into: Word,
    ) -> Reg {
        if from == into {
            return reg;
        }
        let to = self.register();
        code.push(Inst::Convert { from, into, to, arg: reg });
        to
    }
}

/// What a scalar is in a register where a narrow f64 is an f32.
fn narrowed(scalar: Scalar) -> Lowered<Word> {
    if scalar == Scalar::F64 { Ok(Word::F32) } else { word(scalar) }
}

fn arithmetic(op: ScalarOp, word: Word, to: Reg, [a, b, c]: [Reg; 3]) -> Option<Inst> {
    Some(match word {
        Word::F32 => Inst::Float { op: float(op)?, to, args: [a, b, c] },
        Word::I32 | Word::I64 => Inst::Integer { op: integer(op)?, word, to, args: [a, b] },
        Word::Bool => Inst::Truth { op: truth(op)?, to, args: [a, b] },
    })
}

pub(super) fn float(op: ScalarOp) -> Option<FloatOp> {
    Some(match op {
        ScalarOp::Add => FloatOp::Add,
        ScalarOp::Sub => FloatOp::Sub,
        ScalarOp::Mul => FloatOp::Mul,
        ScalarOp::MulAdd => FloatOp::MulAdd,
        ScalarOp::Div => FloatOp::Div,
        ScalarOp::Max => FloatOp::Max,
        ScalarOp::Min => FloatOp::Min,
        ScalarOp::Neg => FloatOp::Neg,
        ScalarOp::Abs => FloatOp::Abs,
        ScalarOp::Sqrt => FloatOp::Sqrt,
        ScalarOp::Floor => FloatOp::Floor,
        ScalarOp::Round(DType::BF16) => FloatOp::Round,
        ScalarOp::Call(function) => FloatOp::Call(function),
        _ => return None,
    })
}

pub(super) fn integer(op: ScalarOp) -> Option<IntegerOp> {
    Some(match op {
        ScalarOp::Add => IntegerOp::Add,
        ScalarOp::Sub => IntegerOp::Sub,
        ScalarOp::Mul => IntegerOp::Mul,
        ScalarOp::Div => IntegerOp::Div,
        ScalarOp::Rem => IntegerOp::Rem,
        ScalarOp::Max => IntegerOp::Max,
        ScalarOp::Min => IntegerOp::Min,
        ScalarOp::Neg => IntegerOp::Neg,
        ScalarOp::Abs => IntegerOp::Abs,
        ScalarOp::And => IntegerOp::And,
        ScalarOp::Or => IntegerOp::Or,
        ScalarOp::Not => IntegerOp::Not,
        _ => return None,
    })
}

/// The product and the smaller of truth values are both, the larger is one of them.
pub(super) fn truth(op: ScalarOp) -> Option<TruthOp> {
    Some(match op {
        ScalarOp::And | ScalarOp::Mul | ScalarOp::Min => TruthOp::And,
        ScalarOp::Or | ScalarOp::Max => TruthOp::Or,
        ScalarOp::Not => TruthOp::Not,
        _ => return None,
    })
}

/// The words of a table along an axis.
pub(super) fn along(table: usize, axis: usize) -> Cell {
    let mut strides = vec![0; axis + 1];
    strides[axis] = 1;
    Cell { table, at: Affine { offset: 0, strides } }
}
