//! Programs as pictures: the Graphviz text of a graph.
//!
//! A node is a box with its op and attributes, a port an ellipse, a result a note; an edge carries
//! the type of the value. Dashed edges lead back to the state that they give its next value. The
//! names of sizes, and what the program needs of them, stand above.

use std::fmt::{self, Display, Formatter};

use tracecast_ir::{Graph, Role, ValueId};

/// Displays a graph in the language of Graphviz.
pub(crate) struct AsDot<'a>(pub(crate) &'a Graph);

impl Display for AsDot<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        writeln!(f, "digraph {} {{", quoted(graph.name()))?;
        writeln!(f, "  node [shape=box, fontname=\"monospace\"]")?;
        writeln!(f, "  edge [fontname=\"monospace\", fontsize=10]")?;
        let names = graph.sizes().names().iter().map(|size| format!("size {size}"));
        let guards = graph.sizes().guards().iter().map(|guard| format!("guard {guard}"));
        let above: Vec<String> = names.chain(guards).collect();
        if !above.is_empty() {
            writeln!(f, "  graph [labelloc=t, label={}]", quoted(&above.join("\n")))?;
        }
        for port in graph.ports() {
            let role = match port.role {
                Role::Input => "input",
                Role::Param => "param",
                Role::State => "state",
            };
            let label = quoted(&format!("{}\n{role} {}", port.name, port.ty));
            writeln!(f, "  n{} [shape=ellipse, label={label}]", port.node.index())?;
        }
        for id in graph.nodes().filter(|id| graph.port_of(*id).is_none()) {
            let node = graph.node(id);
            let mut label = node.op.name().to_string();
            if !node.attrs.is_empty() {
                label.push_str(&format!("\n{}", node.attrs));
            }
            if !node.scope.is_empty() {
                label.push_str(&format!("\nin {}", node.scope));
            }
            writeln!(f, "  n{} [label={}]", id.index(), quoted(&label))?;
            for value in graph.args(id) {
                self.edge(f, value, &format!("n{}", id.index()), "")?;
            }
        }
        for (number, (name, value)) in graph.outputs().iter().enumerate() {
            writeln!(f, "  r{number} [shape=note, label={}]", quoted(name))?;
            self.edge(f, *value, &format!("r{number}"), "")?;
        }
        for (port, value) in graph.updates() {
            let target = format!("n{}", graph.ports()[*port].node.index());
            self.edge(f, *value, &target, ", style=dashed, constraint=false")?;
        }
        writeln!(f, "}}")
    }
}

impl AsDot<'_> {
    fn edge(&self, f: &mut Formatter<'_>, value: ValueId, to: &str, style: &str) -> fmt::Result {
        let label = quoted(&self.0.ty(value).to_string());
        writeln!(f, "  n{} -> {to} [label={label}{style}]", value.node.index())
    }
}

/// A text in quotes. A backslash that Graphviz would read as an escape is doubled.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_an_edge() {
        let text = r#"graph @"a \"b\""(%x: f32[2], %w: f32[2] param) {
            %0 = mul %x, %w : f32[2] in "layer"
            %1 = add %0, %0 : f32[2]
            update %w = %1
            return y = %0
        }"#;
        let dot = AsDot(&tracecast_ir::parse(text).unwrap()).to_string();
        assert!(dot.starts_with("digraph \"a \\\"b\\\"\" {\n"), "{dot}");
        assert_eq!(dot.matches(" -> ").count(), 2 + 2 + 1 + 1, "{dot}");
        for expected in [
            r#"n1 [shape=ellipse, label="w\nparam f32[2]"]"#,
            r#"n2 [label="mul\nin layer"]"#,
            r#"n2 -> r0 [label="f32[2]"]"#,
            r#"n3 -> n1 [label="f32[2]", style=dashed, constraint=false]"#,
        ] {
            assert!(dot.contains(expected), "expected `{expected}` in: {dot}");
        }
    }

    #[test]
    fn names_of_sizes_stand_above() {
        let text = r#"
            size batch = 32 in 1..=64
            size length = 8
            guard length >= 4 of "slice" at "m.rs:7"

            graph @g(%x: f32[batch, length]) {
                %0 = neg %x : f32[batch, length]
                return y = %0
            }"#;
        let dot = AsDot(&tracecast_ir::parse(text).unwrap()).to_string();
        for expected in [
            r#"graph [labelloc=t, label="size batch = 32 in 1..=64\nsize length = 8\nguard length >= 4 of \"slice\" at \"m.rs:7\""]"#,
            r#"n1 -> r0 [label="f32[batch, length]"]"#,
        ] {
            assert!(dot.contains(expected), "expected `{expected}` in: {dot}");
        }
    }
}
