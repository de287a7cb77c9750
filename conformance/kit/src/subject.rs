//! [`Subject`]: the device that is checked, and the interpreter under its policies.

use std::sync::Arc;
use tracecast::Options;
use tracecast::runtime::{
    AmpSupport, Device, DeviceId, Kind, Launch, Memory, ReferenceDevice, Registry, Result,
};
use tracecast_ir::kernel::Kernel;
use tracecast_ir::policy::{DeviceType, Site};
use tracecast_ir::text::{DeviceKind, ParseOptions, parse_with};
use tracecast_ir::{DType, Graph};

/// The device that is checked.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) registry: Arc<Registry>,
    pub(crate) device: String,
}

impl Subject {
    pub(crate) fn options(&self) -> Options {
        Options::new().registry(&self.registry).device(&self.device)
    }

    /// The interpreter, under the policies of the device.
    pub(crate) fn reference(&self) -> Options {
        let policies = self.options().policies();
        Options::new().registry(&self.registry).device("reference").with_policies(policies)
    }

    /// The interpreter under the name of the device, so that autocast decides as it does there.
    pub(crate) fn interpreted(&self) -> Options {
        match self.kind() {
            Some(_) => self.options().on(Arc::new(Stand { name: self.device.clone() })),
            None => self.reference(),
        }
    }

    /// Its kind, if it is a registered one.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let id: DeviceId = self.device.parse().ok()?;
        self.registry.kinds().into_iter().find(|kind| *kind.name == *id.name())
    }

    /// The type by which programs know it.
    pub(crate) fn device_type(&self) -> DeviceType {
        self.kind().map_or(DeviceType::Cpu, |kind| kind.device_type)
    }

    /// What its kind says about autocast; `None` for a kind that says nothing.
    pub(crate) fn amp(&self) -> Option<AmpSupport> {
        match self.kind() {
            Some(kind) => kind.amp,
            None => Some(AmpSupport::new([DType::BF16])),
        }
    }

    /// The names of its devices: all of a kind.
    pub(crate) fn siblings(&self) -> Vec<String> {
        let devices = self.kind().map(|kind| kind.devices).unwrap_or_default();
        let names: Vec<String> = devices.iter().map(DeviceId::to_string).collect();
        if names.is_empty() { vec![self.device.clone()] } else { names }
    }

    pub(crate) fn parse(&self, text: &str) -> std::result::Result<Graph, String> {
        let ordinal = self.device.parse::<DeviceId>().map_or(0, |id| id.ordinal());
        let kinds = self.registry.kinds().into_iter().map(|kind| DeviceKind {
            name: kind.name.to_string(),
            device_type: kind.device_type,
            ordinals: Some(kind.devices.iter().map(DeviceId::ordinal).collect()),
        });
        let options = ParseOptions {
            policies: self.options().policies(),
            device: Site { kind: self.device_type(), ordinal },
            devices: kinds.collect(),
            ..ParseOptions::default()
        };
        parse_with(text, &options).map_err(|error| error.to_string())
    }
}

/// The interpreter under the name of a device.
#[derive(Debug)]
struct Stand {
    name: String,
}

impl Device for Stand {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        ReferenceDevice.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        ReferenceDevice.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        ReferenceDevice.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        ReferenceDevice.download(from, at, to)
    }
}
