//! Sharded training by ranks: each has a scaler and an optimizer of its own, and between `unscale_`
//! and `step` they exchange their flags.

use crate::cases::{read, same};
use std::time::Duration;
use tracecast::amp::{EagerScaler, ScalerOptions};
use tracecast::eager::{Eager, EagerOptimizer, Gradient, Parameter};
use tracecast::ir::op::Across;
use tracecast::optim::{AdamW, Sgd};
use tracecast::runtime::Collective;
use tracecast::runtime::collective::{Label, Transfer, threads};
use tracecast::{DType, Tensor, TensorType};

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
        scaler: EagerScaler::new(options).expect("good factors").parity(true).sharded(true),
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

/// Unscales on every rank and gives each of them the sum of the flags that the ranks have
/// exchanged, which is returned.
fn reduce(ranks: &mut [Rank]) -> Result<f64, String> {
    let sum = Transfer::Reduce { across: Across::Sum, dtype: DType::F64 };
    let groups = threads(ranks.len(), Duration::from_secs(30));
    let mut flying = Vec::new();
    for (rank, group) in ranks.iter_mut().zip(&groups) {
        rank.scaler.unscale_(&rank.optimizer).map_err(text)?;
        let flags = rank.scaler.found_inf(&rank.optimizer).map_err(text)?;
        let own = flags.iter().sum::<f64>().to_le_bytes().to_vec();
        flying.push(group.start(sum, Label::default(), own).map_err(|e| e.to_string())?);
    }
    let mut all = Vec::new();
    for ((rank, group), pending) in ranks.iter_mut().zip(&groups).zip(flying) {
        let given = group.wait(pending).map_err(|e| e.to_string())?.data;
        let sum = f64::from_le_bytes(given.try_into().map_err(|_| "expected one number")?);
        rank.scaler.set_found_inf(&rank.optimizer, sum).map_err(text)?;
        all.push(sum);
    }
    match all[..] {
        [first, ref others @ ..] if others.iter().all(|sum| *sum == first) => Ok(first),
        _ => Err(format!("the ranks have got {all:?}")),
    }
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

/// Without an explicit `unscale_` there is nothing to reduce in between: one rank backs off, the
/// other grows.
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

pub(crate) fn dtype_is_kept(eager: &Eager, _: &Eager) -> Checked {
    for (sharded, shape, expected) in [
        (true, &[1][..], DType::F16),
        (true, &[], DType::F16),
        (false, &[1], DType::F16),
        (false, &[], DType::F32),
    ] {
        let options = ScalerOptions { init_scale: 8.0, ..ScalerOptions::default() };
        let mut scaler = EagerScaler::new(options).map_err(text)?.sharded(sharded);
        let loss = Tensor::full(TensorType::new(DType::F16, shape), 4.0);
        let scaled = scaler.scale(&eager.tensor(loss.map_err(|e| e.to_string())?));
        let scaled = scaled.map_err(text)?;
        same("scaled", &read(&scaled), &[32.0])?;
        if scaled.dtype() != expected {
            return Err(format!("{shape:?}: expected {expected}, found {}", scaled.dtype()));
        }
    }
    Ok(())
}

/// With `parity`; without it the scale stays where it can still grow no further.
pub(crate) fn grows_to_infinity(eager: &Eager, _: &Eager) -> Checked {
    for parity in [true, false] {
        let mut rank = rank(eager, 3e38, 1, false);
        rank.scaler = rank.scaler.parity(parity);
        rank.start(Some([1.0, 1.0]))?;
        rank.finish()?;
        let expected = if parity { f64::INFINITY } else { f64::from(3e38f32) };
        same("scale", &rank.state()?[..1], &[expected])?;
    }
    Ok(())
}

pub(crate) fn fused_after_unscale(eager: &Eager, _: &Eager) -> Checked {
    for parity in [true, false] {
        let mut rank = rank(eager, 8.0, 2, true);
        let params = std::slice::from_ref(&rank.param);
        rank.optimizer = EagerOptimizer::new(AdamW::new(0.1).weight_decay(0.0), params).fused(true);
        rank.scaler = rank.scaler.parity(parity);
        rank.start(Some([8.0, 16.0]))?;
        rank.scaler.unscale_(&rank.optimizer).map_err(text)?;
        let stepped = rank.scaler.step(&mut rank.optimizer);
        match stepped {
            Err(error) if parity && crate::cases::class(&error) == "RuntimeError" => {}
            Ok(true) if !parity => {}
            other => return Err(format!("parity {parity}: {other:?}")),
        }
    }
    Ok(())
}

pub(crate) fn sparse(eager: &Eager, _: &Eager) -> Checked {
    let (apart, twice) = ([[0, 1, 1], [2, 0, 2]], [[1, 1, 1], [0, 0, 2]]);
    let cases = [
        (DType::F32, [16.0, 32.0, 64.0], apart, 0.0),
        (DType::F32, [16.0, 32.0, f64::INFINITY], apart, 1.0),
        (DType::F32, [16.0, 32.0, f64::NAN], apart, 1.0),
        (DType::F16, [32768.0, 32768.0, 1.0], twice, 1.0),
        // 2048 + 1 + 1 is 2050 in f32, and would be 2048 with a sum in f16.
        (DType::F16, [2048.0, 1.0, 1.0], [[1, 1, 1], [0, 0, 0]], 0.0),
    ];
    for (dtype, values, indices, expected) in cases {
        let mut rank = rank(eager, 2.0, 2000, false);
        let zeros = Tensor::zeros(TensorType::new(dtype, [2, 3])).map_err(|e| e.to_string())?;
        let param = eager.parameter(zeros);
        rank.optimizer = EagerOptimizer::new(Sgd::new(1.0), std::slice::from_ref(&param));
        rank.start(None)?;
        let values = Tensor::from_f64s(TensorType::new(dtype, [3]), &values);
        let values = eager.tensor(values.map_err(|e| e.to_string())?);
        let indices = indices.map(Vec::from);
        param.set_grad(Gradient::sparse(values, &indices, &[2, 3]).map_err(text)?).map_err(text)?;
        rank.scaler.unscale_(&rank.optimizer).map_err(text)?;
        same("found", &rank.scaler.found_inf(&rank.optimizer).map_err(text)?, &[expected])?;
        if expected == 0.0 {
            let grad = param.grad().expect("set above").coalesced().map_err(text)?;
            let halves = if dtype == DType::F16 { vec![1025.0] } else { vec![8.0, 16.0, 32.0] };
            same("values / 2", &read(grad.values()), &halves)?;
        }
    }
    Ok(())
}

/// Two ranks that own half of a parameter each end where one process with the plain scaler ends
/// that owns all of it, also when a gradient of one half is infinite.
pub(crate) fn as_one_process(eager: &Eager, _: &Eager) -> Checked {
    let options =
        || ScalerOptions { init_scale: 2048.0, growth_interval: 3, ..ScalerOptions::default() };
    let parameter = |numbers: &[f32]| -> Result<Parameter, String> {
        Ok(eager.parameter(Tensor::new([numbers.len()], numbers).map_err(|e| e.to_string())?))
    };
    let start: Vec<f32> = (0..8).map(|i| i as f32 / 4.0 - 1.0).collect();
    let whole = parameter(&start)?;
    let mut optimizer = EagerOptimizer::new(AdamW::new(0.1), std::slice::from_ref(&whole));
    let mut scaler = EagerScaler::new(options()).map_err(text)?;
    let mut ranks = Vec::new();
    for half in start.chunks(4) {
        let param = parameter(half)?;
        let optimizer = EagerOptimizer::new(AdamW::new(0.1), std::slice::from_ref(&param));
        let scaler = EagerScaler::new(options()).map_err(text)?.sharded(true);
        ranks.push(Rank { param, optimizer, scaler });
    }
    let set = |param: &Parameter, grad: &[f32]| -> Checked {
        let grad = Tensor::new([grad.len()], grad).map_err(|e| e.to_string())?;
        param.set_grad(eager.tensor(grad)).map_err(text)
    };
    for iteration in 0..12 {
        let scale = scaler.get_scale().map_err(text)? as f32;
        let mut grad: Vec<f32> = (0..8).map(|i| scale * ((i * 5 + iteration) % 7) as f32).collect();
        if iteration % 5 == 3 {
            grad[iteration % 8] = INF;
        }
        let one = eager.tensor(Tensor::scalar(1f32));
        scaler.scale(&one).map_err(text)?;
        set(&whole, &grad)?;
        scaler.step(&mut optimizer).map_err(text)?;
        scaler.update().map_err(text)?;
        for (rank, grad) in ranks.iter_mut().zip(grad.chunks(4)) {
            rank.scaler.scale(&one).map_err(text)?;
            set(&rank.param, grad)?;
        }
        reduce(&mut ranks)?;
        let mut parts = Vec::new();
        for rank in &mut ranks {
            rank.finish()?;
            parts.extend(read(rank.param.value()));
            let found = rank.scaler.state_dict().map_err(text)?;
            if found != scaler.state_dict().map_err(text)? {
                return Err(format!("iteration {iteration}: {found:?}"));
            }
        }
        same("parameter", &parts, &read(whole.value()))?;
    }
    Ok(())
}
