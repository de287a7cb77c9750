//! Convolutions and transposed ones over one, two or three axes.

use crate::nn::linear::within;
use crate::nn::{Context, Module};
use crate::setters::setters;
use tracecast_ir::functions::PadMode;
use tracecast_ir::ops::conv::Convolutions;
use tracecast_ir::{DType, TensorType, Var};

/// Around what a convolution sees.
#[derive(Clone, Debug, PartialEq)]
enum Around {
    /// Positions before and behind each axis.
    Positions(Vec<i64>),
    /// As many as keep the size.
    Same,
}

/// What convolutions and transposed ones have in common; each axis has a number in each list.
#[derive(Clone, Debug, PartialEq)]
struct Settings<const AXES: usize> {
    channels: [usize; 2],
    kernel: [usize; AXES],
    stride: [i64; AXES],
    dilation: [i64; AXES],
    groups: usize,
    dtype: DType,
    bias: bool,
}

impl<const AXES: usize> Settings<AXES> {
    fn new(inputs: usize, outputs: usize, kernel: [usize; AXES]) -> Self {
        Settings {
            channels: [inputs, outputs],
            kernel,
            stride: [1; AXES],
            dilation: [1; AXES],
            groups: 1,
            dtype: DType::F32,
            bias: true,
        }
    }

    /// The weight, of the first channels by those of a group of the second.
    fn weight(&self, [first, second]: [usize; 2]) -> TensorType {
        // Groups that do not divide the channels are refused when the module is recorded.
        let of_group = second / self.groups.max(1);
        let shape: Vec<usize> = [first, of_group].into_iter().chain(self.kernel).collect();
        TensorType::new(self.dtype, shape.as_slice())
    }

    /// Both evenly distributed within `1 / sqrt(n)`, where a result is a sum of `n` products, as
    /// PyTorch counts them.
    fn parameters<'t>(&self, cx: &Context<'t>, channels: [usize; 2]) -> (Var<'t>, Option<Var<'t>>) {
        let weight = self.weight(channels);
        let of_group = channels[1] / self.groups.max(1);
        let start = within(self.kernel.iter().fold(of_group, |n, size| n.saturating_mul(*size)));
        let bias = TensorType::new(self.dtype, [self.channels[1]]);
        let weight = cx.parameter("weight", weight, start.clone());
        (weight, self.bias.then(|| cx.parameter("bias", bias, start)))
    }
}

macro_rules! settings {
    () => {
        setters! {
            /// Windows that move by these steps.
            stride(stride: [i64; AXES]) => settings.stride = stride;
            /// Windows whose positions are so far apart.
            dilation(dilation: [i64; AXES]) => settings.dilation = dilation;
            /// Channels in groups, each of which sees its own.
            groups(groups: usize) => settings.groups = groups;
            /// Without a bias.
            without_bias() => settings.bias = false;
            /// With parameters of another dtype.
            dtype(dtype: DType) => settings.dtype = dtype;
        }
    };
}

/// A convolution over the last `AXES` axes of `[batch, channels, positions..]`, as PyTorch's
/// `Conv1d` to `Conv3d`.
///
/// ```
/// use tracecast::nn::{Conv2d, Module};
/// use tracecast::prelude::*;
///
/// let conv = Conv2d::new(3, 16, [3, 3]).stride([2, 2]).padding([1, 1]);
/// let mut store = Store::new();
/// conv.init(&mut store, 0)?;
/// assert_eq!(store.get("weight")?.shape().to_string(), "[16, 3, 3, 3]");
/// # Ok::<(), tracecast::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Conv<const AXES: usize> {
    settings: Settings<AXES>,
    around: Around,
    mode: PadMode,
}

/// A convolution over one axis.
pub type Conv1d = Conv<1>;
/// A convolution over two axes.
pub type Conv2d = Conv<2>;
/// A convolution over three axes.
pub type Conv3d = Conv<3>;

impl<const AXES: usize> Conv<AXES> {
    /// From `inputs` to `outputs` channels with windows of that size, in f32, with a bias.
    pub fn new(inputs: usize, outputs: usize, kernel: [usize; AXES]) -> Self {
        let settings = Settings::new(inputs, outputs, kernel);
        Conv { settings, around: Around::Positions(vec![0; AXES]), mode: PadMode::Constant(0.0) }
    }

    settings!();

    setters! {
        /// Positions before and behind each axis.
        padding(padding: [i64; AXES]) => around = Around::Positions(padding.to_vec());
        /// As many positions around the operand as keep its size; windows move by one.
        same() => around = Around::Same;
        /// What stands at those positions: zeros if not said, as PyTorch's `padding_mode`.
        padding_mode(mode: PadMode) => mode = mode;
    }

    /// Positions before and behind each axis.
    fn sides(&self) -> Vec<[i64; 2]> {
        match &self.around {
            Around::Positions(all) => all.iter().map(|n| [*n, *n]).collect(),
            Around::Same => {
                let spans = self.settings.dilation.iter().zip(&self.settings.kernel);
                let span = spans.map(|(dilation, kernel)| dilation * (*kernel as i64 - 1));
                span.map(|n| [n / 2, n - n / 2]).collect()
            }
        }
    }
}

impl<const AXES: usize> Module for Conv<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Settings { channels: [inputs, outputs], stride, dilation, groups, .. } = &self.settings;
        let (weight, bias) = self.settings.parameters(cx, [*outputs, *inputs]);
        cx.here(|| {
            let is_zero = self.mode == PadMode::Constant(0.0);
            let (x, padding, same) = match &self.around {
                _ if !is_zero => {
                    let sides: Vec<i64> = self.sides().into_iter().rev().flatten().collect();
                    // `same` is refused for other strides whatever is put around.
                    let same =
                        matches!(self.around, Around::Same) && stride.iter().any(|n| *n != 1);
                    (x.pad_last(&sides, self.mode), Vec::new(), same)
                }
                Around::Positions(all) => (x, all.clone(), false),
                Around::Same => (x, Vec::new(), true),
            };
            let groups = Some(*groups as i64);
            match AXES {
                1 => x.conv1d(weight, bias, stride, &padding, dilation, groups, same),
                2 => x.conv2d(weight, bias, stride, &padding, dilation, groups, same),
                _ => x.conv3d(weight, bias, stride, &padding, dilation, groups, same),
            }
        })
    }
}

/// A transposed convolution to `[batch, channels, positions..]`, as PyTorch's `ConvTranspose1d` to
/// `ConvTranspose3d`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvTranspose<const AXES: usize> {
    settings: Settings<AXES>,
    padding: [i64; AXES],
    output_padding: [i64; AXES],
}

/// A transposed convolution over one axis.
pub type ConvTranspose1d = ConvTranspose<1>;
/// A transposed convolution over two axes.
pub type ConvTranspose2d = ConvTranspose<2>;
/// A transposed convolution over three axes.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const AXES: usize> ConvTranspose<AXES> {
    /// From `inputs` to `outputs` channels with windows of that size, in f32, with a bias.
    pub fn new(inputs: usize, outputs: usize, kernel: [usize; AXES]) -> Self {
        let settings = Settings::new(inputs, outputs, kernel);
        ConvTranspose { settings, padding: [0; AXES], output_padding: [0; AXES] }
    }

    settings!();

    setters! {
        /// Positions of the result left out before and behind each axis.
        padding(padding: [i64; AXES]) => padding = padding;
        /// Further positions behind each axis of the result.
        output_padding(output_padding: [i64; AXES]) => output_padding = output_padding;
    }
}

impl<const AXES: usize> Module for ConvTranspose<AXES> {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let Settings { channels, stride, dilation, groups, .. } = &self.settings;
        let (weight, bias) = self.settings.parameters(cx, *channels);
        let (padding, more, groups) = (&self.padding, &self.output_padding, Some(*groups as i64));
        cx.here(|| match AXES {
            1 => x.conv_transpose1d(weight, bias, stride, padding, more, groups, dilation),
            2 => x.conv_transpose2d(weight, bias, stride, padding, more, groups, dilation),
            _ => x.conv_transpose3d(weight, bias, stride, padding, more, groups, dilation),
        })
    }
}
