//! [`Rows`]: which rows of the whole batch a rank has.

use super::program::Rows;
use super::{DataParallel, ROWS};
use crate::error::Result;
use tracecast_runtime::collective::{Label, Transfer};
use tracecast_runtime::{Error, Tensor};

impl DataParallel {
    /// The rows that these inputs have.
    pub(super) fn rows(&self, inputs: &[(&str, &Tensor)], step: u64) -> Result<Rows> {
        let mut own: Option<(usize, &str)> = None;
        let mut divided = Vec::new();
        for (name, tensor) in inputs.iter().filter(|(name, _)| !self.same.contains(*name)) {
            let Some(rows) = tensor.shape().first().map(|rows| rows.get()) else { continue };
            let (known, first) = *own.get_or_insert((rows, name));
            if known != rows {
                let message = format!(
                    "has {rows} rows and `{first}` has {known}: inputs that are the same on all ranks are named with `same_inputs`"
                );
                return Err(Error::Input { name: (*name).to_owned(), message });
            }
            divided.push((*name).to_owned());
        }
        let own = own.map(|(rows, _)| rows);
        let count = own.unwrap_or(0);
        if !self.uneven {
            let (before, all) = (count * self.rank(), count * self.size());
            return Ok(Rows { own, before, all, divided });
        }
        let label = Label { program: ROWS, step, bucket: 0 };
        let data = (count as u64).to_le_bytes().to_vec();
        let given = self.ranks.wait(self.ranks.start(Transfer::Gather, label, data)?)?.data;
        let counts: Vec<usize> =
            given.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n) as usize).collect();
        let before = counts[..self.rank()].iter().sum();
        let all = counts.iter().sum();
        // All ranks see it, and none waits for the one that cannot take the step.
        match counts.iter().position(|rows| *rows == 0).filter(|_| all > 0) {
            Some(rank) => {
                let message = format!("rank {rank} has no rows of a batch of {all}");
                Err(Error::Parallel(message))
            }
            None => Ok(Rows { own, before, all, divided }),
        }
    }
}
