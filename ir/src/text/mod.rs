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

mod cursor;
mod devices;
mod escape;
mod head;
mod kernel;
mod lexer;
mod literal;
mod nearest;
mod options;
mod parser;
mod printer;
mod record;
mod size;
#[cfg(test)]
mod tests;
mod under;

pub use nearest::did_you_mean;
pub use options::{DeviceKind, File, ParseOptions, VERSION};
pub use printer::Printer;
pub use under::parse_under;

pub use crate::graph::names::{Name, Names};
pub use crate::kernel::scalar_text::{Loops, ScalarText};

use crate::{Graph, ParseError};
use options::Reading;

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
