//! The same in f64, number by number. Nothing is rounded.

use super::{Scoring, Slopes, Weighed, folded};
use std::ops::Add;
use tracecast_ir::kernel::attention::LANES;
use tracecast_ir::kernel::math::exp_f64 as exp;

const NEVER: f64 = f64::NEG_INFINITY;

impl Scoring<'_, f64> {
    /// The score of a product.
    fn score(&self, product: f64, at: usize) -> f64 {
        if at >= self.seen {
            return NEVER;
        }
        let score = product * self.scale;
        match self.mask.map(|mask| mask[at]) {
            Some(NEVER) => NEVER,
            Some(mask) => score + mask,
            None => score,
        }
    }
}

/// A row of products becomes weights. Masks and what is kept are as long.
pub(crate) fn weigh(row: &mut [f64], scoring: &Scoring<'_, f64>, largest: f64) -> Weighed<f64> {
    let mut peak = largest;
    for (at, score) in row.iter_mut().enumerate() {
        *score = scoring.score(*score, at);
        peak = if *score > peak { *score } else { peak };
    }
    let base = if peak == NEVER { 0.0 } else { peak };
    let mut totals = [0.0; LANES];
    for (i, weight) in row.iter_mut().enumerate() {
        *weight = exp(*weight - base);
        totals[i % LANES] += *weight;
        *weight = scoring.kept.map_or(*weight, |kept| *weight * kept[i]);
    }
    Weighed { largest: peak, again: exp(largest - base), total: folded(totals, Add::add) }
}

/// A row of products, and one of gradients of weights, become weights and gradients of scores.
/// Masks and what is kept are as long.
pub(crate) fn differentiate(
    row: &mut [f64],
    inner: &mut [f64],
    scoring: &Scoring<'_, f64>,
    slopes: &Slopes<f64>,
) {
    for (at, (weight, slope)) in row.iter_mut().zip(inner).enumerate() {
        let score = scoring.score(*weight, at);
        // `log` may be NaN, and then `NEVER - log` is.
        *weight = if score == NEVER { 0.0 } else { exp(score - slopes.log) };
        let kept = scoring.kept.map(|kept| kept[at]);
        let of_weight = kept.map_or(*slope, |kept| *slope * kept);
        *slope = if *weight == 0.0 { 0.0 } else { *weight * (of_weight - slopes.less) };
        *weight = kept.map_or(*weight, |kept| *weight * kept);
    }
}
