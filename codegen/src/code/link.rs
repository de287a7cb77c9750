//! Executable memory and the calls into it.
//!
//! A [`Code`] is one compiled function. A batch of them shares a module, whose memory is freed with
//! the last of them. What is called trusts its addresses, so whoever calls vouches for them:
//! `run::memory` does.
#![allow(
    unsafe_code,
    reason = "this file owns executable memory and the calls through function pointers"
)]

use super::object::{Name, Object, Relocation};
use crate::error::{Error, Result};
use crate::routines::Tiles;
use crate::target::{Target, signature};
use cranelift::jit::{JITBuilder, JITModule};
use cranelift::module::{
    FuncId, Linkage, Module, ModuleReloc, ModuleRelocTarget, default_libcall_names,
};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

type Entry = unsafe extern "C" fn(*const *mut u8, i64, i64, i64, i64, *mut u8, *const AtomicU64);

/// One compiled function.
pub(crate) struct Code {
    entry: Entry,
    scratch: usize,
    slots: usize,
    /// How many words of sizes it finds in front of them.
    sizes: usize,
    /// Keeps the machine code where it is.
    _memory: Arc<CodeMemory>,
}

impl Code {
    /// The bytes of scratch that a call needs.
    #[inline]
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Does the positions of the rows, of which there must be at least one. Positions may be
    /// missing only if the row has none at all.
    ///
    /// # Safety
    ///
    /// The first `sizes` of the words must be what the function reads of sizes, the first of it
    /// last. Behind them, each of the slots must be the address of the operand that the function
    /// was compiled for, of that size, which nobody writes that another reads meanwhile; rows and
    /// positions must be inside the extents that it was compiled for; `scratch` must be as many
    /// bytes as [`Code::scratch`] says, aligned to a cache line, that nobody else uses.
    ///
    /// # Panics
    ///
    /// If there are fewer slots, or words of sizes, than the function takes.
    #[inline]
    pub(crate) unsafe fn call(
        &self,
        words: &[*mut u8],
        sizes: usize,
        rows: Range<usize>,
        positions: Range<usize>,
        scratch: *mut u8,
        status: &AtomicU64,
    ) {
        assert!(
            words.len() >= sizes + self.slots && sizes >= self.sizes,
            "a function was given {} words, {sizes} of them sizes, and takes {} and {} sizes",
            words.len(),
            self.slots,
            self.sizes
        );
        // Not of a slice of it: the words in front belong to it.
        let slots = words.as_ptr().wrapping_add(sizes);
        let [begin, end] = [rows.start as i64, rows.end as i64];
        let [from, to] = [positions.start as i64, positions.end as i64];
        // SAFETY: the code is alive as long as this is and was compiled for this signature, with at
        // most this many slots; what it accesses is what the caller vouches for.
        unsafe { (self.entry)(slots, begin, end, from, to, scratch, status) }
    }
}

/// The module of a batch.
struct CodeMemory(Mutex<Option<JITModule>>);

impl Drop for CodeMemory {
    fn drop(&mut self) {
        let module = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(module) = module {
            // SAFETY: every function of the module keeps this alive, so none is left, and none is
            // running.
            unsafe { module.free_memory() }
        }
    }
}

/// A function that is to be linked.
pub(crate) struct Function<'a> {
    /// The name of its kernel.
    pub(crate) kernel: &'a str,
    /// How many addresses it takes.
    pub(crate) slots: usize,
    /// How many words of sizes it finds in front of them.
    pub(crate) sizes: usize,
    /// Its code.
    pub(crate) object: &'a Object,
}

/// Puts functions into one module.
///
/// # Errors
/// If Cranelift refuses.
pub(crate) fn link(target: &Target, functions: &[Function<'_>]) -> Result<Vec<Code>> {
    let mut builder = JITBuilder::with_isa(target.isa.clone(), default_libcall_names());
    for function in functions {
        for routine in function.object.routines() {
            builder.symbol(
                routine.symbol(),
                routine.address(Tiles::of(target.instructions)) as *const u8,
            );
        }
    }
    let mut module = JITModule::new(builder);
    let entries = fill(&mut module, functions);
    let memory = Arc::new(CodeMemory(Mutex::new(Some(module))));
    let code = |(entry, f): (Entry, &Function<'_>)| Code {
        entry,
        scratch: f.object.scratch as usize,
        slots: f.slots,
        sizes: f.sizes,
        _memory: memory.clone(),
    };
    Ok(entries?.into_iter().zip(functions).map(code).collect())
}

fn failed(kernel: &str, message: impl ToString) -> Error {
    Error::Compile { kernel: kernel.to_owned(), message: message.to_string() }
}

/// Puts functions into a module: their entries.
fn fill(module: &mut JITModule, functions: &[Function<'_>]) -> Result<Vec<Entry>> {
    let mut defined: Vec<FuncId> = Vec::new();
    for Function { kernel, object, .. } in functions {
        defined.push(define(module, object).map_err(|e| failed(kernel, e))?);
    }
    let last = functions.last().map_or("", |function| function.kernel);
    module.finalize_definitions().map_err(|e| failed(last, e))?;
    let entry = |id: FuncId| {
        let at = module.get_finalized_function(id);
        // SAFETY: the function was defined with the signature of `Entry`: seven 64-bit integers, in
        // the C calling convention.
        unsafe { std::mem::transmute::<*const u8, Entry>(at) }
    };
    Ok(defined.into_iter().map(entry).collect())
}

/// Puts one function and its vector loops into a module.
fn define(module: &mut JITModule, object: &Object) -> std::result::Result<FuncId, String> {
    // What is linked is bytes, so that the signature says nothing.
    let signature = signature(module.isa().default_call_conv());
    let own = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
    let mut loops = Vec::new();
    for bytes in &object.loops {
        let id = module.declare_anonymous_function(&signature).map_err(|e| e.to_string())?;
        module.define_function_bytes(id, 64, bytes, &[]).map_err(|e| e.to_string())?;
        loops.push(id);
    }
    let mut relocation = |relocation: &Relocation| {
        let user = |id: FuncId| ModuleRelocTarget::user(0, id.as_u32());
        let name = match &relocation.name {
            Name::Routine(routine) => user(
                module
                    .declare_function(routine.symbol(), Linkage::Import, &signature)
                    .map_err(|e| e.to_string())?,
            ),
            Name::Loop(number) => {
                user(*loops.get(*number as usize).ok_or("a call of a loop that is not there")?)
            }
            Name::Library(call) => ModuleRelocTarget::LibCall(*call),
            Name::Within(at) => ModuleRelocTarget::FunctionOffset(own, *at),
        };
        Ok::<_, String>(ModuleReloc {
            offset: relocation.offset,
            kind: relocation.kind,
            name,
            addend: relocation.addend,
        })
    };
    let relocations: Vec<ModuleReloc> =
        object.relocations.iter().map(&mut relocation).collect::<std::result::Result<_, _>>()?;
    module
        .define_function_bytes(own, object.align, &object.bytes, &relocations)
        .map_err(|e| e.to_string())?;
    Ok(own)
}
