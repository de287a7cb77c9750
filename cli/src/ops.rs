//! `tracecast ops`: the table of ops, or all about one of them.

use std::fmt::Write as _;
use std::io::Write;

use tracecast_ir::op::{Dispatch, OpDef, OperandKind};
use tracecast_ir::ops;
use tracecast_ir::policy::{DeviceType, Policy, PolicyTable};
use tracecast_ir::text::did_you_mean;

use crate::failure::Failure;

/// Lists the ops, or tells all about one of them
#[derive(clap::Args)]
pub(crate) struct Ops {
    /// The op to tell about
    name: Option<String>,
}

impl Ops {
    /// Writes the table or the page.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<(), Failure> {
        match &self.name {
            None => table(out),
            Some(name) => {
                let op = ops::find(name).ok_or_else(|| unknown(name))?;
                page(out, op)
            }
        }
    }
}

fn unknown(name: &str) -> Failure {
    let hint = match did_you_mean(name, ops::all().map(|op| op.name.text())) {
        none if none.is_empty() => "; `tracecast ops` lists them all".to_owned(),
        names => names,
    };
    Failure::Usage(format!("there is no op `{name}`{hint}"))
}

fn table(out: &mut impl Write) -> Result<(), Failure> {
    for (number, family) in ops::families().into_iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", family.name)?;
        for op in family.ops {
            writeln!(out, "  {}", signature(op))?;
            writeln!(out, "      {}", plain(&first_sentence(op.doc)))?;
        }
    }
    Ok(())
}

fn page(out: &mut impl Write, op: &OpDef) -> Result<(), Failure> {
    writeln!(out, "{}\n", signature(op))?;
    for line in op.doc.lines() {
        writeln!(out, "{}", plain(line.strip_prefix(' ').unwrap_or(line).trim_end()))?;
    }
    let dtypes: Vec<_> = op.domain.dtypes.iter().map(|dtype| dtype.name()).collect();
    if !dtypes.is_empty() {
        writeln!(out, "\ndtypes: {}", dtypes.join(", "))?;
    }
    writeln!(out, "rounds: {}", op.rounding)?;
    for (device, policy) in policies(op) {
        writeln!(out, "autocast on {device}: {policy}")?;
    }
    match &op.dispatch {
        Dispatch::Internal => writeln!(out, "autocast: no policy is asked about it")?,
        Dispatch::Expands => writeln!(out, "autocast: policies meet its parts in its place")?,
        Dispatch::Declares(policy) => {
            writeln!(out, "autocast: {policy}, which it declares itself")?
        }
        Dispatch::Listed { .. } | Dispatch::ListedOrExpands { .. } => {}
    }
    Ok(())
}

/// What the tables of the device types say about an op; nothing about an op that autocast never
/// meets.
fn policies(op: &OpDef) -> Vec<(DeviceType, String)> {
    let (Dispatch::Listed { overload } | Dispatch::ListedOrExpands { overload }) = op.dispatch
    else {
        return Vec::new();
    };
    PolicyTable::standard()
        .iter()
        .map(|table| {
            let listed = table.get(op.name.text(), overload);
            (
                table.device(),
                listed.map_or(Policy::Fallthrough.to_string(), |(policy, _)| policy.to_string()),
            )
        })
        .collect()
}

/// Operands, attributes and results: `linear(input, weight, bias?) -> out`.
fn signature(op: &OpDef) -> String {
    let operands = op.schema.operands.iter().map(|operand| match operand.kind {
        OperandKind::One => operand.name.to_owned(),
        OperandKind::Optional => format!("{}?", operand.name),
        OperandKind::List => format!("[{}…]", operand.name),
    });
    let mut signature = format!("{}({})", op.name, operands.collect::<Vec<_>>().join(", "));
    let attrs = op.schema.attrs.iter().map(|attr| format!("{}: {}", attr.name, attr.kind));
    let attrs = attrs.collect::<Vec<_>>();
    if !attrs.is_empty() {
        write!(signature, " {{{}}}", attrs.join(", ")).expect("writing to a string cannot fail");
    }
    write!(signature, " -> {}", op.schema.results.join(", "))
        .expect("writing to a string cannot fail");
    signature
}

/// A line of a documentation with links as a terminal shows them: the words, and behind them an
/// address of the web.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('[') {
        let (before, link) = rest.split_at(start);
        let Some(end) = link.find(']') else { break };
        let (words, behind) = (&link[1..end], &link[end + 1..]);
        let target = behind.strip_prefix('(').and_then(|to| to.split_once(')'));
        out += before;
        match target {
            Some((to, after)) if to.starts_with("http") => {
                out += &format!("{words} ({to})");
                rest = after;
            }
            Some((_, after)) => {
                out += words;
                rest = after;
            }
            // A shape, unless code stands in it.
            None if words.starts_with('`') && words.ends_with('`') => {
                out += words;
                rest = behind;
            }
            None => {
                out += &link[..=end];
                rest = behind;
            }
        }
    }
    out + rest
}

/// The first sentence of a documentation, on one line.
fn first_sentence(doc: &str) -> String {
    let paragraph: Vec<_> =
        doc.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = paragraph.join(" ");
    match text.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn links_are_plain() {
        let cases = [
            ("as [`Tensor.add`](https://a.b/c) does", "as `Tensor.add` (https://a.b/c) does"),
            ("see [`mul`](super::mul) and [`div`]", "see `mul` and `div`"),
            ("`x` is `[N, 3]`, or [a, b", "`x` is `[N, 3]`, or [a, b"),
        ];
        for (line, shown) in cases {
            assert_eq!(plain(line), shown);
        }
    }
}
