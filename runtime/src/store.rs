//! [`Store`]: parameters and other state by name, living where they are used.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::tensor::{Tensor, room};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::TensorType;

/// Named state. An entry lives on the host until an executable uses it, then in the memory of that executable's device; what is read
/// from here is always the current value.
#[derive(Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
}

/// Where an entry lives.
enum Entry {
    Host(Tensor),
    Device { ty: TensorType, device: Arc<dyn Device>, memory: Memory },
}

impl Store {
    /// An empty store.
    pub fn new() -> Self {
        Store::default()
    }

    /// The same with one more entry; replaces an entry of that name.
    #[must_use]
    pub fn with(mut self, name: &str, value: Tensor) -> Self {
        self.insert(name, value);
        self
    }

    /// Adds an entry; replaces an entry of that name, whatever its type.
    pub fn insert(&mut self, name: &str, value: Tensor) {
        self.entries.insert(name.to_owned(), Entry::Host(value));
    }

    /// The current value of an entry.
    ///
    /// # Errors
    /// If there is no such entry, or its device fails.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.entry(name)?.read()
    }

    /// Gives an entry a new value of the same type; it stays where it lives.
    ///
    /// # Errors
    /// If there is no such entry, it has another type, or its device fails.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let ty = self.entry(name)?.ty();
        if ty != value.ty() {
            return Err(Error::state(name, Error::expected(ty, value.ty())));
        }
        match self.entries.get_mut(name) {
            Some(Entry::Device { device, memory, .. }) => {
                memory.changed();
                device.upload(value.bytes(), memory, 0)
            }
            Some(entry) => {
                *entry = Entry::Host(value.clone());
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes an entry out.
    ///
    /// # Errors
    /// If there is no such entry, or its device fails; then it stays.
    pub fn remove(&mut self, name: &str) -> Result<Tensor> {
        let value = self.get(name)?;
        self.entries.remove(name);
        Ok(value)
    }

    /// Moves an entry into another store under another name, in the place of an entry of that name. It goes on living in the same
    /// memory.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn transfer(&mut self, name: &str, to: &mut Store, under: &str) -> Result<()> {
        self.entry(name)?;
        if let Some(entry) = self.entries.remove(name) {
            to.entries.insert(under.to_owned(), entry);
        }
        Ok(())
    }

    /// True if there is an entry of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The type of an entry.
    pub fn ty(&self, name: &str) -> Option<&TensorType> {
        self.entries.get(name).map(Entry::ty)
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The names and current values, sorted by name; an item is an error if its device fails.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&str, Tensor)>> {
        self.entries.iter().map(|(name, entry)| Ok((name.as_str(), entry.read()?)))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The current values in another store, for another thread: what runs on one store does not show in the other.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// let copy = store.try_clone()?;
    /// store.insert("w", Tensor::scalar(2.0f32));
    /// assert_eq!(copy.get("w")?.item::<f32>()?, 1.0);
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a device fails.
    pub fn try_clone(&self) -> Result<Self> {
        self.iter().collect()
    }

    fn entry(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let mut known: Vec<&str> = self.names().take(8).collect();
            if self.len() > known.len() {
                known.push("…");
            }
            let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
            Error::state(name, format!("is not in the store, which has {known}"))
        })
    }

    /// The memory of an entry of that type on a device, to which it moves if it lives elsewhere.
    pub(crate) fn memory(
        &mut self,
        name: &str,
        ty: &TensorType,
        on: &Arc<dyn Device>,
    ) -> Result<Memory> {
        let found = self.entry(name)?;
        if found.ty() != ty {
            return Err(Error::state(name, Error::expected(ty, found.ty())));
        }
        match found {
            Entry::Device { device, memory, .. }
                if std::ptr::addr_eq(Arc::as_ptr(device), Arc::as_ptr(on)) =>
            {
                return Ok(memory.clone());
            }
            _ => {}
        }
        let memory = match self.entries.get_mut(name).and_then(|entry| entry.hand_over(on)) {
            Some(memory) => memory,
            None => {
                let value = self.get(name)?;
                let memory = on.alloc(ty.bytes().get())?;
                on.upload(value.bytes(), &memory, 0)?;
                memory
            }
        };
        let entry = Entry::Device { ty: ty.clone(), device: on.clone(), memory: memory.clone() };
        self.entries.insert(name.to_owned(), entry);
        Ok(memory)
    }

    /// Puts another memory of the same device under an entry and returns the former one.
    pub(crate) fn swap(&mut self, name: &str, with: Memory) -> Memory {
        match self.entries.get_mut(name) {
            Some(Entry::Device { memory, .. }) => std::mem::replace(memory, with),
            _ => with,
        }
    }
}

impl Entry {
    fn ty(&self) -> &TensorType {
        match self {
            Entry::Host(value) => value.ty(),
            Entry::Device { ty, .. } => ty,
        }
    }

    /// The value as memory of a device, if nobody else holds it and the device takes over its bytes; the entry then has no value until
    /// it gets that memory.
    fn hand_over(&mut self, to: &Arc<dyn Device>) -> Option<Memory> {
        let Entry::Host(value) = self else { return None };
        let own = value.own_value()?;
        match to.adopt(std::mem::take(&mut own.bytes)) {
            Ok(memory) => Some(memory),
            Err(bytes) => {
                own.bytes = bytes;
                None
            }
        }
    }

    fn read(&self) -> Result<Tensor> {
        match self {
            Entry::Host(value) => Ok(value.clone()),
            Entry::Device { ty, device, memory } => {
                let mut bytes = room(ty)?;
                device.download(memory, 0, &mut bytes)?;
                Tensor::from_bytes(ty.clone(), bytes)
            }
        }
    }
}

impl<N: AsRef<str>> FromIterator<(N, Tensor)> for Store {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(entries: I) -> Self {
        entries
            .into_iter()
            .fold(Store::new(), |store, (name, value)| store.with(name.as_ref(), value))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries.iter().map(|(name, entry)| (name, entry.ty().to_string())))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostMemory, ReferenceDevice};

    #[test]
    fn entries_follow_their_device_and_stay_current() {
        let mut store = Store::new().with("w", Tensor::scalar(1f32));
        let ty = store.ty("w").unwrap().clone();
        let devices: [Arc<dyn Device>; 2] = [Arc::new(ReferenceDevice), Arc::new(ReferenceDevice)];
        let first = store.memory("w", &ty, &devices[0]).unwrap();
        assert!(first.same(&store.memory("w", &ty, &devices[0]).unwrap()));
        devices[0].upload(&2f32.to_le_bytes(), &first, 0).unwrap();
        assert_eq!(store.get("w").unwrap().item::<f32>().unwrap(), 2.0);
        store.set("w", &Tensor::scalar(3f32)).unwrap();
        assert!(first.same(&store.memory("w", &ty, &devices[0]).unwrap()));
        assert_eq!(store.remove("w").unwrap().item::<f32>().unwrap(), 3.0);
        assert!(store.is_empty());
    }

    #[test]
    fn a_value_that_nobody_else_holds_is_not_copied() {
        let held = Tensor::rand([100], 1).unwrap();
        let mut store = Store::new().with("held", held.clone());
        store.insert("own", Tensor::rand([100], 2).unwrap());
        let own = store.get("own").unwrap().bytes().as_ptr();
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
        let mut address = |name: &str| {
            let memory = store.memory(name, held.ty(), &device).unwrap();
            memory.get::<HostMemory>().unwrap().as_ptr().cast_const()
        };
        assert!(address("own") == own && address("held") != held.bytes().as_ptr());
        assert_eq!(store.get("own").unwrap(), Tensor::rand([100], 2).unwrap());
        store.set("held", &Tensor::rand([100], 3).unwrap()).unwrap();
        assert_eq!(held, Tensor::rand([100], 1).unwrap());
    }

    #[test]
    fn entries_move_between_stores() {
        let mut from = Store::new().with("w", Tensor::scalar(1f32));
        let mut to = Store::new().with("v", Tensor::scalar(2f64));
        let ty = from.ty("w").unwrap().clone();
        let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
        let memory = from.memory("w", &ty, &device).unwrap();
        from.transfer("w", &mut to, "v").unwrap();
        assert!(from.is_empty() && to.len() == 1);
        assert!(memory.same(&to.memory("v", &ty, &device).unwrap()));
        assert!(from.transfer("w", &mut to, "v").is_err() && to.contains("v"));
    }

    #[test]
    fn errors_name_the_entry() {
        let mut store = Store::new().with("w", Tensor::scalar(1f32));
        let error = store.get("v").unwrap_err().to_string();
        assert!(error.contains("`v`") && error.contains("has w"), "{error}");
        let error = store.set("w", &Tensor::scalar(1f64)).unwrap_err().to_string();
        assert!(error.contains("expected f32[], found f64[]"), "{error}");
    }
}
