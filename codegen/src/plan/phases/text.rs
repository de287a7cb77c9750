//! [`Phases`] as text, below the code of their stage.
//!
//! ```text
//!     phases of 128 positions, 512 bytes of scratch
//!       once per row: s1
//!       routines: s2 at 0
//!       vectors: s0, s3, store slot1
//! ```
//!
//! `s2 at 0` is a value that waits in the scratch, 0 bytes from its beginning, for phases to come.

use super::{Class, Kind, Lanes, Phases};
use crate::plan::{Sink, Stage};
use std::fmt::{self, Display, Formatter};
use tracecast_ir::kernel::Val;

/// The phases of a stage.
pub(crate) struct PhasesText<'a> {
    /// Them.
    pub(crate) phases: &'a Phases,
    /// The stage.
    pub(crate) stage: &'a Stage,
}

impl Display for PhasesText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Phases { class, needed, phases, tile, bytes, lanes, .. } = self.phases;
        f.write_str("    phases")?;
        if phases.len() > 1 {
            write!(f, " of {tile} positions")?;
        }
        if *bytes > 0 {
            write!(f, ", {bytes} bytes of scratch")?;
        }
        f.write_str(match lanes {
            Lanes::Bits32 => "\n",
            Lanes::Bits64 => ", lanes of 64 bits\n",
        })?;
        let values = |is: &dyn Fn(usize) -> bool| -> Vec<String> {
            (0..class.len()).filter(|at| is(*at)).map(|at| format!("s{at}")).collect()
        };
        line(f, "once per row", &values(&|at| needed[at] && class[at] == Class::Uniform))?;
        for phase in phases {
            let kind = match phase.kind {
                Kind::Vector => "vectors",
                Kind::Scalar => "scalars",
                Kind::Tile => "routines",
            };
            let values = phase.insts.iter().map(|v| self.value(*v));
            let sinks = phase.sinks.iter().map(|number| name(&self.stage.sinks[*number]));
            line(f, kind, &values.chain(sinks).collect::<Vec<_>>())?;
        }
        line(f, "not needed", &values(&|at| !needed[at]))
    }
}

impl PhasesText<'_> {
    /// A value that is computed in a phase, and where it waits for others.
    fn value(&self, value: Val) -> String {
        let at = value as usize;
        match self.phases.temporaries[at] {
            Some(offset) => format!("s{value} at {offset}"),
            None => format!("s{value}"),
        }
    }
}

/// A line of a list, if there is anything in it.
fn line(f: &mut Formatter<'_>, what: &str, values: &[String]) -> fmt::Result {
    if values.is_empty() { Ok(()) } else { writeln!(f, "      {what}: {}", values.join(", ")) }
}

/// A sink in one or two words.
fn name(sink: &Sink) -> String {
    match sink {
        Sink::Store { slot, .. } | Sink::Column { slot, .. } => format!("store slot{slot}"),
        Sink::Reduce { register, .. } | Sink::Set { register, .. } => format!("g{register}"),
        Sink::Keep { buffer, .. } => format!("w{buffer}"),
        Sink::Combine { combiner, slot, .. } => format!("{} slot{slot}", combiner.name()),
    }
}
