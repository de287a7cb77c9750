//! [`Dropout`]: elements left out at random while training.

use crate::entry::{Entry, Start};
use crate::nn::{Context, Module};
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

impl Module for Dropout {
    #[track_caller]
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        if !cx.is_training() || self.p == 0.0 {
            return x;
        }
        let t = cx.trace();
        let rng = t.state_from(generator());
        if rng.is_poison() {
            return rng;
        }
        let is_advanced = t.with_graph(|graph| {
            graph.updates().iter().any(|(port, _)| graph.ports()[*port].node == rng.id().node)
        });
        if !is_advanced {
            let one_step = t.constant(DType::I64, &[2], &[0.0, 1.0]);
            t.update(rng, rng + one_step);
        }
        x.dropout(rng, self.p, i64::from(t.next_stream()))
    }

    fn entries(&self) -> Vec<Entry> {
        vec![generator()]
    }
}
