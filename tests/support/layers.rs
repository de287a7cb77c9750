//! Random programs as people write them: layers under autocast whose weights and activations are
//! used several times.
//!
//! In `random` hardly any value is cast twice; here most are, so that it shows which casts are
//! shared and in which order and dtype gradients are summed.

use super::dice::Dice;
use super::random::{moved_on, region};
use tracecast_ir::ops::prelude::*;
use tracecast_ir::policy::DeviceType;
use tracecast_ir::{DType, Graph, Role, TensorType, Tracer, Var};

/// The values that layers are made of.
struct Parts<'t> {
    /// Weights of `[width, width]`.
    weights: Vec<Var<'t>>,
    /// A bias of `[width]`, a factor of `[width]`.
    bias: Var<'t>,
    factor: Var<'t>,
    /// All that has been computed, of `[rows, width]`.
    values: Vec<Var<'t>>,
}

/// A random program of a number of layers, with the gradients of all its leaves.
pub(crate) fn program(seed: u64, layers: usize) -> Graph {
    drawn(&mut Dice::new(seed), seed, layers)
}

/// The program that the dice make; errors name the seed.
pub(crate) fn drawn(dice: &mut Dice, seed: u64, layers: usize) -> Graph {
    let tracer = Tracer::new("layers");
    {
        let t = &tracer;
        let low = dice.pick(&[DType::BF16, DType::F16]);
        let (rows, width) = (dice.pick(&[1, 4, 9]), dice.pick(&[3, 8, 16, 33]));
        let leaf = |name: &str, dtype, sizes: &[usize], role| {
            t.port(name, TensorType::new(dtype, sizes), role, role == Role::Input, DeviceType::Cpu)
        };
        let x = leaf("x", dice.pick(&[DType::F32, DType::F32, low]), &[rows, width], Role::Input);
        let weights = (0..2 + dice.below(2))
            .map(|i| leaf(&format!("w{i}"), DType::F32, &[width, width], Role::Param));
        let mut parts = Parts {
            weights: weights.collect(),
            bias: leaf("bias", DType::F32, &[width], Role::Param),
            factor: leaf("factor", DType::F32, &[width], Role::Param),
            values: vec![x],
        };
        let mut now = region(Some(low), 1);
        for _ in 0..layers {
            if dice.chance(10) {
                now = moved_on(dice, low, now);
            }
            let next = t.in_region(&now, || layer(dice, &parts));
            parts.values.push(next);
        }
        let mut loss = parts.values[layers].mul(x).sum(().dtype(DType::F32));
        if dice.chance(30) {
            let w = parts.weights[0];
            loss = loss.add(w.mul(w).sum(()));
        }
        t.output("loss", loss);
        let mut wrt = vec![x, parts.bias, parts.factor];
        wrt.extend(&parts.weights);
        for (i, gradient) in t.grad(loss, &wrt).into_iter().enumerate() {
            t.output(&format!("g{i}"), gradient);
        }
    }
    tracer.finish().unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

/// One more value, made of those that there are.
fn layer<'t>(dice: &mut Dice, parts: &Parts<'t>) -> Var<'t> {
    let values = &parts.values;
    let recent = |dice: &mut Dice| values[values.len() - 1 - dice.below(values.len().min(4))];
    let (x, y) = (recent(dice), recent(dice));
    let weight = |dice: &mut Dice| parts.weights[dice.below(parts.weights.len())];
    match dice.below(12) {
        0..=3 => {
            let bias = dice.chance(50).then_some(parts.bias);
            x.to(DType::F32).linear(weight(dice), bias)
        }
        // A weight that the program itself casts is cast anew each time.
        4 => x.matmul(weight(dice).to(x.dtype())),
        5 => attention(dice, parts, y),
        6 => x.add(y),
        7 => x.mul(y),
        8 => x.mul(parts.factor).add(parts.bias),
        9 => x.to(DType::F32).layer_norm(parts.factor, parts.bias, [x.size(1)], 1e-5),
        10 => x.gelu(None),
        _ => x.add(y).tanh(),
    }
}

/// Queries, keys and values of one f32 activation.
fn attention<'t>(dice: &mut Dice, parts: &Parts<'t>, x: Var<'t>) -> Var<'t> {
    let width = x.size(1);
    let x = x.to(DType::F32).layer_norm(parts.factor, parts.bias, [width], 1e-5);
    let [q, k, v] = [0; 3].map(|_| x.linear(parts.weights[dice.below(parts.weights.len())], None));
    let scale = 1.0 / (width.get() as f64).sqrt();
    let scores = q.matmul(k.t()).mul(scale).softmax(-1);
    scores.matmul(v)
}
