//! [`Compiled`]: a program and the signature that it holds for.

use super::signature::{Given, State};
use crate::compile::{SizedProgram, refused};
use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::profile::Profile;
use crate::report::CompileReport;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use tracecast_ir::TensorType;
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::{Executable, Limits, Outputs, Session, Started, Store, Tensor, Weights};

/// A compiled program and the signature it holds for.
pub(super) struct Compiled {
    /// The inputs that the closure asked for. Others of a run are of no concern to it.
    pub(super) inputs: BTreeMap<String, TensorType>,
    /// Those that it asked for and was not given.
    pub(super) absent: Vec<String>,
    /// The entries of the store that it reads or writes.
    pub(super) state: Vec<(String, TensorType)>,
    pub(super) starts: Vec<Entry>,
    pub(super) code: Code,
    pub(super) report: CompileReport,
    /// When it was used last, on the clock of its table.
    pub(super) used: AtomicU64,
    /// The layout of the state that was last seen to have all that it needs or starts; 0 if none
    /// was.
    pub(super) complete: AtomicU64,
}

pub(super) enum Code {
    /// For the sizes of `inputs`.
    Numbers(Box<Executable>),
    /// For all sizes that bounds and guards allow.
    Names(Box<SizedProgram>),
}

impl Compiled {
    /// What to say if the store lacks an entry that a run does not make by itself.
    pub(super) fn without_start(&self, state: &dyn State) -> Option<Error> {
        let has = |name: &str| state.ty(name).is_some();
        let starts = |name: &str| self.starts.iter().any(|entry| entry.name == name);
        let lacks = |name: &String| !has(name) && !starts(name);
        let lacking: Vec<&String> =
            self.state.iter().map(|(name, _)| name).filter(|name| lacks(name)).collect();
        let name = (*lacking.first()?).clone();
        let others = match lacking.len() - 1 {
            0 => String::new(),
            1 => ", and neither is 1 other".to_owned(),
            more => format!(", and neither are {more} others"),
        };
        let mut known = state.names();
        let named: Vec<String> = known.by_ref().take(8).map(|name| format!("`{name}`")).collect();
        let more = if known.next().is_some() { ", …" } else { "" };
        let has = if named.is_empty() { "nothing".to_owned() } else { named.join(", ") };
        let message = format!(
            "is not in the store{others}; it has {has}{more}; `init` puts first values there, `load` and `load_model` those of a file"
        );
        Some(Error::State { name, message })
    }

    /// True if it can run with these inputs on this state: what is missing there has a start.
    pub(super) fn fits(&self, state: &dyn State, given: &Given<'_>) -> bool {
        self.takes(given)
            && self.absent.iter().all(|name| given.ty(name).is_none())
            && (self.is_complete(state) || self.fits_state(state))
    }

    /// True if the state is known to have all entries that it needs or starts. One that is not
    /// known may have them.
    pub(super) fn is_complete(&self, state: &dyn State) -> bool {
        let layout = state.layout();
        layout != 0 && self.complete.load(Ordering::Relaxed) == layout
    }

    fn fits_state(&self, state: &dyn State) -> bool {
        let mut is_complete = true;
        let fits = self.state.iter().all(|(name, ty)| match state.ty(name) {
            Some(known) => known == ty,
            None => {
                is_complete = false;
                self.starts.iter().any(|entry| entry.name == *name)
            }
        });
        let starts = || self.starts.iter().all(|entry| state.ty(&entry.name).is_some());
        if fits && is_complete && starts() {
            self.complete.store(state.layout(), Ordering::Relaxed);
        }
        fits
    }

    fn takes(&self, given: &Given<'_>) -> bool {
        match &self.code {
            Code::Numbers(_) => self.inputs.iter().all(|(name, ty)| given.ty(name) == Some(ty)),
            Code::Names(program) => {
                let has_names = |name: &str| {
                    let port = program.graph().port_named(name);
                    port.is_some_and(|port| port.ty.shape.has_names())
                };
                let fits = |(name, ty): (&String, &TensorType)| match given.ty(name) {
                    Some(found) if has_names(name) => found.dtype == ty.dtype,
                    found => found == Some(ty),
                };
                self.inputs.iter().all(fits) && program.values(&|name| given.ty(name)).is_ok()
            }
        }
    }

    /// True if it is for exactly the sizes of its inputs.
    pub(super) fn is_exact(&self) -> bool {
        matches!(self.code, Code::Numbers(_))
    }

    /// The bytes that it takes: code, numbers, and what one run at a time needs.
    pub(super) fn bytes(&self) -> usize {
        match &self.code {
            Code::Numbers(executable) => executable.held_bytes(),
            Code::Names(program) => program.held_bytes(),
        }
    }

    pub(super) fn use_at(&self, time: u64) {
        self.used.fetch_max(time, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn run(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Outputs> {
        match &self.code {
            Code::Numbers(executable) => Ok(executable.run(store, inputs)?),
            Code::Names(program) => program.run(store, inputs),
        }
    }

    pub(super) fn start(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Started> {
        match &self.code {
            Code::Numbers(executable) => Ok(executable.start(store, inputs)?),
            Code::Names(program) => program.start(store, inputs),
        }
    }

    /// Where the time of runs with these inputs goes.
    pub(super) fn profile(
        &self,
        store: &mut Store,
        inputs: &[(&str, &Tensor)],
        runs: usize,
        limits: Option<Limits>,
    ) -> Result<Profile> {
        match &self.code {
            Code::Numbers(executable) => Profile::of(executable, store, inputs, runs, limits),
            Code::Names(program) => {
                let given = Given::of(inputs);
                let values = program.values(&|name| given.ty(name)).map_err(refused)?;
                let cost = |kernel: &Kernel| match kernel.at(&values) {
                    Ok(kernel) => kernel.cost(),
                    Err(_) => kernel.cost(),
                };
                Profile::with(&*program.at(&values)?, store, inputs, runs, limits, &cost)
            }
        }
    }

    pub(super) fn run_on(
        &self,
        weights: &Weights,
        session: &mut Session,
        inputs: &[(&str, &Tensor)],
    ) -> Result<Outputs> {
        match &self.code {
            Code::Numbers(executable) => Ok(executable.run_on(weights, session, inputs)?),
            Code::Names(program) => program.run_on(weights, session, inputs),
        }
    }
}
