//! A form of kernel that the chips do not have: what its ops are made of in place of it has its
//! bits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{chips, contents, given, on, settings, twin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tracecast::ir::Attr;
use tracecast::ir::kernel::FormKind;
use tracecast::nn::{Context, Conv2d, Linear};
use tracecast::prelude::*;

const BATCH: usize = 2;
const CLASSES: usize = 3;

/// Convolutions whose windows are two apart: a depthwise one, and a dense one of sixteen channels.
/// The gradients of what they read are transposed convolutions.
struct Windows;

impl Module for Windows {
    fn forward<'t>(&self, cx: &Context<'t>, x: Var<'t>) -> Var<'t> {
        let wide = Conv2d::new(2, 16, [3, 3]).padding([1, 1]);
        let depthwise = Conv2d::new(16, 16, [3, 3]).padding([1, 1]).stride([2, 2]).groups(16);
        let dense = Conv2d::new(16, 4, [3, 3]).padding([1, 1]).stride([2, 2]);
        let x = cx.call("wide", &wide, x).relu();
        let x = cx.call("depthwise", &depthwise, x).relu();
        let x = cx.call("dense", &dense, x).relu();
        cx.call("head", &Linear::new(4, CLASSES), x.mean([-2, -1]))
    }
}

/// A step that trains them, and how many of its kernels are transposed convolutions.
fn step(options: Options, is_low: bool) -> (TrainStep, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let options = options.observer(move |pass, graph| {
        let kernels = graph.nodes().filter_map(|id| graph.node(id).attrs.get("kernel"));
        let found = kernels.filter(|attr| match attr {
            Attr::Kernel(kernel) => kernel.form.kind() == FormKind::Transposed,
            _ => false,
        });
        if pass == "fuse" {
            seen.fetch_add(found.count(), SeqCst);
        }
    });
    let step = TrainStep::new(Windows, |t, model| {
        let scores = model.forward(t.input("x"));
        -(scores.log_softmax(-1) * t.input("labels")).sum(-1).mean(())
    });
    let step = step.optimizer(Sgd::new(0.05).momentum(0.9)).options(options);
    let step = if is_low { step.autocast("npu", None) } else { step };
    (step.build().unwrap(), count)
}

fn batch(seed: u64) -> Vec<(&'static str, Tensor)> {
    let mut labels = vec![0.0f32; BATCH * CLASSES];
    (0..BATCH).for_each(|row| labels[row * CLASSES + (row + seed as usize) % CLASSES] = 1.0);
    vec![
        ("x", Tensor::randn([BATCH, 2, 7, 6], seed).unwrap()),
        ("labels", Tensor::new([BATCH, CLASSES], &labels).unwrap()),
    ]
}

/// Trains on a chip and on `other`, which has the form, and compares all bits.
fn train(other: Options, is_low: bool) {
    let (registry, chips) = chips(&settings());
    let ((mine, none), (theirs, both)) =
        (step(on(&registry, "npu:1"), is_low), step(other, is_low));
    let (mut store, mut known) = (Store::new(), Store::new());
    mine.init(&mut store, 7).unwrap();
    theirs.init(&mut known, 7).unwrap();
    for number in 0..4 {
        let batch = batch(number);
        let done = mine.run(&mut store, &given(&batch)).unwrap();
        let wanted = theirs.run(&mut known, &given(&batch)).unwrap();
        assert_eq!(done.loss.to_bits(), wanted.loss.to_bits(), "step {number}");
    }
    assert_eq!(contents(&store), contents(&known));
    assert_eq!((none.load(SeqCst), both.load(SeqCst)), (0, 2));
    assert!(chips[1].counts().launches > 0);
}

#[test]
fn convolutions_two_apart_train_to_the_bits_of_the_interpreter() {
    train(Options::new().device("reference"), false);
}

#[test]
fn convolutions_two_apart_train_in_bf16_to_the_bits_of_the_interpreter() {
    train(twin(), true);
}
