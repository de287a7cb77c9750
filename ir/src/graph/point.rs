//! [`Point`]: one change of dtype that a program asks for, with the reason; and how a node knows
//! which points it stands for.
//!
//! Passes move casts, share them, cancel them. So that every cast of the last program can still be
//! explained, each carries the numbers of the points it stands for. A cast that a retrace records
//! again keeps its points; one that replaces several has those of all; one that appears for the
//! first time makes a new point, for the reason that the pass has [given](crate::Tracer::because). A point
//! that no cast of a program stands for any longer has been cancelled.

use crate::graph::{Graph, NodeId};
use crate::op::OpName;
use crate::{DType, Size};
use smallvec::SmallVec;

/// The number of a point: an index into [`Graph::points`].
pub type PointId = u32;

/// Why a dtype changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The program says so.
    Written,
    /// An autocast policy casts this operand.
    Policy {
        /// Its number among the flat operands.
        operand: u16,
    },
    /// The operands of an op are of different dtypes.
    Promotion,
    /// An op computes in another dtype than it is given, or rounds what it has computed.
    Inside(OpName),
    /// A gradient takes the dtype of what it is the gradient of.
    Gradient,
    /// A rewrite put it where it costs less.
    Rewrite,
}

/// One change of dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Why.
    pub reason: Reason,
    /// The node of the traced program for whose sake.
    pub node: NodeId,
    /// True if it is part of that node's gradient.
    pub backward: bool,
    /// The dtype before.
    pub from: DType,
    /// The dtype after.
    pub to: DType,
    /// The number of elements.
    pub numel: Size,
}

/// Which part of the traced program a node stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The node of the traced program; `None` within it.
    pub node: Option<NodeId>,
    /// True if it is part of that node's gradient.
    pub backward: bool,
    /// The nodes of the program last verified that it was recorded for, by which the verifier knows
    /// what of them is still there.
    pub stands_for: SmallVec<[NodeId; 2]>,
    /// What a `cast` or `round_to` stands for; empty for other ops.
    pub points: SmallVec<[PointId; 2]>,
}

impl Graph {
    /// Every change of dtype that it, or the programs it was made from, asked for.
    pub fn points(&self) -> &[Point] {
        &self.points
    }
}
