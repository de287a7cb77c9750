//! The folder of archives and of PyTorch's answers, and how far ours are from them.

use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tracecast::Tensor;
use tracecast::runtime::npz;

/// The folder.
pub(crate) fn folder() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pt2");
    std::env::var_os("TRACECAST_PT2").map_or(ours, PathBuf::from)
}

pub(crate) fn json(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

/// The models whose archives are there.
pub(crate) fn models() -> Vec<String> {
    let some = std::env::var("TRACECAST_PT2_MODELS").ok();
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name());
    let names = files
        .filter_map(|file| Some(file.into_string().ok()?.strip_suffix(".eval.pt2")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.retain(|name| some.as_ref().is_none_or(|some| some.split(',').any(|one| one == name)));
    names.sort();
    assert!(!names.is_empty(), "there are archives in {}", folder().display());
    names
}

/// The arrays of a model, by name.
pub(crate) struct Answers(BTreeMap<String, Tensor>);

impl Answers {
    pub(crate) fn of(model: &str) -> Answers {
        Answers(npz::read(folder().join(format!("{model}.npz"))).unwrap().into_iter().collect())
    }

    pub(crate) fn get(&self, name: &str) -> &Tensor {
        self.0.get(name).unwrap_or_else(|| panic!("no array {name}"))
    }

    /// Those whose names are a word and a number.
    pub(crate) fn numbered(&self, word: &str) -> Vec<Tensor> {
        (0..).map_while(|at| self.0.get(&format!("{word}{at}")).cloned()).collect()
    }

    /// Those whose names begin so, without that.
    pub(crate) fn under(&self, prefix: &str) -> Vec<(String, f64)> {
        let one = |(name, tensor): (&String, &Tensor)| {
            Some((name.strip_prefix(prefix)?.to_owned(), tensor.to_f64s()[0]))
        };
        self.0.iter().filter_map(one).collect()
    }
}

/// The inputs of a model by the names of its file.
pub(crate) fn named<'a>(
    model: &tracecast::pt2::Model,
    inputs: &'a [Tensor],
) -> Vec<(String, &'a Tensor)> {
    let known = model.exported().inputs();
    assert_eq!(known.len(), inputs.len(), "inputs of {}", model.exported().path().display());
    known.iter().zip(inputs).map(|(input, tensor)| (input.name.clone(), tensor)).collect()
}

/// The largest distance in units of `atol + rtol |wanted|`.
pub(crate) fn distance(found: &Tensor, wanted: &Tensor, rtol: f64, atol: f64) -> f64 {
    assert_eq!(found.shape(), wanted.shape());
    let each = found.to_f64s().into_iter().zip(wanted.to_f64s()).map(|(a, b)| {
        if a == b || a.is_nan() && b.is_nan() {
            0.0
        } else {
            (a - b).abs() / (atol + rtol * b.abs())
        }
    });
    each.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { f64::max(most, d) })
}

/// The largest absolute distance.
pub(crate) fn apart(found: &Tensor, wanted: &Tensor) -> f64 {
    distance(found, wanted, 0.0, 1.0)
}
