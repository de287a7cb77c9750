//! Faults on purpose: one command of a run fails, drawn by a seed among those that the run gives.

use crate::counts::Counts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// A kernel does not come to its end.
    Launch,
    /// A copy, to the chip, from it or within it.
    Copy,
    /// There is no memory, and there is none however often a step asks for it again.
    Allocation,
    /// A kernel finds that the data has no meaning.
    Check,
    /// The chip is gone.
    Lost,
}

/// A fault to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What fails.
    pub point: Point,
    /// Which one of those, from 0. Of a loss: which launch or copy.
    pub number: u64,
}

impl Injection {
    /// One of the launches, copies, allocations and checks among these, each kind as likely as
    /// others that there are. The same for the same seed; `None` if there are none.
    pub fn drawn(seed: u64, among: &Counts) -> Option<Injection> {
        let copies = among.uploads + among.downloads + among.copies;
        let kinds = [
            (Point::Launch, among.launches),
            (Point::Copy, copies),
            (Point::Allocation, among.allocations),
            (Point::Check, among.checked),
        ];
        let kinds: Vec<(Point, u64)> = kinds.into_iter().filter(|(_, count)| *count > 0).collect();
        let random = mixed(seed);
        let (point, count) = kinds.get((random % kinds.len().max(1) as u64) as usize)?;
        Some(Injection { point: *point, number: mixed(random) % count })
    }
}

/// The finish of splitmix64: every bit depends on every bit.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A step asks for memory, again when ended steps have given up theirs, and again when others have:
/// each time twice.
const ASKED_AGAIN: u32 = 5;

/// The fault that a chip is to have.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    to_come: Option<Injection>,
    /// How many allocations fail besides.
    short: u32,
    struck: u64,
}

impl Faults {
    pub(crate) fn arm(&self, injection: Injection) {
        self.state().to_come = Some(injection);
    }

    /// None is to come any more.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        (state.to_come, state.short) = (None, 0);
    }

    /// How many there were.
    pub(crate) fn struck(&self) -> u64 {
        self.state().struck
    }

    /// Whether this is the one that fails; otherwise it is counted.
    pub(crate) fn strikes(&self, point: Point) -> bool {
        let mut state = self.state();
        if point == Point::Allocation && state.short > 0 {
            state.short -= 1;
            return true;
        }
        let Some(injection) = &mut state.to_come else { return false };
        if injection.point != point {
            return false;
        }
        if injection.number > 0 {
            injection.number -= 1;
            return false;
        }
        state.to_come = None;
        state.struck += 1;
        state.short = if point == Point::Allocation { ASKED_AGAIN } else { 0 };
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_kind_is_drawn_and_a_seed_always_draws_the_same() {
        let among = Counts {
            launches: 9,
            checked: 2,
            uploads: 1,
            copies: 3,
            allocations: 5,
            ..Counts::default()
        };
        let mut drawn: BTreeMap<Point, Vec<u64>> = BTreeMap::new();
        for seed in 0..1000 {
            let injection = Injection::drawn(seed, &among).unwrap();
            assert_eq!(Injection::drawn(seed, &among), Some(injection));
            drawn.entry(injection.point).or_default().push(injection.number);
        }
        for (point, count) in
            [(Point::Launch, 9), (Point::Copy, 4), (Point::Allocation, 5), (Point::Check, 2)]
        {
            let numbers = &drawn[&point];
            assert!(numbers.len() > 200, "{point:?}: {}", numbers.len());
            assert!((0..count).all(|number| numbers.contains(&number)), "{point:?}");
        }
        assert_eq!(Injection::drawn(0, &Counts::default()), None);
    }

    #[test]
    fn memory_is_short_for_as_long_as_a_step_asks() {
        let faults = Faults::default();
        faults.arm(Injection { point: Point::Allocation, number: 1 });
        let mut allocations = std::iter::repeat_with(|| faults.strikes(Point::Allocation));
        let found: Vec<bool> = allocations.by_ref().take(9).collect();
        assert_eq!(found, [false, true, true, true, true, true, true, false, false]);
        assert!(!faults.strikes(Point::Launch) && faults.struck() == 1);
    }
}
