//! [`Program`]: a compiled kernel, and the cache of them.

use crate::contract::{self, ContractRun};
use crate::error::{Error, Result};
use crate::jit::{self, Code, Slots};
use crate::lower::{Lowered, NAMESPACE, Target, lower};
use crate::nest::{self, NestRun};
use crate::plan::Plan;
use crate::scatter::{self, ScatterRun};
use crate::team::{Team, part};
use cranelift::prelude::FunctionBuilderContext;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use tracecast_ir::kernel::{Form, Kernel};

/// A compiled kernel.
pub(crate) struct Program {
    code: Vec<Code>,
    run: Run,
}

/// What a run does with the functions.
#[derive(Debug)]
enum Run {
    Nest(NestRun),
    Contract(ContractRun),
    Scatter(ScatterRun),
}

fn draft(kernel: &Kernel) -> Result<(Vec<Plan>, Run)> {
    Ok(match &kernel.form {
        Form::Nest(form) => {
            let (plans, run) = nest::draft(kernel, form)?;
            (plans, Run::Nest(run))
        }
        Form::Contract(form) => {
            let (plans, run) = contract::draft(kernel, form)?;
            (plans, Run::Contract(run))
        }
        Form::Scatter(form) => {
            let (plans, run) = scatter::draft(kernel, form)?;
            (plans, Run::Scatter(run))
        }
    })
}

fn lowered(target: &Target, kernel: &Kernel, plans: &[Plan]) -> Result<Vec<Lowered>> {
    let mut context = FunctionBuilderContext::new();
    let one = |plan| lower(target, plan, &mut context);
    let unsupported = |what| Error::Unsupported { kernel: kernel.name.clone(), what };
    plans.iter().map(one).collect::<std::result::Result<_, _>>().map_err(unsupported)
}

/// The functions of a kernel before they are compiled.
///
/// # Errors
/// If the kernel has no code.
pub(crate) fn functions(target: &Target, kernel: &Kernel) -> Result<Vec<Lowered>> {
    let (plans, _) = draft(kernel)?;
    lowered(target, kernel, &plans)
}

/// The functions of a kernel as text, with names for the addresses of routines.
///
/// # Errors
/// If the kernel has no code.
pub(crate) fn text(target: &Target, kernel: &Kernel) -> Result<String> {
    let mut text = String::new();
    for function in functions(target, kernel)? {
        let mut clif = function.function.display().to_string();
        for (address, name) in &function.symbols {
            let number = cranelift::prelude::Imm64::new(*address as i64).to_string();
            clif = clif.replace(&number, &format!("@{name}"));
        }
        text.push_str(&clif);
        for (number, wide) in function.loops.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "wide loop u{NAMESPACE}:{number}, {} bytes\n{}",
                wide.bytes.len(),
                wide.text
            );
        }
    }
    Ok(text)
}

/// Compiles kernels, apart from those that are compiled already. Every thread of the team makes one module.
///
/// # Errors
/// If a kernel has no code.
pub(crate) fn load(target: &Target, team: &Team, kernels: &[&Kernel]) -> Result<Vec<Arc<Program>>> {
    let keys: Vec<String> = kernels.iter().map(|k| key(target, k)).collect();
    let mut found: HashMap<&str, Arc<Program>> = HashMap::new();
    let mut missing: Vec<(&str, &Kernel)> = Vec::new();
    {
        let cache = cache();
        for (key, kernel) in keys.iter().map(String::as_str).zip(kernels) {
            if let Some(program) = cache.get(key).and_then(Weak::upgrade) {
                found.insert(key, program);
            } else if missing.iter().all(|m| m.0 != key) {
                missing.push((key, kernel));
            }
        }
    }
    let parts = team.threads().min(missing.len() / KERNELS_PER_MODULE).max(1);
    let made: Mutex<Vec<Result<Batch<'_>>>> = Mutex::default();
    team.each(parts, |i| {
        let batch = compile(target, &missing[part(missing.len(), 1, parts, i)]);
        made.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    });
    let mut cache = cache();
    cache.retain(|_, program| program.strong_count() > 0);
    for batch in made.into_inner().unwrap_or_else(PoisonError::into_inner) {
        for (key, program) in batch? {
            let program = Arc::new(program);
            cache.insert(key.to_owned(), Arc::downgrade(&program));
            found.insert(key, program);
        }
    }
    Ok(keys.iter().map(|key| found[key.as_str()].clone()).collect())
}

/// Compiled kernels with their keys.
type Batch<'k> = Vec<(&'k str, Program)>;

/// Below this, a module is not worth a thread.
const KERNELS_PER_MODULE: usize = 8;

/// Compiles kernels into one module.
fn compile<'k>(target: &Target, kernels: &[(&'k str, &Kernel)]) -> Result<Batch<'k>> {
    let mut drafts = Vec::new();
    let mut functions = Vec::new();
    for (key, kernel) in kernels {
        let (plans, run) = draft(kernel)?;
        for (plan, lowered) in plans.iter().zip(lowered(target, kernel, &plans)?) {
            functions.push((kernel.name.clone(), plan.slots, lowered));
        }
        drafts.push((*key, plans.len(), run));
    }
    if functions.is_empty() {
        return Ok(Vec::new());
    }
    let mut code = jit::compile(target, functions)?.into_iter();
    let program =
        |(key, count, run)| (key, Program { code: code.by_ref().take(count).collect(), run });
    Ok(drafts.into_iter().map(program).collect())
}

/// Compiled kernels that are still in use, by everything that their code depends on.
static CACHE: LazyLock<Mutex<HashMap<String, Weak<Program>>>> = LazyLock::new(Mutex::default);

fn cache() -> MutexGuard<'static, HashMap<String, Weak<Program>>> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(target: &Target, kernel: &Kernel) -> String {
    let Kernel { name: _, inputs, outputs, when: _, checks: _, form } = kernel;
    let mut key = String::new();
    // Writing to a string does not fail.
    let _ = write!(key, "{:?} {inputs:?} {outputs:?} {form:?}", (target.tiles.wide, target.wide));
    key
}

impl Program {
    /// The addresses that a run needs besides those of the operands.
    pub(crate) fn prepare(&self, operands: &Slots) -> Vec<Slots> {
        match &self.run {
            Run::Nest(run) => run.prepare(operands),
            Run::Contract(_) | Run::Scatter(_) => Vec::new(),
        }
    }

    /// Runs it. Raises checks in `status`.
    pub(crate) fn run(
        &self,
        target: &Target,
        team: &Team,
        operands: &Slots,
        prepared: &[Slots],
        status: &AtomicU32,
    ) {
        match &self.run {
            Run::Nest(run) => run.run(&self.code, team, operands, prepared, status),
            Run::Contract(run) => run.run(&self.code, team, target.tiles, operands, status),
            Run::Scatter(run) => run.run(&self.code, team, operands, status),
        }
    }
}
