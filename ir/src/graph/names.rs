//! [`Names`]: what the text of a graph calls its values, and how a [`Name`] is written.

use crate::graph::{Graph, NodeId, Port, ValueId};
use std::fmt::{self, Display, Formatter};

/// What the text of a graph calls its values.
pub struct Names<'a> {
    graph: &'a Graph,
    /// For each node its port, or the number of its first result.
    of: Vec<Result<&'a Port, usize>>,
}

impl<'a> Names<'a> {
    /// Of a graph.
    pub fn new(graph: &'a Graph) -> Self {
        let mut of = vec![Err(0); graph.len()];
        for port in graph.ports() {
            of[port.node.index()] = Ok(port);
        }
        let mut next = 0;
        for id in graph.nodes() {
            if let Err(first) = &mut of[id.index()] {
                *first = next;
                next += graph.node(id).results.len();
            }
        }
        Names { graph, of }
    }

    /// A value: `%weight` for a port, `%3` for the fourth result of the nodes.
    pub fn value(&self, value: ValueId) -> impl Display + use<'a> {
        ValueName(match self.of[value.node.index()] {
            Ok(port) => Ok(&port.name),
            Err(first) => Err(first + usize::from(value.result)),
        })
    }

    /// The first result of a node.
    pub fn node(&self, node: NodeId) -> impl Display + use<'a> {
        self.value(ValueId { node, result: 0 })
    }

    /// True for a port, which no line of the text defines.
    pub(crate) fn is_port(&self, node: NodeId) -> bool {
        self.of[node.index()].is_ok()
    }

    /// The results of a node.
    pub(crate) fn results(&self, id: NodeId) -> impl Iterator<Item = impl Display + use<'a>> {
        (0..self.graph.node(id).results.len() as u16)
            .map(move |result| self.value(ValueId { node: id, result }))
    }
}

struct ValueName<'a>(Result<&'a String, usize>);

impl Display for ValueName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(name) => write!(f, "%{}", Name(name)),
            Err(number) => write!(f, "%{number}"),
        }
    }
}

/// A name of a graph, kernel or value as it is written: plain if it reads back as a word, else in
/// quotes.
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if word && self.0.chars().all(in_word) {
            f.write_str(self.0)
        } else {
            write!(f, "{:?}", self.0)
        }
    }
}

/// True for what may stand inside a word.
pub(crate) fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}
