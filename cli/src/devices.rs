//! The devices that the tool knows: those that come with it, and those of a registry.

use std::sync::{Arc, OnceLock};

use tracecast::Options;
use tracecast_ir::policy::{DeviceType, Site};
use tracecast_ir::text::DeviceKind;
use tracecast_runtime::{DeviceId, Registry};

/// The registry that the tool was started with.
static REGISTRY: OnceLock<Arc<Registry>> = OnceLock::new();

/// The tool knows these devices. Of several registries the first one counts.
pub(crate) fn know(registry: &Arc<Registry>) {
    let _ = REGISTRY.set(registry.clone());
}

/// The registry: that of the process unless the tool was started with another.
pub(crate) fn registry() -> &'static Arc<Registry> {
    REGISTRY.get().unwrap_or_else(|| Registry::global())
}

/// Options that know the devices of the registry.
pub(crate) fn options() -> Options {
    Options::new().registry(registry())
}

/// The device that programs run on if the command line names none.
pub(crate) const FIRST: &str = if cfg!(feature = "cpu") { "cpu" } else { "reference" };

/// The name of a device, such as `npu:1`.
pub(crate) fn named(name: &str) -> Result<String, String> {
    let mut known: Vec<String> = vec!["reference".to_owned()];
    if cfg!(feature = "cpu") {
        known.insert(0, "cpu".to_owned());
    }
    if known.iter().any(|known| known == name) {
        return Ok(name.to_owned());
    }
    known.extend(registry().kinds().iter().flat_map(|kind| &kind.devices).map(DeviceId::to_string));
    match name.parse::<DeviceId>() {
        Ok(id) if known.contains(&id.to_string()) => Ok(name.to_owned()),
        _ => Err(format!("expected one of {}", known.join(", "))),
    }
}

/// The type by which graphs and policies know the devices of a kind, which is one of the registry
/// or a device type.
pub(crate) fn device_type(name: &str) -> Result<DeviceType, String> {
    let id = name.parse::<DeviceId>().map_err(|error| error.to_string())?;
    let kinds = registry().kinds();
    match kinds.iter().find(|kind| *kind.name == *id.name()) {
        Some(kind) => Ok(kind.device_type),
        None if id.name() == "reference" => Ok(DeviceType::Cpu),
        None => id.name().parse::<DeviceType>().map_err(|error| error.to_string()),
    }
}

/// A device as graphs hold it.
pub(crate) fn site(name: &str) -> Result<Site, String> {
    let id = name.parse::<DeviceId>().map_err(|error| error.to_string())?;
    Ok(Site { kind: device_type(name)?, ordinal: id.ordinal() })
}

/// What devices from outside are called, and which there are.
pub(crate) fn names() -> Vec<DeviceKind> {
    let kinds = registry().kinds();
    let known = kinds.iter().map(|kind| DeviceKind {
        name: kind.name.to_string(),
        device_type: kind.device_type,
        ordinals: Some(kind.devices.iter().map(DeviceId::ordinal).collect()),
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_devices_that_there_are() {
        assert_eq!(named("reference"), Ok("reference".to_owned()));
        assert_eq!(named(FIRST), Ok(FIRST.to_owned()));
        for wrong in ["npu:1", "", "cpu:99", "reference:1", "a:b:c"] {
            assert!(named(wrong).unwrap_err().contains("expected one of"), "{wrong}");
        }
        assert_eq!(device_type("cuda:1"), Ok(DeviceType::Cuda));
        assert_eq!(device_type("reference"), Ok(DeviceType::Cpu));
        assert!(device_type("npu").is_err() && names().is_empty());
    }
}
