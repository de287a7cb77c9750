//! Loops as text for people: the instructions of every body before they are given registers.
//!
//! ```text
//! main: ; 32 positions at a time
//!     v0 = vmovups [slot0 + rax*4]
//!     v1 = vmulps v0, {%2}
//!     acc0 = vaddps acc0, v1
//!     vmovups [slot1 + rax*4], v1
//! ```
//!
//! A number such as `v1` is a vector that is made once and has no register yet; `acc0` is an
//! accumulator, which has one throughout the loop. Braces are the same number in every lane: a
//! constant, or a value that the caller computes once per row, by its number in the stage. `rax` is
//! the position. `[slot1 + …]` is an operand, `[scratch + …]` the scratch of the call, `[copy0]`
//! the last elements of an operand whose size no mask has, copied there. Under `{tail}`, only the
//! positions that are left take part. A prime marks what belongs to the second of two rows.
//! `vfmaddps a, b, c` is `a * b + c` in the form of the three that fits the registers.

use super::bodies::Bodies;
use super::frame::PointerFrom;
use super::inst::{Base, Inst, Load, MemRef, Op, Read, Shift, Store, Unary, VReg};
use super::select::{BodyKind, Tables};
use super::task::{Cell, Task};
use crate::machine::Width;
use crate::plan::phases::Lanes;
use std::fmt;
use tracecast_ir::kernel::{ScalarOp, Val};

/// The instructions of a loop.
#[derive(Debug)]
pub(crate) struct Listing {
    width: Width,
    lanes: Lanes,
    /// Of each cell, the row that it belongs to, and what it is.
    cells: Vec<(u8, Named)>,
    pointers: Vec<PointerFrom>,
    /// Of each number in every lane, its cell.
    broadcasts: Vec<u16>,
    bodies: Bodies,
}

/// What a cell holds, as people know it.
#[derive(Clone, Copy, Debug)]
enum Named {
    /// The address of an operand.
    Slot(usize),
    /// The address of a row of results that is prefetched.
    Result(usize),
    /// The address of a row of a table that is prefetched.
    Taken(usize),
    /// A value of the stage.
    Value(Val),
    /// Whether the guard of a load holds.
    Guard(Val),
    /// Whether the row is the first of its chunk of a column.
    FirstRow,
    /// The value of a sink, in its format in memory.
    Pattern(usize),
    /// Which lanes of a half there are.
    Mask(u8),
}

impl Listing {
    /// That of a loop for a task.
    pub(super) fn new(task: &Task<'_>, tables: &Tables, bodies: Bodies) -> Listing {
        let named = |(row, cell): &(u8, Cell)| (*row, named(task, *cell));
        Listing {
            width: task.width,
            lanes: task.cut.lanes,
            cells: tables.cells.iter().map(named).collect(),
            pointers: tables.pointers.clone(),
            broadcasts: tables.broadcasts.iter().map(|(cell, _)| *cell).collect(),
            bodies,
        }
    }
}

fn named(task: &Task<'_>, cell: Cell) -> Named {
    let load = |v: Val| match task.stage.body.insts[v as usize].op {
        ScalarOp::Load(l) => Named::Slot(task.plan.loads[l as usize].slot),
        _ => Named::Value(v),
    };
    match cell {
        Cell::Load(v) => load(v),
        Cell::Sink(sink) => match task.stage.sinks[sink].slot() {
            Some(slot) => Named::Slot(slot),
            None => Named::Pattern(sink),
        },
        Cell::Uniform(v) | Cell::Start(v) => Named::Value(v),
        Cell::Prefetch(number) if task.prefetched[number].written => Named::Result(number),
        Cell::Prefetch(number) => Named::Taken(number),
        Cell::Guard(v) => Named::Guard(v),
        Cell::First(_) => Named::FirstRow,
        Cell::Pattern(sink) => Named::Pattern(sink),
        Cell::Mask(half) => Named::Mask(half),
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Slot(slot) => write!(f, "slot{slot}"),
            Named::Result(number) => write!(f, "result{number}"),
            Named::Taken(number) => write!(f, "taken{number}"),
            Named::Value(v) => write!(f, "%{v}"),
            Named::Guard(v) => write!(f, "guard of %{v}"),
            Named::FirstRow => f.write_str("first row"),
            Named::Pattern(sink) => write!(f, "bytes of sink {sink}"),
            Named::Mask(half) => write!(f, "tail{half}"),
        }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, lanes) = (2 * self.width.bytes() / self.lanes.bytes(), self.lanes.bytes() * 8);
        writeln!(f, "; vectors of {} bits, lanes of {lanes} bits", self.width.bytes() * 8)?;
        let Bodies { main, non_temporal, single, tail } = &self.bodies;
        let bodies = [
            (BodyKind::Pair, main, format!("main: ; {group} positions at a time")),
            (
                BodyKind::NonTemporal,
                non_temporal,
                "main, non-temporal: ; instead, where results are aligned".to_owned(),
            ),
            (BodyKind::Single, single, "single: ; 16 positions at a time".to_owned()),
            (BodyKind::Tail, tail, "tail: ; the positions that are left".to_owned()),
        ];
        for (kind, body, title) in bodies {
            let Some(insts) = body else { continue };
            writeln!(f, "{title}")?;
            let body = Body { loop_: self, insts, tail: kind == BodyKind::Tail };
            (0..insts.len()).try_for_each(|at| body.line(f, at))?;
        }
        Ok(())
    }
}

/// A body that is being printed.
struct Body<'a> {
    loop_: &'a Listing,
    insts: &'a [Inst],
    tail: bool,
}

impl Body<'_> {
    /// The line of an instruction; none for what is no instruction but an operand.
    fn line(&self, f: &mut fmt::Formatter<'_>, at: usize) -> fmt::Result {
        let inst = &self.insts[at];
        let (read, args) = (reads(inst.op), &inst.args[..]);
        let arg = |i: usize| self.operand(args[i], read);
        let all = || (0..args.len()).map(arg).collect::<Vec<_>>().join(", ");
        let name = mnemonic(inst.op, self.loop_.width, self.loop_.lanes);
        let text = match inst.op {
            Op::Splat(_) | Op::Splat64(_) | Op::Ramp { .. } | Op::Broadcast(_) | Op::Acc(_) => {
                return Ok(());
            }
            Op::Folded(from) => format!("{name} {}", self.memory(from)),
            Op::Load(Load::Masked, from) => format!("{name} {}, {}", arg(0), self.memory(from)),
            Op::Load(_, from) => format!("{name} {}{}", self.memory(from), self.masked(from)),
            Op::Position { cell, step } => {
                let (row, start) = self.loop_.cells[usize::from(cell)];
                format!("{name} {start}{} + rax*{step}", prime(row))
            }
            Op::Shift(_, by) => format!("{name} {}, {by}", arg(0)),
            Op::Unary(Unary::Permute64(order)) => format!("{name} {}, {order:#04x}", arg(0)),
            Op::Binary(_) | Op::Unary(_) | Op::Fma | Op::Blend | Op::ToF16 => {
                format!("{name} {}", all())
            }
            Op::CompareBlend(how) => {
                let row = how.row();
                let compare = row.names[usize::from(self.loop_.lanes == Lanes::Bits64)];
                let [a, b] = [2, 3].map(|i| self.operand(args[i], row.read));
                format!("{name} {}, {} {{{compare} {a}, {b}}}", arg(0), arg(1))
            }
            Op::Tail => format!("{name} {} {{tail}}", all()),
            Op::Store(_, to) => {
                format!("{name} {}{}, {}", self.memory(to), self.masked(to), all())
            }
            Op::Prefetch(line, _) => format!("{name} {}", self.memory(line)),
        };
        match inst.op.is_store() {
            true => writeln!(f, "    {text}"),
            false => writeln!(f, "    {} = {text}", self.result(at)),
        }
    }

    fn result(&self, at: usize) -> String {
        match self.insts[at].fixed {
            Some(register) => {
                format!("acc{}", self.loop_.width.registers() - 1 - usize::from(register))
            }
            None => format!("v{at}"),
        }
    }

    fn operand(&self, v: VReg, read: Read) -> String {
        match self.insts[v as usize].op {
            Op::Splat(bits) => format!("{{{}}}", constant_32(bits, read)),
            Op::Splat64(bits) => format!("{{{}}}", constant_64(bits, read)),
            Op::Ramp { start, step } => format!("{{{start} + lane*{step}}}"),
            Op::Broadcast(number) => {
                let (row, value) =
                    self.loop_.cells[usize::from(self.loop_.broadcasts[usize::from(number)])];
                format!("{{{value}{}}}", prime(row))
            }
            Op::Acc(number) => format!("acc{number}"),
            _ => self.result(v as usize),
        }
    }

    fn memory(&self, memory: MemRef) -> String {
        let MemRef { base, offset } = memory;
        let lane = self.loop_.lanes.bytes();
        let (base, offset) = match base {
            Base::Pointer { pointer, size } => {
                let pointer = match self.loop_.pointers[usize::from(pointer)] {
                    PointerFrom::Cell(cell) => {
                        let (row, operand) = self.loop_.cells[usize::from(cell)];
                        format!("{operand}{}", prime(row))
                    }
                    PointerFrom::Temporaries => "temporaries".to_owned(),
                };
                (format!("{pointer} + {}", scaled(size)), offset)
            }
            Base::RowBuffer(at) => (format!("scratch + rax*{lane}"), at + offset),
            Base::Fixed(at) => ("scratch".to_owned(), at + offset),
            Base::Lanes(at) => (format!("scratch + (rax & 16)*{lane}"), at + offset),
            Base::TailCopy(number) => (format!("copy{number}"), offset),
        };
        match offset {
            0 => format!("[{base}]"),
            1.. => format!("[{base} + {offset}]"),
            _ => format!("[{base} - {}]", offset.unsigned_abs()),
        }
    }

    /// The mask under which an operand is accessed.
    fn masked(&self, memory: MemRef) -> &'static str {
        let partial = matches!(memory.base, Base::Pointer { .. });
        if partial && self.tail && self.loop_.width == Width::Bits512 { " {tail}" } else { "" }
    }
}

/// The position times the bytes of an element.
fn scaled(size: u8) -> String {
    if size == 1 { "rax".to_owned() } else { format!("rax*{size}") }
}

fn prime(row: u8) -> &'static str {
    if row == 0 { "" } else { "'" }
}

fn constant_32(bits: u32, read: Read) -> String {
    let (float, int) = (f32::from_bits(bits), bits as i32);
    match read {
        Read::Float if !float.is_nan() => format!("{float:?}"),
        Read::Int if int.unsigned_abs() < 1 << 16 => int.to_string(),
        Read::Bits if bits == 0 => "0".to_owned(),
        Read::Float | Read::Int | Read::Bits => format!("{bits:#010x}"),
    }
}

fn constant_64(bits: u64, read: Read) -> String {
    let (float, int) = (f64::from_bits(bits), bits as i64);
    match read {
        Read::Float if !float.is_nan() => format!("{float:?}"),
        Read::Int if int.unsigned_abs() < 1 << 16 => int.to_string(),
        Read::Bits if bits == 0 => "0".to_owned(),
        Read::Float | Read::Int | Read::Bits => format!("{bits:#018x}"),
    }
}

fn reads(op: Op) -> Read {
    match op {
        Op::Binary(two) => two.row().read,
        Op::Unary(one) => one.row().read,
        Op::Fma | Op::ToF16 => Read::Float,
        _ => Read::Bits,
    }
}

/// The name of an instruction, as assemblers have it.
pub(super) fn mnemonic(op: Op, width: Width, lanes: Lanes) -> &'static str {
    let is_64 = lanes == Lanes::Bits64;
    let sized = |short: &'static str, long: &'static str| if is_64 { long } else { short };
    let wide = |narrow: &'static str, wide: &'static str| match width {
        Width::Bits256 => narrow,
        Width::Bits512 => wide,
    };
    match op {
        Op::Splat(_) | Op::Splat64(_) | Op::Ramp { .. } | Op::Broadcast(_) | Op::Acc(_) => "",
        Op::Folded(_) | Op::Load(Load::Full, _) | Op::Store(Store::Full, _) => {
            sized("vmovups", "vmovupd")
        }
        Op::Load(Load::Masked, _) | Op::Store(Store::Masked, _) => "vmaskmovps",
        Op::Load(Load::U16, _) => "vpmovzxwd",
        Op::Load(Load::U8, _) => "vpmovzxbd",
        Op::Load(Load::U8To64, _) => "vpmovzxbq",
        Op::Load(Load::F16, _) => "vcvtph2ps",
        Op::Store(Store::NonTemporal | Store::NonTemporalLow, _) => "vmovntps",
        Op::Store(Store::Low, _) => wide("vmovups", "vmovdqu16"),
        Op::Store(Store::Quarter, _) => "vmovdqu8",
        Op::Store(Store::Eighth, _) => "vpmovqb",
        Op::Store(Store::F16, _) | Op::ToF16 => "vcvtps2ph",
        Op::Prefetch(_, true) => "prefetchw",
        Op::Prefetch(_, false) => "prefetcht0",
        Op::Position { .. } => "vpbroadcastd",
        Op::Binary(two) => two.row().names[usize::from(is_64)],
        Op::Unary(Unary::Floor) if width == Width::Bits256 => "vroundps",
        Op::Unary(one) => one.row().names[usize::from(is_64)],
        Op::Shift(Shift::Left, _) => "vpslld",
        Op::Shift(Shift::Right, _) => "vpsrld",
        Op::Shift(Shift::Signed, _) => "vpsrad",
        Op::Fma => sized("vfmaddps", "vfmaddpd"),
        Op::Blend if width == Width::Bits256 => "vblendvps",
        Op::Blend | Op::CompareBlend(_) | Op::Tail => sized("vblendmps", "vblendmpd"),
    }
}
