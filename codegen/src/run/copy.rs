//! [`BoundCopy`]: plain bytes from one place to another.

use super::memory::{Address, address_in, bytes, bytes_mut};
use crate::machine;
use crate::threads::{Team, part};
use tracecast_runtime::{Arg, Error, Result};

/// Threads copy parts that are multiples of this number of bytes.
const UNIT: usize = 4096;

/// A copy whose places are looked up when it runs: one of them may be lent.
pub(crate) struct BoundCopy {
    from: Arg,
    to: Arg,
}

impl BoundCopy {
    /// Ties it to its places.
    ///
    /// # Errors
    /// If they are not equally long.
    pub(crate) fn new(from: &Arg, to: &Arg) -> Result<Self> {
        if from.len != to.len {
            let message = format!("a copy of {} bytes to {}", from.len, to.len);
            return Err(Error::Device(message));
        }
        Ok(BoundCopy { from: from.clone(), to: to.clone() })
    }

    /// Whether threads share it.
    pub(crate) fn is_shared(&self, team: &Team) -> bool {
        parts(self.from.len, team) > 1
    }

    /// Copies.
    ///
    /// # Errors
    /// If a place is not in memory of this device, or they overlap. Nothing is written then.
    pub(crate) fn run(&self, team: &Team) -> Result<()> {
        let len = self.from.len;
        let address = |arg: &Arg| address_in(&arg.memory, arg.offset, len);
        let (from, to): (Address, Address) = (address(&self.from)?, address(&self.to)?);
        if from.is_within(to, len) {
            return Err(Error::Device("a copy over its own bytes".to_owned()));
        }
        let parts = parts(len, team);
        team.each(parts, |i| {
            let part = part(len, UNIT, parts, i);
            bytes_mut(to, part.start, part.len()).copy_from_slice(bytes(
                from,
                part.start,
                part.len(),
            ));
        });
        Ok(())
    }
}

/// Into how many parts a copy is cut: work is counted in words, as for kernels.
fn parts(len: usize, team: &Team) -> usize {
    machine::parts(team.threads(), len / 4, len.div_ceil(UNIT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_runtime::{Access, HostMemory, Memory};

    #[test]
    fn bytes_are_copied_in_parts_and_never_over_themselves() {
        let team = Team::new(Some(3)).unwrap();
        for len in [0, 1, 5000, 3 << 20] {
            let memory = || {
                let memory = HostMemory::new(len + 8).unwrap();
                memory.write(0, &vec![7; len + 8]).unwrap();
                Memory::new(memory)
            };
            let (from, to) = (memory(), memory());
            let all: Vec<u8> = (0..len).map(|i| (i * 31 / 7) as u8).collect();
            from.get::<HostMemory>().unwrap().write(4, &all).unwrap();
            let arg = |memory: &Memory, offset, len| {
                let access = Access::Read;
                Arg { memory: memory.clone(), offset, len, access, lasting: false }
            };
            BoundCopy::new(&arg(&from, 4, len), &arg(&to, 4, len)).unwrap().run(&team).unwrap();
            let mut found = vec![0; len + 8];
            to.get::<HostMemory>().unwrap().read(0, &mut found).unwrap();
            assert_eq!(found, [&[7; 4][..], &all, &[7; 4]].concat());
            let over = BoundCopy::new(&arg(&to, 0, len), &arg(&to, 4, len)).unwrap().run(&team);
            assert_eq!(over.is_err(), len > 4, "{len}");
            assert!(BoundCopy::new(&arg(&to, 0, len), &arg(&to, 4, len + 1)).is_err());
            let beyond = BoundCopy::new(&arg(&from, 16, len), &arg(&to, 0, len)).unwrap();
            assert!(beyond.run(&team).is_err());
        }
    }
}
