//! [`Away`]: a kernel that runs on another device than its program. Each launch copies what it
//! reads there, and what it writes back.

use crate::device::{Access, Arg, Bound, Device, Landing, Launch, Made, Queue, alloc};
use crate::error::{Error, Result};
use crate::memory::{Memory, Span};
use std::sync::{Arc, Mutex, PoisonError};
use tracecast_ir::eval::Bytes;
use tracecast_ir::kernel::Kernel;

/// A kernel compiled by the fallback of a program.
pub(super) struct Away {
    inner: Arc<dyn Launch>,
    /// True if it may leave what it writes as it is.
    is_conditional: bool,
    device: Arc<dyn Device>,
    fallback: Arc<dyn Device>,
}

impl Away {
    /// A kernel of a program on `device`, which `fallback` has compiled.
    pub(super) fn of(
        inner: Arc<dyn Launch>,
        kernel: &Kernel,
        device: &Arc<dyn Device>,
        fallback: &Arc<dyn Device>,
    ) -> Arc<dyn Launch> {
        Arc::new(Away {
            inner,
            is_conditional: kernel.when.is_some(),
            device: device.clone(),
            fallback: fallback.clone(),
        })
    }
}

/// A copy between the devices: whether the kernel reads it, writes it, or both.
pub(super) struct Transfer {
    /// The first operand there.
    pub(super) first: usize,
    pub(super) is_read: bool,
    pub(super) is_written: bool,
}

/// The transfers of a launch: one for each place, which several operands may share.
pub(super) fn transfers<P: PartialEq>(
    operands: impl Iterator<Item = (P, Access)>,
) -> Vec<Transfer> {
    let mut known: Vec<(P, Transfer)> = Vec::new();
    for (number, (place, access)) in operands.enumerate() {
        let (is_read, is_written) = (access != Access::Write, access != Access::Read);
        match known.iter_mut().find(|(other, _)| *other == place) {
            Some((_, transfer)) => {
                transfer.is_read |= is_read;
                transfer.is_written |= is_written;
            }
            None => known.push((place, Transfer { first: number, is_read, is_written })),
        }
    }
    known.into_iter().map(|(_, transfer)| transfer).collect()
}

/// The memory, offset and length of an operand on the device; the memory is compared by identity.
/// One without elements may begin where another does.
struct At<'a>(&'a Memory, usize, usize);

impl PartialEq for At<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.1, self.2) == (other.1, other.2) && self.0.same(other.0)
    }
}

impl Launch for Away {
    fn bind(&self, args: &[Arg], sizes: &[i64]) -> Result<Box<dyn Bound>> {
        let places = || args.iter().map(|arg| At(&arg.memory, arg.offset, arg.len));
        let mut copies = Vec::new();
        let accesses = args.iter().map(|arg| arg.access);
        for transfer in transfers(places().zip(accesses)) {
            let Transfer { first, is_read, is_written } = transfer;
            let Arg { memory, offset, len, .. } = &args[first];
            copies.push(Copied {
                there: alloc(&*self.fallback, *len)?,
                here: Span { memory: memory.clone(), at: *offset, len: *len },
                is_read: is_read || self.is_conditional,
                is_written,
                bytes: Mutex::new(Vec::new()),
            });
        }
        let there = |arg: &Arg| {
            let at = At(&arg.memory, arg.offset, arg.len);
            let copy =
                copies.iter().find(|copy| At(&copy.here.memory, copy.here.at, copy.here.len) == at);
            let missing = || Error::Plan("an operand has no place on the fallback".to_owned());
            let memory = copy.ok_or_else(missing)?.there.clone();
            Ok(Arg { memory, offset: 0, len: arg.len, access: arg.access, lasting: false })
        };
        let inner_args = args.iter().map(there).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(AwayCall {
            inner: self.inner.bind(&inner_args, sizes)?,
            copies,
            device: self.device.clone(),
            fallback: self.fallback.clone(),
        }))
    }

    fn scratch_bytes(&self, sizes: &[i64]) -> usize {
        self.inner.scratch_bytes(sizes)
    }

    fn schedule(&self, sizes: &[i64]) -> Option<String> {
        self.inner.schedule(sizes)
    }

    fn text(&self) -> Option<String> {
        self.inner.text()
    }

    fn made(&self) -> Option<&Made> {
        self.inner.made()
    }
}

/// A place of an operand, and its copy on the fallback.
struct Copied {
    here: Span,
    there: Memory,
    is_read: bool,
    is_written: bool,
    /// The host buffer between them.
    bytes: Mutex<Vec<u8>>,
}

impl Copied {
    /// Copies through the host: `from` fills a buffer, `to` consumes it.
    fn carry(
        &self,
        from: impl FnOnce(&mut [u8]) -> Result<()>,
        to: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.resize(self.here.len, 0);
        from(&mut bytes)?;
        to(&bytes)
    }
}

/// A kernel on the fallback, tied to its operands on the device.
pub(super) struct AwayCall {
    inner: Box<dyn Bound>,
    copies: Vec<Copied>,
    device: Arc<dyn Device>,
    fallback: Arc<dyn Device>,
}

impl AwayCall {
    fn read(&self) -> impl Iterator<Item = &Copied> {
        self.copies.iter().filter(|copy| copy.is_read && copy.here.len > 0)
    }

    fn written(&self) -> impl Iterator<Item = &Copied> {
        self.copies.iter().filter(|copy| copy.is_written && copy.here.len > 0)
    }

    fn compute(&self) -> Result<()> {
        let _guard = self.fallback.enter()?;
        self.inner.reserve()?;
        self.fallback.run_step(&mut || self.inner.run())
    }

    /// Runs in the order of the queue of the device, and waits for that queue once.
    pub(super) fn give(&self, queue: &mut dyn Queue) -> Result<()> {
        let here = self.read().map(|copy| &copy.here);
        for (copy, bytes) in self.read().zip(read_within(&*self.device, queue, here)?) {
            self.fallback.upload(&bytes, &copy.there, 0)?;
        }
        self.compute()?;
        for copy in self.written() {
            let mut bytes = vec![0; copy.here.len];
            self.fallback.download(&copy.there, 0, &mut bytes)?;
            queue.upload(bytes.into(), &copy.here)?;
        }
        Ok(())
    }
}

impl Bound for AwayCall {
    fn is_shared(&self) -> bool {
        false
    }

    fn run(&self) -> Result<()> {
        for copy in self.read() {
            let Span { memory, at, .. } = &copy.here;
            copy.carry(
                |bytes| self.device.download(memory, *at, bytes),
                |bytes| self.fallback.upload(bytes, &copy.there, 0),
            )?;
        }
        self.compute()?;
        for copy in self.written() {
            let Span { memory, at, .. } = &copy.here;
            copy.carry(
                |bytes| self.fallback.download(&copy.there, 0, bytes),
                |bytes| self.device.upload(bytes, memory, *at),
            )?;
        }
        Ok(())
    }
}

/// Reads memory of a device after the commands that its queue has, and waits for them once.
pub(super) fn read_within<'s>(
    device: &dyn Device,
    queue: &mut dyn Queue,
    places: impl Iterator<Item = &'s Span>,
) -> Result<Vec<Bytes>> {
    let mut landings = Vec::new();
    for place in places {
        let landing = Landing::of(place.len)?;
        if place.len > 0 {
            queue.download(place, landing.clone())?;
        }
        landings.push(landing);
    }
    let limit = device.queue().map(|queue| queue.limit()).unwrap_or_default();
    let number = queue.record();
    queue.timeline().wait(number, limit)?;
    Ok(landings.into_iter().map(Landing::take).collect())
}
