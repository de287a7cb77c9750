//! `explain`: why every op has the precision that it has, and what has become of every cast.
//!
//! The program goes through the passes up to `place`, and fusion says where it would put the casts
//! that are left. Every change of dtype is a [`Point`](tracecast_ir::Point) that the casts carry
//! along, so each is told with its reason, and with its home or that it has cancelled.
//! [`warnings()`] are about numbers that do not fit the precision chosen for them.
//!
//! ```
//! use tracecast_ir::text::parse;
//! use tracecast_passes::{PassOptions, explain::explain};
//!
//! let graph = parse("
//! region #1 = {cpu: bf16} cache on scope 1
//! graph @head(%x: f32[8, 4], %w: f32[4, 2] param) {
//!   %0 = matmul %x, %w : bf16[8, 2] @#1
//!   return y = %0
//! }").unwrap();
//! let explained = explain(&graph, &PassOptions::default()).unwrap();
//! assert_eq!(explained.ops[0].rule.as_ref().unwrap().as_str(), "torch-cpu/matmul:lower_precision_fp");
//! assert_eq!(explained.casts.len(), 2);
//! assert_eq!(explained.casts[0].first_homes(), "pack of @contract");
//! ```

mod casts;
mod checkpoints;
mod made;
mod memory;
mod ops;
mod select;
mod text;
pub mod warnings;

pub use casts::CastNote;
pub use checkpoints::CheckpointNote;
pub use made::{HomeNote, MadeCast};
pub use memory::{AgainNote, MemoryNote, PeakNote};
pub use ops::{OpNote, Why, Width};
pub use select::UnknownNode;
pub use warnings::{Warning, WarningKind, warnings};

pub use crate::fuse::{Keep, KernelCost};

use crate::{Autocast, Decompose, Fuse, Pass, PassOptions, Place, Precision, Simplify, standard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tracecast_ir::policy::{DeviceType, PolicySet};
use tracecast_ir::text::Names;
use tracecast_ir::{Graph, NodeId, PassError, TraceError};

/// All about the precision of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The name of the program.
    pub program: String,
    /// The policy tables of the device types that regions are on for, with their versions, and the
    /// number of rules over them.
    pub policies: Vec<String>,
    /// The traced values of the names that sizes have: what costs least was decided by them, and
    /// bytes are counted with them.
    pub sizes: Vec<(String, i64)>,
    /// The regions of the program, in text; the first is "off everywhere".
    pub regions: Vec<String>,
    /// The values that come from outside, as the text calls them, such as `%x`.
    pub ports: Vec<(String, NodeId)>,
    /// Every op that computes something, in the order of recording.
    pub ops: Vec<OpNote>,
    /// Every cast, in the order in which they were asked for.
    pub casts: Vec<CastNote>,
    /// The node it is limited to, if it is [about](Explanation::about) one.
    pub about: Option<String>,
    /// What is odd.
    pub warnings: Vec<Warning>,
    /// The kernels, and what each reads, writes and computes in a run; empty if it is about one
    /// node.
    pub kernels: Vec<KernelCost>,
    /// What kernels write to memory, and why.
    pub memory: Vec<MemoryNote>,
    /// When that is most; `None` if it is nothing, or the explanation is about one node.
    pub peak: Option<PeakNote>,
    /// What several kernels compute.
    pub again: Vec<AgainNote>,
    /// The checkpoint regions, and what backward needs of them.
    pub checkpoints: Vec<CheckpointNote>,
    /// The bytes that kernels read and write in a run only because of casts.
    pub moved: usize,
    /// The launches that run on another device because this one refuses their kernels, if they
    /// were looked up, and the name of that device.
    pub fallback: Option<FallbackNote>,
    /// The traced program as text.
    pub text: String,
}

/// What runs on another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackNote {
    /// The name of that device.
    pub device: String,
    /// In the order of a run.
    pub launches: Vec<AwayNote>,
}

/// A launch on another device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayNote {
    /// The kernel.
    pub kernel: String,
    /// The bytes copied there and back.
    pub bytes: usize,
    /// Why the device of the program refuses the kernel.
    pub reason: String,
}

impl Explanation {
    /// The ops that stayed in f32 or f64 although they lie in a region that is on.
    pub fn wide(&self) -> impl Iterator<Item = &OpNote> {
        self.ops.iter().filter(|op| op.is_on && matches!(op.width, Width::Wide(_)))
    }

    /// The casts that are kernels of their own.
    pub fn standalone(&self) -> impl Iterator<Item = &CastNote> {
        self.casts.iter().filter(|cast| cast.is_standalone())
    }

    /// The casts that were made for what is explained, each once, in the order of their numbers.
    pub fn made(&self) -> impl Iterator<Item = &MadeCast> {
        let made = self.casts.iter().flat_map(|cast| &cast.made);
        made.map(|cast| (cast.number, &**cast)).collect::<BTreeMap<_, _>>().into_values()
    }

    /// The casts made for the sake of an op.
    pub fn casts_of<'a>(&'a self, op: &'a OpNote) -> impl Iterator<Item = &'a CastNote> {
        self.casts.iter().filter(|cast| cast.node == op.node)
    }
}

/// Explains a traced program. Where sizes are names, bytes are those of the values that it was
/// traced with, and by these values kernels were chosen where one costs less than another.
///
/// # Errors
/// What is wrong with the program, or the pass that could not finish.
pub fn explain(graph: &Graph, options: &PassOptions) -> Result<Explanation, PassError> {
    let policies = options.policies.clone().unwrap_or_else(|| Arc::new(PolicySet::standard()));
    let pipeline = standard(options).up_to(Place::NAME).unwrap_or_default();
    let (mut cast, mut core, mut simple) = (None, None, None);
    let placed = pipeline.run(graph.clone(), |pass, graph, _| match pass {
        Autocast::NAME => cast = Some(graph.clone()),
        Decompose::NAME => core = Some(graph.clone()),
        Simplify::NAME if options.precision != Precision::Exact => simple = Some(graph.clone()),
        _ => {}
    })?;
    let in_place = |error: TraceError| PassError::InPass { pass: Place::NAME, error };
    let exact = simple.map(|simple| Place::default().run(&simple)).transpose().map_err(in_place)?;
    let names = Names::new(graph);
    let fuse = |error: TraceError| PassError::InPass { pass: Fuse::NAME, error };
    let housed = crate::fuse::homes(&placed, &options.fusion).map_err(fuse)?;
    let found = casts::Found {
        traced: graph,
        core: core.as_deref(),
        placed: &placed,
        exact: exact.as_ref(),
        housed: &housed.casts,
    };
    let decisions = graph.decisions(&policies);
    let casts = found.notes(&policies, &decisions);
    let checkpoints = if graph.nodes().any(|id| graph.node(id).checkpoint != 0) {
        let plain = standard(options).up_to(Place::NAME).unwrap_or_default();
        let plain = plain.run(graph.clone().without_checkpoints(), |_, _, _| ())?;
        let without = crate::fuse::homes(&plain, &options.fusion).map_err(fuse)?.stored;
        checkpoints::notes(graph, (&placed, &housed.stored), (&plain, &without))
    } else {
        Vec::new()
    };
    let memory = memory::stored(graph, &names, &placed, &housed.stored);
    let warnings = cast.map(|cast| warnings(graph, &cast, &policies)).unwrap_or_default();
    Ok(Explanation {
        program: graph.name().to_owned(),
        policies: tables(graph, &policies),
        sizes: graph.sizes().hints().iter().map(|(name, n)| (name.to_owned(), n)).collect(),
        regions: graph.regions().iter().map(ToString::to_string).collect(),
        ports: graph.ports().iter().map(|p| (names.node(p.node).to_string(), p.node)).collect(),
        ops: ops::notes(graph, &decisions, &casts),
        casts,
        about: None,
        warnings,
        peak: memory::peak(graph, &names, &placed, &housed.kernels, housed.peak),
        kernels: housed.kernels,
        memory,
        again: memory::again(graph, &names, &placed, &housed.again),
        checkpoints,
        moved: found.moved(),
        fallback: None,
        text: graph.to_string(),
    })
}

/// What decides in the regions of a program.
fn tables(graph: &Graph, policies: &PolicySet) -> Vec<String> {
    let is_on = |device: &DeviceType| graph.regions().iter().any(|r| r.is_enabled(*device));
    let mut tables: Vec<String> = DeviceType::ALL
        .into_iter()
        .filter(is_on)
        .map(|device| match policies.table(device) {
            Some(table) => format!("{} {} for {device}", table.name(), table.version()),
            None => format!("no table for {device}"),
        })
        .collect();
    match policies.rules().count() {
        0 => {}
        1 => tables.push("1 rule".to_owned()),
        count => tables.push(format!("{count} rules")),
    }
    tables
}
