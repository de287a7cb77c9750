//! Recurrent layers, unrolled step by step.

use super::Call;
use super::table;
use tracecast_ir::Var;
use tracecast_ir::functions::{Carried, Cell, Recurrent, stack};
use tracecast_ir::ops::prelude::*;

table! {
    "lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)" =>
        call (x: tensor, states: tensors, weights: tensors, bias: flag, layers: int, p: float, train: flag, both: flag, first: flag) run(call, Cell::Lstm, x, &states, &weights, Layers { bias, layers, dropout: if train { p } else { 0.0 }, both, first })?;
    "gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)" =>
        call (x: tensor, state: tensor, weights: tensors, bias: flag, layers: int, p: float, train: flag, both: flag, first: flag) run(call, Cell::Gru, x, &[state], &weights, Layers { bias, layers, dropout: if train { p } else { 0.0 }, both, first })?;
    "rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)" =>
        call (x: tensor, state: tensor, weights: tensors, bias: flag, layers: int, p: float, train: flag, both: flag, first: flag) run(call, Cell::Tanh, x, &[state], &weights, Layers { bias, layers, dropout: if train { p } else { 0.0 }, both, first })?;
    "rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)" =>
        call (x: tensor, state: tensor, weights: tensors, bias: flag, layers: int, p: float, train: flag, both: flag, first: flag) run(call, Cell::Relu, x, &[state], &weights, Layers { bias, layers, dropout: if train { p } else { 0.0 }, both, first })?;
}

/// The settings of a layer.
struct Layers {
    bias: bool,
    layers: i64,
    dropout: f64,
    both: bool,
    first: bool,
}

fn run<'t>(
    call: &Call<'_, 't>,
    cell: Cell,
    x: Var<'t>,
    states: &[Var<'t>],
    weights: &[Var<'t>],
    of: Layers,
) -> Result<Vec<Var<'t>>, String> {
    if x.is_poison() {
        return Ok(vec![x; 3]);
    }
    let projected = states.len() == 2 && states[0].shape() != states[1].shape();
    let each = 2 + if of.bias { 2 } else { 0 } + usize::from(projected);
    let ways = if of.both { 2 } else { 1 };
    let layers = usize::try_from(of.layers).unwrap_or(0);
    if weights.len() != (each * ways).saturating_mul(layers) || x.rank() < 2 || layers == 0 {
        return Err(format!(
            "takes {each} parameters for each of {layers} layers in {ways} directions, found {}, of {}",
            weights.len(),
            x.ty()
        ));
    }
    let axis = i64::from(of.first && x.rank() == 3);
    let mut xs = x.unbind(axis);
    let mut last: Vec<Carried<'t>> = Vec::new();
    for layer in 0..layers {
        let mut out: Vec<Vec<Var<'t>>> = Vec::new();
        for way in 0..ways {
            let at = layer * ways + way;
            let own = &weights[at * each..(at + 1) * each];
            let biases = if of.bias { [Some(own[2]), Some(own[3])] } else { [None, None] };
            let step =
                Recurrent::new(cell, [own[0], own[1]], biases, projected.then(|| own[each - 1]));
            let [h, c] = [0, 1].map(|i| states.get(i).map(|all| all.select(0, at as i64)));
            let state = Carried { h: h.ok_or("takes a state")?, c };
            let (results, after) = step.layer(&xs, state, way == 1);
            last.push(after);
            out.push(results);
        }
        xs = match &out[..] {
            [forth, back] => forth.iter().zip(back).map(|(f, b)| cat(&[*f, *b], -1)).collect(),
            _ => out.swap_remove(0),
        };
        if of.dropout > 0.0 && layer + 1 < layers {
            for x in &mut xs {
                let (rng, stream) = call.draw()?;
                *x = x.dropout(rng, of.dropout, stream);
            }
        }
    }
    let h: Vec<Var<'t>> = last.iter().map(|state| state.h).collect();
    let c: Option<Vec<Var<'t>>> = last.iter().map(|state| state.c).collect();
    let c = c.map(|c| stack(&c, 0));
    Ok([stack(&xs, axis), stack(&h, 0)].into_iter().chain(c).collect())
}
