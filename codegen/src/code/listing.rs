//! The code of a kernel for people to read: Cranelift's intermediate form, and the machine code of functions and vector loops.

use super::cache::functions;
use super::object::{Name, Object, Relocation};
use crate::clif::{LOOPS, ROUTINES};
use crate::error::{Error, Result};
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
                wide.text
            );
        }
    }
    Ok(text)
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
