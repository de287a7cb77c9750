//! [`Submitted`]: the outputs of a step that need not have ended; and [`Input`], by which they
//! become those of another.

use crate::device::{Device, DeviceId};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::output_pool::OutputBuffer;
use crate::outputs::Outputs;
use crate::store::Flight;
use crate::tensor::Tensor;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::TensorType;

/// The outputs of a step that was [submitted](crate::Executable::submit), by name. They are where
/// the device left them until they are asked for.
#[derive(Debug)]
pub struct Submitted {
    names: Arc<[String]>,
    values: Vec<DeviceValue>,
    flight: Option<Arc<Flight>>,
}

/// A value that a step leaves on its device. A clone is the same value.
#[derive(Clone)]
pub struct DeviceValue {
    ty: TensorType,
    place: At,
}

#[derive(Clone)]
enum At {
    Host(Tensor),
    Device { device: Arc<dyn Device>, buffer: Arc<OutputBuffer>, flight: Arc<Flight> },
}

/// What a submitted step is given: a value of the host, or one that is on its device already.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// It is copied to the device.
    Host(&'a Tensor),
    /// It is taken where it is, if that is the same device; otherwise it is copied by way of the
    /// host.
    Device(&'a DeviceValue),
}

impl Submitted {
    pub(crate) fn on_host(outputs: Outputs) -> Self {
        let (names, values) = outputs.into_parts();
        let values = values
            .into_iter()
            .map(|tensor| DeviceValue { ty: tensor.ty().clone(), place: At::Host(tensor) });
        Submitted { names, values: values.collect(), flight: None }
    }

    pub(crate) fn on_device(
        names: Arc<[String]>,
        values: impl Iterator<Item = (TensorType, OutputBuffer)>,
        device: &Arc<dyn Device>,
        flight: &Arc<Flight>,
    ) -> Self {
        let value = |(ty, buffer)| {
            let (device, buffer, flight) = (device.clone(), Arc::new(buffer), flight.clone());
            DeviceValue { ty, place: At::Device { device, buffer, flight } }
        };
        Submitted { names, values: values.map(value).collect(), flight: Some(flight.clone()) }
    }

    /// The value of that name, where it is.
    ///
    /// # Errors
    /// If there is none.
    pub fn value(&self, name: &str) -> Result<&DeviceValue> {
        let at = self.names.iter().position(|known| known == name);
        at.and_then(|at| self.values.get(at)).ok_or_else(|| {
            let known = self.names.join(", ");
            Error::Tensor(format!("no output `{name}`: expected one of {known}"))
        })
    }

    /// Names and values, in the order of the program.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &DeviceValue)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }

    /// The value of that name on the host, once the step has ended.
    ///
    /// # Errors
    /// If there is none; the fault of the step, or of the copy.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.value(name)?.to_host()
    }

    /// Waits for the end of the step.
    ///
    /// # Errors
    /// Its fault; or that it takes too long.
    pub fn wait(&self) -> Result<()> {
        self.flight.as_ref().map_or(Ok(()), |flight| flight.ended())
    }
}

impl DeviceValue {
    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The device that it is on; `None` if it is on the host.
    pub fn device(&self) -> Option<&DeviceId> {
        match &self.place {
            At::Host(_) => None,
            At::Device { device, .. } => device.queue().map(|queue| queue.device()),
        }
    }

    /// Its value on the host, once the step that makes it has ended.
    ///
    /// # Errors
    /// The fault of the step, or of the copy.
    pub fn to_host(&self) -> Result<Tensor> {
        match &self.place {
            At::Host(tensor) => Ok(tensor.clone()),
            At::Device { device, buffer, flight } => {
                let _guard = device.enter()?;
                flight.ended()?;
                let mut tensor = Tensor::to_write(self.ty.clone())?;
                if let Some(bytes) = tensor.own_bytes().filter(|bytes| !bytes.is_empty()) {
                    device.download(buffer.memory(), 0, bytes)?;
                }
                Ok(tensor)
            }
        }
    }
}

impl<'a> Input<'a> {
    /// Its type.
    pub fn ty(&self) -> &'a TensorType {
        match self {
            Input::Host(tensor) => tensor.ty(),
            Input::Device(value) => value.ty(),
        }
    }

    pub(crate) fn to_host(self) -> Result<Tensor> {
        match self {
            Input::Host(tensor) => Ok(tensor.clone()),
            Input::Device(value) => value.to_host(),
        }
    }

    /// The same where a step on that device can read it.
    pub(crate) fn on(&self, on: &Arc<dyn Device>) -> Result<Here<'a>> {
        match self {
            Input::Device(DeviceValue { place: At::Device { device, .. }, .. })
                if std::ptr::addr_eq(Arc::as_ptr(device), Arc::as_ptr(on)) =>
            {
                Ok(Here::As(*self))
            }
            Input::Host(_) => Ok(Here::As(*self)),
            Input::Device(value) => Ok(Here::Copied(value.to_host()?)),
        }
    }

    /// The tensor, or where it is on the device.
    pub(crate) fn place(&self) -> std::result::Result<&'a Tensor, Span> {
        match self {
            Input::Host(tensor) => Ok(tensor),
            Input::Device(DeviceValue { ty, place }) => match place {
                At::Host(tensor) => Ok(tensor),
                At::Device { buffer, .. } => {
                    Err(Span { memory: buffer.memory().clone(), at: 0, len: ty.bytes().get() })
                }
            },
        }
    }

    /// An error if the step that makes it is known to have failed.
    pub(crate) fn unfailed(&self) -> Result<()> {
        if let Input::Device(DeviceValue { place: At::Device { flight, .. }, .. }) = self
            && let Some(fault) = flight.fault()
        {
            flight.tell();
            return Err(fault.clone().into());
        }
        Ok(())
    }
}

/// An input where a step can read it.
pub(crate) enum Here<'a> {
    As(Input<'a>),
    Copied(Tensor),
}

impl Here<'_> {
    pub(crate) fn as_input(&self) -> Input<'_> {
        match self {
            Here::As(input) => *input,
            Here::Copied(tensor) => Input::Host(tensor),
        }
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Host(tensor)
    }
}

impl<'a> From<&'a DeviceValue> for Input<'a> {
    fn from(value: &'a DeviceValue) -> Self {
        Input::Device(value)
    }
}

impl fmt::Debug for DeviceValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device() {
            Some(device) => write!(f, "DeviceValue({} on {device})", self.ty),
            None => write!(f, "DeviceValue({})", self.ty),
        }
    }
}
