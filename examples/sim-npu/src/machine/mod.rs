//! The machine: runs a [`Program`] on the bytes of its memory.

mod reduce;

use crate::alu;
use crate::isa::{Affine, Cell, Command, Element, Format, Inst, LANES, Program, Reg, Word};
use crate::{Defect, Ways};
use reduce::{Coming, Reducing};
use std::ops::Range;
use tracecast_runtime::ir::kernel::{half, math};

/// What a launch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The lowest check that was raised, and what it found.
    pub raised: Option<(u32, Option<i64>)>,
    /// Cycles of the vector unit.
    pub cycles: u64,
}

/// The lanes of a register.
type Lanes = [u64; LANES];

/// A launch.
struct Machine<'a> {
    memory: &'a mut [u8],
    /// Where the tensors lie.
    operands: &'a [Range<usize>],
    positions: Vec<i64>,
    registers: Vec<Lanes>,
    tables: Vec<Vec<u64>>,
    units: Vec<Reducing>,
    columns: Vec<Coming>,
    raised: Option<(u32, Option<i64>)>,
    cycles: u64,
    ways: Ways,
}

/// The lanes of a strip: which axis they lie along, and how many have a position.
#[derive(Clone, Copy)]
struct Strip {
    axis: usize,
    lanes: usize,
}

/// Runs a program on tensors at these addresses.
///
/// # Errors
/// If it reaches outside of them although no check was raised, or names what is not there.
pub fn run(
    program: &Program,
    memory: &mut [u8],
    operands: &[Range<usize>],
) -> Result<Done, String> {
    run_in_ways(program, memory, operands, Ways::default())
}

/// As [`run`], in other ways.
///
/// # Errors
/// As those of [`run`].
pub fn run_in_ways(
    program: &Program,
    memory: &mut [u8],
    operands: &[Range<usize>],
    ways: Ways,
) -> Result<Done, String> {
    let mut machine = Machine {
        memory,
        operands,
        positions: vec![0; program.axes],
        registers: vec![[0; LANES]; program.registers],
        tables: program.tables.iter().map(|words| vec![0; *words]).collect(),
        units: program.units.iter().map(|unit| Reducing::new(*unit)).collect(),
        columns: program.columns.iter().map(|columns| Coming::new(*columns)).collect(),
        raised: None,
        cycles: 1,
        ways,
    };
    if let Some(gate) = program.gate
        && !ways.has(Defect::WhenIgnored)
        && alu::float(machine.read(gate, Format::F32, 0)?) != 0.0
    {
        return Ok(Done { raised: None, cycles: 1 });
    }
    machine.block(&program.commands)?;
    Ok(Done { raised: machine.raised, cycles: machine.cycles })
}

impl Machine<'_> {
    fn block(&mut self, commands: &[Command]) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Count { axis, extent, body } => {
                    for position in 0..*extent {
                        self.positions[*axis] = position as i64;
                        self.block(body)?;
                    }
                    self.positions[*axis] = 0;
                }
                Command::Strips { axis, extent, code } => {
                    for first in (0..*extent).step_by(LANES) {
                        self.positions[*axis] = first as i64;
                        let mut lanes = LANES.min(extent - first);
                        if self.ways.has(Defect::Tail) && (2..LANES).contains(&lanes) {
                            lanes -= 1;
                        }
                        let strip = Strip { axis: *axis, lanes };
                        code.iter().try_for_each(|inst| self.step(inst, strip))?;
                    }
                    self.positions[*axis] = 0;
                }
                Command::Open { unit } => self.units[*unit].open(),
                Command::Close { unit, to } => {
                    let at = self.word(to, self.at(&to.at))?;
                    self.tables[to.table][at] = self.units[*unit].close();
                }
                Command::Drain { columns, operand, format } => {
                    for column in 0..self.columns[*columns].count() {
                        let word = self.columns[*columns].close(column);
                        self.write(*operand, *format, column as i64, word)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, inst: &Inst, strip: Strip) -> Result<(), String> {
        self.cycles += 1;
        let lanes = strip.lanes;
        let reg = |reg: Reg| self.registers[reg as usize];
        match inst {
            Inst::Splat { to, word } => self.set(*to, [*word; LANES]),
            Inst::Position { to, axis } => {
                let first = self.positions[*axis];
                let step = i64::from(*axis == strip.axis);
                self.set(
                    *to,
                    std::array::from_fn(|lane| (first + step * lane as i64).cast_unsigned()),
                );
            }
            Inst::Load { to, from } => {
                let mut values = [0; LANES];
                for (lane, value) in values.iter_mut().enumerate().take(lanes) {
                    *value = self.load(from, strip, lane)?;
                }
                self.set(*to, values);
            }
            Inst::Store { from, to } => {
                let values = reg(*from);
                for (lane, value) in values.iter().enumerate().take(lanes) {
                    let at = self.lane_at(&to.at, strip, lane);
                    self.write(to.operand, to.format, at, *value)?;
                }
            }
            Inst::Peek { to, from } => {
                let mut values = [0; LANES];
                for (lane, value) in values.iter_mut().enumerate().take(lanes) {
                    *value = self.tables[from.table]
                        [self.word(from, self.lane_at(&from.at, strip, lane))?];
                }
                self.set(*to, values);
            }
            Inst::Poke { from, to } => {
                let values = reg(*from);
                for (lane, value) in values.iter().enumerate().take(lanes) {
                    let at = self.word(to, self.lane_at(&to.at, strip, lane))?;
                    self.tables[to.table][at] = *value;
                }
            }
            Inst::Float { op, to, args } => {
                let [a, b, c] = args.map(reg);
                let value = |lane: usize| {
                    let made = alu::floats(*op, [a[lane], b[lane], c[lane]]);
                    self.ways.made(*op, a[lane], made)
                };
                self.set(*to, each(lanes, value));
            }
            Inst::Integer { op, word, to, args } => {
                let [a, b] = args.map(reg);
                let value = |lane: usize| alu::integers(*op, *word, [a[lane], b[lane]]);
                self.set(*to, each(lanes, value));
            }
            Inst::Truth { op, to, args } => {
                let [a, b] = args.map(reg);
                self.set(*to, each(lanes, |lane| alu::truths(*op, [a[lane], b[lane]])));
            }
            Inst::Compare { cmp, word, to, args } => {
                let [a, b] = args.map(reg);
                let value = |lane: usize| u64::from(alu::compares(*cmp, *word, a[lane], b[lane]));
                self.set(*to, each(lanes, value));
            }
            Inst::Select { to, args } => {
                let [c, x, y] = args.map(reg);
                self.set(*to, each(lanes, |lane| if c[lane] != 0 { x[lane] } else { y[lane] }));
            }
            Inst::Convert { from, into, to, arg } => {
                let x = reg(*arg);
                let twice = self.ways.has(Defect::CastThroughF64)
                    && (*from, *into) == (Word::I64, Word::F32);
                let value = |lane: usize| match twice {
                    true => alu::of_float((x[lane].cast_signed() as f64) as f32),
                    false => alu::convert(x[lane], *from, *into),
                };
                self.set(*to, each(lanes, value));
            }
            Inst::Reduce { unit, from } => {
                let values = reg(*from);
                self.units[*unit].take(&values[..lanes]);
            }
            Inst::Down { columns, from, at } => {
                let values = reg(*from);
                for (lane, value) in values.iter().enumerate().take(lanes) {
                    let column = self.lane_at(at, strip, lane);
                    self.columns[*columns].take(column as usize, *value)?;
                }
            }
            Inst::Dot { to, left, right, length, step } => {
                let values = self.dot((left, right), *length, *step, strip)?;
                self.set(*to, values);
            }
            Inst::Check { number, holds, found } => {
                let (holds, found) = (reg(*holds), found.map(reg));
                for lane in (0..lanes).filter(|lane| holds[*lane] == 0) {
                    let this = (*number, found.map(|found| found[lane].cast_signed()));
                    self.raised = Some(self.raised.map_or(this, |raised| raised.min(this)));
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, to: Reg, values: Lanes) {
        self.registers[to as usize] = values;
    }

    /// A row of the left panel by columns of the right one, in blocks.
    fn dot(
        &mut self,
        (left, right): (&Cell, &Cell),
        length: usize,
        step: i64,
        strip: Strip,
    ) -> Result<Lanes, String> {
        let row = self.at(&left.at);
        let first = self.at(&right.at);
        let mut total = [0.0f32; LANES];
        // Each block backwards: another order of the same sum.
        let other = self.ways.is_other;
        for block in (0..length).step_by(math::CONTRACT_BLOCK) {
            let mut sums = [0.0f32; LANES];
            let end = length.min(block + math::CONTRACT_BLOCK);
            for p in block..end {
                let p = if other { block + end - 1 - p } else { p };
                let factor = alu::float(self.tables[left.table][self.word(left, row + p as i64)?]);
                let from = self.word(right, first + p as i64 * step)?;
                let others = self.tables[right.table].get(from..from + strip.lanes);
                let others = others.ok_or_else(|| outside(right))?;
                for (sum, other) in sums.iter_mut().zip(others) {
                    *sum = math::fma(factor, alu::float(*other), *sum);
                }
            }
            total = if block == 0 {
                sums
            } else {
                std::array::from_fn(|lane| total[lane] + sums[lane])
            };
        }
        self.cycles += length as u64;
        Ok(total.map(alu::of_float))
    }

    fn load(&self, from: &Element, strip: Strip, lane: usize) -> Result<u64, String> {
        let holds = |at: &Affine, extent: i64| (0..extent).contains(&self.lane_at(at, strip, lane));
        if !from.bounds.iter().all(|bound| holds(&bound.at, bound.extent)) {
            return Ok(from.fill);
        }
        let index = |(reg, stride): &(Reg, i64)| {
            self.registers[*reg as usize][lane].cast_signed().wrapping_mul(*stride)
        };
        let computed = from.indices.iter().map(index).fold(0, i64::wrapping_add);
        let at = self.lane_at(&from.at, strip, lane).wrapping_add(computed);
        match self.read(from.operand, from.format, at) {
            // An index whose check was raised may lead anywhere.
            Err(_) if self.raised.is_some() => Ok(0),
            other => other,
        }
    }

    /// Where something is at the first lane.
    fn at(&self, at: &Affine) -> i64 {
        let moved = at.strides.iter().zip(&self.positions);
        moved.fold(at.offset, |sum, (stride, position)| {
            sum.wrapping_add(stride.wrapping_mul(*position))
        })
    }

    /// Where something is at a lane.
    fn lane_at(&self, at: &Affine, strip: Strip, lane: usize) -> i64 {
        let stride = at.strides.get(strip.axis).copied().unwrap_or(0);
        self.at(at).wrapping_add(stride.wrapping_mul(lane as i64))
    }

    /// The number of a word, if the table has it.
    fn word(&self, cell: &Cell, at: i64) -> Result<usize, String> {
        let words = self.tables.get(cell.table).map_or(0, Vec::len);
        usize::try_from(at).ok().filter(|at| *at < words).ok_or_else(|| outside(cell))
    }

    /// The address of an element.
    fn address(&self, operand: usize, format: Format, at: i64) -> Result<Range<usize>, String> {
        let place = self.operands.get(operand).cloned().unwrap_or_default();
        let start = usize::try_from(at).ok().and_then(|at| at.checked_mul(format.bytes()));
        let start = start.and_then(|start| start.checked_add(place.start));
        let range = start.and_then(|start| Some(start..start.checked_add(format.bytes())?));
        range
            .filter(|range| range.end <= place.end && range.end <= self.memory.len())
            .ok_or_else(|| format!("element {at} is outside of m{operand}"))
    }

    fn read(&self, operand: usize, format: Format, at: i64) -> Result<u64, String> {
        let bytes = &self.memory[self.address(operand, format, at)?];
        let word = bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        Ok(match format {
            Format::Bf16 => alu::of_float(half::bf16_to_f32(word as u16)),
            Format::Bool => u64::from(word != 0),
            Format::F32 | Format::I32 | Format::I64 => word,
        })
    }

    fn write(&mut self, operand: usize, format: Format, at: i64, word: u64) -> Result<(), String> {
        let range = self.address(operand, format, at)?;
        let word = match format {
            Format::Bf16 => u64::from(half::f32_to_bf16(alu::float(word))),
            _ => word,
        };
        self.memory[range].copy_from_slice(&word.to_le_bytes()[..format.bytes()]);
        Ok(())
    }
}

/// What a lane has, for the lanes that have a position.
fn each(lanes: usize, value: impl Fn(usize) -> u64) -> Lanes {
    let mut values = [0; LANES];
    for (lane, to) in values.iter_mut().enumerate().take(lanes) {
        *to = value(lane);
    }
    values
}

fn outside(cell: &Cell) -> String {
    format!("a word is outside of table t{}", cell.table)
}

#[cfg(test)]
mod tests;
