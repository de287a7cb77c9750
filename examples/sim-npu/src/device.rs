//! [`Npu`]: one chip, as a device.

use crate::isa::Program;
use crate::lower::lower;
use crate::machine;
use crate::memory::{Region, Space, Usage};
use crate::{Settings, amp};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_runtime::ir::kernel::Kernel;
use tracecast_runtime::{AmpSupport, Arg, Bound, Device, DeviceId, Error, Launch, Memory, Result};

/// One chip.
#[derive(Debug)]
pub struct Npu {
    name: String,
    settings: Settings,
    chip: Arc<Chip>,
}

/// What is behind the device: its address space, and the bytes of it.
#[derive(Debug)]
struct Chip {
    space: Arc<Space>,
    bytes: Mutex<Vec<u8>>,
}

impl Npu {
    /// The chip of that name.
    pub fn new(id: &DeviceId, settings: Settings) -> Self {
        let chip = Chip {
            space: Space::new(settings.memory),
            bytes: Mutex::new(vec![0; settings.memory]),
        };
        Npu { name: id.to_string(), settings, chip: Arc::new(chip) }
    }

    /// What of its memory is in use.
    pub fn usage(&self) -> Usage {
        self.chip.space.usage()
    }

    fn error(&self, why: impl std::fmt::Display) -> Error {
        Error::Device(format!("{}: {why}", self.name))
    }
}

impl Chip {
    /// The addresses of a part of memory.
    fn part(&self, memory: &Memory, at: usize, len: usize) -> Result<Range<usize>> {
        let region = memory.get::<Region>()?;
        if !Arc::ptr_eq(region.space(), &self.space) {
            return Err(Error::Device("memory of another device".to_owned()));
        }
        region.part(at, len).map_err(Error::Device)
    }

    fn bytes<T>(&self, with: impl FnOnce(&mut [u8]) -> T) -> T {
        with(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for Npu {
    fn name(&self) -> &str {
        &self.name
    }

    fn amp(&self) -> Option<AmpSupport> {
        Some(amp())
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        let program = lower(kernel, self.settings.memories)
            .map_err(|why| self.error(format!("no code for kernel @{}: {why}", kernel.name)))?;
        Ok(Box::new(Loaded {
            kernel: Arc::new(kernel.clone()),
            program: Arc::new(program),
            chip: self.chip.clone(),
        }))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        let region = self.chip.space.take(bytes).map_err(|full| {
            self.error(format!(
                "out of memory: {bytes} bytes asked for, {} of {} in use",
                full.in_use, full.limit
            ))
        })?;
        Ok(Memory::new(region))
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        let part = self.chip.part(to, at, from.len())?;
        self.chip.bytes(|bytes| bytes[part].copy_from_slice(from));
        Ok(())
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        let part = self.chip.part(from, at, to.len())?;
        self.chip.bytes(|bytes| to.copy_from_slice(&bytes[part]));
        Ok(())
    }
}

/// A kernel with its program.
#[derive(Debug)]
struct Loaded {
    kernel: Arc<Kernel>,
    program: Arc<Program>,
    chip: Arc<Chip>,
}

impl Launch for Loaded {
    fn bind(&self, args: &[Arg], _: &[i64]) -> Result<Box<dyn Bound>> {
        let operands = args.iter().map(|arg| self.chip.part(&arg.memory, arg.offset, arg.len));
        Ok(Box::new(Call {
            kernel: self.kernel.clone(),
            program: self.program.clone(),
            chip: self.chip.clone(),
            operands: operands.collect::<Result<_>>()?,
            held: args.iter().map(|arg| arg.memory.clone()).collect(),
        }))
    }

    fn text(&self) -> Option<String> {
        Some(self.program.to_string())
    }
}

/// A launch.
#[derive(Debug)]
struct Call {
    kernel: Arc<Kernel>,
    program: Arc<Program>,
    chip: Arc<Chip>,
    operands: Vec<Range<usize>>,
    #[allow(
        dead_code,
        reason = "the memory stays where it is for as long as there are launches on it"
    )]
    held: Vec<Memory>,
}

impl Bound for Call {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let done = self.chip.bytes(|bytes| machine::run(&self.program, bytes, &self.operands));
        match done.map_err(Error::Device)?.raised {
            Some((check, found)) => Err(Error::data(&self.kernel, &[], check as usize, found)),
            None => Ok(()),
        }
    }
}
