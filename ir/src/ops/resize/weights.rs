//! What interpolation sees along an axis: positions of the operand and their weights, as PyTorch's
//! CPU kernels find them.

use crate::ops::taps::Along;

/// How elements between those of the operand are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filter {
    /// The element at or before.
    Nearest,
    /// The element whose middle is next.
    NearestExact,
    /// On a line between two.
    Linear,
    /// On a curve of the third degree through four.
    Cubic,
    /// As [`Filter::Linear`]; where the result is smaller, over all elements that fall on a
    /// position.
    SmoothLinear,
    /// As [`Filter::Cubic`]; where the result is smaller, over all elements that fall on a
    /// position.
    SmoothCubic,
}

/// An axis that is resized.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    pub(super) from: i64,
    pub(super) to: i64,
    /// How many times as large as it is said to be, where that is not what the sizes say.
    pub(super) scale: Option<f64>,
    /// The first and the last elements fall on each other, and not the ends of the axes.
    pub(super) align_corners: bool,
    /// Positions are computed in f64, not in f32.
    pub(super) is_wide: bool,
}

impl Resized {
    /// What each position of the result sees.
    pub(super) fn along(&self, filter: Filter) -> Along {
        let seen: Vec<_> = (0..self.to).map(|to| merged(self.seen(filter, to as f64))).collect();
        Along::of(self.from, &seen)
    }

    /// A number as positions are computed.
    fn held(&self, number: f64) -> f64 {
        if self.is_wide { number } else { f64::from(number as f32) }
    }

    /// From a position of the result to the next, in positions of the operand.
    fn step(&self) -> f64 {
        let (from, to) = (self.from as f64, self.to as f64);
        match (self.align_corners, self.scale) {
            (true, _) if self.to > 1 => self.held((from - 1.0) / (to - 1.0)),
            (true, _) => 0.0,
            (false, Some(scale)) => self.held(1.0 / scale),
            (false, None) => self.held(from / to),
        }
    }

    /// True if the result is as large as the scale says, to a position of the operand or of the
    /// result.
    pub(super) fn fits(&self) -> bool {
        let Some(scale) = self.scale.filter(|_| !self.align_corners) else { return true };
        let (from, to, step) = (self.from as f64, self.to as f64, self.held(1.0 / scale));
        step.is_finite() && (to / scale - from).abs() <= 1.0 / scale + 1.0
    }

    /// Where in the operand a position of the result is.
    fn place(&self, to: f64) -> f64 {
        match self.align_corners {
            true => self.held(self.step() * to),
            false => self.held(self.held(self.step() * (to + 0.5)) - 0.5),
        }
    }

    /// The last position at or before that place, and how far behind it the place is.
    fn before(&self, place: f64) -> (i64, f64) {
        let lower = (place.floor() as i64).min(self.from - 1);
        (lower, self.held(place - lower as f64).clamp(0.0, 1.0))
    }

    fn seen(&self, filter: Filter, to: f64) -> Vec<(i64, f64)> {
        let last = self.from - 1;
        let one = |place: f64| vec![((place.floor() as i64).clamp(0, last), 1.0)];
        match filter {
            Filter::Nearest => one(self.held(self.step() * to)),
            Filter::NearestExact => one(self.held(self.place(to).max(0.0) + 0.5)),
            Filter::Linear if self.from == self.to => vec![(to as i64, 1.0)],
            Filter::Linear => {
                let (lower, part) = self.before(self.place(to).max(0.0));
                vec![(lower, self.held(1.0 - part)), ((lower + 1).min(last), part)]
            }
            Filter::Cubic => {
                let (lower, part) = self.before(self.place(to));
                let one = |i: i64| {
                    let weight = self.held(curve((i - 1) as f64 - part, -0.75));
                    ((lower - 1 + i).clamp(0, last), weight)
                };
                (0..4).map(one).collect()
            }
            Filter::SmoothLinear => self.smooth(to, 1.0, |x| (1.0 - x.abs()).max(0.0)),
            Filter::SmoothCubic => self.smooth(to, 2.0, |x| curve(x, -0.5)),
        }
    }

    /// All elements within a number of positions, of the result where that is smaller, by their
    /// distance; weights add up to one.
    fn smooth(&self, to: f64, reach: f64, weight: impl Fn(f64) -> f64) -> Vec<(i64, f64)> {
        let step = self.step();
        let wide = step.max(1.0);
        let (middle, reach) = (self.held(step * (to + 0.5)), self.held(reach * wide));
        let first = ((middle - reach + 0.5) as i64).max(0);
        let end = ((middle + reach + 0.5) as i64).min(self.from);
        let near = |at: i64| (at, self.held(weight((at as f64 - middle + 0.5) / wide)));
        let seen: Vec<(i64, f64)> = (first..end).map(near).collect();
        let all: f64 = seen.iter().map(|(_, weight)| weight).sum();
        let share = |(at, weight): (i64, f64)| (at, self.held(weight / all));
        seen.into_iter().map(share).collect()
    }
}

/// The weight of an element at that distance under a curve of the third degree, whose slope at a
/// distance of one is `a`.
fn curve(distance: f64, a: f64) -> f64 {
    let x = distance.abs();
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

/// Every position once, and none without weight: beyond an end its element is seen instead.
/// Positions come in order.
fn merged(seen: Vec<(i64, f64)>) -> Vec<(i64, f64)> {
    let mut kept: Vec<(i64, f64)> = Vec::new();
    for (at, weight) in seen {
        match kept.last_mut().filter(|(known, _)| *known == at) {
            Some((_, sum)) => *sum += weight,
            None => kept.push((at, weight)),
        }
    }
    kept.retain(|(_, weight)| *weight != 0.0);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(from: i64, to: i64, align_corners: bool, filter: Filter) -> Vec<Vec<(i64, f64)>> {
        let axis = Resized { from, to, scale: None, align_corners, is_wide: true };
        (0..to).map(|to| merged(axis.seen(filter, to as f64))).collect()
    }

    #[test]
    fn twice_as_many_positions_see_their_neighbours_by_quarters() {
        assert_eq!(
            seen(3, 6, false, Filter::Linear)[..4],
            [
                vec![(0, 1.0)],
                vec![(0, 0.75), (1, 0.25)],
                vec![(0, 0.25), (1, 0.75)],
                vec![(1, 0.75), (2, 0.25)],
            ]
        );
        assert_eq!(seen(3, 6, false, Filter::Nearest)[5], [(2, 1.0)]);
    }

    #[test]
    fn weights_add_up_to_one_and_ends_fall_on_each_other() {
        let filters = [Filter::Linear, Filter::Cubic, Filter::SmoothLinear, Filter::SmoothCubic];
        for (filter, align_corners) in filters.into_iter().flat_map(|f| [(f, false), (f, true)]) {
            for (from, to) in [(1, 4), (4, 1), (5, 5), (4, 7), (7, 3), (40, 3)] {
                let seen = seen(from, to, align_corners, filter);
                for seen in &seen {
                    let sum: f64 = seen.iter().map(|(_, weight)| weight).sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{filter:?} of {from} to {to}: {seen:?}");
                    assert!(seen.iter().all(|(at, _)| (0..from).contains(at)));
                }
                if align_corners && matches!(filter, Filter::Linear | Filter::Cubic) && to > 1 {
                    assert_eq!(seen[0], [(0, 1.0)]);
                    assert_eq!(seen[to as usize - 1], [(from - 1, 1.0)]);
                }
            }
        }
    }
}
