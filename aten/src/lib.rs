//! PyTorch's ATen operators as calls of the tracer: one table, an entry per overload.
//!
//! An [`Overload`] is PyTorch's own schema and a function that records it. [`find`] also answers
//! for in-place and `out` overloads, which are the functional overload and a write; [`Memory`]
//! turns writes to tensors and their views into new values.
//!
//! ```
//! use tracecast_aten::{Argument, Draws, find};
//! use tracecast_ir::{DType, TensorType, Tracer};
//!
//! let t = Tracer::new("sum");
//! let x = t.input("x", TensorType::new(DType::F32, [2, 3]));
//! let sum = find("sum.dim_IntList").expect("in the table");
//! let given = [(Some("self"), Argument::Tensor(x)), (Some("dim"), Argument::Int(1))];
//! let recorded = sum.record(&t, &given, &Draws::none()).expect("fits the schema");
//! assert_eq!(recorded.tensors()[0].ty().to_string(), "f32[2]");
//! ```

mod argument;
mod call;
mod memory;
mod program;
mod schema;
mod table;

pub use argument::Argument;
pub use call::{Bound, Given, Operator, Recorded, find};
pub use memory::{Held, Memory};
pub use program::{Program, Scene, dtype, expression};
pub use schema::{Parameter, Schema};
pub use table::{Draws, Overload, overloads};
