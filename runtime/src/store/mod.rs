//! [`Store`]: parameters and other state by name, living where they are used.

mod flight;
mod pending;
mod place;
#[cfg(test)]
mod tests;
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
use std::sync::atomic::{AtomicU64, Ordering};
use tracecast_ir::TensorType;
use value::Value;

/// Named state. An entry lives on the host until an executable uses it, then in the memory of that
/// executable's device; what is read from here is always the current value.
///
/// On a device with a [queue](crate::Device::queue) a run may return while its step is *in flight*.
/// What is read waits for it. If it fails, the next call that reads the store, runs on it or
/// [synchronizes](Store::synchronize) it is that error, once, and the store holds what it did after
/// the last complete step; what was [inserted](Store::insert) or [set](Store::set) since stays. A
/// fault that no call has told is logged.
#[derive(Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    /// Steps that are not known to have ended, the first one first.
    flights: Vec<Arc<Flight>>,
    layout: u64,
}

/// The next of the numbers that tell layouts and versions of this process apart.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
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
        self.put(name, own(At::Host(value)));
    }

    /// Adds an entry of that type that has no value: its memory is made by the first program that
    /// writes it, and holds anything before. Replaces an entry of that name.
    pub fn reserve(&mut self, name: &str, ty: TensorType) {
        self.put(name, own(At::Reserved(ty)));
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

    /// Gives an entry a new value of the same type; it stays where it lives, unless [`Weights`]
    /// share it or its device has a queue.
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
        // A queue gets it with the next step: until that is complete, the former value may be
        // wanted.
        *entry = own(At::Host(value.clone()));
        Ok(())
    }

    /// Forgets an entry without reading it: what is left to do with one whose device is lost. False
    /// if there is none.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// assert!(store.discard("w") && !store.discard("w"));
    /// ```
    pub fn discard(&mut self, name: &str) -> bool {
        self.take(name).is_some()
    }

    /// Takes an entry out.
    ///
    /// # Errors
    /// If there is no such entry, or its device fails; then it stays, unless it is
    /// [discarded](Store::discard).
    pub fn remove(&mut self, name: &str) -> Result<Tensor> {
        let value = self.get(name)?;
        self.take(name);
        Ok(value)
    }

    /// Moves an entry into another store under another name, in the place of an entry of that name.
    /// It goes on living in the same memory.
    ///
    /// # Errors
    /// If there is no such entry.
    pub fn transfer(&mut self, name: &str, to: &mut Store, under: &str) -> Result<()> {
        self.entry(name)?;
        if let Some(entry) = self.take(name) {
            if let Entry::Own(value) = &entry {
                to.flights.retain(|flight| !flight.is_done());
                value.flights().for_each(|flight| to.follow(flight));
            }
            to.put(under, entry);
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

    /// A number that stands for the names and types of the entries: another one whenever an entry
    /// comes, goes or is replaced, never that of another store with entries, and 0 for one that
    /// never had any. Who has looked at all of them need not look again while it is the same.
    ///
    /// ```
    /// use tracecast_runtime::{Store, Tensor};
    /// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
    /// let before = store.layout();
    /// store.set("w", &Tensor::scalar(2.0f32))?;
    /// assert_eq!(store.layout(), before);
    /// store.insert("w", Tensor::scalar(2.0f64));
    /// assert_ne!(store.layout(), before);
    /// # Ok::<(), tracecast_runtime::Error>(())
    /// ```
    pub fn layout(&self) -> u64 {
        self.layout
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

    /// The current values in another store, for another thread: what runs on one store does not
    /// show in the other.
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

    fn put(&mut self, name: &str, entry: Entry) {
        self.layout = next_number();
        self.entries.insert(name.to_owned(), entry);
    }

    fn take(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        self.layout = next_number();
        Some(entry)
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

    /// What it holds now, to be read by many threads at once: nothing is copied, the store goes on
    /// with the same memory, and what a run on the store replaces gets memory of its own then.
    /// Waits for steps in flight: of one that does not end in time the store goes on to have what
    /// it will have written, and the weights have what was before it.
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
        // Decided once for each step: it may end while entries are shared, and is to be there with
        // all that it wrote or with nothing.
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

    /// The memory of an entry of that type on a device, to which it moves if it lives elsewhere.
    /// What is `written` is shared with nobody.
    pub(crate) fn memory(
        &mut self,
        name: &str,
        ty: &TensorType,
        on: &Arc<dyn Device>,
        written: bool,
    ) -> Result<Memory> {
        match self.entries.get_mut(name) {
            Some(entry) if entry.ty() != ty => {
                Err(Error::state(name, Error::expected(ty, entry.ty())))
            }
            Some(Entry::Own(value)) => value.settled().settle(on),
            Some(Entry::Shared(shared)) if !written => shared.memory(on),
            Some(_) => self.own(name)?.settled().settle(on),
            None => self.entry(name).and_then(|_| Err(Error::state(name, "is not in the store"))),
        }
    }

    /// Where an entry lives that is to be written: if weights share it, it becomes a copy of its
    /// own.
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

    /// What weights have of it, and what it is from then on, if these steps in flight have not
    /// ended in time.
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
