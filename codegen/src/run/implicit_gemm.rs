//! Contractions whose right operands are images: batches one after another, each in a few
//! bands of windows where threads would have too few batches.

use super::convolution::{Bound, Convolution, Take};
use super::epilogue::stored;
use super::factors::seen;
use super::thread_grid::parts;
use crate::contract::without::{Choice, is_without};
use crate::contract::{Correlation, Image, ProductSizes, Seen, SideBySide, Source, Stored};
use crate::machine::Cpu;
use crate::plan::contract::{self, BoundContract};
use crate::threads::part;
use smallvec::SmallVec;
use tracecast_ir::DType;

type FactorSource = contract::FactorSource<i64>;
type Windows = contract::Windows<i64>;

/// Batches that lie side by side are cut at multiples of this: as many lanes as the widest vectors
/// have,
const LANES: usize = 16;
/// or of this where threads would have nothing to do: vectors that are half empty take as long, but
/// what goes into them half as long.
const HALF: usize = LANES / 2;
/// Images of batches side by side are for no more columns than this,
const FEW_COLUMNS: usize = 64;
/// and for this number of batches at least.
const SOME_BATCHES: usize = 4;
/// Those with more columns are for no more steps than this.
const FEW_STEPS: usize = 512;

/// A contraction over images.
pub(crate) struct Images {
    /// How the right operand is seen, and the left one if that is seen as well.
    right: Seen,
    left: Option<Seen>,
    /// After how many batches left operands come again.
    period: usize,
    /// Windows along the first axis that they move over.
    windows: usize,
    /// How batches lie side by side, if vectors go through them.
    beside: Option<SideBySide>,
    /// True if bf16 are multiplied in pairs.
    pairs: bool,
    /// Rows, two vectors of them, that are summed together, if vectors go across rows.
    across: Option<usize>,
    /// True if packing rows takes longer than filling images: threads share rows.
    by_rows: bool,
}

impl Images {
    /// Of a contraction, if images are better than packing.
    pub(super) fn of(contract: &BoundContract, cpu: &Cpu) -> Option<Images> {
        let BoundContract { m, n, k, ref batch, ref factors, ref columns, .. } = *contract;
        let [left, FactorSource::Seen(windows)] = factors else { return None };
        let moves = windows.batch.iter().any(|axis| axis.bounded.iter().any(|step| *step != 0));
        if m * n * k == 0 || !columns.is_empty() || moves {
            return None;
        }
        let strides: SmallVec<[i64; 4]> = match left {
            FactorSource::Plain { batch, .. } => batch.iter().copied().collect(),
            FactorSource::Seen(left) if left.bounds.is_empty() => {
                left.batch.iter().map(|axis| axis.stride).collect()
            }
            FactorSource::Seen(_) | FactorSource::Computed { .. } => return None,
        };
        let shared = strides.iter().take_while(|stride| **stride == 0).count();
        let right = seen(windows, |bound| windows.bounds[bound][0]);
        let image = Image::of(&right, None)?;
        let instructions = cpu.instructions;
        let all_bf16 = factors.iter().all(|factor| factor.values() == DType::BF16);
        let all_bf16 = all_bf16 && cpu.pairs;
        let interleaved = (all_bf16 && m > 1).then(|| image.clone().interleaved()).flatten();
        let widened = contract.acc == DType::F32 && windows.round.is_none();
        let stored = n.is_multiple_of(LANES) && stored(contract, cpu).is_some();
        let batches = batch.iter().product();
        let sizes = ProductSizes { batches, m, n, k, widened, stored };
        let cost = |image: &Image| image.cost(&sizes, instructions);
        let (in_pairs, singly) = (interleaved.as_ref().map(cost), cost(&image));
        let least = in_pairs.map_or(singly, |cost| cost.min(singly));
        let across = image.across(cpu, contract.acc, &sizes, all_bf16);
        let across = across.filter(|across| across.cost < least && !is_without(Choice::Channels));
        let pairs =
            if across.is_some() { all_bf16 } else { in_pairs.is_some_and(|cost| cost < singly) };
        let least = across.as_ref().map_or(least, |across| across.cost);
        let is_better = least < right.cost(m, instructions, all_bf16);
        let beside = side_by_side(contract, &strides, windows);
        let beside = beside.filter(|side| match side.few {
            true => image.is_mostly_seen(k),
            false => image.is_near(),
        });
        let is_few = beside.is_some_and(|side| side.few);
        let of = (windows.dtype, windows.round);
        let period = batch[shared..].iter().product();
        let several = period < batches;
        let depthwise = m == 1 && !is_few && image.is_depthwise(cpu, contract.acc, of, several);
        let beside = beside.filter(|_| !depthwise);
        let is_packed = !is_better && !is_without(Choice::Packing);
        if beside.is_none() && !depthwise && is_packed {
            return None;
        }
        let left = match left {
            FactorSource::Seen(left) if beside.is_some() => {
                let rows = left.batch.last().cloned().into_iter().collect();
                Some(seen(&Windows { rows, ..left.clone() }, |_| 0))
            }
            FactorSource::Seen(left) => Some(seen(left, |_| 0)),
            FactorSource::Plain { .. } | FactorSource::Computed { .. } => None,
        };
        let [windows, _] = image.windows();
        let across = across.filter(|_| beside.is_none() && !depthwise);
        let by_rows = across.as_ref().is_some_and(|across| m * k > batches * across.room);
        let across = across.map(|across| across.unit);
        Some(Images { right, left, period, windows, beside, pairs, across, by_rows })
    }

    /// What batches are cut at multiples of, for a number of parts.
    fn unit(&self, batches: usize, parts: usize) -> usize {
        match self.beside {
            Some(side) if side.few && batches.div_ceil(LANES) < parts => HALF,
            Some(_) => LANES,
            None => 1,
        }
    }
}

impl Convolution for Images {
    fn grid(&self, of: &Bound<'_>) -> [(&'static str, usize); 3] {
        let batches = of.contract.batch.iter().product::<usize>().max(1);
        let parts = parts(of.contract, of.machine);
        let by_rows = self.across.filter(|_| self.by_rows).map(|unit| of.contract.m / unit);
        let [rows, groups, bands] = match by_rows {
            Some(strips) => [parts.min(strips), 1, 1],
            None => {
                let groups = parts.min(batches.div_ceil(self.unit(batches, parts)));
                let is_few = self.beside.is_some_and(|side| side.few);
                let bands = if is_few { 1 } else { parts / groups };
                [1, groups, bands.min(self.windows)]
            }
        };
        [("rows", rows), ("batches", groups), ("output rows", bands)]
    }

    fn part(
        &self,
        of: &Bound<'_>,
        [rows, groups, bands]: [usize; 3],
        task: usize,
        take: &mut Take<'_>,
    ) {
        let BoundContract { acc, m, n, k, .. } = *of.contract;
        let Images { period, beside, pairs, .. } = *self;
        let [left, right] = &of.contract.factors;
        let mut a = of.source(left, self.left.as_ref());
        if let (Source::Matrix { row, .. }, FactorSource::Plain { batch, .. }, Some(_)) =
            (&mut a, left, beside)
        {
            *row = batch.last().map_or(0, |stride| *stride as isize);
        }
        let batches = of.contract.batch.iter().product();
        let band = task / bands;
        let of_rows = part(m, self.across.unwrap_or(1), rows, band / groups);
        take(&Correlation {
            cpu: &of.machine.cpu,
            acc,
            batches: part(batches, self.unit(batches, groups), groups, band % groups),
            windows: part(self.windows, 1, bands, task % bands),
            rows: m,
            k,
            a,
            b: of.source(right, Some(&self.right)),
            at: &of.offsets([left, right]),
            period,
            beside,
            across: self.across.map(|_| [of_rows.start, of_rows.end]),
            pairs,
            stored: stored(of.contract, &of.machine.cpu).map(|to| Stored {
                first: of.operands.map_or(std::ptr::null_mut(), |slots| to.first(slots).pointer()),
                ld: n,
                dtype: to.dtype,
            }),
        });
    }
}

/// How batches of one row lie side by side, which have few columns and more steps, or few steps.
fn side_by_side(contract: &BoundContract, left: &[i64], right: &Windows) -> Option<SideBySide> {
    let BoundContract { m, n, k, .. } = *contract;
    let (count, stride) = (*contract.batch.last()?, right.batch.last()?.stride as isize);
    let few = n <= FEW_COLUMNS && k > n;
    let fits = m == 1 && count >= SOME_BATCHES && (few || k <= FEW_STEPS);
    (fits && stride != 0 && *left.last()? != 0).then_some(SideBySide { count, stride, few })
}
