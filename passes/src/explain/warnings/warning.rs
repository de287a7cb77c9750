//! [`Warning`]: something odd that is no error, and its kind.

use std::fmt;
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId};

/// What is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WarningKind {
    /// A loss is rounded to 16 bits.
    LowLoss,
    /// A long sum is rounded to 16 bits.
    LowReduction,
    /// A loss with axes stays f16 when it is scaled.
    ScaledLoss,
    /// A small number that guards a division or a logarithm vanishes in its dtype.
    TinyNumber,
    /// Integers, such as positions, beyond those that their dtype holds exactly.
    InexactIntegers,
    /// A parameter that the loss does not depend on.
    NoGradient,
    /// Operands of a loss that broadcast each other, `[n, 1]` against `[n]`.
    CrossedLoss,
    /// A region that is on for devices where nothing in it lives.
    IdleRegion,
    /// A rule of the policy set that decides nothing.
    IdleRule,
    /// Something that tracing noticed, such as a region that had to be switched off.
    Tracing,
}

impl WarningKind {
    /// Every kind, in the order of declaration.
    pub const ALL: [WarningKind; 10] = [
        WarningKind::LowLoss,
        WarningKind::LowReduction,
        WarningKind::ScaledLoss,
        WarningKind::TinyNumber,
        WarningKind::InexactIntegers,
        WarningKind::NoGradient,
        WarningKind::CrossedLoss,
        WarningKind::IdleRegion,
        WarningKind::IdleRule,
        WarningKind::Tracing,
    ];

    /// The name used in texts.
    pub const fn name(self) -> &'static str {
        match self {
            WarningKind::LowLoss => "low-loss",
            WarningKind::LowReduction => "low-reduction",
            WarningKind::ScaledLoss => "scaled-loss",
            WarningKind::TinyNumber => "tiny-number",
            WarningKind::InexactIntegers => "inexact-integers",
            WarningKind::NoGradient => "no-gradient",
            WarningKind::CrossedLoss => "crossed-loss",
            WarningKind::IdleRegion => "idle-region",
            WarningKind::IdleRule => "idle-rule",
            WarningKind::Tracing => "tracing",
        }
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something odd that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What is odd.
    pub kind: WarningKind,
    /// The node of the traced program that it is about, if it is about one.
    pub node: Option<NodeId>,
    /// What the text of the program calls that node, and its op, such as `%3 mse_loss`; empty if it
    /// is about none.
    pub subject: String,
    /// The line that recorded it; empty if not known.
    pub source: String,
    /// What is the case.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

impl Warning {
    /// A warning about the program as a whole.
    pub fn new(kind: WarningKind, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Warning {
            kind,
            node: None,
            subject: String::new(),
            source: String::new(),
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// What tracing noticed.
    pub fn of_tracing(message: impl Into<String>) -> Self {
        Warning::new(WarningKind::Tracing, message, "")
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject.is_empty() {
            write!(f, "{}", self.subject)?;
            if !self.source.is_empty() {
                write!(f, " ({})", self.source)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        write!(f, " [{}]", self.kind)
    }
}

/// What has been found, and where to look.
pub(super) struct Warnings<'a> {
    pub(super) traced: &'a Graph,
    pub(super) cast: &'a Graph,
    pub(super) names: Names<'a>,
    pub(super) found: Vec<Warning>,
}

impl Warnings<'_> {
    /// Adds a warning about a node of the traced program.
    pub(super) fn about(&mut self, kind: WarningKind, node: NodeId, message: String, advice: &str) {
        let recorded = self.traced.node(node);
        let subject = match (self.traced.port_of(node), recorded.part_of) {
            (Some(_), _) => self.names.node(node).to_string(),
            (None, Some(op)) => {
                format!("{} {} of {op}", self.names.node(node), recorded.op.name())
            }
            (None, None) => format!("{} {}", self.names.node(node), recorded.op.name()),
        };
        let source = recorded.source.to_string();
        self.found.push(Warning {
            node: Some(node),
            subject,
            source,
            ..Warning::new(kind, message, advice)
        });
    }

    /// Adds a warning about a node of the program with casts.
    pub(super) fn about_cast(
        &mut self,
        kind: WarningKind,
        node: NodeId,
        message: String,
        advice: &str,
    ) {
        if let Some(traced) = self.cast.node(node).origin.node {
            self.about(kind, traced, message, advice);
        }
    }
}
