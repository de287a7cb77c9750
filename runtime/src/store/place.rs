//! [`At`]: where a value lives; [`Shared`]: a value that a store and weights share, which nobody
//! writes.

use crate::device::{Device, alloc};
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::tensor::{Tensor, room};
use smallvec::{SmallVec, smallvec};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracecast_ir::TensorType;

/// Where a value lives.
pub(super) enum At {
    Host(Tensor),
    Device {
        ty: TensorType,
        device: Arc<dyn Device>,
        memory: Memory,
    },
    /// Nowhere: it has no value until a program writes it.
    Reserved(TensorType),
    /// Where weights have it, which were taken of it while a step was in flight.
    Shared(Arc<Shared>),
}

impl At {
    pub(super) fn ty(&self) -> &TensorType {
        match self {
            At::Host(value) => value.ty(),
            At::Device { ty, .. } | At::Reserved(ty) => ty,
            At::Shared(shared) => shared.ty(),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// If its device fails, or there is none yet.
    pub(super) fn read(&self) -> Result<Tensor> {
        match self {
            At::Host(value) => Ok(value.clone()),
            At::Reserved(ty) => Err(Error::Tensor(format!("no program has written this {ty} yet"))),
            At::Shared(shared) => shared.read(),
            At::Device { ty, device, memory } => {
                let mut bytes = room(ty)?;
                let _guard = device.enter()?;
                device.download(memory, 0, &mut bytes)?;
                Tensor::from_bytes(ty.clone(), bytes)
            }
        }
    }

    /// Its memory, if it lives on this device.
    pub(super) fn on(&self, on: &Arc<dyn Device>) -> Option<&Memory> {
        match self {
            At::Device { device, memory, .. }
                if std::ptr::addr_eq(Arc::as_ptr(device), Arc::as_ptr(on)) =>
            {
                Some(memory)
            }
            _ => None,
        }
    }

    /// Its memory on this device, to which it moves if it lives elsewhere.
    ///
    /// # Errors
    /// If a device fails; then it stays where it was.
    pub(super) fn settle(&mut self, on: &Arc<dyn Device>) -> Result<Memory> {
        if let Some(memory) = self.on(on) {
            return Ok(memory.clone());
        }
        let ty = self.ty().clone();
        let memory = match self.hand_over(on) {
            Some(memory) => memory,
            None if matches!(self, At::Reserved(_)) => alloc(&**on, ty.bytes().get())?,
            None => copied(&self.read()?, on)?,
        };
        *self = At::Device { ty, device: on.clone(), memory: memory.clone() };
        Ok(memory)
    }

    /// The value as memory of a device, if nobody else holds it and the device takes over its
    /// bytes; there is no value then until it gets that memory.
    fn hand_over(&mut self, to: &Arc<dyn Device>) -> Option<Memory> {
        let At::Host(value) = self else { return None };
        let own = value.own_value()?;
        match to.adopt(std::mem::take(&mut own.bytes)) {
            Ok(memory) => Some(memory),
            Err(bytes) => {
                own.bytes = bytes;
                None
            }
        }
    }
}

/// A copy of a value in new memory of a device.
fn copied(value: &Tensor, on: &Arc<dyn Device>) -> Result<Memory> {
    let memory = alloc(&**on, value.bytes().len())?;
    let _guard = on.enter()?;
    on.upload(value.bytes(), &memory, 0)?;
    Ok(memory)
}

/// A value that is never written. It lives on the host until a device needs it, then on that
/// device; on further devices there are copies.
pub(super) struct Shared {
    ty: TensorType,
    /// The first is where it lives.
    places: Mutex<SmallVec<[At; 1]>>,
}

impl Shared {
    pub(super) fn new(at: At) -> Self {
        Shared { ty: at.ty().clone(), places: Mutex::new(smallvec![at]) }
    }

    pub(super) fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The value.
    ///
    /// # Errors
    /// If its device fails.
    pub(super) fn read(&self) -> Result<Tensor> {
        self.places()[0].read()
    }

    /// Its memory on this device.
    ///
    /// # Errors
    /// If a device fails.
    pub(super) fn memory(&self, on: &Arc<dyn Device>) -> Result<Memory> {
        let mut places = self.places();
        if let Some(memory) = places.iter().find_map(|at| at.on(on)) {
            return Ok(memory.clone());
        }
        if matches!(places[0], At::Host(_)) {
            return places[0].settle(on);
        }
        let memory = copied(&places[0].read()?, on)?;
        let device = on.clone();
        places.push(At::Device { ty: self.ty.clone(), device, memory: memory.clone() });
        Ok(memory)
    }

    /// Where it lives, which is shared with nobody any more.
    pub(super) fn into_at(self) -> At {
        let places = self.places.into_inner().unwrap_or_else(PoisonError::into_inner);
        places.into_iter().next().expect("a value lives somewhere")
    }

    fn places(&self) -> MutexGuard<'_, SmallVec<[At; 1]>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
