//! [`ParseOptions`]: under which circumstances a text is recorded; [`File`]: what a file holds.

use crate::Graph;
use crate::op::OpRef;
use crate::policy::{DeviceType, PolicySet, Region, Site};
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

/// How the lines of a text are recorded.
pub(super) struct Reading<'a> {
    pub(super) options: &'a ParseOptions,
    /// The region of lines that name none, in a reading in which the ops give other types than
    /// those that are written.
    pub(super) ambient: Option<&'a Region>,
}

impl<'a> Reading<'a> {
    /// Each line gives the types that are written.
    pub(super) fn as_written(options: &'a ParseOptions) -> Self {
        Reading { options, ambient: None }
    }
}
