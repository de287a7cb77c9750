//! [`Registry`]: kinds of devices by name, and their devices.

use crate::device::{AmpSupport, Backend, Device, DeviceId};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tracecast_ir::policy::DeviceType;

/// Kinds of devices by name, and their devices. A registry is a value;
/// [that of the process](Registry::global) is one of them.
///
/// A kind is registered under a name and gets a device type by which graphs and policies know it:
/// the one that it [serves](Backend::serves), or the next free one of the four
/// [from outside](DeviceType::OUTSIDE). Devices are asked for by name and number, `npu:1`, and
/// opened at first use.
#[derive(Debug, Default)]
pub struct Registry {
    state: RwLock<State>,
}

/// What is known of a kind of devices.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The name that it is registered under.
    pub name: Arc<str>,
    /// The type by which graphs and policies know it.
    pub device_type: DeviceType,
    /// What its devices do under autocast; `None` for a type with a table of its own: what that
    /// type does, and for one from outside: regions are errors.
    pub amp: Option<AmpSupport>,
    /// Its devices, open or not.
    pub devices: Vec<DeviceId>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were registered.
    kinds: Vec<Arc<Entry>>,
    /// What types from outside are called that were given a name.
    names: BTreeMap<DeviceType, Arc<str>>,
    /// How long waits for its devices may take, if that was said.
    limit: Option<Duration>,
}

/// A kind, and its open devices.
#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    device_type: DeviceType,
    amp: Option<AmpSupport>,
    /// `None`: all of its devices were open when they were registered.
    backend: Option<Arc<dyn Backend>>,
    opened: Mutex<BTreeMap<u16, Arc<dyn Device>>>,
    /// The thread that is opening one.
    opening: Mutex<Option<ThreadId>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Registry::default()
    }

    /// The registry of the process.
    pub fn global() -> &'static Arc<Registry> {
        static GLOBAL: LazyLock<Arc<Registry>> = LazyLock::new(Arc::default);
        &GLOBAL
    }

    /// Adds a kind of devices under a name, and returns the type by which graphs and policies know
    /// it.
    ///
    /// # Errors
    /// If a text could not hold the name, it is taken or that of a device type which the backend
    /// does not serve, another kind has the type, there are four kinds from outside already, or the
    /// default dtype of its regions is none that they take.
    pub fn register(&self, name: &str, backend: Arc<dyn Backend>) -> Result<DeviceType> {
        let (amp, serves) = (backend.amp(), backend.serves());
        self.add(name, amp, serves, Some(backend))
    }

    /// Adds a device that is open, as one of the kind that its name says: `npu:1`, or `npu`. The
    /// first one of a kind says what all do under autocast.
    ///
    /// # Errors
    /// Those of [`register`](Registry::register); if there is a device of that name, or the kind
    /// has a backend that opens its devices.
    pub fn register_device(&self, device: Arc<dyn Device>) -> Result<DeviceType> {
        let id: DeviceId = device.name().parse()?;
        let known = self.entry(&id).ok();
        let entry = match known {
            Some(entry) if entry.backend.is_some() => {
                return Err(Error::Device(format!("`{}` is registered already", id.name())));
            }
            Some(entry) => entry,
            None => {
                self.add(id.name(), device.amp(), device.serves(), None)?;
                self.entry(&id)?
            }
        };
        let mut opened = lock(&entry.opened);
        if opened.contains_key(&id.ordinal()) {
            return Err(Error::Device(format!("`{id}` is registered already")));
        }
        opened.insert(id.ordinal(), device.clone());
        // Who lists kinds locks the state first and this behind it. A limit that is set meanwhile
        // is seen here or finds the device.
        drop(opened);
        self.limit(&*device);
        Ok(entry.device_type)
    }

    fn add(
        &self,
        name: &str,
        amp: Option<AmpSupport>,
        serves: Option<DeviceType>,
        backend: Option<Arc<dyn Backend>>,
    ) -> Result<DeviceType> {
        DeviceId::new(name, 0)?;
        amp.as_ref().map_or(Ok(()), |amp| amp.check(name))?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.kinds.iter().any(|entry| *entry.name == *name) {
            return Err(Error::Device(format!("`{name}` is registered already")));
        }
        let device_type = state.device_type(name, serves)?;
        state.kinds.push(Arc::new(Entry {
            name: name.into(),
            device_type,
            amp,
            backend,
            opened: Mutex::default(),
            opening: Mutex::default(),
        }));
        Ok(device_type)
    }

    /// Gives a type from outside the name under which its kind is then registered: what PyTorch
    /// calls renaming the backend.
    ///
    /// # Errors
    /// If it is no type from outside, has another name or a kind already; if a text could not hold
    /// the name, or it is taken.
    pub fn rename(&self, device_type: DeviceType, name: &str) -> Result<()> {
        let refused = |why: &str| {
            Err(Error::Device(format!("{device_type} cannot be called `{name}`: {why}")))
        };
        DeviceId::new(name, 0)?;
        if !device_type.is_outside() {
            return refused("only types from outside are given names");
        }
        if name.parse::<DeviceType>().is_ok() {
            return refused("that is the name of a device type");
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match state.names.get(&device_type) {
            Some(known) if **known == *name => return Ok(()),
            Some(known) => return refused(&format!("it is called `{known}` already")),
            None => {}
        }
        if let Some(entry) = state.kinds.iter().find(|entry| entry.device_type == device_type) {
            return refused(&format!("`{}` is registered for it already", entry.name));
        }
        let kinds = state.kinds.iter().map(|entry| &entry.name);
        if kinds.chain(state.names.values()).any(|known| **known == *name) {
            return refused("the name is taken");
        }
        state.names.insert(device_type, name.into());
        Ok(())
    }

    /// Removes a kind none of whose devices is in use: nothing but the registry has a handle of
    /// one, no executable, tensor or entry of a store.
    ///
    /// # Errors
    /// If there is no such kind, or one of its devices is in use.
    pub fn unregister(&self, name: &str) -> Result<()> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = state.kinds.iter().position(|entry| *entry.name == *name) else {
            return Err(state.unknown(name));
        };
        // Who opens a device may ask the registry for others, so nobody waits for that here.
        let opened = match state.kinds[at].opened.try_lock() {
            Ok(opened) => opened,
            Err(TryLockError::Poisoned(opened)) => opened.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let why = format!("`{name}` is in use: one of its devices is being opened");
                return Err(Error::Device(why));
            }
        };
        for (ordinal, device) in &*opened {
            match Arc::strong_count(device) - 1 {
                0 => {}
                held => {
                    return Err(Error::Device(format!(
                        "`{name}:{ordinal}` is in use: there are {held} handles of it, in executables, tensors, stores or elsewhere"
                    )));
                }
            }
        }
        drop(opened);
        state.kinds.remove(at);
        Ok(())
    }

    /// The device of that name, opened if it is asked for the first time: `npu:1`, or `npu` for the
    /// first of its kind.
    ///
    /// # Errors
    /// If there is no such kind or number, or the device cannot be opened, panics at it, or calls
    /// itself something else.
    pub fn device(&self, name: &str) -> Result<Arc<dyn Device>> {
        let id: DeviceId = name.parse()?;
        self.entry(&id)?.device(&id, &|device| self.limit(device))
    }

    /// No wait for one of its devices takes longer than that from now on, whatever drivers say;
    /// then there is a fault of kind [`TimedOut`](crate::FaultKind::TimedOut). Holds for devices
    /// that are open and for those that are opened later.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tracecast_runtime::Registry;
    ///
    /// let registry = Registry::new();
    /// registry.set_wait_limit(Duration::from_secs(5));
    /// ```
    pub fn set_wait_limit(&self, limit: Duration) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.limit = Some(limit);
        let kinds = state.kinds.clone();
        // Who opens a device asks for the limit, so nobody waits for that with the lock.
        drop(state);
        // Nor does who opens one here wait for itself.
        let me = thread::current().id();
        for entry in kinds.iter().filter(|entry| *lock(&entry.opening) != Some(me)) {
            lock(&entry.opened).values().for_each(|device| self.limit(&**device));
        }
    }

    /// Has waits for a device end in time.
    fn limit(&self, device: &dyn Device) {
        let limit = self.state.read().unwrap_or_else(PoisonError::into_inner).limit;
        if let Some((queue, limit)) = device.queue().zip(limit) {
            queue.set_limit(limit);
        }
    }

    /// What is registered, in the order in which it was.
    pub fn kinds(&self) -> Vec<Kind> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.kinds.iter().map(|entry| entry.kind()).collect()
    }

    fn entry(&self, id: &DeviceId) -> Result<Arc<Entry>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let found = state.kinds.iter().find(|entry| *entry.name == *id.name());
        found.cloned().ok_or_else(|| state.unknown(id.name()))
    }
}

impl State {
    /// The type of a kind that is about to be registered.
    fn device_type(&self, name: &str, serves: Option<DeviceType>) -> Result<DeviceType> {
        let holder = |ty| self.kinds.iter().find(|entry| entry.device_type == ty);
        let refused =
            |why: String| Err(Error::Device(format!("`{name}` cannot be registered: {why}")));
        if name == "reference" {
            return refused("that is the name of the interpreter".to_owned());
        }
        let named = name.parse::<DeviceType>().ok();
        if let Some(ty) = serves {
            return match (ty, holder(ty)) {
                (DeviceType::Cpu, _) => refused("the cpu has its device".to_owned()),
                (_, Some(holder)) => refused(format!("`{}` serves {ty} already", holder.name)),
                _ if named.is_some_and(|named| named != ty) => {
                    refused(format!("that is the name of another device type than {ty}"))
                }
                _ => Ok(ty),
            };
        }
        if let Some(named) = named.filter(|ty| !ty.is_outside()) {
            return refused(format!(
                "{named} is an in-tree device type, which its backend does not serve"
            ));
        }
        let renamed = self.names.iter().find(|(_, known)| ***known == *name).map(|(ty, _)| *ty);
        let is_free = |ty: &DeviceType| holder(*ty).is_none() && !self.names.contains_key(ty);
        let free = named.or_else(|| DeviceType::OUTSIDE.into_iter().find(is_free));
        match renamed.or(free) {
            Some(ty) => match holder(ty) {
                None => Ok(ty),
                Some(holder) => refused(format!("`{}` has the type {ty}", holder.name)),
            },
            None => refused("there are four kinds from outside already".to_owned()),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<String> =
            self.kinds.iter().flat_map(|entry| entry.devices()).map(|id| id.to_string()).collect();
        let known = match known.is_empty() {
            true => "none is registered".to_owned(),
            false => format!("expected one of {}", known.join(", ")),
        };
        Error::Device(format!("no device `{name}`: {known}"))
    }
}

impl Entry {
    fn kind(&self) -> Kind {
        Kind {
            name: self.name.clone(),
            device_type: self.device_type,
            amp: self.amp.clone(),
            devices: self.devices(),
        }
    }

    fn devices(&self) -> Vec<DeviceId> {
        let ordinals: Vec<u16> = match &self.backend {
            Some(backend) => (0..backend.count().min(1 << 16)).map(|i| i as u16).collect(),
            None => lock(&self.opened).keys().copied().collect(),
        };
        ordinals.into_iter().filter_map(|i| DeviceId::new(&self.name, i).ok()).collect()
    }

    fn device(&self, id: &DeviceId, opens: &dyn Fn(&dyn Device)) -> Result<Arc<dyn Device>> {
        if *lock(&self.opening) == Some(thread::current().id()) {
            return Err(Error::Device(format!(
                "`{id}` is asked for while a device of its kind is opened"
            )));
        }
        // Who asks for a device that another thread opens waits for it.
        let mut opened = lock(&self.opened);
        if let Some(device) = opened.get(&id.ordinal()) {
            return Ok(device.clone());
        }
        let count = self.backend.as_ref().map_or(opened.len(), |backend| backend.count());
        let backend = self.backend.as_ref().filter(|_| usize::from(id.ordinal()) < count);
        let Some(backend) = backend else {
            let devices = if count == 1 { "device" } else { "devices" };
            return Err(Error::Device(format!(
                "no device `{id}`: `{}` has {count} {devices}",
                self.name
            )));
        };
        *lock(&self.opening) = Some(thread::current().id());
        let made = catch_unwind(AssertUnwindSafe(|| backend.open(id)));
        *lock(&self.opening) = None;
        let device = made.unwrap_or_else(|_| {
            Err(Error::Device(format!("`{id}` cannot be opened: its backend panicked")))
        })?;
        if device.name().parse::<DeviceId>().ok().as_ref() != Some(id) {
            let own = device.name();
            return Err(Error::Device(format!(
                "the device that was opened as `{id}` calls itself `{own}`"
            )));
        }
        if self.amp.is_none() && device.amp().is_some() {
            return Err(Error::Device(format!(
                "`{id}` says what autocast may do, and its backend does not: expected `Backend::amp`, which speaks for all devices of the kind"
            )));
        }
        opens(&*device);
        opened.insert(id.ordinal(), device.clone());
        Ok(device)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
