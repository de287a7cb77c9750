//! A UNet of a diffusion model (Ho et al., 2020): one level down and up again, with attention in
//! the middle and a step for each image.

use tracecast::nn::{Context, Conv2d, GroupNorm, Linear, Upsample};
use tracecast::prelude::*;

/// Images `[8, 3, H, W]` and the input `t`, the step of each image, `[8]`, to the noise
/// `[8, 3, H, W]`. Without dropout.
pub(crate) struct UNet;

/// A 3 × 3 convolution that keeps the size.
fn conv(inputs: usize, outputs: usize) -> Conv2d {
    Conv2d::new(inputs, outputs, [3, 3]).padding([1, 1])
}

impl Module for UNet {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let t = cx.trace();
        let part = t.arange(0.0, 8.0, 1.0, DType::F32) * (-(10_000f64.ln()) / 8.0);
        let steps = t.input_of("t", TensorType::new(DType::I64, [8]));
        let angle = steps.unsqueeze(1).cast(DType::F32) * part.exp();
        let step = cx.call("t.0", &Linear::new(16, 32), cat(&[angle.sin(), angle.cos()], -1));
        let step = cx.call("t.2", &Linear::new(32, 32), step.silu());
        let block =
            |name: &str, x, inputs, outputs| cx.apply(name, &Block { inputs, outputs }, (x, step));
        let wide = block("r1", cx.call("i", &conv(3, 16), x), 16, 16);
        let down = cx.call("dn", &conv(16, 16).stride([2, 2]), wide);
        let y = cx.call("a", &Attention(32), block("r2", down, 16, 32));
        let y = cx.call("up", &conv(32, 32), cx.call("twice", &Upsample::by([2.0]), y));
        let y = block("r3", cat(&[y, wide], 1), 48, 16);
        let y = cx.call("n", &GroupNorm::new(4, 16), y).silu();
        cx.call("o", &conv(16, 3), y)
    }
}

/// Two convolutions, between which the step comes in, beside a path around them.
struct Block {
    inputs: usize,
    outputs: usize,
}

impl Layer for Block {
    type Input<'t> = (Var<'t>, Var<'t>);
    type Output<'t> = Var<'t>;

    fn forward<'t>(&self, cx: &Context<'t>, (x, step): (Var<'t>, Var<'t>)) -> Var<'t> {
        let Block { inputs, outputs } = *self;
        let y = cx.call("n1", &GroupNorm::new(4, inputs), x).silu();
        let step = cx.call("t", &Linear::new(32, outputs), step.silu());
        let y = cx.call("c1", &conv(inputs, outputs), y) + step.unsqueeze(-1).unsqueeze(-1);
        let y = cx.call("n2", &GroupNorm::new(4, outputs), y).silu();
        let y = cx.call("c2", &conv(outputs, outputs), y);
        let around = Conv2d::new(inputs, outputs, [1, 1]);
        y + if inputs == outputs { x } else { cx.call("sk", &around, x) }
    }
}

/// Attention of the pixels to each other, in four heads.
struct Attention(usize);

impl Module for Attention {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let channels = self.0;
        let y = cx.call("n", &GroupNorm::new(4, channels), x);
        let qkv = cx.call("qkv", &Conv2d::new(channels, 3 * channels, [1, 1]), y);
        let qkv = qkv.flatten(2, -1).unflatten(1, &[3, 4, channels as i64 / 4]).transpose(-1, -2);
        let [q, k, v] = [0, 1, 2].map(|part| qkv.select(1, part));
        let none = None::<Var<'t>>;
        let mixed = q.scaled_dot_product_attention(k, v, none, none, 0.0, false, None, false, 0);
        let mixed = mixed.transpose(-1, -2).reshape_to(&x.shape());
        x + cx.call("o", &Conv2d::new(channels, channels, [1, 1]), mixed)
    }
}
