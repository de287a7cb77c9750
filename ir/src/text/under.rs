//! [`parse_under`]: a program recorded under other circumstances than those it was written for.

use super::options::{File, ParseOptions, Reading};
use super::parser;
use crate::ParseError;
use crate::policy::{PolicySet, Region};

/// Reads a file and records each graph as user code would be traced in the region `ambient`, under
/// `options.policies`.
///
/// Lines that name a region lie in that one, all others in `ambient`, whose casts have a cache
/// scope of their own. The written types must be those that follow without `ambient`, under the
/// same policies or under the standard ones; the graphs have those that follow here. An op that is
/// expanded before policies see it is expanded here, so its parts have the dtypes of this region.
///
/// ```
/// use tracecast_ir::text::{ParseOptions, parse_under};
///
/// let text = "graph @g(%x: f32[2, 2]) { %0 = matmul %x, %x : f32[2, 2] return y = %0 }";
/// let bf16 = "{cpu: bf16} cache on scope 0".parse().unwrap();
/// let file = parse_under(text, &ParseOptions::default(), &bf16).unwrap();
/// assert!(file.graphs[0].to_string().contains("matmul %x, %x : bf16[2, 2] @#1"));
/// ```
///
/// # Errors
/// The first place that does not read as it is written; or that does not record here, and why.
pub fn parse_under(
    text: &str,
    options: &ParseOptions,
    ambient: &Region,
) -> Result<File, ParseError> {
    let written = written(text, options)?;
    if written.holds && *ambient == Region::default() {
        return Ok(written.file);
    }
    let regions = written.file.graphs.iter().flat_map(|graph| graph.regions());
    let last = regions.map(Region::scope).max().unwrap_or_default();
    let ambient = match *ambient == Region::default() {
        true => Region::default(),
        false => ambient.clone().with_scope(last.saturating_add(1)),
    };
    parser::file(text, &Reading { options, ambient: Some(&ambient) })
}

/// A file whose types are right.
struct Written {
    file: File,
    /// True if they are right under the policies asked for.
    holds: bool,
}

/// Reads a text as it is written, for these policies or for the standard ones.
fn written(text: &str, options: &ParseOptions) -> Result<Written, ParseError> {
    let own = match parser::file(text, &Reading::as_written(options)) {
        Ok(file) => return Ok(Written { file, holds: true }),
        Err(error) => error,
    };
    if *options.policies == PolicySet::standard() {
        return Err(own);
    }
    let options = ParseOptions { policies: PolicySet::standard().into(), ..options.clone() };
    match parser::file(text, &Reading::as_written(&options)) {
        Ok(file) => Ok(Written { file, holds: false }),
        // The reading that got further is the one the text was written for.
        Err(standard) if place(&standard) > place(&own) => Err(standard),
        Err(_) => Err(own),
    }
}

fn place(error: &ParseError) -> (usize, usize) {
    (error.line, error.column)
}
