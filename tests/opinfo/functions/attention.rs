//! Attention.

use crate::arguments::Arguments;
use crate::calls::Called;
use tracecast_ir::DType;
use tracecast_ir::ops::prelude::*;

/// The results, if `name` is one of those.
pub(super) fn call<'t>(name: &str, a: &Arguments<'_, 't>) -> Option<Called<'t>> {
    (name == "scaled_dot_product_attention").then(|| attended(a))
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
