//! Any bytes as the text of programs: an error at a place of the text, or graphs that print and
//! read back to the same, under autocast too, and whose kernels print.

use tracecast_ir::policy::{DeviceType, Region};
use tracecast_ir::text::{ParseOptions, parse, parse_file, parse_under, parse_with};
use tracecast_ir::{DType, Graph, ParseError};
use tracecast_passes::{PassOptions, standard};

/// Programs of more nodes are not compiled: what they would show, shorter ones show.
const MOST_NODES: usize = 200;

/// Tries it.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let options = ParseOptions { file: Some("fuzz.tc".to_owned()), ..ParseOptions::default() };
    for result in [parse_file(&text, &options).err(), parse_with(&text, &options).err()] {
        result.iter().for_each(|error| is_placed(&text, error));
    }
    let explicit = ParseOptions { explicit: true, ..ParseOptions::default() };
    if let Ok(graph) = parse_with(&text, &explicit) {
        graph.to_string();
    }
    let Ok(graph) = parse(&text) else { return };
    reads_back(&graph);
    let (region, _) = Region::default()
        .enter(DeviceType::Cpu, Some(DType::BF16), true, None)
        .expect("the cpu takes bf16");
    match parse_under(&text, &options, &region) {
        Ok(file) => file.graphs.iter().for_each(reads_back),
        Err(error) => is_placed(&text, &error),
    }
    if graph.nodes().count() < MOST_NODES
        && let Ok(kernels) = standard(&PassOptions::default()).run(graph, |_, _, _| ())
    {
        kernels.to_string();
    }
}

/// Fails if an error is not at a place of the text, or says nothing.
fn is_placed(text: &str, error: &ParseError) {
    // A carriage return belongs to its line.
    let line = error.line.checked_sub(1).and_then(|n| text.split('\n').nth(n)).unwrap_or_default();
    let inside = error.line <= text.lines().count().max(1) + 1
        && (1..=line.chars().count() + 1).contains(&error.column)
        && error.length >= 1;
    assert!(inside && !error.message.is_empty(), "{error:?}");
}

/// Fails if a graph prints otherwise once its text was read.
fn reads_back(graph: &Graph) {
    let printed = graph.to_string();
    let again = parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.to_string(), printed);
}
