//! [`Program`]: a compiled kernel; and the cache of those that the process has, so that equal kernels share their code.

use super::disk::{Disk, Found};
use super::key::key;
use super::link::{Code, link};
use super::object::Object;
use crate::clif::{Lowered, lower};
use crate::error::{Error, Result};
use crate::plan::{Dispatch, Plan, plan};
use crate::target::Target;
use crate::threads::{Team, part};
use cranelift::codegen::Context;
use cranelift::prelude::FunctionBuilderContext;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::{Made, MadeFrom};

/// A compiled kernel.
pub(crate) struct Program {
    /// The functions.
    pub(crate) code: Vec<Code>,
    /// What a run does with them.
    pub(crate) dispatch: Dispatch,
    /// The size of the code.
    bytes: usize,
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
    let (plans, _) = plan(kernel)?;
    lowered(target, kernel, &plans)
}

/// Compiles kernels, apart from those that are compiled already; for each where its code comes from. Every thread of the team makes
/// one module.
///
/// # Errors
/// If a kernel has no code.
pub(crate) fn load(
    target: &Target,
    team: &Team,
    disk: Option<&Disk>,
    kernels: &[&Kernel],
) -> Result<Vec<(Arc<Program>, Made)>> {
    let keys: Vec<Vec<u8>> = kernels.iter().map(|k| key(target, k)).collect();
    let mut found: HashMap<&[u8], Arc<Program>> = HashMap::new();
    let mut news: HashMap<&[u8], Made> = HashMap::new();
    let mut missing: Vec<(&[u8], &Kernel)> = Vec::new();
    let mut met: HashSet<&[u8]> = HashSet::new();
    {
        let cache = cache();
        for (key, kernel) in keys.iter().map(Vec::as_slice).zip(kernels) {
            if let Some(program) = cache.get(key).and_then(Weak::upgrade) {
                found.insert(key, program);
            } else if met.insert(key) {
                missing.push((key, kernel));
            }
        }
    }
    let parts = team.threads().min(missing.len() / KERNELS_PER_MODULE).max(1);
    let made: Mutex<Vec<Result<Batch<'_>>>> = Mutex::default();
    team.each(parts, |i| {
        let batch = compile(target, disk, &missing[part(missing.len(), 1, parts, i)]);
        made.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    });
    let mut cache = cache();
    cache.retain(|_, program| program.strong_count() > 0);
    for batch in made.into_inner().unwrap_or_else(PoisonError::into_inner) {
        for (key, program, made) in batch? {
            let program = Arc::new(program);
            cache.insert(key.to_owned(), Arc::downgrade(&program));
            found.insert(key, program);
            news.insert(key, made);
        }
    }
    // Of equal kernels the first has taken the time.
    let mut one = |key: &Vec<u8>| {
        let program = found[key.as_slice()].clone();
        let shared = || Made { bytes: program.bytes, ..Made::new(MadeFrom::Process) };
        let made = news.remove(key.as_slice()).unwrap_or_else(shared);
        (program, made)
    };
    Ok(keys.iter().map(&mut one).collect())
}

/// Compiled kernels with their keys.
type Batch<'k> = Vec<(&'k [u8], Program, Made)>;

/// Below this, a module is not worth a thread: a kernel takes some 0.2 ms, waking a thread and mapping a module 0.1.
const KERNELS_PER_MODULE: usize = 4;

/// A kernel on its way to a program.
struct Draft<'k> {
    key: &'k [u8],
    name: &'k str,
    slots: Vec<usize>,
    dispatch: Dispatch,
    objects: Vec<Object>,
    made: Made,
}

/// Compiles kernels into one module.
fn compile<'k>(
    target: &Target,
    disk: Option<&Disk>,
    kernels: &[(&'k [u8], &'k Kernel)],
) -> Result<Batch<'k>> {
    let mut context = Context::new();
    let mut drafts = Vec::new();
    for (key, kernel) in kernels {
        drafts.push(drafted(target, disk, &mut context, key, kernel)?);
    }
    let functions: Vec<_> = drafts
        .iter()
        .flat_map(|d| d.slots.iter().zip(&d.objects).map(|(slots, o)| (d.name, *slots, o)))
        .collect();
    if functions.is_empty() {
        return Ok(Vec::new());
    }
    let mut code = link(target, &functions)?.into_iter();
    let program = |d: Draft<'k>| {
        let code = code.by_ref().take(d.objects.len()).collect();
        (d.key, Program { code, dispatch: d.dispatch, bytes: d.made.bytes }, d.made)
    };
    Ok(drafts.into_iter().map(program).collect())
}

/// The functions of one kernel, from the disk if it has them.
fn drafted<'k>(
    target: &Target,
    disk: Option<&Disk>,
    context: &mut Context,
    key: &'k [u8],
    kernel: &'k Kernel,
) -> Result<Draft<'k>> {
    let start = Instant::now();
    let (plans, dispatch) = plan(kernel)?;
    let mut made = Made::new(MadeFrom::Compiler);
    let kept = match disk.map(|disk| disk.load(key)) {
        Some(Found::Functions(objects)) if objects.len() == plans.len() => Some(objects),
        Some(Found::Refused(why)) => {
            made.warning = Some(why);
            None
        }
        _ => None,
    };
    let objects = match kept {
        Some(objects) => {
            made.from = MadeFrom::Disk;
            objects
        }
        None => {
            let failed = |message| Error::Compile { kernel: kernel.name.clone(), message };
            let objects: Vec<Object> = lowered(target, kernel, &plans)?
                .into_iter()
                .map(|function| Object::compile(target, context, function).map_err(failed))
                .collect::<Result<_>>()?;
            if let Some(Err(why)) = disk.map(|disk| disk.store(key, &objects)) {
                made.warning = Some(why);
            }
            objects
        }
    };
    made.bytes = objects.iter().map(Object::size).sum();
    made.time = start.elapsed();
    let slots = plans.iter().map(|plan| plan.slots).collect();
    Ok(Draft { key, name: &kernel.name, slots, dispatch, objects, made })
}

/// Compiled kernels that are still in use, by everything that their code depends on.
static CACHE: LazyLock<Mutex<HashMap<Vec<u8>, Weak<Program>>>> = LazyLock::new(Mutex::default);

fn cache() -> MutexGuard<'static, HashMap<Vec<u8>, Weak<Program>>> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}
