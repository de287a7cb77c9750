//! Steps in flight: what a store tells of them, and what it goes back to.

use super::flight::Flight;
use super::place::At;
use super::value::Spare;
use super::{Entry, Store};
use crate::device::{Device, SharedQueue, alloc};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::sync::Arc;
use tracecast_ir::TensorType;

/// The memory of an entry for a step that is about to be given to a queue.
pub(crate) struct Ready {
    pub(crate) memory: Memory,
    /// What the step has to copy to it first.
    pub(crate) upload: Option<Tensor>,
    /// True if the entry does not live there yet.
    pub(crate) is_new: bool,
}

impl Store {
    /// Waits for all steps in flight. On devices without a queue there are none.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// store.synchronize()?;
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// The fault of a step, if no call has told it yet: the store then holds what it did after the
    /// last complete step. If it takes too long: steps then go on being in flight.
    pub fn synchronize(&mut self) -> Result<()> {
        self.ended()?;
        self.settle()
    }

    /// Waits for all steps in flight, and tells of a fault that no call has told yet.
    pub(crate) fn ended(&self) -> Result<()> {
        for flight in &self.flights {
            if let Err(fault) = flight.wait()?
                && flight.tell()
            {
                self.told(flight);
                return Err(fault.clone().into());
            }
        }
        Ok(())
    }

    /// Without waiting: takes note of the steps that have ended. If one has failed, the store goes
    /// back to what it held before.
    ///
    /// # Errors
    /// The fault, if no call has told it yet.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.flights.is_empty() {
            return Ok(());
        }
        // What ends from here on is for the next time: entries may have seen it or not. The last
        // one first, so that none is found to go on that stands before one that has ended.
        let mut ended: SmallVec<[bool; 8]> =
            self.flights.iter().rev().map(|flight| flight.end().is_some()).collect();
        ended.reverse();
        let known = || self.flights.iter().zip(&ended).filter(|(_, ended)| **ended);
        let mut failed = known().filter_map(|(flight, _)| Some((flight, flight.fault()?)));
        let fault = failed.find(|(flight, _)| flight.tell()).map(|(flight, fault)| {
            self.told(flight);
            fault.clone()
        });
        for entry in self.entries.values_mut() {
            if let Entry::Own(value) = entry {
                value.settle();
            }
        }
        // Of several devices each has its turn to tell.
        let mut ended = ended.into_iter();
        self.flights.retain(|flight| ended.next() == Some(false) || flight.is_untold());
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Its fault is told: those of the steps in flight behind it are the same.
    pub(crate) fn told(&self, flight: &Flight) {
        for other in self.flights.iter().filter(|other| other.shares_queue(flight)) {
            if other.fault().is_some() {
                other.tell();
            }
        }
    }

    /// An error if a step in flight is known to have failed.
    pub(crate) fn unfailed(&self) -> Result<()> {
        let fault = self.flights.iter().find_map(|flight| flight.fault());
        fault.map_or(Ok(()), |fault| Err(Error::from(fault.clone())))
    }

    /// Settles, and waits until fewer steps than the queue takes are in flight on it.
    ///
    /// # Errors
    /// Those of [`settle`](Store::settle); if it takes too long.
    pub(crate) fn admit(&mut self, queue: &SharedQueue) -> Result<()> {
        self.settle()?;
        loop {
            let mut own = self.flights.iter().filter(|flight| flight.is_on(queue));
            let Some(first) = own.next().cloned() else { return Ok(()) };
            if own.count() + 1 < queue.most_in_flight() {
                return Ok(());
            }
            let _ = first.wait()?;
            self.settle()?;
        }
    }

    /// True if an entry has to be read on another device before it is on this one.
    pub(crate) fn is_elsewhere(&self, name: &str, on: &Arc<dyn Device>) -> bool {
        match self.entries.get(name) {
            Some(Entry::Own(value)) => {
                value.on(on).is_none() && matches!(value.at(), At::Device { .. } | At::Shared(_))
            }
            _ => false,
        }
    }

    /// The memory of an entry of that type on a device with a queue, which is shared with nobody if
    /// it is `written`. The entry stays where it is until the step is given. One that has no value
    /// yet lives in `next`, if that is given.
    pub(crate) fn ready(
        &mut self,
        name: &str,
        ty: &TensorType,
        on: &Arc<dyn Device>,
        written: bool,
        next: Option<&Memory>,
    ) -> Result<Ready> {
        let found = self.entry(name)?;
        if found.ty() != ty {
            return Err(Error::state(name, Error::expected(ty, found.ty())));
        }
        let value = match found {
            Entry::Shared(shared) if !written => {
                return Ok(Ready { memory: shared.memory(on)?, upload: None, is_new: false });
            }
            Entry::Shared(_) => self.own(name)?,
            Entry::Own(value) => value,
        };
        if let Some(memory) = value.on(on) {
            return Ok(Ready { memory: memory.clone(), upload: None, is_new: false });
        }
        let upload = match value.at() {
            At::Reserved(_) => {
                let memory = match next {
                    Some(memory) => memory.clone(),
                    None => alloc(&**on, ty.bytes().get())?,
                };
                return Ok(Ready { memory, upload: None, is_new: true });
            }
            At::Host(tensor) => Some(tensor.clone()),
            At::Device { .. } | At::Shared(_) => Some(value.at().read()?),
        };
        Ok(Ready { memory: alloc(&**on, ty.bytes().get())?, upload, is_new: true })
    }

    /// An entry lives in that memory behind a step in flight. What is spare is free once the step
    /// has ended.
    pub(crate) fn advance(
        &mut self,
        name: &str,
        (device, memory): (&Arc<dyn Device>, Memory),
        flight: &Arc<Flight>,
        spare: Option<Spare>,
    ) {
        if let Some(Entry::Own(value)) = self.entries.get_mut(name) {
            let (ty, device) = (value.ty().clone(), device.clone());
            value.advance(At::Device { ty, device, memory }, flight, spare);
        }
    }

    /// A step is in flight on which entries depend.
    pub(crate) fn follow(&mut self, flight: &Arc<Flight>) {
        if !self.flights.iter().any(|known| Arc::ptr_eq(known, flight)) {
            self.flights.push(flight.clone());
        }
    }
}
