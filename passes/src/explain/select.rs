//! Limiting an explanation to one node.

use super::Explanation;
use tracecast_ir::text::did_you_mean;

/// No node has the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "@{program} has no node `{name}`{hint}; nodes are named by value (`%3`, `%weight`) or by path (`encoder.0/linear#0`)"
)]
pub struct UnknownNode {
    /// The program.
    pub program: String,
    /// What was asked for.
    pub name: String,
    /// Names that are close, as the end of a sentence.
    pub hint: String,
}

impl Explanation {
    /// What concerns one node: a value such as `%3` or `3`, or `%hidden` as the text that was read
    /// calls it, a name such as `encoder.0/linear#0` (at the top also `linear#0`), or a port such
    /// as `%weight`, which stands for the casts of it.
    ///
    /// # Errors
    /// If the program has no such node.
    pub fn about(&self, name: &str) -> Result<Explanation, UnknownNode> {
        let bare = name.trim_start_matches('%');
        let quoted = format!("%\"{bare}\"");
        let is_quoted = self.ports.iter().any(|(port, _)| *port == quoted);
        let value = if is_quoted { quoted } else { format!("%{bare}") };
        let path = if name.contains('/') { name.to_owned() } else { format!("/{name}") };
        let mut about = Explanation { about: Some(name.to_owned()), ..self.clone() };
        about.kernels.clear();
        (about.peak, about.fallback) = (None, None);
        about.ops.retain(|op| op.has_value(&value) || op.name == path);
        if let Some(op) = about.ops.first() {
            let node = op.node;
            about.casts.retain(|cast| cast.node == node);
            about.memory.retain(|note| note.node == node);
            about.again.retain(|note| note.node == node);
            about.checkpoints.retain(|note| note.nodes.contains(&node));
            about.warnings.retain(|warning| warning.node == Some(node));
        } else if let Some((_, node)) = self.ports.iter().find(|(port, _)| *port == value) {
            about.casts.retain(|cast| cast.operand.as_ref() == Some(&value));
            about.memory.clear();
            about.again.clear();
            about.checkpoints.clear();
            about.ops.extend(self.ops.iter().filter(|op| op.operands.contains(&value)).cloned());
            about.warnings.retain(|warning| warning.node == Some(*node));
        } else {
            return Err(self.unknown(name));
        }
        Ok(about)
    }

    fn unknown(&self, name: &str) -> UnknownNode {
        let names = self.ops.iter().map(|op| op.name.trim_start_matches('/'));
        let ports = self.ports.iter().map(|(port, _)| port.trim_matches(['%', '"']));
        let written = self.ops.iter().flat_map(|op| &op.written).map(|name| &name[1..]);
        let known = names.chain(ports).chain(written);
        UnknownNode {
            program: self.program.clone(),
            name: name.to_owned(),
            hint: did_you_mean(name.trim_start_matches('%'), known),
        }
    }
}
