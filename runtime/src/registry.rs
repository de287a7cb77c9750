//! [`Registry`]: devices by name.

use crate::device::Device;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// Devices by name.
#[derive(Debug, Default)]
pub struct Registry {
    devices: RwLock<BTreeMap<String, Arc<dyn Device>>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Registry::default()
    }

    /// The registry of the process.
    pub fn global() -> &'static Registry {
        static GLOBAL: LazyLock<Registry> = LazyLock::new(Registry::new);
        &GLOBAL
    }

    /// Adds a device under its name.
    ///
    /// # Errors
    /// If there is a device of that name.
    pub fn register(&self, device: Arc<dyn Device>) -> Result<()> {
        let name = device.name().to_owned();
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if devices.contains_key(&name) {
            return Err(Error::Device(format!("`{name}` is registered already")));
        }
        devices.insert(name, device);
        Ok(())
    }

    /// The device of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn device(&self, name: &str) -> Result<Arc<dyn Device>> {
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = devices.keys().map(String::as_str).collect();
            Error::Device(format!("no device `{name}`: expected one of {}", known.join(", ")))
        })
    }

    /// The device of that name, made and added if there is none.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn device_or(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Arc<dyn Device>>,
    ) -> Result<Arc<dyn Device>> {
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(name) {
            return Ok(device.clone());
        }
        let device = make()?;
        devices.insert(name.to_owned(), device.clone());
        Ok(device)
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReferenceDevice;

    #[test]
    fn devices_are_found_by_name() {
        let registry = Registry::new();
        registry.register(Arc::new(ReferenceDevice)).unwrap();
        assert_eq!(registry.device("reference").unwrap().name(), "reference");
        assert!(registry.register(Arc::new(ReferenceDevice)).is_err());
        let error = registry.device("npu").unwrap_err().to_string();
        assert!(error.contains("npu") && error.contains("reference"), "{error}");
        assert!(registry.device_or("npu", || Ok(Arc::new(ReferenceDevice))).is_ok());
        assert_eq!(registry.names(), ["npu", "reference"]);
    }
}
