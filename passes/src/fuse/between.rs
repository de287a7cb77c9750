//! Which kernels wait for which, while some of them become one.

use tracecast_ir::ValueId;
use tracecast_ir::hash::{FxHashMap, FxHashSet};
use tracecast_ir::kernel::build::Built;

/// Kernels by number.
pub(super) struct Between {
    /// For each kernel those that read its results.
    readers: Vec<Vec<usize>>,
    /// For each kernel the first of those it is merged with.
    merged: Vec<usize>,
    /// For each first one all of them.
    members: Vec<Vec<usize>>,
}

impl Between {
    pub(super) fn of(kernels: &[Built]) -> Self {
        let mut maker: FxHashMap<ValueId, usize> = FxHashMap::default();
        for (i, kernel) in kernels.iter().enumerate() {
            maker.extend(kernel.outputs.iter().map(|v| (*v, i)));
        }
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); kernels.len()];
        for (i, kernel) in kernels.iter().enumerate() {
            for maker in kernel.inputs.iter().filter_map(|v| maker.get(v)) {
                if readers[*maker].last() != Some(&i) {
                    readers[*maker].push(i);
                }
            }
        }
        let all = 0..kernels.len();
        Between { readers, merged: all.clone().collect(), members: all.map(|i| vec![i]).collect() }
    }

    /// True if nothing waits for a kernel.
    pub(super) fn is_last(&self, kernel: usize) -> bool {
        self.readers[kernel].is_empty()
    }

    /// True if one of two waits for the other.
    pub(super) fn any(&self, a: usize, b: usize) -> bool {
        self.leads(a, b) || self.leads(b, a)
    }

    fn leads(&self, from: usize, to: usize) -> bool {
        let (from, to) = (self.merged[from], self.merged[to]);
        let mut seen = FxHashSet::default();
        let mut todo = vec![from];
        while let Some(kernel) = todo.pop() {
            for reader in self.members[kernel].iter().flat_map(|m| &self.readers[*m]) {
                let reader = self.merged[*reader];
                if reader == to {
                    return true;
                }
                if seen.insert(reader) {
                    todo.push(reader);
                }
            }
        }
        false
    }

    /// Makes a kernel part of that with the number `first`.
    pub(super) fn join(&mut self, first: usize, kernel: usize) {
        self.merged[kernel] = first;
        self.members[first].push(kernel);
    }
}
