//! An [`Explanation`] as one object of JSON.

use super::{
    AgainNote, AwayNote, CastNote, CheckpointNote, Explanation, KernelCost, MadeCast, MemoryNote,
    OpNote, PeakNote, Warning, Width,
};
use std::fmt::{Display, Write};
use tracecast_ir::Reason;
use tracecast_ir::kernel::Cost;
use tracecast_passes::fuse::{self, Weighed};

/// The explanation as JSON, for programs that read it.
///
/// The fields are those of [`Explanation`], its notes and its warnings; what an enum of reasons
/// says is there twice, as a word in `why`, `reason` or `kind` and as the text that people read.
/// `casts` are what was asked for; each refers by number to the casts in `made`, which have the
/// homes and the points that they stand for.
///
/// ```
/// use tracecast::explain::{explain, json};
/// use tracecast::prelude::*;
///
/// let graph = trace("sum", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [3]));
///     t.output("y", x + x);
/// })?;
/// let text = json(&explain(&graph, &Options::new())?);
/// assert!(text.starts_with("{\"program\":\"sum\""));
/// # Ok::<(), tracecast::Error>(())
/// ```
pub fn json(explained: &Explanation) -> String {
    let mut object = Object::default();
    object
        .text("program", &explained.program)
        .list("policies", explained.policies.iter().map(|p| quoted(p)))
        .list("regions", explained.regions.iter().map(|r| quoted(r)))
        .number("kernels", explained.kernels.len())
        .number("moved_bytes", explained.moved)
        .number("standalone_casts", explained.standalone().count())
        .list("ops", explained.ops.iter().map(op))
        .list("casts", explained.casts.iter().map(cast))
        .list("made", explained.made().map(made))
        .list("costs", explained.kernels.iter().map(cost))
        .list("memory", explained.memory.iter().map(stored))
        .field("peak", &explained.peak.as_ref().map_or_else(|| "null".to_owned(), peak))
        .list("again", explained.again.iter().map(again))
        .list("checkpoints", explained.checkpoints.iter().map(checkpoint))
        .list("warnings", explained.warnings.iter().map(warning));
    if let Some(fallback) = &explained.fallback {
        object.text("fallback_device", &fallback.device);
        object.list("fallback", fallback.launches.iter().map(away));
    }
    object.finish()
}

fn away(note: &AwayNote) -> String {
    let mut object = Object::default();
    object.text("kernel", &note.kernel).number("bytes", note.bytes).text("reason", &note.reason);
    object.finish()
}

fn op(op: &OpNote) -> String {
    let mut object = Object::default();
    let width = match op.width {
        Width::Low(_) => "low",
        Width::Wide(_) => "wide",
        Width::NoFloat => "none",
    };
    object
        .number("node", op.node.index())
        .text("value", &op.value)
        .list("written", op.written.iter().map(|name| quoted(name)))
        .text("name", &op.name)
        .text("op", op.op)
        .maybe("part_of", op.part_of)
        .list("operands", op.operands.iter().map(|o| quoted(o)))
        .list("results", op.results.iter().map(|ty| quoted(&ty.to_string())))
        .text("width", width)
        .text("why", op.why.name())
        .text("because", op.why.to_string())
        .maybe("policy", op.policy.as_ref().map(|p| p.name()))
        .maybe("rule", op.rule.as_ref().map(|r| r.as_str()))
        .number("region", op.region as usize)
        .flag("autocast", op.is_on)
        .text("scope", &op.scope)
        .text("source", &op.source)
        .number("casts", op.casts);
    object.finish()
}

fn cost(kernel: &KernelCost) -> String {
    let Cost { read, written, flops } = kernel.cost;
    let mut object = Object::default();
    object
        .text("kernel", &kernel.name)
        .text("form", kernel.form)
        .number("read_bytes", read as usize)
        .number("written_bytes", written as usize)
        .number("flops", flops as usize);
    object.finish()
}

fn stored(note: &MemoryNote) -> String {
    let mut object = Object::default();
    object
        .number("node", note.node.index())
        .text("value", &note.value)
        .text("type", note.ty.to_string())
        .number("bytes", note.bytes)
        .text("kernel", &note.kernel)
        .list("readers", note.readers.iter().map(|kernel| quoted(kernel)))
        .text("why", note.why.name());
    priced(&mut object, note.cost.as_ref());
    object.finish()
}

fn peak(note: &PeakNote) -> String {
    let value = |(value, bytes): &(String, usize)| {
        let mut object = Object::default();
        object.text("value", value).number("bytes", *bytes);
        object.finish()
    };
    let mut object = Object::default();
    object
        .text("kernel", &note.kernel)
        .number("bytes", note.bytes)
        .number("recorded", note.recorded)
        .list("values", note.values.iter().map(value));
    object.finish()
}

fn again(note: &AgainNote) -> String {
    let mut object = Object::default();
    object
        .number("node", note.node.index())
        .text("value", &note.value)
        .list("kernels", note.kernels.iter().map(|kernel| quoted(kernel)));
    priced(&mut object, note.cost.as_ref());
    object.finish()
}

/// What storing and rematerialising cost, where fusion had a choice.
fn priced(object: &mut Object, cost: Option<&Weighed>) {
    let Some(cost) = cost else { return };
    let side = |cost: &fuse::Cost| {
        let mut side = Object::default();
        side.number("written_bytes", cost.written)
            .number("read_bytes", cost.read)
            .number("operations", cost.operations)
            .number("launches", cost.launches);
        side.finish()
    };
    object
        .field("stored", &side(&cost.stored))
        .field("rematerialised", &side(&cost.rematerialised));
}

fn checkpoint(note: &CheckpointNote) -> String {
    let mut object = Object::default();
    object
        .list("nodes", note.nodes.iter().map(|id| id.index().to_string()))
        .text("scope", &note.scope)
        .number("kept_bytes", note.kept)
        .number("bytes_without", note.without);
    object.finish()
}

fn cast(cast: &CastNote) -> String {
    let mut object = Object::default();
    let (reason, inside) = match cast.reason {
        Reason::Written => ("written", None),
        Reason::Policy { .. } => ("policy", None),
        Reason::Promotion => ("promotion", None),
        Reason::Inside(op) => ("inside", Some(op)),
        Reason::Gradient => ("gradient", None),
        Reason::Rewrite => ("rewrite", None),
    };
    object
        .number("point", cast.point as usize)
        .number("node", cast.node.index())
        .text("value", &cast.value)
        .maybe("operand", cast.operand.as_deref())
        .flag("backward", cast.backward)
        .text("reason", reason)
        .maybe("inside", inside)
        .maybe("rule", cast.rule.as_ref().map(|r| r.as_str()))
        .maybe("table", cast.table.as_deref())
        .number("region", cast.region as usize)
        .text("scope", &cast.scope)
        .text("source", &cast.source)
        .text("from", cast.from.name())
        .text("to", cast.to.name())
        .number("bytes", cast.bytes)
        .number("moved_bytes", cast.moved)
        .flag("dropped", cast.dropped)
        .list("made", cast.made.iter().map(|made| made.number.to_string()));
    object.finish()
}

fn made(cast: &MadeCast) -> String {
    let mut object = Object::default();
    let home = |home: &super::HomeNote| {
        let mut object = Object::default();
        object.text("home", home.home.name()).text("kernel", &home.kernel);
        object.finish()
    };
    object
        .number("number", cast.number)
        .number("moved_bytes", cast.moved)
        .list("homes", cast.homes.iter().map(home))
        .list("points", cast.points.iter().map(ToString::to_string));
    object.finish()
}

fn warning(warning: &Warning) -> String {
    let mut object = Object::default();
    object.text("kind", warning.kind.name());
    if let Some(node) = warning.node {
        object.number("node", node.index());
    }
    object
        .text("subject", &warning.subject)
        .text("source", &warning.source)
        .text("message", &warning.message)
        .text("advice", &warning.advice);
    object.finish()
}

/// An object that is being written.
#[derive(Default)]
struct Object(String);

impl Object {
    fn field(&mut self, name: &str, value: &str) -> &mut Self {
        let separator = if self.0.is_empty() { '{' } else { ',' };
        self.0.push(separator);
        self.0 += &format!("\"{name}\":{value}");
        self
    }

    fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.field(name, &quoted(&value.to_string()))
    }

    /// `null` for nothing.
    fn maybe(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        let value = value.map_or_else(|| "null".to_owned(), |value| quoted(&value.to_string()));
        self.field(name, &value)
    }

    fn number(&mut self, name: &str, value: usize) -> &mut Self {
        self.field(name, &value.to_string())
    }

    fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        self.field(name, if value { "true" } else { "false" })
    }

    fn list(&mut self, name: &str, items: impl Iterator<Item = String>) -> &mut Self {
        let items: Vec<String> = items.collect();
        self.field(name, &format!("[{}]", items.join(",")))
    }

    fn finish(self) -> String {
        if self.0.is_empty() { "{}".to_owned() } else { self.0 + "}" }
    }
}

/// A string of JSON (RFC 8259, section 7), without characters that a terminal would obey.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn strings_read_back() {
        for text in ["", "a\"b\\c", "line\nnext\ttab", "\u{1}\u{1f}\u{7f}\u{9b}\u{202e}é😀"] {
            let back: String = serde_json::from_str(&quoted(text)).unwrap();
            assert_eq!(back, text);
            assert!(!quoted(text).contains(char::is_control));
        }
    }
}
