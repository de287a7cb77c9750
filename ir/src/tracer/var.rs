//! [`Var`]: a handle to one value of a program being recorded.

use crate::args::Results;
use crate::graph::{NodeId, ValueId};
use crate::tracer::Tracer;
use crate::{DType, Shape, Size, TensorType, unknown};
use smallvec::SmallVec;
use std::fmt;

/// One value of a program being recorded: a copyable handle that cannot outlive its tracer.
#[derive(Clone, Copy)]
pub struct Var<'t> {
    pub(crate) tracer: &'t Tracer,
    pub(crate) id: ValueId,
}

/// Stands for the result of an op that failed.
const POISON: u32 = u32::MAX;

impl<'t> Var<'t> {
    /// The value that stands for the result of an op that failed.
    pub(crate) fn poison(tracer: &'t Tracer) -> Self {
        Var { tracer, id: ValueId { node: NodeId::from(POISON), result: 0 } }
    }

    /// The tracer that recorded it.
    pub fn tracer(self) -> &'t Tracer {
        self.tracer
    }

    /// Its number.
    pub fn id(self) -> ValueId {
        self.id
    }

    /// True if it stands for the result of an op that failed.
    pub fn is_poison(self) -> bool {
        self.id.node.index() == POISON as usize
    }

    /// Its type; f32 and a shape of [unknown](Size::UNKNOWN) sizes for the result of an op that
    /// failed, unless the recording [ends](crate::unknown::guarded) there.
    #[track_caller]
    pub fn ty(self) -> TensorType {
        if self.is_poison() {
            unknown::asked();
            return TensorType { dtype: DType::F32, shape: Shape::unknown() };
        }
        self.tracer.with_graph(|g| g.ty(self.id).clone())
    }

    /// Its dtype.
    #[track_caller]
    pub fn dtype(self) -> DType {
        if self.is_poison() {
            unknown::asked();
            return DType::F32;
        }
        self.tracer.with_graph(|g| g.ty(self.id).dtype)
    }

    /// Its shape.
    #[track_caller]
    pub fn shape(self) -> Shape {
        self.ty().shape
    }

    /// The number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.ty().shape.rank()
    }

    /// The size of an axis; 1 beyond the last one. That of the result of a failed op is
    /// [unknown](Size::UNKNOWN), and only code that decides by it ends.
    pub fn size(self, axis: usize) -> Size {
        if self.is_poison() {
            return Size::UNKNOWN;
        }
        self.shape().get(axis).copied().unwrap_or(Size::from(1))
    }

    /// The other results of the op that made it.
    pub fn results(self) -> Results<'t> {
        if self.is_poison() {
            return SmallVec::from_elem(self, 1);
        }
        let node = self.id.node;
        let count = self.tracer.with_graph(|g| g.node(node).results.len());
        (0..count as u16)
            .map(|result| Var { tracer: self.tracer, id: ValueId { node, result } })
            .collect()
    }

    /// Another result of the op that made it; the value of a failed op if there is none such.
    #[track_caller]
    pub fn result(self, i: usize) -> Var<'t> {
        match self.results().get(i) {
            Some(result) => *result,
            None if self.is_poison() => self,
            None => self.tracer.fail(
                "result",
                format!("there is no result {i}: the op has {}", self.results().len()),
            ),
        }
    }
}

impl fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}.{}: {}", self.id.node.index(), self.id.result, self.ty())
    }
}
