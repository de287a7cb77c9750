//! Attention.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::functions::MultiHead;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Size, Var};

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    match name {
        "scaled_dot_product_attention" => Some(attended(a)),
        "multi_head_attention_forward" => Some(heads(a)),
        _ => None,
    }
}

fn heads<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let (q, k, v) = (a.x()?, a.tensor(1, "key")?, a.tensor(2, "value")?);
    let width = a.int(3, "embed_dim_to_check")?;
    if q.size(q.rank() - 1) != Size::from(width) {
        return Err(format!("was expecting {width} numbers for each position"));
    }
    let flag = |at, name, absent| Ok::<bool, String>(a.flag(at, name)?.unwrap_or(absent));
    let separate = flag(17, "use_separate_proj_weight", false)?;
    let names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];
    let three = [18, 19, 20].into_iter().zip(names).map(|(at, name)| a.opt_tensor(at, name));
    let three: Vec<_> = three.collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect();
    let one = a.opt_tensor(5, "in_proj_weight")?;
    let weights = if separate { three } else { one.into_iter().collect() };
    let more = a.opt_tensor(7, "bias_k")?.zip(a.opt_tensor(8, "bias_v")?);
    let (p, training) = (a.float(10, "dropout_p")?, flag(13, "training", true)?);
    let rng = || a.t.constant(DType::I64, &[2], &[1.0, 2.0]);
    let of = MultiHead {
        bias: a.opt_tensor(6, "in_proj_bias")?,
        more: more.map(<[Var<'_>; 2]>::from),
        zero: flag(9, "add_zero_attn", false)?,
        dropout: (training && p > 0.0).then(|| (p, rng(), 0)),
        out: Some((a.tensor(11, "out_proj_weight")?, a.opt_tensor(12, "out_proj_bias")?)),
        padding: a.opt_tensor(14, "key_padding_mask")?,
        mask: a.opt_tensor(16, "attn_mask")?,
        causal: flag(24, "is_causal", false)?,
        needs_weights: flag(15, "need_weights", true)?,
        per_head: !flag(23, "average_attn_weights", true)?,
        ..MultiHead::new(usize::try_from(a.int(4, "num_heads")?).unwrap_or(0), weights)
    };
    let (y, weights) = q.multi_head_attention_forward(k, v, &of);
    Ok([y].into_iter().chain(weights).collect())
}

fn attended<'t>(a: &Arguments<'_, 't>) -> Called<'t> {
    let (q, k, v) = (a.x()?, a.tensor(1, "key")?, a.tensor(2, "value")?);
    let (mask, p) = (a.opt_tensor(3, "attn_mask")?, a.opt_float(4, "dropout_p")?.unwrap_or(0.0));
    let flag = |at, name| Ok::<bool, String>(a.flag(at, name)?.unwrap_or(false));
    let (causal, gqa) = (flag(5, "is_causal")?, flag(7, "enable_gqa")?);
    let scale = a.opt_float(6, "scale")?;
    let rng = (p > 0.0).then(|| a.t.constant(DType::I64, &[2], &[1.0, 2.0]));
    Ok(vec![q.scaled_dot_product_attention(k, v, mask, rng, p, causal, scale, gqa, 0)])
}
