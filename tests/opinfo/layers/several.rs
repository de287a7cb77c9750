//! Layers that take or give several tensors: recurrent layers, attention and transformers.

use super::settings::Settings;
use super::{Made, Played};
use crate::arguments::{Arguments, Bound};
use crate::calls::Called;
use tracecast::nn::*;
use tracecast_ir::Var;

/// The layer, if there is one of that name.
pub(super) fn made(name: &str, s: &Settings<'_>) -> Made {
    let name = name.strip_prefix("nn.")?;
    recurrent(name, s).or_else(|| attention(name, s)).or_else(|| transformer(name, s))
}

/// A layer whose calls are made by a function.
struct Several<L, F>(L, F);

impl<L: Layer, F> Played for Several<L, F>
where
    F: for<'c, 't> Fn(&L, &Context<'t>, &Arguments<'c, 't>) -> Called<'t>,
{
    fn entries(&self) -> Vec<Entry> {
        self.0.entries().unwrap()
    }

    fn play<'t>(&self, cx: &Context<'t>, a: &Arguments<'_, 't>) -> Called<'t> {
        self.1(&self.0, cx, a)
    }
}

fn several<L: Layer + 'static>(
    layer: L,
    play: impl for<'c, 't> Fn(&L, &Context<'t>, &Arguments<'c, 't>) -> Called<'t> + 'static,
) -> Result<Box<dyn Played>, String> {
    Ok(Box::new(Several(layer, play)))
}

/// The input and the state of one tensor.
fn steps<'t>(a: &Arguments<'_, 't>) -> Result<Steps<'t, Var<'t>>, String> {
    Ok(Steps { x: a.tensor(0, "input")?, state: a.opt_tensor(1, "hx")? })
}

/// The input and the state of two tensors.
fn steps_of_pairs<'t>(a: &Arguments<'_, 't>) -> Result<Steps<'t, (Var<'t>, Var<'t>)>, String> {
    let state = a.get(1, "hx").and_then(Bound::tensors);
    let state = state.map(|list| match list[..] {
        [h, c] => Ok((h, c)),
        _ => Err("takes a pair of states".to_owned()),
    });
    Ok(Steps { x: a.tensor(0, "input")?, state: state.transpose()? })
}

/// Gives a recurrent layer the settings that all of them share.
macro_rules! shared {
    ($layer:expr, $s:expr) => {{
        let (layer, s) = ($layer.dtype($s.dtype), $s);
        let layers = s.int(2, "num_layers")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
        let layer = layer.layers(layers).dropout(s.float(usize::MAX, "dropout")?.unwrap_or(0.0));
        let of = |name, absent| s.flag(usize::MAX, name, absent);
        let layer = if of("bias", true)? { layer } else { layer.without_bias() };
        let layer = if of("batch_first", false)? { layer.batch_first() } else { layer };
        if of("bidirectional", false)? { layer.bidirectional() } else { layer }
    }};
}

fn recurrent(name: &str, s: &Settings<'_>) -> Made {
    let nonlinearity = || match s.text(3, "nonlinearity")? {
        Some("relu") => Ok::<_, String>(Nonlinearity::Relu),
        _ => Ok(Nonlinearity::Tanh),
    };
    let made = || {
        let [inputs, hidden] = [s.size(0, "input_size")?, s.size(1, "hidden_size")?];
        match name {
            "RNN" => {
                let layer = shared!(Rnn::new(inputs, hidden), s).nonlinearity(nonlinearity()?);
                several(layer, |layer, cx, a| {
                    let (y, h) = layer.forward(cx, steps(a)?);
                    Ok(vec![y, h])
                })
            }
            "GRU" => several(shared!(Gru::new(inputs, hidden), s), |layer, cx, a| {
                let (y, h) = layer.forward(cx, steps(a)?);
                Ok(vec![y, h])
            }),
            "LSTM" => {
                let layer = shared!(Lstm::new(inputs, hidden), s);
                let proj = s.int(usize::MAX, "proj_size")?.filter(|n| *n > 0);
                let layer = match proj.and_then(|n| usize::try_from(n).ok()) {
                    Some(proj) => layer.proj(proj),
                    None => layer,
                };
                several(layer, |layer, cx, a| {
                    let (y, (h, c)) = layer.forward(cx, steps_of_pairs(a)?);
                    Ok(vec![y, h, c])
                })
            }
            _ => {
                let has_bias = s.flag(2, "bias", true)?;
                cell(name, s, [inputs, hidden], has_bias, nonlinearity()?)
            }
        }
    };
    let names = ["RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"];
    names.contains(&name).then(made)
}

fn cell(
    name: &str,
    s: &Settings<'_>,
    [inputs, hidden]: [usize; 2],
    has_bias: bool,
    nonlinearity: Nonlinearity,
) -> Result<Box<dyn Played>, String> {
    match name {
        "RNNCell" => {
            let layer = RnnCell::new(inputs, hidden).dtype(s.dtype).nonlinearity(nonlinearity);
            let layer = if has_bias { layer } else { layer.without_bias() };
            several(layer, |layer, cx, a| Ok(vec![layer.forward(cx, steps(a)?)]))
        }
        "GRUCell" => {
            let layer = GruCell::new(inputs, hidden).dtype(s.dtype);
            let layer = if has_bias { layer } else { layer.without_bias() };
            several(layer, |layer, cx, a| Ok(vec![layer.forward(cx, steps(a)?)]))
        }
        _ => {
            let layer = LstmCell::new(inputs, hidden).dtype(s.dtype);
            let layer = if has_bias { layer } else { layer.without_bias() };
            several(layer, |layer, cx, a| {
                let (h, c) = layer.forward(cx, steps_of_pairs(a)?);
                Ok(vec![h, c])
            })
        }
    }
}

fn attention(name: &str, s: &Settings<'_>) -> Made {
    let made = || {
        let [width, heads] = [s.size(0, "embed_dim")?, s.size(1, "num_heads")?];
        let of = |at, name, absent| s.flag(at, name, absent);
        let layer = MultiheadAttention::new(width, heads).dtype(s.dtype);
        let layer = layer.dropout(s.float(2, "dropout")?.unwrap_or(0.0));
        let layer = if of(3, "bias", true)? { layer } else { layer.without_bias() };
        let layer = if of(4, "add_bias_kv", false)? { layer.bias_kv() } else { layer };
        let layer = if of(5, "add_zero_attn", false)? { layer.zero_attn() } else { layer };
        let widths = [s.int(6, "kdim")?, s.int(7, "vdim")?];
        let [key, value] = widths.map(|n| n.and_then(|n| usize::try_from(n).ok()).unwrap_or(width));
        let layer = layer.widths(key, value);
        let layer = if of(8, "batch_first", false)? { layer.batch_first() } else { layer };
        several(layer, |layer, cx, a| {
            let [query, key, value] =
                [a.tensor(0, "query")?, a.tensor(1, "key")?, a.tensor(2, "value")?];
            let attend = Attend::new(query, key, value);
            let padding = a.opt_tensor(3, "key_padding_mask")?;
            let attend = padding.map_or(attend, |padding| attend.key_padding(padding));
            let layer = match a.flag(4, "need_weights")? {
                Some(false) => layer.clone().without_weights(),
                _ => layer.clone(),
            };
            let layer = match a.flag(6, "average_attn_weights")? {
                Some(false) => layer.weights_per_head(),
                _ => layer,
            };
            let mask = a.opt_tensor(5, "attn_mask")?;
            let attend = mask.map_or(attend, |mask| attend.mask(mask));
            let (y, weights) = layer.forward(cx, attend);
            Ok([y].into_iter().chain(weights).collect())
        })
    };
    (name == "MultiheadAttention").then(made)
}

/// Gives a layer the settings that all of them share; `at` is the position of `dim_feedforward`.
macro_rules! transformed {
    ($layer:expr, $s:expr, $at:expr) => {{
        let (layer, s, at) = ($layer.dtype($s.dtype), $s, $at);
        let feedforward = s.int(at, "dim_feedforward")?.and_then(|n| usize::try_from(n).ok());
        let layer = layer.feedforward(feedforward.unwrap_or(2048));
        let layer = layer.dropout(s.float(at + 1, "dropout")?.unwrap_or(0.1));
        let layer = match s.text(at + 2, "activation")? {
            Some("gelu") => layer.activation(Activation::Gelu),
            _ => layer,
        };
        let of = |name, absent| s.flag(usize::MAX, name, absent);
        let layer = layer.eps(s.float(usize::MAX, "layer_norm_eps")?.unwrap_or(1e-5));
        let layer = if of("bias", true)? { layer } else { layer.without_bias() };
        let layer = if of("batch_first", false)? { layer.batch_first() } else { layer };
        if of("norm_first", false)? { layer.norm_first() } else { layer }
    }};
}

fn transformer(name: &str, s: &Settings<'_>) -> Made {
    let made = || {
        let [width, heads] = [s.size(0, "d_model")?, s.size(1, "nhead")?];
        match name {
            "TransformerEncoderLayer" => {
                let layer = transformed!(TransformerEncoderLayer::new(width, heads), s, 2);
                several(layer, |layer, cx, a| Ok(vec![layer.forward(cx, source(a, "src_mask")?)]))
            }
            "TransformerDecoderLayer" => {
                let layer = transformed!(TransformerDecoderLayer::new(width, heads), s, 2);
                several(layer, |layer, cx, a| {
                    let target = Target::new(a.tensor(0, "tgt")?, a.tensor(1, "memory")?);
                    let given = |name| a.opt_tensor(usize::MAX, name);
                    let mask = given("tgt_mask")?;
                    let target = mask.map_or(target, |mask| target.mask(mask));
                    let mask = given("memory_mask")?;
                    let target = mask.map_or(target, |mask| target.memory_mask(mask));
                    let mask = given("tgt_key_padding_mask")?;
                    let target = mask.map_or(target, |mask| target.key_padding(mask));
                    let mask = given("memory_key_padding_mask")?;
                    let target = mask.map_or(target, |mask| target.memory_key_padding(mask));
                    Ok(vec![layer.forward(cx, target)])
                })
            }
            _ => {
                let layers = ["num_encoder_layers", "num_decoder_layers"];
                let [encoder, decoder] = [s.size(2, layers[0])?, s.size(3, layers[1])?];
                let model = transformed!(Transformer::new(width, heads), s, 4);
                several(model.layers(encoder, decoder), |model, cx, a| {
                    let given = Translate::new(source(a, "src_mask")?, a.tensor(1, "tgt")?);
                    let mask = a.opt_tensor(usize::MAX, "tgt_mask")?;
                    let given = mask.map_or(given, |mask| given.mask(mask));
                    let padding = a.opt_tensor(usize::MAX, "tgt_key_padding_mask")?;
                    let given = padding.map_or(given, |padding| given.key_padding(padding));
                    Ok(vec![model.forward(cx, given)])
                })
            }
        }
    };
    let names = ["TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer"];
    names.contains(&name).then(made)
}

/// What an encoder takes.
fn source<'t>(a: &Arguments<'_, 't>, mask: &str) -> Result<Source<'t>, String> {
    let source = Source::new(a.tensor(0, "src")?);
    let mask = a.opt_tensor(usize::MAX, mask)?;
    let source = mask.map_or(source, |mask| source.mask(mask));
    let padding = a.opt_tensor(usize::MAX, "src_key_padding_mask")?;
    Ok(padding.map_or(source, |padding| source.key_padding(padding)))
}
