//! How many bytes an [`Executable`] needs and keeps, and what is said if they are not there.

use super::Executable;
use crate::error::Error;

impl Executable {
    /// The bytes of memory a step needs besides the state and the tensors it is given, those that
    /// the device [keeps](Executable::kept_bytes) included.
    pub fn peak_bytes(&self) -> usize {
        self.program.peak_bytes().saturating_add(self.kept_bytes)
    }

    /// The bytes in which the device keeps what it makes of [lasting](crate::Arg::lasting) state,
    /// such as packed weights, once it has been the same for some launches. So much is kept for
    /// each of the last two stores that it ran on; threads that run it on the same memory share it.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// The bytes that a run takes on the threads of the device besides
    /// [`peak_bytes`](Executable::peak_bytes): what the kernel needs that needs most. Threads keep
    /// them, for whatever they run next.
    pub fn scratch_bytes(&self) -> usize {
        let kernels = self.program.layout.steps.iter().filter_map(|step| step.work.kernel());
        let bytes = |kernel: usize| self.launches[kernel].scratch_bytes(&self.sizes[kernel]);
        kernels.map(bytes).max().unwrap_or(0)
    }

    /// The bytes of the code of its kernels, as far as the device keeps account of that.
    pub fn code_bytes(&self) -> usize {
        self.launches.iter().filter_map(|launch| launch.made()).map(|made| made.bytes).sum()
    }

    /// The bytes that it takes, besides state, if one run goes on at a time: code,
    /// [memory](Executable::peak_bytes), numbers.
    pub fn held_bytes(&self) -> usize {
        self.code_bytes().saturating_add(self.peak_bytes())
    }

    /// Why the memory of a run is not there.
    pub(super) fn short_of_memory(&self, error: Error) -> Error {
        let (name, peak) = (self.program.name(), self.peak_bytes());
        match error {
            Error::Device(why) => {
                Error::Device(format!("program @{name}, whose runs need {peak} bytes: {why}"))
            }
            Error::Fault(mut fault) if fault.is_out_of_memory() => {
                fault.message =
                    format!("program @{name}, whose runs need {peak} bytes: {}", fault.message);
                Error::Fault(fault)
            }
            other => other,
        }
    }
}
