//! [`Programs`]: the compiled programs of a closure, found without waiting for those that are being
//! compiled; limits and counters.

use super::compiled::{Code, Compiled};
use super::signature::{Given, State};
use crate::error::Result;
use crate::names::AxisNames;
use crate::options::Options;
use crate::report::CompileReport;
use crate::trace::Types;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tracecast_ir::{SizeError, TensorType};

/// Why and when a program was compiled.
#[derive(Clone, Debug)]
pub struct Recompilation {
    /// What was new.
    pub reason: String,
    /// The types of the inputs that the program asks for.
    pub inputs: Vec<(String, TensorType)>,
    /// What became of the program.
    pub report: CompileReport,
}

/// What a [`Jit`](super::Jit) has done since it was made, for a service that reports it.
///
/// ```
/// use tracecast::prelude::*;
///
/// let double = jit(Options::new().device("reference"), |t| t.output("y", t.input("x") * 2.0));
/// let x = Tensor::scalar(1.0f32);
/// for _ in 0..3 {
///     double.run(&mut Store::new(), &[("x", &x)])?;
/// }
/// let counters = double.counters();
/// assert_eq!((counters.hits, counters.misses, counters.programs), (2, 1, 1));
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JitCounters {
    /// Calls that found their program.
    pub hits: u64,
    /// Programs that were compiled.
    pub misses: u64,
    /// Calls that waited for another thread to compile their program.
    pub waits: u64,
    /// Compilations that failed or panicked, without those that waited for them.
    pub failures: u64,
    /// Programs that were dropped to keep to the limits.
    pub evictions: u64,
    /// Programs that are kept.
    pub programs: usize,
    /// The bytes that they take: code, numbers, and what one run of each needs.
    pub bytes: usize,
    /// The time that compiling took, tracing included, added up over threads.
    pub compile_time: Duration,
}

/// The compiled programs of a closure.
#[derive(Default)]
pub(super) struct Programs {
    shelf: RwLock<Shelf>,
    /// Goes on by one whenever a program is found or taken in: which one was used last.
    clock: AtomicU64,
    counted: Counted,
}

#[derive(Default)]
struct Counted {
    misses: AtomicU64,
    failures: AtomicU64,
    evictions: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Counts a failure when it is dropped, unless there was none.
struct Failing<'a>(Option<&'a Counted>);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if let Some(counted) = self.0 {
            counted.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Shelf {
    programs: Vec<Arc<Compiled>>,
    /// Programs by hashes of inputs that they were found for.
    found: HashMap<u64, Arc<Compiled>>,
    history: Vec<Recompilation>,
    /// How many programs have come.
    taken_in: u64,
    /// The axes whose sizes are names, as calls have shown.
    inferred: AxisNames,
    /// True once a program could not be made with names.
    is_refused: bool,
}

/// How many recompilations are remembered.
const HISTORY: usize = 64;

/// How many hashes of inputs are remembered.
const FOUND: usize = 1024;

impl Programs {
    /// The program for these inputs: one for exactly their sizes rather than one for many, of
    /// several the one used last.
    pub(super) fn find(&self, state: &dyn State, given: &Given<'_>) -> Option<Arc<Compiled>> {
        let hash = given.hash();
        let shelf = self.read();
        let known = shelf.found.get(&hash).filter(|program| program.fits(state, given));
        let program = match known {
            Some(program) => program.clone(),
            None => {
                let program = shelf.search(state, given)?;
                drop(shelf);
                self.note(hash, &program);
                program
            }
        };
        program.use_at(self.tick());
        Some(program)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Finds the program for inputs of this hash at once from now on, as long as it is there.
    fn note(&self, hash: u64, program: &Arc<Compiled>) {
        let mut shelf = self.write();
        if shelf.programs.iter().any(|kept| Arc::ptr_eq(kept, program)) {
            if shelf.found.len() == FOUND {
                shelf.found.clear();
            }
            shelf.found.insert(hash, program.clone());
        }
    }

    /// Takes in a program, and drops those used longest ago beyond the limits of the options.
    pub(super) fn insert(&self, types: &Types, program: &Arc<Compiled>, options: &Options) {
        let mut shelf = self.write();
        let reason = shelf.reason(types, options.most_programs());
        let inputs = program.inputs.clone().into_iter().collect();
        shelf.history.push(Recompilation { reason, inputs, report: program.report.clone() });
        let forgotten = shelf.history.len().saturating_sub(HISTORY);
        shelf.history.drain(..forgotten);
        program.use_at(self.tick());
        shelf.taken_in += 1;
        shelf.programs.push(program.clone());
        shelf.found.clear();
        let dropped = shelf.keep_within(options.most_programs(), options.most_program_bytes());
        drop(shelf);
        self.counted.evictions.fetch_add(dropped.len() as u64, Ordering::Relaxed);
        // Their memory goes back here: nobody who looks for a program waits for that.
        drop(dropped);
    }

    /// The names that sizes of these inputs are to get, as calls have shown; `None` if there are
    /// none, or could not be.
    pub(super) fn inferred(&self, types: &Types) -> Option<AxisNames> {
        let shelf = self.read();
        if shelf.is_refused {
            return None;
        }
        let shown = shelf
            .by_use()
            .into_iter()
            .find_map(|program| shelf.inferred.inferred(&program.inputs, &types.inputs));
        let names = shown.unwrap_or_else(|| shelf.inferred.clone());
        (!names.is_empty() && names.fit(&types.inputs)).then_some(names)
    }

    /// Says what came of names that calls had shown.
    pub(super) fn infer(&self, names: Option<AxisNames>) {
        let mut shelf = self.write();
        match names {
            Some(names) => shelf.inferred = names,
            None => shelf.is_refused = true,
        }
    }

    /// Why and when programs were compiled, oldest first.
    pub(super) fn history(&self) -> Vec<Recompilation> {
        self.read().history.clone()
    }

    /// Compiles, and counts it: also where that panics.
    pub(super) fn counting<T>(&self, compile: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let mut failing = Failing(Some(&self.counted));
        let compiled = compile()?;
        failing.0 = None;
        self.compiled(start.elapsed());
        Ok(compiled)
    }

    fn compiled(&self, took: Duration) {
        self.counted.misses.fetch_add(1, Ordering::Relaxed);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counted.nanoseconds.fetch_add(took, Ordering::Relaxed);
    }

    pub(super) fn counters(&self) -> JitCounters {
        let Counted { misses, failures, evictions, nanoseconds } = &self.counted;
        let shelf = self.read();
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        JitCounters {
            hits: count(&self.clock).saturating_sub(shelf.taken_in),
            misses: count(misses),
            failures: count(failures),
            evictions: count(evictions),
            programs: shelf.programs.len(),
            bytes: shelf.bytes(),
            compile_time: Duration::from_nanos(count(nanoseconds)),
            ..JitCounters::default()
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Shelf> {
        self.shelf.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Shelf> {
        self.shelf.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// The programs, the one used last first.
    fn by_use(&self) -> Vec<&Arc<Compiled>> {
        let mut programs: Vec<&Arc<Compiled>> = self.programs.iter().rev().collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.used()));
        programs
    }

    fn search(&self, state: &dyn State, given: &Given<'_>) -> Option<Arc<Compiled>> {
        let programs = self.by_use();
        let of = |exact: bool| {
            let fits = |p: &&&Arc<Compiled>| p.is_exact() == exact && p.fits(state, given);
            programs.iter().find(fits).map(|program| Arc::clone(program))
        };
        of(true).or_else(|| of(false))
    }

    fn bytes(&self) -> usize {
        self.programs.iter().map(|program| program.bytes()).fold(0, usize::saturating_add)
    }

    /// Takes out what was used longest ago, but never the program that came last.
    fn keep_within(&mut self, programs: usize, bytes: usize) -> Vec<Arc<Compiled>> {
        let mut dropped = Vec::new();
        while self.programs.len() > 1 && (self.programs.len() > programs || self.bytes() > bytes) {
            let others = self.programs[..self.programs.len() - 1].iter().enumerate();
            let Some((oldest, _)) = others.min_by_key(|(_, program)| program.used()) else { break };
            dropped.push(self.programs.remove(oldest));
        }
        dropped
    }

    /// What is new about a signature, compared with the program that was used last.
    fn reason(&self, types: &Types, most: usize) -> String {
        let Some(last) = self.by_use().first().copied() else { return "first run".to_owned() };
        let given = |name: &String, ty: &_| types.inputs.get(name) == Some(ty);
        let known = |r: &Recompilation| r.inputs.iter().all(|(name, ty)| given(name, ty));
        let is_kept = |program: &Arc<Compiled>| program.inputs.iter().all(|(n, t)| given(n, t));
        let is_kept = self.programs.iter().any(is_kept);
        let was_dropped = !is_kept && self.history.iter().any(known);
        let what = new_about(last, types);
        if was_dropped {
            return format!("{what}; its program was dropped, at most {most} are kept");
        }
        what
    }
}

/// What is new about a signature, compared with that of a program.
fn new_about(last: &Compiled, types: &Types) -> String {
    let guard = || match &last.code {
        Code::Names(program) => match program.values(&|name| types.inputs.get(name)) {
            Err(SizeError::Size(why)) => Some(why),
            _ => None,
        },
        Code::Numbers(_) => None,
    };
    let input = || {
        last.inputs.iter().find_map(|(name, before)| match types.inputs.get(name) {
            Some(ty) if before == ty => None,
            Some(ty) => Some(format!("input `{name}` is {ty}, was {before}")),
            None => Some(format!("input `{name}` is gone")),
        })
    };
    let new = || {
        let new = last.absent.iter().find(|name| types.inputs.contains_key(*name));
        new.map(|name| format!("input `{name}` is new"))
    };
    let state = || {
        last.state.iter().find_map(|(name, ty)| match types.store.get(name) {
            Some(now) if now == ty => None,
            Some(now) => Some(format!("`{name}` of the store is {now}, was {ty}")),
            None if last.starts.iter().any(|entry| entry.name == *name) => None,
            None => Some(format!("`{name}` is not in the store any more")),
        })
    };
    guard()
        .or_else(input)
        .or_else(new)
        .or_else(state)
        .unwrap_or_else(|| "the signature is new".to_owned())
}
