//! A kind of devices from outside: the interpreter under other names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tracecast::ir::kernel::Kernel;
use tracecast::ir::policy::DeviceType;
use tracecast::runtime::{
    AmpSupport, Backend, Device, DeviceId, Error, Launch, Memory, ReferenceDevice, Registry, Result,
};

/// One device, which calls itself so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Npu {
    pub(crate) name: String,
    pub(crate) amp: Option<AmpSupport>,
    pub(crate) serves: Option<DeviceType>,
    pub(crate) link: Arc<Link>,
}

/// What goes between the host and a device.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) uploads: AtomicUsize,
    pub(crate) downloads: AtomicUsize,
    pub(crate) is_lost: AtomicBool,
}

impl Link {
    fn carries(&self, count: &AtomicUsize) -> Result<()> {
        count.fetch_add(1, Ordering::SeqCst);
        match self.is_lost.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::Device("it is lost".to_owned())),
        }
    }
}

impl Npu {
    pub(crate) fn named(name: &str) -> Self {
        Npu { name: name.to_owned(), ..Npu::default() }
    }
}

impl Device for Npu {
    fn name(&self) -> &str {
        &self.name
    }

    fn amp(&self) -> Option<AmpSupport> {
        self.amp.clone()
    }

    fn serves(&self) -> Option<DeviceType> {
        self.serves
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        ReferenceDevice.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        ReferenceDevice.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        self.link.carries(&self.link.uploads)?;
        ReferenceDevice.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        self.link.carries(&self.link.downloads)?;
        ReferenceDevice.download(from, at, to)
    }
}

/// A driver of `count` devices, which counts how often it opens one.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    pub(crate) count: usize,
    pub(crate) amp: Option<AmpSupport>,
    pub(crate) serves: Option<DeviceType>,
    pub(crate) fault: Fault,
    pub(crate) opened: AtomicUsize,
}

/// What is wrong with a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Its first device cannot be opened when it is asked for the first time.
    First,
    Panics,
    /// Its devices call themselves this.
    CallsItself(&'static str),
}

impl Backend for Driver {
    fn count(&self) -> usize {
        self.count
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>> {
        let before = self.opened.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::First if before == 0 => Err(Error::Device("no firmware".to_owned())),
            Fault::Panics => panic!("a fault of the driver"),
            Fault::CallsItself(name) => Ok(Arc::new(Npu::named(name))),
            _ => Ok(Arc::new(Npu::named(&id.to_string()))),
        }
    }

    fn amp(&self) -> Option<AmpSupport> {
        self.amp.clone()
    }

    fn serves(&self) -> Option<DeviceType> {
        self.serves
    }
}

/// A registry with a driver whose devices are called `npu`.
pub(crate) fn with(driver: Driver) -> (Arc<Registry>, Arc<Driver>) {
    let (registry, driver) = (Arc::new(Registry::new()), Arc::new(driver));
    registry.register("npu", driver.clone()).unwrap();
    (registry, driver)
}
