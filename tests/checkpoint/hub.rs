//! Files as a hub has them: other names, transposed matrices, tied names, folders and archives of
//! numpy.

use std::path::PathBuf;
use tracecast::checkpoint::{Load, Save, load_model, save_model_as};
use tracecast::nn::{Embedding, Linear, Sequential};
use tracecast::prelude::*;
use tracecast::runtime::{npz, safetensors};

#[allow(dead_code, reason = "the example runs by itself as well")]
#[path = "../../examples/gpt2.rs"]
mod gpt2;

use gpt2::{Gpt2, TINY, generate, hugging_face};

/// A path of its own for each test, removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("tracecast-hub-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn numbers(seed: u64, sizes: &[usize]) -> Tensor {
    Tensor::randn(sizes, seed).unwrap()
}

/// GPT-2 as `GPT2LMHeadModel.state_dict()` has it, or as the hub does: without the outer module,
/// with masks, without the head.
fn made_up(of_hub: bool) -> Vec<(String, Tensor)> {
    let w = TINY.width;
    let mut all: Vec<(String, Vec<usize>)> = vec![
        ("wte.weight".into(), vec![TINY.tokens, w]),
        ("wpe.weight".into(), vec![TINY.positions, w]),
        ("ln_f.weight".into(), vec![w]),
        ("ln_f.bias".into(), vec![w]),
    ];
    for i in 0..TINY.layers {
        let mut block =
            |name: &str, sizes: &[usize]| all.push((format!("h.{i}.{name}"), sizes.to_vec()));
        for norm in ["ln_1", "ln_2"] {
            block(&format!("{norm}.weight"), &[w]);
            block(&format!("{norm}.bias"), &[w]);
        }
        for (name, inputs, outputs) in [
            ("attn.c_attn", w, 3 * w),
            ("attn.c_proj", w, w),
            ("mlp.c_fc", w, 4 * w),
            ("mlp.c_proj", 4 * w, w),
        ] {
            block(&format!("{name}.weight"), &[inputs, outputs]);
            block(&format!("{name}.bias"), &[outputs]);
        }
        if of_hub {
            block("attn.bias", &[1, 1, TINY.positions, TINY.positions]);
        }
    }
    let made = all.into_iter().enumerate().map(|(seed, (name, sizes))| {
        let name = if of_hub { name } else { format!("transformer.{name}") };
        (name, numbers(seed as u64, &sizes))
    });
    let mut made: Vec<(String, Tensor)> = made.collect();
    if !of_hub {
        made.push(("lm_head.weight".to_owned(), made[0].1.clone()));
    }
    made
}

fn write(path: &Scratch, tensors: &[(String, Tensor)]) {
    let named = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    safetensors::write(&path.0, named, &safetensors::Metadata::new()).unwrap();
}

fn transposed(x: &Tensor) -> Vec<f32> {
    let [rows, columns] = x.shape().numbers()[..] else { panic!("a matrix") };
    let all = x.to_vec::<f32>().unwrap();
    (0..columns)
        .flat_map(|j| (0..rows).map(move |i| (i, j)))
        .map(|(i, j)| all[i * columns + j])
        .collect()
}

#[test]
fn gpt2_loads_strictly_and_is_written_strictly() {
    for of_hub in [false, true] {
        let (file, back) = (
            Scratch::new(&format!("in-{of_hub}.safetensors")),
            Scratch::new(&format!("out-{of_hub}.safetensors")),
        );
        let tensors = made_up(of_hub);
        write(&file, &tensors);
        let (model, load) = (Gpt2(TINY, None), hugging_face(of_hub));
        let mut store = Store::new();
        let loaded = load_model(&model, &mut store, &file.0, &load).unwrap();
        assert_eq!(loaded.count, 4 + 12 * TINY.layers);
        let of = |name: &str| &tensors.iter().find(|(known, _)| known.ends_with(name)).unwrap().1;
        let matrix = store.get("transformer.h.1.mlp.c_fc.weight").unwrap();
        assert_eq!(matrix.to_vec::<f32>().unwrap(), transposed(of("h.1.mlp.c_fc.weight")));
        assert_eq!(store.get("transformer.wte.weight").unwrap(), *of("wte.weight"));

        // Back, to the names, shapes and numbers that there were; masks are no part of the model.
        let save = Save::new().like(&load);
        let save = if of_hub { save } else { save.with_tied_names() };
        save_model_as(&model, &store, &back.0, &save).unwrap();
        let mut archive = safetensors::Archive::open(&back.0).unwrap();
        let kept: Vec<&(String, Tensor)> =
            tensors.iter().filter(|(name, _)| !name.ends_with(".attn.bias")).collect();
        assert_eq!(archive.names().count(), kept.len());
        for (name, tensor) in kept {
            assert_eq!(archive.read(name).unwrap(), *tensor, "{name}");
        }
        assert_eq!(generate(TINY, &mut store, &[3, 1, 4], 8).unwrap().len(), 8);
    }
}

#[test]
fn tied_names_have_to_be_equal() {
    let file = Scratch::new("tied.safetensors");
    let model = || {
        Sequential::new()
            .named("embed", Embedding::new(6, 4))
            .named("head", Linear::new(4, 6).without_bias().tied_to("embed.weight"))
    };
    let (x, y) = (numbers(1, &[6, 4]), numbers(2, &[6, 4]));
    let load = |tensors: &[(&str, &Tensor)]| {
        let tensors: Vec<_> =
            tensors.iter().map(|(n, x)| ((*n).to_owned(), (*x).clone())).collect();
        write(&file, &tensors);
        let mut store = Store::new();
        load_model(&model(), &mut store, &file.0, &Load::strict())
            .map(|_| store.get("embed.weight").unwrap())
    };
    assert_eq!(load(&[("embed.weight", &x), ("head.weight", &x)]).unwrap(), x);
    // A file may leave one of them out.
    assert_eq!(load(&[("head.weight", &x)]).unwrap(), x);
    assert_eq!(load(&[("embed.weight", &x)]).unwrap(), x);
    let error = load(&[("embed.weight", &x), ("head.weight", &y)]).unwrap_err().to_string();
    assert!(
        error.contains("`embed.weight` and `head.weight` are one parameter here, and differ"),
        "{error}"
    );
}

#[test]
fn archives_and_folders_are_taken() {
    let model = || Sequential::new().named("fc", Linear::new(3, 2));
    let (w, b) = (numbers(1, &[2, 3]), numbers(2, &[2]));
    let archive = Scratch::new("model.npz");
    npz::write(&archive.0, [("fc.weight", &w), ("fc.bias", &b)]).unwrap();
    let mut store = Store::new();
    load_model(&model(), &mut store, &archive.0, &Load::strict()).unwrap();
    assert_eq!(store.get("fc.weight").unwrap(), w);

    let folder = Scratch::new("folder");
    std::fs::create_dir_all(&folder.0).unwrap();
    let empty = load_model(&model(), &mut store, &folder.0, &Load::strict()).unwrap_err();
    assert!(empty.to_string().contains("model.safetensors"), "{empty}");
    let one = |path: &str, tensors: &[(&str, &Tensor)]| {
        let tensors = tensors.iter().map(|(name, tensor)| (*name, *tensor));
        safetensors::write(folder.0.join(path), tensors, &safetensors::Metadata::new()).unwrap();
    };
    one("model-1.safetensors", &[("fc.weight", &w)]);
    one("model-2.safetensors", &[("fc.bias", &b)]);
    let index = r#"{"metadata": {}, "weight_map": {"fc.weight": "model-1.safetensors", "fc.bias": "model-2.safetensors"}}"#;
    std::fs::write(folder.0.join("model.safetensors.index.json"), index).unwrap();
    let mut store = Store::new();
    load_model(&model(), &mut store, &folder.0, &Load::strict()).unwrap();
    assert_eq!(store.get("fc.bias").unwrap(), b);
}

#[test]
fn names_go_through_prefix_and_patterns() {
    let model =
        || Sequential::new().named("a.0", Linear::new(3, 2)).named("a.1", Linear::new(2, 2));
    let file = Scratch::new("renamed.safetensors");
    let tensors: Vec<(String, Tensor)> = [("w", [2, 3], 0), ("w", [2, 2], 1)]
        .into_iter()
        .flat_map(|(w, sizes, i)| {
            let w = (format!("net.block.{i}.{w}"), numbers(i, &sizes));
            [w, (format!("net.block.{i}.b"), numbers(9, &[2]))]
        })
        .collect();
    write(&file, &tensors);
    let load = Load::strict()
        .prefix("net.")
        .rename("block.*.w", "a.*.weight")
        .rename("block.*.b", "a.*.bias");
    let mut store = Store::new();
    load_model(&model(), &mut store, &file.0, &load).unwrap();
    assert_eq!(store.get("a.1.weight").unwrap(), tensors[2].1);
    let missing = load.clone().rename("a.1.bias", "elsewhere");
    let error = load_model(&model(), &mut store, &file.0, &missing).unwrap_err().to_string();
    assert!(error.contains("unexpected: net.block.1.b"), "{error}");
    assert!(error.contains("missing"), "{error}");
    let error = load_model(&model(), &mut store, &file.0, &load.rename("a.*", "b")).unwrap_err();
    assert!(error.to_string().contains("stars"), "{error}");
}
