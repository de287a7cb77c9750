//! The recorded cases about devices from outside, run step by step against a registry: each step is
//! looked up by its words, and what it comes to is compared with what PyTorch was seen to do. Where
//! ours differs on purpose, `docs/parity.md` has a line and the case asserts ours.

use serde_json::Value;
use std::sync::{Arc, Mutex};
use tracecast::amp::EagerScaler;
use tracecast::eager::Eager;
use tracecast::explain::WarningKind;
use tracecast::ir::kernel::Kernel;
use tracecast::ir::policy::{DeviceType, Policy, PolicySet, Target};
use tracecast::prelude::*;
use tracecast::runtime::{
    AmpSupport, Backend, Device, DeviceId, Launch, Memory, ReferenceDevice, Registry, Result,
};

use DType::{BF16, F16, F32, F64, I8};
use DeviceType::{Cpu, PrivateUse1};

/// The interpreter under another name.
#[derive(Debug)]
struct Named(String);

impl Device for Named {
    fn name(&self) -> &str {
        &self.0
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

/// What stands for PyTorch's device module.
#[derive(Debug)]
struct Module(Option<AmpSupport>);

impl Backend for Module {
    fn count(&self) -> usize {
        1
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Named(id.to_string())))
    }

    fn amp(&self) -> Option<AmpSupport> {
        self.0.clone()
    }
}

/// What the steps of a case work on.
struct World {
    registry: Arc<Registry>,
    /// What the type from outside is called.
    name: String,
    /// What user code registers.
    rules: Vec<(Target, DeviceType, Policy)>,
    /// The device, the low dtype and the state of the region that was entered last.
    region: (DeviceType, Option<DType>, Option<bool>),
    /// What each step came to: dtypes of results, and errors.
    results: Vec<std::result::Result<DType, String>>,
    warnings: Vec<String>,
    errors: Vec<String>,
}

impl World {
    fn new() -> Self {
        World {
            registry: Arc::new(Registry::new()),
            name: "npu".to_owned(),
            rules: Vec::new(),
            region: (PrivateUse1, None, None),
            results: Vec::new(),
            warnings: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn note<T>(&mut self, done: Result<T>) {
        self.errors.extend(done.err().map(|error| error.to_string()));
    }

    fn register(&mut self, amp: Option<AmpSupport>) {
        let done = self.registry.register(&self.name, Arc::new(Module(amp)));
        self.note(done);
    }

    fn rule(&mut self, op: &str, device: DeviceType, policy: Policy) {
        self.rules.push((Target::Op(op.to_owned()), device, policy));
    }

    /// Options for programs on the device that the region is of, with what user code has
    /// registered.
    fn options(&self) -> Options {
        let known = self.registry.kinds().iter().any(|kind| *kind.name == *self.name);
        let options = Options::new().registry(&self.registry);
        let options = match known && self.region.0 == PrivateUse1 {
            true => options.device(&self.name),
            false => options,
        };
        let mut policies: PolicySet = options.policies().as_ref().clone();
        for (target, device, policy) in &self.rules {
            policies.add_rule(target.clone(), Some(*device), policy.clone());
        }
        options.with_policies(policies)
    }

    /// Enters the region; an op in it if there is one, of operands of that dtype.
    fn within(&mut self, op: Option<(&str, DType)>) {
        let (device, dtype, _) = self.region;
        let region = if device == Cpu { "cpu".to_owned() } else { self.name.clone() };
        let given = op.map_or(F32, |op| op.1);
        let name = op.map(|op| op.0.to_owned());
        let seen = Arc::new(Mutex::new((None, None)));
        let notes = seen.clone();
        let program = jit(self.options(), move |t| {
            let x = t.input("x");
            let y = autocast(t, &region, dtype, || {
                let mut notes = notes.lock().unwrap();
                notes.0 = Some(t.tracer().region().is_enabled(device));
                let y = match name.as_deref() {
                    Some("mm") => x.mm(x),
                    Some("exp") => x.exp(),
                    _ => return x,
                };
                notes.1 = Some(y.dtype());
                y
            });
            t.output("y", y);
        });
        let x = Tensor::full(TensorType::new(given, [2, 2]), 1.0).expect("four numbers");
        match program.explain(&Store::new(), &[("x", &x)]) {
            Ok(explained) => {
                let (enabled, found) = *seen.lock().unwrap();
                self.region.2 = enabled;
                self.results.extend(found.map(Ok));
                let warnings = explained.warnings.into_iter();
                let tracing = warnings.filter(|warning| warning.kind == WarningKind::Tracing);
                self.warnings.extend(tracing.map(|warning| warning.message));
            }
            Err(error) => {
                self.errors.push(error.to_string());
                self.results.extend(op.map(|_| Err(error.to_string())));
            }
        }
    }

    fn step(&mut self, words: &str) {
        let low = || Some(AmpSupport::new([F16]));
        let mut list = AmpSupport::new([F32, I8]);
        match words {
            "rename to npu" => self.rename("npu"),
            "rename to cuda" => self.rename("cuda"),
            "rename to \"my dev!\"" => self.rename("my dev!"),
            "register an empty module" => self.register(None),
            "module returns [f32, i8]" => self.register(Some(list)),
            "register" | "register again" => self.register(low()),
            "enter region" => self.within(None),
            "enter region with f32" => {
                self.region.1 = Some(F32);
                self.within(None);
            }
            "enter region without dtype (default f16)" => {
                // A kind whose default its regions do not take is refused before there is a region;
                // in PyTorch's default there is a warning here too.
                list.default = F16;
                let refused = Registry::new().register("npu", Arc::new(Module(Some(list))));
                let refused = refused.unwrap_err().to_string();
                assert!(
                    refused.contains("expected one that its regions take: f32, i8"),
                    "{refused}"
                );
                self.region.1 = Some(F16);
                self.within(None);
            }
            "register a module for a name that is no device type" => self.within(None),
            "generate methods" => {
                let device = Arc::new(Named(format!("{}:0", self.name)));
                let done = self.registry.register_device(device);
                self.note(done);
            }
            // A module with dtypes, and nothing said of any op.
            "no autocast registration at all" => self.register(low()),
            "register mm low" => {
                self.register(low());
                self.region.1 = Some(F16);
                self.rule("mm", PrivateUse1, Policy::LowerPrecisionFp);
            }
            "register mm fp32 in a second library" => {
                self.rule("mm", PrivateUse1, Policy::Fp32);
            }
            "register exp as fp32 on cpu from user code" => self.rule("exp", Cpu, Policy::Fp32),
            "enter cpu region" => self.region = (Cpu, Some(BF16), None),
            // Policies name roles and no dtypes: what stays f16 is an operand that falls through.
            "register mm as f16 on cpu from user code" => {
                self.region = (Cpu, Some(BF16), None);
                self.rule("mm", Cpu, Policy::Fallthrough);
            }
            "register mm as f32 in a second library" => self.rule("mm", Cpu, Policy::Fp32),
            "destroy the second library" | "destroy the second" | "destroy the first" => {
                self.rules.pop().expect("a rule was registered");
            }
            "mm" if self.region.0 == Cpu => self.within(Some(("mm", F16))),
            "mm" => self.within(Some(("mm", F32))),
            "mm(f64,f64)" => self.within(Some(("mm", F64))),
            "exp(bf16)" => self.within(Some(("exp", BF16))),
            "GradScaler for the device" => {
                self.register(low());
                let eager = Eager::new(self.options()).expect("the device is there");
                let mut scaler = EagerScaler::new(ScalerOptions::default()).expect("settings");
                let loss = eager.tensor(Tensor::scalar(2f32));
                let scaled = scaler.scale(&loss).and_then(|loss| loss.to_host());
                assert_eq!(scaled.expect("a number").to_f64s(), [131_072.0]);
                self.region.2 = Some(true);
            }
            other => panic!("a step that nobody has words for: {other}"),
        }
    }

    fn rename(&mut self, name: &str) {
        let done = self.registry.rename(PrivateUse1, name);
        if done.is_ok() {
            self.name = name.to_owned();
        }
        self.note(done);
    }
}

/// What "as above" stands for.
fn above(id: &str) -> &'static [&'static str] {
    match id {
        "pu1/low_policy_f64" => &["register mm low"],
        _ => &["register mm low", "register mm fp32 in a second library"],
    }
}

/// Runs a case; nothing if it is as it was recorded, or differs as is said here.
pub(crate) fn run(case: &Value) -> Vec<String> {
    let id = case["id"].as_str().unwrap_or("?");
    let mut world = World::new();
    for words in case["steps"].as_array().into_iter().flatten() {
        match words.as_str().expect("a step is words") {
            "as above" => above(id).iter().for_each(|words| world.step(words)),
            words => world.step(words),
        }
    }
    let expect = &case["expect"];
    let mut found = Vec::new();
    let mut differs = |what: &str, wanted: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
        found.push(format!("{what}: recorded {wanted:?}, found {is:?}"));
    };
    let World { results, warnings, errors, region, .. } = &world;
    match ours(id) {
        Some(Ours::Refused(says)) => {
            if !errors.iter().any(|error| error.contains(says)) {
                differs("ours", &says, errors);
            }
            return found;
        }
        Some(Ours::Gives(dtype)) => {
            if *results != [Ok(dtype)] || !errors.is_empty() {
                differs("ours", &dtype, &(results, errors));
            }
            return found;
        }
        None => {}
    }
    let fails = !expect["error"].is_null();
    if fails == errors.is_empty() {
        differs("errors", &expect["error"], errors);
    }
    // PyTorch's words in ours.
    for name in expect["names"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let says = match name {
            "get_amp_supported_dtype is missing" => "has no autocast",
            "in-tree device name" => "the name of a device type",
            "list of device types" => "expected one of cpu, cuda",
            "already been registered" => "registered already",
            other => other,
        };
        if !errors.iter().any(|error| error.contains(says)) {
            differs("words", &says, errors);
        }
    }
    if let Some(enabled) = expect["enabled"].as_bool()
        && region.2 != Some(enabled)
    {
        differs("enabled", &enabled, &region.2);
    }
    if expect["warns"].as_bool().unwrap_or(false) == warnings.is_empty() {
        differs("warnings", &expect["warns"], warnings);
    }
    let wanted: Vec<DType> = match &expect["out"] {
        Value::Array(all) => all.iter().filter_map(first_word).collect(),
        one => first_word(one).into_iter().collect(),
    };
    if !wanted.is_empty() && *results != wanted.iter().map(|dtype| Ok(*dtype)).collect::<Vec<_>>() {
        differs("out", &wanted, results);
    }
    found
}

/// `f16 (the earlier registration is back)`
fn first_word(text: &Value) -> Option<DType> {
    text.as_str()?.split_whitespace().next()?.parse().ok()
}

/// Where ours differs on purpose.
enum Ours {
    Refused(&'static str),
    Gives(DType),
}

fn ours(id: &str) -> Option<Ours> {
    match id {
        // A text has to hold the name.
        "pu1/rename_odd_characters" => Some(Ours::Refused("expected letters, digits and `_`")),
        // What nobody lists falls through, on any device.
        "pu1/no_fallback_listed_op" => Some(Ours::Gives(F32)),
        _ => None,
    }
}
