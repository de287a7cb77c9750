//! [`Weights`]: state that many threads read at once; [`Published`]: the version of it that is
//! served now.

use super::place::Shared;
use super::{Entry, Store, next_number};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use tracecast_ir::TensorType;

/// Named state that nobody writes any more: what a [`Store`] held when [`Store::snapshot`] was
/// called. Any number of threads may run programs on it, each with a [`Session`](crate::Session);
/// it lies on its device once, and so do packed copies that the device makes of it.
///
/// A copy of the handle is the same version. A version that is made of another one shares with it
/// what is not replaced.
#[derive(Clone)]
pub struct Weights(Arc<Version>);

/// Which weights something is tied to, without keeping them.
pub(crate) struct Tie(Weak<Version>);

/// What is tied to the memory of weights.
pub(crate) trait Tied: Send + Sync {
    /// Nobody has the weights any more: their memory is to go.
    fn let_go(&self);
}

impl Tie {
    /// To none.
    pub(crate) fn none() -> Self {
        Tie(Weak::new())
    }

    /// True if it is to these.
    pub(crate) fn is_to(&self, weights: &Weights) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&weights.0))
    }
}

struct Version {
    number: u64,
    entries: BTreeMap<String, Arc<Shared>>,
    tied: Mutex<Vec<Weak<dyn Tied>>>,
}

impl Drop for Version {
    fn drop(&mut self) {
        let tied = self.tied.get_mut().unwrap_or_else(PoisonError::into_inner);
        tied.drain(..).filter_map(|tied| tied.upgrade()).for_each(|tied| tied.let_go());
    }
}

impl Weights {
    pub(super) fn of(entries: BTreeMap<String, Arc<Shared>>) -> Self {
        let number = next_number();
        Weights(Arc::new(Version { number, entries, tied: Mutex::default() }))
    }

    /// The number of the version, greater than that of any made before in this process.
    pub fn version(&self) -> u64 {
        self.0.number
    }

    /// A tie to these, which lets go when they do.
    pub(crate) fn tie(&self, tied: Weak<dyn Tied>) -> Tie {
        let mut all = self.0.tied.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|tied| tied.strong_count() > 0);
        }
        all.push(tied);
        Tie(Arc::downgrade(&self.0))
    }

    /// A store with these values, for programs that replace some of them. Until then the memory is
    /// that of the weights.
    pub fn to_store(&self) -> Store {
        let entry =
            |(name, shared): (&String, &Arc<Shared>)| (name.clone(), Entry::Shared(shared.clone()));
        let entries = self.0.entries.iter().map(entry).collect();
        Store { entries, flights: Vec::new(), layout: next_number() }
    }

    /// The value of an entry.
    ///
    /// # Errors
    /// If there is no such entry, or its device fails.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        self.entry(name)?.read()
    }

    /// The type of an entry.
    pub fn ty(&self, name: &str) -> Option<&TensorType> {
        self.0.entries.get(name).map(|entry| entry.ty())
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.entries.keys().map(String::as_str)
    }

    /// The memory of an entry of that type on a device.
    pub(crate) fn memory(
        &self,
        name: &str,
        ty: &TensorType,
        on: &Arc<dyn Device>,
    ) -> Result<Memory> {
        let found = self.entry(name)?;
        if found.ty() != ty {
            return Err(Error::state(name, Error::expected(ty, found.ty())));
        }
        found.memory(on)
    }

    fn entry(&self, name: &str) -> Result<&Arc<Shared>> {
        let missing = || {
            let known: Vec<&str> = self.names().take(8).collect();
            let more = if self.0.entries.len() > known.len() { ", …" } else { "" };
            Error::state(
                name,
                format!("is not among the weights, which are {}{more}", known.join(", ")),
            )
        };
        self.0.entries.get(name).ok_or_else(missing)
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types = self.0.entries.iter().map(|(name, entry)| (name, entry.ty().to_string()));
        write!(f, "Weights {} ", self.version())?;
        f.debug_map().entries(types).finish()
    }
}

/// The weights that are served now. Who runs takes them once per run, and so sees one version
/// whole, whenever another is published.
///
/// ```
/// use tracecast_runtime::{Published, Store, Tensor};
/// let mut store = Store::new().with("w", Tensor::scalar(1.0f32));
/// let served = Published::new(store.snapshot());
/// let before = served.current();
/// store.set("w", &Tensor::scalar(2.0f32))?;
/// served.publish(store.snapshot());
/// assert_eq!(before.get("w")?.item::<f32>()?, 1.0);
/// assert_eq!(served.current().get("w")?.item::<f32>()?, 2.0);
/// # Ok::<(), tracecast_runtime::Error>(())
/// ```
#[derive(Debug)]
pub struct Published(RwLock<Weights>);

impl Published {
    /// Serves these.
    pub fn new(weights: Weights) -> Self {
        Published(RwLock::new(weights))
    }

    /// The version that was published last.
    pub fn current(&self) -> Weights {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves another version from now on, and gives back the former one. Runs that have begun go
    /// on with theirs. It is freed when nobody has it any more: the caller has. A
    /// [`Session`](crate::Session) that ran on it does not keep it.
    pub fn publish(&self, weights: Weights) -> Weights {
        let mut served = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *served, weights)
    }
}
