//! Contractions of one row whose first axis of batches are the windows of a row, as depthwise
//! weight gradients: threads share lines of batches.

use super::convolution::{Bound, Convolution, Take};
use super::factors::{axis, seen, source};
use super::thread_grid::parts;
use crate::contract::{Axis, LinesOfWindows, OverLines, Seen};
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;

type FactorSource = contract::FactorSource<i64>;

/// A contraction over lines of windows.
pub(crate) struct WindowLines {
    lines: LinesOfWindows,
    /// How the right operand is seen in the first batch, and the left one if that is seen as well.
    right: Seen,
    left: Option<Seen>,
}

impl WindowLines {
    /// Of a contraction, if it is one.
    pub(super) fn of(contract: &BoundContract) -> Option<WindowLines> {
        let BoundContract { m, n, k, ref batch, ref factors, ref columns, .. } = *contract;
        let [left, FactorSource::Seen(right)] = factors else { return None };
        let windows = *batch.first()?;
        if m != 1 || n * k == 0 || !columns.is_empty() {
            return None;
        }
        let (across, others) = right.batch.split_first()?;
        if others.iter().any(|axis| axis.bounded.iter().any(|step| *step != 0)) {
            return None;
        }
        let (stride, seen_left) = match left {
            FactorSource::Plain { batch, .. } => (*batch.first()?, None),
            FactorSource::Seen(left) if left.bounds.is_empty() => {
                (left.batch.first()?.stride, Some(seen(left, |_| 0)))
            }
            FactorSource::Seen(_) | FactorSource::Computed { .. } => return None,
        };
        let right = seen(right, |bound| right.bounds[bound][0]);
        let across = Axis { extent: windows, ..axis(across) };
        let left = source(left, seen_left.as_ref(), None);
        let lines = LinesOfWindows::of(&left, &right, k, (across, stride as isize))?;
        Some(WindowLines { lines, right, left: seen_left })
    }
}

impl Convolution for WindowLines {
    fn grid(&self, of: &Bound<'_>) -> [(&'static str, usize); 3] {
        let parts = parts(of.contract, of.machine).min(lines(of.contract));
        [("batches", parts), ("rows", 1), ("columns", 1)]
    }

    fn part(&self, of: &Bound<'_>, [parts, ..]: [usize; 3], task: usize, take: &mut Take<'_>) {
        let [left, right] = &of.contract.factors;
        let count = lines(of.contract);
        take(&OverLines {
            cpu: &of.machine.cpu,
            acc: of.contract.acc,
            a: of.source(left, self.left.as_ref()),
            b: of.source(right, Some(&self.right)),
            lines: &self.lines,
            at: &of.offsets([left, right]),
            part: part(count, 1, parts, task),
            count,
        });
    }
}

/// Lines of batches.
fn lines(contract: &BoundContract) -> usize {
    contract.batch[1..].iter().product()
}
