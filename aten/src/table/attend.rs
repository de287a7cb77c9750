//! Attention.

use super::Call;
use super::table;
use tracecast_ir::Var;
use tracecast_ir::ops::prelude::*;

table! {
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor" =>
        call (q: tensor, k: tensor, v: tensor, mask: some_tensor, p: float, causal: flag, scale: some_float, grouped: flag) attend(call, [q, k, v], mask, p, causal, scale, grouped)?;
    "_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)" =>
        (q: tensor, k: tensor, v: tensor, _p: any, causal: flag, mask: some_tensor, scale: some_float) q.scaled_dot_product_flash_attention_for_cpu(k, v, mask, causal, scale);
    "_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)" =>
        (dy: tensor, q: tensor, k: tensor, v: tensor, y: tensor, lse: tensor, _p: any, causal: flag, mask: some_tensor, scale: some_float) dy.scaled_dot_product_flash_attention_for_cpu_backward(q, k, v, y, lse, mask, causal, scale);
}

fn attend<'t>(
    call: &Call<'_, 't>,
    [q, k, v]: [Var<'t>; 3],
    mask: Option<Var<'t>>,
    p: f64,
    causal: bool,
    scale: Option<f64>,
    grouped: bool,
) -> Result<Var<'t>, String> {
    let drawn = if p > 0.0 { Some(call.draw()?) } else { None };
    let (rng, stream) = (drawn.map(|(rng, _)| rng), drawn.map_or(0, |(_, stream)| stream));
    Ok(q.scaled_dot_product_attention(k, v, mask, rng, p, causal, scale, grouped, stream))
}
