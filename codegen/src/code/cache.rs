//! [`Program`]: a compiled kernel; and the cache of those that the process has, so that equal
//! kernels share their code.

use super::disk::{Disk, Found};
use super::key::{key, key_of_class};
use super::link::{Code, Function, link};
use super::object::Object;
use crate::clif::{Choices, Lowered, lower};
use crate::error::{Error, Result};
use crate::plan::facts::Answer;
use crate::plan::numbers::{Numbers, SizeTable};
use crate::plan::{Dispatch, Plan, Planned, plan};
use crate::target::Target;
use crate::threads::{Team, part};
use cranelift::codegen::Context;
use cranelift::prelude::FunctionBuilderContext;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;
use tracecast_ir::Values;
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::{Made, MadeFrom};

/// A compiled kernel, for a class of sizes.
pub(crate) struct Program {
    /// The functions.
    pub(crate) code: Vec<Code>,
    /// What a run does with them.
    pub(crate) dispatch: Dispatch,
    /// What they read of sizes.
    pub(crate) table: SizeTable,
    /// What was asked of sizes to make them.
    answers: Vec<Answer>,
    /// The size of the code.
    bytes: usize,
}

impl Program {
    /// True if it is for the class of these sizes.
    pub(crate) fn fits(&self, sizes: &Numbers<'_>) -> bool {
        self.answers.iter().all(|answer| answer.fits(sizes))
    }
}

/// What is chosen for every function of a kernel.
fn choices(target: &Target, planned: &Planned) -> Vec<Choices> {
    planned.plans.iter().map(|plan| Choices::of(target, plan, &planned.facts)).collect()
}

fn lowered(
    target: &Target,
    kernel: &Kernel,
    planned: &Planned,
    choices: Vec<Choices>,
) -> Result<Vec<Lowered>> {
    let mut context = FunctionBuilderContext::new();
    let one = |plan| lower(target, plan, &planned.table, &mut context);
    let unsupported = |what| Error::Unsupported { kernel: kernel.name.clone(), what };
    let plans = planned.plans.iter().zip(choices);
    plans.map(one).collect::<std::result::Result<_, _>>().map_err(unsupported)
}

/// The functions of a kernel before they are compiled; for the sizes that it was traced with.
///
/// # Errors
/// If the kernel has no code.
pub(crate) fn functions(target: &Target, kernel: &Kernel) -> Result<Vec<Lowered>> {
    let planned = plan(kernel, &kernel.hints())?;
    lowered(target, kernel, &planned, choices(target, &planned))
}

/// A kernel, its names in the order of their numbers, and the sizes whose class it is compiled for.
pub(crate) type Wanted<'k> = (&'k Kernel, &'k Values);

/// Compiles kernels that are not compiled yet, and returns where the code of each comes from. The
/// second number of the pair bounds the threads of the team, each of which makes one module.
///
/// # Errors
/// If a kernel has no code.
pub(crate) fn load(
    target: &Target,
    (team, most): (&Team, usize),
    disk: Option<&Disk>,
    kernels: &[Wanted<'_>],
) -> Result<Vec<(Arc<Program>, Made)>> {
    let keys: Vec<Vec<u8>> = kernels.iter().map(|(kernel, _)| key(target, kernel)).collect();
    let ids: Vec<Id<'_>> =
        keys.iter().zip(kernels).map(|(key, (_, values))| (key.as_slice(), *values)).collect();
    let mut found: HashMap<Id<'_>, Arc<Program>> = HashMap::new();
    let mut news: HashMap<Id<'_>, Made> = HashMap::new();
    let mut missing: Vec<(Id<'_>, &Kernel)> = Vec::new();
    let mut met: HashSet<Id<'_>> = HashSet::new();
    {
        let cache = cache();
        for (id, (kernel, _)) in ids.iter().zip(kernels) {
            if let Some(program) = cached(&cache, *id) {
                found.insert(*id, program);
            } else if met.insert(*id) {
                missing.push((*id, kernel));
            }
        }
    }
    let parts = team.threads().min(most).min(missing.len() / KERNELS_PER_MODULE).max(1);
    let made: Mutex<Vec<Result<Batch<'_>>>> = Mutex::default();
    team.each(parts, |i| {
        let batch = compile(target, disk, &missing[part(missing.len(), 1, parts, i)]);
        made.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
    });
    let mut cache = cache();
    cache.retain(|_, classes| {
        classes.retain(|program| program.strong_count() > 0);
        !classes.is_empty()
    });
    for batch in made.into_inner().unwrap_or_else(PoisonError::into_inner) {
        for (id, program, made) in batch? {
            let program = cached(&cache, id).unwrap_or_else(|| {
                let program = Arc::new(program);
                cache.entry(id.0.to_owned()).or_default().push(Arc::downgrade(&program));
                program
            });
            found.insert(id, program);
            news.insert(id, made);
        }
    }
    // Of equal kernels the first has taken the time.
    let one = |id| {
        let program: Arc<Program> = found[id].clone();
        let shared = || Made { bytes: program.bytes, ..Made::new(MadeFrom::Process) };
        let made = news.remove(id).unwrap_or_else(shared);
        (program, made)
    };
    Ok(ids.iter().map(one).collect())
}

/// The key of a kernel, and the sizes that it is wanted for.
type Id<'k> = (&'k [u8], &'k Values);

/// The compiled kernel for the class of those sizes.
fn cached(cache: &Cache, (key, values): Id<'_>) -> Option<Arc<Program>> {
    let mut classes = cache.get(key)?.iter().filter_map(Weak::upgrade);
    classes.find(|program| program.fits(&Numbers::new(values)))
}

/// Compiled kernels with their keys.
type Batch<'k> = Vec<(Id<'k>, Program, Made)>;

/// Below this, a module is not worth a thread: a kernel takes some 0.2 ms, waking a thread and
/// mapping a module 0.1.
const KERNELS_PER_MODULE: usize = 4;

/// A kernel on its way to a program.
struct Draft<'k> {
    id: Id<'k>,
    name: &'k str,
    planned: Planned,
    objects: Vec<Object>,
    made: Made,
}

impl Draft<'_> {
    /// What is linked.
    fn functions(&self) -> Vec<Function<'_>> {
        let function = |(plan, object): (&Plan, _)| {
            let (kernel, sizes) = (self.name, self.planned.table.len());
            Function { kernel, slots: plan.slots, sizes, object }
        };
        self.planned.plans.iter().zip(&self.objects).map(function).collect()
    }
}

/// Compiles kernels into one module.
fn compile<'k>(
    target: &Target,
    disk: Option<&Disk>,
    kernels: &[(Id<'k>, &'k Kernel)],
) -> Result<Batch<'k>> {
    let mut context = Context::new();
    let mut drafts = Vec::new();
    for (id, kernel) in kernels {
        drafts.push(drafted(target, disk, &mut context, *id, kernel)?);
    }
    let functions: Vec<_> = drafts.iter().flat_map(Draft::functions).collect();
    // Kernels of precompiled code alone have no functions.
    let linked = if functions.is_empty() { Vec::new() } else { link(target, &functions)? };
    let mut code = linked.into_iter();
    let program = |d: Draft<'k>| {
        let code = code.by_ref().take(d.objects.len()).collect();
        let Planned { dispatch, table, facts, .. } = d.planned;
        let answers = facts.asked();
        (d.id, Program { code, dispatch, table, answers, bytes: d.made.bytes }, d.made)
    };
    Ok(drafts.into_iter().map(program).collect())
}

/// The functions of one kernel, from the disk if it has them.
fn drafted<'k>(
    target: &Target,
    disk: Option<&Disk>,
    context: &mut Context,
    id: Id<'k>,
    kernel: &'k Kernel,
) -> Result<Draft<'k>> {
    let start = Instant::now();
    let planned = plan(kernel, id.1)?;
    // Before code is looked for, all questions have to be asked.
    let chosen = (!kernel.names.is_empty()).then(|| choices(target, &planned));
    let key = key_of_class(id.0, &planned.facts.asked());
    let mut made = Made::new(MadeFrom::Compiler);
    let kept = match disk.map(|disk| disk.load(&key)) {
        Some(Found::Functions(objects)) if objects.len() == planned.plans.len() => Some(objects),
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
            let chosen = chosen.unwrap_or_else(|| choices(target, &planned));
            let objects: Vec<Object> = lowered(target, kernel, &planned, chosen)?
                .into_iter()
                .map(|function| Object::compile(target, context, function).map_err(failed))
                .collect::<Result<_>>()?;
            if let Some(Err(why)) = disk.map(|disk| disk.store(&key, &objects)) {
                made.warning = Some(why);
            }
            objects
        }
    };
    made.bytes = objects.iter().map(Object::size).sum();
    made.time = start.elapsed();
    Ok(Draft { id, name: &kernel.name, planned, objects, made })
}

/// Compiled kernels by their keys, for each class of sizes one.
type Cache = HashMap<Vec<u8>, Vec<Weak<Program>>>;

/// Compiled kernels that are still in use, by everything that their code depends on.
static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

fn cache() -> MutexGuard<'static, Cache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}
