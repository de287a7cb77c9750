//! A [`Plan`] as text: what the function does with its operands, its loops, and the scalar code of
//! its stages.
//!
//! ```text
//!   slot0 : f32[60] read
//!   slot1 : f32 written, fresh
//!   loop i0 3, row r 20
//!   stage
//!     s0 = load slot0[20*i0 + r] : f32
//!     g0 = sum along the row s0
//!   once
//!     s0 = g0 : f32
//!     store f32 slot1[i0], s0
//! ```

use crate::plan::phases::text::PhasesText;
use crate::plan::phases::{self, VectorLoops};
use crate::plan::{Neighbours, Place, Plan, Sink, Source, Stage};
use std::fmt::{self, Display, Formatter, Write};
use tracecast_ir::kernel::{COLUMN_CHUNK, Combiner, Inst, Scalar, Val};
use tracecast_ir::text::{Loops, ScalarText};
use tracecast_ir::{DType, Size};

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        PlanText { plan: self, vectors: None }.fmt(f)
    }
}

/// A plan, with its phases or without.
pub(super) struct PlanText<'a> {
    /// The function.
    pub(super) plan: &'a Plan,
    /// If set, the phases of every stage follow it, as they are for such vector loops.
    pub(super) vectors: Option<VectorLoops>,
}

impl Display for PlanText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        for slot in 0..plan.slots {
            show_slot(f, plan, slot)?;
        }
        let mut axes: Vec<String> = (0..plan.row_axis()).map(|i| format!("i{i}")).collect();
        axes.push("r".to_owned());
        f.write_str("  loop ")?;
        for (axis, extent) in plan.extents[..plan.row_axis()].iter().enumerate() {
            write!(f, "i{axis} {extent}, ")?;
        }
        write!(f, "row r {}", plan.row())?;
        f.write_str(if plan.aligned { " aligned" } else { "" })?;
        if plan.tensors > 1 {
            write!(f, ", {} tensors", plan.tensors)?;
        }
        f.write_char('\n')?;
        let code = Code { plan, scalars: ScalarText { axes: &axes, letter: 's', row: true } };
        for (number, strided) in plan.strided.iter().enumerate() {
            write!(f, "  gather t{number} = slot{}", strided.slot)?;
            code.scalars.access(f, &strided.access, &[], Scalar::I64)?;
            let rows = match (strided.neighbours, strided.rows) {
                (_, 1) => "row",
                (Neighbours::Positions, _) => "rows",
                (Neighbours::Loads, _) => "rows of loads",
            };
            writeln!(f, ", {} {rows} of at most {} positions", strided.rows, strided.positions)?;
        }
        for (number, scalar) in plan.buffers.iter().enumerate() {
            writeln!(f, "  buffer w{number} : {}", scalar.name())?;
        }
        for stage in &plan.stages {
            code.stage(f, stage)?;
            if let Some(vectors) = self.vectors.filter(|_| !stage.once) {
                PhasesText { phases: &phases::cut(plan, stage, vectors), stage }.fmt(f)?;
            }
        }
        Ok(())
    }
}

/// What a function does with an operand; nothing if it does not touch it.
fn show_slot(f: &mut Formatter<'_>, plan: &Plan, slot: usize) -> fmt::Result {
    let mut uses: Vec<&str> = Vec::new();
    let mut dtype = None;
    let mut elements = Size::default();
    let mut note = |what, of: DType| {
        dtype = Some(of);
        if !uses.contains(&what) {
            uses.push(what);
        }
    };
    for (number, source) in plan.loads.iter().enumerate().filter(|(_, s)| s.slot == slot) {
        let gathered = matches!(source.place, Place::Gathered { .. });
        if gathered || plan.stages.iter().any(|s| s.loads(number as u32)) {
            // Several loads of an operand know the same of it.
            elements = if elements == 0 { source.elements } else { elements };
            note("read", source.dtype);
            if !source.read_only {
                note("updated", source.dtype);
            }
        }
    }
    for (stage, sink) in plan.stages.iter().flat_map(|s| s.sinks.iter().map(move |k| (s, k))) {
        match sink {
            Sink::Store { slot: s, dtype, .. } if *s == slot => note("written", *dtype),
            Sink::Combine { slot: s, combiner, dtype, elements: n, .. } if *s == slot => {
                elements = *n;
                note(
                    match combiner {
                        Combiner::Set => "written",
                        Combiner::Add => "added to",
                        Combiner::Mul | Combiner::Max | Combiner::Min => "combined",
                    },
                    *dtype,
                );
            }
            Sink::Column { slot: s, value, .. } if *s == slot => {
                note("accumulators", stage.body.ty(*value).dtype())
            }
            Sink::Store { .. } | Sink::Combine { .. } | Sink::Column { .. } => {}
            Sink::Reduce { .. } | Sink::Keep { .. } | Sink::Set { .. } => {}
        }
    }
    let Some(dtype) = dtype else { return Ok(()) };
    if uses.contains(&"written") {
        uses.retain(|what| *what != "updated");
    }
    if plan.fresh.contains(&slot) {
        uses.push("fresh");
    }
    write!(f, "  slot{slot} : {dtype}")?;
    if elements != 0 {
        write!(f, "[{elements}]")?;
    }
    writeln!(f, " {}", uses.join(", "))
}

/// A size in front of `*`.
fn factor(size: Size) -> String {
    let text = size.to_string();
    if text.contains(' ') { format!("({text})") } else { text }
}

/// What the code of a plan needs to be written.
struct Code<'a> {
    plan: &'a Plan,
    scalars: ScalarText<'a>,
}

impl Code<'_> {
    fn stage(&self, f: &mut Formatter<'_>, stage: &Stage) -> fmt::Result {
        f.write_str(match (stage.once, stage.first) {
            (true, _) => "  once\n",
            (false, true) => "  stage of the first row\n",
            (false, false) => "  stage\n",
        })?;
        let row = !stage.once;
        ScalarText { row, ..self.scalars }.body(f, &stage.body, self)?;
        stage.sinks.iter().try_for_each(|sink| self.sink(f, stage, sink))
    }

    fn sink(&self, f: &mut Formatter<'_>, stage: &Stage, sink: &Sink) -> fmt::Result {
        f.write_str("    ")?;
        match sink {
            Sink::Store { slot, dtype, place, value, after } => {
                write!(f, "store {dtype} ")?;
                self.place(f, *slot, place, &[], Scalar::I64)?;
                write!(f, ", s{value}")?;
                for (i, load) in after.iter().enumerate() {
                    f.write_str(if i == 0 { " after load " } else { ", " })?;
                    self.source(f, &self.plan.loads[*load as usize], &[], Scalar::I64)?;
                }
                f.write_char('\n')
            }
            Sink::Reduce { reduction, value, register } => {
                writeln!(f, "g{register} = {} along the row s{value}", reduction.name())
            }
            Sink::Keep { value, buffer } => writeln!(f, "w{buffer}[r] = s{value}"),
            Sink::Set { value, register } => writeln!(f, "g{register} = s{value}"),
            Sink::Column { reduction, value, slot, keep, count, size } => {
                write!(f, "store {} slot{slot}[", stage.body.ty(*value).name())?;
                self.scalars.affine(f, keep, Size::from(0))?;
                let terms = count.iter().filter(|stride| **stride != 0).count();
                if terms > 0 {
                    let (open, close) = if terms > 1 { ("(", ")") } else { ("", "") };
                    write!(f, " + {}*({open}", factor(*size))?;
                    self.scalars.affine(f, count, Size::from(0))?;
                    write!(f, "{close} / {COLUMN_CHUNK})")?;
                }
                writeln!(f, "], {} down the column s{value}", reduction.name())
            }
            Sink::Combine { combiner, slot, dtype, access, index, value, elements: _ } => {
                write!(f, "{} {dtype} slot{slot}", combiner.name())?;
                self.scalars.access(f, access, index, Scalar::I64)?;
                writeln!(f, ", s{value}")
            }
        }
    }

    /// The element of an operand at a place.
    fn place(
        &self,
        f: &mut Formatter<'_>,
        slot: usize,
        place: &Place,
        index: &[Val],
        fill: Scalar,
    ) -> fmt::Result {
        match place {
            Place::At(access) => {
                write!(f, "slot{slot}")?;
                self.scalars.access(f, access, index, fill)
            }
            Place::Stream => write!(f, "slot{slot}[next]"),
            Place::Gathered { rows, row } => {
                match (self.plan.strided[*rows].neighbours, self.plan.strided[*rows].rows) {
                    (Neighbours::Loads, 2..) => write!(f, "t{rows}[{row}, r]"),
                    _ => write!(f, "t{rows}[r]"),
                }
            }
        }
    }

    fn source(
        &self,
        f: &mut Formatter<'_>,
        source: &Source,
        index: &[Val],
        fill: Scalar,
    ) -> fmt::Result {
        self.place(f, source.slot, &source.place, index, fill)
    }
}

impl Loops for Code<'_> {
    fn load(&self, f: &mut Formatter<'_>, number: u32, inst: &Inst) -> fmt::Result {
        let source = &self.plan.loads[number as usize];
        self.scalars.dtype(f, source.dtype, inst.ty)?;
        self.source(f, source, &inst.args, inst.ty)
    }

    /// Before the index arithmetic is affine, the number is that of an axis.
    fn index(&self, f: &mut Formatter<'_>, number: u32) -> fmt::Result {
        match self.plan.positions.get(number as usize) {
            Some(position) => self.scalars.affine(f, &position.strides, position.offset),
            None => f.write_str(self.scalars.axis(number as usize)),
        }
    }
}
