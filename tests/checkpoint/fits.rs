//! What fits is loaded, what does not is listed, and nothing changes then.

use crate::{Folder, contents};
use tracecast::checkpoint::{Load, load_model, save_model};
use tracecast::nn::{Dropout, Embedding, LayerNorm, Linear, Module, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::safetensors::{Archive, Metadata, write};

fn model() -> Sequential {
    Sequential::new()
        .named("embed", Embedding::new(8, 4).dtype(DType::BF16))
        .named("drop", Dropout::new(0.5))
        .named("norm", LayerNorm::new(4))
        .named("out", Linear::new(4, 2).dtype(DType::F16))
}

fn initialised(module: &impl Module, seed: u64) -> Store {
    let mut store = Store::new();
    module.init(&mut store, seed).unwrap();
    store
}

fn step() -> TrainStep {
    TrainStep::new(model(), |t, model| model.forward(t.input("x")).cast(DType::F32).mean(()))
        .optimizer(AdamW::new(0.01))
        .build()
        .unwrap()
}

#[test]
fn a_model_has_the_names_of_a_state_dict() {
    let folder = Folder::new();
    let path = folder.path("m.safetensors");
    let store = initialised(&model(), 1);
    assert!(store.contains("rng"));
    save_model(&model(), &store, &path).unwrap();
    let archive = Archive::open(&path).unwrap();
    let names: Vec<_> = archive.names().collect();
    assert_eq!(names, ["embed.weight", "norm.bias", "norm.weight", "out.bias", "out.weight"]);
    assert_eq!(archive.describe("embed.weight"), "bf16[8, 4]");
    assert_eq!(archive.metadata()["format"], "pt");
    let mut other = Store::new().with("rng", Tensor::scalar(1i64));
    let loaded = load_model(&model(), &mut other, &path, &Load::strict()).unwrap();
    assert_eq!((loaded.count, other.len()), (5, 6));
    assert_eq!(other.get("rng").unwrap(), Tensor::scalar(1i64), "it is no part of the model");
    other.remove("rng").unwrap();
    other.insert("rng", store.get("rng").unwrap());
    assert!(contents(&other) == contents(&store));
}

#[test]
fn all_that_does_not_fit_is_told_at_once() {
    let folder = Folder::new();
    let path = folder.path("m.safetensors");
    save_model(&model(), &initialised(&model(), 1), &path).unwrap();
    let other = Sequential::new()
        .named("embed", Embedding::new(8, 4))
        .named("norm", LayerNorm::new(4))
        .named("head", Linear::new(4, 3));
    let mut store = initialised(&other, 2);
    let before = contents(&store);
    let error = load_model(&other, &mut store, &path, &Load::strict()).unwrap_err();
    let tracecast::Error::Checkpoint { missing, unexpected, differing, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(missing, &["head.bias", "head.weight"]);
    assert_eq!(unexpected, &["out.bias", "out.weight"]);
    assert_eq!(differing, &["`embed.weight` is bf16[8, 4], expected f32[8, 4]"]);
    let told = error.to_string();
    assert!(
        told.contains("m.safetensors: missing: head.bias, head.weight; unexpected: "),
        "{told}"
    );
    // Of another type is an error in any case, unless floats are to be converted.
    assert!(load_model(&other, &mut store, &path, &Load::partial()).is_err());
    assert!(contents(&store) == before);
    let loaded = load_model(&other, &mut store, &path, &Load::partial().converting()).unwrap();
    assert_eq!((loaded.count, loaded.missing.len(), loaded.unexpected.len()), (3, 2, 2));
    assert_eq!(loaded.converted, ["embed.weight"]);
    let embed = initialised(&model(), 1).get("embed.weight").unwrap();
    assert_eq!(store.get("embed.weight").unwrap(), embed.cast(DType::F32).unwrap());
    assert_eq!(
        store.get("head.weight").unwrap(),
        initialised(&other, 2).get("head.weight").unwrap()
    );
    let wider = Sequential::new().named("norm", LayerNorm::new(5));
    let error = load_model(&wider, &mut Store::new(), &path, &Load::partial().converting());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`norm.weight` is f32[4], expected f32[5]"), "{error}");
    assert!(!error.contains("unexpected"), "{error}");
}

#[test]
fn nothing_of_a_training_state_starts_anew_in_silence() {
    let folder = Folder::new();
    let path = folder.path("s.safetensors");
    let mut store = Store::new();
    step().init(&mut store, 1).unwrap();
    step().save(&store, &path).unwrap();
    let archive = Archive::open(&path).unwrap();
    for name in ["model.out.weight", "random.rng", "optim.step", "optim.out.weight.exp_avg"] {
        assert!(archive.contains(name), "{name}");
    }
    assert_eq!(archive.metadata()["tracecast"], "training 1");
    // A step that keeps more, or less.
    let build = |clipped: bool| {
        let step = TrainStep::new(model(), |t, model| {
            model.forward(t.input("x")).cast(DType::F32).mean(())
        });
        let step = if clipped { step.ema(0.9) } else { step };
        step.optimizer(Sgd::new(0.1)).build().unwrap()
    };
    let error =
        build(true).load(&mut Store::new(), &path, &Load::strict()).unwrap_err().to_string();
    assert!(
        error.contains("missing: ema.embed.weight") && error.contains("train.steps"),
        "{error}"
    );
    assert!(error.contains("unexpected: optim.embed.weight.exp_avg"), "{error}");
    let mut other = Store::new();
    let loaded = build(true).load(&mut other, &path, &Load::partial()).unwrap();
    assert!(loaded.missing.contains(&"train.steps".to_owned()) && other.contains("out.weight"));
    // The model of a training state is a model, and a model is no training state.
    let mut other = Store::new();
    assert_eq!(load_model(&model(), &mut other, &path, &Load::strict()).unwrap().count, 5);
    assert_eq!(other.get("out.weight").unwrap(), store.get("out.weight").unwrap());
    let model_only = folder.path("m.safetensors");
    step().save_model(&store, &model_only).unwrap();
    let error = step().load(&mut store, &model_only, &Load::strict()).unwrap_err().to_string();
    assert!(error.contains("no training state"), "{error}");
    assert_eq!(step().load_model(&mut store, &model_only, &Load::strict()).unwrap().count, 5);
}

#[test]
fn files_of_another_version_are_refused() {
    let folder = Folder::new();
    let path = folder.path("m.safetensors");
    let says = |what: &str| {
        let metadata: Metadata = [("tracecast".to_owned(), what.to_owned())].into();
        write(
            &path,
            [("weight", &Tensor::zeros(TensorType::new(DType::F32, [1, 1])).unwrap())],
            &metadata,
        )
        .unwrap();
        let linear = Linear::new(1, 1).without_bias();
        load_model(&linear, &mut Store::new(), &path, &Load::strict()).map_err(|e| e.to_string())
    };
    assert_eq!(says("model 1").unwrap().count, 1);
    assert!(says("model 2").unwrap_err().contains("version 2"));
    for odd in ["model 0", "model x", "model", "cake 1"] {
        assert!(says(odd).unwrap_err().contains("not known"), "{odd}");
    }
}

#[test]
fn a_state_that_is_not_whole_is_not_saved() {
    let folder = Folder::new();
    let path = folder.path("s.safetensors");
    let mut store = Store::new();
    step().init(&mut store, 1).unwrap();
    step().save(&store, &path).unwrap();
    let old = std::fs::read(&path).unwrap();
    let step_count = store.remove("optim.step").unwrap();
    let error = step().save(&store, &path).unwrap_err().to_string();
    assert!(error.contains("`optim.step`") && error.contains("is not in the store"), "{error}");
    store.insert("optim.step", step_count.cast(DType::I64).unwrap());
    let error = step().save(&store, &path).unwrap_err().to_string();
    assert!(error.contains("expected f32[], found i64[]"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), old);
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn several_files_are_one_model() {
    let folder = Folder::new();
    let store = initialised(&model(), 3);
    let entries: Vec<(String, Tensor)> = model()
        .entries()
        .unwrap()
        .into_iter()
        .filter(|entry| entry.name != "rng")
        .map(|entry| (entry.name.clone(), store.get(&entry.name).unwrap()))
        .collect();
    let index = folder.path("model.safetensors.index.json");
    let named = entries.iter().map(|(name, tensor)| (name.as_str(), tensor));
    tracecast::runtime::safetensors::write_sharded(&index, named, &Metadata::new(), 40).unwrap();
    assert!(folder.files().len() > 3);
    let mut other = Store::new();
    load_model(&model(), &mut other, &index, &Load::strict()).unwrap();
    for (name, tensor) in entries {
        assert_eq!(other.get(&name).unwrap(), tensor);
    }
}
