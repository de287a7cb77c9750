//! The text of an [`Explanation`]: a summary, each op with its casts, what the kernels cost, what
//! they write and why, what they compute again, the warnings.

use super::casts::CastNote;
use super::ops::{OpNote, Why, Width};
use super::{AwayNote, Explanation, FallbackNote};
use std::collections::BTreeSet;
use std::fmt::{self, Formatter};
use tracecast_ir::Reason;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.about.is_none() {
            self.summary(f)?;
        }
        let shown = |op: &&OpNote| self.about.is_some() || self.is_shown(op);
        for (number, op) in self.ops.iter().filter(shown).enumerate() {
            if number > 0 || self.about.is_none() {
                writeln!(f)?;
            }
            self.op(f, op)?;
        }
        let hidden = self.ops.iter().filter(|op| !shown(op)).count();
        if hidden > 0 {
            writeln!(f, "\nand {} in no region, without casts", plural(hidden, "op"))?;
        }
        if !self.kernels.is_empty() {
            writeln!(f)?;
        }
        for kernel in &self.kernels {
            writeln!(f, "kernel {kernel}")?;
        }
        for note in &self.memory {
            writeln!(f, "in memory: {note}")?;
        }
        if let Some(note) = &self.peak {
            writeln!(f, "most in memory: {note}")?;
        }
        for note in &self.again {
            writeln!(f, "rematerialised: {note}")?;
        }
        for note in &self.checkpoints {
            writeln!(f, "checkpoint region: {note}")?;
        }
        if let Some(fallback) = &self.fallback {
            write!(f, "{fallback}")?;
        }
        if !self.warnings.is_empty() {
            writeln!(f)?;
        }
        for warning in &self.warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

impl Explanation {
    /// What lies in no region and is not cast is nothing to tell about, unless it is asked for.
    fn is_shown(&self, op: &OpNote) -> bool {
        op.region != 0 || op.casts > 0 || self.warnings.iter().any(|w| w.node == Some(op.node))
    }

    fn summary(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let count = |keep: &dyn Fn(&&OpNote) -> bool| self.ops.iter().filter(keep).count();
        let low = count(&|op| matches!(op.width, Width::Low(_)));
        let inside = self.wide().count();
        let outside = count(&|op| !op.is_on && matches!(op.width, Width::Wide(_)));
        let other = self.ops.len() - low - inside - outside;
        write!(f, "@{}: {}", self.program, plural(self.ops.len(), "op"))?;
        let kinds = [
            (low, "low"),
            (inside, "wide in regions"),
            (outside, "wide outside"),
            (other, "not floating"),
        ];
        listed(f, &kinds)?;
        write!(f, "\ncasts: {}", self.casts.len())?;
        let alone = self.standalone().count();
        let cancelled = self.casts.iter().filter(|c| c.is_cancelled()).count();
        let dropped = self.casts.iter().filter(|c| c.dropped).count();
        let housed = self.casts.len() - alone - cancelled - dropped;
        let kinds = [
            (housed, "inside kernels"),
            (alone, "stand-alone"),
            (cancelled, "cancelled"),
            (dropped, "dropped"),
        ];
        listed(f, &kinds)?;
        writeln!(f, "; {} moved for them", plural(self.moved, "byte"))?;
        if !self.policies.is_empty() {
            writeln!(f, "policies: {}", self.policies.join(", "))?;
        }
        if !self.sizes.is_empty() {
            let values: Vec<String> =
                self.sizes.iter().map(|(n, v)| format!("{n} = {v}")).collect();
            writeln!(f, "bytes, and what costs least, by the traced values {}", values.join(", "))?;
        }
        for (number, region) in self.regions.iter().enumerate().skip(1) {
            writeln!(f, "region #{number}: {region}")?;
        }
        Ok(())
    }

    fn op(&self, f: &mut Formatter<'_>, op: &OpNote) -> fmt::Result {
        write!(f, "{op}")?;
        writeln!(f)?;
        let casts: Vec<&CastNote> = self.casts_of(op).collect();
        // An op that takes a value several times asks for the same cast several times.
        let same = |a: &CastNote, b: &CastNote| a.is_made_as(b) && a.subject() == b.subject();
        for (i, cast) in casts.iter().enumerate() {
            if casts[..i].iter().any(|before| same(before, cast)) {
                continue;
            }
            match 1 + casts[i + 1..].iter().filter(|other| same(cast, other)).count() {
                1 => writeln!(f, "    {cast}")?,
                times => writeln!(f, "    {cast}; asked for {times} times, made once")?,
            }
        }
        Ok(())
    }
}

/// ` (2 low, 1 wide)`: the kinds that there are.
fn listed(f: &mut Formatter<'_>, kinds: &[(usize, &str)]) -> fmt::Result {
    let there = kinds.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> = there.map(|(count, name)| format!("{count} {name}")).collect();
    if texts.is_empty() { Ok(()) } else { write!(f, " ({})", texts.join(", ")) }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// How many launches there are, and each.
impl fmt::Display for FallbackNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let FallbackNote { device, launches } = self;
        let kernels: BTreeSet<&str> = launches.iter().map(|l| l.kernel.as_str()).collect();
        let bytes = launches.iter().map(|launch| launch.bytes).sum();
        let count = launches.len();
        let (distinct, s) = (kernels.len(), if kernels.len() == 1 { "" } else { "s" });
        let es = if count == 1 { "" } else { "es" };
        let bytes = plural(bytes, "byte");
        writeln!(f, "on {device}: {distinct} kernel{s} of {count} launch{es}, {bytes} copied")?;
        for AwayNote { kernel, bytes, reason } in launches {
            writeln!(f, "on {device}: @{kernel}, {} copied: {reason}", plural(*bytes, "byte"))?;
        }
        Ok(())
    }
}

/// `%2 matmul : bf16[4, 8]`, or `%2 (%hidden) matmul` where the text calls it so, and, on the next
/// line, why.
impl fmt::Display for OpNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value)?;
        if !self.written.is_empty() {
            write!(f, " ({})", self.written.join(", "))?;
        }
        write!(f, " {}", self.op)?;
        if let Some(op) = self.part_of {
            write!(f, " of {op}")?;
        }
        f.write_str(" : ")?;
        for (i, ty) in self.results.iter().enumerate() {
            write!(f, "{}{ty}", if i == 0 { "" } else { ", " })?;
        }
        if !self.source.is_empty() {
            write!(f, "  at {}", self.source)?;
        }
        if !self.scope.is_empty() {
            write!(f, "  in {}", self.scope)?;
        }
        f.write_str("\n  ")?;
        match self.width {
            Width::Low(dtype) => write!(f, "low, {dtype}: ")?,
            Width::Wide(dtype) => write!(f, "wide, {dtype}: ")?,
            Width::NoFloat => f.write_str("no float: ")?,
        }
        write!(f, "{}", self.why)?;
        match &self.rule {
            Some(rule) if !matches!(self.why, Why::Elsewhere { .. } | Why::Off(_)) => {
                write!(f, " ({rule})")?
            }
            _ => {}
        }
        match self.region {
            0 => Ok(()),
            region => write!(f, ", region #{region}"),
        }
    }
}

impl CastNote {
    /// What is cast, in a few words: `%w`, `promoted`, `inside softmax`, `gradient`.
    pub fn subject(&self) -> String {
        let subject = match (self.reason, &self.operand) {
            (Reason::Policy { .. } | Reason::Written, Some(name)) => name.clone(),
            (Reason::Policy { operand }, None) => format!("operand {operand}"),
            (Reason::Written, None) => "written".to_owned(),
            (Reason::Promotion, _) => "promoted".to_owned(),
            (Reason::Inside(op), _) => format!("inside {op}"),
            (Reason::Gradient, _) => return "gradient".to_owned(),
            (Reason::Rewrite, _) => "moved here".to_owned(),
        };
        if self.backward { format!("gradient, {subject}") } else { subject }
    }
}

/// `%w f32 -> bf16: pack of @contract`, with what it would cost alone.
impl fmt::Display for CastNote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}: ", self.subject(), self.from, self.to)?;
        f.write_str(&self.first_homes())?;
        if self.is_cancelled() {
            f.write_str("cancelled")?;
        }
        if self.dropped {
            f.write_str("dropped, held in f32 within its kernel")?;
        }
        match self.first_sharers() {
            none if none.is_empty() => {}
            some => write!(f, ", shared with {some}")?,
        }
        write!(f, "; moves {} of {} bytes", self.moved, self.bytes)
    }
}
