//! Interprets a [`Kernel`]: its outputs in memory of their own, and the check that it raised. What
//! its loops do, its form says.

use super::bytes::Bytes;
use super::{EvalError, Raised, Value};
use crate::DType;
use crate::kernel::Kernel;
use crate::kernel::interpret::scalar::read;
use crate::kernel::interpret::{Stopped, malformed};

impl From<Stopped> for EvalError {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Malformed(what) => EvalError::Malformed(what),
            Stopped::Memory(what) => EvalError::Memory(what),
        }
    }
}

/// What a kernel makes of its inputs: its outputs, in order.
///
/// A kernel with names is interpreted with numbers in their place ([`Kernel::at`]). All inputs are
/// read before an output is written, so outputs that update an input in place do not disturb it.
///
/// # Errors
/// If a check is raised (of several, the one with the lowest number), or the kernel is not well
/// formed.
pub fn kernel(kernel: &Kernel, inputs: &[&[u8]]) -> Result<Vec<Bytes>, EvalError> {
    if !kernel.names.is_empty() {
        return Err(malformed(&format!("the names of @{} have no values", kernel.name)).into());
    }
    if inputs.len() != kernel.inputs.len()
        || inputs.iter().zip(&kernel.inputs).any(|(b, t)| t.bytes() != b.len())
    {
        return Err(malformed(&format!("the inputs are not those of @{}", kernel.name)).into());
    }
    let mut outputs = Vec::with_capacity(kernel.outputs.len());
    for output in &kernel.outputs {
        outputs.push(match output.update.map(|i| inputs.get(i)) {
            Some(Some(old)) if output.ty.bytes() == old.len() => {
                let mut copy = Bytes::to_write(old.len()).map_err(EvalError::Memory)?;
                copy.copy_from_slice(old);
                copy
            }
            Some(_) => return Err(malformed("an output updates an input of another type").into()),
            None => Value::zeros(output.ty.clone()).map_err(EvalError::Memory)?.bytes,
        });
    }
    if let Some(when) = kernel.when {
        let flag = inputs
            .get(when)
            .and_then(|b| read(b, DType::F32, 0))
            .ok_or_else(|| malformed("no flag"))?;
        if f32::from_bits(flag as u32) != 0.0 {
            return Ok(outputs);
        }
    }
    let mut written: Vec<&mut [u8]> = outputs.iter_mut().map(|bytes| &mut bytes[..]).collect();
    let failed = kernel.form.as_loops().evaluate(kernel, inputs, &mut written)?;
    match failed {
        None => Ok(outputs),
        Some((number, found)) => {
            let check =
                kernel.checks.get(number as usize).ok_or_else(|| malformed("no such check"))?;
            Err(EvalError::Data(Box::new(Raised {
                number: number as usize,
                check: check.clone(),
                found,
                kernel: kernel.name.clone(),
            })))
        }
    }
}
