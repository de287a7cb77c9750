//! The stages of a kernel as text: scalar code, places in buffers, sinks.

use super::scalar_text::{Loops, ScalarText, commas};
use crate::kernel::{Body, Inst, Load, Over, Scalar, Sink, Stage};
use std::fmt::{self, Formatter};

/// How the parts of a body call what lies around them.
pub(crate) struct Code<'a> {
    /// The names of the axes; the row is `r`.
    pub(crate) axes: Vec<String>,
    /// What the number of a load stands for.
    pub(crate) loads: &'a [Load],
    /// The kernel's input of each slot; `None` if segments differ.
    pub(crate) inputs: Option<&'a [usize]>,
    /// The kernel's output of each slot; `None` if segments differ.
    pub(crate) outputs: Option<&'a [usize]>,
    /// `s`, or another letter where a kernel has several bodies.
    pub(crate) letter: char,
}

impl Code<'_> {
    /// `stage` or `once`, with its code and sinks.
    pub(crate) fn stage(&self, f: &mut Formatter<'_>, stage: &Stage) -> fmt::Result {
        let row = stage.over == Over::Row;
        f.write_str(if row { "  stage\n" } else { "  once\n" })?;
        self.body(f, &stage.body, row)?;
        stage.sinks.iter().try_for_each(|sink| self.sink(f, sink, row))
    }

    /// One instruction a line.
    pub(crate) fn body(&self, f: &mut Formatter<'_>, body: &Body, row: bool) -> fmt::Result {
        ScalarText { row, ..self.scalars() }.body(f, body, self)
    }

    /// How its scalars are written.
    pub(crate) fn scalars(&self) -> ScalarText<'_> {
        ScalarText { axes: &self.axes, letter: self.letter, row: true }
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
    pub(crate) fn sink(&self, f: &mut Formatter<'_>, sink: &Sink, row: bool) -> fmt::Result {
        let letter = self.letter;
        match sink {
            Sink::Store { output, dtype, access, value } => {
                write!(f, "    store {dtype} {}", self.output(*output))?;
                self.scalars().access(f, access, &[], Scalar::I64)?;
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
                commas(f, kept, |f, (axis, _)| f.write_str(self.scalars().axis(axis)))?;
                writeln!(f, "], {} down the column {letter}{value}", reduction.name())
            }
            Sink::Largest { value, output } => {
                writeln!(f, "    store {}, largest {letter}{value}", self.output(*output))
            }
        }
    }
}

impl Loops for Code<'_> {
    fn load(&self, f: &mut Formatter<'_>, number: u32, inst: &Inst) -> fmt::Result {
        let Some(load) = self.loads.get(number as usize) else {
            return write!(f, "?{number}");
        };
        self.scalars().dtype(f, load.dtype, inst.ty)?;
        match self.inputs {
            Some(slots) => write!(f, "in{}", slots.get(load.input).copied().unwrap_or(load.input))?,
            None if self.segmented() => write!(f, "x{}", load.input)?,
            None => write!(f, "in{}", load.input)?,
        }
        self.scalars().access(f, &load.access, &inst.args, inst.ty)
    }

    fn index(&self, f: &mut Formatter<'_>, number: u32) -> fmt::Result {
        f.write_str(self.scalars().axis(number as usize))
    }
}
