//! [`Started`]: a step that need not have ended, whose outputs come to the host.

use super::{Executable, Given};
use crate::cancel;
use crate::device::Landing;
use crate::error::Result;
use crate::outputs::{Outputs, Values};
use crate::store::{Flight, Store};
use crate::submitted::Input;
use crate::tensor::Tensor;
use std::sync::Arc;
use tracecast_ir::TensorType;

/// A step that was [started](Executable::start).
#[derive(Debug)]
pub struct Started(How);

#[derive(Debug)]
enum How {
    Ended(Outputs),
    InFlight { flight: Arc<Flight>, names: Arc<[String]>, outputs: Vec<(TensorType, Landing)> },
}

impl Executable {
    /// Gives a step and does not wait for its end. Its inputs are uploaded behind the steps in
    /// front of it and its outputs are downloaded behind it, so that the device goes from one step
    /// to the next while the host reads the results of the first.
    ///
    /// On a device without a queue the step is done when this returns. Where outputs stay on the
    /// device, see [`submit`](Executable::submit).
    ///
    /// # Errors
    /// As [`run`](Executable::run), as far as that is known now. [`Started::finish`] returns the
    /// fault of the step itself.
    pub fn start(&self, store: &mut Store, inputs: &[(&str, &Tensor)]) -> Result<Started> {
        let Some(queue) = self.device.queue() else {
            return Ok(Started(How::Ended(self.run(store, inputs)?)));
        };
        self.runs_alone()?;
        let mut given = Given::new();
        self.inputs.find(&self.program.parts.ports, inputs, &mut given)?;
        cancel::check(|| format!("@{} before it began", self.program.name()))?;
        let _guard = self.device.enter()?;
        let input = |port: usize| given[port].map(|at| Input::Host(inputs[at].1));
        self.start_queued(queue, store, &input, None, &mut || ())
    }
}

impl Started {
    pub(super) fn in_flight(
        flight: Arc<Flight>,
        names: Arc<[String]>,
        outputs: Vec<(TensorType, Landing)>,
    ) -> Self {
        Started(How::InFlight { flight, names, outputs })
    }

    /// Waits for the end of the step; `store` is the one that it was started on. The steps that
    /// were started before it end before it, whichever is finished first.
    ///
    /// # Errors
    /// Its fault, or that of a step in front of it: the store then has what it had before the step
    /// that failed, and later calls on it do not return that fault again. If it takes too long: the
    /// step then stays in flight.
    pub fn finish(self, store: &Store) -> Result<Outputs> {
        let (flight, names, outputs) = match self.0 {
            How::Ended(outputs) => return Ok(outputs),
            How::InFlight { flight, names, outputs } => (flight, names, outputs),
        };
        if let Err(fault) = flight.wait()? {
            flight.tell();
            store.told(&flight);
            return Err(fault.clone().into());
        }
        let value = |(ty, landing): (_, Landing)| Tensor::from_bytes(ty, landing.take());
        let values = outputs.into_iter().map(value).collect::<Result<Values>>()?;
        Ok(Outputs::new(names, values))
    }
}
