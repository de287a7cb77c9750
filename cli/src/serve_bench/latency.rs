//! [`Latencies`]: how long runs took, in memory that does not grow with their number.

use std::time::Duration;

/// Times in nanoseconds, counted in steps of at most 1/64 of the time.
pub(super) struct Latencies {
    counts: Vec<u64>,
    longest: Duration,
}

/// Steps from a power of two to the next.
const STEPS: u64 = 64;

impl Default for Latencies {
    fn default() -> Self {
        // Enough for every number of 64 bits.
        Latencies { counts: vec![0; 60 * STEPS as usize], longest: Duration::ZERO }
    }
}

impl Latencies {
    /// Counts a run.
    pub(super) fn note(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[step(nanoseconds)] += 1;
        self.longest = self.longest.max(time);
    }

    /// Counts the runs of another thread as well.
    pub(super) fn add(&mut self, other: &Latencies) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, other)| *own += other);
        self.longest = self.longest.max(other.longest);
    }

    /// How many runs were counted.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that this part of the runs took at most, rounded up to the end of a step; zero if
    /// there were none.
    pub(super) fn at(&self, part: f64) -> Duration {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut sum = 0;
        let found = self.counts.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        found.map_or(Duration::ZERO, |step| Duration::from_nanos(end(step)).min(self.longest))
    }

    /// The longest.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }
}

/// The step of a number: itself below 64, then 64 steps for each power of two.
fn step(number: u64) -> usize {
    let power = number.max(STEPS).ilog2() - STEPS.ilog2();
    (u64::from(power) * STEPS + (number >> power)) as usize
}

/// The largest number of a step.
fn end(step: usize) -> u64 {
    let step = step as u64;
    let power = (step / STEPS).saturating_sub(1);
    let first = step - power * STEPS;
    (first << power).saturating_add((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_where_the_next_begins() {
        for number in (0..5000).chain((6..63).map(|power| (1 << power) + 12_345)).chain([u64::MAX])
        {
            let at = step(number);
            assert!(number <= end(at) && (at == 0 || number > end(at - 1)), "{number}");
            assert!(end(at) - number <= number / STEPS, "{number}");
        }
        assert!(step(u64::MAX) < Latencies::default().counts.len());
    }

    #[test]
    fn parts_are_those_of_the_sorted_times() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.at(0.5), Duration::ZERO);
        for micros in (1..=1000).rev() {
            latencies.note(Duration::from_micros(micros));
        }
        for (part, micros) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1000.0)] {
            let found = latencies.at(part).as_secs_f64() * 1e6;
            assert!((micros..micros * 1.02).contains(&found), "{part}: {found}");
        }
        assert_eq!((latencies.longest(), latencies.count()), (Duration::from_millis(1), 1000));
    }
}
