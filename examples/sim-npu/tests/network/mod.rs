//! What tests of whole devices share: chips in a registry, their twins that interpret, and a
//! network to train on both.

#![allow(dead_code, reason = "each test uses its own part of this module")]

use sim_npu::{Npu, Settings, amp};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracecast::ir::kernel::Kernel;
use tracecast::nn::{Context, LayerNorm, Linear};
use tracecast::prelude::*;
use tracecast::runtime::{
    AmpSupport, Capabilities, Device, Launch, Memory, ReferenceDevice, Registry, Result,
};

/// No wait may take longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn settings() -> Settings {
    Settings { memory: 8 << 20, patience: PATIENCE, ..Settings::default() }
}

/// Chips called `npu:0`, `npu:1` and so on, and a registry that has them.
pub(crate) fn chips(settings: &Settings) -> (Arc<Registry>, Vec<Arc<Npu>>) {
    let registry = Arc::new(Registry::new());
    let chip = |ordinal: usize| {
        let id = format!("npu:{ordinal}").parse().unwrap();
        let npu = Arc::new(Npu::new(&id, settings.clone()).unwrap());
        registry.register_device(npu.clone()).unwrap();
        npu
    };
    let chips = (0..settings.count).map(chip).collect();
    (registry, chips)
}

/// Options for a chip.
pub(crate) fn on(registry: &Arc<Registry>, name: &str) -> Options {
    Options::new().registry(registry).device(name)
}

/// What calls itself a chip, has its autocast, and interprets kernels of all forms.
#[derive(Debug)]
pub(crate) struct Twin;

impl Device for Twin {
    fn name(&self) -> &str {
        "npu"
    }

    fn amp(&self) -> Option<AmpSupport> {
        Some(amp())
    }

    fn capabilities(&self) -> Capabilities {
        ReferenceDevice.capabilities()
    }

    fn load(&self, kernel: &Kernel) -> Result<Box<dyn Launch>> {
        ReferenceDevice.load(kernel)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        ReferenceDevice.alloc(bytes)
    }

    fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
        ReferenceDevice.upload(from, to, at)
    }

    fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
        ReferenceDevice.download(from, at, to)
    }
}

/// Options for a twin.
pub(crate) fn twin() -> Options {
    Options::new().on(Arc::new(Twin))
}

/// Waits until something holds, but not for ever.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The width of the network, the length of a sequence, the sequences of a batch, and classes.
pub(crate) const WIDTH: usize = 16;
pub(crate) const LENGTH: usize = 5;
pub(crate) const BATCH: usize = 4;
pub(crate) const CLASSES: usize = 3;

/// Two blocks of attention, from products and softmax, and a layer behind it; then scores of
/// classes. Each begins with a norm, and what is dropped is given as a mask.
pub(crate) struct Network;

impl Module for Network {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let keep = cx.trace().input_of("keep", f32s(&[BATCH, LENGTH, WIDTH]));
        let x = ["block0", "block1"].into_iter().fold(x, |x, name| cx.call(name, &Block, x) * keep);
        cx.call("head", &Linear::new(WIDTH, CLASSES), x.mean(1))
    }
}

struct Block;

impl Module for Block {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let normed = cx.call("norm0", &LayerNorm::new(WIDTH), x);
        let part = |name: &str| cx.call(name, &Linear::new(WIDTH, WIDTH), normed);
        let [q, k, v] = ["q", "k", "v"].map(part);
        let weights = (q.matmul(k.transpose(-1, -2)) * 0.25).softmax(-1);
        let x = x + cx.call("mix", &Linear::new(WIDTH, WIDTH), weights.matmul(v));
        let wide = cx.call("norm1", &LayerNorm::new(WIDTH), x);
        let wide = cx.call("up", &Linear::new(WIDTH, 2 * WIDTH), wide).gelu(None::<&str>);
        x + cx.call("down", &Linear::new(2 * WIDTH, WIDTH), wide)
    }
}

pub(crate) fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A step that trains the network in regions of the chips, with a scaler that often grows. The
/// factors of Adam are computed in f64, which they lack.
pub(crate) fn step(options: Options) -> TrainStep {
    let step = TrainStep::new(Network, |t, model| {
        let scores = model.forward(t.input("x"));
        // Labels are rows of one 1: the gradient of a gather would be a scatter.
        let likely = (scores.log_softmax(-1) * t.input("labels")).sum(-1);
        -likely.mean(()) * t.input("poison")
    });
    let scaler = ScalerOptions { growth_interval: 3, ..ScalerOptions::default() };
    step.optimizer(Sgd::new(0.05).momentum(0.9))
        .autocast("npu", None)
        .scaler(scaler)
        .options(options)
        .build()
        .unwrap()
}

/// The inputs of a step; with poison, its gradients are infinite.
pub(crate) fn batch(seed: u64, poison: f32) -> Vec<(&'static str, Tensor)> {
    let mut labels = vec![0.0f32; BATCH * CLASSES];
    (0..BATCH).for_each(|row| labels[row * CLASSES + (row + seed as usize) % CLASSES] = 1.0);
    let shape = [BATCH, LENGTH, WIDTH];
    let draw = Tensor::rand(shape, seed + 1000).unwrap();
    let mask = |x: f64| if x < 0.2 { 0.0 } else { 1.25 };
    let keep: Vec<f32> = draw.to_f64s().into_iter().map(mask).collect();
    vec![
        ("x", Tensor::randn(shape, seed).unwrap()),
        ("keep", Tensor::new(shape, &keep).unwrap()),
        ("labels", Tensor::new([BATCH, CLASSES], &labels).unwrap()),
        ("poison", Tensor::scalar(poison)),
    ]
}

/// Inputs as runs take them.
pub(crate) fn given<'a>(batch: &'a [(&'static str, Tensor)]) -> Vec<(&'a str, &'a Tensor)> {
    batch.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

/// Name and bytes of each value of a store.
pub(crate) type Contents = Vec<(String, Vec<u8>)>;

pub(crate) fn contents(store: &Store) -> Contents {
    store
        .iter()
        .map(|entry| entry.unwrap())
        .map(|(name, value)| (name.to_owned(), value.bytes().to_vec()))
        .collect()
}
