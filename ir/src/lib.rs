//! The language of tracecast: typed tensor programs, the ops they are made of, the kernels they
//! become, and what all of it means.
//!
//! A program is a [`Graph`]: a petgraph DAG of [`Node`]s that only ever grows. Everything that
//! builds one (user code, the text parser, every pass) records ops with a [`Tracer`]; a pass is a
//! [retrace](Graph::retrace). An op is one record, [`op::OpDef`], with one field per stage of the
//! pipeline. [`verify()`] is the only maker of [`Verified`]. A [`kernel::Kernel`] is what a device
//! compiles.
//!
//! This crate knows no pass, no device and no buffer.

mod bind_sizes;
pub mod dtype;
pub mod error;
pub mod eval;
pub mod functions;
pub mod graph;
pub mod hash;
pub mod kernel;
pub mod op;
pub mod ops;
pub mod policy;
mod retrace;
pub mod shape;
pub mod size;
pub mod tensor_type;
pub mod text;
pub mod tracer;
pub mod unknown;
pub mod verify;

pub use bind_sizes::SizeError;
pub use dtype::{Class, DType, Float, Storage, Top};
pub use error::{ParseError, PassError, TraceError, VerifyError, VerifyErrors};
pub use graph::attrs::{self, Attr, Attrs};
pub use graph::point::{self, Origin, Point, PointId, Reason};
pub use graph::query::Matched;
pub use graph::{Graph, Node, NodeId, Port, Role, Source, Use, ValueId};
pub use op::args::{
    self, Args, Dims, IntoAttr, IntoDims, IntoSize, IntoSizes, OperandOf, Results, given,
};
pub use op::{OpDef, OpName, OpRef};
pub use retrace::Mapping;
pub use shape::Shape;
pub use size::{Claim, Must, NamedSize, Number, Relation, Size, SizeGuard, Sizes, Values};
/// Results and gradients of ops are `SmallVec`s: `smallvec![Some(cx.dy() * 2.0)]`.
pub use smallvec::{SmallVec, smallvec};
pub use tensor_type::TensorType;
pub use text::{ParseOptions, Printer, parse};
pub use tracer::Tracer;
pub use tracer::var::{self, Var};
pub use verify::{Promise, Stage, Verified, compare, verify};
