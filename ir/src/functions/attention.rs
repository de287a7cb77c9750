//! What stands around attention: rotary positions, gated layers, and PyTorch's names of its
//! kernels.

use super::{MOST_NUMBERS, Made, named, named_all, size};
use crate::ops::elementwise::Elementwise;
use crate::ops::nn::Activations;
use crate::ops::nn::attention::{self, Options, attend, backward};
use crate::ops::view::{Views, cat};
use crate::{DType, Shape, Var};

impl<'t> Var<'t> {
    /// Pairs of numbers turned by angles that grow with the position: number `i` of the first half
    /// of the last axis with number `i` of the second half, by `position / base^(2 i / width)`. The
    /// axis in front of the last one is that of the positions, of which `positions` has a number
    /// each. Computed in f32 for 16-bit floats, and rounded once.
    ///
    /// ```
    /// use tracecast_ir::{DType, TensorType, Tracer};
    /// let t = Tracer::new("turned");
    /// let q = t.input("q", TensorType::new(DType::F32, [2, 5, 8]));
    /// let at = t.input("at", TensorType::new(DType::I64, [5]));
    /// assert_eq!(q.rotary(at, 10_000.0).ty().to_string(), "f32[2, 5, 8]");
    /// ```
    #[track_caller]
    pub fn rotary(self, positions: Var<'t>, base: f64) -> Var<'t> {
        named(self, "rotary", || {
            if !self.dtype().is_float() || self.rank() < 2 || positions.dtype() == DType::Bool {
                return Err(format!("takes positions as numbers, found {}", positions.ty()));
            }
            let rows = Shape::new(&self.shape()[..self.rank() - 1]);
            if positions.shape().broadcast(&rows).ok().as_ref() != Some(&rows) {
                return Err(format!(
                    "takes a position for each of {rows}, found {}",
                    positions.ty()
                ));
            }
            let width = size(self, self.rank() - 1)?;
            if width % 2 != 0 {
                return Err(format!("turns pairs, found {width} numbers"));
            }
            if width > MOST_NUMBERS {
                return Err(format!("turns at most {MOST_NUMBERS} numbers, found {width}"));
            }
            if base.is_nan() || base <= 0.0 {
                return Err(format!("the base is {base}, expected above 0"));
            }
            let (half, wide) = (width / 2, self.dtype().compute());
            let powers: Vec<f64> =
                (0..half).map(|i| base.powf(-2.0 * i as f64 / width as f64)).collect();
            let powers = self.tracer().constant(wide, &[half as usize], &powers);
            let angles = positions.to(wide).unsqueeze(-1).mul(powers);
            let (cos, sin) = (angles.cos(), angles.sin());
            let x = self.to(wide);
            let (a, b) = (x.slice(-1, 0, half, 1), x.slice(-1, half, width, 1));
            let turned = cat(&[a.mul(cos).sub(b.mul(sin)), b.mul(cos).add(a.mul(sin))], -1);
            Ok(turned.to(self.dtype()))
        })
    }

    /// `silu(gate) * self`, as the gated layers of many transformers have it.
    #[track_caller]
    pub fn swiglu(self, gate: Var<'t>) -> Var<'t> {
        named(self, "swiglu", || {
            let (own, of_gate) = (self.shape(), gate.shape());
            let floats = self.dtype().is_float() && gate.dtype().is_float();
            if !floats || own.broadcast(&of_gate).is_err() {
                let (own, of_gate) = (self.ty(), gate.ty());
                return Err(format!("takes floats that broadcast, found {own} and {of_gate}"));
            }
            let wide = self.dtype().compute();
            Ok(gate.to(wide).silu().mul(self.to(wide)).to(self.dtype()))
        })
    }

    /// The kernel behind `scaled_dot_product_attention` under the name that PyTorch has for it on
    /// the CPU, `_scaled_dot_product_flash_attention_for_cpu`: of four axes each; the result, and
    /// the logarithms of the sums of weights `[B, H, L]`.
    #[track_caller]
    pub fn scaled_dot_product_flash_attention_for_cpu(
        self,
        key: Var<'t>,
        value: Var<'t>,
        attn_mask: Option<Var<'t>>,
        is_causal: bool,
        scale: Option<f64>,
    ) -> (Var<'t>, Var<'t>) {
        let results = named_all(self, "_scaled_dot_product_flash_attention_for_cpu", || {
            let options = options([self, key, value], attn_mask, is_causal, scale)?;
            let (y, lse) = attend([self, key, value], &options);
            Ok(vec![y.permute([0, 2, 1, 3]), lse])
        });
        (results[0], results[results.len() - 1])
    }

    /// The gradients of query, key and value, under PyTorch's name
    /// `_scaled_dot_product_flash_attention_for_cpu_backward`: `self` is the gradient of the
    /// result, `out` and `logsumexp` are what the forward part gave.
    #[track_caller]
    #[allow(clippy::too_many_arguments, reason = "as many as PyTorch's has")]
    pub fn scaled_dot_product_flash_attention_for_cpu_backward(
        self,
        query: Var<'t>,
        key: Var<'t>,
        value: Var<'t>,
        out: Var<'t>,
        logsumexp: Var<'t>,
        attn_mask: Option<Var<'t>>,
        is_causal: bool,
        scale: Option<f64>,
    ) -> [Var<'t>; 3] {
        let results =
            named_all(self, "_scaled_dot_product_flash_attention_for_cpu_backward", || {
                let options = options([query, key, value], attn_mask, is_causal, scale)?;
                let turned = |x: Var<'t>| x.permute([0, 2, 1, 3]);
                let (dy, y) = (turned(self), turned(out));
                let all = backward(dy, [query, key, value], y, logsumexp, &options);
                Ok(all.into_iter().map(turned).collect())
            });
        [0, 1, 2].map(|i| results[i.min(results.len() - 1)])
    }
}

/// The options of a call, with a mask that is spread over all weights.
fn options<'t>(
    [query, key, value]: [Var<'t>; 3],
    mask: Option<Var<'t>>,
    causal: bool,
    scale: Option<f64>,
) -> Made<Options<'t>> {
    if [query, key, value].iter().any(|x| x.rank() != 4) {
        return Err(format!("takes four axes, found {} and {}", key.ty(), value.ty()));
    }
    let weights: Shape =
        [query.size(0), query.size(1), query.size(2), key.size(2)].into_iter().collect();
    if let Some(mask) = mask
        && mask.shape().broadcast(&weights).ok().as_ref() != Some(&weights)
    {
        return Err(format!("the mask is {}, and does not broadcast to {weights}", mask.ty()));
    }
    let mask = mask.map(|mask| mask.expand_to(&weights));
    let scale = scale.unwrap_or(attention::scale(size(query, 3)?));
    Ok(Options { mask, causal, scale })
}
