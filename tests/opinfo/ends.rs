//! The ops whose samples leave numbers out: what PyTorch answers to these is recorded in
//! `ends.jsonl.gz`, or a list says why not.

use super::{OURS, cases};
use std::collections::BTreeSet;
use std::path::Path;
use tracecast_ir::DType;
use tracecast_ir::ops::sample::{Range, parse_sample};

/// Functions of PyTorch that are ops under another name here.
const CALLED: &[(&str, &str)] = &[("cross_entropy", "cross_entropy_loss"), ("lerp", "lerp_by")];

/// The ops that are tried within the domain of their samples alone, and why.
const HOLES: &[(&str, &str)] = &[
    (
        "attention_backward",
        "a gradient, which `tests/attention.rs` tries with numbers that are not finite",
    ),
    ("batch_norm_backward", "the gradient of `batch_norm`, from statistics that it has computed"),
    (
        "grid_sampler",
        "places that are no numbers are none in PyTorch either: each of its kernels has another",
    ),
    ("group_norm_backward", "the gradient of `group_norm`, which is recorded"),
    ("hardswish_backward", "the gradient of `hardswish`, which is recorded"),
    ("index_reduce", "products whose gradient PyTorch divides for: it has NaN beside zeros"),
    ("layer_norm_backward", "the gradient of `layer_norm`, which is recorded"),
    ("log_softmax_backward", "the gradient of `log_softmax`, which is recorded"),
    ("recurrence", "within gradients of scans alone"),
    ("reduce_row", "its product is that of `prod`, which is recorded"),
    ("scan", "its product is that of `cumprod`, which is recorded"),
    ("scatter_mul", "as `index_reduce`"),
    ("scatter_reduce", "as `index_reduce`"),
    ("sigmoid_backward", "the gradient of `sigmoid`, which is recorded"),
    ("softmax_backward", "the gradient of `softmax`, which is recorded"),
    ("tanh_backward", "the gradient of `tanh`, which is recorded"),
    ("unscale", "of a loss scale, which is never zero: `scaler_conformance` has what PyTorch does"),
    (
        "unscale_check",
        "of a loss scale, which is never zero: `scaler_conformance` has what PyTorch does",
    ),
];

#[test]
fn every_op_is_tried_where_its_samples_leave_numbers_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(OURS);
    let recorded = cases::read(&folder.join("ends.jsonl.gz"));
    let recorded: BTreeSet<String> = recorded
        .iter()
        .map(|case| {
            let called =
                CALLED.iter().find(|(theirs, _)| *theirs == case.op).map(|(_, ours)| *ours);
            called.map_or_else(|| case.op.replace('.', "_"), str::to_owned)
        })
        .collect();
    let is_narrow = |op: &tracecast_ir::OpDef| {
        let of_f64 = op.domain.dtypes.contains(&DType::F64);
        let mut samples =
            op.domain.samples.iter().filter_map(|text| parse_sample(op, text, DType::F64).ok());
        let narrow = |(ty, range): &(tracecast_ir::TensorType, Range)| {
            ty.dtype.is_float() && *range != Range::Any
        };
        of_f64 && samples.any(|sample| sample.operands.iter().any(narrow))
    };
    let narrow: BTreeSet<&str> =
        tracecast_ir::ops::all().filter(|op| is_narrow(op)).map(|op| op.name.text()).collect();
    let holes: BTreeSet<&str> = HOLES.iter().map(|(op, _)| *op).collect();
    let open: Vec<&&str> =
        narrow.iter().filter(|op| !recorded.contains(**op) && !holes.contains(**op)).collect();
    assert!(open.is_empty(), "neither recorded nor listed with a reason: {open:?}");
    let closed: Vec<&&str> =
        holes.iter().filter(|op| !narrow.contains(**op) || recorded.contains(**op)).collect();
    assert!(closed.is_empty(), "listed, and no hole: {closed:?}");
}
