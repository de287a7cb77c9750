//! [`Value`]: the value of an entry that nobody shares: where it lives now, and where it lived
//! before the steps that are not known to have ended.

use super::flight::Flight;
use super::place::{At, Shared};
use crate::device::Device;
use crate::error::Result;
use crate::memory::Memory;
use crate::tensor::Tensor;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::TensorType;

/// The value of an entry that nobody shares.
pub(super) struct Value {
    /// Where it lives behind all steps.
    at: At,
    /// The steps in flight that wrote it or moved it, the first one first.
    before: SmallVec<[Before; 1]>,
}

/// A step in flight, and what there was before it.
struct Before {
    flight: Arc<Flight>,
    at: At,
    spare: Option<Spare>,
}

/// Memory that is free once a step has ended without a fault, and who takes it.
pub(crate) struct Spare {
    pub(crate) memory: Memory,
    pub(crate) to: Arc<Spares>,
    /// Which of the buffers of the program it serves as.
    pub(crate) buffer: usize,
}

/// Memory for the next values of state, for each buffer of a program.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<VecDeque<Memory>>>);

impl Spares {
    /// Memory for a buffer, if there is some: what has been free for longest.
    pub(crate) fn take(&self, buffer: usize) -> Option<Memory> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(buffer)?.pop_front()
    }

    /// Memory that is free.
    pub(crate) fn give(&self, buffer: usize, memory: Memory) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= buffer {
            all.resize_with(buffer + 1, VecDeque::new);
        }
        all[buffer].push_back(memory);
    }
}

impl Value {
    /// One that no step in flight has to do with.
    pub(super) fn of(at: At) -> Self {
        Value { at, before: SmallVec::new() }
    }

    pub(super) fn ty(&self) -> &TensorType {
        self.at.ty()
    }

    /// Where it lives behind the last step that is not known to have failed.
    pub(super) fn now(&self) -> &At {
        let failed = self.before.iter().find(|before| before.flight.fault().is_some());
        failed.map_or(&self.at, |before| &before.at)
    }

    /// Its current value.
    ///
    /// # Errors
    /// If its device fails.
    pub(super) fn read(&self) -> Result<Tensor> {
        self.now().read()
    }

    /// Forgets what there was before steps that have ended, and goes back to before the first one
    /// that failed.
    pub(super) fn settle(&mut self) {
        let failed = self.before.iter().position(|before| before.flight.fault().is_some());
        if let Some(failed) = failed
            && let Some(before) = self.before.drain(failed..).next()
        {
            self.at = before.at;
        }
        let done = self.before.iter().take_while(|before| before.flight.is_done()).count();
        for Before { spare, .. } in self.before.drain(..done) {
            if let Some(Spare { memory, to, buffer }) = spare {
                to.give(buffer, memory);
            }
        }
    }

    /// Where it lives, to be moved; no step in flight has to do with it any more.
    pub(super) fn settled(&mut self) -> &mut At {
        self.settle();
        &mut self.at
    }

    /// Where it lives, once all steps that have to do with it have ended.
    pub(super) fn into_at(mut self) -> At {
        self.settle();
        self.at
    }

    /// What it was before the first of these steps, if one has to do with it; the value shares that
    /// from now on.
    pub(super) fn share_before(&mut self, steps: &[Arc<Flight>]) -> Option<Arc<Shared>> {
        let is_one = |flight| steps.iter().any(|step| Arc::ptr_eq(step, flight));
        let first = self.before.iter().position(|before| is_one(&before.flight))?;
        if self.before[..first].iter().any(|before| before.flight.fault().is_some()) {
            return None;
        }
        let before = &mut self.before[first];
        let ty = before.at.ty().clone();
        // It belongs to weights now, and to no step that follows.
        before.spare = None;
        let shared = match std::mem::replace(&mut before.at, At::Reserved(ty)) {
            At::Shared(shared) => shared,
            at => Arc::new(Shared::new(at)),
        };
        before.at = At::Shared(shared.clone());
        Some(shared)
    }

    /// Lives elsewhere behind a step in flight.
    pub(super) fn advance(&mut self, to: At, flight: &Arc<Flight>, spare: Option<Spare>) {
        let at = std::mem::replace(&mut self.at, to);
        self.before.push(Before { flight: flight.clone(), at, spare });
    }

    /// Its memory, if it lives on this device.
    pub(super) fn on(&self, on: &Arc<dyn Device>) -> Option<&Memory> {
        self.at.on(on)
    }

    /// Puts another memory of the same device in the place of its own, which is given back.
    pub(super) fn swap(&mut self, with: Memory) -> Memory {
        match &mut self.at {
            At::Device { memory, .. } => std::mem::replace(memory, with),
            _ => with,
        }
    }

    /// The steps in flight that have to do with it.
    pub(super) fn flights(&self) -> impl Iterator<Item = &Arc<Flight>> {
        self.before.iter().map(|before| &before.flight)
    }

    /// Where it lives behind all steps.
    pub(super) fn at(&self) -> &At {
        &self.at
    }
}
