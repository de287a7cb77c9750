//! Files of PyTorch are models here, and files of ours are models there. What PyTorch wrote and
//! answered was recorded once by `tests/data/checkpoints/pytorch.py`, and lies beside it.

use crate::kept;
use tracecast::checkpoint::{Load, load_model, save_model};
use tracecast::nn::{Context, Embedding, Gelu, LayerNorm, Linear, Module, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::safetensors::Archive;

/// What the script builds of PyTorch's modules.
fn model() -> Sequential {
    Sequential::new()
        .named("embed", Embedding::new(16, 8))
        .named("hidden", Linear::new(8, 12))
        .named("act", Gelu)
        .named("norm", LayerNorm::new(12))
        .named("out", Linear::new(12, 5).without_bias())
}

fn answers(store: &mut Store, tokens: &Tensor) -> Vec<f32> {
    let evaluate = jit(Options::new(), |t| {
        t.output("y", model().forward(&Context::evaluation(t), t.input("x")))
    });
    evaluate.run(store, &[("x", tokens)]).unwrap()["y"].to_vec().unwrap()
}

/// Answers that differ by the order of sums.
fn near(ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0f32, |most, y| most.max(y.abs()));
    assert!(largest > 0.1);
    for (at, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= 2e-6 * largest, "answer {at}: {a}, PyTorch {b}");
    }
}

#[test]
fn a_file_of_pytorch_loads_and_answers_as_pytorch() {
    let mut store = Store::new();
    let loaded =
        load_model(&model(), &mut store, kept("pytorch-model.safetensors"), &Load::strict());
    assert_eq!(loaded.unwrap().count, 6);
    let mut recorded = Archive::open(kept("pytorch-answers.safetensors")).unwrap();
    let tokens = recorded.read("x").unwrap();
    near(&answers(&mut store, &tokens), &recorded.read("y").unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn dtypes_of_pytorch_come_bit_for_bit() {
    let mut file = Archive::open(kept("pytorch-dtypes.safetensors")).unwrap();
    let mut check = |name: &str, ty: &str, bytes: &[u8]| {
        assert_eq!((file.describe(name).as_str(), file.read(name).unwrap().bytes()), (ty, bytes));
    };
    check("bf16", "bf16[3]", &[0x01, 0x00, 0x80, 0xff, 0xcd, 0x3d]);
    check("f16", "f16[3]", &[0x01, 0x00, 0x00, 0xfc, 0x66, 0x2e]);
    check("f32", "f32[1, 1]", &0.1f32.to_le_bytes());
    check("f64", "f64[]", &0.1f64.to_le_bytes());
    check("i32", "i32[1]", &i32::MIN.to_le_bytes());
    check("i64", "i64[1]", &i64::MAX.to_le_bytes());
    check("u8", "u8[2]", &[0, 255]);
    check("bool", "bool[3]", &[1, 0, 1]);
    check("empty", "f32[0, 4]", &[]);
    assert_eq!(file.describe("i16"), "i16[1]");
    assert!(file.read("i16").is_err());
}

/// The file of ours that PyTorch has loaded strictly, and what it answered then.
#[test]
fn a_file_of_ours_was_loaded_by_pytorch_and_answered_as_here() {
    let path = kept("ours.safetensors");
    let mut store = Store::new();
    model().init(&mut store, 11).unwrap();
    if std::env::var_os("TRACECAST_BLESS").is_some() && !path.exists() {
        save_model(&model(), &store, &path).unwrap();
    }
    let mut read = Store::new();
    load_model(&model(), &mut read, &path, &Load::strict()).unwrap();
    // What would be written today is that file still, so what PyTorch says of it holds.
    let again = crate::Folder::new();
    save_model(&model(), &read, again.path("again")).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(again.path("again")).unwrap());
    let mut recorded = Archive::open(kept("pytorch-answers-to-ours.safetensors")).unwrap();
    let tokens = recorded.read("x").unwrap();
    near(&answers(&mut read, &tokens), &recorded.read("y").unwrap().to_vec::<f32>().unwrap());
}
