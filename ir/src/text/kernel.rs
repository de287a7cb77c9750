//! Kernels as text: what they read and write, their loops, and their scalar code. Printed, never read.
//!
//! ```text
//! kernel @relu map(in0: bf16[8, 10]) -> (out0: bf16[8, 10]) {
//!   loop i0 8, row r 10
//!   stage
//!     s0 = load bf16 in0[10*i0 + r] : f32
//!     s1 = const 0.0 : f32
//!     s2 = max s0, s1 : f32
//!     store bf16 out0[10*i0 + r], s2
//! }
//! ```
//!
//! `in0` and `out0` are buffers, or `x0` and `y0` where segments each give their own; `g0` is a register, `w0` a row buffer.

use super::literal::Name;
use super::printer::commas;
use crate::DType;
use crate::kernel::{
    Access, Body, Cmp, Contract, Factor, Form, Function, Guard, Inst, Kernel, Load, Nest, Over, Reduction, Scalar, ScalarOp,
    Scatter, Sink, Stage, Val,
};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        KernelText { kernel: self, sources: true }.fmt(f)
    }
}

/// A kernel, with or without the source lines of its checks.
pub(super) struct KernelText<'a> {
    /// The kernel.
    pub(super) kernel: &'a Kernel,
    /// Whether to print source lines.
    pub(super) sources: bool,
}

impl Display for KernelText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Kernel { name, inputs, outputs, when, checks, form } = self.kernel;
        write!(f, "kernel @{} {}(", Name(name), self.kernel.form_name())?;
        commas(f, inputs.iter().enumerate(), |f, (i, ty)| write!(f, "in{i}: {ty}"))?;
        f.write_str(") -> (")?;
        commas(f, outputs.iter().enumerate(), |f, (i, output)| {
            write!(f, "out{i}: {}", output.ty)?;
            output.update.map_or(Ok(()), |input| write!(f, " over in{input}"))
        })?;
        f.write_str(") {\n")?;
        if let Some(input) = when {
            writeln!(f, "  when in{input} is zero")?;
        }
        for (i, check) in checks.iter().enumerate() {
            write!(f, "  check {i} {:?} of {}", check.message, check.op)?;
            if self.sources && !check.source.is_empty() {
                write!(f, " at {:?}", check.source)?;
            }
            f.write_char('\n')?;
        }
        match form {
            Form::Nest(nest) => show_nest(f, nest)?,
            Form::Contract(contract) => show_contract(f, contract)?,
            Form::Scatter(scatter) => show_scatter(f, scatter)?,
        }
        f.write_str("}\n")
    }
}

/// How the parts of a body call what lies around them.
struct Code<'a> {
    axes: Vec<String>,
    loads: &'a [Load],
    /// The kernel's input of each slot; `None` if segments differ.
    inputs: Option<&'a [usize]>,
    /// The kernel's output of each slot; `None` if segments differ.
    outputs: Option<&'a [usize]>,
    /// `s`, or another letter where a kernel has several bodies.
    letter: char,
}

fn show_nest(f: &mut Formatter<'_>, nest: &Nest) -> fmt::Result {
    let rank = nest.segments.first().map_or(0, |s| s.extents.len());
    let mut axes: Vec<String> = (0..rank.saturating_sub(1)).map(|i| format!("i{i}")).collect();
    axes.push("r".to_owned());
    let single = match nest.segments.as_slice() {
        [segment] => Some(segment),
        _ => None,
    };
    for segment in &nest.segments {
        f.write_str(if single.is_some() { "  loop " } else { "  segment " })?;
        commas(f, segment.extents.iter().enumerate(), |f, (axis, extent)| {
            let row = if axis + 1 == segment.extents.len() { "row " } else { "" };
            write!(f, "{row}{} {extent}", axes.get(axis).map_or("?", |a| a))
        })?;
        if single.is_none() {
            f.write_str(": ")?;
            commas(f, segment.inputs.iter().enumerate(), |f, (slot, input)| write!(f, "x{slot} = in{input}"))?;
            f.write_str(" -> ")?;
            commas(f, segment.outputs.iter().enumerate(), |f, (slot, output)| write!(f, "y{slot} = out{output}"))?;
        }
        f.write_char('\n')?;
    }
    show_scalars(f, "register g", &nest.registers)?;
    show_scalars(f, "buffer w", &nest.buffers)?;
    let code = Code {
        axes,
        loads: &nest.loads,
        inputs: single.map(|s| s.inputs.as_slice()),
        outputs: single.map(|s| s.outputs.as_slice()),
        letter: 's',
    };
    nest.stages.iter().try_for_each(|stage| code.stage(f, stage))
}

fn show_scalars(f: &mut Formatter<'_>, what: &str, scalars: &[Scalar]) -> fmt::Result {
    for (i, scalar) in scalars.iter().enumerate() {
        writeln!(f, "  {what}{i} : {}", scalar.name())?;
    }
    Ok(())
}

fn show_contract(f: &mut Formatter<'_>, contract: &Contract) -> fmt::Result {
    let Contract { batch, m, n, k, acc, a, b, loads, epilogue } = contract;
    let axes = |rest: &[&str]| -> Vec<String> {
        let batch = (0..batch.len()).map(|i| format!("b{i}"));
        batch.chain(rest.iter().map(|&s| s.to_owned())).collect()
    };
    f.write_str("  loop ")?;
    for (i, extent) in batch.iter().enumerate() {
        write!(f, "b{i} {extent}, ")?;
    }
    writeln!(f, "i {m}, j {n}\n  reduce p {k} in {}", acc.name())?;
    show_factor(f, a, 'a', axes(&["i", "p"]))?;
    show_factor(f, b, 'b', axes(&["p", "j"]))?;
    let code = Code { axes: axes(&["i", "j"]), loads, inputs: None, outputs: None, letter: 's' };
    f.write_str("  epilogue\n")?;
    code.body(f, &epilogue.body, true)?;
    epilogue.sinks.iter().try_for_each(|sink| code.sink(f, sink, true))
}

fn show_factor(f: &mut Formatter<'_>, factor: &Factor, letter: char, axes: Vec<String>) -> fmt::Result {
    writeln!(f, "  factor {letter} = {letter}{}", factor.value)?;
    Code { axes, loads: &factor.loads, inputs: None, outputs: None, letter }.body(f, &factor.body, true)
}

fn show_scatter(f: &mut Formatter<'_>, scatter: &Scatter) -> fmt::Result {
    let Scatter { extents, loads, body, value, place, index, base } = scatter;
    let axes: Vec<String> = (0..extents.len()).map(|i| format!("i{i}")).collect();
    f.write_str("  loop ")?;
    commas(f, axes.iter().zip(extents), |f, (axis, extent)| write!(f, "{axis} {extent}"))?;
    match base {
        Some(input) => writeln!(f, "\n  base in{input}")?,
        None => f.write_str("\n  base zeros\n")?,
    }
    let code = Code { axes, loads, inputs: None, outputs: None, letter: 's' };
    f.write_str("  stage\n")?;
    code.body(f, body, true)?;
    f.write_str("    add out0")?;
    code.access(f, place, index, Scalar::I64)?;
    writeln!(f, ", s{value}")
}

impl Code<'_> {
    fn stage(&self, f: &mut Formatter<'_>, stage: &Stage) -> fmt::Result {
        let row = stage.over == Over::Row;
        f.write_str(if row { "  stage\n" } else { "  once\n" })?;
        self.body(f, &stage.body, row)?;
        stage.sinks.iter().try_for_each(|sink| self.sink(f, sink, row))
    }

    fn body(&self, f: &mut Formatter<'_>, body: &Body, row: bool) -> fmt::Result {
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
            op => word(op),
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
        let Some(load) = self.loads.get(number as usize) else { return write!(f, "load ?{number}") };
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

    fn sink(&self, f: &mut Formatter<'_>, sink: &Sink, row: bool) -> fmt::Result {
        let letter = self.letter;
        match sink {
            Sink::Store { output, dtype, access, value } => {
                write!(f, "    store {dtype} {}", self.output(*output))?;
                self.access(f, access, &[], Scalar::I64)?;
                writeln!(f, ", {letter}{value}")
            }
            Sink::Reduce { reduction, value, register } => {
                writeln!(f, "    g{register} = {} along the row {letter}{value}", reduction_name(*reduction))
            }
            Sink::Keep { value, buffer } => writeln!(f, "    w{buffer}{} = {letter}{value}", if row { "[r]" } else { "" }),
            Sink::Set { value, register } => writeln!(f, "    g{register} = {letter}{value}"),
            Sink::Column { reduction, value, output, dtype, kept } => {
                write!(f, "    store {dtype} {}[", self.output(*output))?;
                let kept = kept.iter().enumerate().filter(|(_, kept)| **kept);
                commas(f, kept, |f, (axis, _)| f.write_str(self.axis(axis)))?;
                writeln!(f, "], {} down the column {letter}{value}", reduction_name(*reduction))
            }
        }
    }

    fn axis(&self, axis: usize) -> &str {
        self.axes.get(axis).map_or("?", String::as_str)
    }

    /// `[10*i0 + r + 4*s2] if 0 <= r - 1 < 5 else 0.0`
    fn access(&self, f: &mut Formatter<'_>, access: &Access, index: &[Val], fill: Scalar) -> fmt::Result {
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
        if access.guards.is_empty() { Ok(()) } else { write!(f, " else {}", Literal(fill, access.fill)) }
    }

    fn strides(&self, f: &mut Formatter<'_>, sum: &mut Sum, strides: &[i64]) -> fmt::Result {
        strides.iter().enumerate().try_for_each(|(axis, stride)| sum.term(f, *stride, self.axis(axis)))
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

fn reduction_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::Sum => "sum",
        Reduction::Max => "max",
        Reduction::Min => "min",
        Reduction::ArgMax => "argmax",
    }
}

/// The name of an instruction.
fn word(op: ScalarOp) -> &'static str {
    match op {
        ScalarOp::Const(_) => "const",
        ScalarOp::Load(_) => "load",
        ScalarOp::Index(_) => "index",
        ScalarOp::Row(_) => "row",
        ScalarOp::Register(_) => "register",
        ScalarOp::Acc => "acc",
        ScalarOp::Add => "add",
        ScalarOp::Sub => "sub",
        ScalarOp::Mul => "mul",
        ScalarOp::Div => "div",
        ScalarOp::Rem => "rem",
        ScalarOp::Max => "max",
        ScalarOp::Min => "min",
        ScalarOp::Neg => "neg",
        ScalarOp::Abs => "abs",
        ScalarOp::Sqrt => "sqrt",
        ScalarOp::Floor => "floor",
        ScalarOp::Call(function) => match function {
            Function::Exp => "exp",
            Function::Log => "log",
            Function::Tanh => "tanh",
            Function::Erf => "erf",
            Function::Sin => "sin",
            Function::Cos => "cos",
        },
        ScalarOp::Round(_) => "round",
        ScalarOp::Cmp(cmp) => match cmp {
            Cmp::Eq => "eq",
            Cmp::Ne => "ne",
            Cmp::Lt => "lt",
            Cmp::Le => "le",
        },
        ScalarOp::And => "and",
        ScalarOp::Or => "or",
        ScalarOp::Not => "not",
        ScalarOp::Select => "select",
        ScalarOp::Convert => "convert",
        ScalarOp::WrapU8 => "wrap_u8",
        ScalarOp::Random { .. } => "random",
        ScalarOp::Check(_) => "check",
    }
}
