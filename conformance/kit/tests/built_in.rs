//! What comes with tracecast passes all cases, and a device that hangs or panics ends none but its
//! own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use tracecast_conformance::{Kit, Level, Outcome, check};
use tracecast_ir::kernel::Kernel;
use tracecast_runtime::{Device, Launch, Memory, ReferenceDevice, Registry, Result};

#[test]
fn what_comes_with_tracecast_passes_everything() {
    for device in ["reference", "cpu"] {
        let report = check(&Arc::new(Registry::new()), device, Level::Everything);
        assert!(report.passes() && report.count("unsupported") == 0, "{report}");
        assert!(report.count("pass") >= 1000, "{report}");
    }
}

/// Interprets, but for kernels of some names.
#[derive(Debug)]
struct Broken {
    hangs: bool,
}

impl Device for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        if kernel.name.contains("exp") {
            match self.hangs {
                true => std::thread::sleep(Duration::from_secs(3600)),
                false => panic!("no exponents"),
            }
        }
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

#[test]
fn a_device_that_hangs_or_panics_fails_where_it_does() {
    for hangs in [true, false] {
        let registry = Arc::new(Registry::new());
        registry.register_device(Arc::new(Broken { hangs })).unwrap();
        let kit = Kit::new(Level::Maps).limit(Duration::from_secs(2));
        let begun = Instant::now();
        let report = kit.check(&registry, "broken");
        assert!(begun.elapsed() < Duration::from_secs(60));
        let of = |name: &str| report.cases.iter().find(|case| case.name == name).unwrap();
        let Outcome::Fail { why, .. } = &of("ops/exp").outcome else { panic!("{report}") };
        assert!(why.contains(if hangs { "no answer" } else { "no exponents" }), "{why}");
        assert_eq!(of("ops/log").outcome, Outcome::Pass, "{report}");
        assert_eq!(of("memory/comes_back").outcome.name(), "skipped");
    }
}
