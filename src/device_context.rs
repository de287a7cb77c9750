//! [`DeviceContext`]: the device that a program is traced for, and the other devices that regions
//! may name.

use std::sync::Arc;
use tracecast_ir::DType;
use tracecast_ir::kernel::{Capabilities, FormKind};
use tracecast_ir::policy::{Accepted, DeviceType, PolicySet, Region, Site};
use tracecast_runtime::{Device, DeviceId, Error, Kind, Registry, Result, ScalerRecorder};

/// The device that a program is for, as far as autocast and the tensors of the program are
/// concerned.
#[derive(Clone, Debug)]
pub(crate) struct DeviceContext {
    /// The name of its kind, which stands for its type where a region is opened.
    name: String,
    /// Where the ports of a program live.
    pub(crate) device: Site,
    /// What is registered, and the kind of this device.
    kinds: Vec<Kind>,
    /// What its kernels can do.
    pub(crate) capabilities: Capabilities,
}

impl DeviceContext {
    /// That of a device which every process has: the CPU and the interpreter.
    pub(crate) fn built_in(name: &str, registry: &Registry) -> Self {
        let (device, kinds) = (DeviceType::Cpu.into(), registry.kinds());
        let capabilities =
            Capabilities { forms: FormKind::ALL.to_vec(), ..Capabilities::default() };
        DeviceContext { name: name.to_owned(), device, kinds, capabilities }
    }

    /// That of a device at hand, whether it is registered or not.
    ///
    /// # Errors
    /// If its name is none, four other kinds from outside are registered, or the default dtype of
    /// its regions is none that they take.
    pub(crate) fn of(device: &dyn Device, registry: &Registry) -> Result<Self> {
        let id: DeviceId = device.name().parse()?;
        let (mut kinds, capabilities) = (registry.kinds(), device.capabilities());
        if let Some(own) = kinds.iter().find(|kind| *kind.name == *id.name()) {
            let device = Site { kind: own.device_type, ordinal: id.ordinal() };
            return Ok(DeviceContext { name: id.name().to_owned(), device, kinds, capabilities });
        }
        let is_free = |ty: &DeviceType| kinds.iter().all(|kind| kind.device_type != *ty);
        let ty = device.serves().or_else(|| DeviceType::OUTSIDE.into_iter().find(is_free));
        let full =
            || Error::Device(format!("no type is left for `{id}`: four kinds are registered"));
        let (name, device_type) = (id.name().to_owned(), ty.ok_or_else(full)?);
        let amp = device.amp();
        amp.as_ref().map_or(Ok(()), |amp| amp.check(&name))?;
        let device = Site { kind: device_type, ordinal: id.ordinal() };
        kinds.push(Kind { name: name.as_str().into(), device_type, amp, devices: vec![id] });
        Ok(DeviceContext { name, device, kinds, capabilities })
    }

    /// PyTorch's policies, with what the kinds of devices add to them.
    pub(crate) fn policies(&self) -> PolicySet {
        let mut policies = PolicySet::standard();
        for kind in &self.kinds {
            if let Some(amp) = &kind.amp {
                amp.add_to(&mut policies, kind.device_type);
            }
        }
        policies
    }

    /// Who records loss scaling for this device, if it is not recorded as everywhere.
    pub(crate) fn recorder(&self) -> Option<&Arc<dyn ScalerRecorder>> {
        let kind = self.kinds.iter().find(|kind| kind.device_type == self.device.kind);
        kind?.amp.as_ref()?.recorder.as_ref()
    }

    /// The dtype in which programs of this device count good steps, if they do.
    pub(crate) fn tracker(&self) -> Option<DType> {
        self.recorder().map_or(Some(DType::I32), |recorder| recorder.tracker())
    }

    /// What it is called, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The device type that a region names: `cuda`, `cuda:1`, or the name of this device or of one
    /// that is registered.
    ///
    /// # Errors
    /// If there is none of that name, or the kind has no device of that number.
    pub(crate) fn device_type(&self, name: &str) -> std::result::Result<DeviceType, String> {
        let unknown = || {
            let mut message =
                format!("unknown device type `{name}`: expected one of {}", DeviceType::names());
            for kind in &self.kinds {
                message += &format!(", {}", kind.name);
            }
            message
        };
        let Ok(id) = name.parse::<DeviceId>() else { return Err(unknown()) };
        let Some(kind) = self.kinds.iter().find(|kind| *kind.name == *id.name()) else {
            let own = (id.name() == self.name).then_some(self.device.kind);
            return own.or_else(|| id.name().parse().ok()).ok_or_else(unknown);
        };
        // The kind alone says nothing about a device.
        if name.contains(':') && !kind.devices.contains(&id) {
            let known: Vec<String> = kind.devices.iter().map(DeviceId::to_string).collect();
            let known = if known.is_empty() { "it has none".to_owned() } else { known.join(", ") };
            return Err(format!("no device `{id}`: {known}"));
        }
        Ok(kind.device_type)
    }

    /// The low dtypes that regions of a device type take: what its kind says, if one is registered
    /// that says something.
    ///
    /// # Errors
    /// If it is the type of a device from outside that says nothing.
    pub(crate) fn accepted(&self, device: DeviceType) -> std::result::Result<Accepted<'_>, String> {
        let kind = self.kinds.iter().find(|kind| kind.device_type == device);
        match kind.map(|kind| (&kind.name, &kind.amp)) {
            Some((_, Some(amp))) => Ok(Accepted::Only(&amp.dtypes)),
            Some((name, None)) if device.is_outside() => Err(format!(
                "`{name}` has no autocast: its device says nothing about it (`AmpSupport`), so a region of it can neither be on nor off"
            )),
            _ => Ok(device.accepted()),
        }
    }

    /// The state in which a region of a device type is opened: as long as nobody has named the
    /// type, its low dtype is the one that its kind says.
    pub(crate) fn around(&self, region: Region, device: DeviceType) -> Region {
        let kind = self.kinds.iter().find(|kind| kind.device_type == device);
        match kind.and_then(|kind| kind.amp.as_ref()) {
            Some(amp) if !region.is_enabled(device) && !region.is_switched_off(device) => {
                region.with_low(device, amp.default)
            }
            _ => region,
        }
    }
}
