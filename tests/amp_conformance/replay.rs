//! The region programs on the model of PyTorch's own state, defects included.

use crate::cases::{device, dtype};
use crate::programs::{is_nameless, line, names, op_of, recorded_casts, state_of};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tracecast::DType;
use tracecast::ir::policy::parity::{Leaf, RegionObject, Thread};
use tracecast::ir::policy::{DeviceType, OperandInfo, OperandKind, Policy, PolicySet, Query};

/// What came of a program.
pub(crate) struct Replayed {
    /// Every difference to the record.
    pub(crate) found: Vec<String>,
    /// True if it meets a defect of PyTorch's.
    pub(crate) is_defect: bool,
}

/// Runs a program on the model of PyTorch's own state.
pub(crate) fn replay(program: &Value) -> Replayed {
    let mut run = Replay {
        program,
        home: device(&program["device"]),
        thread: Thread::default(),
        objects: Vec::new(),
        open: Vec::new(),
        set: PolicySet::standard(),
        versions: BTreeMap::new(),
        results: BTreeMap::new(),
        done: Replayed { found: Vec::new(), is_defect: false },
    };
    for step in program["program"].as_array().into_iter().flatten() {
        run.step(step);
    }
    run.done
}

struct Replay<'c> {
    program: &'c Value,
    home: DeviceType,
    thread: Thread,
    objects: Vec<RegionObject>,
    /// The objects that are entered, `None` for inference mode.
    open: Vec<Option<usize>>,
    set: PolicySet,
    /// How often tensors were changed in place.
    versions: BTreeMap<String, u64>,
    /// The results that have names, with the dtypes that were recorded.
    results: BTreeMap<String, DType>,
    done: Replayed,
}

impl Replay<'_> {
    fn step(&mut self, step: &Value) {
        match step["do"].as_str() {
            Some("enter") => self.enter(step),
            Some("exit") => match self.open.pop().flatten() {
                Some(at) => self.thread.exit(&self.objects[at], 0),
                None => self.thread.set_inference(false),
            },
            Some("inference_mode") => {
                self.open.push(None);
                self.thread.set_inference(true);
            }
            Some("scale_in_place") => {
                let name = step["tensor"].as_str().unwrap_or("?").to_owned();
                *self.versions.entry(name).or_default() += 1;
            }
            Some("call") => self.call(step),
            Some("other_thread") => {
                let enabled = Thread::default().region().is_enabled(self.home);
                self.compare("enabled there", json!(enabled), &step["enabled_there"]);
            }
            _ => {}
        }
        if let Some(state) = step.get("state") {
            self.compare("state", state_of(self.thread.region(), self.home), state);
        }
    }

    fn compare(&mut self, what: &str, is: Value, should: &Value) {
        if is != *should {
            self.done.found.push(format!("{what}: {is}, recorded {should}"));
        }
    }

    fn enter(&mut self, step: &Value) {
        let at = if step["reuse"] == true && !self.objects.is_empty() {
            let last = self.objects.len() - 1;
            self.done.is_defect |= self.open.contains(&Some(last));
            last
        } else {
            let enabled = step.get("enabled").is_none_or(|enabled| *enabled == true);
            let cache = step.get("cache_enabled").and_then(Value::as_bool);
            let on = step.get("device").map_or(self.home, device);
            match self.thread.object(on, step.get("dtype").map(dtype), enabled, cache) {
                Ok((object, warning)) => {
                    self.objects.push(object);
                    self.compare("warns", json!(warning.is_some()), &json!(step["warns"] == true));
                }
                Err(error) => return self.compare("enter", json!(error.to_string()), &Value::Null),
            }
            self.objects.len() - 1
        };
        self.thread.enter(&mut self.objects[at]);
        self.open.push(Some(at));
    }

    fn call(&mut self, step: &Value) {
        let (op, overload, list) = op_of(step["op"].as_str().unwrap_or("?"));
        let tensors = &self.program["tensors"];
        let names = names(step);
        let kind = if list { OperandKind::ListItem } else { OperandKind::Tensor };
        let operands: Vec<_> = names
            .iter()
            .map(|name| OperandInfo {
                dtype: self
                    .results
                    .get(*name)
                    .copied()
                    .unwrap_or_else(|| dtype(&tensors[*name]["dtype"])),
                device: self.home,
                kind,
            })
            .collect();
        let region = self.thread.region().clone();
        let query = Query { overload, ..Query::new(op, &operands, &region) };
        let decision = self.set.decide(&query);
        let mut casts = Vec::new();
        let mut given = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let from = operands[at].dtype;
            let Some(to) = decision.casts[at] else {
                given.push(from);
                continue;
            };
            let leaf = matches!(tensors[*name]["kind"].as_str(), Some("param" | "grad_input"));
            let key = tensors.as_object().and_then(|all| all.keys().position(|key| key == name));
            let leaf = key.filter(|_| leaf).map(|key| Leaf {
                id: key as u64,
                version: self.versions.get(*name).copied().unwrap_or(0),
            });
            let got = self.thread.cast(self.home, leaf, from, to);
            self.done.is_defect |= got.dtype != to || got.version != leaf.map(|leaf| leaf.version);
            given.push(got.dtype);
            if got.made && !is_nameless(op, at) {
                casts.push(line(name, from, got.dtype));
            }
        }
        // Products, convolutions and the like refuse operands of several dtypes.
        let is_product =
            decision.policy == Policy::LowerPrecisionFp || ["mm", "linear", "einsum"].contains(&op);
        let mixed = is_product && given.iter().any(|dtype| *dtype != given[0]);
        let refused = decision.error.is_some() || mixed;
        self.compare(&format!("{op} refused"), json!(refused), &json!(step.get("error").is_some()));
        if !refused {
            let mut recorded = recorded_casts(step);
            recorded.sort();
            casts.sort();
            self.compare(&format!("casts of {op}"), json!(casts), &json!(recorded));
            if let Some(name) = step["as"].as_str() {
                self.results.insert(name.to_owned(), dtype(&step["out"]));
            }
        }
    }
}
