//! [`Family`]: a program whose sizes are names on a device, and its executables.

use super::arenas::Arenas;
use super::load::{Loaded, load};
use super::{Executable, contents_on};
use crate::device::{Device, Launch};
use crate::error::{Error, Result};
use crate::layout::{Abilities, layout};
use crate::memory::Memory;
use crate::parts::Parts;
use crate::program::Program;
use crate::schedule::{Schedule, schedule};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracecast_ir::Values;
use tracecast_ir::eval::Value;
use tracecast_ir::kernel::Kernel;

/// A program whose sizes are names, loaded on a device. What does not depend on their values is
/// here once: the order of the steps, what is updated in place, and the code of the kernels that
/// the device takes with names. [`at`](Family::at) plans the rest for a set of sizes.
///
/// The executables share the memory of their arenas with all programs on the device: there are as
/// many as there are runs at the same time.
pub struct Family {
    parts: Parts,
    device: Arc<dyn Device>,
    able: Abilities,
    schedule: Schedule,
    /// For each kernel its code, if that serves all sizes.
    launches: Vec<Option<Arc<dyn Launch>>>,
    /// For each kernel with such code why the device refused it, if it did.
    refused: Vec<Option<String>>,
    fallback: Option<Arc<dyn Device>>,
    /// For each kernel whether it keeps its names.
    kept: Vec<bool>,
    arenas: Arc<Arenas>,
    data: Arc<[Memory]>,
    compile_time: Duration,
    strict: bool,
    reuses_outputs: bool,
}

/// Arenas that hold the largest sizes within their bounds are made at once if they are at most this
/// many times as large as the traced sizes need. One that grows is another: what was bound to it is
/// bound again, and its pages are new to the process.
const RESERVED: usize = 16;

/// The largest values of all names, if they are bounded.
fn at_bounds(parts: &Parts) -> Option<Values> {
    let mut values = Values::default();
    for known in parts.kernels.iter().flat_map(|kernel| &kernel.names) {
        values.set(known.name, known.most?).ok()?;
    }
    Some(values)
}

impl Family {
    pub(crate) fn new(
        parts: Parts,
        contents: Vec<Value>,
        device: Arc<dyn Device>,
        fallback: Option<Arc<dyn Device>>,
    ) -> Result<Self> {
        // For some sizes it may be that some kernels run elsewhere.
        let able = Abilities::of(&*device, fallback.is_some());
        let limits = device.capabilities().limits;
        let schedule = schedule(&parts, able.in_place);
        let traced = layout(&parts, &schedule, able).arena;
        let takes = |kernel: &Arc<Kernel>| {
            let away = fallback.as_ref().filter(|_| limits.refuse(kernel).is_some());
            kernel.names.is_empty() || away.unwrap_or(&device).takes_sizes(kernel)
        };
        let kept: Vec<bool> = parts.kernels.iter().map(takes).collect();
        let made: Vec<Kernel> = parts
            .kernels
            .iter()
            .zip(&kept)
            .filter(|(_, kept)| **kept)
            .map(|(kernel, _)| kernel.renumbered())
            .collect();
        let start = Instant::now();
        let loaded = load(&device, fallback.as_ref(), &made.iter().collect::<Vec<_>>())?;
        let mut loaded = loaded.launches.into_iter().zip(loaded.refused);
        let known = kept.iter().map(|kept| kept.then(|| loaded.next()).flatten().unzip());
        let (launches, refused): (Vec<_>, Vec<_>) = known.unzip();
        let refused = refused.into_iter().map(Option::flatten).collect();
        let compile_time = start.elapsed();
        let data = contents_on(&*device, contents)?;
        let most = at_bounds(&parts)
            .and_then(|values| parts.at(&values, &vec![true; parts.kernels.len()]).ok())
            .map(|parts| layout(&parts, &schedule, able).arena)
            .filter(|most| *most <= traced.saturating_mul(RESERVED));
        let arenas = Arc::new(Arenas::of(&device, most.unwrap_or(0)));
        Ok(Family {
            parts,
            device,
            able,
            schedule,
            launches,
            refused,
            fallback,
            kept,
            arenas,
            data,
            compile_time,
            strict: false,
            reuses_outputs: true,
        })
    }

    /// The same whose executables refuse inputs which the program does not use, or accept them, as
    /// is the default.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// The same whose executables [reuse](Executable::reuse_outputs) the memory of results, as is
    /// the default, or do not.
    #[must_use]
    pub fn reuse_outputs(mut self, reuse: bool) -> Self {
        self.reuses_outputs = reuse;
        self
    }

    /// The executable for a set of sizes: places in memory are found, and kernels compiled of which
    /// the device takes only those with numbers.
    ///
    /// # Errors
    /// If a name has no value, a size becomes negative or too large, or the device has no code for
    /// a kernel.
    pub fn at(&self, values: &Values) -> Result<Executable> {
        let parts = self.parts.at(values, &self.kept)?;
        let layout = layout(&parts, &self.schedule, self.able);
        let launch = |kernel: usize| self.launches.get(kernel).and_then(Option::as_ref);
        let missing = (0..parts.kernels.len()).filter(|kernel| launch(*kernel).is_none());
        let kernels: Vec<&Kernel> = missing.map(|kernel| &*parts.kernels[kernel]).collect();
        let start = Instant::now();
        let loaded = load(&self.device, self.fallback.as_ref(), &kernels)?;
        let mut loaded = loaded.launches.into_iter().zip(loaded.refused);
        let compile_time = self.compile_time + start.elapsed();
        let known = |kernel: usize| {
            let launch = launch(kernel)?.clone();
            Some((launch, self.refused[kernel].clone()))
        };
        let all = (0..parts.kernels.len()).map(|kernel| known(kernel).or_else(|| loaded.next()));
        let all = all.collect::<Option<Vec<_>>>();
        let all = all.ok_or_else(|| Error::Plan("a kernel has no code".to_owned()))?;
        let (launches, refused) = all.into_iter().unzip();
        let value = |name: &str| {
            let missing = || Error::Plan(format!("`{name}` has no value"));
            values.get(name).ok_or_else(missing)
        };
        let of =
            |kernel: &Arc<Kernel>| kernel.names.iter().map(|known| value(known.name)).collect();
        let sizes = parts.kernels.iter().map(of).collect::<Result<Vec<SmallVec<[i64; 4]>>>>()?;
        let memory = (self.arenas.clone(), self.data.clone());
        let program = Program { parts, layout, contents: Vec::new() };
        let loaded = Loaded { launches, refused };
        let mut executable = Executable::of(program, self.device.clone(), loaded, sizes, memory);
        executable.compile_time = compile_time;
        Ok(executable.strict(self.strict).reuse_outputs(self.reuses_outputs))
    }

    /// The kernels whose code serves all sizes, of all kernels.
    pub fn served(&self) -> (usize, usize) {
        (self.launches.iter().flatten().count(), self.launches.len())
    }

    /// The bytes of an arena: what the executable needs that needed most of those that have run.
    pub fn arena_bytes(&self) -> usize {
        self.arenas.bytes()
    }

    /// The bytes that it takes with these of its executables, besides state, if one run goes on at
    /// a time: code, numbers, an arena, and the most that one of them needs of its own, what the
    /// device [keeps](Executable::kept_bytes) included.
    pub fn held_bytes<'e>(&self, executables: impl IntoIterator<Item = &'e Executable>) -> usize {
        let sum = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0, usize::saturating_add);
        let code = |launch: &Arc<dyn Launch>| launch.made().map_or(0, |made| made.bytes);
        let shared = sum(&mut self.launches.iter().flatten().map(code));
        let data = sum(&mut self.parts.data.iter().map(|value| self.parts.bytes[*value]));
        let (mut own, mut most) = (0usize, 0);
        for executable in executables {
            own = own.saturating_add(executable.code_bytes().saturating_sub(shared));
            let alike = executable.program.layout.arena.saturating_add(data);
            most = most.max(executable.peak_bytes().saturating_sub(alike));
        }
        sum(&mut [shared, own, data, self.arenas.bytes(), most].into_iter())
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (served, all) = self.served();
        write!(
            f,
            "Family(@{} on {}, {served} of {all} kernels)",
            self.parts.name,
            self.device.name()
        )
    }
}
