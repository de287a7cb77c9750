//! The textual form of programs: [`Graph`]'s `Display` writes it, [`parse`] reads it. `docs/ir.md`
//! tells the grammar.
//!
//! The parser records with a [`Tracer`](crate::Tracer), so it cannot build what tracing cannot.
//! What it reads back prints the same: `print(parse(print(g))) == print(g)`. Autocast decisions are
//! not in the text; the regions are, and reading under the same policies decides the same again.
//! Kernels are only printed: `fuse` makes them.
//!
//! ```
//! let text = "
//! graph @head(%x: f32[8, 4], %w: f32[4] param) {
//!   %0 = mul %x, %w : f32[8, 4]   ; the written type is checked
//!   return y = %0
//! }";
//! let graph = tracecast_ir::text::parse(text).unwrap();
//! let again = tracecast_ir::text::parse(&graph.to_string()).unwrap();
//! assert_eq!(again.to_string(), graph.to_string());
//! ```

mod code;
mod cursor;
mod devices;
mod kernel;
mod lexer;
mod literal;
mod nearest;
mod parser;
mod printer;
mod record;
mod scalar;
mod size;
#[cfg(test)]
mod tests;
mod under;

pub(crate) use code::Code;
pub use literal::Name;
pub use nearest::did_you_mean;
pub(crate) use printer::commas;
pub use printer::{Names, Printer};
pub use scalar::{Loops, ScalarText};
pub use under::parse_under;

use crate::op::OpRef;
use crate::policy::{DeviceType, PolicySet, Region, Site};
use crate::{Graph, ParseError};
use std::sync::Arc;

/// The version of the text, after the word `tracecast` on the first line.
pub const VERSION: u32 = 1;

/// Under which circumstances a text is recorded.
#[derive(Clone, Debug, Default)]
pub struct ParseOptions {
    /// What decides about casts in regions. Default: the standard policies.
    pub policies: Arc<PolicySet>,
    /// Ops besides those of the table; of two with one name these win.
    pub ops: Vec<OpRef>,
    /// Records as a pass does ([`Tracer::explicit`](crate::Tracer::explicit)): no decisions; casts
    /// and expansions that an op asks for become nodes.
    pub explicit: bool,
    /// If set, a line without `at` comes from this file and its line there; else from nowhere.
    pub file: Option<String>,
    /// Where ports live that name no device. Default: the CPU.
    pub device: Site,
    /// What devices from outside are called here. A text may use these names, and one that has
    /// names for types at its head (`device npu = privateuse1`) means the devices of these names,
    /// whatever types they have here.
    pub devices: Vec<DeviceKind>,
}

/// What devices from outside are called, and which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// The name of the kind.
    pub name: String,
    /// The type by which graphs and policies know it.
    pub device_type: DeviceType,
    /// The numbers of its devices: a text names no other. `None` if nobody knows them.
    pub ordinals: Option<Vec<u16>>,
}

/// A whole file: commands of a test, and any number of graphs.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// What follows `test` on lines that begin with this word.
    pub commands: Vec<String>,
    /// In order.
    pub graphs: Vec<Graph>,
}

/// Reads one graph under the standard policies.
///
/// # Errors
/// Where and why the text is not a graph.
pub fn parse(text: &str) -> Result<Graph, ParseError> {
    parse_with(text, &ParseOptions::default())
}

/// Reads one graph.
///
/// # Errors
/// Where and why the text is not a graph, or has none or several.
pub fn parse_with(text: &str, options: &ParseOptions) -> Result<Graph, ParseError> {
    parser::one_graph(text, &Reading::as_written(options))
}

/// Reads a file of any number of graphs; regions hold for all of them.
///
/// # Errors
/// The first place that does not read, and why.
pub fn parse_file(text: &str, options: &ParseOptions) -> Result<File, ParseError> {
    parser::file(text, &Reading::as_written(options))
}

/// How the lines of a text are recorded.
struct Reading<'a> {
    options: &'a ParseOptions,
    /// The region of lines that name none, in a reading in which the ops give other types than
    /// those that are written.
    ambient: Option<&'a Region>,
}

impl<'a> Reading<'a> {
    /// Each line gives the types that are written.
    fn as_written(options: &'a ParseOptions) -> Self {
        Reading { options, ambient: None }
    }
}
