//! When a contraction sums its results down the columns, as the gradient of a bias is made of that
//! of a layer's output.
//!
//! The sums of a chunk of rows are made by one thread after another row, so a contraction that
//! takes them can be cut between chunks and between columns only. That is worth a read of the whole
//! result as long as enough parts are left.

use smallvec::SmallVec;
use tracecast_ir::kernel::COLUMN_CHUNK;
use tracecast_ir::{Graph, NodeId, Shape};

/// Columns that a part of a contraction has at least.
const COLUMNS: usize = 32;

/// Parts that are enough for the threads of most machines.
const PARTS: usize = 16;

/// Products that are too few to be shared by threads: some 64 microseconds of a core, a few times
/// what it takes the others to notice.
const FEW: usize = 1 << 20;

/// True if a contraction over `domain` of `k` steps should reduce down its columns what it makes
/// there, for the traced values of names.
pub(super) fn takes_columns(graph: &Graph, n: NodeId, domain: &Shape, k: usize) -> bool {
    let sizes: SmallVec<[usize; 4]> = domain.iter().map(|size| graph.hint(*size)).collect();
    let [batch @ .., rows, columns] = &sizes[..] else { return false };
    let Ok(axes) = domain.axes(graph.node(n).attrs.ints("dim")) else { return false };
    // One result for each column; several would need their rows to lie together.
    let all = (0..domain.rank() - 1).all(|axis| domain[axis] == 1 || axes.contains(&axis));
    all && (graph.hint(domain.numel()).saturating_mul(k) < FEW
        || parts(batch, *rows, *columns) >= PARTS)
}

/// Into how many parts a contraction can be cut without two of them sharing a chunk of rows.
fn parts(batch: &[usize], rows: usize, columns: usize) -> usize {
    let batches: usize = batch.iter().product();
    let down = if batches == 1 || rows.is_multiple_of(COLUMN_CHUNK) {
        batches * rows.div_ceil(COLUMN_CHUNK)
    } else {
        1
    };
    down * columns.div_ceil(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_do_not_share_chunks() {
        assert_eq!(parts(&[], 256, 1024), 32);
        assert_eq!(parts(&[], 257, 1024), 64);
        assert_eq!(parts(&[], 10, 40), 2);
        assert_eq!(parts(&[3], 512, 32), 6);
        // A chunk begins in the middle of a batch.
        assert_eq!(parts(&[3], 300, 32), 1);
        assert_eq!(parts(&[1], 300, 32), 2);
    }
}
