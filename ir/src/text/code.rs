//! The scalar code of a kernel as text: instructions, places in buffers, sinks.

use super::printer::commas;
use crate::DType;
use crate::kernel::{Access, Body, Guard, Inst, Load, Over, Scalar, ScalarOp, Sink, Stage, Val};
use std::fmt::{self, Display, Formatter, Write};

/// How the parts of a body call what lies around them.
pub(super) struct Code<'a> {
    /// The names of the axes; the row is `r`.
    pub(super) axes: Vec<String>,
    /// What the number of a load stands for.
    pub(super) loads: &'a [Load],
    /// The kernel's input of each slot; `None` if segments differ.
    pub(super) inputs: Option<&'a [usize]>,
    /// The kernel's output of each slot; `None` if segments differ.
    pub(super) outputs: Option<&'a [usize]>,
    /// `s`, or another letter where a kernel has several bodies.
    pub(super) letter: char,
}

impl Code<'_> {
    /// `stage` or `once`, with its code and sinks.
    pub(super) fn stage(&self, f: &mut Formatter<'_>, stage: &Stage) -> fmt::Result {
        let row = stage.over == Over::Row;
        f.write_str(if row { "  stage\n" } else { "  once\n" })?;
        self.body(f, &stage.body, row)?;
        stage.sinks.iter().try_for_each(|sink| self.sink(f, sink, row))
    }

    /// One instruction a line.
    pub(super) fn body(&self, f: &mut Formatter<'_>, body: &Body, row: bool) -> fmt::Result {
        for (value, inst) in body.insts.iter().enumerate() {
            write!(f, "    {}{value} = ", self.letter)?;
            self.inst(f, inst, row)?;
            writeln!(f, " : {}", inst.ty.name())?;
        }
        Ok(())
    }

    fn inst(&self, f: &mut Formatter<'_>, inst: &Inst, row: bool) -> fmt::Result {
        let name = match inst.op {
            ScalarOp::Const(bits) => return write!(f, "const {}", Literal(inst.ty, bits)),
            ScalarOp::Load(number) => return self.load(f, number, inst),
            ScalarOp::Index(axis) => return write!(f, "index {}", self.axis(axis as usize)),
            ScalarOp::Row(buffer) => return write!(f, "w{buffer}{}", if row { "[r]" } else { "" }),
            ScalarOp::Register(register) => return write!(f, "g{register}"),
            op => op.name(),
        };
        f.write_str(name)?;
        match inst.op {
            ScalarOp::Round(to) => write!(f, " {to}")?,
            ScalarOp::Random { stream } => write!(f, " {stream}")?,
            ScalarOp::Check(check) => write!(f, " {check}")?,
            _ => {}
        }
        if !inst.args.is_empty() {
            f.write_char(' ')?;
        }
        commas(f, &inst.args, |f, arg| write!(f, "{}{arg}", self.letter))
    }

    fn load(&self, f: &mut Formatter<'_>, number: u32, inst: &Inst) -> fmt::Result {
        let Some(load) = self.loads.get(number as usize) else {
            return write!(f, "load ?{number}");
        };
        write!(f, "load {}", Narrow(load.dtype, inst.ty))?;
        match self.inputs {
            Some(slots) => write!(f, "in{}", slots.get(load.input).copied().unwrap_or(load.input))?,
            None if self.segmented() => write!(f, "x{}", load.input)?,
            None => write!(f, "in{}", load.input)?,
        }
        self.access(f, &load.access, &inst.args, inst.ty)
    }

    /// True for the code of a nest of several segments, whose one axis is the row.
    fn segmented(&self) -> bool {
        self.axes.len() == 1 && self.axes[0] == "r"
    }

    fn output(&self, output: usize) -> String {
        match self.outputs {
            Some(slots) => format!("out{}", slots.get(output).copied().unwrap_or(output)),
            None if self.segmented() => format!("y{output}"),
            None => format!("out{output}"),
        }
    }

    /// Where a value goes.
    pub(super) fn sink(&self, f: &mut Formatter<'_>, sink: &Sink, row: bool) -> fmt::Result {
        let letter = self.letter;
        match sink {
            Sink::Store { output, dtype, access, value } => {
                write!(f, "    store {dtype} {}", self.output(*output))?;
                self.access(f, access, &[], Scalar::I64)?;
                writeln!(f, ", {letter}{value}")
            }
            Sink::Reduce { reduction, value, register } => {
                writeln!(f, "    g{register} = {} along the row {letter}{value}", reduction.name())
            }
            Sink::Keep { value, buffer } => {
                writeln!(f, "    w{buffer}{} = {letter}{value}", if row { "[r]" } else { "" })
            }
            Sink::Set { value, register } => writeln!(f, "    g{register} = {letter}{value}"),
            Sink::Column { reduction, value, output, dtype, kept } => {
                write!(f, "    store {dtype} {}[", self.output(*output))?;
                let kept = kept.iter().enumerate().filter(|(_, kept)| **kept);
                commas(f, kept, |f, (axis, _)| f.write_str(self.axis(axis)))?;
                writeln!(f, "], {} down the column {letter}{value}", reduction.name())
            }
            Sink::Largest { value, output } => {
                writeln!(f, "    store {}, largest {letter}{value}", self.output(*output))
            }
        }
    }

    fn axis(&self, axis: usize) -> &str {
        self.axes.get(axis).map_or("?", String::as_str)
    }

    /// `[10*i0 + r + 4*s2] if 0 <= r - 1 < 5 else 0.0`
    pub(super) fn access(
        &self,
        f: &mut Formatter<'_>,
        access: &Access,
        index: &[Val],
        fill: Scalar,
    ) -> fmt::Result {
        f.write_char('[')?;
        let mut sum = Sum::default();
        self.strides(f, &mut sum, &access.strides)?;
        for (i, stride) in access.indirect.iter().enumerate() {
            match index.get(i) {
                Some(value) => sum.term(f, *stride, &format!("{}{value}", self.letter))?,
                None => sum.term(f, *stride, "?")?,
            }
        }
        sum.end(f, access.offset)?;
        f.write_char(']')?;
        for (i, guard) in access.guards.iter().enumerate() {
            let Guard { offset, strides, extent } = guard;
            f.write_str(if i == 0 { " if 0 <= " } else { " and 0 <= " })?;
            let mut sum = Sum::default();
            self.strides(f, &mut sum, strides)?;
            sum.end(f, *offset)?;
            write!(f, " < {extent}")?;
        }
        if access.guards.is_empty() {
            Ok(())
        } else {
            write!(f, " else {}", Literal(fill, access.fill))
        }
    }

    fn strides(&self, f: &mut Formatter<'_>, sum: &mut Sum, strides: &[i64]) -> fmt::Result {
        strides
            .iter()
            .enumerate()
            .try_for_each(|(axis, stride)| sum.term(f, *stride, self.axis(axis)))
    }
}

/// A sum on its way to the text.
#[derive(Default)]
struct Sum {
    begun: bool,
}

impl Sum {
    fn term(&mut self, f: &mut Formatter<'_>, factor: i64, what: &str) -> fmt::Result {
        if factor == 0 {
            return Ok(());
        }
        self.sign(f, factor)?;
        match factor.unsigned_abs() {
            1 => f.write_str(what),
            n => write!(f, "{n}*{what}"),
        }
    }

    fn end(&mut self, f: &mut Formatter<'_>, offset: i64) -> fmt::Result {
        if offset == 0 && self.begun {
            return Ok(());
        }
        self.sign(f, offset)?;
        write!(f, "{}", offset.unsigned_abs())
    }

    fn sign(&mut self, f: &mut Formatter<'_>, number: i64) -> fmt::Result {
        let begun = std::mem::replace(&mut self.begun, true);
        f.write_str(match (begun, number < 0) {
            (true, true) => " - ",
            (true, false) => " + ",
            (false, true) => "-",
            (false, false) => "",
        })
    }
}

/// A number by its bits.
struct Literal(Scalar, u64);

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Literal(ty, bits) = *self;
        match ty {
            Scalar::F32 => show_float(f, f32::from_bits(bits as u32)),
            Scalar::F64 => show_float(f, f64::from_bits(bits)),
            Scalar::I32 => write!(f, "{}", bits as u32 as i32),
            Scalar::I64 => write!(f, "{}", bits as i64),
            Scalar::Bool => write!(f, "{}", bits != 0),
        }
    }
}

/// The shortest text that reads back as the same number of its width; `nan` for every NaN.
fn show_float(f: &mut Formatter<'_>, v: impl fmt::Debug + Copy) -> fmt::Result {
    let text = format!("{v:?}");
    f.write_str(if text.eq_ignore_ascii_case("nan") { "nan" } else { &text })
}

/// The dtype in memory, where it is another than the scalar.
struct Narrow(DType, Scalar);

impl Display for Narrow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.name() == self.1.name() { Ok(()) } else { write!(f, "{} ", self.0) }
    }
}
