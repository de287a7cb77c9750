//! The code of a kernel for people to read: its plans, Cranelift's intermediate form, and the
//! machine code of functions and vector loops.

use super::cache::functions;
use super::object::{Name, Object, Relocation};
use crate::clif::{LOOPS, ROUTINES};
use crate::error::{Error, Result};
use crate::plan;
use crate::plan::phases::VectorLoops;
use crate::target::Target;
use cranelift::codegen::Context;
use std::fmt::Write;
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::MachineCode;

/// The functions of a kernel as text, with the names of routines.
///
/// # Errors
/// If the kernel has no code.
pub(crate) fn text(target: &Target, kernel: &Kernel) -> Result<String> {
    let mut text = String::new();
    for function in functions(target, kernel)? {
        let mut clif = function.function.display().to_string();
        for (number, name) in function.routines.iter().enumerate() {
            clif = clif.replace(&format!("= u{ROUTINES}:{number} "), &format!("= @{name} "));
        }
        text.push_str(&clif);
        for (number, wide) in function.loops.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "vector loop u{LOOPS}:{number}, {} bytes\n{}",
                wide.bytes.len(),
                wide.listing
            );
        }
    }
    Ok(text)
}

/// Which plans of a kernel are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanStage<'a> {
    /// Those behind the transformation of that name; see [`plan_stages`].
    Until(&'a str),
    /// The finished ones, with the phases of their stages on such a CPU.
    Finished(PlanTarget),
}

/// What the phases of a plan are made for. They depend on nothing else, so that a text is the same
/// on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanTarget {
    /// Vectors of 128 bits.
    Portable,
    /// Those of AVX2.
    Avx2,
    /// Those of AVX-512.
    Avx512,
}

/// The names of the transformations of plans in order, behind that of the plans before the first.
pub fn plan_stages() -> impl Iterator<Item = &'static str> {
    plan::text::stages()
}

/// The plans of a kernel as text.
///
/// # Errors
/// If the kernel asks for what no code exists for, or no transformation has that name.
pub fn plan_text(kernel: &Kernel, stage: PlanStage<'_>) -> tracecast_runtime::Result<String> {
    Ok(match stage {
        PlanStage::Until(name) => plan::text::until(kernel, name)?,
        PlanStage::Finished(target) => {
            let vectors = match target {
                PlanTarget::Portable => VectorLoops::Cranelift { floor: true },
                PlanTarget::Avx2 => VectorLoops::Avx2,
                PlanTarget::Avx512 => VectorLoops::Avx512,
            };
            plan::text::finished(kernel, vectors)?
        }
    })
}

/// The machine code of a kernel, compiled anew: each function, and behind it its vector loops.
///
/// # Errors
/// If the kernel has no code.
pub(crate) fn machine_code(target: &Target, kernel: &Kernel) -> Result<Vec<MachineCode>> {
    let mut context = Context::new();
    let mut listed = Vec::new();
    for (number, function) in functions(target, kernel)?.into_iter().enumerate() {
        let instructions: Vec<usize> = function.loops.iter().map(|l| l.instructions).collect();
        let failed = |message| Error::Compile { kernel: kernel.name.clone(), message };
        let object = Object::compile(target, &mut context, function).map_err(failed)?;
        let address = |relocation: &Relocation| {
            (relocation.offset as usize, called(&relocation.name, number))
        };
        let mut addresses: Vec<_> = object.relocations.iter().map(address).collect();
        addresses.sort();
        let name = format!("function {number}");
        listed.push(MachineCode { name, bytes: object.bytes, instructions: None, addresses });
        for ((i, bytes), instructions) in object.loops.into_iter().enumerate().zip(instructions) {
            listed.push(MachineCode {
                name: loop_name(number, i),
                bytes,
                instructions: Some(instructions),
                addresses: Vec::new(),
            });
        }
    }
    Ok(listed)
}

fn loop_name(function: usize, number: usize) -> String {
    format!("vector loop {number} of function {function}")
}

/// What has an address, for people.
fn called(name: &Name, function: usize) -> String {
    match name {
        Name::Routine(routine) => format!("@{routine}"),
        Name::Loop(number) => loop_name(function, *number as usize),
        Name::Library(call) => call.to_string(),
        Name::Within(offset) => format!("{offset:#x} of this function"),
    }
}
