//! [`Store`]: parameters and other state by name, living where they are used.

mod flight;
mod pending;
mod place;
mod value;
mod weights;

pub(crate) use flight::Flight;
pub(crate) use pending::Ready;
pub(crate) use value::{Spare, Spares};
pub use weights::{Published, Weights};
pub(crate) use weights::{Tie, Tied};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::tensor::Tensor;
use place::{At, Shared};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tracecast_ir::TensorType;
use value::Value;

/// Named state. An entry lives on the host until an executable uses it, then in the memory of that executable's device; what is read
/// from here is always the current value.
///
/// On a device with a [queue](crate::Device::queue) a run may return while its step is *in flight*. What is read waits for it. If it fails, the next call that reads the
/// store, runs on it or [synchronizes](Store::synchronize) it is that error, once, and the store holds what it did after the last
/// complete step; what was [inserted](Store::insert) or [set](Store::set) since stays. A fault that no call has told is logged.
#[derive(Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    /// Steps that are not known to have ended, the first one first.
    flights: Vec<Arc<Flight>>,
}

/// A value of its own, or one that weights share.
enum Entry {
    Own(Value),
    Shared(Arc<Shared>),
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
        self.entries.insert(name.to_owned(), own(At::Host(value)));
    }

    /// Adds an entry of that type that has no value: its memory is made by the first program that writes it, and holds anything before. Replaces an entry of
    /// that name.
    pub fn reserve(&mut self, name: &str, ty: TensorType) {
        self.entries.insert(name.to_owned(), own(At::Reserved(ty)));
    }

    /// The current value of an entry.
    ///
    /// # Errors
    /// If there is no such entry, its device fails, or it is reserved and nothing has written it.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        let entry = self.entry(name)?;
        self.ended()?;
        entry.read()
    }

    /// Gives an entry a new value of the same type; it stays where it lives, unless [`Weights`] share it or its device has a queue.
    ///
    /// # Errors
    /// If there is no such entry, it has another type, its device fails, or a step in flight has.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let ty = self.entry(name)?.ty();
        if ty != value.ty() {
            return Err(Error::state(name, Error::expected(ty, value.ty())));
        }
        self.settle()?;
        let Some(entry) = self.entries.get_mut(name) else { return Ok(()) };
        if let Entry::Own(to) = entry
            && let At::Device { device, memory, .. } = to.at()
            && device.queue().is_none()
        {
            memory.changed();
            let _guard = device.enter()?;
            return device.upload(value.bytes(), memory, 0);
        }
        // A queue gets it with the next step: until that is complete, the former value may be wanted.
        *entry = own(At::Host(value.clone()));
        Ok(())
    }

    /// Forgets an entry without reading it: what is left to do with one whose device is lost. False if there is none.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// assert!(store.discard("w") && !store.discard("w"));
    /// ```
    pub fn discard(&mut self, name: &str) -> bool {
        self.entries.remove(name).is_some()
    }

    /// Takes an entry out.
    ///
    /// # Errors
    /// If there is no such entry, or its device fails; then it stays, unless it is [discarded](Store::discard).
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
            if let Entry::Own(value) = &entry {
                to.flights.retain(|flight| !flight.is_done());
                value.flights().for_each(|flight| to.follow(flight));
            }
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
        self.entries.iter().map(|(name, entry)| {
            self.ended()?;
            Ok((name.as_str(), entry.read()?))
        })
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

    /// What it holds now, to be read by many threads at once: nothing is copied, the store goes on with the same memory, and what a run on
    /// the store replaces gets memory of its own then. Waits for steps in flight: of one that does not end in time the store goes on to have what it will have
    /// written, and the weights have what was before it.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// let weights = store.snapshot();
    /// store.set("w", &Tensor::scalar(2.0f32))?;
    /// assert_eq!(weights.get("w")?.item::<f32>()?, 1.0);
    /// assert_eq!(store.get("w")?.item::<f32>()?, 2.0);
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    pub fn snapshot(&mut self) -> Weights {
        // Decided once for each step: it may end while entries are shared, and is to be there with all that it wrote or with nothing.
        let mut late: Vec<Arc<Flight>> = Vec::new();
        for flight in &self.flights {
            if late.iter().any(|late| flight.is_behind(late)) || flight.wait().is_err() {
                late.push(flight.clone());
            }
        }
        let mut weights = BTreeMap::new();
        for (name, entry) in std::mem::take(&mut self.entries) {
            let (entry, shared) = entry.share(&late);
            self.entries.insert(name.clone(), entry);
            weights.insert(name, shared);
        }
        Weights::of(weights)
    }

    /// The memory of an entry of that type on a device, to which it moves if it lives elsewhere. What is `written` is shared with nobody.
    pub(crate) fn memory(
        &mut self,
        name: &str,
        ty: &TensorType,
        on: &Arc<dyn Device>,
        written: bool,
    ) -> Result<Memory> {
        let found = self.entry(name)?;
        if found.ty() != ty {
            return Err(Error::state(name, Error::expected(ty, found.ty())));
        }
        match self.entries.get_mut(name) {
            Some(Entry::Own(value)) => value.settled().settle(on),
            Some(Entry::Shared(shared)) if !written => shared.memory(on),
            _ => self.own(name)?.settled().settle(on),
        }
    }

    /// Where an entry lives that is to be written: if weights share it, it becomes a copy of its own.
    fn own(&mut self, name: &str) -> Result<&mut Value> {
        let missing = || Error::state(name, "is not in the store");
        let entry = match self.entries.remove(name).ok_or_else(missing)? {
            Entry::Own(value) => Ok(value),
            Entry::Shared(shared) => match Arc::try_unwrap(shared) {
                Ok(own) => Ok(Value::of(own.into_at())),
                Err(shared) => match shared.read() {
                    Ok(value) => Ok(Value::of(At::Host(value))),
                    Err(error) => Err((shared, error)),
                },
            },
        };
        let (entry, failed) = match entry {
            Ok(value) => (Entry::Own(value), None),
            Err((shared, error)) => (Entry::Shared(shared), Some(error)),
        };
        match (self.entries.entry(name.to_owned()).or_insert(entry), failed) {
            (Entry::Own(value), None) => Ok(value),
            (_, error) => Err(error.unwrap_or_else(missing)),
        }
    }

    /// Puts another memory of the same device under an entry and returns the former one.
    pub(crate) fn swap(&mut self, name: &str, with: Memory) -> Memory {
        match self.entries.get_mut(name) {
            Some(Entry::Own(value)) => value.swap(with),
            _ => with,
        }
    }
}

/// An entry that lives there and that nobody shares.
fn own(at: At) -> Entry {
    Entry::Own(Value::of(at))
}

impl Entry {
    fn ty(&self) -> &TensorType {
        match self {
            Entry::Own(value) => value.ty(),
            Entry::Shared(shared) => shared.ty(),
        }
    }

    fn read(&self) -> Result<Tensor> {
        match self {
            Entry::Own(value) => value.read(),
            Entry::Shared(shared) => shared.read(),
        }
    }

    /// What weights have of it, and what it is from then on, if these steps in flight have not ended in time.
    fn share(self, late: &[Arc<Flight>]) -> (Entry, Arc<Shared>) {
        let shared = match self {
            Entry::Shared(shared) => shared,
            Entry::Own(mut value) => {
                if let Some(shared) = value.share_before(late) {
                    return (Entry::Own(value), shared);
                }
                match value.into_at() {
                    At::Shared(shared) => shared,
                    at => Arc::new(Shared::new(at)),
                }
            }
        };
        (Entry::Shared(shared.clone()), shared)
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
        let first = store.memory("w", &ty, &devices[0], true).unwrap();
        assert!(first.same(&store.memory("w", &ty, &devices[0], true).unwrap()));
        devices[0].upload(&2f32.to_le_bytes(), &first, 0).unwrap();
        assert_eq!(store.get("w").unwrap().item::<f32>().unwrap(), 2.0);
        store.set("w", &Tensor::scalar(3f32)).unwrap();
        assert!(first.same(&store.memory("w", &ty, &devices[0], true).unwrap()));
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
            let memory = store.memory(name, held.ty(), &device, true).unwrap();
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
        let memory = from.memory("w", &ty, &device, true).unwrap();
        from.transfer("w", &mut to, "v").unwrap();
        assert!(from.is_empty() && to.len() == 1);
        assert!(memory.same(&to.memory("v", &ty, &device, true).unwrap()));
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
