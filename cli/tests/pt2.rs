//! Models that PyTorch has exported, wherever the tool takes a program: run, explained, dumped,
//! profiled, served, converted and trained.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracecast_runtime::{Tensor, npz};

/// Runs the tool, which has to succeed: standard output and standard error.
fn tool(arguments: &[&str]) -> (String, String) {
    let (code, out, err) = tried(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    (out, err)
}

fn tried(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tracecast")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// An archive, or a file beside it.
fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/pt2");
    folder.join(name).to_str().unwrap().to_owned()
}

/// A folder that is removed at the end of a test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("tracecast-pt2-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The inputs of a recorded model, by the names of its archive.
    fn inputs(&self, model: &str) -> String {
        let all = npz::read(data(&format!("{model}.npz"))).unwrap();
        let one = |at: usize| {
            all.iter().find(|(name, _)| *name == format!("in{at}")).map(|(_, x)| x.clone())
        };
        let named: Vec<(String, Tensor)> =
            (0..).map_while(|at| Some((format!("args_{at}"), one(at)?))).collect();
        let file = self.path("in.npz");
        npz::write(&file, named.iter().map(|(name, x)| (name.as_str(), x))).unwrap();
        file
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The largest difference of results from PyTorch's.
fn far(file: &str, model: &str, mode: &str) -> f64 {
    let (ours, theirs) =
        (npz::read(file).unwrap(), npz::read(data(&format!("{model}.npz"))).unwrap());
    let named = |all: &[(String, Tensor)], name: &str| {
        all.iter().find(|(known, _)| known == name).unwrap().1.to_f64s()
    };
    let (found, wanted) = (named(&ours, "output.0"), named(&theirs, &format!("{mode}.0")));
    assert_eq!(found.len(), wanted.len());
    found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn an_archive_is_run_and_so_is_what_it_is_converted_to() {
    let scratch = Scratch::new("run");
    let (model, inputs) =
        (data("net_transformer_encoder.eval.pt2"), scratch.inputs("net_transformer_encoder"));
    let result = scratch.path("out.npz");
    tool(&["run", &model, "--inputs", &inputs, "--outputs", &result]);
    assert!(far(&result, "net_transformer_encoder", "eval") < 1e-5);
    let exact = fs::read(&result).unwrap();

    let (text, weights) = (scratch.path("model.tc"), scratch.path("model.safetensors"));
    let (out, _) = tool(&["convert", &model, "-o", &text]);
    assert!(out.contains("model.tc") && out.contains("model.safetensors"), "{out}");
    tool(&["run", &text, "--weights", &weights, "--inputs", &inputs, "--outputs", &result]);
    assert_eq!(fs::read(&result).unwrap(), exact);

    tool(&["run", &model, "--autocast", "cpu:bf16", "--inputs", &inputs, "--outputs", &result]);
    assert!(far(&result, "net_transformer_encoder", "bf16") < 4e-3);
}

#[test]
fn sizes_are_those_of_the_arrays() {
    let scratch = Scratch::new("sizes");
    let model = data("dynamic-transformer.pt2");
    let (out, _) = tool(&["dump", &model]);
    let name = out.split("%").find_map(|part| part.split_once(": i64[")).unwrap().0.to_owned();
    let (inputs, result) = (scratch.path("in.npz"), scratch.path("out.npz"));
    let x = Tensor::new([3, 5], &[1i64; 15]).unwrap();
    npz::write(&inputs, [(name.as_str(), &x)]).unwrap();
    tool(&["run", &model, "--inputs", &inputs, "--outputs", &result]);
    assert_eq!(npz::read(&result).unwrap()[0].1.shape()[..2], [3, 5]);
    let x = Tensor::new([1, 5], &[1i64; 5]).unwrap();
    npz::write(&inputs, [(name.as_str(), &x)]).unwrap();
    let (code, _, err) = tried(&["run", &model, "--inputs", &inputs, "--outputs", &result]);
    assert!(code == Some(1) && err.contains("`s77` is 1"), "{err}");
}

#[test]
fn explanations_name_python_lines_modules_and_rules() {
    let (out, _) = tool(&["explain", &data("regions-convnet.pt2")]);
    assert!(out.contains(".py:") && out.contains("torch-cpu/"), "{out}");
    let (out, _) = tool(&["explain", &data("net_gru.eval.pt2"), "--autocast", "cpu:bf16"]);
    assert!(out.contains("zoo.py:") && out.contains("in model"), "{out}");
    let (out, _) = tool(&["dump", &data("net_vae.pt2"), "--after-all", "--at"]);
    assert!(out.contains("after fuse") && out.contains("zoo.py:"), "{out}");
}

#[test]
fn an_archive_is_profiled_and_served() {
    let model = data("net_vae.eval.pt2");
    let (out, _) = tool(&["profile", &model, "--runs", "3"]);
    assert!(out.contains("contract"), "{out}");
    let (out, _) = tool(&["serve-bench", &model, "--seconds", "0.05"]);
    assert!(out.contains("runs") && out.contains("weights are"), "{out}");
}

#[test]
fn an_archive_is_trained() {
    let scratch = Scratch::new("train");
    let (arrays, folder) = (scratch.path("x.npz"), scratch.path("saved"));
    let x =
        Tensor::from_fn(tracecast_ir::TensorType::new(tracecast_ir::DType::I64, [8, 12]), |i| {
            (i % 5) as f64
        });
    let y = Tensor::new([8], &[0i64, 1, 0, 1, 0, 1, 0, 1]).unwrap();
    npz::write(&arrays, [("x", &x.unwrap()), ("y", &y)]).unwrap();
    let model = data("net_gru.pt2");
    for autocast in [&[][..], &["--autocast", "cpu:bf16"]] {
        let common = [
            "train",
            &model,
            "--data",
            &arrays,
            "--loss",
            "cross_entropy",
            "--epochs",
            "3",
            "--save",
            &folder,
            "--json",
        ];
        let (out, _) = tool(&[&common, autocast].concat());
        let line: serde_json::Value = serde_json::from_str(&out).unwrap();
        let losses: Vec<f64> =
            line["losses"].as_array().unwrap().iter().filter_map(|v| v.as_f64()).collect();
        assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
    }
    assert!(Path::new(&folder).join("model.safetensors").exists());
}

#[test]
fn what_cannot_be_used_is_an_error() {
    let scratch = Scratch::new("errors");
    let file = scratch.path("broken.pt2");
    fs::write(&file, b"PK no archive").unwrap();
    for command in ["dump", "explain"] {
        let (code, _, err) = tried(&[command, &file]);
        assert!(code == Some(1) && err.contains("is no archive"), "{err}");
    }
    let (code, _, err) = tried(&["train", &data("net_gru.pt2"), "--loss", "cross_entropy"]);
    assert!(code == Some(2) && err.contains("--data"), "{err}");
    let arrays = scratch.path("x.npz");
    npz::write(&arrays, [("z", &Tensor::scalar(1f32))]).unwrap();
    let (code, _, err) =
        tried(&["train", &data("net_gru.pt2"), "--data", &arrays, "--loss", "mse"]);
    assert!(code == Some(1) && err.contains("no input is called `z`"), "{err}");
}
