//! What the rest of the crate reads of [`Options`]: the device, its policies, and what passes are
//! told.

use super::{Choice, Options};
use crate::built_in;
use crate::device_context::DeviceContext;
use crate::error::{Error, Result};
use crate::report::Progress;
use std::sync::Arc;
use tracecast_ir::Verified;
use tracecast_ir::policy::PolicySet;
use tracecast_passes::PassOptions;
use tracecast_passes::fuse::{Prices, Settings};
use tracecast_runtime::{Device, Executable, Registry};

impl Options {
    pub(crate) fn bucket(&self) -> usize {
        self.bucket
    }

    /// The policies: those given, else PyTorch's with what the [kinds](tracecast_runtime::Kind) of
    /// devices in the registry add to them.
    pub fn policies(&self) -> Arc<PolicySet> {
        match (&self.policies, self.known()) {
            (Some(given), _) => given.clone(),
            (None, Ok((_, policies))) => policies.clone(),
            // A trace says that there is no such device.
            (None, Err(_)) => Arc::new(PolicySet::standard()),
        }
    }

    /// The device as a trace sees it.
    pub(crate) fn home(&self) -> Result<DeviceContext> {
        Ok(self.known()?.0.clone())
    }

    /// What is known of devices, and their policies: as it was when these options were first asked.
    fn known(&self) -> Result<&(DeviceContext, Arc<PolicySet>)> {
        if let Some(known) = self.opened.known.get() {
            return Ok(known);
        }
        let registry = self.in_registry();
        let home = match &self.device {
            // What comes with this crate need not be opened to be known.
            Choice::Named(name) if matches!(&**name, "cpu" | "reference") => {
                DeviceContext::built_in(name, registry)
            }
            _ => DeviceContext::of(&*self.target()?, registry)?,
        };
        let policies = Arc::new(home.policies());
        Ok(self.opened.known.get_or_init(|| (home, policies)))
    }

    fn in_registry(&self) -> &Registry {
        self.registry.as_ref().unwrap_or_else(|| Registry::global())
    }

    /// The device itself, opened at the first call.
    ///
    /// # Errors
    /// If no device has the name.
    pub fn target(&self) -> Result<Arc<dyn Device>> {
        if let Some(device) = self.opened.device.get() {
            return Ok(device.clone());
        }
        let device = match &self.device {
            Choice::Given(device) => device.clone(),
            Choice::Named(name) => self.open(name)?,
        };
        Ok(self.opened.device.get_or_init(|| device).clone())
    }

    /// The device for kernels that the device refuses, if one was chosen.
    ///
    /// # Errors
    /// If no device has the name.
    pub(crate) fn fallback_target(&self) -> Result<Option<Arc<dyn Device>>> {
        self.fallback.as_ref().map(|name| self.open(name)).transpose()
    }

    /// The name of that device.
    pub(crate) fn fallback_name(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Device>> {
        Ok(match name {
            #[cfg(feature = "cpu")]
            "cpu" => {
                let options = tracecast_codegen::CpuOptions {
                    threads: (self.threads > 0).then_some(self.threads),
                    vectors: self.vectors,
                    code_cache: self.code_cache.clone(),
                    forget_weights: !self.keep_weights,
                    compile_threads: (self.compile_threads > 0).then_some(self.compile_threads),
                };
                built_in::cpu(options)?
            }
            "reference" => built_in::reference(),
            _ => self.in_registry().device(name)?,
        })
    }

    /// What the passes are told.
    pub fn passes(&self) -> PassOptions {
        // A trace says that there is no such device.
        let known = self.known().map(|(home, _)| home.capabilities.clone());
        let capabilities = known.unwrap_or_default();
        PassOptions {
            policies: Some(self.policies()),
            precision: self.precision,
            fold: self.fold,
            forms: capabilities.forms,
            fusion: Settings {
                prices: Prices::CPU,
                store_all: self.store_all,
                plan_memory: self.plan_memory,
                limits: capabilities.limits,
            },
        }
    }

    pub(crate) fn observe(&self, pass: &str, graph: &Verified) {
        if let Some(observer) = &self.observer {
            observer(pass, graph);
        }
    }

    /// Tells the hook that a phase begins, if there is a hook.
    pub(crate) fn advance(&self, program: &str, phase: &str, done: usize, total: usize) {
        if let Some(hook) = &self.progress {
            hook(&Progress { program, phase, done, total });
        }
    }

    pub(crate) fn keeps_history(&self) -> bool {
        self.keep_history
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn does_reuse_outputs(&self) -> bool {
        self.reuse_outputs
    }

    pub(crate) fn start_seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn most_sizes(&self) -> usize {
        self.sizes
    }

    pub(crate) fn does_infer_sizes(&self) -> bool {
        self.infers_sizes
    }

    pub(crate) fn most_programs(&self) -> usize {
        self.programs
    }

    /// Refuses a program whose runs need more memory than is allowed.
    pub(crate) fn check_memory(&self, program: &str, bytes: usize) -> Result<()> {
        if bytes <= self.memory_limit {
            return Ok(());
        }
        let message = format!(
            "a run of @{program} needs {bytes} bytes of memory, and at most {} are allowed",
            self.memory_limit
        );
        Err(Error::Option { option: "memory_limit", message })
    }

    /// The same of a program that is loaded, with what its runs take on threads.
    pub(crate) fn check_run(&self, program: &Executable) -> Result<()> {
        if self.memory_limit == usize::MAX {
            return Ok(());
        }
        let bytes = program.peak_bytes().saturating_add(program.scratch_bytes());
        self.check_memory(program.program().name(), bytes)
    }

    pub(crate) fn most_program_bytes(&self) -> usize {
        self.program_bytes
    }

    /// The same with a device that has to be opened again.
    pub(super) fn closed(mut self) -> Self {
        self.opened = Arc::default();
        self
    }
}
