//! Convolutional networks: a stack of equal layers, ResNet-18 (He et al., 2015) and
//! MobileNetV3-small (Howard et al., 2019), with torchvision's names of parameters.

use tracecast::nn::{
    BatchNorm2d, Context, Conv2d, Hardsigmoid, Hardswish, Linear, MaxPool2d, Relu, Sequential,
};
use tracecast::prelude::*;

/// A convolution that keeps the size but for its stride, without bias.
fn conv(inputs: usize, outputs: usize, kernel: usize, stride: i64) -> Conv2d {
    let side = (kernel as i64 - 1) / 2;
    Conv2d::new(inputs, outputs, [kernel; 2]).stride([stride; 2]).padding([side; 2]).without_bias()
}

/// Eight times a 3 × 3 convolution of 64 channels, batch norm and ReLU.
pub(crate) struct ConvStack;

impl Module for ConvStack {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        (0..8).fold(x, |x, layer| {
            let x = cx.call(&format!("{layer}.conv"), &conv(64, 64, 3, 1), x);
            cx.call(&format!("{layer}.bn"), &BatchNorm2d::new(64), x).relu()
        })
    }
}

/// ResNet-18 for ten classes: images `[N, 3, H, W]` to logits `[N, 10]`.
pub(crate) struct ResNet18;

impl Module for ResNet18 {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let x = cx.call("conv1", &conv(3, 64, 7, 2), x);
        let x = cx.call("bn1", &BatchNorm2d::new(64), x).relu();
        let pool = MaxPool2d::new([3, 3]).stride([2, 2]).padding([1, 1]);
        let mut x = cx.call("maxpool", &pool, x);
        let mut inputs = 64;
        for (layer, outputs) in (1..).zip([64, 128, 256, 512]) {
            for block in 0..2 {
                let stride = if block == 0 && layer > 1 { 2 } else { 1 };
                let module = Residual { inputs, outputs, stride };
                x = cx.call(&format!("layer{layer}.{block}"), &module, x);
                inputs = outputs;
            }
        }
        let x = x.adaptive_avg_pool2d([1]).flatten(1, -1);
        cx.call("fc", &Linear::new(512, 10), x)
    }
}

/// Two 3 × 3 convolutions beside a path around them.
struct Residual {
    inputs: usize,
    outputs: usize,
    stride: i64,
}

impl Module for Residual {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Residual { inputs, outputs, stride } = *self;
        let norm = BatchNorm2d::new(outputs);
        let y = cx.call("conv1", &conv(inputs, outputs, 3, stride), x);
        let y = cx.call("bn1", &norm, y).relu();
        let y = cx.call("conv2", &conv(outputs, outputs, 3, 1), y);
        let y = cx.call("bn2", &BatchNorm2d::new(outputs), y);
        let around = if stride == 1 && inputs == outputs {
            x
        } else {
            let x = cx.call("downsample.0", &conv(inputs, outputs, 1, stride), x);
            cx.call("downsample.1", &BatchNorm2d::new(outputs), x)
        };
        (y + around).relu()
    }
}

/// MobileNetV3-small for ten classes, without dropout: images `[N, 3, H, W]` to logits `[N, 10]`.
pub(crate) struct MobileNetV3Small;

/// Input channels, kernel, expanded channels, output channels, squeeze and excitation, Hardswish in
/// the place of ReLU, stride.
type Row = (usize, usize, usize, usize, bool, bool, i64);

/// Table 2 of the paper.
const BLOCKS: [Row; 11] = [
    (16, 3, 16, 16, true, false, 2),
    (16, 3, 72, 24, false, false, 2),
    (24, 3, 88, 24, false, false, 1),
    (24, 5, 96, 40, true, true, 2),
    (40, 5, 240, 40, true, true, 1),
    (40, 5, 240, 40, true, true, 1),
    (40, 5, 120, 48, true, true, 1),
    (48, 5, 144, 48, true, true, 1),
    (48, 5, 288, 96, true, true, 2),
    (96, 5, 576, 96, true, true, 1),
    (96, 5, 576, 96, true, true, 1),
];

/// A convolution, a norm, and perhaps an activation behind them.
fn normed(conv: Conv2d, channels: usize, activation: Option<bool>) -> Sequential {
    let layers =
        Sequential::new().then(conv).then(BatchNorm2d::new(channels).eps(0.001).momentum(0.01));
    match activation {
        Some(true) => layers.then(Hardswish),
        Some(false) => layers.then(Relu),
        None => layers,
    }
}

impl Module for MobileNetV3Small {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let mut x = cx.call("features.0", &normed(conv(3, 16, 3, 2), 16, Some(true)), x);
        for (at, row) in (1..).zip(BLOCKS) {
            x = cx.call(&format!("features.{at}"), &Inverted(row), x);
        }
        let x = cx.call("features.12", &normed(conv(96, 576, 1, 1), 576, Some(true)), x);
        let x = x.adaptive_avg_pool2d([1]).flatten(1, -1);
        let x = cx.call("classifier.0", &Linear::new(576, 1024), x).hardswish();
        cx.call("classifier.3", &Linear::new(1024, 10), x)
    }
}

/// An inverted residual block: expanded, filtered channel by channel, weighted by channel,
/// projected.
struct Inverted(Row);

impl Module for Inverted {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let (inputs, kernel, expanded, outputs, squeezed, hard, stride) = self.0;
        let mut block = Sequential::new();
        if expanded != inputs {
            block = block.then(normed(conv(inputs, expanded, 1, 1), expanded, Some(hard)));
        }
        let depthwise = conv(expanded, expanded, kernel, stride).groups(expanded);
        block = block.then(normed(depthwise, expanded, Some(hard)));
        if squeezed {
            block = block.then(SqueezeExcite(expanded));
        }
        block = block.then(normed(conv(expanded, outputs, 1, 1), outputs, None));
        let y = cx.call("block", &block, x);
        if stride == 1 && inputs == outputs { y + x } else { y }
    }
}

/// Channels weighted by what two layers make of their means (Hu et al., 2017).
struct SqueezeExcite(usize);

impl Module for SqueezeExcite {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let few = narrow(self.0);
        let y = x.adaptive_avg_pool2d([1]);
        let y = cx.call("fc1", &Conv2d::new(self.0, few, [1, 1]), y).relu();
        let y = cx.call("fc2", &Conv2d::new(few, self.0, [1, 1]), y);
        cx.call("scale_activation", &Hardsigmoid, y) * x
    }
}

/// A quarter of the channels as a multiple of 8, the nearest that is not below nine tenths of it.
fn narrow(channels: usize) -> usize {
    let quarter = channels / 4;
    let rounded = ((quarter + 4) / 8 * 8).max(8);
    if rounded * 10 < quarter * 9 { rounded + 8 } else { rounded }
}
