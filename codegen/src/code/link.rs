//! Executable memory and the calls into it.
//!
//! A [`Code`] is one compiled function. A batch of them shares a module, whose memory is freed with the last of them. What is called
//! trusts its addresses, so whoever calls vouches for them: `run::memory` does.
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
    /// Keeps the machine code where it is.
    _memory: Arc<CodeMemory>,
}

impl Code {
    /// The bytes of scratch that a call needs.
    #[inline]
    pub(crate) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Does the positions of the rows, of which there must be at least one. Positions may be missing only if the row has none at all.
    ///
    /// # Safety
    ///
    /// Each of the slots must be the address of the operand that the function was compiled for, of that size, which nobody writes that
    /// another reads meanwhile; rows and positions must be inside the extents that it was compiled for; `scratch` must be as many bytes
    /// as [`Code::scratch`] says, aligned to a cache line, that nobody else uses.
    ///
    /// # Panics
    ///
    /// If there are fewer slots than the function takes.
    #[inline]
    pub(crate) unsafe fn call(
        &self,
        slots: &[*mut u8],
        rows: Range<usize>,
        positions: Range<usize>,
        scratch: *mut u8,
        status: &AtomicU64,
    ) {
        assert!(
            slots.len() >= self.slots,
            "a function was given {} of {} addresses",
            slots.len(),
            self.slots
        );
        let [begin, end] = [rows.start as i64, rows.end as i64];
        let [from, to] = [positions.start as i64, positions.end as i64];
        // SAFETY: the code is alive as long as this is and was compiled for this signature, with at most this many slots; what it
        // accesses is what the caller vouches for.
        unsafe { (self.entry)(slots.as_ptr(), begin, end, from, to, scratch, status) }
    }
}

/// The module of a batch.
struct CodeMemory(Mutex<Option<JITModule>>);

impl Drop for CodeMemory {
    fn drop(&mut self) {
        let module = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(module) = module {
            // SAFETY: every function of the module keeps this alive, so none is left, and none is running.
            unsafe { module.free_memory() }
        }
    }
}

/// Puts functions, given with their kernel's name and number of slots, into one module.
///
/// # Errors
/// If Cranelift refuses.
pub(crate) fn link(target: &Target, functions: &[(&str, usize, &Object)]) -> Result<Vec<Code>> {
    let mut builder = JITBuilder::with_isa(target.isa.clone(), default_libcall_names());
    for (_, _, object) in functions {
        for routine in object.routines() {
            builder.symbol(
                routine.symbol(),
                routine.address(Tiles::of(target.instructions)) as *const u8,
            );
        }
    }
    let mut module = JITModule::new(builder);
    let entries = fill(&mut module, functions);
    let memory = Arc::new(CodeMemory(Mutex::new(Some(module))));
    let code = |(entry, scratch, slots)| Code { entry, scratch, slots, _memory: memory.clone() };
    Ok(entries?.into_iter().map(code).collect())
}

fn failed(kernel: &str, message: impl ToString) -> Error {
    Error::Compile { kernel: kernel.to_owned(), message: message.to_string() }
}

/// Puts functions into a module: their entries, scratch and slots.
fn fill(
    module: &mut JITModule,
    functions: &[(&str, usize, &Object)],
) -> Result<Vec<(Entry, usize, usize)>> {
    let mut defined: Vec<(FuncId, usize, usize)> = Vec::new();
    for (kernel, slots, object) in functions {
        let id = define(module, object).map_err(|e| failed(kernel, e))?;
        defined.push((id, object.scratch as usize, *slots));
    }
    let last = functions.last().map_or("", |(kernel, ..)| kernel);
    module.finalize_definitions().map_err(|e| failed(last, e))?;
    let entry = |(id, scratch, slots): (FuncId, usize, usize)| {
        let at = module.get_finalized_function(id);
        // SAFETY: the function was defined with the signature of `Entry`: seven 64-bit integers, in the C calling convention.
        let entry = unsafe { std::mem::transmute::<*const u8, Entry>(at) };
        (entry, scratch, slots)
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
