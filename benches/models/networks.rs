//! The networks by name, with their first parameters and a batch by the formula of
//! `benches/peers/models.py`.

use crate::convolutional::{ConvStack, MobileNetV3Small, ResNet18};
use crate::data::fill;
use crate::tagger::Tagger;
use crate::transformers::{Bert, Gpt2, VitSmall};
use crate::unet::UNet;
use tracecast::ir::Role;
use tracecast::prelude::*;

/// The networks there are.
pub(crate) const NAMES: [&str; 10] = [
    "conv_stack",
    "resnet18",
    "mobilenet_v3_small",
    "vit_small",
    "gpt2",
    "gpt2_checkpointed",
    "gpt2_50257",
    "bert_base",
    "diffusion_unet",
    "lstm_tagger",
];

/// A model, a batch and how the loss is made of both.
pub(crate) struct Network {
    pub(crate) model: Box<dyn Module>,
    pub(crate) batch: Vec<(&'static str, Tensor)>,
    pub(crate) loss: Loss,
}

/// The loss of what the model gives against the input `y`.
#[derive(Clone, Copy)]
pub(crate) enum Loss {
    /// Of the classes along the last axis.
    CrossEntropy,
    MeanSquared,
}

impl Loss {
    pub(crate) fn of<'t>(self, out: Var<'t>, y: Var<'t>) -> Var<'t> {
        match self {
            Loss::CrossEntropy => {
                let rows = if out.rank() > 2 { out.flatten(0, -2) } else { out };
                rows.cross_entropy(y.flatten(0, -1))
            }
            Loss::MeanSquared => out.mean_squared_error(y),
        }
    }
}

impl Network {
    /// The network of a name.
    ///
    /// # Panics
    /// If there is none: the command line was checked.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "conv_stack" => {
                let x = image([8, 64, 56, 56]);
                Network::new(ConvStack, [x, ("y", fill(&[8, 64, 56, 56], seed("y"), -ONE, ONE))])
                    .with(Loss::MeanSquared)
            }
            "resnet18" => Network::of_images(ResNet18, 8),
            "mobilenet_v3_small" => Network::of_images(MobileNetV3Small, 8),
            "vit_small" => Network::of_images(VitSmall, 4),
            "gpt2" => Network::of_gpt2(Gpt2 { vocabulary: 8192, recomputes: false }),
            "gpt2_checkpointed" => Network::of_gpt2(Gpt2 { vocabulary: 8192, recomputes: true }),
            "gpt2_50257" => Network::of_gpt2(Gpt2 { vocabulary: 50_257, recomputes: false }),
            "bert_base" => Network::of_tokens(Bert { vocabulary: 8192 }, [2, 128], 8192, 8192),
            "diffusion_unet" => {
                let steps: Vec<i64> = (0..8).collect();
                let t = Tensor::new([8], &steps).expect("a step for each image");
                let y = ("y", fill(&[8, 3, 64, 64], seed("y"), -ONE, ONE));
                Network::new(UNet, [image([8, 3, 64, 64]), ("t", t), y]).with(Loss::MeanSquared)
            }
            "lstm_tagger" => Network::of_tokens(Tagger, [32, 64], Tagger::WORDS, Tagger::TAGS),
            other => panic!("no network `{other}`"),
        }
    }

    fn new<const N: usize>(
        model: impl Module + 'static,
        batch: [(&'static str, Tensor); N],
    ) -> Self {
        // Positions are as many as the tokens.
        let model = model.for_input(batch[0].1.ty().clone());
        Network { model: Box::new(model), batch: batch.into(), loss: Loss::CrossEntropy }
    }

    fn with(self, loss: Loss) -> Self {
        Network { loss, ..self }
    }

    /// Images of 224 × 224 in ten classes.
    fn of_images(model: impl Module + 'static, images: usize) -> Self {
        Network::new(model, [image([images, 3, 224, 224]), ("y", indices(&[images], 10, "y"))])
    }

    fn of_gpt2(model: Gpt2) -> Self {
        let words = model.vocabulary;
        Network::of_tokens(model, [2, 128], words, words)
    }

    /// Tokens, and a class for each.
    fn of_tokens(
        model: impl Module + 'static,
        shape: [usize; 2],
        words: usize,
        classes: usize,
    ) -> Self {
        let x = indices(&shape, words, "x");
        Network::new(model, [("x", x), ("y", indices(&shape, classes, "y"))])
    }

    /// Puts the first values of the model's parameters and buffers into a store.
    pub(crate) fn start(&self, store: &mut Store) {
        for entry in self.model.entries().expect("the type of its input is known") {
            let shape = entry.ty.shape.numbers();
            let (name, count) = (entry.name.as_str(), shape.iter().product::<usize>());
            let value = match (entry.role, shape.len()) {
                (Role::State, _) => {
                    let value = if name.ends_with("running_var") { 1.0 } else { 0.0 };
                    Tensor::full(entry.ty.clone(), value).expect("a buffer")
                }
                (_, 1) if name.ends_with("weight") => fill(&shape, seed(name), 0.9, 1.1),
                (_, 1) => fill(&shape, seed(name), -0.02, 0.02),
                _ => {
                    let bound = (3.0 / (count / shape[0]) as f64).sqrt() as f32;
                    fill(&shape, seed(name), -bound, bound)
                }
            };
            store.insert(name, value);
        }
    }
}

/// Uniform numbers within this have a variance of 1, as far as four digits tell.
const ONE: f32 = 1.732;

fn image(shape: [usize; 4]) -> (&'static str, Tensor) {
    ("x", fill(&shape, seed("x"), -ONE, ONE))
}

fn indices(shape: &[usize], below: usize, name: &str) -> Tensor {
    let count = shape.iter().product();
    let indices = crate::data::labels(count, below, seed(name));
    indices.reshape(shape).expect("as many indices")
}

/// The seed of a parameter or an input: FNV-1a of its name, 32 bits.
fn seed(name: &str) -> u32 {
    name.bytes().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
