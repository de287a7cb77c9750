//! The dtype of every node under bf16 autocast.

use crate::answers::{folder, json, models};
use std::cell::RefCell;
use std::collections::BTreeMap;
use tracecast::ir::{Tracer, Var};
use tracecast::pt2::{Exported, State};
use tracecast::{DType, TensorType};
use tracecast_aten::dtype;
use tracecast_pt2::{Host, Plain};

/// PyTorch's names of the dtypes that each node gives.
type Dtypes = BTreeMap<String, Vec<&'static str>>;

/// A host that keeps the dtypes of what nodes give.
struct Noting<'t> {
    plain: Plain<'t>,
    found: RefCell<Dtypes>,
    warnings: RefCell<Vec<String>>,
}

impl<'t> Host<'t> for Noting<'t> {
    fn tracer(&self) -> &'t Tracer {
        self.plain.tracer()
    }

    fn state(&self, state: &State) -> Var<'t> {
        self.plain.state(state)
    }

    fn draw(&self) -> (Var<'t>, i64) {
        self.plain.draw()
    }

    fn region(&self, device: &str, dtype: Option<DType>, enabled: bool, body: &mut dyn FnMut()) {
        self.plain.region(device, dtype, enabled, body);
    }

    fn warn(&self, message: &str) {
        self.warnings.borrow_mut().push(message.to_owned());
    }

    fn recorded(&self, path: &str, results: &[Var<'t>]) {
        let dtypes = results.iter().map(|y| dtype::name(y.dtype())).collect();
        self.found.borrow_mut().insert(path.to_owned(), dtypes);
    }
}

/// The dtypes of all nodes by their paths, under a region around all if one is given; and the
/// warnings.
pub(crate) fn of(
    exported: &Exported,
    around: Option<DType>,
) -> Result<(Dtypes, Vec<String>), String> {
    let t = Tracer::new("dtypes");
    exported.declare_sizes(&t)?;
    let ty = |ty: &TensorType| ty.clone();
    let inputs: Vec<Var<'_>> =
        exported.inputs().iter().map(|input| t.input(&input.name, ty(&input.ty))).collect();
    let host =
        Noting { plain: Plain::new(&t), found: RefCell::default(), warnings: RefCell::default() };
    let mut record = || {
        let results = exported.record(&host, &inputs);
        for (at, y) in results.into_iter().enumerate() {
            host.recorded(&format!("output {at}"), &[y]);
        }
    };
    match around {
        Some(low) => host.plain.region("cpu", Some(low), true, &mut record),
        None => record(),
    }
    match t.error() {
        Some(error) => Err(error.to_string()),
        None => Ok((host.found.into_inner(), host.warnings.into_inner())),
    }
}

/// What differs from the recorded dtypes.
pub(crate) fn differences(found: &Dtypes, wanted: &serde_json::Value) -> (usize, Vec<String>) {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (node, dtypes) in wanted.as_object().unwrap() {
        let wanted: Vec<&str> =
            dtypes.as_array().unwrap().iter().filter_map(|d| d.as_str()).collect();
        // Nodes without results, and regions, whose results have names of their own.
        let is_region = node.rsplit('/').next().unwrap().starts_with("wrap_with_");
        if wanted.is_empty() || is_region {
            continue;
        }
        // What is not computed here and what no node reads, such as the positions in the bags of
        // `embedding_bag`.
        let is_result = node.rsplit('/').next().unwrap().starts_with("getitem");
        if is_result && !found.contains_key(node) {
            continue;
        }
        count += 1;
        match found.get(node) {
            Some(found) if found[..] == wanted[..] => {}
            // What of several results is not computed here has no dtype.
            Some(found)
                if !found.is_empty() && found.len() < wanted.len() && wanted.starts_with(found) => {
            }
            other => wrong.push(format!("{node}: {other:?}, PyTorch {wanted:?}")),
        }
    }
    (count, wrong)
}

#[test]
fn every_node_has_pytorchs_dtype_under_bf16() {
    let index = json("index.json");
    let entry =
        |name: &str| index.as_array().unwrap().iter().find(|one| one["model"] == name).unwrap();
    let (mut wrong, mut nodes) = (Vec::new(), 0);
    for name in models() {
        let exported = Exported::open(folder().join(format!("{name}.eval.pt2"))).unwrap();
        let (found, warnings) = match of(&exported, Some(DType::BF16)) {
            Ok(found) => found,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let outputs = entry(&name)["bf16_dtypes"].as_array().unwrap();
        for (at, dtype) in outputs.iter().enumerate() {
            let wanted = dtype.as_str().unwrap().strip_prefix("torch.").unwrap();
            if found[&format!("output {at}")] != [wanted] {
                wrong.push(format!(
                    "{name}: output {at} is {:?}, PyTorch {wanted}",
                    found[&format!("output {at}")]
                ));
            }
        }
        if entry(&name).get("bf16_archive").is_some() {
            let told = warnings.iter().any(|warning| warning.contains("statements about dtypes"));
            println!("{name}: output dtypes alone; statements dropped: {told}");
            continue;
        }
        let (count, all) = differences(&found, &json(&format!("{name}.bf16-dtypes.json")));
        nodes += count;
        println!("{name}: {} of {count} nodes", count - all.len());
        wrong.extend(all.into_iter().map(|one| format!("{name}: {one}")));
    }
    println!("{nodes} nodes");
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
