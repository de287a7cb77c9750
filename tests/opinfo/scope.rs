//! Which of the recorded calls are compared.

/// Families that are not copied here, or left out of files of others: what they need comes later.
const FAMILIES: &[(&str, &str)] =
    &[("pool", "pooling"), ("resize", "interpolation"), ("attention", "fused attention")];

/// Operators and layers that need what comes later.
const OPERATORS: &[(&str, &str)] = &[
    ("batch_norm", "norms over a batch"),
    ("native_batch_norm", "norms over a batch"),
    ("group_norm", "norms over groups of channels"),
    ("native_group_norm", "norms over groups of channels"),
    ("instance_norm", "norms over a batch"),
    ("local_response_norm", "norms over neighbouring channels"),
    ("nn.BatchNorm", "norms over a batch"),
    ("nn.GroupNorm", "norms over groups of channels"),
    ("nn.InstanceNorm", "norms over a batch"),
    ("nn.LocalResponseNorm", "norms over neighbouring channels"),
    ("nn.Conv", "convolutions"),
    ("nn.AdaptiveAvgPool", "pooling"),
    ("nn.AdaptiveMaxPool", "pooling"),
    ("nn.AvgPool", "pooling"),
    ("nn.MaxPool", "pooling"),
];

/// Why calls of the operator are not compared; `None` if they are.
pub(crate) fn left_out(family: &str, op: &str) -> Option<&'static str> {
    let of_family = FAMILIES.iter().find(|(name, _)| *name == family);
    let is_op = |name: &str| op == name || name.starts_with("nn.") && op.starts_with(name);
    let of_op = || OPERATORS.iter().find(|(name, _)| is_op(name));
    of_family.or_else(of_op).map(|(_, why)| *why)
}
