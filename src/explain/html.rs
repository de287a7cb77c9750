//! An [`Explanation`] as a page: one file that needs no network and runs no scripts.

use super::{CastNote, Explanation, OpNote, Width};
use std::collections::HashMap;
use std::fmt::{self, Write};

/// The explanations of programs as one page of HTML: each program with its precision marked line by
/// line, its ops, its casts with their homes, its warnings.
///
/// ```
/// use tracecast::explain::{explain, html};
/// use tracecast::prelude::*;
///
/// let graph = trace("sum", |t| {
///     let x = t.input_of("x", TensorType::new(DType::F32, [3]));
///     t.output("y", x + x);
/// })?;
/// let page = html(&[explain(&graph, &Options::new())?]);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("id=\"sum-0\""));
/// # Ok::<(), tracecast::Error>(())
/// ```
pub fn html(explained: &[Explanation]) -> String {
    let mut page = String::new();
    write(&mut page, explained).expect("writing to a string cannot fail");
    page
}

/// Colours for 16 bits, for wider floats, for what is odd; dark where the reader likes it dark.
const STYLE: &str = "
:root { color-scheme: light dark; --low: light-dark(#d6ecd9, #1f4028); --wide: light-dark(#fbe5cc, #4d3417);
  --odd: light-dark(#f9d5d5, #552222); --line: light-dark(#ccc, #555); --faint: light-dark(#555, #aaa); }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-top: 2.5rem; } h2 { font-size: 1.1rem; margin-top: 1.8rem; }
pre, code, td.m { font: 13px/1.5 ui-monospace, monospace; } pre { overflow-x: auto; border: 1px solid var(--line); padding: .6rem; }
pre a { color: inherit; text-decoration: none; display: block; } pre a:hover { outline: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; } td, th { padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } td.n { text-align: right; }
.low { background: var(--low); } .wide { background: var(--wide); } .odd { background: var(--odd); }
.key span { padding: .1rem .5rem; margin-right: .6rem; } .faint { color: var(--faint); } ul { padding-left: 1.2rem; }
li.odd { padding: .3rem .6rem; margin: .3rem 0; list-style: none; } tr:target { outline: 2px solid var(--line); }
";

fn write(out: &mut String, explained: &[Explanation]) -> fmt::Result {
    let names: Vec<String> = explained.iter().map(|e| format!("@{}", e.program)).collect();
    let title = format!("Precision of {}", names.join(", "));
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n",
        Text(&title)
    )?;
    for (number, explained) in explained.iter().enumerate() {
        program(out, explained, number)?;
    }
    out.write_str("</html>\n")
}

fn program(out: &mut String, explained: &Explanation, number: usize) -> fmt::Result {
    writeln!(out, "<section id=\"{}-{number}\">", Text(&explained.program))?;
    writeln!(out, "<h1>@{}</h1>", Text(&explained.program))?;
    summary(out, explained)?;
    if !explained.warnings.is_empty() {
        out.write_str("<h2>Warnings</h2>\n<ul>\n")?;
        for warning in &explained.warnings {
            writeln!(out, "<li class=\"odd\">{}</li>", Text(&warning.to_string()))?;
        }
        out.write_str("</ul>\n")?;
    }
    out.write_str("<h2>Program</h2>\n")?;
    out.write_str(
        "<p class=\"key\"><span class=\"low\">16 bits</span><span class=\"wide\">f32 or f64 in a region that is on</span>\
         <span class=\"odd\">warning</span></p>\n",
    )?;
    listing(out, explained, number)?;
    out.write_str(
        "<h2>Ops</h2>\n<table>\n<tr><th>value<th>op<th>type<th>precision<th>rule<th>where\n",
    )?;
    for op in &explained.ops {
        op_row(out, explained, op, number)?;
    }
    out.write_str("</table>\n")?;
    if !explained.casts.is_empty() {
        out.write_str(
            "<h2>Casts</h2>\n<table>\n<tr><th>for<th>what<th>cast<th>home<th>rule<th>bytes moved<th>bytes alone\n",
        )?;
        for cast in &explained.casts {
            cast_row(out, cast, number)?;
        }
        out.write_str("</table>\n")?;
    }
    out.write_str("<h3>Kernels</h3>\n<ul class=\"faint\">\n")?;
    for kernel in &explained.kernels {
        writeln!(out, "<li>{}</li>", Text(&kernel.to_string()))?;
    }
    out.write_str("</ul>\n<h3>In memory</h3>\n<ul class=\"faint\">\n")?;
    for note in &explained.memory {
        writeln!(out, "<li>{}</li>", Text(&note.to_string()))?;
    }
    if let Some(note) = &explained.peak {
        writeln!(out, "<li>most in memory: {}</li>", Text(&note.to_string()))?;
    }
    for note in &explained.again {
        writeln!(out, "<li>rematerialised: {}</li>", Text(&note.to_string()))?;
    }
    for note in &explained.checkpoints {
        writeln!(out, "<li>checkpoint region: {}</li>", Text(&note.to_string()))?;
    }
    out.write_str("</ul>\n</section>\n")
}

fn summary(out: &mut String, explained: &Explanation) -> fmt::Result {
    let wide = explained.wide().count();
    let low = explained.ops.iter().filter(|op| matches!(op.width, Width::Low(_))).count();
    writeln!(
        out,
        "<p>{} ops, {low} in 16 bits, {wide} wide inside regions. {} casts, {} stand-alone; {} bytes are moved for them in a run. \
         {} kernels.</p>",
        explained.ops.len(),
        explained.casts.len(),
        explained.standalone().count(),
        explained.moved,
        explained.kernels.len()
    )?;
    out.write_str("<ul class=\"faint\">\n")?;
    for policy in &explained.policies {
        writeln!(out, "<li>{}</li>", Text(policy))?;
    }
    for (number, region) in explained.regions.iter().enumerate().skip(1) {
        writeln!(out, "<li>region #{number}: <code>{}</code></li>", Text(region))?;
    }
    out.write_str("</ul>\n")
}

/// The text of the program, each line of an op marked and linked to its row.
fn listing(out: &mut String, explained: &Explanation, number: usize) -> fmt::Result {
    out.write_str("<pre>")?;
    let ops: HashMap<&str, &OpNote> =
        explained.ops.iter().map(|op| (op.value.as_str(), op)).collect();
    for line in explained.text.lines() {
        let value = line.trim_start().split([' ', ',']).next().unwrap_or_default();
        let is_op = line.starts_with("  %");
        match ops.get(value).filter(|_| is_op) {
            Some(op) => {
                let class = class(explained, op);
                write!(
                    out,
                    "<a class=\"{class}\" href=\"#{}\">{}</a>",
                    id(op, number),
                    Text(line)
                )?;
            }
            None => writeln!(out, "{}", Text(line))?,
        }
    }
    out.write_str("</pre>\n")
}

/// How a line is marked.
fn class(explained: &Explanation, op: &OpNote) -> &'static str {
    if explained.warnings.iter().any(|warning| warning.node == Some(op.node)) {
        return "odd";
    }
    match op.width {
        Width::Low(_) => "low",
        Width::Wide(_) if op.is_on => "wide",
        _ => "",
    }
}

fn id(op: &OpNote, number: usize) -> String {
    format!("p{number}n{}", op.node.index())
}

fn op_row(out: &mut String, explained: &Explanation, op: &OpNote, number: usize) -> fmt::Result {
    let types: Vec<String> = op.results.iter().map(ToString::to_string).collect();
    let of = op.part_of.map(|op| format!(" of {op}")).unwrap_or_default();
    let rule = op.rule.as_ref().map(|rule| rule.as_str()).unwrap_or_default();
    let mut place = vec![op.source.clone(), op.scope.clone()];
    if op.region > 0 {
        place.push(format!("region #{}", op.region));
    }
    place.retain(|part| !part.is_empty());
    writeln!(
        out,
        "<tr id=\"{}\" class=\"{}\"><td class=\"m\">{}<td>{}<td class=\"m\">{}<td>{}<td class=\"m\">{}<td class=\"faint\">{}",
        id(op, number),
        class(explained, op),
        Text(&op.value),
        Text(&format!("{}{of}", op.op)),
        Text(&types.join(", ")),
        Text(&op.why.to_string()),
        Text(rule),
        Text(&place.join(", "))
    )
}

fn cast_row(out: &mut String, cast: &CastNote, number: usize) -> fmt::Result {
    let mut homes = cast.first_homes();
    if cast.is_cancelled() {
        homes += "cancelled";
    }
    if cast.dropped {
        homes += "dropped, held in f32 within its kernel";
    }
    match cast.first_sharers() {
        none if none.is_empty() => {}
        some => homes += &format!(", shared with {some}"),
    }
    let rule = match (&cast.rule, &cast.table) {
        (Some(rule), Some(table)) => format!("{rule} ({table})"),
        (Some(rule), None) => rule.to_string(),
        (None, _) => String::new(),
    };
    let odd = if cast.is_standalone() { "odd" } else { "" };
    writeln!(
        out,
        "<tr class=\"{odd}\"><td class=\"m\"><a href=\"#p{number}n{}\">{}</a><td class=\"m\">{}<td class=\"m\">{} → {}<td>{}\
         <td class=\"m\">{}<td class=\"n\">{}<td class=\"n\">{}",
        cast.node.index(),
        Text(&cast.value),
        Text(&cast.subject()),
        cast.from,
        cast.to,
        Text(&homes),
        Text(&rule),
        cast.moved,
        cast.bytes
    )
}

/// Text in a page.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
