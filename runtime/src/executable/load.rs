//! Has devices compile kernels: the device of the program those that it takes, the fallback the
//! others.

use super::away::Away;
use crate::device::{Device, Launch};
use crate::error::{Error, Result};
use std::sync::Arc;
use tracecast_ir::kernel::Kernel;

/// Compiled kernels, and for each why the device of the program refused it, if it did.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) launches: Vec<Arc<dyn Launch>>,
    pub(super) refused: Vec<Option<String>>,
}

impl Loaded {
    /// True if a kernel runs on the fallback.
    pub(super) fn is_partly_away(&self) -> bool {
        self.refused.iter().any(Option::is_some)
    }
}

/// A launch on the [fallback](crate::Program::load_with) of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackLaunch {
    /// The name of the step.
    pub kernel: String,
    /// Why the device of the program refused its kernel.
    pub reason: String,
    /// The bytes copied to the fallback and back.
    pub bytes: usize,
}

/// Has the device compile the kernels that it takes, and the fallback the others.
///
/// # Errors
/// If it refuses some and there is no fallback: the error names all of them.
pub(super) fn load(
    device: &Arc<dyn Device>,
    fallback: Option<&Arc<dyn Device>>,
    kernels: &[&Kernel],
) -> Result<Loaded> {
    let limits = device.capabilities().limits;
    let mut refused: Vec<Option<String>> = kernels.iter().map(|k| limits.refuse(k)).collect();
    let mut launches = own(&**device, kernels, &mut refused)?;
    let left: Vec<&Kernel> =
        kernels.iter().zip(&refused).filter(|(_, why)| why.is_some()).map(|(k, _)| *k).collect();
    if !left.is_empty() {
        let fallback = fallback.ok_or_else(|| refusal(&**device, kernels, &refused))?;
        if fallback.queue().is_some() {
            let name = fallback.name();
            return Err(Error::Device(format!("`{name}` has a queue, and is no fallback")));
        }
        let mut others = compiled(&**fallback, &left)?.into_iter();
        for (launch, kernel) in launches.iter_mut().zip(kernels) {
            if launch.is_none() {
                let inner = others.next();
                *launch = inner.map(|inner| Away::of(inner, kernel, device, fallback));
            }
        }
    }
    let launches = launches.into_iter().collect::<Option<Vec<_>>>();
    let launches = launches.ok_or_else(|| Error::Plan("a kernel has no code".to_owned()))?;
    Ok(Loaded { launches, refused })
}

/// What the device compiles of the kernels that are not refused; it may refuse more.
fn own(
    device: &dyn Device,
    kernels: &[&Kernel],
    refused: &mut [Option<String>],
) -> Result<Vec<Option<Arc<dyn Launch>>>> {
    let taken: Vec<usize> = (0..kernels.len()).filter(|i| refused[*i].is_none()).collect();
    let mut launches: Vec<Option<Arc<dyn Launch>>> = vec![None; kernels.len()];
    let together = compiled(device, &taken.iter().map(|i| kernels[*i]).collect::<Vec<_>>());
    match together {
        Ok(made) => taken.iter().zip(made).for_each(|(i, made)| launches[*i] = Some(made)),
        // One after another, to hear of all that it refuses.
        Err(Error::Device(why)) => {
            for i in taken {
                match compiled(device, &[kernels[i]]) {
                    Ok(made) => launches[i] = made.into_iter().next(),
                    Err(Error::Device(why)) => refused[i] = Some(why),
                    Err(other) => return Err(other),
                }
            }
            if refused.iter().all(Option::is_none) {
                return Err(Error::Device(why));
            }
        }
        Err(other) => return Err(other),
    }
    Ok(launches)
}

fn compiled(device: &dyn Device, kernels: &[&Kernel]) -> Result<Vec<Arc<dyn Launch>>> {
    if kernels.is_empty() {
        return Ok(Vec::new());
    }
    let _guard = device.enter()?;
    let launches = device.load_all(kernels)?;
    if launches.len() != kernels.len() {
        return Err(Error::Device(format!(
            "{} compiled {} of {} kernels",
            device.name(),
            launches.len(),
            kernels.len()
        )));
    }
    Ok(launches.into_iter().map(Arc::from).collect())
}

/// The error that names all refused kernels.
fn refusal(device: &dyn Device, kernels: &[&Kernel], refused: &[Option<String>]) -> Error {
    let each = kernels.iter().zip(refused).filter_map(|(kernel, why)| {
        let why = why.as_ref()?;
        Some(format!("@{}: {why}", kernel.name))
    });
    let each: Vec<String> = each.collect();
    let (name, all) = (device.name(), kernels.len());
    Error::Device(format!(
        "{name} refuses {} of {all} kernels, and there is no fallback: {}",
        each.len(),
        each.join("; ")
    ))
}
