//! [`Object`]: the machine code of one function that can be put anywhere, in memory or in a file.
//!
//! What it calls it names: the precompiled routines by their symbols, its own vector loops by
//! number, functions of the C library by Cranelift's name for them. `link` gives the names
//! addresses.

use crate::clif::{LOOPS, Lowered, ROUTINES};
use crate::routines::Routine;
use crate::target::Target;
use cranelift::codegen::binemit::Reloc;
use cranelift::codegen::control::ControlPlane;
use cranelift::codegen::ir::{ExternalName, LibCall, UserFuncName};
use cranelift::codegen::{Context, FinalizedMachReloc, FinalizedRelocTarget};

/// One compiled function with its vector loops.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    /// The machine code, with relocations where addresses belong.
    pub(crate) bytes: Vec<u8>,
    /// What its place must be a multiple of.
    pub(crate) align: u64,
    /// The relocations.
    pub(crate) relocations: Vec<Relocation>,
    /// The vector loops, which refer to nothing.
    pub(crate) loops: Vec<Vec<u8>>,
    /// The scratch that a call needs.
    pub(crate) scratch: u64,
}

/// A place in machine code where an address belongs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Relocation {
    /// The place, in bytes.
    pub(crate) offset: u32,
    /// How the address is written.
    pub(crate) kind: Reloc,
    /// Whose address.
    pub(crate) name: Name,
    /// Added to the address.
    pub(crate) addend: i64,
}

/// What has an address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Name {
    /// A precompiled routine.
    Routine(Routine),
    /// A vector loop of the function.
    Loop(u32),
    /// A function of the C library.
    Library(LibCall),
    /// A place in the function itself.
    Within(u32),
}

impl Object {
    /// Compiles a function. A panic in Cranelift is an error here.
    ///
    /// # Errors
    /// What Cranelift said.
    pub(crate) fn compile(
        target: &Target,
        context: &mut Context,
        lowered: Lowered,
    ) -> Result<Object, String> {
        let Lowered { function, scratch, routines, loops } = lowered;
        context.clear();
        context.func = function;
        context.func.name = UserFuncName::user(0, 0);
        let compile = std::panic::AssertUnwindSafe(|| {
            let code = context.compile(&*target.isa, &mut ControlPlane::default());
            code.map(|_| ()).map_err(|e| format!("{:?}", e.inner))
        });
        match std::panic::catch_unwind(compile) {
            Ok(done) => done?,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                return Err(format!("panic: {}", text.unwrap_or("unknown")));
            }
        }
        let code = context.compiled_code().ok_or("no code")?;
        let relocation = |found: &FinalizedMachReloc| relocation(context, &routines, found);
        Ok(Object {
            bytes: code.code_buffer().to_vec(),
            align: u64::from(code.buffer.alignment),
            relocations: code.buffer.relocs().iter().map(relocation).collect::<Result<_, _>>()?,
            loops: loops.into_iter().map(|l| l.bytes).collect(),
            scratch: scratch as u64,
        })
    }

    /// The bytes of machine code.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.loops.iter().map(Vec::len).sum::<usize>()
    }

    /// The routines it calls.
    pub(crate) fn routines(&self) -> impl Iterator<Item = Routine> {
        self.relocations.iter().filter_map(|relocation| match relocation.name {
            Name::Routine(routine) => Some(routine),
            Name::Loop(_) | Name::Library(_) | Name::Within(_) => None,
        })
    }
}

fn relocation(
    context: &Context,
    routines: &[Routine],
    found: &FinalizedMachReloc,
) -> Result<Relocation, String> {
    let name = match &found.target {
        FinalizedRelocTarget::ExternalName(ExternalName::User(name)) => {
            let name = &context.func.params.user_named_funcs()[*name];
            match name.namespace {
                LOOPS => Name::Loop(name.index),
                ROUTINES => Name::Routine(
                    *routines.get(name.index as usize).ok_or("a call of an unknown routine")?,
                ),
                _ => return Err(format!("a call of {name:?}")),
            }
        }
        FinalizedRelocTarget::ExternalName(ExternalName::LibCall(call)) => Name::Library(*call),
        FinalizedRelocTarget::Func(offset) => Name::Within(*offset),
        other => return Err(format!("a reference to {other:?}")),
    };
    Ok(Relocation { offset: found.offset, kind: found.kind, name, addend: found.addend })
}
