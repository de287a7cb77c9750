//! [`Dropout`]: elements left out at random while training.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
use crate::trace::Trace;
use tracecast_ir::ops::random::Random;
use tracecast_ir::{DType, TensorType, Var};

/// Each element dropped with probability `p` and the others scaled up; nothing when the model is evaluated.
///
/// All dropouts of a program share the state `rng: i64[2]`, the seed and the number of the step, and each draws from a stream of
/// its own. The number of the step grows by one with each run, so a run with the same state drops the same elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// With this probability, from 0 to 1.
    pub fn new(p: f64) -> Self {
        Dropout { p }
    }
}

/// The state of the random number generator.
fn generator() -> Entry {
    Entry::state("rng", TensorType::new(DType::I64, [2]), Start::Seed).shared()
}

/// The generator of this step; the first to ask for it records that it advances.
fn next_step(t: &Trace) -> Var<'_> {
    let rng = t.state_from(generator());
    if rng.is_poison() {
        return rng;
    }
    let advances = t.with_graph(|graph| {
        graph.updates().iter().any(|(port, _)| graph.ports()[*port].node == rng.id().node)
    });
    if !advances {
        let one_step = t.constant(DType::I64, &[2], &[0.0, 1.0]);
        t.update(rng, rng + one_step);
    }
    rng
}

impl Module for Dropout {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        if !cx.is_training() || self.p == 0.0 {
            return x;
        }
        cx.here(|| {
            let rng = next_step(cx.trace());
            x.dropout(rng, self.p, i64::from(cx.trace().next_stream()))
        })
    }

    fn entries(&self) -> Vec<Entry> {
        vec![generator()]
    }
}
