//! [`OneCycle`]: a rate that rises, falls, and ends far below where it began.

use crate::setters::setters;
use std::f64::consts::PI;
use tracecast_ir::Var;
use tracecast_ir::ops::elementwise::Elementwise;

/// The rates of
/// [`torch.optim.lr_scheduler.OneCycleLR`](https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html)
/// without its cycle of momentum.
///
/// ```
/// use tracecast::optim::{OneCycle, Schedule};
///
/// let schedule: Schedule = OneCycle::new(1.0, 100).rising(0.25).linear().into();
/// assert!((schedule.rate(24) - 1.0).abs() < 1e-12 && (schedule.rate(0) - 0.04).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycle {
    max_rate: f64,
    steps: u64,
    rising: f64,
    start_divisor: f64,
    end_divisor: f64,
    three_phases: bool,
    linear: bool,
}

/// A part of the cycle: from the last step of the part before to this one, between two rates.
struct Phase {
    end: f64,
    from: f64,
    to: f64,
}

impl OneCycle {
    /// With the highest rate, the number of steps, and PyTorch's defaults: up along half a cosine
    /// in 0.3 of the steps from a 25th of the highest rate, then down along another to a 10,000th
    /// of the first.
    pub fn new(max_rate: f64, steps: u64) -> Self {
        OneCycle {
            max_rate,
            steps,
            rising: 0.3,
            start_divisor: 25.0,
            end_divisor: 1e4,
            three_phases: false,
            linear: false,
        }
    }

    setters! {
        /// With another share of the steps in which the rate rises.
        rising(share: f64) => rising = share;
    }

    /// With a first rate of the highest over `start`, and a last one of the first over `end`.
    #[must_use]
    pub fn divisors(mut self, start: f64, end: f64) -> Self {
        (self.start_divisor, self.end_divisor) = (start, end);
        self
    }

    setters! {
        /// Down to the first rate in as many steps as up, and only then to the last.
        three_phases() => three_phases = true;
        /// Along straight lines.
        linear() => linear = true;
    }

    fn phases(&self) -> Vec<Phase> {
        let (steps, top) = (self.steps as f64, self.max_rate);
        let first = top / self.start_divisor;
        let last = first / self.end_divisor;
        let up = Phase { end: self.rising * steps - 1.0, from: first, to: top };
        let end = steps - 1.0;
        if self.three_phases {
            let down = Phase { end: 2.0 * self.rising * steps - 2.0, from: top, to: first };
            vec![up, down, Phase { end, from: first, to: last }]
        } else {
            vec![up, Phase { end, from: top, to: last }]
        }
    }

    pub(super) fn max_rate(&self) -> f64 {
        self.max_rate
    }

    pub(super) fn problem(&self) -> Option<String> {
        let most = if self.three_phases { 0.5 } else { 1.0 };
        if self.steps == 0 {
            return Some("a cycle takes 0 steps, expected at least 1".to_owned());
        }
        if !(0.0..=most).contains(&self.rising) {
            let found = self.rising;
            return Some(format!("the rate rises in {found} of a cycle, expected 0 to {most}"));
        }
        let bad =
            [self.start_divisor, self.end_divisor].into_iter().find(|d| d.is_nan() || *d <= 0.0);
        bad.map(|d| format!("a divisor of a cycle is {d}, expected above 0"))
    }

    pub(super) fn at<'t>(&self, step: Var<'t>) -> Var<'t> {
        let t = step.tracer();
        let mut start = 0.0;
        let mut rate: Option<(Var<'t>, f64)> = None;
        for Phase { end, from, to } in self.phases() {
            let share = self.share(start, end);
            let done =
                ((step - start) * share).maximum(t.zeros_like(step)).minimum(t.ones_like(step));
            let here = match self.linear {
                true => done * (to - from) + from,
                false => ((done * PI).cos() + 1.0) * ((from - to) / 2.0) + to,
            };
            rate = Some(match rate {
                None => (here, end),
                Some((before, until)) => (step.le(until).choose(before, here), end),
            });
            start = end;
        }
        rate.map_or(step, |(rate, _)| rate)
    }

    pub(super) fn rate(&self, step: u64) -> f64 {
        let step = step as f64;
        let phases = self.phases();
        let at = phases.iter().position(|p| step <= p.end).unwrap_or(phases.len() - 1);
        let start = if at == 0 { 0.0 } else { phases[at - 1].end };
        let Phase { end, from, to } = phases[at];
        let done = ((step - start) * self.share(start, end)).clamp(0.0, 1.0);
        match self.linear {
            true => done * (to - from) + from,
            false => ((done * PI).cos() + 1.0) * ((from - to) / 2.0) + to,
        }
    }

    /// One over the steps of a part; of an empty part, so much that it is over at once.
    fn share(&self, start: f64, end: f64) -> f64 {
        if end > start { 1.0 / (end - start) } else { 1e300 }
    }
}
