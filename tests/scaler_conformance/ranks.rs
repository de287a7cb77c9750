//! Sharded training by simulated ranks: each has a scaler and an optimizer of its own, and the flags are summed between
//! `unscale_` and `step`.

use crate::cases::{read, same};
use tracecast::Tensor;
use tracecast::amp::{EagerScaler, ScalerOptions};
use tracecast::eager::{Eager, EagerOptimizer, Parameter};
use tracecast::optim::Sgd;

type Checked = Result<(), String>;

struct Rank {
    param: Parameter,
    optimizer: EagerOptimizer,
    scaler: EagerScaler,
}

fn text(error: tracecast::Error) -> String {
    error.to_string()
}

fn rank(eager: &Eager, init_scale: f64, growth_interval: i64, fused: bool) -> Rank {
    let start = Tensor::new([2], &[1f32, 2.0]).expect("two elements");
    let param = eager.parameter(start);
    let options = ScalerOptions { init_scale, growth_interval, ..ScalerOptions::default() };
    Rank {
        optimizer: EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&param)).fused(fused),
        scaler: EagerScaler::new(options).expect("good factors").parity(true),
        param,
    }
}

impl Rank {
    fn start(&mut self, grad: Option<[f32; 2]>) -> Checked {
        let eager = self.param.value().eager().clone();
        self.scaler.scale(&eager.tensor(Tensor::scalar(1f32))).map_err(text)?;
        self.param.zero_grad();
        let Some(grad) = grad else { return Ok(()) };
        let grad = Tensor::new([2], &grad).map_err(|e| e.to_string())?;
        self.param.set_grad(eager.tensor(grad)).map_err(text)
    }

    /// Whether the optimizer stepped.
    fn finish(&mut self) -> Result<bool, String> {
        let stepped = self.scaler.step(&mut self.optimizer).map_err(text)?;
        self.scaler.update().map_err(text)?;
        Ok(stepped)
    }

    /// Scale, growth tracker and parameter.
    fn state(&self) -> Result<Vec<f64>, String> {
        let tracker = self.scaler.get_growth_tracker().map_err(text)?;
        let mut state = vec![self.scaler.get_scale().map_err(text)?, tracker as f64];
        state.extend(read(self.param.value()));
        Ok(state)
    }
}

/// Unscales on every rank and gives all of them the sum of the flags, which is returned.
fn reduce(ranks: &mut [Rank]) -> Result<f64, String> {
    let mut sum = 0.0;
    for rank in &mut *ranks {
        rank.scaler.unscale_(&rank.optimizer).map_err(text)?;
        let flags = rank.scaler.found_inf(&rank.optimizer).map_err(text)?;
        sum += flags.iter().sum::<f64>();
    }
    for rank in ranks {
        rank.scaler.set_found_inf(&rank.optimizer, sum).map_err(text)?;
    }
    Ok(sum)
}

const INF: f32 = f32::INFINITY;
const GRADS: [[[f32; 2]; 4]; 2] = [
    [[8.0, 16.0], [8.0, INF], [8.0, 8.0], [8.0, 8.0]],
    [[8.0, 16.0], [8.0, 8.0], [8.0, 8.0], [8.0, 8.0]],
];

pub(crate) fn two_ranks(eager: &Eager, _: &Eager) -> Checked {
    let mut ranks = [rank(eager, 8.0, 2, false), rank(eager, 8.0, 2, false)];
    let expected = [
        (0.0, [8.0, 1.0, 0.0, 0.0]),
        (1.0, [4.0, 0.0, 0.0, 0.0]),
        (0.0, [4.0, 1.0, -2.0, -2.0]),
        (0.0, [8.0, 0.0, -4.0, -4.0]),
    ];
    for (i, (flag, state)) in expected.into_iter().enumerate() {
        for (rank, grads) in ranks.iter_mut().zip(GRADS) {
            rank.start(Some(grads[i]))?;
        }
        same("flag", &[reduce(&mut ranks)?], &[flag])?;
        for rank in &mut ranks {
            rank.finish()?;
            same(&format!("iteration {i}"), &rank.state()?, &state)?;
        }
    }
    Ok(())
}

pub(crate) fn rank_without_gradient(eager: &Eager, _: &Eager) -> Checked {
    let mut ranks = [rank(eager, 8.0, 2, false), rank(eager, 8.0, 2, false)];
    ranks[0].start(Some([8.0, 16.0]))?;
    ranks[1].start(None)?;
    same("flag", &[reduce(&mut ranks)?], &[0.0])?;
    for rank in &mut ranks {
        rank.finish()?;
    }
    same("rank 0", &ranks[0].state()?, &[8.0, 1.0, 0.0, 0.0])?;
    same("rank 1", &ranks[1].state()?, &[8.0, 1.0, 1.0, 2.0])
}

/// Without an explicit `unscale_` there is nothing to reduce in between: one rank backs off, the other grows.
pub(crate) fn fused_ranks_diverge(eager: &Eager, _: &Eager) -> Checked {
    let expected = [[8.0, 4.0, 4.0, 8.0], [8.0, 16.0, 16.0, 32.0]];
    for (grads, scales) in GRADS.into_iter().zip(expected) {
        let mut rank = rank(eager, 8.0, 2, true);
        for (grad, scale) in grads.into_iter().zip(scales) {
            rank.start(Some(grad))?;
            rank.finish()?;
            same("scale", &rank.state()?[..1], &[scale])?;
        }
    }
    Ok(())
}

pub(crate) fn flags_add_up(eager: &Eager, _: &Eager) -> Checked {
    let mut ranks = [rank(eager, 8.0, 2, false), rank(eager, 8.0, 2, false)];
    for rank in &mut ranks {
        rank.start(Some([INF, 8.0]))?;
    }
    same("sum", &[reduce(&mut ranks)?], &[2.0])?;
    for rank in &mut ranks {
        same("kept", &rank.scaler.found_inf(&rank.optimizer).map_err(text)?, &[2.0])?;
        rank.finish()?;
        same("skipped", &rank.state()?, &[4.0, 0.0, 1.0, 2.0])?;
    }
    Ok(())
}

pub(crate) fn inf_skips(eager: &Eager, _: &Eager) -> Checked {
    let mut ranks = [rank(eager, 2.0, 2000, false), rank(eager, 2.0, 2000, false)];
    ranks[0].start(Some([INF, 8.0]))?;
    ranks[1].start(Some([8.0, 8.0]))?;
    reduce(&mut ranks)?;
    for rank in &mut ranks {
        if rank.finish()? {
            return Err("the inner step was called".to_owned());
        }
        same("parameter", &read(rank.param.value()), &[1.0, 2.0])?;
    }
    Ok(())
}

/// In even iterations rank 0 has a bad gradient: nobody moves, and everybody backs off.
pub(crate) fn found_inf(eager: &Eager, _: &Eager) -> Checked {
    let mut ranks = [rank(eager, 2.0, 2000, false), rank(eager, 2.0, 2000, false)];
    let mut scale = 2.0;
    for iteration in 0..10 {
        let bad = iteration % 2 == 0;
        ranks[0].start(Some([if bad { INF } else { 1.0 }, 1.0]))?;
        ranks[1].start(Some([1.0, 1.0]))?;
        reduce(&mut ranks)?;
        scale *= if bad { 0.5 } else { 1.0 };
        for rank in &mut ranks {
            let before = read(rank.param.value());
            if rank.finish()? == bad {
                return Err(format!("iteration {iteration}: stepped is {}", !bad));
            }
            if (before == read(rank.param.value())) != bad {
                return Err(format!("iteration {iteration}: moved is {bad}"));
            }
            same("scale", &rank.state()?[..1], &[scale])?;
        }
    }
    Ok(())
}
