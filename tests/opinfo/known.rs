//! Which differences the rows of `docs/parity.md` speak of.

use crate::cases::Case;
use crate::compare::{Difference, What};
use std::fmt;

/// What of a call differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A result.
    Out,
    /// A gradient.
    Grad,
    /// It is refused here.
    Refused,
    /// PyTorch refuses it.
    Taken,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Out => "result",
            Part::Grad => "gradient",
            Part::Refused => "refusal",
            Part::Taken => "answer",
        })
    }
}

/// A row of the page and the differences that it names.
pub(crate) struct Known {
    /// The first cell of the row.
    pub(crate) row: &'static str,
    /// The operators.
    ops: &'static [&'static str],
    /// The dtypes; empty for all.
    dtypes: &'static [&'static str],
    part: Part,
    /// What differs in results and gradients.
    what: Option<What>,
    /// True if PyTorch promises nothing there.
    pub(crate) is_free: bool,
}

/// The rows.
const ALL: &[Known] = &[
    Known {
        row: "a float cast to an integer dtype that does not hold it",
        ops: &["byte", "int", "long"],
        dtypes: &["f16", "bf16", "f32", "f64"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: true,
    },
    Known {
        row: "`-0.0` and numbers that become it in `relu` and other functions",
        ops: &["logaddexp2", "relu", "relu6", "softshrink"],
        dtypes: &[],
        part: Part::Out,
        what: Some(What::SignsOfZero),
        is_free: true,
    },
    Known {
        row: "`maximum` and `minimum` of `0.0` and `-0.0`",
        ops: &["fmax", "fmin", "max", "maximum", "minimum"],
        dtypes: &[],
        part: Part::Out,
        what: Some(What::SignsOfZero),
        is_free: false,
    },
    Known {
        row: "a logarithm of `softmax` next to zero, in 16 bits",
        ops: &["log_softmax"],
        dtypes: &["bf16"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "a tensor of more than 64 axes",
        ops: &["amax", "amin", "aminmax"],
        dtypes: &[],
        part: Part::Taken,
        what: None,
        is_free: true,
    },
    Known {
        row: "the mean of infinities beside `var` and `std`",
        ops: &["var_mean", "std_mean"],
        dtypes: &[],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "losses that PyTorch computes op by op in 16 bits",
        ops: &["soft_margin_loss", "hinge_embedding_loss"],
        dtypes: &["f16", "bf16"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "losses that PyTorch computes op by op in 16 bits",
        ops: &["soft_margin_loss", "hinge_embedding_loss"],
        dtypes: &["f16", "bf16"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "`addbmm` in 16 bits",
        ops: &["addbmm"],
        dtypes: &[],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of `xlogy` and `normalize` in f16",
        ops: &["xlogy", "normalize"],
        dtypes: &["f16"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of special functions at poles and infinities",
        ops: &["logit"],
        dtypes: &["f16"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of special functions at poles and infinities",
        ops: &["special.log_ndtr", "special.erfcx"],
        dtypes: &[],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "`bilinear` under autocast",
        ops: &["bilinear"],
        dtypes: &["f32"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN",
        ops: &["cumprod"],
        dtypes: &["f16", "f32"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN",
        ops: &["logcumsumexp"],
        dtypes: &["f16", "bf16", "f64"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of `Conv3d` that are sums of large terms",
        ops: &["nn.Conv3d"],
        dtypes: &["f32"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "running means in 16 bits",
        ops: &["native_batch_norm"],
        dtypes: &["f16", "bf16"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "norms of a group of one number",
        ops: &["group_norm"],
        dtypes: &["f32"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "norms of a group of one number",
        ops: &["group_norm"],
        dtypes: &["f32"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "gradients of sources that meet at a place in `scatter` and `index_copy`",
        ops: &["scatter", "index_copy", "index_put", "put"],
        dtypes: &[],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: true,
    },
    Known {
        row: "what `multinomial` draws, and from what",
        ops: &["multinomial"],
        dtypes: &["f16"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: true,
    },
    Known {
        row: "what `multinomial` draws, and from what",
        ops: &["multinomial"],
        dtypes: &[],
        part: Part::Taken,
        what: None,
        is_free: false,
    },
    Known {
        row: "convolutions in f16 under autocast",
        ops: &["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
        dtypes: &["f32"],
        part: Part::Out,
        what: Some(What::Numbers),
        is_free: false,
    },
    Known {
        row: "convolutions in f16 under autocast",
        ops: &["conv2d", "conv_transpose1d", "conv_transpose2d"],
        dtypes: &["f32"],
        part: Part::Grad,
        what: Some(What::Numbers),
        is_free: false,
    },
];

const POLES: &str = "gradients of special functions at poles and infinities";
const STEPS: &str = "what overflows or underflows in a step between the operands and the result";
const NARROW: &str = "losses that PyTorch computes op by op in 16 bits";
const TARGETS: &str = "gradients of targets and losses where a logarithm is infinite";
const SIGNS: &str = "`-0.0` and numbers that become it in `relu` and other functions";
const NAN_ROWS: &str = "norms and distances of rows that hold NaN";

/// A row of the page, the part and what of it differs, in which dtypes, all if there are none, and
/// of which operators.
type End = (&'static str, Part, What, &'static [&'static str], &'static [&'static str]);

/// What else differs at the ends of domains, `ends.jsonl.gz`.
const ENDS: &[End] = &[
    (POLES, Part::Out, What::Numbers, &["f32", "f64"], &["digamma", "lgamma", "polygamma"]),
    (
        POLES,
        Part::Grad,
        What::Numbers,
        &[],
        &["digamma", "lgamma", "polygamma", "logit", "special.ndtri", "atan2", "hypot"],
    ),
    (
        STEPS,
        Part::Out,
        What::Numbers,
        &[],
        &["gelu", "std", "var", "soft_margin_loss", "fmod", "remainder"],
    ),
    (
        STEPS,
        Part::Grad,
        What::Numbers,
        &[],
        &["addcdiv", "addcmul", "div", "mse_loss", "rms_norm", "soft_margin_loss", "std", "var"],
    ),
    (
        NARROW,
        Part::Out,
        What::Numbers,
        &["f16", "bf16"],
        &[
            "binary_cross_entropy_with_logits",
            "cosine_embedding_loss",
            "cosine_similarity",
            "kl_div",
            "log_softmax",
            "logit",
            "poisson_nll_loss",
            "pow",
            "prod",
            "renorm",
            "triplet_margin_loss",
        ],
    ),
    (NARROW, Part::Out, What::SignsOfZero, &["f16"], &["pow"]),
    (
        NARROW,
        Part::Grad,
        What::Numbers,
        &["f16", "bf16"],
        &[
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "cosine_embedding_loss",
            "cosine_similarity",
            "cross_entropy",
            "gaussian_nll_loss",
            "group_norm",
            "layer_norm",
            "log_softmax",
            "logsumexp",
            "margin_ranking_loss",
            "poisson_nll_loss",
            "pow",
            "softsign",
            "triplet_margin_loss",
        ],
    ),
    (
        TARGETS,
        Part::Grad,
        What::Numbers,
        &[],
        &["binary_cross_entropy", "kl_div", "poisson_nll_loss"],
    ),
    (SIGNS, Part::Out, What::SignsOfZero, &[], &["batch_norm", "nll_loss", "soft_margin_loss"]),
    (
        "`maximum` and `minimum` of `0.0` and `-0.0`",
        Part::Out,
        What::SignsOfZero,
        &[],
        &["clamp", "clamp_max", "clamp_min"],
    ),
    (
        "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN",
        Part::Grad,
        What::Numbers,
        &[],
        &["cumprod", "logcumsumexp"],
    ),
    (
        NAN_ROWS,
        Part::Grad,
        What::Numbers,
        &[],
        &["clamp", "linalg.vector_norm", "pairwise_distance", "renorm"],
    ),
    ("`quantile` between a number and infinity", Part::Out, What::Numbers, &[], &["quantile"]),
];

/// The first cells of all rows.
pub(crate) fn rows() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|known| known.row).chain(ENDS.iter().map(|(row, ..)| *row))
}

/// The row that names a difference at the end of a domain.
pub(crate) fn at_the_end(
    case: &Case,
    part: Part,
    difference: Option<&Difference>,
) -> Option<&'static str> {
    let (entry, dtype) = case.entry();
    let found = ENDS.iter().find(|(_, of, what, dtypes, ops)| {
        *of == part
            && Some(*what) == difference.map(|d| d.what)
            && ops.contains(&case.op.as_str())
            && (dtypes.is_empty() || dtypes.contains(&dtype))
    });
    found.filter(|_| entry.starts_with("ends.")).map(|(row, ..)| *row)
}

/// The row that names a difference.
pub(crate) fn known(
    case: &Case,
    part: Part,
    difference: Option<&Difference>,
) -> Option<&'static Known> {
    let (_, dtype) = case.entry();
    ALL.iter().find(|known| {
        known.part == part
            && known.what == difference.map(|d| d.what)
            && known.ops.contains(&case.op.as_str())
            && (known.dtypes.is_empty() || known.dtypes.contains(&dtype))
    })
}
