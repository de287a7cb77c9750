//! A network trained on a chip: the dtypes that its autocast gives, and the bits that the
//! interpreter gets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod network;

use network::{batch, chips, contents, given, on, settings, step, twin};
use std::collections::BTreeSet;
use tracecast::explain::{Explanation, Width};
use tracecast::prelude::*;

/// The dtypes of all results of an op that autocast decides.
fn widths(explained: &Explanation, op: &str) -> BTreeSet<String> {
    let ops = explained.ops.iter().filter(|note| note.op == op && note.is_on);
    let width = |width| match width {
        Width::Low(dtype) | Width::Wide(dtype) => dtype.to_string(),
        Width::NoFloat => "none".to_owned(),
    };
    ops.map(|note| width(note.width)).collect()
}

#[test]
fn a_network_trains_in_bf16_to_the_bits_of_the_interpreter() {
    let (registry, chips) = chips(&settings());
    let (mine, theirs) = (step(on(&registry, "npu:1")), step(twin()));
    let (mut store, mut other) = (Store::new(), Store::new());
    mine.init(&mut store, 7).unwrap();
    theirs.init(&mut other, 7).unwrap();

    let first = batch(0, 1.0);
    let explained = mine.jit().explain(&store, &given(&first)).unwrap();
    for (op, expected) in [
        ("linear", "bf16"),
        ("matmul", "bf16"),
        ("softmax", "bf16"),
        ("layer_norm", "f32"),
        ("log_softmax", "f32"),
    ] {
        assert_eq!(widths(&explained, op), [expected.to_owned()].into(), "{op}");
    }

    let (mut losses, mut skipped, mut scales) = (Vec::new(), 0, BTreeSet::new());
    for number in 0..60 {
        let batch = batch(number % 4, if number % 20 == 9 { f32::INFINITY } else { 1.0 });
        let done = mine.run(&mut store, &given(&batch)).unwrap();
        let wanted = theirs.run(&mut other, &given(&batch)).unwrap();
        assert_eq!(done.loss.to_bits(), wanted.loss.to_bits(), "step {number}");
        assert_eq!((done.skipped, done.scale), (wanted.skipped, wanted.scale), "step {number}");
        if done.skipped {
            skipped += 1;
        } else {
            losses.push(done.loss);
        }
        scales.insert(done.scale as u64);
    }
    assert_eq!(contents(&store), contents(&other));
    assert!(skipped == 3 && scales.len() > 3, "{skipped} skipped, scales {scales:?}");
    let (begin, end) = (losses[0], losses[losses.len() - 1]);
    assert!(end < begin / 4.0, "the loss went from {begin} to {end}");
    assert!(chips[0].counts().launches == 0 && chips[1].counts().launches > 0);
}

#[test]
fn ones_own_rules_are_under_those_of_the_user() {
    let (registry, _) = chips(&settings());
    let options = on(&registry, "npu");
    let text = options.policies().to_string();
    assert!(text.contains("softmax") && text.contains("l1_loss"), "{text}");
    let graph = tracecast::trace_with("rules", &options, |t| {
        let x = t.input_of("x", network::f32s(&[2, 2]));
        autocast(t, "npu", None, || {
            assert_eq!(x.softmax(-1).dtype(), DType::BF16);
            assert_eq!(x.log_softmax(-1).dtype(), DType::F32);
            t.output("y", x.l1_loss(x, None));
        });
    });
    assert_eq!(graph.unwrap().outputs()[0].0, "y");
}
