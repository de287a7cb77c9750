//! The prose entries about devices from outside, policies from user code and torchax: what ours does in the same place.

use std::sync::Arc;
use tracecast::DType;
use tracecast::amp::ScalerOptions;
use tracecast::ir::kernel::Kernel;
use tracecast::ir::policy::{
    Accepted, Decision, DeviceType, OperandInfo, Policy, PolicySet, Promotion, Query, Region,
    Target,
};
use tracecast::runtime::{
    Backend, Device, DeviceId, Launch, Memory, ReferenceDevice, Registry, Result,
};

use DType::{BF16, F16, F32, F64, I8, I64};
use DeviceType::{Cpu, PrivateUse1};

const OF_NPU: Accepted<'_> = Accepted::Only(&[F32, I8]);

fn decide(set: &PolicySet, op: &str, device: DeviceType, low: DType, dtypes: &[DType]) -> Decision {
    let region = Region::default().with_device(device, true, low);
    let operands: Vec<_> = dtypes.iter().map(|dtype| OperandInfo::tensor(*dtype, device)).collect();
    set.decide(&Query::new(op, &operands, &region))
}

/// The dtype that one f32 operand of the op gets.
fn given(set: &PolicySet, op: &str, device: DeviceType, low: DType, dtype: DType) -> DType {
    decide(set, op, device, low, &[dtype]).casts[0].unwrap_or(dtype)
}

fn op(name: &str) -> Target {
    Target::Op(name.to_owned())
}

fn without_support() {
    for enabled in [true, false] {
        let error = Region::default().enter(PrivateUse1, None, enabled, None).unwrap_err();
        assert!(error.to_string().contains("no device of this type has registered"), "{error}");
    }
}

fn f32_allowed() {
    let entered = Region::default().enter_accepting(OF_NPU, PrivateUse1, Some(F32), true, None);
    let (region, warning) = entered.expect("the device has autocast");
    assert!(region.is_enabled(PrivateUse1) && warning.is_none());
}

fn default_not_in_list() {
    let entered = Region::default().enter_accepting(OF_NPU, PrivateUse1, None, true, None);
    let (region, warning) = entered.expect("the device has autocast");
    assert!(
        !region.is_enabled(PrivateUse1)
            && warning.is_some_and(|text| text.contains("f32 or i8, not f16"))
    );
}

/// A driver without devices.
#[derive(Debug)]
struct Nothing;

impl Backend for Nothing {
    fn count(&self) -> usize {
        0
    }

    fn open(&self, _id: &DeviceId) -> Result<Arc<dyn Device>> {
        unreachable!("there is none")
    }
}

/// A device from outside that is open.
#[derive(Debug)]
struct Open;

impl Device for Open {
    fn name(&self) -> &str {
        "mine"
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

fn renamed_same_twice() {
    let registry = Registry::new();
    assert!(registry.rename(PrivateUse1, "npu").is_ok());
    assert!(registry.rename(PrivateUse1, "npu").is_ok());
    assert_eq!(registry.register("npu", Arc::new(Nothing)).ok(), Some(PrivateUse1));
}

fn renamed_in_tree() {
    let error = Registry::new().rename(PrivateUse1, "cuda").unwrap_err().to_string();
    assert!(error.contains("the name of a device type"), "{error}");
}

fn odd_characters() {
    // PyTorch takes any name; here a text has to hold it.
    let error = Registry::new().rename(PrivateUse1, "my dev!").unwrap_err().to_string();
    assert!(error.contains("expected letters, digits and `_`"), "{error}");
    assert!(Registry::new().register("my dev!", Arc::new(Nothing)).is_err());
}

fn unknown_device() {
    let error = "npu".parse::<DeviceType>().unwrap_err().to_string();
    assert!(error.contains("expected one of cpu, cuda"), "{error}");
    let registry = Registry::new();
    registry.register_device(Arc::new(Open)).expect("the name is free");
    let error = registry.device("npu").unwrap_err().to_string();
    assert!(error.contains("expected one of mine:0"), "{error}");
}

fn registered_twice() {
    let registry = Registry::new();
    registry.register("npu", Arc::new(Nothing)).expect("the name is free");
    let error = registry.register("npu", Arc::new(Nothing)).expect_err("it is taken").to_string();
    assert!(error.contains("registered already"), "{error}");
}

fn device_registered_twice() {
    // What PyTorch generates for a name are methods; here a device under a name is all there is.
    let registry = Registry::new();
    registry.register_device(Arc::new(Open)).expect("the name is free");
    let error = registry.register_device(Arc::new(Open)).expect_err("it is taken").to_string();
    assert!(error.contains("`mine:0` is registered already"), "{error}");
}

fn nothing_is_listed() {
    // PyTorch fails without a registered fall-through; here every op of an unlisted device falls through.
    let decision = decide(&PolicySet::standard(), "mm", PrivateUse1, F16, &[F32, F32]);
    assert!(decision.is_trivial());
    assert_eq!(decision.rule.as_str(), "privateuse1/*:fallthrough");
}

fn with_low_mm() -> PolicySet {
    let mut set = PolicySet::standard();
    set.add_rule(op("mm"), Some(PrivateUse1), Policy::LowerPrecisionFp);
    set
}

fn low_policy_f64() {
    assert!(decide(&with_low_mm(), "mm", PrivateUse1, F16, &[F64, F64]).is_trivial());
}

fn last_wins_and_removing_restores() {
    let mut set = with_low_mm();
    let second = set.add_rule(op("mm"), Some(PrivateUse1), Policy::Fp32);
    assert_eq!(given(&set, "mm", PrivateUse1, F16, F32), F32);
    set.remove_rule(second);
    assert_eq!(given(&set, "mm", PrivateUse1, F16, F32), F16);
}

fn built_in_device() {
    let mut set = PolicySet::standard();
    set.add_rule(op("exp"), Some(Cpu), Policy::Fp32);
    assert_eq!(given(&set, "exp", Cpu, BF16, BF16), F32);
}

fn built_in_policy() {
    // Policies name roles, not dtypes: what was recorded as f16 is an op that falls through here.
    let mut set = PolicySet::standard();
    let ask = |set: &PolicySet| given(set, "mm", Cpu, BF16, F16);
    let first = set.add_rule(op("mm"), Some(Cpu), Policy::Fallthrough);
    assert_eq!(ask(&set), F16);
    let second = set.add_rule(op("mm"), Some(Cpu), Policy::Fp32);
    assert_eq!(ask(&set), F32);
    set.remove_rule(second);
    assert_eq!(ask(&set), F16);
    set.remove_rule(first);
    assert_eq!(ask(&set), BF16);
}

fn custom_op_takes_the_region_dtype() {
    let mut set = PolicySet::standard();
    set.add_rule(op("my_op"), Some(Cpu), Policy::LowerPrecisionFp);
    assert_eq!(given(&set, "my_op", Cpu, F16, F32), F16);
}

fn custom_op_on_unknown_device() {
    let error = PolicySet::parse("[[rule]]\nop = \"my_op\"\ndevice = \"meta\"\npolicy = \"fp32\"")
        .unwrap_err();
    assert!(error.to_string().contains("`meta`"), "{error}");
}

fn grad_scaler() {
    // A scaler is state of the program and has no device of its own.
    assert!(!ScalerOptions::default().entries("scaler").is_empty());
}

fn torchax_promote_list() {
    let decision = decide(&PolicySet::torchax(), "cat", PrivateUse1, BF16, &[F32, BF16]);
    assert_eq!(decision.casts[..], [None, Some(F32)]);
}

fn torchax_promote_index_copy() {
    let decision =
        decide(&PolicySet::torchax(), "index_copy", PrivateUse1, BF16, &[F32, I64, BF16]);
    assert_eq!(decision.casts[..], [None, None, Some(F32)]);
}

fn torchax_promote_f16_bf16() {
    let mut set = PolicySet::torchax();
    let refused = decide(&set, "cat", PrivateUse1, BF16, &[F16, BF16]).error;
    assert_eq!(refused.map(|error| error.class()), Some("promote_mixed_low"));
    set.set_promotion(Promotion::Join);
    let joined = decide(&set, "cat", PrivateUse1, BF16, &[F16, BF16]);
    assert_eq!(joined.casts[..], [Some(F32), Some(F32)]);
}

fn torchax_unimplemented() {
    let set = PolicySet::torchax();
    let table = set.table(PrivateUse1).expect("the table of torchax");
    let lists = |name: &str| table.iter().any(|(_, policy)| policy.name() == name);
    assert!(!lists("fp32_set_opt_dtype") && !lists("fp32_append_dtype"));
}

fn torchax_f64() {
    assert_eq!(given(&PolicySet::torchax(), "mm", PrivateUse1, BF16, F64), BF16);
    assert_eq!(given(&PolicySet::torchax(), "mm", Cpu, BF16, F64), F64);
}

/// The test of each entry.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("pu1/module_without_function", without_support),
    ("pu1/f32_allowed", f32_allowed),
    ("pu1/default_not_in_list", default_not_in_list),
    ("pu1/rename_same_twice", renamed_same_twice),
    ("pu1/rename_in_tree", renamed_in_tree),
    ("pu1/rename_odd_characters", odd_characters),
    ("pu1/register_unknown_device", unknown_device),
    ("pu1/register_twice", registered_twice),
    ("pu1/generate_methods_twice", device_registered_twice),
    ("pu1/no_fallback_listed_op", nothing_is_listed),
    ("pu1/low_policy_f64", low_policy_f64),
    ("pu1/override_last_wins", last_wins_and_removing_restores),
    ("pu1/override_removed", last_wins_and_removing_restores),
    ("pu1/override_built_in_device", built_in_device),
    ("pu1/override_built_in_policy", built_in_policy),
    ("pu1/grad_scaler", grad_scaler),
    ("custom_op/fixed_dtype", custom_op_takes_the_region_dtype),
    ("custom_op/unknown_device", custom_op_on_unknown_device),
    ("torchax/promote_list", torchax_promote_list),
    ("torchax/promote_index_copy", torchax_promote_index_copy),
    ("torchax/promote_f16_bf16", torchax_promote_f16_bf16),
    ("torchax/unimplemented", torchax_unimplemented),
    ("torchax/f64", torchax_f64),
];
