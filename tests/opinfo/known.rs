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

/// A row of the page and a difference that it names.
pub(crate) struct Known {
    /// The first cell of the row.
    pub(crate) row: &'static str,
    part: Part,
    /// What differs in results and gradients.
    what: Option<What>,
    /// The dtypes; empty for all.
    dtypes: &'static [&'static str],
    /// The operators.
    ops: &'static [&'static str],
    /// True if PyTorch promises nothing there.
    pub(crate) is_free: bool,
}

impl Known {
    fn names(&self, case: &Case, part: Part, difference: Option<&Difference>) -> bool {
        let (_, dtype) = case.entry();
        self.part == part
            && self.what == difference.map(|d| d.what)
            && self.ops.contains(&case.op.as_str())
            && (self.dtypes.is_empty() || self.dtypes.contains(&dtype))
    }
}

/// Differences: the first cell of the row, which part differs and what of it, in which dtypes of
/// which operators.
macro_rules! rows {
    ($($row:literal: [$part:ident $($what:ident)?] $(($free:ident))? $(of [$($dtype:literal)+])? in [$($op:literal)+];)+) => {
        [$(Known {
            row: $row,
            part: Part::$part,
            what: [$(What::$what)?].first().copied(),
            dtypes: &[$($($dtype),+)?],
            ops: &[$($op),+],
            is_free: <[&str]>::len(&[$(stringify!($free))?]) == 1,
        }),+]
    };
}

/// What differs in the calls of the samples.
const ALL: &[Known] = &rows! {
    "a float cast to an integer dtype that does not hold it":
        [Out Numbers] (free) of ["f16" "bf16" "f32" "f64"] in ["byte" "int" "long"];
    "`-0.0` and numbers that become it in `relu` and other functions":
        [Out SignsOfZero] (free) in ["logaddexp2" "relu" "relu6" "softshrink"];
    "`maximum` and `minimum` of `0.0` and `-0.0`":
        [Out SignsOfZero] in ["fmax" "fmin" "max" "maximum" "minimum"];
    "a logarithm of `softmax` next to zero, in 16 bits":
        [Out Numbers] of ["bf16"] in ["log_softmax"];
    "a tensor of more than 64 axes": [Taken] (free) in ["amax" "amin" "aminmax"];
    "the mean of infinities beside `var` and `std`": [Out Numbers] in ["var_mean" "std_mean"];
    "losses that PyTorch computes op by op in 16 bits":
        [Out Numbers] of ["f16" "bf16"] in ["soft_margin_loss" "hinge_embedding_loss"];
    "losses that PyTorch computes op by op in 16 bits":
        [Grad Numbers] of ["f16" "bf16"] in ["soft_margin_loss" "hinge_embedding_loss"];
    "`addbmm` in 16 bits": [Out Numbers] in ["addbmm"];
    "gradients of `xlogy` and `normalize` in f16":
        [Grad Numbers] of ["f16"] in ["xlogy" "normalize"];
    "gradients of special functions at poles and infinities":
        [Grad Numbers] of ["f16"] in ["logit"];
    "gradients of special functions at poles and infinities":
        [Grad Numbers] in ["special.log_ndtr" "special.erfcx"];
    "`bilinear` under autocast": [Out Numbers] of ["f32"] in ["bilinear"];
    "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN":
        [Grad Numbers] of ["f16" "f32"] in ["cumprod"];
    "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN":
        [Grad Numbers] of ["f16" "bf16" "f64"] in ["logcumsumexp"];
    "gradients of `Conv3d` that are sums of large terms":
        [Grad Numbers] of ["f32"] in ["nn.Conv3d"];
    "running means in 16 bits": [Out Numbers] of ["f16" "bf16"] in ["native_batch_norm"];
    "norms of a group of one number": [Out Numbers] of ["f32"] in ["group_norm"];
    "norms of a group of one number": [Grad Numbers] of ["f32"] in ["group_norm"];
    "gradients of sources that meet at a place in `scatter` and `index_copy`":
        [Grad Numbers] (free) in ["scatter" "index_copy" "index_put" "put"];
    "what `multinomial` draws, and from what": [Out Numbers] (free) of ["f16"] in ["multinomial"];
    "what `multinomial` draws, and from what": [Taken] in ["multinomial"];
    "convolutions in f16 under autocast":
        [Out Numbers] of ["f32"] in ["conv_transpose1d" "conv_transpose2d" "conv_transpose3d"];
    "convolutions in f16 under autocast":
        [Grad Numbers] of ["f32"] in ["conv2d" "conv_transpose1d" "conv_transpose2d"];
};

/// What else differs at the ends of domains, `ends.jsonl.gz`.
const ENDS: &[Known] = &rows! {
    "gradients of special functions at poles and infinities":
        [Out Numbers] of ["f32" "f64"] in ["digamma" "lgamma" "polygamma"];
    "gradients of special functions at poles and infinities":
        [Grad Numbers] in ["digamma" "lgamma" "polygamma" "logit" "special.ndtri" "atan2" "hypot"];
    "what overflows or underflows in a step between the operands and the result":
        [Out Numbers] in ["gelu" "std" "var" "soft_margin_loss" "fmod" "remainder"];
    "what overflows or underflows in a step between the operands and the result":
        [Grad Numbers] in [
            "addcdiv" "addcmul" "div" "mse_loss" "rms_norm" "soft_margin_loss" "std" "var"
        ];
    "losses that PyTorch computes op by op in 16 bits":
        [Out Numbers] of ["f16" "bf16"] in [
            "binary_cross_entropy_with_logits" "cosine_embedding_loss" "cosine_similarity"
            "kl_div" "log_softmax" "logit" "poisson_nll_loss" "pow" "prod" "renorm"
            "triplet_margin_loss"
        ];
    "losses that PyTorch computes op by op in 16 bits": [Out SignsOfZero] of ["f16"] in ["pow"];
    "losses that PyTorch computes op by op in 16 bits":
        [Grad Numbers] of ["f16" "bf16"] in [
            "binary_cross_entropy" "binary_cross_entropy_with_logits" "cosine_embedding_loss"
            "cosine_similarity" "cross_entropy" "gaussian_nll_loss" "group_norm" "layer_norm"
            "log_softmax" "logsumexp" "margin_ranking_loss" "poisson_nll_loss" "pow" "softsign"
            "triplet_margin_loss"
        ];
    "gradients of targets and losses where a logarithm is infinite":
        [Grad Numbers] in ["binary_cross_entropy" "kl_div" "poisson_nll_loss"];
    "`-0.0` and numbers that become it in `relu` and other functions":
        [Out SignsOfZero] in ["batch_norm" "nll_loss" "soft_margin_loss"];
    "`maximum` and `minimum` of `0.0` and `-0.0`":
        [Out SignsOfZero] in ["clamp" "clamp_max" "clamp_min"];
    "gradients of `cumprod` and `logcumsumexp` beside infinities and NaN":
        [Grad Numbers] in ["cumprod" "logcumsumexp"];
    "norms and distances of rows that hold NaN":
        [Grad Numbers] in ["clamp" "linalg.vector_norm" "pairwise_distance" "renorm"];
    "`quantile` between a number and infinity": [Out Numbers] in ["quantile"];
};

/// The first cells of all rows.
pub(crate) fn rows() -> impl Iterator<Item = &'static str> {
    ALL.iter().chain(ENDS).map(|known| known.row)
}

/// The row that names a difference at the end of a domain.
pub(crate) fn at_the_end(
    case: &Case,
    part: Part,
    difference: Option<&Difference>,
) -> Option<&'static str> {
    let found = ENDS.iter().find(|known| known.names(case, part, difference));
    found.filter(|_| case.entry().0.starts_with("ends.")).map(|known| known.row)
}

/// The row that names a difference.
pub(crate) fn known(
    case: &Case,
    part: Part,
    difference: Option<&Difference>,
) -> Option<&'static Known> {
    ALL.iter().find(|known| known.names(case, part, difference))
}
