//! The prose entries about custom ops and torchax: what ours does in the same place.

use tracecast::DType;
use tracecast::ir::policy::{
    Decision, DeviceType, OperandInfo, Policy, PolicySet, Promotion, Query, Region, Target,
};

use DType::{BF16, F16, F32, F64, I64};
use DeviceType::{Cpu, PrivateUse1};

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
    ("custom_op/fixed_dtype", custom_op_takes_the_region_dtype),
    ("custom_op/unknown_device", custom_op_on_unknown_device),
    ("torchax/promote_list", torchax_promote_list),
    ("torchax/promote_index_copy", torchax_promote_index_copy),
    ("torchax/promote_f16_bf16", torchax_promote_f16_bf16),
    ("torchax/unimplemented", torchax_unimplemented),
    ("torchax/f64", torchax_f64),
];
