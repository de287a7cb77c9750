//! The example models of `tracecast train`.

use clap::ValueEnum;
use tracecast::nn::{BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, Relu, Sequential, Unflatten};

use crate::dataset::Dataset;
use crate::failure::Failure;

/// Width of the hidden layer.
const HIDDEN: usize = 128;

/// Channels of the two convolutions.
const CHANNELS: [usize; 2] = [32, 64];

/// What is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// One hidden layer of 128
    #[default]
    Mlp,
    /// Two convolutions of 32 and 64 channels, each with batch norm and largest elements of 2 × 2,
    /// of rows that are square images
    Cnn,
}

impl Network {
    /// For the rows of that data.
    ///
    /// # Errors
    /// If the network takes images and rows are none.
    pub(crate) fn model(self, data: &Dataset) -> Result<Sequential, Failure> {
        match self {
            Network::Mlp => Ok(Sequential::new()
                .named("hidden", Linear::new(data.width, HIDDEN))
                .named("relu", Relu)
                .named("out", Linear::new(HIDDEN, data.classes))),
            Network::Cnn => {
                let side = data.width.isqrt();
                if side * side != data.width || side < 4 {
                    return Err(Failure::Input(format!(
                        "--model cnn takes square images of at least 4 × 4, and rows have {} numbers",
                        data.width
                    )));
                }
                Ok(images(side, data.classes))
            }
        }
    }
}

/// Images of one channel.
fn images(side: usize, classes: usize) -> Sequential {
    let sides = [1, side as i64, side as i64];
    let mut model = Sequential::new().named("image", Unflatten::new(1, sides));
    for (i, channels) in CHANNELS.into_iter().enumerate() {
        let before = if i == 0 { 1 } else { CHANNELS[i - 1] };
        // A norm takes away what a bias adds.
        let conv = Conv2d::new(before, channels, [3, 3]).same().without_bias();
        model = model
            .named(format!("conv{i}"), conv)
            .named(format!("norm{i}"), BatchNorm2d::new(channels))
            .named(format!("relu{i}"), Relu)
            .named(format!("pool{i}"), MaxPool2d::new([2, 2]));
    }
    let left = side / 2 / 2;
    model
        .named("flat", Flatten::new())
        .named("out", Linear::new(CHANNELS[1] * left * left, classes))
}
