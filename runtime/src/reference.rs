//! [`ReferenceDevice`]: runs any kernel through the interpreter that defines the language.

use crate::device::{Arg, Bound, Device, Launch};
use crate::error::{Error, Result};
use crate::memory::{HostMemory, Memory};
use std::sync::Arc;
use tracecast_ir::eval::{self, Bytes, EvalError};
use tracecast_ir::kernel::{Capabilities, FormKind, Kernel};
use tracecast_ir::policy::DeviceType;

/// The slow device whose results are right by definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceDevice;

impl Device for ReferenceDevice {
    fn name(&self) -> &str {
        "reference"
    }

    fn serves(&self) -> Option<DeviceType> {
        Some(DeviceType::Cpu)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sizes: FormKind::ALL.to_vec(),
            forms: FormKind::ALL.to_vec(),
            ..Capabilities::default()
        }
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        Ok(Box::new(Interpreted { kernel: Arc::new(kernel.clone()) }))
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        Ok(Memory::new(HostMemory::new(bytes)?))
    }

    fn adopt(&self, bytes: Bytes) -> std::result::Result<Memory, Bytes> {
        HostMemory::adopt(bytes).map(Memory::new)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        to.get::<HostMemory>()?.write(at, from)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        from.get::<HostMemory>()?.read(at, to)
    }

    fn bind_copy(&self, from: &Arg, to: &Arg) -> Result<Option<Box<dyn Bound>>> {
        let (from, to) = (from.clone(), to.clone());
        from.memory.get::<HostMemory>()?;
        to.memory.get::<HostMemory>()?;
        Ok(Some(Box::new(Copied { from, to })))
    }

    fn launches_are_infallible(&self) -> bool {
        true
    }
}

/// A kernel to interpret.
struct Interpreted {
    kernel: Arc<Kernel>,
}

impl Launch for Interpreted {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        if args.len() != self.kernel.inputs.len() + self.kernel.outputs.len() {
            return Err(Error::Device(format!(
                "@{} was bound to {} operands",
                self.kernel.name,
                args.len()
            )));
        }
        for arg in args {
            arg.memory.get::<HostMemory>()?;
        }
        let kernel = if sizes.is_empty() {
            self.kernel.clone()
        } else {
            let values = self.kernel.values(sizes);
            Arc::new(self.kernel.at(&values).map_err(Error::Device)?)
        };
        Ok(Box::new(Call { kernel, args: args.to_vec() }))
    }
}

/// A copy with its places.
struct Copied {
    from: Arg,
    to: Arg,
}

impl Bound for Copied {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        let Copied { from, to } = self;
        let memory = to.memory.get::<HostMemory>()?;
        from.memory.get::<HostMemory>()?.copy(from.offset, from.len, memory, to.offset)
    }
}

/// A kernel with its operands. Unlike other devices this one allocates while it runs.
struct Call {
    kernel: Arc<Kernel>,
    args: Vec<Arg>,
}

impl Bound for Call {
    fn run(&self) -> Result<()> {
        let (inputs, outputs) = self.args.split_at(self.kernel.inputs.len());
        let mut buffers = Vec::with_capacity(inputs.len());
        for arg in inputs {
            let short = |why| Error::Device(format!("@{}: {why}", self.kernel.name));
            let mut bytes = Bytes::to_write(arg.len).map_err(short)?;
            arg.memory.get::<HostMemory>()?.read(arg.offset, &mut bytes)?;
            buffers.push(bytes);
        }
        let views: Vec<&[u8]> = buffers.iter().map(|bytes| &bytes[..]).collect();
        let results = eval::kernel(&self.kernel, &views).map_err(|error| match error {
            EvalError::Data(raised) => Error::data(&self.kernel, &[], raised.number, raised.found),
            other => Error::Device(format!("@{}: {other}", self.kernel.name)),
        })?;
        for (arg, bytes) in outputs.iter().zip(&results) {
            arg.memory.get::<HostMemory>()?.write(arg.offset, bytes)?;
        }
        Ok(())
    }
}
