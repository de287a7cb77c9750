//! The instruction set: what a [`Program`] for the chip is made of.
//!
//! A sequencer counts axes and runs blocks ([`Command`]); a vector unit works on [`LANES`]
//! positions of one axis at a time ([`Inst`]). Tensors lie in the memory of the chip, in the order
//! in which a program names them: what it reads, then what it writes. Everything that lives for one
//! launch only lies in tables of words beside the vector unit: rows that a later pass reads again,
//! panels of a product, single numbers.
//!
//! Floats are f32 in registers and f32 or bf16 in memory. There are integers and truth values
//! because masks and indices are made of them.

use std::fmt;
use tracecast_runtime::ir::kernel::{Cmp, Extreme, Function};

/// Positions that the vector unit works on at a time.
pub const LANES: usize = 32;

/// A vector register.
pub type Reg = u32;

/// What a number in a register is. It stands in the low bits of a word of 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A float.
    F32,
    /// An integer.
    I32,
    /// An integer, as indices are.
    I64,
    /// 0 or 1.
    Bool,
}

/// How an element lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Four bytes.
    F32,
    /// Two bytes, the upper ones of an f32.
    Bf16,
    /// Four bytes.
    I32,
    /// Eight bytes.
    I64,
    /// One byte.
    Bool,
}

impl Format {
    /// The bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Format::F32 | Format::I32 => 4,
            Format::Bf16 => 2,
            Format::I64 => 8,
            Format::Bool => 1,
        }
    }

    /// What an element is in a register.
    pub const fn word(self) -> Word {
        match self {
            Format::F32 | Format::Bf16 => Word::F32,
            Format::I32 => Word::I32,
            Format::I64 => Word::I64,
            Format::Bool => Word::Bool,
        }
    }
}

/// A number that depends on where the axes are: `offset + Σ strides[axis] * position[axis]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affine {
    /// That of the first position.
    pub offset: i64,
    /// One per axis; none for those behind the last.
    pub strides: Vec<i64>,
}

/// Holds if a number lies from 0 to below another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The number.
    pub at: Affine,
    /// What it has to be below.
    pub extent: i64,
}

/// An element of a tensor in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The tensor.
    pub operand: usize,
    /// How its elements lie.
    pub format: Format,
    /// The number of the element.
    pub at: Affine,
    /// Registers with indices, and what each is multiplied with before it is added.
    pub indices: Vec<(Reg, i64)>,
    /// Where one does not hold, `fill` is read instead.
    pub bounds: Vec<Bound>,
    /// The word that is read outside of the bounds.
    pub fill: u64,
}

/// Words beside the vector unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The table.
    pub table: usize,
    /// The number of the word.
    pub at: Affine,
}

/// An instruction of the vector unit, for every lane that has a position.
#[allow(missing_docs, reason = "the lines of the variants say what their fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Inst {
    /// The same word in all lanes.
    Splat { to: Reg, word: u64 },
    /// The position along an axis.
    Position { to: Reg, axis: usize },
    /// Reads memory.
    Load { to: Reg, from: Element },
    /// Writes memory; a float is rounded to its format.
    Store { from: Reg, to: Element },
    /// Reads a table.
    Peek { to: Reg, from: Cell },
    /// Writes a table.
    Poke { from: Reg, to: Cell },
    /// Of f32.
    Float { op: FloatOp, to: Reg, args: [Reg; 3] },
    /// Of integers of the word.
    Integer { op: IntegerOp, word: Word, to: Reg, args: [Reg; 2] },
    /// Of truth values.
    Truth { op: TruthOp, to: Reg, args: [Reg; 2] },
    /// Whether two numbers of the word compare so.
    Compare { cmp: Cmp, word: Word, to: Reg, args: [Reg; 2] },
    /// The second where the first holds, else the third.
    Select { to: Reg, args: [Reg; 3] },
    /// The same number in another word.
    Convert { from: Word, into: Word, to: Reg, arg: Reg },
    /// Adds to a unit that reduces a row.
    Reduce { unit: usize, from: Reg },
    /// Adds to a column.
    Down { columns: usize, from: Reg, at: Affine },
    /// Rows of a panel by columns of another: the sum over `length` of `left[left.at + p]` times
    /// `right[right.at + p * step]`, in blocks.
    Dot { to: Reg, left: Cell, right: Cell, length: usize, step: i64 },
    /// Raises a check where a truth value does not hold, with the number found.
    Check { number: u32, holds: Reg, found: Option<Reg> },
}

/// Arithmetic on f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Product and sum, rounded once.
    MulAdd,
    /// Quotient.
    Div,
    /// The larger, NaN before all others.
    Max,
    /// The smaller, NaN before all others.
    Min,
    /// The other sign.
    Neg,
    /// Without sign.
    Abs,
    /// Square root.
    Sqrt,
    /// The whole number not above.
    Floor,
    /// To the values of bf16.
    Round,
    /// A function.
    Call(Function),
}

/// Arithmetic on integers; it wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient towards zero; 0 by 0.
    Div,
    /// What that leaves; 0 by 0.
    Rem,
    /// The larger.
    Max,
    /// The smaller.
    Min,
    /// The other sign.
    Neg,
    /// Without sign.
    Abs,
    /// Bit by bit.
    And,
    /// Bit by bit.
    Or,
    /// Bit by bit.
    Not,
}

/// Logic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruthOp {
    /// Both.
    And,
    /// One or both.
    Or,
    /// The other.
    Not,
}

impl FloatOp {
    /// How many operands it has.
    const fn operands(self) -> usize {
        match self {
            FloatOp::MulAdd => 3,
            FloatOp::Neg | FloatOp::Abs | FloatOp::Sqrt | FloatOp::Floor => 1,
            FloatOp::Round | FloatOp::Call(_) => 1,
            _ => 2,
        }
    }
}

impl IntegerOp {
    /// How many operands it has.
    const fn operands(self) -> usize {
        if matches!(self, IntegerOp::Neg | IntegerOp::Abs | IntegerOp::Not) { 1 } else { 2 }
    }
}

/// What the sequencer does.
#[allow(missing_docs, reason = "the lines of the variants say what their fields are")]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Runs a block at each position of an axis.
    Count { axis: usize, extent: usize, body: Vec<Command> },
    /// Runs vector code along an axis, [`LANES`] positions at a time.
    Strips { axis: usize, extent: usize, code: Vec<Inst> },
    /// Empties a unit.
    Open { unit: usize },
    /// Puts what a unit has into a table.
    Close { unit: usize, to: Cell },
    /// Puts what has come down columns into a tensor, from its first element on.
    Drain { columns: usize, operand: usize, format: Format },
}

/// How words become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Floats.
    Float(FloatOp),
    /// Integers of a word.
    Integer(IntegerOp, Word),
    /// Truth values.
    Truth(TruthOp),
}

/// A unit that makes one word of many.
#[allow(missing_docs, reason = "the lines of the variants say what their fields are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Each lane by itself, in chunks of a row; then lanes and chunks.
    Row { combine: Combine, from: u64 },
    /// One word after another, whatever lane it is in.
    All { combine: Combine, from: u64 },
    /// The first position of the extreme one.
    Argument { extreme: Extreme, word: Word },
}

/// Words that come down, each in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// How many columns there are.
    pub count: usize,
    /// How words become one.
    pub combine: Combine,
    /// What a chunk starts from.
    pub from: u64,
}

/// What the chip runs at a launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// What it is called.
    pub name: String,
    /// A tensor of one f32: if it is not zero, nothing is done.
    pub gate: Option<usize>,
    /// Axes that the sequencer counts.
    pub axes: usize,
    /// Vector registers.
    pub registers: usize,
    /// The words of each table.
    pub tables: Vec<usize>,
    /// Units that reduce rows.
    pub units: Vec<Unit>,
    /// Columns.
    pub columns: Vec<Columns>,
    /// What is done.
    pub commands: Vec<Command>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}: {} registers", self.name, self.registers)?;
        self.gate.iter().try_for_each(|gate| writeln!(f, "  unless m{gate}"))?;
        for (i, words) in self.tables.iter().enumerate() {
            writeln!(f, "  table t{i}: {words} words")?;
        }
        for (i, unit) in self.units.iter().enumerate() {
            writeln!(f, "  unit u{i}: {unit:?}")?;
        }
        for (i, columns) in self.columns.iter().enumerate() {
            writeln!(f, "  columns c{i}: {columns:?}")?;
        }
        self.commands.iter().try_for_each(|command| command.show(f, 1))
    }
}

impl Command {
    fn show(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let margin = "  ".repeat(depth);
        match self {
            Command::Count { axis, extent, body } => {
                writeln!(f, "{margin}count i{axis} to {extent}")?;
                body.iter().try_for_each(|command| command.show(f, depth + 1))
            }
            Command::Strips { axis, extent, code } => {
                writeln!(f, "{margin}strips i{axis} to {extent}")?;
                code.iter().try_for_each(|inst| writeln!(f, "{margin}  {inst}"))
            }
            Command::Open { unit } => writeln!(f, "{margin}open u{unit}"),
            Command::Close { unit, to } => writeln!(f, "{margin}{to} = close u{unit}"),
            Command::Drain { columns, operand, format } => {
                writeln!(f, "{margin}m{operand}: {format:?} = drain c{columns}")
            }
        }
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inst::Splat { to, word } => write!(f, "v{to} = {word:#x}"),
            Inst::Position { to, axis } => write!(f, "v{to} = i{axis}"),
            Inst::Load { to, from } => write!(f, "v{to} = load {from}"),
            Inst::Store { from, to } => write!(f, "store {to} = v{from}"),
            Inst::Peek { to, from } => write!(f, "v{to} = {from}"),
            Inst::Poke { from, to } => write!(f, "{to} = v{from}"),
            Inst::Float { op, to, args } => {
                write!(f, "v{to} = f32.{op:?} {}", registers(&args[..op.operands()]))
            }
            Inst::Integer { op, word, to, args } => {
                write!(f, "v{to} = {word:?}.{op:?} {}", registers(&args[..op.operands()]))
            }
            Inst::Truth { op, to, args } => {
                let count = if *op == TruthOp::Not { 1 } else { 2 };
                write!(f, "v{to} = {op:?} {}", registers(&args[..count]))
            }
            Inst::Compare { cmp, word, to, args } => {
                write!(f, "v{to} = {word:?}.{} {}", cmp.name(), registers(args))
            }
            Inst::Select { to, args } => write!(f, "v{to} = select {}", registers(args)),
            Inst::Convert { from, into, to, arg } => {
                write!(f, "v{to} = {into:?} of {from:?} v{arg}")
            }
            Inst::Reduce { unit, from } => write!(f, "u{unit} <- v{from}"),
            Inst::Down { columns, from, at } => write!(f, "c{columns}[{at}] <- v{from}"),
            Inst::Dot { to, left, right, length, step } => {
                write!(f, "v{to} = dot {length} of {left} by {right} each {step}")
            }
            Inst::Check { number, holds, found } => {
                write!(f, "check {number} v{holds}")?;
                found.iter().try_for_each(|found| write!(f, " found v{found}"))
            }
        }
    }
}

/// `v1, v2`.
fn registers(of: &[Reg]) -> String {
    of.iter().map(|reg| format!("v{reg}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}: {:?}[{}", self.operand, self.format, self.at)?;
        self.indices.iter().try_for_each(|(reg, stride)| write!(f, " + {stride}*v{reg}"))?;
        f.write_str("]")?;
        for Bound { at, extent } in &self.bounds {
            write!(f, " if {at} in 0..{extent} else {:#x}", self.fill)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}[{}]", self.table, self.at)
    }
}

impl fmt::Display for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.offset)?;
        let moving = self.strides.iter().enumerate().filter(|(_, stride)| **stride != 0);
        moving.into_iter().try_for_each(|(axis, stride)| write!(f, " + {stride}*i{axis}"))
    }
}
